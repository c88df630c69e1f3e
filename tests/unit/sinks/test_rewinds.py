"""What a declaration says of rewinds, and what its sink can do."""

import pytest

from holdfast.ports import Rewindable, RewindableSpec
from holdfast.sinks.byte_stream.sink import ByteStreamSink
from holdfast.sinks.byte_stream.spec import ByteStreamSinkSpec
from holdfast.sinks.console import ConsoleSink, ConsoleSpec
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.spec import FilesSinkSpec
from holdfast.sinks.foreach_batch import ForeachBatchSink, ForeachBatchSpec
from holdfast.sinks.http.sink import HttpSink
from holdfast.sinks.http.spec import HttpSpec
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.kafka.spec import KafkaSpec
from holdfast.sinks.memory import MemorySink, MemorySpec
from holdfast.sinks.object_files.sink import ObjectFilesSink
from holdfast.sinks.object_files.spec import ObjectFilesSpec
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.postgres.spec import PostgresSpec
from holdfast.sinks.redis.sink import RedisSink
from holdfast.sinks.redis.spec import RedisSpec
from holdfast.sinks.rewinds import declared
from holdfast.sinks.segments.sink import SegmentsSink
from holdfast.sinks.segments.spec import SegmentsSinkSpec
from holdfast.sinks.sql import TableMode
from holdfast.sinks.sqlite.sink import SqliteSink
from holdfast.sinks.sqlite.spec import SqliteSpec

KINDS = [
    (ByteStreamSinkSpec, ByteStreamSink),
    (ConsoleSpec, ConsoleSink),
    (FilesSinkSpec, FilesSink),
    (ForeachBatchSpec, ForeachBatchSink),
    (HttpSpec, HttpSink),
    (KafkaSpec, KafkaSink),
    (MemorySpec, MemorySink),
    (ObjectFilesSpec, ObjectFilesSink),
    (PostgresSpec, PostgresSink),
    (RedisSpec, RedisSink),
    (SegmentsSinkSpec, SegmentsSink),
    (SqliteSpec, SqliteSink),
]


@pytest.mark.parametrize(("spec", "sink"), KINDS)
def test_a_declaration_says_of_rewinds_just_where_its_sink_can_withdraw(spec, sink):
    """A rewind is refused by the graph alone: no sink is connected for that."""
    assert issubclass(spec, RewindableSpec) == issubclass(sink, Rewindable)


def test_a_table_says_by_its_mode_whether_it_can_withdraw():
    assert declared(TableMode.of("append", (), None, False, "add")).obstacle == "it is not declared rewindable=True"
    assert not declared(TableMode.of("append", (), None, True, "add")).obstacle
    assert declared(TableMode.of("upsert", "k", None, False, "add")).is_recomputed
