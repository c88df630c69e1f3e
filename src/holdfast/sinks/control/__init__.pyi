from holdfast.sinks.control.commands import add_column as add_column
from holdfast.sinks.control.commands import drop_partition as drop_partition
from holdfast.sinks.control.commands import widen as widen
