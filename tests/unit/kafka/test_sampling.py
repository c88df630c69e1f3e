"""A sample of the newest messages for ``holdfast plan`` (design/0055, point 8); the cluster is scripted.

With a real broker: ``tests/unit/sources/test_kafka_drift.py``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.kafka.source import sampling
from holdfast.connectors.kafka.source.consuming import Access, MessageRun
from holdfast.connectors.kafka.source.sampling import ROWS_IN_ALL, ROWS_OF_TOPIC, shares
from holdfast.connectors.kafka.topics import PartitionOf
from holdfast.connectors.reading.bounds import OffsetRange
from holdfast.errors import Unavailable
from holdfast.observe.drift import drift_lines, drifts
from holdfast.ports import SourceDrift
from holdfast.types.inferred import declaration_by
from tests.schema_registry import SchemaRegistry, schema_registry

Log = Mapping[int, "bytes | None"]
"""Offset -> value, with gaps."""


class Messages:
    """What a sample asks of messages that were read."""

    def __init__(self, some: Sequence[bytes | None]) -> None:
        self.some = some

    def values(self) -> pa.Array:
        return pa.array(self.some, pa.binary())

    def sizes(self) -> np.ndarray:
        return np.array([len(value or b"") for value in self.some])


class Scripted:
    """A cluster with these partitions, each a log and where it ends."""

    def __init__(self, logs: Mapping[PartitionOf, tuple[Log, int]]) -> None:
        self.logs = {part.segment: log for part, (log, _) in logs.items()}
        self.parts = {part.segment: part for part in logs}
        self.end = {part: end for part, (_, end) in logs.items()}
        self.read: list[OffsetRange] = []
        self.timeout_s = 0.0
        self.fails_at: str | None = None

    def partitions(self, selection: Any) -> dict[str, PartitionOf]:
        return self.parts

    def begins(self, parts: Sequence[PartitionOf]) -> dict[PartitionOf, int]:
        return dict.fromkeys(parts, 0)

    def ends(self, parts: Sequence[PartitionOf], *, committed: bool) -> dict[PartitionOf, int]:
        return {part: self.end[part] for part in parts}

    def chunks_of(self, access: Access, ranges: Sequence[OffsetRange], timeout_s: float) -> Iterator[MessageRun]:
        assert access.looks
        assert not access.address.allows_native, "its verdict would be kept in a file"
        for each in ranges:
            self.read.append(each)
            if each.segment == self.fails_at:
                raise Unavailable("source 'rides': the cluster does not answer.", why="nothing came.")
            some = [value for at, value in sorted(self.logs[each.segment].items()) if each.first <= at < each.last]
            if some:
                yield MessageRun(each.segment, Messages(some))  # type: ignore[arg-type]


def part(number: int, topic: str = "rides") -> PartitionOf:
    return PartitionOf(topic, "28LoSSUPSParu4Qf", number)


def looked(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Scripted,
    schema: str | None = "id BIGINT",
    topic: Any = "rides",
    **arguments: Any,
) -> list[SourceDrift]:
    monkeypatch.setattr(sampling, "Cluster", lambda address, node: cluster)
    monkeypatch.setattr(sampling, "chunks_of", cluster.chunks_of)
    return drifts(pipeline("nowhere:9092", schema, topic=topic, **arguments))


def pipeline(address: str, schema: str | None = "id BIGINT", topic: Any = "rides", **arguments: Any) -> hf.Pipeline:
    rides = hf.read.kafka(address, topic, schema=schema, name="rides", **arguments)
    return hf.Pipeline("p", rides | hf.write.memory("drift"))


def log(*values: bytes | None, at: int = 0) -> Log:
    return dict(enumerate(values, start=at))


def test_what_messages_have_otherwise_is_told_in_the_words_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {
        part(0): (log(b'{"id": 1, "tip": 2}', b'{"id": "x"}', None), 3),
        part(1): (log(b'{\n"id": 2, "tip": 2.5}', b"", b"[1]"), 3),
    }
    found = looked(monkeypatch, Scripted(logs), "id BIGINT, km DOUBLE", on_new_column="rescue", on_bad_row="reject")
    assert list(drift_lines(found)) == [
        "~ source rides: 2 of 6 rows of topic rides have the member 'tip', which is no column (rescued); "
        "add: tip DOUBLE",
        "~ source rides: no row of 6 of topic rides has the column 'km'; correct its name, or leave it out of schema=",
        "! source rides: 1 of 6 rows of topic rides would be rejected: it has no value; "
        "correct schema=, or who writes them",
        "! source rides: 1 of 6 rows of topic rides would be rejected: it is empty; "
        "correct schema=, or who writes them",
        "! source rides: 1 of 6 rows of topic rides would be rejected: it is not a JSON object; "
        "correct schema=, or who writes them",
        "! source rides: 1 of 6 rows of topic rides would be rejected: column 'id' is declared int64; "
        "correct schema=, or who writes them",
    ]


@pytest.mark.parametrize(
    ("on_new", "word"), [("ignore", "left out"), ("fail", "a bad row each"), ("add", "the run adds it")]
)
def test_what_the_source_would_do_with_a_member_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_new: Any, word: str
) -> None:
    (tmp_path / "rides.ddl").write_text("id BIGINT")
    cluster = Scripted({part(0): (log(b'{"id": 1, "tip": 2}'), 1)})
    found = looked(monkeypatch, cluster, str(tmp_path / "rides.ddl"), on_new_column=on_new)
    (line,) = drift_lines(found)
    assert f"which is no column ({word}); add: tip BIGINT" in line
    assert (tmp_path / "rides.ddl").read_text() == "id BIGINT"


def test_nothing_is_said_where_messages_are_as_declared_or_are_the_rows_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Scripted({part(0): (log(b'{"id": 1}'), 1)})
    assert looked(monkeypatch, cluster) == []
    assert looked(monkeypatch, cluster, timestamp="message", disorder="5 s") == [], "a source within another"
    assert looked(monkeypatch, cluster, None, format="bytes") == []


def test_only_tombstones_say_nothing_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    (drift,) = looked(monkeypatch, Scripted({part(0): (log(None, None), 2)}))
    assert (drift.rows, drift.absent, drift.bad) == (2, (), {"it has no value": 2})


def test_the_newest_messages_count_of_each_partition_the_same_share(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = [b'{"old": 1}'] * 900, [b'{"id": 1}'] * 100
    cluster = Scripted({part(number): (log(*old, *new), 1000) for number in range(4)})
    assert [(each.rows, each.members) for each in looked(monkeypatch, cluster, "other BIGINT")] == [(100, {"id": 100})]
    assert [(each.first, each.last) for each in cluster.read] == [(975, 1000)] * 4


def test_where_the_newest_offsets_hold_no_message_it_is_looked_farther_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction leaves a mark behind its rows: of a hundred partitions the newest offset may be one."""
    logs = {part(number): (log(b'{"id": 1, "tip": 1}', at=40), 42) for number in range(100)}
    (drift,) = looked(monkeypatch, Scripted(logs))
    assert (drift.rows, drift.members) == (100, {"tip": 100})
    cluster = Scripted({part(0): ({}, 10_000), part(1): (log(b'{"id": 1, "tip": 1}', at=4), 5)})
    (drift,) = looked(monkeypatch, cluster)
    assert (drift.rows, drift.problem) == (1, "")
    assert [(each.first, each.last) for each in cluster.read] == [(9950, 10_000), (0, 5), (6800, 9950)]


