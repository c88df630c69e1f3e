"""Pipelines with ``commit_at="pts"``, what their sources give, and an auditor that looks at the sinks from outside.

What a sink must hold follows from the whole input and from the pts in the sink's ledger alone (design/0015).
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

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.pipeline import Pipeline
from holdfast.ports import Store
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, simulated_sink
from holdfast.testing.simulation.levels import Event, StatefulWorkload
from holdfast.testing.simulation.world import PIPELINE, SinkUnderTest
from holdfast.testing.stand_in import StandIn

CLOSED = 2**63 - 1
NANOSECOND = 1_767_225_600_000_000_000
"""BIGINT ticks of nanoseconds: beyond what a double keeps apart."""

Rows = Sequence[Sequence[Any]]
Wanted = Callable[[int], Counter[tuple[Any, ...]]]
"""pts -> the rows that a sink holds then."""


def source(name: str) -> Stream:
    """Return a source."""
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


@dataclass(frozen=True)
class Shown:
    """What a sink shows at a moment.

    Parameters
    ----------
    pts : int, optional
        That of its ledger; None before it has one.
    rows : sequence
        What any reader sees.
    is_whole : bool
        Whether rows that are missing are a problem, too.
    """

    pts: int | None
    rows: Rows
    is_whole: bool = True


View = Callable[[], Shown]
"""Looks at a sink from outside."""


@dataclass
class Auditor:
    """Looks at the sinks from outside, as often as it is let; notes what breaks the promise."""

    views: Mapping[str, View]
    wanted: Mapping[str, Wanted]
    problems: list[str] = field(default_factory=list)
    seen: dict[str, list[int | None]] = field(default_factory=dict)

    def look(self, where: str) -> None:
        """Compare what each sink shows with what lies before the pts of its ledger."""
        for sink, view in self.views.items():
            now = view()
            at = self.seen.setdefault(sink, [])
            if not at or at[-1] != now.pts:
                at.append(now.pts)
            shown = Counter(tuple(row) for row in now.rows)
            wanted = Counter() if now.pts is None else self.wanted[sink](now.pts)
            if shown != wanted if now.is_whole else shown - wanted:
                self.problems.append(
                    f"{where}: {sink} at pts {now.pts} lacks {wanted - shown} and has {shown - wanted}"
                )


def simulated_view(sink: SinkUnderTest) -> View:
    """Return how a simulated sink is looked at."""

    def look() -> Shown:
        assert sink.target is not None
        ledger = sink.target.ledger.get((PIPELINE, sink.name))
        pts = None if ledger is None or ledger.record is None else ledger.record.pts
        # Prepared rows become visible piece by piece behind the ledger row (no real sink is prepared in a group).
        return Shown(pts, sink.rows(), not (ledger is not None and ledger.in_progress))

    return look


@dataclass
class Play:
    """A pipeline, its input, and what its sinks must hold."""

    pipeline: Callable[[], Pipeline]
    events: list[Event]
    wanted: Mapping[str, Wanted]
    ways: Sequence[str] = ("transaction", "prepared")
    stand_ins: Mapping[str, StandIn] = field(default_factory=dict)

    def world(
        self, seed: int, *, commit_every: int | None = None, max_rows_per_epoch: int = 5
    ) -> tuple[World, Auditor]:
        """Return a new world with simulated sinks, and who looks at them."""
        sinks = [
            simulated_sink(name, way=way)  # type: ignore[arg-type]
            for name, way in zip(self.wanted, itertools.cycle(self.ways), strict=False)
        ]
        views = {sink.name: simulated_view(sink) for sink in sinks}
        return self.world_of(sinks, views, seed, commit_every=commit_every, max_rows_per_epoch=max_rows_per_epoch)

    def world_of(
        self,
        sinks: Sequence[SinkUnderTest],
        views: Mapping[str, View],
        seed: int,
        *,
        commit_every: int | None = None,
        max_rows_per_epoch: int = 5,
        carried_share: float = 0.5,
        store: Store | None = None,
    ) -> tuple[World, Auditor]:
        """Return a new world, and who looks at its sinks."""
        work = StatefulWorkload(
            self.pipeline(),
            self.events,
            self._judge,
            buckets=2,
            partitions=2,
            failure_rate=0.05,
            stand_ins=self.stand_ins,
        )
        load = Load(
            row_count=len(self.events),
            epoch_rows_max=max_rows_per_epoch,
            carried_share=carried_share,
            task_failure_rate=0.05,
        )
        setting = Setting(load, commit_thread=seed % 2 == 1, commit_every_ticks=commit_every, commit_at_pts=True)
        return World(sinks, seed=seed, setting=setting, store=store, workload=work), Auditor(views, self.wanted)

    def _judge(self, visible: Mapping[str, Rows]) -> list[str]:
        found = {name: Counter(tuple(row) for row in rows) for name, rows in visible.items()}
        return [f"{name} is not whole" for name, of in self.wanted.items() if found[name] != of(CLOSED)]


def plain(count: int = 26) -> Play:
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

    events = two_paces(random.Random(3), count)
    rows = [(name, row) for name, row in events if row is not None]

    def those(chosen: Callable[[str, Mapping[str, Any]], bool]) -> Wanted:
        return lambda pts: Counter(tuple(row.values()) for name, row in rows if chosen(name, row) and row["t"] < pts)

    wanted = {
        "of_fast": those(lambda name, row: name == "fast"),
        "of_slow": those(lambda name, row: name == "slow"),
        "of_both": those(lambda name, row: row["k"] == "a"),
    }
    return Play(pipeline, events, wanted)


def windows(count: int = 26, *, through_spark: bool = False) -> Play:
    """An aggregate and a sync of the two sources: pts waits for what they keep."""
    columns = ["k", "window_start", "n"]
    of_spark = StandIn(lambda batch: batch.select(columns), lambda schema: pa.schema(map(schema.field, columns)))

    def pipeline() -> Pipeline:
        fast, slow = source("fast"), source("slow")
        chosen = hf.select(*columns, name="told")
        if through_spark:
            chosen = hf.sql("select k, window_start, abs(n) as n from input", name="told")
        counted = fast | hf.aggregate(by="k", window=hf.tumbling(4), n=hf.count(), name="counted")
        sets = hf.sync({"fast": fast, "slow": slow}, by="k", timestamps="ascending", name="sets")
        return hf.Pipeline(
            PIPELINE,
            counted | chosen | hf.write.memory(name="counts"),
            sets | hf.select("k", "timestamp", name="times") | hf.write.memory(name="settled"),
            slow | hf.write.memory(name="of_slow"),
            commit_at="pts",
        )

    events = two_paces(random.Random(5), count, first=0)
    rows = [(name, row) for name, row in events if row is not None]

    def counts(pts: int) -> Counter[tuple[Any, ...]]:
        of = Counter((row["k"], row["t"] // 4 * 4) for name, row in rows if name == "fast")
        return Counter((key, start, n) for (key, start), n in of.items() if start < pts)

    wanted: dict[str, Wanted] = {
        "counts": counts,
        "settled": lambda pts: Counter({(row["k"], row["t"]) for _, row in rows if row["t"] < pts}),
        "of_slow": lambda pts: Counter(tuple(row.values()) for name, row in rows if name == "slow" and row["t"] < pts),
    }
    return Play(pipeline, events, wanted, stand_ins={"told": of_spark})


def back(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give odd rows two ticks back: as far as ``timestamp_offset`` says."""
    moved = pc.subtract(batch.column("t"), pc.multiply(pc.bit_wise_and(batch.column("v"), 1), 2))
    return batch.set_column(1, batch.schema.field(1), moved)


