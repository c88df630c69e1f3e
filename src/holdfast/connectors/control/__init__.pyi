from holdfast.connectors.control.commands import add_column as add_column
from holdfast.connectors.control.commands import drop_partition as drop_partition
from holdfast.connectors.control.commands import widen as widen
