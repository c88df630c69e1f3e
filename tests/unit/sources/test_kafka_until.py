"""``read.kafka`` from a time on and up to a time: exactly its rows, whatever the order of times (design/0038, 10)."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.clock import SystemClock
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source import source as planning
from holdfast.connectors.kafka.source.cluster import Cluster
from holdfast.connectors.kafka.topics import Selection
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.parts import part_of
from holdfast.connectors.reading.rounds_log import UNIT, own_positions
from holdfast.connectors.reading.until import has_passed, up_to
from holdfast.errors import InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.ports import Source
from holdfast.positions import SegmentSet, SourcePositions, lag_between
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.division import positions_of_part
from tests.everyday import everyday
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

BASE_MS = 1_700_000_000_000
PARTITIONS = 3
Row = tuple[int, int]
"""Number and time of a message."""


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


class World:
    """A topic whose messages have times in any order, and a source of it."""

    def __init__(self, topics: Topics, topic: str, work: Path, way: str, **arguments: Any) -> None:
        self.topics, self.topic, self.work, self.way = topics, topic, str(work), way
        self.rows: list[Row] = []
        topics.create(topic, PARTITIONS)
        given = {"schema": "id BIGINT, t BIGINT", "name": "rows", **arguments}
        stream = read.kafka(topics.bootstrap, topic, timestamp="message" if way == "message" else "t", **given)
        self.spec: Any = stream.node.spec

    def send(self, *times: int, partition: int = 0, is_aborted: bool = False) -> None:
        """Append a message for each time."""
        for t in times:
            row = (len(self.rows), t)
            payload = {partition: [json.dumps({"id": row[0], "t": t}).encode()]}
            if is_aborted:
                self.topics.transaction(self.topic, payload, commits=False)
                continue
            # The message's own time is another one where a column of the payload says it.
            self.topics.produce(self.topic, payload, timestamp=BASE_MS + (t if self.way == "message" else 100 - t))
            self.rows.append(row)

    def settle(self) -> None:
        """Return when the end of each transaction is marked: brokers do that later."""
        cluster = Cluster(Brokers(self.topics.bootstrap, {}, "test"), "test")
        parts = cluster.partitions(Selection((self.topic,))).values()
        while cluster.ends(parts, committed=True) != cluster.ends(parts, committed=False):
            time.sleep(0.01)

    def told(self, t: int | None) -> int | None:
        """Return a time as a run is told it."""
        return t if t is None or self.way != "message" else (BASE_MS + t) * 1000

    def run(self, until: int | None, at: int | None = None, spec: Any = None) -> Run:
        return Run(self, from_time(up_to(spec or self.spec, self.told(until)), self.told(at)))


class Run:
    """A run of a source: positions are planned, and rows read, each epoch by a source that was opened anew."""

    def __init__(self, world: World, spec: Any) -> None:
        self.world, self.spec = world, spec
        self.source: Source = spec.open("rows", world.work)
        self.rows: list[Row] = []
        self.epochs: list[tuple[SourcePositions, SourcePositions, list[Row]]] = []

    def step(self, start: SourcePositions, limit: ReadLimit | None = None) -> SourcePositions:
        end = self.source.latest(start, bounded=False, limit=limit)
        if end != start:
            rows = read_between(self.spec.open("rows", self.world.work), start, end)
            self.rows += rows
            self.epochs.append((start, end, rows))
        return end

    def finish(self, start: SourcePositions) -> SourcePositions:
        while (end := self.step(start)) != start:
            start = end
        return start


def read_between(source: Source, start: SourcePositions, end: SourcePositions) -> list[Row]:
    spans = source.spans(start, end, parallelism=2)
    rows = [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]
    return [(row["id"], row["t"]) for row in rows if row["id"] is not None]


def below(rows: Sequence[Row], until: int | None, at: int | None = None) -> list[Row]:
    return sorted(row for row in rows if (until is None or row[1] < until) and (at is None or row[1] >= at))


@pytest.fixture(params=["message", "column"])
def world(request: Any, topics: Topics, new_topic: Callable[[], str], tmp_path: Path) -> World:
    return World(topics, f"until-{new_topic()}", tmp_path / "work", request.param)


def test_rows_whose_times_go_back_are_read_and_rows_before_them_that_are_above_are_owed(world: World) -> None:
    world.send(5, 12, 7, 15, 3)
    world.send(20, 4, partition=1)
    first = world.run(10)
    at = first.finish(first.source.initial())
    assert has_passed(first.source, at)
    assert sorted(first.rows) == below(world.rows, 10)
    assert sorted(own_positions(at).values()) == [0, 2, 5], "a position shows the offset that is read next"
    second = world.run(16)
    at = second.finish(at)
    assert has_passed(second.source, at)
    assert sorted([*first.rows, *second.rows]) == below(world.rows, 16)
    rest = world.run(None)
    at = rest.finish(at)
    assert sorted([*first.rows, *second.rows, *rest.rows]) == world.rows
    world.send(1, 30)
    more = world.run(None)
    more.finish(at)
    assert sorted(more.rows) == world.rows[-2:]


def test_a_run_ends_where_the_partitions_ended_when_it_began(world: World) -> None:
    """Also if it was killed: with the same time it goes on to the same end; the next run has what came later."""
    world.send(5, 12, 7)
    first = world.run(10)
    begun = first.source.initial()
    middle = first.step(begun, ReadLimit(1, 1))
    world.send(6, 13)
    world.send(2, partition=2)
    again = world.run(10)
    at = again.finish(middle)
    assert has_passed(again.source, at)
    assert sorted([*first.rows, *again.rows]) == [(0, 5), (2, 7)]
    once_more = world.run(10)
    assert once_more.finish(at) == at
    assert has_passed(once_more.source, at)
    later = world.run(11)
    later.finish(at)
    assert sorted(later.rows) == [(3, 6), (5, 2)]


@pytest.mark.parametrize("seed", everyday(map(str, range(24)), ["0", "1", "2"]))
@pytest.mark.parametrize("world", ["message", "column"], indirect=True)
def test_whatever_comes_each_run_has_exactly_the_rows_below_its_time(world: World, seed: str) -> None:
    """The model: what was there when a run began that ended, and is below its time, is there, once."""
    chance = random.Random(f"{seed} {world.way}")
    rows: list[Row] = []
    epochs: list[Any] = []
    times: set[int] = set()
    at: SourcePositions | None = None
    start_time = chance.choice([None, None, 4])
    for _ in range(chance.randint(1, 5)):
        for partition in range(PARTITIONS):
            world.send(*(chance.randint(0, 20) for _ in range(chance.randint(0, 4))), partition=partition)
            if chance.random() < 0.2:
                world.send(chance.randint(0, 20), partition=partition, is_aborted=True)
        world.settle()
        until = chance.choice([None, chance.randint(1, 22), chance.randint(1, 22)])
        known = len(world.rows)
        run = world.run(until, start_time)
        at = run.source.initial() if at is None else at
        if chance.random() < 0.4:  # killed, after a plan that nobody has logged
            for _ in range(chance.randint(0, 3)):
                at = run.step(at, ReadLimit(chance.randint(1, 3), 1 << 20))
            run.source.latest(at, bounded=False)
        else:
            at = run.finish(at)
            assert until is None or has_passed(run.source, at)
            if until not in times:
                assert set(below(world.rows[:known], until, start_time)) <= {*rows, *run.rows}
        assert sorted(run.rows) == below(run.rows, until, start_time)
        times |= set() if until is None else {until}
        rows += run.rows
        epochs += run.epochs
        assert len(rows) == len({*rows}), "no row twice"
    assert at is not None
    last = world.run(None, start_time)
    at = last.finish(at)
    assert sorted([*rows, *last.rows]) == below(world.rows, None, start_time)
    for start, end, found in epochs:
        again = world.run(chance.choice([None, 7]), start_time)
        assert sorted(read_between(again.source, start, end)) == sorted(found), "a replay gives the same rows"


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_a_start_at_a_time_begins_with_the_first_message_at_or_after_it(world: World) -> None:
    world.send(1, 2, 9, 3, 8)
    world.send(2, partition=1)
    run = world.run(9, at=3)
    start = run.source.initial()
    assert sorted(start.values()) == [0, 1, 2]
    at = run.finish(start)
    assert run.rows == [(3, 3), (4, 8)]
    rest = world.run(None, at=3)
    rest.finish(at)
    assert rest.rows == [(2, 9)]


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_before_the_first_message_at_or_above_the_time_nothing_is_owed(world: World) -> None:
    """The cluster says which one that is; so a run behind another one reads little again."""
    world.send(*range(10), 50, 4)
    run = world.run(20)
    at = run.finish(run.source.initial())
    rest = world.run(None)
    end = rest.source.latest(at, bounded=False)
    assert rest.source.rows_between(at, end) == 2
    assert read_between(rest.source, at, end) == [(10, 50)]


def test_where_disorder_is_declared_a_partition_is_not_read_to_its_end(
    topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    world = World(topics, f"until-{new_topic()}", tmp_path, "message", disorder="5 ms")
    world.send(1, 9, 12, 8, 16, 14, 30, 31)
    run = world.run(10)
    at = run.finish(run.source.initial())
    assert has_passed(run.source, at)
    assert run.rows == [(0, 1), (1, 9), (3, 8)]
    assert max(own_positions(at).values()) == 4, "16 is 5 ms above 11: nothing below the time follows"
    assert int(at["@bound"]) <= (BASE_MS + 10) * 1000, "rows from there on are owed"
    rest = world.run(None)
    rest.finish(at)
    assert sorted([*run.rows, *rest.rows]) == world.rows


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_a_time_that_lies_ahead_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [(BASE_MS + 5) * 1000]
    monkeypatch.setattr(SystemClock, "now_us", lambda _: now[0])
    world.send(1, 2)
    run = world.run(10)
    at = run.finish(run.source.initial())
    assert not has_passed(run.source, at)
    world.send(3, 12)
    at = run.finish(at)
    assert not has_passed(run.source, at)
    now[0] = (BASE_MS + 10) * 1000
    world.send(9)
    at = run.finish(at)
    assert has_passed(run.source, at)
    assert run.rows == [(0, 1), (1, 2), (2, 3), (4, 9)]


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_of_a_partition_that_appears_while_an_epoch_is_planned_no_row_above_the_time_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appears when the rounds are logged, and before the source is asked where the epoch ends."""
    monkeypatch.setattr(planning, "LOOK_S", 0.0)
    monkeypatch.setattr(SystemClock, "now_us", lambda _: (BASE_MS + 5) * 1000)
    asked = planning.KafkaSource.limits

    def limits(*arguments: Any) -> Any:
        found = asked(*arguments)
        if len(world.rows) == 1:
            world.topics.grow(world.topic, PARTITIONS + 1)
            world.send(3, 12, partition=PARTITIONS)
        return found

    world.send(1)
    world.settle()
    monkeypatch.setattr(planning.KafkaSource, "limits", limits)
    run = world.run(10)
    at = run.step(run.source.initial())
    assert run.rows == [(0, 1), (1, 3)]
    assert sum(int(of) > UNIT for of in at.values()) == 2, "both partitions are in their rounds"
    rest = world.run(None)
    rest.finish(at)
    assert rest.rows == [(2, 12)]


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_the_log_comes_back_from_the_sinks_or_is_missed(world: World, tmp_path: Path) -> None:
    world.send(5, 12, 7)
    run = world.run(10)
    at = run.finish(run.source.initial())
    assert world.spec.obstacle("rows", world.work, at) == ""
    told = world.spec.explanations("rows", world.work, 0)
    shutil.rmtree(world.work)
    assert "has no round 1" in world.spec.obstacle("rows", world.work, at)
    world.spec.restore("rows", world.work, told)
    assert world.spec.obstacle("rows", world.work, at) == ""
    rest = world.run(None)
    rest.finish(at)
    assert rest.rows == [(1, 12)]


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_what_is_owed_must_stay_in_the_topic(world: World) -> None:
    world.send(5, 12, 7)
    run = world.run(10)
    at = run.finish(run.source.initial())
    world.topics.drop_before(world.topic, 0, 2)
    assert "messages 1 to 1 are gone" in world.spec.obstacle("rows", world.work, at)


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_lag_and_the_offsets_of_a_group_are_the_offsets(world: World) -> None:
    world.send(5, 12, 7)
    run = world.run(10)
    at = run.finish(run.source.initial())
    assert any(int(of) > UNIT for of in at.values())
    assert [(each.position, each.end) for each in world.spec.lags("rows", at)] == [(3, 3), (0, 0), (0, 0)]
    assert run.source.newest() == at, "nothing is left for this run"
    world.send(8, 20)
    assert lag_between(at, world.run(None).source.newest()) in (0, 2), "as a run says that has just begun"
    rest = world.run(None)
    lags = []
    while (end := rest.step(at, ReadLimit(1, 1 << 20))) != at:
        at = end
        lags.append(lag_between(at, rest.source.newest()))
    assert lags == [3, 2, 1, 0], "two offsets are read again, and two are new"


