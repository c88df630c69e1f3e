"""``commit_at="pts"`` under crashes: whoever looks, each sink holds exactly what lies before its pts (design/0015).

The auditor is an outside reader: it looks at every sink between any two durable writes of the driver and of the state
stores.  What must be there follows from the whole input and from the pts in the sink's ledger alone.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.graph.pipeline import Pipeline
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, simulated_sink
from holdfast.testing.simulation.levels import Event, StatefulWorkload
from holdfast.testing.simulation.world import PIPELINE, SinkUnderTest

CLOSED = 2**63 - 1
NANOSECOND = 1_767_225_600_000_000_000
"""BIGINT ticks of nanoseconds: beyond what a double keeps apart."""

Rows = Sequence[Sequence[Any]]
Wanted = Callable[[int], Counter[tuple[Any, ...]]]
"""pts -> the rows that a sink holds then."""


def source(name: str) -> Stream:
    return hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name=name)


def two_paces(chance: random.Random, count: int = 26, first: int = NANOSECOND) -> list[Event]:
    """Return the events of two sources: one brings many rows of few times, the other lags and leaps; then both end."""
    at = {"fast": first, "slow": first}
    events: list[Event] = []
    for number in range(count):
        name = "fast" if chance.random() < 0.75 else "slow"
        at[name] += chance.choice((0, 0, 1) if name == "fast" else (0, 3))
        events.append((name, {"k": chance.choice("ab"), "t": at[name], "v": number}))
    return [*events, ("fast", None), ("slow", None)]


@dataclass
class Auditor:
    """Looks at the sinks from outside, as often as it is let; notes what breaks the promise."""

    sinks: Sequence[SinkUnderTest]
    wanted: Mapping[str, Wanted]
    problems: list[str] = field(default_factory=list)
    seen: dict[str, list[int | None]] = field(default_factory=dict)

    def look(self, where: str) -> None:
        """Compare what each sink shows with what lies before the pts of its ledger."""
        for sink in self.sinks:
            assert sink.target is not None
            ledger = sink.target.ledger.get((PIPELINE, sink.name))
            pts = None if ledger is None or ledger.record is None else ledger.record.pts
            at = self.seen.setdefault(sink.name, [])
            if not at or at[-1] != pts:
                at.append(pts)
            shown = Counter(tuple(row) for row in sink.rows())
            wanted = Counter() if pts is None else self.wanted[sink.name](pts)
            # Prepared rows become visible piece by piece behind the ledger row (no real sink is prepared in a group).
            is_whole = not (ledger is not None and ledger.in_progress)
            if shown != wanted if is_whole else shown - wanted:
                self.problems.append(
                    f"{where}: {sink.name} at pts {pts} lacks {wanted - shown} and has {shown - wanted}"
                )


@dataclass
class Ledgers:
    """Notes how the ledger of each sink moves: (epoch, pts)."""

    sinks: Sequence[SinkUnderTest]
    moves: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)

    def look(self, where: str) -> None:
        for sink in self.sinks:
            assert sink.target is not None
            row = sink.target.ledger.get((PIPELINE, sink.name))
            moves = self.moves.setdefault(sink.name, [])
            if row is not None and row.record is not None and (not moves or moves[-1][0] != row.epoch):
                moves.append((row.epoch, row.record.pts))


@dataclass
class Play:
    """A pipeline, its input, and what its sinks must hold."""

    pipeline: Callable[[], Pipeline]
    events: list[Event]
    wanted: Mapping[str, Wanted]
    ways: Sequence[str] = ("transaction", "prepared")

    def world(
        self, seed: int, *, commit_every: int | None = None, max_rows_per_epoch: int = 5
    ) -> tuple[World, Auditor]:
        sinks = [
            simulated_sink(name, way=way)  # type: ignore[arg-type]
            for name, way in zip(self.wanted, itertools.cycle(self.ways), strict=False)
        ]
        auditor = Auditor(sinks, self.wanted)
        work = StatefulWorkload(self.pipeline(), self.events, self._judge, buckets=2, partitions=2, failure_rate=0.05)
        load = Load(
            row_count=len(self.events), epoch_rows_max=max_rows_per_epoch, carried_share=0.5, task_failure_rate=0.05
        )
        setting = Setting(load, commit_thread=seed % 2 == 1, commit_every_ticks=commit_every, commit_at_pts=True)
        return World(sinks, seed=seed, setting=setting, workload=work), auditor

    def _judge(self, visible: Mapping[str, Rows]) -> list[str]:
        found = {name: Counter(tuple(row) for row in rows) for name, rows in visible.items()}
        return [f"{name} is not whole" for name, of in self.wanted.items() if found[name] != of(CLOSED)]


def plain() -> Play:
    """Two sources, a sink for each, and one that takes some of both."""

    def pipeline() -> Pipeline:
        fast, slow = source("fast"), source("slow")
        both = hf.union(fast, slow, name="both") | hf.filter("k = 'a'", name="some")
        return hf.Pipeline(
            PIPELINE,
            fast | hf.write.memory(name="of_fast"),
            slow | hf.write.memory(name="of_slow"),
            both | hf.write.memory(name="of_both"),
            commit_at="pts",
        )

    events = two_paces(random.Random(3))
    rows = [(name, row) for name, row in events if row is not None]

    def those(chosen: Callable[[str, Mapping[str, Any]], bool]) -> Wanted:
        return lambda pts: Counter(tuple(row.values()) for name, row in rows if chosen(name, row) and row["t"] < pts)

    wanted = {
        "of_fast": those(lambda name, row: name == "fast"),
        "of_slow": those(lambda name, row: name == "slow"),
        "of_both": those(lambda name, row: row["k"] == "a"),
    }
    return Play(pipeline, events, wanted)


def windows() -> Play:
    """An aggregate and a sync of the two sources: pts waits for what they keep."""

    def pipeline() -> Pipeline:
        fast, slow = source("fast"), source("slow")
        counted = fast | hf.aggregate(by="k", window=hf.tumbling(4), n=hf.count(), name="counted")
        sets = hf.sync({"fast": fast, "slow": slow}, by="k", timestamps="ascending", name="sets")
        return hf.Pipeline(
            PIPELINE,
            counted | hf.select("k", "window_start", "n", name="told") | hf.write.memory(name="counts"),
            sets | hf.select("k", "timestamp", name="times") | hf.write.memory(name="settled"),
            slow | hf.write.memory(name="of_slow"),
            commit_at="pts",
        )

    events = two_paces(random.Random(5), first=0)
    rows = [(name, row) for name, row in events if row is not None]

    def counts(pts: int) -> Counter[tuple[Any, ...]]:
        of = Counter((row["k"], row["t"] // 4 * 4) for name, row in rows if name == "fast")
        return Counter((key, start, n) for (key, start), n in of.items() if start < pts)

    wanted: dict[str, Wanted] = {
        "counts": counts,
        "settled": lambda pts: Counter({(row["k"], row["t"]) for _, row in rows if row["t"] < pts}),
        "of_slow": lambda pts: Counter(tuple(row.values()) for name, row in rows if name == "slow" and row["t"] < pts),
    }
    return Play(pipeline, events, wanted)


def back(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give odd rows two ticks back: as far as ``timestamp_offset`` says."""
    moved = pc.subtract(batch.column("t"), pc.multiply(pc.bit_wise_and(batch.column("v"), 1), 2))
    return batch.set_column(1, batch.schema.field(1), moved)


