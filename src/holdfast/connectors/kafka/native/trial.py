"""The trial of the native functions, in a process of its own: what they write and read, against the public functions.

The brokers are the library's own stand-in (``test.mock.num.brokers``), which lives in this process.  Both kinds of
clients write the same messages, each with transactions; both read what both have written; everything that one shows of
them must be what the other shows.  A crash needs no words: :mod:`holdfast.connectors.kafka.native.verdict` sees it.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.native.clients import MessageConsumer, MessageProducer, MessagesRead
from holdfast.connectors.kafka.native.messages import BulkConsumer
from holdfast.connectors.kafka.native.metadata import partitions_with_leader
from holdfast.connectors.kafka.native.producing import BulkProducer
from holdfast.connectors.kafka.native.topics import Topic
from holdfast.connectors.kafka.native.verdict import AGREES
from holdfast.connectors.kafka.public import PublicConsumer, PublicProducer

PARTITIONS = 3
"""Of the stand-in's four."""

_COUNT = 2_000
_WAIT_S = 20.0
_ALONE_S = 90
"""Whoever waits for this process ends it before; where that one has gone it ends by itself."""

_SENT_MS = 1_704_067_200_000

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.large_binary())]))


Headers = list[tuple[str, bytes | None]] | None


class Difference(Exception):
    """The native functions do something else than the public ones."""


class ClientKind(NamedTuple):
    """One of the two ways to talk to brokers."""

    name: str
    producer: Callable[[dict[str, object]], MessageProducer]
    consumer: Callable[[dict[str, object]], MessageConsumer]


NATIVE = ClientKind("native", BulkProducer, BulkConsumer)
KINDS = (NATIVE, ClientKind("public", PublicProducer, PublicConsumer))


