"""Kafka under the real coordinator: killed before and after each request that changes something there (design/0036).

Also the broker killed and started again, transactions that lasted too long, a driver that was frozen, and what a broker
refuses.  A dead driver sends nothing more; its workers live on.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from holdfast import faults
from holdfast.connectors.kafka.sink import session as kafka_session
from holdfast.connectors.kafka.sink import topics as kafka_topics
from holdfast.connectors.kafka.sink.form import MessageForm
from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.connectors.kafka.sink.session import KafkaSession, TransactionalProducer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.connectors.kafka.sink.staging import NameAllowance
from holdfast.connectors.kafka.sink.transactions import ONGOING, Transactions
from holdfast.errors import BadRow, Diverged, Fenced, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, RunIdentity, Sink, Staged, Task
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SinkUnderTest, World, crash_loop
from holdfast.testing.servers.kafka import KafkaCluster, KafkaServer, NoKafka, kafka_server
from holdfast.testing.simulation.world import PIPELINE
from tests.contract.test_kafka_contract import KafkaTarget
from tests.crash.mortal import as_killed
from tests.everyday import FIRST_SEED
from tests.kafka_servers import KafkaTopic, open_transactions
from tests.sim.test_unlike_sinks import sqlite

pytestmark = pytest.mark.slow

NewPath = Callable[[], Path]
NewTopicName = Callable[[], str]
SHORT = {"row_count": 3, "epoch_rows_min": 1, "epoch_rows_max": 2, "carried_share": 0.5, "task_failure_rate": 0.2}
SEED = 361


class MortalSession(KafkaSession):
    """A driver's session: each commit is a place to die, before and after it."""

    process = Process()

    def producer(self, *arguments: Any, **options: Any) -> TransactionalProducer:
        self.process.check()
        made = super().producer(*arguments, **options)
        commit = made.commit

        def mortal() -> None:
            self.process.write("sink rows commit", commit)

        made.commit = mortal  # type: ignore[method-assign]
        return made


class MortalTransactions(Transactions):
    """The driver's requests: each is a place to die, before and after it."""

    process = Process()

    def end(self, *arguments: Any, **options: Any) -> bool:
        return self.process.write("sink rows end", lambda: Transactions.end(self, *arguments, **options))

    def abort(self, name: str) -> None:
        self.process.write("sink rows abort", lambda: Transactions.abort(self, name))


def made(
    server: KafkaServer,
    topic: str,
    way: str,
    new_path: NewPath,
    *,
    before: Sequence[SinkUnderTest] = (),
    after: Sequence[SinkUnderTest] = (),
    load: Mapping[str, Any] = SHORT,
) -> World:
    """A new world with one topic, and other sinks that publish before and after it."""
    target = KafkaTarget(server.bootstrap, topic)
    names = KafkaNames(PIPELINE, "rows", target.progress)

    def connect(process: Process, _: Failures) -> Sink:
        session = MortalSession(KafkaSpec(server.bootstrap, MessageForm(topic)).brokers, "sink 'rows'", "test")
        session.process = process
        form = MessageForm(topic, key=("segment",))
        sink = KafkaSink(names, session, form, SCHEMA, stages=way == "transactions", timeout_ms=60_000)
        sink._transactions = MortalTransactions(session)
        sink._transactions.process = process
        sink.prepare()
        return sink

    def rows() -> list[tuple[Any, ...]]:
        return [(row["id"], row["segment"], row["seq"], row["value"]) for row in map(json.loads, target.values())]

    def leftovers() -> list[str]:
        """Whatever is open of the pipeline: of its tasks, and of its driver."""
        return open_transactions(server.bootstrap, f"holdfast/{PIPELINE}/")

    store = LocalStore(os.fspath(new_path())) if before or after else None
    sink = SinkUnderTest("rows", connect, rows, leftovers, is_ordered=way == "driver")
    world = World([*before, sink, *after], seed=SEED, setting=Setting(Load(**load)), store=store)
    for name in target.leftovers():  # of a world before: this one has the same names
        transactions = Transactions(
            KafkaSession(KafkaSpec(server.bootstrap, MessageForm(topic)).brokers, "test", "test")
        )
        transactions.abort(name)
        transactions.close()
    return world


