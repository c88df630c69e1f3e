"""Segments that come while shards run: the shard with the rest reads them, the next start deals them (design/0048, 4).

Kafka partitions and streams of a byte stream, by four shards, into a table, a segments store and a topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import segments
from holdfast.connectors.kafka.source import source as kafka_source
from holdfast.controller.kept_shard import positions_of
from holdfast.errors import InvalidPipeline
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.store.local import LocalStore
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_servers import KafkaTopic
from tests.kafka_topics import Topics
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

SHARDS = 4


@dataclass
class Readers:
    """A pipeline in shards, and who has read what."""

    directory: Path
    pipeline: Callable[[], hf.Pipeline]
    sinks: dict[str, Callable[[], list[Any]]]
    arrived: list[Any] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[Any]:
        run: Any = self.pipeline().start(
            checkpoint=self.directory / "checkpoint", trigger=hf.every("50 ms"), shards=SHARDS
        )
        try:
            yield run
        finally:
            run.stop()
        assert run.wait()

    def layout(self) -> ShardLayout:
        found = newest_layout(LocalStore(str(self.directory / "checkpoint")))
        assert found is not None
        return found

    def await_rows(self) -> None:
        for name, rows in self.sinks.items():
            eventually(lambda rows=rows: rows() == sorted(self.arrived), within_s=120, what=f"rows in {name}")


def readers_of(run: Any, source: str) -> dict[str, set[int]]:
    """Return segment -> the shards that are in it."""
    found: dict[str, set[int]] = {}
    for each in run.shards:
        for segment in positions_of(each.picture()).get(source, {}):
            found.setdefault(segment, set()).add(each.shard)
    return found


def by_name(run: Any, source: str) -> dict[str, set[int]]:
    """Return the same by the last part of a segment's name: a partition, a stream."""
    return {name.rpartition("/")[2]: of for name, of in readers_of(run, source).items()}


def shards_of(layout: ShardLayout) -> dict[str, set[int]]:
    """Return the same as the layout has it."""
    return {unit.partition(":")[2]: {shard} for unit, shard in layout.assignment.shards.items()}


def test_partitions_that_are_added(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "LOOK_S", 0.2)
    topics, given, shown = Topics(kafka_of_session.bootstrap), new_topic(), new_topic()
    topics.create(given, SHARDS)
    topics.create(shown)

    def pipeline() -> hf.Pipeline:
        rides = hf.read.kafka(topics.bootstrap, given, schema="id BIGINT", name="rides")
        return hf.Pipeline(
            f"rides_{given.replace('-', '_')}",
            rides | hf.write.sqlite(str(tmp_path / "rides.db"), table="rows", name="table"),
            rides | hf.write.segments(str(tmp_path / "store"), name="store"),
            rides | hf.write.kafka(topics.bootstrap, shown, name="topic"),
        )

    topic = KafkaTopic(topics.bootstrap, shown)
    readers = Readers(
        tmp_path,
        pipeline,
        {
            "table": lambda: sqlite_rows(tmp_path / "rides.db"),
            "topic": lambda: sorted(json.loads(value)["id"] for value in topic.values()),
            "store": lambda: sorted(segments.open(tmp_path / "store").to_arrow()["id"].to_pylist()),
        },
    )

    def produce(partitions: range) -> None:
        for partition in partitions:
            readers.arrived.append(len(readers.arrived))
            topics.produce(given, {partition: [json.dumps({"id": readers.arrived[-1]}).encode()]})

    produce(range(SHARDS))
    with readers.running() as run:
        readers.await_rows()
        rest = readers.layout().assignment.rest
        topics.grow(given, SHARDS + 2)
        produce(range(SHARDS + 2))
        readers.await_rows()
        eventually(lambda: by_name(run, "rides").get("4") == by_name(run, "rides").get("5") == {rest})
        assert readers.layout().number == 1, "nothing was dealt"
    topics.grow(given, SHARDS + 4)
    produce(range(SHARDS + 4))
    with readers.running() as run:
        readers.await_rows()
        dealt = readers.layout().assignment
        assert len(dealt.shards) == SHARDS + 4
        assert sorted(dealt.counts()) == [1, 2, 2, 3], "what one has begun stays with it, the others are dealt"
        assert dealt.counts()[rest] == 3
        eventually(lambda: readers_of(run, "rides") == shards_of(readers.layout()))


