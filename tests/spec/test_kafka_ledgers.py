"""No row and no other producer reaches the ledger of a Kafka sink (design/0036, "Whose record it is").

A row says into which topic it goes, and under which key: as the ledger of another pipeline has its record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import holdfast as hf
from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.errors import BadRow, Corrupt, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Task
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("to", pa.string())])


def rows(**columns: Any) -> pa.Table:
    return pa.Table.from_pylist([{"id": 1, "key": None, "to": None, **columns}], SCHEMA)


def connected(server: KafkaServer, pipeline: str, topic: str, **arguments: Any) -> Any:
    node = hf.write.kafka(server.bootstrap, topic, **arguments)
    return node.spec.connect("out", pipeline, SCHEMA)


def published(pipeline: str, epoch: int, *parts: Any) -> Publication:
    return Publication(EpochRecord(pipeline, epoch, 1, {"s": {"log": epoch}}), parts)


class Victim:
    """A pipeline whose ledger says epoch 3, of generation 1."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        Topics(server.bootstrap).create(topic)
        self.server, self.topic, self.progress = server, topic, f"{topic}-progress"
        self.pipeline = topic.replace("-", "_")
        self.key = KafkaNames(self.pipeline, "out", self.progress).key
        sink = self.connected()
        sink.open(RunIdentity(self.pipeline, 1))
        for epoch in (1, 2, 3):
            sink.publish([published(self.pipeline, epoch, Carried(rows()))], Held())
        sink.close()

    def connected(self) -> Any:
        return connected(self.server, self.pipeline, self.topic, progress=self.progress)

    def held(self) -> Held:
        """Return what the next run finds."""
        sink = self.connected()
        try:
            found: Held = sink.open(RunIdentity(self.pipeline, 2))
            return found
        finally:
            sink.close()


@pytest.fixture
def victim(kafka_of_session: KafkaServer, new_topic: Callable[[], str]) -> Victim:
    return Victim(kafka_of_session, new_topic())


FORGED = json.dumps({"epoch": 1, "positions": "{}", "pts": None, "recent_ends": "", "generation": 1, "owner": ""})


@pytest.mark.parametrize("way", ["carried", "staged"])
@pytest.mark.parametrize("to", ["progress", "internal", "of no sink"])
def test_a_row_goes_only_to_a_topic_that_its_sink_declares(
    victim: Victim, new_topic: Callable[[], str], way: str, to: str
) -> None:
    """Refused before the decision, which could not be taken back: the cluster takes nothing into a topic of its own."""
    ours, other = new_topic(), new_topic()
    for topic in (ours, other):
        Topics(victim.server.bootstrap).create(topic)
    sink = connected(
        victim.server,
        "attacker",
        ours,
        topic_by="to",
        pattern=rf"{ours}.*|{victim.topic}.*|__.*",
        key="key",
        stage="transactions",
        progress=f"{ours}-progress",
    )
    sink.open(RunIdentity("attacker", 1))
    place = {"progress": victim.progress, "internal": "__transaction_state", "of no sink": other}[to]
    bad = rows(to=place, key=victim.key)

    def part() -> Any:
        if way == "carried":
            return Carried(bad)
        writer = sink.writer_factory()(Task("attacker", 1, 1, 0, 0))
        try:
            writer.write(bad.to_batches()[0])
            return writer.stage()
        except BaseException:
            writer.abort()
            raise

    with pytest.raises(BadRow, match=place):
        sink.admit(published("attacker", 1, part()))
    assert sink.outcome(1) is Outcome.ABSENT
    sink.publish([published("attacker", 1, Carried(rows(to=victim.topic)))], Held())
    sink.close()
    assert victim.held().epoch == 3


@pytest.mark.parametrize("value", [FORGED, "no JSON", None], ids=["a ledger", "a text", "a tombstone"])
def test_a_record_that_another_producer_has_written_under_the_key_of_a_ledger_is_not_believed(
    victim: Victim, value: str | None
) -> None:
    other = Producer({"bootstrap.servers": victim.server.bootstrap})
    other.produce(victim.progress, value, victim.key)
    assert other.flush(30) == 0
    held = victim.held()
    assert (held.epoch, held.generation) == (3, 1)


def test_a_ledger_of_which_nothing_but_the_record_of_another_is_left_is_no_new_one(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str]
) -> None:
    """Compaction keeps the last record of a key, whoever wrote it: the sink is not taken for one that holds nothing."""
    topic = new_topic()
    topics = Topics(kafka_of_session.bootstrap)
    topics.create(topic)
    topics.create(f"{topic}-progress", cleanup_policy="compact")
    other = Producer({"bootstrap.servers": kafka_of_session.bootstrap})
    other.produce(f"{topic}-progress", FORGED, KafkaNames("victim", "out").key)
    assert other.flush(30) == 0
    sink = connected(kafka_of_session, "victim", topic, progress=f"{topic}-progress")
    with pytest.raises(Corrupt, match="another"):
        sink.open(RunIdentity("victim", 1))
    sink.close()


@pytest.mark.parametrize("how", ["topic", "topics"])
def test_a_topic_that_is_the_ledger_of_some_sink_is_refused_when_a_run_starts(victim: Victim, how: str) -> None:
    """Also one of another name than the sink's own: it is known by its settings."""
    arguments: Any = {"topic": victim.progress} if how == "topic" else {"topic_by": "to", "topics": [victim.progress]}
    with pytest.raises(InvalidPipeline, match="ledger"):
        connected(victim.server, "attacker", **{"topic": None, "key": "key", **arguments})