@pytest.mark.parametrize(
    ("way", "stride"),
    [
        ("transactions", 61),
        pytest.param("driver", 1, marks=pytest.mark.nightly),
        pytest.param("transactions", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_topic_survives_a_crash_at_every_write(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, new_path: NewPath, way: str, stride: int
) -> None:
    traces: list[list[str]] = []

    def world() -> World:
        made_ = made(kafka_of_session, new_topic(), way, new_path)
        traces.append(made_.trace)
        return made_

    crash_loop(world, pairs=False, stride=stride)
    if stride == 1:
        deaths = {line for trace in traces for line in trace if line.startswith("crash ")}
        for place in ("commit", *(["end"] if way == "transactions" else [])):
            assert {f"crash before sink rows {place}", f"crash after sink rows {place}"} <= deaths


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["driver", "transactions"])
def test_beside_another_sink_it_survives_pairs_of_crashes(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, new_path: NewPath, way: str
) -> None:
    def world() -> World:
        before = [as_killed(sqlite, "embedded", new_path())]
        return made(kafka_of_session, new_topic(), way, new_path, before=before)

    crash_loop(world, stride=5, second_stride=7, second_offset=FIRST_SEED)


# --- time, and other drivers ------------------------------------------------------------------------------------------


def connected(target: KafkaTarget, timeout_ms: int = 60_000) -> KafkaSink:
    spec = KafkaSpec(
        target.place["bootstrap.servers"], MessageForm(target.topic), {}, "auto", timeout_ms, target.progress
    )
    sink = spec.connect("target", "words", ROWS)
    assert isinstance(sink, KafkaSink)
    return sink


def opened(target: KafkaTarget, generation: int = 1, timeout_ms: int = 60_000) -> KafkaSink:
    sink = connected(target, timeout_ms)
    sink.open(RunIdentity("words", generation))
    return sink


def behind_a_run(target: KafkaTarget) -> KafkaSink:
    """Return a sink as the next run connects it, behind one that has published epoch 1."""
    first = opened(target)
    first.publish([published(1, Carried(table(1)))], Held())
    first.close()
    return connected(target)


ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])


def table(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "word": [str(each) for each in ids]}, ROWS)


def staged(sink: KafkaSink, epoch: int, task: int, generation: int = 1) -> Staged:
    writer = sink.writer_factory()(Task("words", generation, epoch, task, 0))
    for batch in table(10 * epoch + task).to_batches():
        writer.write(batch)
    return writer.stage()


def published(epoch: int, *parts: Part, generation: int = 1) -> Publication:
    return Publication(EpochRecord("words", epoch, generation, {"s": {"log": epoch}}), parts)


class _Killed(BaseException):
    pass


def killed_at(point: str, number: int) -> None:
    """Die at the n-th time that a point is reached."""
    seen = 0

    def hook(reached: str, epoch: int) -> None:
        nonlocal seen
        seen += reached == point
        if reached == point and seen == number:
            raise _Killed

    faults.install(hook)


@pytest.mark.nightly
def test_transactions_that_lasted_too_long(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, request: pytest.FixtureRequest
) -> None:
    """Before the decision; after it with nothing visible; after it with a part visible: told exactly, never guessed."""
    request.addfinalizer(lambda: faults.install(None))
    targets = [KafkaTarget(kafka_of_session.bootstrap, new_topic()) for _ in range(3)]
    undecided, unseen, seen = (opened(target, timeout_ms=3_000) for target in targets)
    parts = {}
    for sink, number in ((unseen, 1), (seen, 2), (undecided, 0)):
        parts[sink] = [staged(sink, 1, task) for task in (0, 1)]
        if sink is undecided:
            continue
        killed_at("publish-begun", number)
        with pytest.raises(_Killed):
            sink.publish([published(1, *parts[sink])], Held())
        faults.install(None)
    open_names = [part.reference["transaction"] for part in (*parts[undecided], *parts[unseen], parts[seen][1])]
    end = time.monotonic() + 60
    while any(found.state == ONGOING for found in undecided._transactions.describe(open_names).values()):
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.1)  # markers are being written

    assert undecided.expired(parts[undecided]) == [part.name for part in parts[undecided]]
    with pytest.raises(Diverged, match="gone") as caught:
        undecided.publish([published(1, *parts[undecided])], Held())
    assert caught.value.is_mended_by_start
    undecided.publish([published(1, Carried(table(1)))], Held())
    assert targets[0].rows() == [(1, "1")]

    unseen.close()
    again = opened(targets[1], 2)
    assert again.outcome(1) is Outcome.ABSENT
    again.publish([published(1, Carried(table(2)), generation=2)], Held())
    assert targets[1].rows() == [(2, "2")]

    seen.close()
    with pytest.raises(Diverged) as caught:
        opened(targets[2], 2)
    assert not caught.value.is_mended_by_start
    assert "words/1/1/1/0 had ended" in caught.value.why
    assert "visible are words/1/1/0/0" in caught.value.why
    for sink in (undecided, again):
        sink.close()


