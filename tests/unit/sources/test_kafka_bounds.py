"""The bound of a source of many partitions (design/0038, section 6): arithmetic, and against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.connectors.reading.bounds import OWN, TAIL, OffsetRange, PartitionBounds, PartitionTimes
from holdfast.connectors.reading.partitioned import BOUND, of_partitions
from holdfast.errors import InvalidPipeline
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.source_contract import rows_between
from tests.kafka_topics import Topics

S = 1_000_000


class Log:
    """Partitions whose message at offset n has the time that the test gives it; None is the mark of a transaction."""

    def __init__(self, **times: list[int | None]) -> None:
        self.times = times
        self.asked: list[OffsetRange] = []

    def highest(self, ranges: Collection[OffsetRange]) -> dict[str, int]:
        self.asked += ranges
        found = {each.segment: self.times[each.segment][each.first : each.last] for each in ranges}
        seen = {segment: [at for at in times if at is not None] for segment, times in found.items()}
        return {segment: max(times) for segment, times in seen.items() if times}


def bound_after(bounds: PartitionBounds, now_s: float, ends: dict[str, int] | None = None, **positions: int) -> Any:
    return bounds.after(positions, ends or positions, {}, int(now_s * S))


def test_the_bound_is_the_lowest_of_the_partitions_and_one_of_which_nothing_is_read_holds_it() -> None:
    log = Log(a=[10, 20, 30], b=[5, 25])
    bounds = PartitionBounds(PartitionTimes(None, None), log.highest)
    assert bound_after(bounds, 0, {"a": 3, "b": 2, "c": 1}, a=3, b=2) is None
    assert bound_after(bounds, 1, a=3, b=1) == 5
    assert bound_after(bounds, 2, a=3, b=2) == 25


def test_a_partition_without_a_message_holds_nobody_back_until_it_has_one() -> None:
    log = Log(a=[10, 20, 30], b=[40, 41], c=[*[None] * 7, 22])
    bounds = PartitionBounds(PartitionTimes(None, None), log.highest)
    lows = {"a": 0, "b": 0, "c": 7}  # retention has taken what was in c
    assert bounds.after({"a": 3, "b": 1, "c": 7}, {"a": 3, "b": 1, "c": 7}, lows, 0) == 30
    assert bounds.after({"a": 3, "b": 1, "c": 7}, {"a": 3, "b": 1, "c": 8}, {}, 0) is None
    assert bounds.after({"a": 3, "b": 2, "c": 8}, {"a": 3, "b": 2, "c": 8}, {}, 0) == 22


def test_a_silent_partition_that_holds_all_others_back_is_named() -> None:
    log = Log(a=[10, 20, 30], b=[5, 25])
    bounds = PartitionBounds(PartitionTimes(0, None), log.highest)
    held = []
    for now_s, at in ((0, 1), (30, 2), (60, 2), (70, 3)):
        bound_after(bounds, now_s, a=at, b=1)
        held.append(bounds.held_by({"a": at, "b": 1}, now_s * S))
    assert held == [None, None, "b", "b"]
    assert bound_after(bounds, 71, {"a": 3, "b": 2}, a=3, b=1) == 5
    assert bounds.held_by({"a": 3, "b": 2}, 71 * S) is None, "it has something to give"


def test_disorder_is_below_the_highest_that_was_seen() -> None:
    bounds = PartitionBounds(PartitionTimes(4, None), Log(a=[10, 30, 27, None, 29]).highest)
    assert [bound_after(bounds, at, a=at) for at in (1, 2, 3, 5)] == [6, 26, 26, 26]


def test_only_the_last_messages_are_looked_at_and_each_position_once() -> None:
    log = Log(a=[*range(1000)])
    bounds = PartitionBounds(PartitionTimes(None, None), log.highest)
    for _ in range(2):
        assert bound_after(bounds, 0, a=1000) == 999
    assert bounds.after({"a": 5}, {"a": 5}, {"a": 3}, 0) == 4, "what is to be read again is not promised"
    assert log.asked == [OffsetRange("a", 1000 - TAIL, 1000), OffsetRange("a", 3, 5)]


def test_a_partition_that_is_idle_follows_the_others_by_one_look() -> None:
    log = Log(a=[10, 20, 30, 40], b=[12, 41])
    bounds = PartitionBounds(PartitionTimes(None, 30 * S), log.highest)
    assert bound_after(bounds, 0, a=1, b=1) == 10
    assert bound_after(bounds, 29, a=2, b=1) == 12
    assert bound_after(bounds, 30, a=3, b=1) == 20  # what the other one had reached when b was looked at before
    assert bound_after(bounds, 31, a=3, b=1) == 30
    assert bound_after(bounds, 32, {"a": 4, "b": 2}, a=4, b=1) == 12  # b has something: its own word counts
    assert bound_after(bounds, 33, a=4, b=2) == 40


def test_where_all_partitions_are_idle_everything_is_settled() -> None:
    bounds = PartitionBounds(PartitionTimes(None, 30 * S), Log(a=[10], b=[12]).highest)
    assert bound_after(bounds, 0, {"a": 1, "b": 1, "c": 0}, a=1, b=1) == 10
    assert bound_after(bounds, 30, {"a": 1, "b": 1, "c": 0}, a=1, b=1) == 13
    late = PartitionBounds(PartitionTimes(5, 30 * S), Log(a=[10, 40, 38], b=[12]).highest)
    assert [bound_after(late, at, a=3, b=1) for at in (0, 30)] == [7, 41]
    silent = PartitionBounds(PartitionTimes(None, 0), Log().highest)
    assert bound_after(silent, 0, {"a": 0}) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"idle_after": "30 s"}, "idle_after= without timestamp="),
        ({"disorder": "5 s", "timestamp": "message", "bounds": "b"}, "disorder= with bounds='b'"),
        ({"idle_after": "30 s", "timestamp": "at"}, "without disorder="),
        ({"disorder": 5, "timestamp": "at"}, "does not fit the timestamp column 'at'"),
        ({"disorder": "soon", "timestamp": "at"}, "'soon'"),
        ({"idle_after": "later", "timestamp": "message"}, "'later'"),
    ],
)
def test_what_cannot_be_promised_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline) as caught:
        read.kafka("h:9092", "t", schema="at TIMESTAMP, b BOOLEAN", **arguments)
    assert words in caught.value.what


def test_the_mark_is_neither_a_column_nor_an_argument() -> None:
    said: Any = {"timestamp": "message", "idle_after": "30 s", "disorder": "1 s"}
    stream = read.kafka("h:9092", "t", schema="id INT", name="t", **said)
    assert stream.columns == ("id", "timestamp")
    shown = stream.node.source_spec.arguments()
    assert (shown["disorder"], shown["idle_after_us"]) == (S, 30 * S)
    assert shown["bounds"] == "its own"
    assert OWN not in str(shown)


# --- against a broker -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return f"bounds-{new_topic()}"


def marked(source: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    """Return rows and bound rows between two positions."""
    spans = source.spans(start, end, parallelism=1)
    return [row for span in spans for batch in source.read_marked(span) for row in batch.to_pylist()]


def settled(source: Any, start: Any, above_us: int) -> Any:
    """Return the positions at which nothing more happens, with a bound above a time."""
    end = time.monotonic() + 30
    while True:
        found = source.latest(start, bounded=False)
        if found == start and found.get(BOUND, 0) > above_us:
            return found
        assert time.monotonic() < end, found
        start = found


@pytest.mark.slow
def test_append_times_are_bounds_and_positions_say_them_again(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic, 3, message_timestamp_type="LogAppendTime")
    arguments: dict[str, Any] = {"format": "bytes", "timestamp": "message", "idle_after": "300 ms", "name": "s"}
    spec: Any = read.kafka(topics.bootstrap, topic, **arguments).node.spec
    source = spec.open("s", str(tmp_path))
    start = source.initial()
    topics.produce(topic, {0: [b"1"]})
    topics.produce(topic, {1: [b"2"]})
    topics.transaction(topic, {1: [b"aborted"]}, commits=False)
    first = source.latest(start, bounded=False)
    assert first[BOUND] <= min(row["timestamp"].timestamp() * 1e6 for row in rows_between(source, start, first)), (
        "partition 2 never had a message and holds nobody back"
    )
    rows = rows_between(source, start, first)
    stamps = sorted(row["timestamp"] for row in rows)
    assert len(stamps) == 2
    # The end of the transaction may be written after the first look: its partition is then idle later than the others.
    end = settled(source, first, above_us=round(stamps[-1].timestamp() * 1e6))
    (said,) = [row for row in marked(source, first, end) if row[OWN]]
    assert said == {**dict.fromkeys(said), "timestamp": said["timestamp"], OWN: True}
    assert said["timestamp"] > stamps[-1], "all are idle: everything is settled"
    assert OWN not in rows[0]
    assert spec.obstacle("s", str(tmp_path), end) == ""
    again = spec.open("s", str(tmp_path))
    assert again.latest(end, bounded=False) == end, "a start does not fall behind what was promised"
    assert sum(at - of_partitions(start)[each] for each, at in of_partitions(end).items()) == source.rows_between(
        start, end
    )


@pytest.mark.slow
def test_times_of_producers_are_bounds_only_where_their_disorder_is_said(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic, 1)
    topics.produce(topic, {0: [b'{"at": 70}', b'{"at": 60}', b'{"at": "x"}']}, timestamp=1_700_000_000_000)
    spec: Any = read.kafka(topics.bootstrap, topic, format="bytes", timestamp="message", idle_after="1 s").node.spec
    source = spec.open("s", str(tmp_path / "a"))
    with pytest.raises(InvalidPipeline, match=f"times of topic '{topic}' are those of producers"):
        source.latest(source.initial(), bounded=False)
    spec = read.kafka(
        topics.bootstrap, topic, schema="at BIGINT", timestamp="at", disorder=15, on_bad_row="reject"
    ).node.spec
    source = spec.open("s", str(tmp_path / "b"))
    end = source.latest(source.initial(), bounded=False)
    assert end[BOUND] == 55
    assert [row["at"] for row in marked(source, source.initial(), end)] == [70, 60, None, 55]
