"""What goes wrong with transactions of Kafka elsewhere, on a real broker: order, tombstones, late attempts, producers.

design/0036, invariants 4 to 6.  A crash at each write, brokers that are killed and transactions that expire:
``tests/crash/test_kafka_crash_loop.py``.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import holdfast as hf
from holdfast import faults
from holdfast.connectors.kafka.sink import session as kafka_session
from holdfast.connectors.kafka.sink import transactions as kafka_transactions
from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Task
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), ("gone", pa.bool_())])
PARTITIONS = 3


def sink_of(server: KafkaServer, topic: str, generation: int = 1, **arguments: Any) -> Any:
    node = hf.write.kafka(server.bootstrap, topic, progress=f"{topic}-progress", **arguments)
    sink: Any = node.spec.connect("rows", "traps", SCHEMA)
    sink.open(RunIdentity("traps", generation))
    return sink


def created(server: KafkaServer, topic: str, **settings: str) -> str:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)
    return topic


def records(server: KafkaServer, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values that ``read_committed`` shows, in order within each partition."""
    return [(message.key(), message.value()) for message in messages(server, topic)]


def messages(server: KafkaServer, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """Return what ``read_committed`` shows, by a consumer that is not this project's code."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(30)
        assert message is not None, "the broker did not answer"
        if message.error() is None:
            found.append(message)
        else:
            ended += 1
    consumer.close()
    return found


def table(*rows: tuple[str, int], gone: bool = False) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "number": number, "gone": gone} for key, number in rows], SCHEMA)


def staged(sink: Any, epoch: int, task: int, rows: pa.Table, attempt: int = 0) -> Any:
    writer = sink.writer_factory()(Task("traps", 1, epoch, task, attempt))
    for batch in rows.to_batches():
        writer.write(batch)
    return writer.stage()


def published(epoch: int, *parts: Any, generation: int = 1) -> Publication:
    return Publication(EpochRecord("traps", epoch, generation, {"s": {"log": epoch}}), parts)


def test_records_of_a_key_keep_their_order_in_epochs_that_are_carried_and_staged(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str]
) -> None:
    """Also where the next epoch is staged while this one waits: a record has its place when it is written."""
    topic = created(kafka_of_session, new_topic())
    sink = sink_of(kafka_of_session, topic, key="key", value="number")
    keys = ["a", "b", "c", "d", "e"]
    number = 0

    def some() -> pa.Table:
        nonlocal number
        number += 20
        return table(*((keys[at % 5], at) for at in range(number - 20, number)))

    waiting = published(1, staged(sink, 1, 0, some()), staged(sink, 1, 1, some()))
    second = published(2, staged(sink, 2, 0, some()), Carried(some()))
    sink.publish([waiting], Held())
    sink.publish([second, published(3, Carried(some()))], Held())
    sink.publish([published(4, Carried(some()), staged(sink, 4, 0, some()))], Held())
    sink.close()
    of: dict[bytes | None, list[int]] = defaultdict(list)
    for key, value in records(kafka_of_session, topic):
        of[key].append(int((value or b"").partition(b":")[2].rstrip(b"}")))
    assert of == {key.encode(): [at for at in range(number) if keys[at % 5] == key] for key in keys}


def test_a_message_is_written_again_as_it_was_read_with_its_headers(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """A copy of a topic: what ``read.kafka(format="bytes")`` gives, ``write.kafka`` takes."""
    topics, (source, target) = Topics(kafka_of_session.bootstrap), (new_topic(), new_topic())
    for name in (source, target):
        topics.create(name)
    headers = [("trace", b"1"), ("none", None), ("trace", b"\xff\x00")]
    topics.produce(source, {0: [b"one"]}, key=b"\xfe", headers=headers)
    topics.produce(source, {0: [None, b"three"]}, key=b"k")
    read: Any = hf.read.kafka(kafka_of_session.bootstrap, source, format="bytes", name="messages").node.spec
    opened = read.open("messages", str(tmp_path))
    start = opened.initial()
    (span,) = opened.spans(start, opened.latest(start, bounded=False), parallelism=1)
    node = hf.write.kafka(
        kafka_of_session.bootstrap,
        target,
        format="bytes",
        key="key",
        value="value",
        headers="headers",
        progress=f"{target}-progress",
    )
    sink: Any = node.spec.connect("rows", "traps", read.schema)
    sink.open(RunIdentity("traps", 1))
    sink.publish([published(1, Carried(pa.Table.from_batches(opened.read(span), read.schema)))], Held())
    sink.close()

    def seen(topic: str) -> list[Any]:
        return [(each.key(), each.value(), each.headers()) for each in messages(kafka_of_session, topic, partitions=1)]

    assert seen(target) == seen(source)
    assert seen(target)[0] == (b"\xfe", b"one", headers)


def test_every_part_of_a_record_is_in_the_topic_carried_and_staged(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str]
) -> None:
    topic = created(kafka_of_session, new_topic())
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("v", pa.binary()),
            ("h", pa.map_(pa.string(), pa.binary())),
            ("at", pa.timestamp("us", "UTC")),
            ("p", pa.int32()),
        ]
    )
    node = hf.write.kafka(
        kafka_of_session.bootstrap,
        topic,
        key="k",
        value="v",
        format="bytes",
        headers="h",
        timestamp="at",
        partition="p",
        stage="transactions",
        progress=f"{topic}-progress",
    )
    sink: Any = node.spec.connect("rows", "traps", schema)
    sink.open(RunIdentity("traps", 1))

    def some(first: int) -> pa.Table:
        rows = [
            {"k": f"k{i}", "v": b"v%d" % i, "h": [("n", b"%d" % i), ("none", None)], "at": i * 1_000_000, "p": i % 3}
            for i in (first, first + 1)
        ]
        return pa.Table.from_pylist([*rows, {"v": b"bare", "at": 9_000_000}], schema)

    sink.publish([published(1, Carried(some(1)), staged(sink, 1, 0, some(4)))], Held())
    plain = hf.write.kafka(
        kafka_of_session.bootstrap, topic, value="v", format="bytes", timestamp="at", progress=f"{topic}-progress"
    )
    other: Any = plain.spec.connect("plain", "traps", schema)
    other.open(RunIdentity("traps", 1))
    other.publish([published(1, Carried(some(6)))], Held())
    found = sorted(
        (m.timestamp()[1], m.value(), m.key(), m.headers(), m.partition() if m.key() else None)
        for m in messages(kafka_of_session, topic)
    )

    def whole(i: int) -> tuple[Any, ...]:
        return (i * 1000, b"v%d" % i, b"k%d" % i, [("n", b"%d" % i), ("none", None)], i % 3)

    expected = [
        whole(1),
        whole(2),
        whole(4),
        whole(5),
        (6000, b"v6", None, None, None),
        (7000, b"v7", None, None, None),
    ]
    assert found == [*expected, *[(9000, b"bare", None, None, None)] * 3]
    for each in (sink, other):
        each.close()


def test_a_deleted_row_is_a_tombstone_of_a_compacted_topic(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str]
) -> None:
    topic = created(kafka_of_session, new_topic(), cleanup_policy="compact")
    sink = sink_of(kafka_of_session, topic, mode="upsert", key="key", value="number", delete="gone")
    sink.publish([published(1, Carried(table(("a", 1), ("b", 2))))], Held())
    sink.publish([published(2, staged(sink, 2, 0, table(("a", 3), gone=True)), Carried(table(("b", 4))))], Held())
    sink.close()
    assert dict(records(kafka_of_session, topic)) == {b"a": None, b"b": b'{"number":4}'}  # the last one of each key


def test_late_attempts_of_a_task_add_nothing_and_end_nothing(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str]
) -> None:
    """One that stages before the epoch is decided, one behind the decision, and one after the next takeover."""
    topic = created(kafka_of_session, new_topic())
    sink = sink_of(kafka_of_session, topic, value="number")
    early, counted = (staged(sink, 1, 0, table(("a", 1)), attempt) for attempt in (0, 1))
    seen: list[Any] = []

    def late(point: str, epoch: int) -> None:
        if point == "publish-begun" and not seen:
            seen.append(staged(sink, 1, 0, table(("a", 1)), 2))

    faults.install(late)
    try:
        sink.publish([published(1, counted)], Held())
    finally:
        faults.install(None)
    assert seen
    again = sink_of(kafka_of_session, topic, 2, value="number")
    zombie = staged(sink, 1, 0, table(("a", 1)), 3)
    names = [handle.reference["transaction"] for handle in (early, counted, *seen, zombie)]
    assert len(set(names)) == 4
    assert again.sweep(below_epoch=2) == 3
    assert again.sweep(below_epoch=2) == 0
    assert [value for _, value in records(kafka_of_session, topic)] == [b'{"number":1}']
    assert again.outcome(1) is Outcome.PUBLISHED
    for each in (sink, again):
        each.close()


@pytest.mark.nightly
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_a_producer_whose_time_has_run_out_is_used_no_more(
    mortal_kafka: KafkaServer, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is frozen within the driver's transaction, and goes on when that producer has been given up."""
    topic = created(mortal_kafka, new_topic())
    sink = sink_of(mortal_kafka, topic, value="number")
    monkeypatch.setattr(kafka_session, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(kafka_transactions, "TIMEOUT_S", 2.0)
    first = sink._producer

    def freeze(point: str, epoch: int) -> None:
        if point == "publish-uncommitted":
            faults.install(None)
            mortal_kafka.freeze()

    faults.install(freeze)
    try:
        with pytest.raises((InDoubt, Unavailable)):
            sink.publish([published(1, Carried(table(("a", 1))))], Held())
    finally:
        faults.install(None)
        mortal_kafka.thaw()
    with closing(sink):
        assert sink._producer is None
        monkeypatch.setattr(kafka_session, "TIMEOUT_S", 30.0)
        monkeypatch.setattr(kafka_transactions, "TIMEOUT_S", 30.0)
        while sink.outcome(1) is not Outcome.PUBLISHED:
            sink.publish([published(1, Carried(table(("a", 1))))], Held())
        sink.publish([published(2, Carried(table(("a", 2))))], Held())
        assert sink._producer not in (None, first)
        # Rows without a key are in whatever partition: one partition's order is not the topic's.
        assert sorted(value for _, value in records(mortal_kafka, topic)) == [b'{"number":1}', b'{"number":2}']
    del sink, first
    gc.collect()  # sockets that the client library leaves to the collector: here, and not in a test of something else
