from holdfast.connectors.files.objects.dataset import ObjectFilesDataset as ObjectFilesDataset
from holdfast.connectors.files.sink.dataset import FilesDataset as FilesDataset
from holdfast.connectors.files.sink.opening import open as open
