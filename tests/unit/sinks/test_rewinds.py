"""What a declaration says of rewinds, and what its sink can do."""

import pytest

from holdfast.capabilities import members
from holdfast.connectors.byte_stream.log_target import ByteStreamSink
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.console import ConsoleSink, ConsoleSpec
from holdfast.connectors.files.objects.sink import ObjectFilesSink
from holdfast.connectors.files.objects.spec import ObjectFilesSpec
from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.foreach_batch import ForeachBatchSink, ForeachBatchSpec
from holdfast.connectors.http.sink import HttpSink
from holdfast.connectors.http.spec import HttpSpec
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.connectors.kit.rewinds import declared
from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.memory import MemorySink, MemorySpec
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.spec import RedisSpec
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.ports import Rewindable, RewindableSpec

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
    assert (members(RewindableSpec) <= {*dir(spec)}) == (members(Rewindable) <= {*dir(sink)})


def test_a_table_says_by_its_mode_whether_it_can_withdraw():
    assert declared(TableMode.of("append", (), None, False, "add")).obstacle == "it is not declared rewindable=True"
    assert not declared(TableMode.of("append", (), None, True, "add")).obstacle
    assert declared(TableMode.of("upsert", "k", None, False, "add")).is_recomputed