def test_streams_that_appear(tmp_path: Path) -> None:
    def write(*cameras: str) -> None:
        """Give each camera one message more."""
        number = len(readers.arrived)
        frames = [(camera, f"2026-01-01T00:00:{number:02}Z") for camera in cameras]
        arrive(tmp_path / "in", f"{number}.json", [{"camera": camera, "at": at, "data": ""} for camera, at in frames])
        given = hf.read.files(str(tmp_path / "in"), schema="camera STRING, at TIMESTAMP, data STRING", name="given")
        store = hf.write.byte_stream(str(tmp_path / "store"), timestamp="at", data="data", stream="camera", name="out")
        hf.Pipeline("cameras", given | store).run(checkpoint=tmp_path / "cameras", trigger=hf.available_now())
        readers.arrived += cameras

    def pipeline() -> hf.Pipeline:
        frames = hf.read.byte_stream(str(tmp_path / "store"), name="frames") | hf.select("stream")
        return hf.Pipeline("frames", frames | hf.write.sqlite(str(tmp_path / "f.db"), table="rows", name="table"))

    readers = Readers(tmp_path, pipeline, {"table": lambda: sqlite_rows(tmp_path / "f.db", "SELECT stream FROM rows")})
    write("a", "b", "c", "d")
    with readers.running() as run:
        readers.await_rows()
        rest = readers.layout().assignment.rest
        write("a", "b", "e", "f")
        readers.await_rows()
        eventually(lambda: by_name(run, "frames").get("e") == by_name(run, "frames").get("f") == {rest})
    write(*"abcdefgh")
    with readers.running() as run:
        readers.await_rows()
        dealt = readers.layout().assignment
        assert sorted(dealt.counts()) == [1, 2, 2, 3]
        assert dealt.counts()[rest] == 3
        eventually(lambda: readers_of(run, "frames") == shards_of(readers.layout()))


def test_topics_of_unlike_numbers_of_partitions_are_refused_with_a_shard_key(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Section 4: a key would be in one partition of the one, and in another of the other."""
    topics, names = Topics(kafka_of_session.bootstrap), {"orders": new_topic(), "payments": new_topic()}
    topics.create(names["orders"], 2)
    topics.create(names["payments"], 3)

    def pipeline(name: str, shard_by: str | None = None) -> hf.Pipeline:
        sources = [
            hf.read.kafka(topics.bootstrap, topic, schema="device STRING", name=name) for name, topic in names.items()
        ]
        both = hf.union(*sources) | hf.write.sqlite(str(tmp_path / f"{name}.db"), table="rows", name="table")
        return hf.Pipeline(name, both, shard_by=shard_by)

    with pytest.raises(InvalidPipeline, match=r"has 2 partitions, and .* \(source 'payments'\) has 3") as caught:
        pipeline("keyed", shard_by="device").start(checkpoint=tmp_path / "keyed", shards=2)
    assert "to a topic with 3 partitions" in caught.value.do
    pipeline("free").run(checkpoint=tmp_path / "free", trigger=hf.available_now(), shards=2)
    topics.grow(names["orders"], 3)
    pipeline("keyed", shard_by="device").run(checkpoint=tmp_path / "keyed", trigger=hf.available_now(), shards=2)
    topics.grow(names["payments"], 4)
    with pytest.raises(InvalidPipeline, match="has 3 partitions, and"):
        pipeline("keyed", shard_by="device").start(checkpoint=tmp_path / "keyed")