def test_a_topic_without_a_message_or_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(logs: Mapping[PartitionOf, tuple[Log, int]], **arguments: Any) -> list[str]:
        return list(drift_lines(looked(monkeypatch, Scripted(logs), **arguments)))

    nothing = "  source rides: no sample of its rows: "
    assert said({part(0): ({}, 0)}) == [f"{nothing}topic rides has no message that a run would read now"]
    assert said({part(0): ({}, 7)}) == [f"{nothing}topic rides has no message that a run would read now"]
    away = "is not there, or this user may not describe it"
    assert said({}) == [f"{nothing}topic rides {away}"]
    assert said({}, topic=None, pattern="r.*") == [f"{nothing}no topic is like 'r.*'"]
    found = said({part(0): (log(b'{"id": 1}'), 1)}, topic=["rides", "walks"])
    assert found == [f"  source rides: the sample is not whole: topic walks {away}"]


def test_of_many_topics_fewer_messages_each_are_looked_at() -> None:
    wide = shares(part(number) for number in range(3 * ROWS_OF_TOPIC))
    assert len(wide) == ROWS_OF_TOPIC
    assert set(wide.values()) == {1}
    many = shares(part(number, f"rides-{topic}") for topic in range(50) for number in range(4))
    assert sum(many.values()) == ROWS_IN_ALL
    assert len(shares(part(0, f"rides-{topic}") for topic in range(3000))) == ROWS_IN_ALL
    assert shares([]) == {}


def test_what_came_before_the_cluster_was_silent_is_compared_and_the_rest_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = log(b'{"id": 1, "tip": 1}')
    cluster = Scripted({part(0): (rows, 1), part(1): (rows, 1)})
    cluster.fails_at = part(1).segment
    (drift,) = looked(monkeypatch, cluster)
    assert (drift.rows, drift.members) == (1, {"tip": 1})
    first = next(drift_lines([drift]))
    assert first == "  source rides: the sample is not whole: the cluster does not answer. nothing came."
    cluster.fails_at = part(0).segment
    (drift,) = looked(monkeypatch, cluster)
    assert (drift.rows, drift.members) == (0, {})


