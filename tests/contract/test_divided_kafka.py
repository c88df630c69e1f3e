"""The partitions of topics keep the promises of a source that can be divided, against a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as of_each
from typing import Any

import pytest

from holdfast import read
from holdfast.connectors.kafka.source import source
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.division_contract import DivisionContract
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

TestDivisionContract = DivisionContract
PARTITIONS = 4


@dataclass
class KafkaField:
    topics: Topics
    topic: str
    spec: Any
    workspace: str
    name: str = "messages"
    is_fixed: bool = False
    partitions: int = PARTITIONS
    numbers: Iterator[int] = of_each(default_factory=itertools.count)

    def grow(self) -> None:
        for partition in range(PARTITIONS):
            self._produce(partition)

    def add_segment(self) -> bool:
        self.partitions += 1
        self.topics.grow(self.topic, self.partitions)
        self._produce(self.partitions - 1)
        return True

    def _produce(self, partition: int) -> None:
        rows = [json.dumps({"id": next(self.numbers), "word": "wörd"}).encode() for _ in range(10)]
        self.topics.produce(self.topic, {partition: rows})


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture
def field(topics: Topics, new_topic: Callable[[], str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> KafkaField:
    monkeypatch.setattr(source, "LOOK_S", 0)  # new partitions are seen at once
    topic = f"division-contract-{new_topic()}"
    topics.create(topic, PARTITIONS)
    stream = read.kafka(topics.bootstrap, topic, schema="id BIGINT, word STRING", metadata=["partition"], name="a")
    made = KafkaField(topics, topic, stream.node.spec, str(tmp_path / "workspace"))
    made.grow()
    return made


def test_what_the_first_part_records_is_where_all_begin(field: KafkaField) -> None:
    """``start="latest"`` is looked up once, of all partitions: else rows of the others between two starts were lost."""
    field.spec = read.kafka(
        field.topics.bootstrap, field.topic, schema="id BIGINT, word STRING", start="latest", name="a"
    ).node.spec
    first, second = (field.spec.of_segments(each) for each in two_halves(field))
    begun = first.open(field.name, field.workspace).initial()
    assert set(begun.values()) == {10}
    field.grow()
    late = second.open(field.name, field.workspace).initial()
    assert set(late.values()) == {10}
    assert not begun.keys() & late.keys()
    assert len(begun) + len(late) == PARTITIONS
    assert second.recorded_start(field.name, field.workspace) == late
    lags = {each.segment for each in second.lags(field.name, late)}
    assert lags == late.keys()


def two_halves(field: KafkaField) -> Any:
    from holdfast.positions import SegmentSet

    named = frozenset(sorted(field.spec.segments(field.name, field.workspace))[:2])
    return SegmentSet(named), SegmentSet(named, is_rest=True)
