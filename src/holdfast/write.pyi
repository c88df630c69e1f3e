from holdfast.sinks.byte_stream.spec import byte_stream as byte_stream
from holdfast.sinks.console import console as console
from holdfast.sinks.files.spec import files as files
from holdfast.sinks.foreach_batch import foreach_batch as foreach_batch
from holdfast.sinks.memory import memory as memory
from holdfast.sinks.postgres.spec import postgres as postgres
from holdfast.sinks.segments.spec import segments as segments
from holdfast.sinks.sqlite.spec import sqlite as sqlite