def test_a_driver_that_wakes_after_the_takeover_makes_nothing_visible(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, request: pytest.FixtureRequest
) -> None:
    """Frozen within its transaction, with a decision in its hands."""
    request.addfinalizer(lambda: faults.install(None))
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    frozen = opened(target)
    handle = staged(frozen, 1, 0)

    def takeover(point: str, epoch: int) -> None:
        if point == "publish-uncommitted":
            faults.install(None)
            owner = opened(target, 2)
            owner.publish([published(1, Carried(table(7)), generation=2)], Held())
            assert owner.sweep(below_epoch=2) == 1
            owner.close()

    faults.install(takeover)
    with pytest.raises(Fenced):
        frozen.publish([published(1, handle, Carried(table(1)))], Held())
    assert target.rows() == [(7, "7")]
    frozen.close()


def test_what_is_open_is_shown_with_its_age_and_who_waits_for_it(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, request: pytest.FixtureRequest
) -> None:
    """Asked of a sink that is connected and not opened, as ``holdfast inspect`` does, beside a run that was killed."""
    request.addfinalizer(lambda: faults.install(None))
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    sink = opened(target)
    other = target.connect("target", "words")
    assert isinstance(other, KafkaSink)
    assert other.open_transactions() == []
    assert other.waiting_readers() == []
    decided, orphan = staged(sink, 1, 0), staged(sink, 1, 1)
    killed_at("publish-begun", 1)
    with pytest.raises(_Killed):
        sink.publish([published(1, decided)], Held())
    faults.install(None)
    found = {each.task: each for each in other.open_transactions()}
    assert {task: each.is_decided for task, each in found.items()} == {decided.name: True, orphan.name: False}
    for each in found.values():
        assert (each.state, each.timeout_s) == (ONGOING, 60)
        assert 0 <= each.age_s < 60
    (waiting_readers,) = other.waiting_readers()
    assert (waiting_readers.place, waiting_readers.readable, waiting_readers.end) == (f"{target.topic}/0", 0, 2)
    sink.close()
    again = opened(target, 2)
    assert again.sweep(below_epoch=2) == 1
    assert other.open_transactions() == []
    assert other.waiting_readers() == []
    assert again.outcome(1) is Outcome.PUBLISHED
    other.close()
    again.close()


def test_ids_of_transactions_that_are_used_up_leave_large_epochs_to_the_driver(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, caplog: pytest.LogCaptureFixture
) -> None:
    """So what coordinators keep for a week is bounded, whatever a pipeline does (design/0036, "Names")."""
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    sink = opened(target)
    now_s = 0.0
    sink._names_left = NameAllowance(per_day=24, at_once=2, now_s=lambda: now_s)
    ways = []
    for epoch in (1, 2, 3, 4):
        parts = [staged(sink, epoch, task) for task in (0, 1)]
        ways.append("transaction" in parts[0].reference)
        sink.publish([published(epoch, *parts)], Held())
        now_s += 3600 * (epoch == 3)
    assert ways == [True, False, False, True]
    assert sorted(row for row, _ in target.rows()) == [10, 11, 20, 21, 30, 31, 40, 41]
    assert len([each for each in caplog.records if "used up the transactional ids" in each.message]) == 1
    assert target.leftovers() == []
    sink.close()


