from holdfast.sinks.segments.readers.source import segments as segments
from holdfast.sources.byte_stream.spec import byte_stream as byte_stream
from holdfast.sources.callback import CallbackFeed as CallbackFeed
from holdfast.sources.callback import callback as callback
from holdfast.sources.files.spec import files as files
from holdfast.sources.rate import rate as rate
from holdfast.sources.rows import rows as rows
from holdfast.sources.spark import spark as spark