def test_rows_are_owed_by_the_timestamp_that_they_were_left_by(world: World) -> None:
    world.send(5, 12)
    run = world.run(10)
    at = run.finish(run.source.initial())
    other = read.kafka(world.topics.bootstrap, world.topic, schema="id BIGINT, t BIGINT", timestamp="id", name="rows")
    spec: Any = other.node.spec
    with pytest.raises(InvalidPipeline, match="owes rows by the timestamp"):
        spec.open("rows", world.work).latest(at, bounded=False)


@pytest.mark.parametrize("world", ["column"], indirect=True)
def test_parts_owe_what_they_have_read_and_others_take_it_over(world: World) -> None:
    for partition in range(PARTITIONS):
        world.send(5, 12, 7, 15, partition=partition)
    known = sorted(world.spec.segments("rows", world.work))

    def parts(named: int) -> list[SegmentSet]:
        names = frozenset({known[named]})
        return [SegmentSet(names), SegmentSet(names, is_rest=True)]

    positions: list[SourcePositions] = [{}, {}]
    rows: list[Row] = []
    for number, until in enumerate((10, 13, None)):
        sets = parts(number)
        found = []
        for of in sets:
            run = world.run(until, spec=part_of(world.spec, of))
            start = {**run.source.initial(), **positions_of_part(positions, known, of)}
            found.append(run.finish(start))
            assert until is None or has_passed(run.source, found[-1])
            rows += run.rows
        positions = found
        assert sorted(rows) == below(world.rows, until)


def test_a_time_without_a_message_ends_at_once(world: World) -> None:
    run = world.run(10)
    at = run.finish(run.source.initial())
    assert has_passed(run.source, at)
    assert run.rows == []
