"""Many messages at a time, on a live broker: nothing is altered on the kind, whichever functions they go by.

What both kinds of clients promise is asked of both (``kind``); the rest is about the native ones.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.native import messages, metadata, producing
from holdfast.connectors.kafka.native.messages import BulkConsumer
from holdfast.connectors.kafka.native.metadata import PartitionsFound
from holdfast.connectors.kafka.native.topics import Topic
from holdfast.connectors.kafka.native.trial import KINDS, NATIVE, ClientKind
from holdfast.connectors.kafka.sink.form import HEADERS
from holdfast.connectors.kafka.sink.session import KafkaSession
from holdfast.connectors.kafka.sink.transactions import ONGOING, Transactions
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

_names = (f"native-{number}" for number in itertools.count())


@pytest.fixture
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture
def topic(topics: Topics) -> str:
    name = next(_names)
    topics.create(name, 3)
    return name


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> ClientKind:
    chosen: ClientKind = request.param
    return chosen


def producer(topics: Topics, *, kind: ClientKind = NATIVE, **settings: Any) -> Any:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return kind.producer({"bootstrap.servers": topics.bootstrap, "log_level": 0, "linger.ms": 0, **dotted})


def consumer(topics: Topics, *, kind: ClientKind = NATIVE, **settings: Any) -> Any:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    at = {"bootstrap.servers": topics.bootstrap, "log_level": 0, "group.id": "native", "enable.partition.eof": True}
    return kind.consumer({**at, "auto.offset.reset": "error", **dotted})


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def read(
    topics: Topics, topic: str, partitions: int = 3, limit: int = 1000, *, kind: ClientKind = NATIVE
) -> dict[int, list[Any]]:
    """Return the messages of each partition, as they came."""
    reader = consumer(topics, kind=kind)
    reader.assign([(topic, number, 0) for number in range(partitions)])
    left, found = set(range(partitions)), {number: list[Any]() for number in range(partitions)}
    while left:
        some = reader.take(limit, 10)
        assert some, "nothing came"
        codes_, places = some.errors(), some.partitions()
        left -= set(places[codes_ == codes.PARTITION_EOF].tolist())
        for place, part in some.split(np.where(codes_ == 0, places, -1)):
            if place >= 0:
                found[place].append(part)
    return found


def column(parts: list[Any], name: str) -> list[Any]:
    return [value for part in parts for value in getattr(part, name)().tolist()]


def test_keys_and_values_of_every_size_come_back_in_their_order(topics: Topics, topic: str, kind: ClientKind) -> None:
    chance = random.Random(5)
    values = [chance.choice([None, b"", chance.randbytes(chance.choice([1, 7, 300, 20_000]))]) for _ in range(3000)]
    keys = [chance.choice([None, b"", b"%d" % number]) for number in range(3000)]
    places = [chance.randrange(3) for _ in range(3000)]
    sending = producer(topics, kind=kind, compression_type="lz4")
    for number in range(3):
        mine = [place for place in range(3000) if places[place] == number]
        whole = binary([values[place] for place in mine]), binary([keys[place] for place in mine])
        for begin in range(0, len(mine), 300):  # slices, whose arrays begin in the middle of their buffers
            some_values, some_keys = (each[begin : begin + 300] for each in whole)
            assert sending.send(topic, some_values, some_keys, number) == (len(some_values), None)
    assert sending.flush(30) == 0
    assert sending.failed == []
    for number, parts in read(topics, topic, limit=501, kind=kind).items():
        wanted = [place for place in range(3000) if places[place] == number]
        assert column(parts, "offsets") == list(range(len(wanted)))
        assert [v for part in parts for v in part.values().to_pylist()] == [values[place] for place in wanted]
        assert [k for part in parts for k in part.keys().to_pylist()] == [keys[place] for place in wanted]
        assert column(parts, "sizes") == [len(keys[place] or b"") + len(values[place] or b"") for place in wanted]
        joined = parts[0].join(parts[1:])
        assert joined.values().to_pylist() == [values[place] for place in wanted]
        assert kind is not NATIVE or not any(len(part) for part in parts if part is not joined)


def test_headers_and_times_go_with_their_messages(topics: Topics, topic: str, kind: ClientKind) -> None:
    given = [[("a", b"1"), ("é", None)], None, [], [("a", b""), ("a", b"\0x")]]
    listed = [
        None if each is None else [{"key": key, "value": value} for key, value in each]
        for each in [[("left out", b"z")], *given]
    ]
    headers = pa.array(listed, HEADERS)[1:]
    times = pa.array([1, 1_704_067_200_000, 0, 5], pa.int64())
    sending = producer(topics, kind=kind)
    values = binary([b"0", b"1", None, b"3"])
    assert sending.send(topic, values, None, 1, headers, times) == (4, None)
    assert sending.flush(30) == 0
    (part,) = [parts[0].join(parts[1:]) for parts in read(topics, topic, kind=kind).values() if parts]
    assert part.values().to_pylist() == values.to_pylist()
    assert part.headers() == [given[0], None, None, given[3]]
    found = part.timestamps().tolist()
    assert [found[0], found[1], found[3]] == [1, 1_704_067_200_000, 5]
    assert found[2] > 1_704_067_200_000
    assert part.timestamp_kinds() == {TIMESTAMP_CREATE_TIME}
    assert {part.topic_name(each) for each in part.topics().tolist()} == {topic}


def test_without_keys_each_call_goes_to_one_partition_and_the_next_to_the_next(topics: Topics, topic: str) -> None:
    sending = producer(topics)
    for number in range(7):
        assert sending.send(topic, binary([b"%d" % number] * 10)) == (10, None)
    sending.send(topic, binary([b"headers"]), None, -1, pa.array([[("h", b"1")]], HEADERS))
    assert sending.flush(30) == 0
    came = read(topics, topic).items()
    found = {place: [value for part in parts for value in part.values().to_pylist()] for place, parts in came}
    order = sorted(found, key=lambda place: int(found[place][0]))
    assert [found[place][::10] for place in order] == [[b"0", b"3", b"6"], [b"1", b"4", b"headers"], [b"2", b"5"]]


class Later:
    """The clock, so many seconds on."""

    sleep = staticmethod(time.sleep)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


def test_a_partition_that_is_added_gets_rows_once_it_is_asked_for_again(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = producer(topics)
    assert sending.send(topic, binary([b"before"])) == (1, None)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    monkeypatch.setattr(producing, "time", Later(producing._PARTITIONS_KNOWN_S + 1))
    there = Topic(sending, topic)
    while len(metadata.partitions_with_leader(sending.handle, there.handle, 10).numbers) < 5:
        pass  # leaders come a moment later
    for _ in range(5):
        assert sending.send(topic, binary([b"after"])) == (1, None)
    assert sending.flush(30) == 0
    came = read(topics, topic, 5)
    assert all(b"after" in [v for part in parts for v in part.values().to_pylist()] for parts in came.values())


def test_a_partition_without_a_leader_gets_nothing_until_it_is_asked_for_again(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([PartitionsFound([2], are_all=False), PartitionsFound([0], are_all=True)])
    monkeypatch.setattr(metadata, "partitions_with_leader", lambda *_: next(answers))
    sending = producer(topics)
    for _ in range(3):
        assert sending.send(topic, binary([b"two"])) == (1, None)
    monkeypatch.setattr(producing, "time", Later(producing._ASKED_AGAIN_S + 1))
    assert sending.send(topic, binary([b"none"])) == (1, None)
    assert sending.flush(30) == 0
    came = read(topics, topic)
    found = {place: [v for part in parts for v in part.values().to_pylist()] for place, parts in came.items()}
    assert found == {0: [b"none"], 1: [], 2: [b"two"] * 3}


def test_where_nobody_says_which_partitions_there_are_the_library_chooses(kind: ClientKind) -> None:
    away = kind.producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert away.send("somewhere", binary([b"waits"])) == (1, None)
    assert away.flush(0.01) == 1


def test_what_the_queue_does_not_take_is_told_from_the_first_message_on(
    topics: Topics, topic: str, kind: ClientKind
) -> None:
    sending = producer(topics, kind=kind, queue_buffering_max_messages=100, linger_ms=60_000)
    values = binary([b"%d" % number for number in range(250)])
    count, error = sending.send(topic, values)
    assert error is not None
    assert (count, error.code()) == (100, codes.QUEUE_FULL)
    assert sending.flush(30) == 0
    count, error = sending.send(topic, values[100:], None, -1, None, pa.array([7] * 150, pa.int64()))
    assert error is not None
    assert (count, error.code()) == (100, codes.QUEUE_FULL)


def test_why_messages_were_not_delivered_is_noted(topics: Topics, topic: str, kind: ClientKind) -> None:
    sending = producer(topics, kind=kind, message_max_bytes=5_000_000)
    assert sending.send(topic, binary([b"good", b"x" * 4_000_000])) == (2, None)
    assert sending.flush(30) == 0
    assert {error.code() for error in sending.failed} == {KafkaError.MSG_SIZE_TOO_LARGE}
    assert sending.send(topic, binary([b"nowhere"]), None, 77)[0] == 0


def test_what_a_function_answers_is_an_error_of_the_library(topics: Topics, kind: ClientKind) -> None:
    with pytest.raises(KafkaException) as raised:
        producer(topics, kind=kind).begin_transaction()
    assert raised.value.args[0].code() == KafkaError._NOT_CONFIGURED
    for settings in ({"no_such_setting": "1"}, {"message_max_bytes": "many"}):
        with pytest.raises(KafkaException) as raised:
            producer(topics, kind=kind, **settings)
        assert raised.value.args[0].code() == codes.INVALID_ARG
    told: list[KafkaError] = []
    lost = kind.producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": told.append})
    while not told:
        lost.poll(0.1)
    assert {error.code() for error in told} <= {codes.TRANSPORT, codes.ALL_BROKERS_DOWN}


def test_a_producer_that_is_let_go_leaves_its_transaction_open(topics: Topics, topic: str, kind: ClientKind) -> None:
    ident = f"native/{topic}"
    sending = producer(topics, kind=kind, transactional_id=ident)
    sending.init_transactions(30, topic)
    sending.begin_transaction()
    assert sending.send(topic, binary([b"x"])) == (1, None)
    assert sending.flush(30) == 0
    is_there = weakref.ref(sending)
    del sending
    assert is_there() is None, "something keeps it, and its connections, until the collector comes"
    asked = Transactions(KafkaSession(Brokers(topics.bootstrap), "sink 's'", "test"))
    try:
        assert asked.describe([ident])[ident].state == ONGOING
        again = producer(topics, kind=kind, transactional_id=ident)
        again.init_transactions(30, topic)
        assert asked.describe([ident])[ident].state != ONGOING
    finally:
        asked.close()


def test_a_topic_that_a_consumer_has_not_read_is_looked_up_when_it_is_assigned(
    topics: Topics, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other = next(_names)
    topics.create(other, 1)
    sending = producer(topics)
    for name in (topic, other):
        assert sending.send(name, binary([name.encode()]), None, 0) == (1, None)
    assert sending.flush(30) == 0
    at = {"bootstrap.servers": topics.bootstrap, "group.id": "native", "auto.offset.reset": "error"}
    reader = BulkConsumer({**at, "debug": "topic", "log_level": 7})
    said = {}
    for name in (topic, other):
        capfd.readouterr()
        reader.assign([(name, 0, 0)])
        assert reader.take(10, 10).values().to_pylist() == [name.encode()]
        reader.unassign()
        said[name] = capfd.readouterr().err
    assert all(f"New local topic: {name}" in text and "FASTQUERY" in text for name, text in said.items())


def test_a_name_that_is_too_long_is_refused(topics: Topics, kind: ClientKind) -> None:
    with pytest.raises(KafkaException):
        consumer(topics, kind=kind).assign([("x" * 600, 0, 0)])
    with pytest.raises(KafkaException):
        producer(topics, kind=kind).send("x" * 600, binary([b"x"]))


def test_a_client_goes_when_the_last_of_it_is_let_go(topics: Topics, topic: str) -> None:
    reader = consumer(topics)
    hold = reader.hold
    assert hold is not None
    there = Topic(reader, topic)
    reader.close()
    del reader
    assert hold._handle is not None
    del there
    assert hold._handle is None


@pytest.mark.parametrize("is_known", [True, False])
def test_messages_are_let_go_once(topics: Topics, topic: str, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_KNOWS_LISTS", is_known)
    sending = producer(topics)
    assert sending.send(topic, binary([b"x" * 100] * 50_000), None, 0) == (50_000, None)
    assert sending.flush(30) == 0
    came = [some for parts in read(topics, topic, limit=7000).values() for some in parts]
    assert sum(len(some) for some in came) == 50_000
    hold = came[0]._hold
    del came
    # NB the library waits for ever for one that it was not given back, and breaks when it is given one twice.
    assert hold._handle is None


def test_a_partition_that_is_paused_gives_nothing_until_it_is_assigned_again(
    topics: Topics, topic: str, kind: ClientKind
) -> None:
    sending = producer(topics, kind=kind)
    for number in range(2):
        assert sending.send(topic, binary([b"%d" % number] * 3), None, number) == (3, None)
    assert sending.flush(30) == 0
    reader = consumer(topics, kind=kind)
    for paused in (0, 1):
        reader.assign([(topic, 0, 0), (topic, 1, 1)])
        reader.pause((topic, paused))
        found: list[int] = []
        while found.count(1 - paused) < 3 - (1 - paused) or 100 not in found:
            some = reader.take(10, 10)
            found += [100 if error else place for error, place in zip(some.errors(), some.partitions(), strict=True)]
        assert paused not in found
    reader.unassign()
    reader.close()


def test_messages_may_outlive_what_has_read_them(topics: Topics, topic: str) -> None:
    sending = producer(topics)
    assert sending.send(topic, binary([b"x"] * 50), None, 0) == (50, None)
    assert sending.flush(30) == 0
    reader = consumer(topics)
    reader.assign([(topic, 0, 0)])
    some = reader.take(10, 10)
    hold = some._hold
    reader.close()
    del reader
    assert hold._handle is not None
    assert some.offsets().tolist() == list(range(len(some)))
    del some
    assert hold._handle is None


@pytest.mark.parametrize("wide", [0, 1 << 26], ids=["in parts", "at once"])
def test_bytes_from_all_over_the_memory_come_in_order(monkeypatch: pytest.MonkeyPatch, wide: int) -> None:
    """Absent and empty ones too; what lies between them is not reserved."""
    monkeypatch.setattr(messages, "_WIDE", wide)
    chance = random.Random(361)
    for count in (1, 2, 5, 40) * 20:
        wanted = [chance.choice([None, b"", b"a", b"%d" % each * chance.randint(1, 900)]) for each in range(count)]
        places = [None if each is None else ctypes.create_string_buffer(each, len(each) + 1) for each in wanted]
        chance.shuffle(both := list(zip(wanted, places, strict=True)))
        at = np.array([0 if place is None else ctypes.addressof(place) for _, place in both], np.int64)
        sizes = np.array([0 if each is None else len(each) for each, _ in both], np.int64)
        assert messages._copied(at, sizes).to_pylist() == [each for each, _ in both]


def test_an_empty_value_far_away_reserves_no_memory() -> None:
    """The library has one of its own; between it and the others lies all of the heap."""
    kept = [ctypes.create_string_buffer(b"x" * 10, 11) for _ in range(3)]
    at = np.array([*map(ctypes.addressof, kept), 1 << 13], np.int64)
    before = pa.total_allocated_bytes()
    found = messages._copied(at, np.array([10, 10, 10, 0], np.int64))
    assert found.to_pylist() == [b"x" * 10] * 3 + [b""]
    assert pa.total_allocated_bytes() - before < 1 << 20