def told(key: str, rows: list[Any], state: Any) -> list[dict[str, Any]]:
    return [{"k": key, "t": row["t"] - row["v"] % 2, "v": row["v"]} for row in rows]


def promised() -> Play:
    """Functions of the user that go back in time, and say how far: before sinks, and before an aggregate."""

    def pipeline() -> Pipeline:
        fast, slow = source("fast"), source("slow")
        schema = "k STRING, t BIGINT, v BIGINT"
        moved = fast | hf.map_batches(back, schema, timestamp_offset=-2, name="moved")
        own = slow | hf.apply(
            told, by="k", state="n BIGINT", schema=schema, timestamp="t", timestamp_offset=-1, name="own"
        )
        counted = own | hf.aggregate(by="k", window=hf.tumbling(4), disorder=4, n=hf.count(), name="counted")
        return hf.Pipeline(
            PIPELINE,
            moved | hf.write.memory(name="of_moved"),
            own | hf.write.memory(name="of_own"),
            counted | hf.select("k", "window_start", "n", name="told") | hf.write.memory(name="counts"),
            commit_at="pts",
        )

    events = two_paces(random.Random(3), first=100)
    rows = [(name, row) for name, row in events if row is not None]
    of_moved = [(row["k"], row["t"] - row["v"] % 2 * 2, row["v"]) for name, row in rows if name == "fast"]
    of_own = [(row["k"], row["t"] - row["v"] % 2, row["v"]) for name, row in rows if name == "slow"]
    of_windows = Counter((key, time // 4 * 4) for key, time, _ in of_own)
    wanted: dict[str, Wanted] = {
        "of_moved": lambda pts: Counter(row for row in of_moved if row[1] < pts),
        "of_own": lambda pts: Counter(row for row in of_own if row[1] < pts),
        "counts": lambda pts: Counter((key, start, n) for (key, start), n in of_windows.items() if start < pts),
    }
    return Play(pipeline, events, wanted)


PLAYS = {"plain": plain, "windows": windows, "promised": promised}


def live(world: World, auditor: Auditor, crashes: Sequence[CrashAt]) -> list[bool]:
    """Run to the end through crashes; the auditor looks before every durable write, and in the end.

    Returns for each crash whether the driver lived to meet it.
    """
    deaths = []
    for crash in [*crashes, None]:
        try:
            with world.life(crash, on_write=auditor.look) as life:
                life.run()
            deaths.append(False)
        except SimulatedCrash as death:
            deaths.append(True)
            auditor.look(str(death))
            world.lose_power()
    world.finish()
    auditor.look("the end")
    assert not auditor.problems, f"{crashes}: {auditor.problems[0]}"
    problems = world.audit()
    assert not problems, f"{crashes}: {problems}"
    return deaths[:-1]


def places(stride: int = 1) -> Iterator[CrashAt]:
    for number in range(1, 100_000, stride):
        yield CrashAt(number, "before")
        yield CrashAt(number, "after")


@pytest.mark.parametrize("play", PLAYS)
def test_between_any_two_writes_each_sink_holds_exactly_what_lies_before_its_pts(play: str) -> None:
    for seed in range(6):
        world, auditor = PLAYS[play]().world(seed)
        live(world, auditor, [])
        for moved in auditor.seen.values():
            known = [pts for pts in moved if pts is not None]
            assert len(known) > 2, "pts hardly moves: nothing is shown"
            assert known == sorted(set(known)), "pts falls"
            assert known[-1] == CLOSED


@pytest.mark.slow
@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.nightly)], ids=["everyday", "whole"])
def test_a_crash_at_every_write_leaves_each_sink_at_its_pts(play: str, stride: int) -> None:
    count = 0
    for crash in places(stride):
        world, auditor = PLAYS[play]().world(seed=crash.n % 4)
        if live(world, auditor, [crash]) == [False] and crash.when == "after":
            break
        count += 1
    assert count * stride > 100, "hardly any place to die"