def test_a_driver_that_dies_within_one_sinks_transaction_does_not_hold_up_the_others(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, request: pytest.FixtureRequest
) -> None:
    """Their ledgers share a topic, and the sink that is opened first waits until it can be read to its end."""
    request.addfinalizer(lambda: faults.install(None))
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())

    def both(generation: int) -> Iterator[KafkaSink]:
        for name in ("first", "second"):
            form = MessageForm(target.topic)
            spec = KafkaSpec(kafka_of_session.bootstrap, form, {}, "driver", progress=target.progress)
            sink = spec.connect(name, "words", ROWS)
            assert isinstance(sink, KafkaSink)
            sink.open(RunIdentity("words", generation))
            yield sink

    first, second = both(1)
    first.publish([published(1, Carried(table(1)))], Held())
    killed_at("publish-uncommitted", 1)
    with pytest.raises(_Killed):
        second.publish([published(1, Carried(table(2)))], Held())
    faults.install(None)
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be read to its end"):
        first.inspect()
    assert time.monotonic() - begun < 20
    first, second = both(2)
    assert time.monotonic() - begun < 20
    assert [first.inspect()[0].epoch, second.inspect()[0].epoch] == [1, 0]
    assert first.outcome(1) is Outcome.PUBLISHED
    assert second.outcome(1) is Outcome.ABSENT
    second.publish([published(1, Carried(table(2)), generation=2)], Held())
    assert sorted(target.rows()) == [(1, "1"), (2, "2")]
    for sink in (first, second):
        sink.close()


def test_a_topic_of_small_records_takes_large_epochs(kafka_of_session: KafkaServer, new_topic: NewTopicName) -> None:
    """What a topic limits is a batch of records, as it arrives."""
    topic = new_topic()
    target = KafkaTarget(kafka_of_session.bootstrap, topic)
    entry = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(target.place)
    admin.incremental_alter_configs([resource])[resource].result(30)
    chance = random.Random(7)
    rows = pa.table({"id": range(1_000), "word": [chance.randbytes(50).hex() for _ in range(1_000)]}, ROWS)
    sink = opened(target)
    sink.publish([published(1, Carried(rows))], Held())
    assert len(target.rows()) == 1_000
    sink.close()


