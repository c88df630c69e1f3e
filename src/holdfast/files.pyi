from holdfast.sinks.files.dataset import FilesDataset as FilesDataset
from holdfast.sinks.files.dataset import open as open