@pytest.mark.slow
@pytest.mark.parametrize("play", ["plain", "windows", pytest.param("promised", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("first", "second"), [(61, 37), pytest.param(1, 1, marks=pytest.mark.nightly)], ids=["everyday", "whole"]
)
def test_every_pair_of_crashes_leaves_each_sink_at_its_pts(play: str, first: int, second: int) -> None:
    for crash in places(first):
        for again in places(second):
            world, auditor = PLAYS[play]().world(seed=crash.n % 4)
            first_met, again_met = live(world, auditor, [crash, again])
            if not (first_met and again_met) and again.when == "after":
                break
        if not first_met and crash.when == "after":
            break


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_rows_per_epoch_never_cuts_between_rows_of_one_timestamp(most: int) -> None:
    """Epochs end between them, commits do not: whoever looks sees all rows of a time or none."""
    play = plain()
    times = Counter(row["t"] for _, row in play.events if row is not None)
    assert max(times.values()) > 3, "no time has more rows than an epoch"
    world, auditor = play.world(most, max_rows_per_epoch=most)
    live(world, auditor, [CrashAt(15, "after")])


def test_nothing_is_published_while_pts_stands_still() -> None:
    """A commit happens only when pts has changed: a sink's ledger moves with its pts and at no other time."""
    for seed in range(8):
        world, auditor = plain().world(seed)
        noted = Ledgers(auditor.sinks)
        with world.life(on_write=noted.look) as life:
            life.run()
        for sink, moves in noted.moves.items():
            assert len({pts for _, pts in moves}) == len(moves), f"seed {seed}: {sink} was published twice at one pts"


def test_with_commit_every_pts_moves_in_steps_and_the_promise_holds() -> None:
    world, auditor = windows().world(4, commit_every=6)
    live(world, auditor, [CrashAt(25, "after"), CrashAt(40, "before")])
    without = windows().world(4)
    live(*without, [])
    assert len(auditor.seen["counts"]) < len(without[1].seen["counts"])