def test_what_a_cluster_refuses_is_said_with_its_cure(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    with pytest.raises(InvalidPipeline, match="allows 900000 ms"):
        opened(target, timeout_ms=900_001)
    with pytest.raises(InvalidPipeline, match="there is no topic 'nowhere'"):
        KafkaSpec(kafka_of_session.bootstrap, MessageForm("nowhere")).connect("target", "words", ROWS)
    plain, admin = f"{target.topic}-plain", AdminClient(target.place)
    admin.create_topics([NewTopic(plain, 1, 1)])[plain].result(60)
    spec = KafkaSpec(kafka_of_session.bootstrap, MessageForm(target.topic), progress=plain)
    ageing = spec.connect("target", "words", ROWS)
    with pytest.raises(InvalidPipeline, match=r"has cleanup\.policy=delete"):
        ageing.open(RunIdentity("words", 1))
    ageing.close()
    sink = opened(target)
    long = pa.table({"id": [1], "word": ["x" * 2_000_000]}, ROWS)
    with pytest.raises(BadRow, match="a record of 2000"):
        sink.admit(published(1, Carried(long)))
    writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
    with pytest.raises(BadRow, match="a record of 2000"):
        writer.write(long.to_batches()[0])
    writer.abort()
    sink.close()
    monkeypatch.setattr(kafka_topics, "CONNECT_S", 0.5)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 does not"):
        KafkaSpec("127.0.0.1:9", MessageForm("t")).connect("target", "words", ROWS)


# --- the broker dies --------------------------------------------------------------------------------------------------


AWAY = pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
"""kafka-python leaves the sockets of connections that were refused to the garbage collector."""


@pytest.mark.nightly
@AWAY
def test_a_broker_that_is_killed_in_every_phase_has_each_row_once(
    mortal_kafka: KafkaServer, new_topic: NewTopicName, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.addfinalizer(lambda: faults.install(None))
    target = KafkaTarget(mortal_kafka.bootstrap, new_topic())
    sink = opened(target)
    expected: list[int] = []

    def killing(point: str, number: int = 1) -> None:
        seen = 0

        def hook(reached: str, epoch: int) -> None:
            nonlocal seen
            seen += reached == point
            if reached == point and seen == number:
                faults.install(None)
                mortal_kafka.stop()
                mortal_kafka.start()

        faults.install(hook)

    def given(epoch: int, *parts: Part) -> None:
        end = time.monotonic() + 120
        while sink.outcome(epoch) is not Outcome.PUBLISHED:
            assert time.monotonic() < end
            try:
                sink.publish([published(epoch, *parts)], Held())
            except (InDoubt, Unavailable):
                continue

    for epoch, point in enumerate(("publish-uncommitted", "publish-begun", "staged"), 1):
        parts: list[Part] = [staged(sink, epoch, task) for task in (0, 1)]
        expected += [10 * epoch, 10 * epoch + 1]
        if point == "staged":
            mortal_kafka.stop()
            mortal_kafka.start()
        else:
            killing(point)
        given(epoch, *parts, Carried(table(10 * epoch + 5)))
        expected.append(10 * epoch + 5)
    sink.close()
    again = opened(target, 2)
    again.sweep(below_epoch=9)
    assert sorted(row for row, _ in target.rows()) == sorted(expected)
    again.close()


@pytest.mark.nightly
@AWAY
def test_a_coordinator_that_moves_changes_nothing(
    three_kafkas: KafkaCluster, new_topic: NewTopicName, request: pytest.FixtureRequest
) -> None:
    """Each broker of three is killed once between the decision and the end of the tasks' transactions."""
    request.addfinalizer(lambda: faults.install(None))
    topic = new_topic()
    place = {"bootstrap.servers": three_kafkas.bootstrap}
    admin = AdminClient(place)
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)
    spec = KafkaSpec(three_kafkas.bootstrap, MessageForm(topic), progress=f"{topic}-progress")
    sink = spec.connect("target", "words", ROWS)
    assert isinstance(sink, KafkaSink)
    sink.open(RunIdentity("words", 1))
    for epoch, broker in enumerate(three_kafkas.brokers, 1):
        parts = [staged(sink, epoch, task) for task in (0, 1)]
        killed: list[str] = []

        def hook(reached: str, _: int, broker: KafkaServer = broker, killed: list[str] = killed) -> None:
            if reached == "publish-begun" and not killed:
                killed.append(reached)
                broker.stop()

        faults.install(hook)
        end = time.monotonic() + 120
        while sink.outcome(epoch) is not Outcome.PUBLISHED:
            assert time.monotonic() < end
            try:
                sink.publish([published(epoch, *parts)], Held())
            except (InDoubt, Unavailable):
                continue
        faults.install(None)
        assert killed
        broker.start()
    rows = sorted(json.loads(value)["id"] for value in KafkaTopic(three_kafkas.bootstrap, topic).values())
    assert rows == [10, 11, 20, 21, 30, 31]
    sink.close()


def test_a_broker_that_lags_does_not_make_the_ledger_look_absent(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress topic is missing in what brokers list, but once: while the run makes sure of it."""
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    again = behind_a_run(target)
    listed = iter([{}, {target.progress: 1}])
    monkeypatch.setattr(KafkaSession, "partitions", lambda *_, **__: next(listed, {}))
    assert again.open(RunIdentity("words", 2)).epoch == 1
    assert (again.outcome(1), again.outcome(2)) == (Outcome.PUBLISHED, Outcome.ABSENT)
    again.close()


def test_a_ledger_that_went_back_is_not_believed(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read of it, once: when the run has taken the name of its producer."""
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    again = behind_a_run(target)
    reads, whole = iter([True, False]), KafkaSession.records
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "records", lambda *args, **how: whole(*args, **how) if next(reads) else iter(()))
        with pytest.raises(Unavailable, match="older ledger"):
            again.open(RunIdentity("words", 2))
    assert again.open(RunIdentity("words", 2)).epoch == 1
    assert again.outcome(1) is Outcome.PUBLISHED
    again.close()


def test_a_broker_that_is_cut_off_from_its_cluster_is_not_believed(
    kafka_of_session: KafkaServer, new_topic: NewTopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a start reads of the progress topic is a copy from before the last epoch: what such a leader has."""
    target = KafkaTarget(kafka_of_session.bootstrap, new_topic())
    first = opened(target)
    first.publish([published(1, Carried(table(1)))], Held())
    cut_off, whole = f"{target.progress}-cut-off", KafkaSession.records
    first._session.create_compacted(cut_off)
    producer = Producer({"bootstrap.servers": kafka_of_session.bootstrap})
    for key, value, headers in list(first._session.records(target.progress)):
        producer.produce(cut_off, value, key, headers=headers)
    producer.flush(30)
    first.publish([published(2, Carried(table(2)))], Held())
    first.close()
    again = connected(target)
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "records", lambda self, _, **how: whole(self, cut_off, **how))
        patch.setattr(kafka_session, "TIMEOUT_S", 5.0)
        assert again.outcome(2) is Outcome.ABSENT, "it is asked what it does not know"
        with pytest.raises(Unavailable, match="cut off from its cluster"):
            again.open(RunIdentity("words", 2))
    assert again.open(RunIdentity("words", 2)).epoch == 2
    again.close()


@pytest.mark.nightly
@AWAY
def test_a_partition_without_a_leader_is_waited_for(
    three_kafkas: KafkaCluster, new_topic: NewTopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only broker of the topic, then that of the progress topic, is away for longer than one attempt lasts."""
    topic, expected = new_topic(), []
    admin = AdminClient({"bootstrap.servers": three_kafkas.bootstrap})
    names = (topic, f"{topic}-progress")
    compacted = {"cleanup.policy": "compact"}
    new = [NewTopic(topic, 1, 1), NewTopic(names[1], 1, 1, config=compacted)]
    for made_ in admin.create_topics(new).values():
        made_.result(60)
    spec = KafkaSpec(three_kafkas.bootstrap, MessageForm(topic), progress=names[1])
    sink = spec.connect("target", "words", ROWS)
    sink.open(RunIdentity("words", 1))
    for epoch, name in enumerate(names, 1):
        monkeypatch.setattr(kafka_session, "TIMEOUT_S", 3.0)
        leader = admin.describe_topics(TopicCollection([name]))[name].result().partitions[0].leader.id
        broker = next(each for each in three_kafkas.brokers if each.number == leader)
        broker.stop()
        with pytest.raises((InDoubt, Unavailable)):
            sink.publish([published(epoch, Carried(table(epoch)))], Held())
        if name.endswith("-progress"):
            with pytest.raises(Unavailable):
                spec.connect("target", "words", ROWS).open(RunIdentity("words", epoch + 1))
        broker.start()
        monkeypatch.undo()
        sink.close()
        sink = spec.connect("target", "words", ROWS)
        sink.open(RunIdentity("words", epoch + 1))
        if sink.outcome(epoch) is Outcome.ABSENT:
            sink.publish([published(epoch, Carried(table(epoch)), generation=epoch + 1)], Held())
        expected.append(epoch)
        assert [json.loads(value)["id"] for value in KafkaTopic(three_kafkas.bootstrap, topic).values()] == expected
    sink.close()


@pytest.mark.nightly
def test_a_user_without_permission_is_told_what_he_needs(new_topic: NewTopicName) -> None:
    users = 'username="admin" password="admin-secret" user_admin="admin-secret" user_app="app-secret"'
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": module,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    try:
        with kafka_server(settings, protocol="SASL_PLAINTEXT") as server:
            login = {
                "protocol": "SASL_PLAINTEXT",
                "mechanism": "PLAIN",
                "username": "admin",
                "password": "admin-secret",
            }
            topic = new_topic()
            spec = KafkaSpec(server.bootstrap, MessageForm(topic), login)
            admin = AdminClient(spec.brokers.client())
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            sink = spec.connect("target", "words", ROWS)
            sink.open(RunIdentity("words", 1))
            sink.publish([published(1, Carried(table(1)))], Held())
            sink.close()
            for user, word in (("app", "app-secret"), ("app", "wrong-secret")):
                other = KafkaSpec(server.bootstrap, MessageForm(topic), {**login, "username": user, "password": word})
                with pytest.raises((InvalidPipeline, HoldfastError)) as caught:
                    other.connect("target", "words", ROWS).open(RunIdentity("words", 2))
                assert isinstance(caught.value, InvalidPipeline), caught.value
                assert word not in str(caught.value)
    except NoKafka as error:
        pytest.skip(str(error))
