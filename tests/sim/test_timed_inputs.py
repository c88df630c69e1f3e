"""Two and three timed inputs of unlike pace, in TIMESTAMPs, small ticks and nanoseconds: what commits, clips, seeks and
pts promise holds of every input (design/0007, design/0015)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.reading.from_time import from_time
from holdfast.graph.nodes import Stream
from holdfast.pipeline import Pipeline
from holdfast.ports import Source
from holdfast.testing import CrashAt
from holdfast.testing.drive import drive
from holdfast.testing.given import bound, close
from holdfast.testing.simulation.levels import Event
from holdfast.testing.simulation.world import PIPELINE
from tests.sim.pts_plays import CLOSED, Play, Wanted, live

pytestmark = pytest.mark.slow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Unit:
    """How times are written in a column.

    Parameters
    ----------
    type : str
        Of the column.
    first : int
        The first tick.
    step : int
        Ticks from one time of a test to the next.
    """

    type: str
    first: int
    step: int

    def at(self, number: int) -> int:
        """Return the ticks of a time."""
        return self.first + number * self.step

    def value(self, number: int) -> Any:
        """Return a time as rows hold it."""
        ticks = self.at(number)
        return ticks if self.type == "BIGINT" else _EPOCH + timedelta(microseconds=ticks)

    def text(self, number: int) -> Any:
        """Return a time as JSON holds it."""
        value = self.value(number)
        return value if isinstance(value, int) else value.isoformat()

    def span(self, count: int) -> Any:
        """Return a distance as users write it."""
        return count * self.step if self.type == "BIGINT" else f"{count * self.step} us"

    def number(self, value: Any) -> int:
        """Return the number of a time."""
        ticks = value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)
        assert (ticks - self.first) % self.step == 0, "not all digits were kept"
        return int(ticks - self.first) // self.step


UNITS = {
    "timestamp": Unit("TIMESTAMP", 1_767_225_600_000_000, 1_000_003),
    "ticks": Unit("BIGINT", -7, 1),
    "nanoseconds": Unit("BIGINT", 1_767_225_600_000_000_001, 1),
}
PACES = {"fast": (0, 1, 1), "slow": (0, 2, 5), "rare": (3, 9)}
INPUTS = {2: ("fast", "slow"), 3: ("fast", "slow", "rare")}

every_unit = pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
every_count = pytest.mark.parametrize("count", INPUTS)


def source(name: str, unit: Unit) -> Stream:
    return hf.read.rows([], schema=f"k STRING, t {unit.type}, v BIGINT", timestamp="t", name=name)


def sources(count: int, unit: Unit) -> dict[str, Stream]:
    return {name: source(name, unit) for name in INPUTS[count]}


Numbered = Sequence[tuple[str, str, int, int]]
"""(input, key, number of the time, number of the row), in the order in which they come."""


def numbered(seed: int, count: int, rows: int = 30) -> Numbered:
    """Return rows of inputs of unlike pace: one brings many of few times, others lag and leap."""
    chance = random.Random(f"{seed} {count} inputs")
    at = dict.fromkeys(INPUTS[count], 0)
    found = []
    for number in range(rows):
        name = chance.choices(INPUTS[count], (6, 2, 1)[:count])[0]
        at[name] += chance.choice(PACES[name])
        found.append((name, chance.choice("ab"), at[name], number))
    return found


def epochs(given: Numbered, count: int, unit: Unit, borders: Sequence[int] = ()) -> dict[str, list[list[Any]]]:
    """Return the rows of each input by epochs; in the last one all inputs end."""
    parts = [given[a:b] for a, b in zip([0, *sorted(borders)], [*sorted(borders), len(given)], strict=True)]
    return {
        name: [[{"k": k, "t": unit.value(t), "v": v} for of, k, t, v in part if of == name] for part in parts]
        + [[close()]]
        for name in INPUTS[count]
    }


def flat(found: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return [row for epoch in found for row in epoch]


def set_of(inputs: Mapping[str, Stream], **arguments: Any) -> Stream:
    return hf.sync(dict(inputs), by="k", timestamps="ascending", name="sets", **arguments)


# --- pts and commits --------------------------------------------------------------------------------------------------


def play(unit: Unit, count: int, seed: int) -> Play:
    """Return a pipeline that commits at pts: each input, all of them united, and what settles on all of them."""

    def pipeline() -> Pipeline:
        given = sources(count, unit)
        sets = set_of(given) | hf.select("k", "timestamp", name="times")
        both = hf.union(*given.values(), name="all")
        sinks = [stream | hf.write.memory(name=f"of_{name}") for name, stream in given.items()]
        return Pipeline(
            PIPELINE,
            *sinks,
            both | hf.write.memory(name="of_all"),
            sets | hf.write.memory(name="settled"),
            commit_at="pts",
        )

    rows = numbered(seed, count, rows=45)
    events: list[Event] = [(of, {"k": k, "t": unit.value(t), "v": v}) for of, k, t, v in rows]
    events += [(name, None) for name in INPUTS[count]]

    def those(chosen: Callable[[str], bool]) -> Wanted:
        return lambda pts: Counter((k, unit.value(t), v) for of, k, t, v in rows if chosen(of) and unit.at(t) < pts)

    def settled(pts: int) -> Counter[tuple[Any, ...]]:
        return Counter({(k, unit.value(t)) for _, k, t, _ in rows if unit.at(t) < pts})

    wanted: dict[str, Wanted] = {f"of_{name}": those(lambda of, name=name: of == name) for name in INPUTS[count]}
    return Play(pipeline, events, {**wanted, "of_all": those(lambda of: True), "settled": settled})


@every_unit
@every_count
def test_between_any_two_writes_every_sink_holds_what_lies_before_pts_of_every_input(unit: Unit, count: int) -> None:
    world, auditor = play(unit, count, seed=1).world(seed=2)
    live(world, auditor, [CrashAt(21, "after"), CrashAt(34, "before"), CrashAt(17, "after")])
    for moved in auditor.seen.values():
        assert len([pts for pts in moved if pts is not None]) > 2, "pts hardly moves: nothing is shown"


@every_unit
@every_count
def test_pts_is_the_least_time_that_may_still_come_of_any_input(unit: Unit, count: int) -> None:
    """Of each input the highest so far, of all of them the least: a commit waits for the slowest."""
    rows = numbered(3, count, rows=45)
    world, auditor = play(unit, count, seed=3).world(seed=1)
    live(world, auditor, [])
    next_time = dict.fromkeys(INPUTS[count], -(2**63))
    possible = set()
    # An input that has ended has nothing more to come.
    for name, at in [*((of, unit.at(t)) for of, _, t, _ in rows), *((name, CLOSED) for name in INPUTS[count])]:
        next_time[name] = max(next_time[name], at)
        possible.add(min(next_time.values()))
    seen = {pts for moved in auditor.seen.values() for pts in moved if pts is not None}
    assert seen <= possible
    assert len(seen) > 2


# --- settled on every input -------------------------------------------------------------------------------------------


@every_unit
@every_count
def test_a_set_comes_once_its_time_is_settled_on_every_input_and_not_before(unit: Unit, count: int) -> None:
    rows = [(name, "a", t, t) for t in range(4) for name in INPUTS[count][:-1]]
    slowest = INPUTS[count][-1]
    given = epochs(rows, count, unit)
    given = {name: [of[0], [], [], of[1]] for name, of in given.items()}
    given[slowest] = [[], [{"k": "a", "t": unit.value(1), "v": 0}], [bound(unit.at(3))], [close()]]
    found = drive(set_of(sources(count, unit)), given)
    assert [[unit.number(row["timestamp"]) for row in epoch] for epoch in found] == [[], [0], [1, 2], [3]]


@every_unit
@every_count
def test_sets_do_not_depend_on_how_inputs_are_cut_into_epochs(unit: Unit, count: int) -> None:
    rows, chance = numbered(5, count), random.Random(5)
    whole = drive(set_of(sources(count, unit)), epochs(rows, count, unit))
    for _ in range(3):
        borders = [chance.randint(0, len(rows)) for _ in range(3)]
        cut = drive(set_of(sources(count, unit)), epochs(rows, count, unit, borders), buckets=2)
        assert sorted(map(repr, flat(cut))) == sorted(map(repr, flat(whole)))
    assert {unit.number(row["timestamp"]) for row in flat(whole)} == {t for _, _, t, _ in rows}


@every_unit
@every_count
def test_within_finds_the_nearest_of_every_input_to_the_tick(unit: Unit, count: int) -> None:
    near, far = {"k": "a", "t": unit.value(12), "v": 1}, {"k": "a", "t": unit.value(13), "v": 2}
    of_fast = {"k": "a", "t": unit.value(10), "v": 0}
    given: dict[str, Any] = {name: [[near, far] if name != "fast" else [of_fast], [close()]] for name in INPUTS[count]}
    stream = hf.sync(sources(count, unit), by="k", policy=hf.policy.within(unit.span(2), base="fast"), name="sets")
    first, *others = flat(drive(stream, given))
    assert [first[name]["v"] for name in INPUTS[count]] == [0, *[1] * (count - 1)]
    assert all(row["fast"] is None for row in others)


@every_unit
@every_count
def test_each_main_row_has_the_latest_row_of_every_slower_input(unit: Unit, count: int) -> None:
    rows = numbered(6, count)
    given = sources(count, unit)
    slow = {name: stream for name, stream in given.items() if name != "fast"}
    stream = hf.merge(given["fast"], slow, by="k", timestamps="ascending", name="seen")
    found = flat(drive(stream, epochs(rows, count, unit, [8, 19])))
    assert len(found) == sum(of == "fast" for of, *_ in rows)
    for row in found:
        for name in slow:
            before = [(t, v) for of, k, t, v in rows if (of, k) == (name, row["k"]) and t <= unit.number(row["t"])]
            shown = row[name] and (unit.number(row[name]["t"]), row[name]["v"])
            assert shown == (max(before) if before else None)


# --- clip -------------------------------------------------------------------------------------------------------------


@every_unit
@every_count
def test_a_clip_keeps_of_every_input_what_lies_in_the_interval_to_the_tick(unit: Unit, count: int) -> None:
    rows = numbered(7, count)
    clipped = hf.union(*sources(count, unit).values(), name="all") | hf.clip(unit.value(4), unit.value(9), name="some")
    found = flat(drive(clipped, epochs(rows, count, unit, [9, 17])))
    assert Counter(row["v"] for row in found) == Counter(v for _, _, t, v in rows if 4 <= t < 9)


@every_unit
@every_count
def test_sets_of_clipped_inputs_are_the_clipped_sets(unit: Unit, count: int) -> None:
    """Bounds pass a clip: nothing waits for rows that it drops."""
    rows = numbered(8, count)

    def clip(name: str) -> Any:
        return hf.clip(unit.value(4), unit.value(9), name=name)

    given = sources(count, unit)
    before = set_of({name: stream | clip(f"{name}_clipped") for name, stream in given.items()})
    after = set_of(given) | clip("clipped")
    rows_of = epochs(rows, count, unit, [11])
    for name in rows_of:
        rows_of[name].insert(2, [bound(unit.at(99))])
    one, other = drive(before, rows_of), drive(after, rows_of)
    assert sorted(map(repr, flat(one))) == sorted(map(repr, flat(other))) != []
    assert one[-1] == [], "something waited for the end"


@every_unit
def test_bounds_of_one_time_column_do_not_hold_downstream_of_a_clip_by_another(unit: Unit) -> None:
    schema = f"k STRING, t {unit.type}, taken {unit.type}"
    frames = hf.read.rows([], schema=schema, timestamp="t", name="frames")
    taken = frames | hf.clip(unit.value(0), timestamp="taken", name="some")
    counted = taken | hf.aggregate(by="k", window=hf.tumbling(unit.span(5)), disorder=unit.span(99), n=hf.count())
    items: list[Any] = [{"k": "a", "t": unit.value(5), "taken": unit.value(1)}, bound(unit.at(9))]
    later = [{"k": "a", "t": unit.value(9), "taken": unit.value(2)}]
    found = drive(counted, {"frames": [items, later, [close()]]})
    assert sum(row["n"] for row in flat(found)) == 2, "a row was late"


# --- seek -------------------------------------------------------------------------------------------------------------


def files_of(work: Path, rows: Numbered, count: int, unit: Unit) -> dict[str, Stream]:
    """Write each input as files of some rows; return the sources that read them."""
    found = {}
    for name in INPUTS[count]:
        mine = [{"k": k, "t": unit.text(t), "v": v} for of, k, t, v in rows if of == name]
        (work / name).mkdir()
        for number in range(0, len(mine), 4):
            text = "".join(json.dumps(row) + "\n" for row in mine[number : number + 4])
            (work / name / f"{number:04d}.json").write_text(text)
        found[name] = hf.read.files(
            str(work / name), format="json", schema=f"k STRING, t {unit.type}, v BIGINT", timestamp="t", name=name
        )
    return found


def read_from(stream: Stream, at: int | None, workspace: Path) -> list[Any]:
    """Return what a source reads that begins at a time."""
    opened: Source = from_time(stream.node.source_spec, at).open(stream.name, str(workspace))
    start = opened.initial()
    spans = opened.spans(start, opened.latest(start, bounded=True), parallelism=1)
    return [row for span in spans for batch in opened.read(span) for row in batch.to_pylist()]


@every_unit
@every_count
def test_after_a_seek_every_input_has_all_rows_from_the_time_on_and_none_before(
    tmp_path: Path, unit: Unit, count: int
) -> None:
    rows = numbered(9, count, rows=60)
    for name, stream in files_of(tmp_path, rows, count, unit).items():
        found = read_from(stream, unit.at(8), tmp_path / f"{name}_work")
        assert [row["v"] for row in found] == [v for of, _, t, v in rows if of == name and t >= 8]
        assert {unit.number(row["t"]) for row in found} == {t for of, _, t, _ in rows if of == name and t >= 8}


@every_unit
@every_count
def test_sets_after_a_seek_are_those_of_the_whole_run_from_the_time_on(tmp_path: Path, unit: Unit, count: int) -> None:
    """To seek to pts and go on is to have run through: the promise that recovery by seeking rests on."""
    rows = numbered(10, count, rows=60)
    files = files_of(tmp_path, rows, count, unit)
    whole, sought = (
        drive(
            set_of(sources(count, unit)),
            {name: [read_from(stream, at, tmp_path / f"{name}_{at}"), [close()]] for name, stream in files.items()},
        )
        for at in (None, unit.at(8))
    )
    wanted = [row for row in flat(whole) if unit.number(row["timestamp"]) >= 8]
    assert sorted(map(repr, flat(sought))) == sorted(map(repr, wanted)) != []
