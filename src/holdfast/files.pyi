from holdfast.sinks.files.dataset import FilesDataset as FilesDataset
from holdfast.sinks.files.opening import open as open
from holdfast.sinks.object_files.dataset import ObjectFilesDataset as ObjectFilesDataset