def test_large_messages_and_a_slow_cluster_end_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Scripted({part(number): (log(b'{"id": 1}'), 1) for number in range(3)})
    monkeypatch.setattr(sampling, "_BYTES_MAX", 10)
    (drift,) = looked(monkeypatch, cluster)
    assert (drift.rows, drift.problem) == (2, "messages are large, and it ends after 18 bytes")
    monkeypatch.setattr(sampling, "_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(sampling, "LIMIT_S", 0.0)
    (drift,) = looked(monkeypatch, cluster)
    assert (drift.rows, drift.problem) == (1, "it ends after 0 seconds")


def test_a_cluster_that_is_away_ends_no_plan_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LIMIT_S", 0.2)
    monkeypatch.setenv("SECRET", "hunter2")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        security = {"protocol": "SASL_PLAINTEXT", "username": "app", "password": "${SECRET}"}
        begun = time.monotonic()
        found = drifts(pipeline(address, security=security))
        assert time.monotonic() - begun < 10
    (line,) = drift_lines(found)
    assert line.startswith(
        f"  source rides: no sample of its rows: the Kafka cluster {address} does not answer. it was "
    )
    assert "\n" not in line
    assert "hunter2" not in line
    monkeypatch.delenv("SECRET")
    (line,) = drift_lines(drifts(pipeline(address, security=security)))
    assert "SECRET" in line
    assert line.startswith("  source rides: no sample of its rows: ")


# --- Avro -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


def written(registry: SchemaRegistry, value: bytes, **fields: Any) -> bytes:
    """Return a message: the id of the schema with these fields, and a value of it."""
    schema = {"type": "record", "name": "Ride", "fields": [{"name": name, "type": of} for name, of in fields.items()]}
    return b"\0" + registry.add(schema).to_bytes(4, "big") + value


def test_of_avro_the_fields_of_the_writers_schemas_are_compared(
    monkeypatch: pytest.MonkeyPatch, registry: SchemaRegistry
) -> None:
    time_type = {"type": "long", "logicalType": "timestamp-millis"}
    narrow = written(registry, b"\x02", id="long")
    wide = written(registry, b"\x02\x04\x02\x00", id="long", at=time_type, ID="int", odd=["int", "string"])
    other = written(registry, b"\x02x", id="string")
    cluster = Scripted({part(0): (log(narrow, wide + b"\x02", other, b"\0\0\0\0\xff"), 4)})
    found = looked(monkeypatch, cluster, "id BIGINT, km DOUBLE", format="avro", registry=registry.url)
    assert list(drift_lines(found)) == [
        "~ source rides: 1 of 4 rows of topic rides have the member 'at', which is no column (left out); "
        "add: at TIMESTAMP",
        "~ source rides: no row of 4 of topic rides has the column 'km'; correct its name, or leave it out of schema=",
        "! source rides: 1 of 4 rows of topic rides would stop the run: its schema 9 does not fit the columns: "
        "'id' is string there, and the column is int64; correct schema=, or who writes them",
        "! source rides: 1 of 4 rows of topic rides would stop the run: its schema N is not in the registry; "
        "correct schema=, or who writes them",
    ]


def test_a_registry_that_is_away_refuses_or_fails_ends_no_plan(
    monkeypatch: pytest.MonkeyPatch, registry: SchemaRegistry
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    cluster = Scripted({part(0): (log(written(registry, b"\x02", id="long")), 1)})
    said = {"url": registry.url, "username": "app", "password": "${SECRET}"}
    for status, text in ((401, "refuses this user"), (503, "cannot answer now")):
        registry.status = status
        begun = time.monotonic()
        (line,) = drift_lines(looked(monkeypatch, cluster, format="avro", registry=said))
        assert time.monotonic() - begun < 10
        assert line.startswith(f"  source rides: no sample of its rows: the schema registry {registry.url} {text}.")
        assert "hunter2" not in line


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int32(), "n INT"),
        (pa.decimal128(9, 2), "n DECIMAL(9, 2)"),
        (pa.timestamp("us"), "n TIMESTAMP_NTZ"),
        (pa.map_(pa.string(), pa.list_(pa.float64())), "n MAP<STRING, ARRAY<DOUBLE>>"),
        (pa.struct([("a", pa.date32())]), "n STRUCT<a: DATE>"),
        (pa.struct([("a", pa.time32("ms"))]), ""),
        (pa.list_(pa.null()), ""),
    ],
)
def test_a_field_is_declared_in_the_words_of_sql_where_it_has_some(kind: pa.DataType, text: str) -> None:
    assert declaration_by("n", kind) == text