def told(key: str, rows: list[Any], state: Any) -> list[dict[str, Any]]:
    """Give odd rows a tick back."""
    return [{"k": key, "t": row["t"] - row["v"] % 2, "v": row["v"]} for row in rows]


def promised(count: int = 26) -> Play:
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

    events = two_paces(random.Random(3), count, first=100)
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


def live(world: World, auditor: Auditor, crashes: Sequence[CrashAt], *, looks_from: int = 0) -> list[bool]:
    """Run to the end through crashes; the auditor looks before every durable write, and in the end.

    ``looks_from``: the first life in which it looks before every write.
    Returns for each crash whether the driver lived to meet it.
    """
    deaths = []
    for number, crash in enumerate([*crashes, None]):
        try:
            with world.life(crash, on_write=auditor.look if number >= looks_from else None) as life:
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
    """Yield every so many places to die, each before and after the write."""
    for number in range(1, 100_000, stride):
        yield CrashAt(number, "before")
        yield CrashAt(number, "after")


def pairs(first: int = 1, second: int = 1) -> Iterator[tuple[CrashAt, Iterator[tuple[CrashAt, int]]]]:
    """Yield a first place to die with all second ones; with each, from which life on there is something new to see.

    The first life is the same whatever comes behind it.
    """
    for crash in distinct_places(first):
        yield crash, ((again, int(number > 0)) for number, again in enumerate(distinct_places(second)))


def distinct_places(stride: int = 1) -> Iterator[CrashAt]:
    """Yield places to die that leave unlike worlds: before a write is behind the one that comes before it."""
    yield CrashAt(1, "before")
    for number in range(1, 100_000, stride):
        yield CrashAt(number, "after")