class Written(NamedTuple):
    """Messages of one partition; of each whether it has headers and a time."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers] | None = None
    times: list[int] | None = None


def run() -> None:
    """Compare; raise :class:`Difference` at the first one."""
    stand_in = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = stand_in.list_topics(timeout=_WAIT_S).brokers.values()
    at = {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0}
    for kind in KINDS:
        _write(kind, at)
    _compare("what is refused", [_refusals(kind, at) for kind in KINDS])
    _compare("what is not delivered", [_failures(kind, at) for kind in KINDS])
    for topic in (kind.name for kind in KINDS):
        listed = stand_in.list_topics(topic, timeout=_WAIT_S).topics[topic].partitions.values()
        _compare("partitions with a leader", [_leaders(at, topic), sorted(each.id for each in listed)])
    given = [_make_messages(number) for number in range(PARTITIONS)]
    for topic in (kind.name for kind in KINDS):
        seen = [dict(_read(kind, at, topic)) for kind in KINDS]
        seen.append({**seen[0], **_columns_of(given, seen[0]["times"])})
        for name in seen[0]:
            _compare(f"{name} of messages that the {topic} ones have written", [each[name] for each in seen])
    gc.collect()  # what lets messages go twice, or not at all, shows at the latest here


def _columns_of(given: Sequence[Written], seen_times: Sequence[object]) -> dict[str, Sequence[object]]:
    """Return what must be seen of messages; the time of those that were given none is when they were sent."""
    return {
        "values": [part.values for part in given],
        "keys": [part.keys for part in given],
        "headers": [part.headers or [None] * _COUNT for part in given],
        "times": [part.times or seen for part, seen in zip(given, seen_times, strict=True)],
    }


def _make_messages(number: int) -> Written:
    chance = random.Random(number)
    values = [chance.choice([None, b"", chance.randbytes(chance.choice([1, 7, 300]))]) for _ in range(_COUNT)]
    values[5] = chance.randbytes(300_000)
    keys = [chance.choice([None, b"", b"%d" % at]) for at in range(_COUNT)]
    if number < PARTITIONS - 1:
        return Written(values, keys)
    several: list[Headers] = [None, [("é", b"\0x"), ("a", None)], [("a", b"")]]
    headers = [chance.choice(several) for _ in range(_COUNT)]
    return Written(values, keys, headers, [_SENT_MS + at for at in range(_COUNT)])


def _write(kind: ClientKind, at: dict[str, object]) -> None:
    """Write all partitions in a transaction."""
    producer = kind.producer({**at, "linger.ms": 0, "transactional.id": kind.name, "compression.type": "lz4"})
    producer.init_transactions(_WAIT_S, kind.name)
    producer.begin_transaction()
    for number in range(PARTITIONS):
        given = _make_messages(number)
        # Of slices the buffers begin elsewhere than the values.
        values, keys = (pa.array([b"left out", *each], pa.large_binary())[1:] for each in (given.values, given.keys))
        headers = None if given.headers is None else pa.array([None, *given.headers], HEADERS)[1:]
        times = None if given.times is None else pa.array(given.times, pa.int64())
        count, error = producer.send(kind.name, values, keys, number, headers, times)
        if error is not None or count != _COUNT:
            raise Difference(f"{kind.name} functions took {count} of {_COUNT} messages: {error}")
    count, error = producer.send(f"{kind.name}-without-keys", pa.array([b"x"] * 10, pa.large_binary()))
    left = producer.flush(_WAIT_S)
    if (count, error, left, producer.failed) != (10, None, 0, []):
        raise Difference(f"{kind.name} functions did not deliver: {left} messages are left, {producer.failed}")
    producer.commit_transaction(_WAIT_S)


def _refusals(kind: ClientKind, at: dict[str, object]) -> list[object]:
    """Return what is said where there is no transaction, no partition and no such setting."""
    producer = kind.producer({**at, "linger.ms": 0})
    found: list[object] = []
    try:
        producer.begin_transaction()
    except KafkaException as error:
        said = error.args[0]
        found += [said.code(), said.str(), said.fatal(), said.retriable(), said.txn_requires_abort()]
    try:
        kind.producer({**at, "message.max.bytes": "many"})
    except KafkaException as error:
        found.append(error.args[0].code())
    return found


def _failures(kind: ClientKind, at: dict[str, object]) -> list[object]:
    """Return what becomes of messages that are thrown away, and of those that do not fit."""
    producer = kind.producer({**at, "linger.ms": 60_000, "queue.buffering.max.messages": 3})
    count, error = producer.send("thrown-away", pa.array([b"x"] * 5, pa.large_binary()), None, 0)
    producer.purge()
    while len(producer.failed) < count:
        producer.poll(0.05)
    return [count, error and error.code(), sorted(each.code() for each in producer.failed)]


def _leaders(at: dict[str, object], topic: str) -> list[int]:
    client = BulkProducer(at)
    return sorted(partitions_with_leader(client.handle, Topic(client, topic).handle, _WAIT_S).numbers)


def _read(kind: ClientKind, at: dict[str, object], topic: str) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield what is shown of a topic's messages: its name, and of each partition what it is."""
    reads = {"group.id": "trial", "auto.offset.reset": "error", "enable.partition.eof": True, "fetch.wait.max.ms": 5}
    consumer = kind.consumer({**at, **reads, "fetch.message.max.bytes": 100_000})
    consumer.assign((topic, number, 0) for number in range(PARTITIONS))
    parts: dict[int, list[MessagesRead]] = {number: [] for number in range(PARTITIONS)}
    said: list[object] = []
    ended = 0
    while ended < PARTITIONS:
        some = consumer.take(701, _WAIT_S)
        if not len(some):
            raise Difference(f"{kind.name} functions read nothing of {topic}")
        errors, topics = some.errors(), some.topics()
        ends = np.flatnonzero(errors == codes.PARTITION_EOF).tolist()
        said += [(some.topic_name(int(topics[place])), some.error(place).str()) for place in ends]
        ended += len(ends)
        for number, part in some.split(np.where(errors == 0, some.partitions(), -1)):
            if number >= 0:
                parts[number].append(part)
    consumer.pause((topic, 0))
    consumer.unassign()
    consumer.assign([(topic, 0, 1_000_000)])
    some = consumer.take(1, _WAIT_S)
    said += [(some.errors().tolist(), some.offsets().tolist(), some.error(0).str())] if len(some) else []
    consumer.close()
    del consumer  # messages may outlive it
    yield "errors", sorted(map(str, said))
    joined = [each[0].join(each[1:]) for each in parts.values()]
    yield "offsets", [part.offsets().tolist() for part in joined]
    yield "partitions", [part.partitions().tolist() for part in joined]
    yield "values", [part.values().to_pylist() for part in joined]
    yield "keys", [part.keys().to_pylist() for part in joined]
    yield "sizes", [part.sizes().tolist() for part in joined]
    yield "times", [part.timestamps().tolist() for part in joined]
    yield "kinds of times", [part.timestamp_kinds() for part in joined]
    yield "headers", [part.headers() for part in joined]


def _compare(what: str, found: Sequence[object]) -> None:
    """Raise if these are not all equal."""
    if any(each != found[0] for each in found):
        raise Difference(what)


def main() -> int:
    """Say what came of it."""
    signal.alarm(_ALONE_S)
    try:
        run()
    except Difference as difference:
        print(difference)  # noqa: T201  (for the process that waits for this one)
    else:
        print(AGREES)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
