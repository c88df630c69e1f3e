"""Kafka keeps the promises of a sink: with transactions that tasks leave open, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import FunctionType

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.sink.form import MessageForm, RecordColumns
from holdfast.connectors.kafka.sink.session import _PRODUCER, KafkaSession, TransactionalProducer
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports import Held, LedgerSpec, Outcome, RunIdentity, Sink
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import RowsThatStayContract
from tests.contract.shard_contract import ShardContract, ShardLedgerContract
from tests.contract.sink_contract import (
    PIPELINE,
    SCHEMA,
    Row,
    SinkContract,
    Target,
    _opened,
    _publication,
    carried,
    stage_rows,
)
from tests.kafka_servers import KafkaTopic

pytestmark = pytest.mark.slow

EVERYDAY = {
    "test_opening_keeps_what_a_lower_generation_staged_because_a_decision_may_name_it",
    "test_staged_and_carried_parts_are_published_together",
    "test_a_sink_that_went_back_refuses_to_publish_over_the_gap",
    "test_a_fenced_publish_changes_nothing",
    "test_publishing_rows_that_were_swept_fails_and_changes_nothing",
}
"""Each takes about half a second; the others wait for the night."""


def chosen(contract: type) -> type:
    """Return a contract of which most promises are looked at every night."""
    for name in dir(contract):
        if name.startswith("test_") and name not in EVERYDAY:
            promise = getattr(contract, name)
            copy = FunctionType(promise.__code__, promise.__globals__, name, promise.__defaults__, promise.__closure__)
            copy.__kwdefaults__ = promise.__kwdefaults__
            vars(copy)["pytestmark"] = [*getattr(promise, "pytestmark", ()), pytest.mark.nightly.mark]
            setattr(contract, name, copy)
    return contract


TestExplainingContract = chosen(type("TestExplainingContract", (ExplainingContract,), {}))
TestLedgerContract = chosen(type("TestLedgerContract", (LedgerContract,), {}))
TestRowsThatStayContract = RowsThatStayContract
TestShardLedgerContract = ShardLedgerContract
TestShardContract = chosen(type("TestShardContract", (ShardContract,), {}))


class KafkaTarget:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self.progress = topic, f"{topic}-progress"
        self.place = {"bootstrap.servers": bootstrap}
        self.spec: LedgerSpec = KafkaSpec(bootstrap, MessageForm(topic), progress=self.progress)
        self.outside = KafkaTopic(bootstrap, topic)
        self.outside.create()

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        assert isinstance(self.spec, KafkaSpec)
        return self.spec.connect(name, pipeline, schema)

    def is_there(self) -> bool:
        return self.progress in AdminClient(self.place).list_topics(timeout=30).topics

    def rows(self) -> list[Row]:
        return [(said["id"], said["word"]) for said in map(json.loads, self.values())]

    def values(self) -> list[bytes]:
        return self.outside.values()

    def leftovers(self) -> list[str]:
        return self.outside.open_transactions()

    def refuse(self, word: str) -> bool:
        return False


@pytest.fixture
def target(functions: str, kafka_of_session: KafkaServer, new_topic: Callable[[], str]) -> Iterator[KafkaTarget]:
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    yield target
    for name in target.leftovers():  # the next test has the same names, and counts them
        sink = target.connect()
        sink._transactions.abort(name)  # type: ignore[attr-defined]
        sink.close()


@chosen
class TestSinkContract(SinkContract):
    """Readers wait for a transaction that is open: where the contract leaves one, it is ended before they look."""

    def test_publishing_rows_that_were_swept_fails_and_changes_nothing(self, target: Target) -> None:
        dead = _opened(target, 1)
        dropped = stage_rows(dead, 1, [(2, "dropped")], task=1)
        dead.close()
        sink = _opened(target, 2)
        kept = stage_rows(sink, 1, [(1, "kept")], generation=2, task=0)
        sink.sweep(below_epoch=1)
        with pytest.raises(HoldfastError):
            sink.publish([_publication(1, [kept, dropped], generation=2)], Held())
        sink.publish([carried(1, [(3, "three")], generation=2)], Held())
        assert target.rows() == []
        assert sink.sweep(below_epoch=2) == 1
        assert target.rows() == [(3, "three")]
        sink.close()

    def test_a_fenced_publish_changes_nothing(self, target: Target) -> None:
        stale = _opened(target, 1)
        handle = stage_rows(stale, 1, [(1, "stale")])
        owner = _opened(target, 2)
        for publication in (_publication(1, [handle]), carried(1, [(2, "stale")])):
            with pytest.raises(Fenced):
                stale.publish([publication], Held())
            assert owner.outcome(1) is Outcome.ABSENT
        owner.publish([carried(1, [(3, "owner")], generation=2)], Held())
        with pytest.raises(Fenced):
            stale.publish([carried(2, [(4, "stale")])], Held())
        assert owner.sweep(below_epoch=1) == 1
        assert target.rows() == [(3, "owner")]
        stale.close()
        owner.close()


@pytest.mark.nightly
def test_an_opened_sink_says_how_it_stages(target: KafkaTarget) -> None:
    sink = target.connect()
    sink.open(RunIdentity(PIPELINE, 1))
    assert sink.staging == "open transactions"
    sink.open(RunIdentity(PIPELINE, 2, is_grouped=True))
    assert sink.staging == "rows in the handles"
    sink.close()


@pytest.mark.usefixtures("functions")
def test_records_that_find_no_room_wait_for_it_and_keep_their_order(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of records is handed over from C; one that is refused is handed over again, and those behind it."""
    topic = KafkaTopic(kafka_of_session.bootstrap, new_topic())
    topic.create()
    monkeypatch.setitem(_PRODUCER, "queue.buffering.max.messages", 100)
    monkeypatch.setitem(_PRODUCER, "batch.num.messages", 100)
    session = KafkaSession(Brokers(topic.bootstrap), "sink 's'", "test")
    producer = session.producer(topic.name, 60_000, 1_000_000, topic.name)
    values = [b"%d" % number for number in range(2_000)]
    waits = []
    monkeypatch.setattr(TransactionalProducer, "_await_room", lambda self: (waits.append(1), self._producer.poll(0.05)))
    producer.begin()
    places = pa.array([0] * len(values), pa.int32())
    some = RecordColumns(topic.name, pa.array(values, pa.large_binary()), partitions=places)
    assert producer.send(some) == len(values)
    producer.commit()
    assert waits
    assert topic.values() == values
