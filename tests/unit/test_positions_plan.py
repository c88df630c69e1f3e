"""The plan of a recovery against a naive model: random histories of segments, seals, sinks that lag, and losses.

The model knows every row: which source and position it came from, which segment of which sink it belongs to, and where
it is durable.  After each loss the sources are read again from ``plan(held).seek``, and every row that the plan does
not filter out is delivered.  Then each sink has each row once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from holdfast.positions import Holding, Positions, covers_all, plan

HISTORIES = 2_000
NIGHTLY_HISTORIES = 100_000
SEGMENTS = ("day=mo", "day=tu", "day=we", "day=th")
SOURCES = (("a", "log"), ("a", "other"), ("b", "log"))

Row = tuple[str, str, int]
"""Source, its segment, position."""


@dataclass
class Table:
    """A sink that holds everything up to the end of an epoch, perhaps an earlier one than the others."""

    rows: list[Row] = field(default_factory=list)
    held: Positions = field(default_factory=dict)

    def take(self, rows: list[Row], start: Positions, end: Positions, chance: random.Random) -> None:
        self.rows += rows
        self.held = end

    def lose(self, chance: random.Random) -> None:
        """A backup of an earlier epoch is restored."""

    def holding(self) -> Holding:
        return Holding(self.held)


@dataclass
class LaggingTable(Table):
    """One that gets its rows later, or goes back."""

    epochs: list[tuple[int, Positions]] = field(default_factory=list)

    def take(self, rows: list[Row], start: Positions, end: Positions, chance: random.Random) -> None:
        super().take(rows, start, end, chance)
        self.epochs.append((len(self.rows), end))

    def lose(self, chance: random.Random) -> None:
        keep = chance.randrange(len(self.epochs) + 1)
        self.epochs = self.epochs[:keep]
        count, self.held = self.epochs[-1] if self.epochs else (0, {})
        del self.rows[count:]


@dataclass
class Segments:
    """A sink whose segments seal at their own pace; what grows is lost with the process.

    It saves what the reference says: at a seal the segment's position, and for what grows the position where it began.
    """

    rows: list[Row] = field(default_factory=list)
    growing: dict[str, list[Row]] = field(default_factory=dict)
    began: dict[str, Positions] = field(default_factory=dict)
    held: Positions = field(default_factory=dict)

    def take(self, rows: list[Row], start: Positions, end: Positions, chance: random.Random) -> None:
        for row in rows:
            segment = segment_of(row)
            self.began.setdefault(segment, start)
            self.growing.setdefault(segment, []).append(row)
        self.held = end
        for segment in list(self.growing):
            if chance.random() < 0.3:
                self.rows += self.growing.pop(segment)
                del self.began[segment]

    def lose(self, chance: random.Random) -> None:
        self.growing.clear()

    def holding(self) -> Holding:
        is_lost = not self.growing
        return Holding(self.held, dict(self.began) if is_lost else {})


def segment_of(row: Row) -> str:
    """Return the segment that a row belongs to: a function of the row, as a partition column is."""
    return SEGMENTS[(row[2] * 7 + len(row[1])) % 5 % len(SEGMENTS)]


class History:
    """One pipeline: its epochs so far, and its sinks."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ends: list[Positions] = [{}]
        self.sinks: dict[str, Table | Segments] = {"days": Segments(), "table": Table(), "old": LaggingTable()}
        if self.chance.random() < 0.3:
            self.sinks["more days"] = Segments()

    def run(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            for _ in range(self.chance.randrange(6)):
                self.epoch()
            self.lose_and_recover()

    def epoch(self) -> None:
        start = self.ends[-1]
        end = {source: dict(of) for source, of in start.items()}
        for source, segment in SOURCES:
            if count := self.chance.randrange(4):  # a segment that has no row yet has no position
                of = end.setdefault(source, {})
                of[segment] = int(of.get(segment, 0)) + count
        self.ends.append(end)
        rows = list(rows_between(start, end))
        for sink in self.sinks.values():
            sink.take(rows, start, end, self.chance)

    def lose_and_recover(self) -> None:
        now = self.ends[-1]
        for name in self.chance.sample(sorted(self.sinks), self.chance.randrange(1, len(self.sinks) + 1)):
            self.sinks[name].lose(self.chance)
        held = {name: sink.holding() for name, sink in self.sinks.items()}
        found = plan(held)
        assert covers_all(now, found.seek)
        self.check_nothing_is_read_in_vain(held, found.seek)
        for name, sink in self.sinks.items():
            for row in rows_between(found.seek, now):
                holding = found.filters.get(name)
                segment = segment_of(row)
                if holding is not None and holding.has(segment, *row):
                    continue
                if isinstance(sink, Table):
                    sink.rows.append(row)
                else:
                    assert segment in sink.began, "a row of a segment that does not grow is never lacking"
                    sink.growing.setdefault(segment, []).append(row)
            sink.held = now
            if isinstance(sink, LaggingTable):
                sink.epochs = [(len(sink.rows), now)]
            self.check(sink)

    def check(self, sink: Table | Segments) -> None:
        found = list(sink.rows)
        if isinstance(sink, Segments):
            found += [row for rows in sink.growing.values() for row in rows]
        assert sorted(found) == sorted(rows_between({}, self.ends[-1]))

    def check_nothing_is_read_in_vain(self, held: dict[str, Holding], seek: Positions) -> None:
        """Where reading begins, some sink or segment stands: with ends of one sequence of epochs there is one."""
        every = [positions for each in held.values() for positions in (each.positions, *each.segments.values())]
        assert any(positions == seek for positions in every)


def rows_between(start: Positions, end: Positions) -> Iterator[Row]:
    for source, of in end.items():
        for segment, until in of.items():
            since = start.get(source, {}).get(segment, 0)
            assert isinstance(since, int)
            assert isinstance(until, int)
            for position in range(since, until):
                yield source, segment, position


def check(seeds: range) -> None:
    for seed in seeds:
        try:
            History(seed).run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
def test_after_any_loss_every_sink_and_segment_gets_what_it_lacks_once() -> None:
    """design/0016, "Positions"."""
    check(range(HISTORIES))


@pytest.mark.nightly
@pytest.mark.slow
def test_after_any_loss_in_a_hundred_thousand_histories() -> None:
    check(range(NIGHTLY_HISTORIES))


def test_the_example_of_the_reference() -> None:
    """Three segments at p1 < p2 < p3: seek p1; filter s3 up to p3, s2 up to p2, and nothing of s1."""
    at = {n: {"channel": {"": n}} for n in (10, 20, 30)}
    found = plan({"segments": Holding(at[30], {"s1": at[10], "s2": at[20]})})
    assert found.seek == at[10]
    dropped = {s: [p for p in range(10, 40) if found.filters["segments"].has(s, "channel", "", p)] for s in SHORT}
    assert dropped == {"s1": [], "s2": list(range(10, 20)), "s3": list(range(10, 30))}


SHORT = ("s1", "s2", "s3")


def test_where_all_stand_at_one_place_nothing_is_filtered() -> None:
    at = {"a": {"log": 5}}
    found = plan({"one": Holding(at), "two": Holding(at, {"s": at})})
    assert (found.seek, found.filters) == (at, {})


def test_a_source_that_a_sink_has_never_seen_is_read_from_its_beginning_and_filtered_for_the_others() -> None:
    found = plan({"old": Holding({"a": {"log": 5}}), "new": Holding({"a": {"log": 7}, "b": {"log": 3}})})
    assert found.seek == {"a": {"log": 5}}
    assert found.filters["new"].has("", "b", "log", 2)
    assert "old" not in found.filters


def test_opaque_positions_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be ordered"):
        plan({"one": Holding({"k": {"": "{1}"}}), "two": Holding({"k": {"": "{2}"}})})
    assert plan({"one": Holding({"k": {"": "{1}"}}), "two": Holding({"k": {"": "{1}"}})}).filters == {}


class Counting(dict[str, object]):
    """Positions that count how often anybody looks at them."""

    looked = 0

    def __getitem__(self, key: str) -> object:
        Counting.looked += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Counting.looked += 1
        return super().__contains__(key)

    def __eq__(self, other: object) -> bool:
        Counting.looked += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_a_plan_looks_at_each_segment_a_fixed_number_of_times() -> None:
    """design/0016, "Positions"."""
    looked = []
    for count in (1000, 4000):
        Counting.looked = 0
        segments = {f"s{n}": Counting({"channel": {"": n % 7}}) for n in range(count)}
        plan({"segments": Holding({"channel": {"": 9}}, segments)})  # type: ignore[arg-type]
        looked.append(Counting.looked)
    assert looked[1] <= 4 * looked[0]
    assert looked[0] <= 4 * 1000
