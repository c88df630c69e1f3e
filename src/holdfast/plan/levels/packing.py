"""Stage 0 of a pipeline with state: rows become chunks, in the worker that read them or behind Spark's plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.spark_log import CONTROLS
from holdfast.connectors.reading.bounds import MarkedSource
from holdfast.errors import present
from holdfast.operators.stateful.gate_step import GateStep
from holdfast.plan.bounds import Bounding, all_keys
from holdfast.plan.chunks import Chunk, Packer, Routing, rank_of
from holdfast.plan.counts import Counts
from holdfast.plan.laps import READING, Laps
from holdfast.plan.levels.taps import Taps
from holdfast.plan.program import Program
from holdfast.plan.routes import Routes
from holdfast.plan.stages import BOUND_ROWS, RowBounds, Stages
from holdfast.ports import Source, Span
from holdfast.state.step import CLOSED, UNBOUNDED
from holdfast.state.timeline import shifted


@dataclass(frozen=True)
class Packing:
    """What the reader of one source needs to deliver chunks instead of rows.  Picklable.

    Parameters
    ----------
    source : str
        The source.
    number : int
        Its number among the sources.
    program : Program, optional
        Stage 0; None where Spark's plan computes it, and this source only delivers control chunks.
    routing : Routing
        Where chunks go.
    timestamp : str, optional
        The source's timestamp column, for the counts.
    closing : mapping of str to tuple of int
        Source -> targets that receive its end.
    waking : tuple of int
        Targets that are called in every epoch.
    tick_us : int, optional
        Time without any epoch after which one without rows is planned; None: never.
    bounding : Bounding, optional
        How bound rows are read, where the source has any.
    row_bounds : RowBounds, optional
        The inputs that its rows give bounds to.
    """

    source: str
    number: int
    program: Program | None
    routing: Routing
    timestamp: str | None
    closing: Mapping[str, tuple[int, ...]]
    waking: tuple[int, ...]
    tick_us: int | None = None
    bounding: Bounding | None = None
    row_bounds: RowBounds | None = None

    def read(self, source: Source, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span, with its bound rows where the source has any."""
        if self.bounding is not None and isinstance(source, MarkedSource):
            yield from source.read_marked(span)
        else:
            yield from source.read(span)

    def rows(
        self, ordinal: int, batches: Iterator[pa.RecordBatch], laps: Laps | None = None, taps: Taps | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of one span; where it has no laps of its thread's, it reports its own."""
        assert self.program is not None
        packer = Packer(self.routing, rank_of(0, self.number, ordinal), ordinal)
        counts = Counts({self.source: self.timestamp}, laps, taps)
        pending: list[pa.RecordBatch] = []
        highest = UNBOUNDED
        for batch in counts.laps.during(self.source, batches):
            for rows, bounds in [(batch, None)] if self.bounding is None else self.bounding.cut(batch):
                if self.bounding is not None and pending and self.bounding.lowest(rows) < highest:
                    yield from self._bounds(packer, pending)
                    pending, highest = [], UNBOUNDED
                counts.laps.to(self.source)
                counts.add(self.source, rows)
                for target, made in self.program.run(self.source, rows, counts):
                    yield from packer.add(int(target), made)
                if self.bounding is not None and bounds is not None and bounds.num_rows:
                    pending.append(bounds)
                    highest = max(highest, self.bounding.highest(bounds))
        yield from self._bounds(packer, pending)
        yield from self._bounds_of_rows(packer, counts)
        if counts.found:
            report = counts.report()
            report = report if laps is not None else replace(report, waves={READING: counts.laps.take()})
            yield packer.report("", report)

    def controls(self, ordinal: int, ended: Sequence[str]) -> Iterator[Chunk]:
        """Yield the control chunks of one epoch: the end of sources, and calls of steps that depend on batch time."""
        packer = Packer(self.routing, rank_of(0, self.number, ordinal), ordinal)
        buckets = range(self.routing.buckets)
        yield from [packer.wake(target, bucket) for target in self.waking for bucket in buckets]
        for source in ended:
            for target in self.closing[source]:
                bounds = all_keys(self.routing.targets[target].key, CLOSED)
                yield from [packer.bounds(target, bucket, source, bounds) for bucket in buckets]

    def _bounds(self, packer: Packer, pending: Sequence[pa.RecordBatch]) -> list[Chunk]:
        """Return what the packer holds, then the bounds."""
        chunks = list(packer.rows())
        for target in self.bounding.targets if self.bounding is not None and pending else ():
            assert self.bounding is not None
            key = self.routing.targets[target.number].key
            for bucket, bounds in self.bounding.for_target(pending, target, key, self.routing.buckets):
                packed = packer.placed if target.is_direct else packer.bounds
                chunks.append(packed(target.number, bucket, self.source, bounds))
        return chunks

    def _bounds_of_rows(self, packer: Packer, counts: Counts) -> list[Chunk]:
        """Return the bounds that the rows of a span give for later epochs: they follow all rows of this one."""
        seen = counts.found.get(self.source)
        if self.row_bounds is None or seen is None or seen.timestamp_max is None:
            return []
        latest = np.array([seen.timestamp_max], np.int64)
        return [
            packer.bounds(target, bucket, self.source, all_keys(self.routing.targets[target].key, int(bound)))
            for target, offset in self.row_bounds.targets
            for bound in shifted(latest, offset)
            for bucket in range(self.routing.buckets)
        ]


def packings(stages: Stages, timestamps: Mapping[str, str | None], *, tick_us: int | None = None) -> dict[str, Packing]:
    """Return the packing of each source.

    Parameters
    ----------
    stages : Stages
        The pipeline; its stage 0 is evaluated in Arrow.
    timestamps : mapping of str to str, optional
        Source -> its timestamp column.
    tick_us : int, optional
        The first source plans epochs when nothing arrives, this long after the last one at the earliest; None: none.
    """
    program = present(stages.stages[0].program, "stage 0 is evaluated by Spark, and was to give chunks.")
    return {
        name: Packing(
            name,
            number,
            program,
            stages.routing,
            timestamp,
            {name: stages.closing[name]},
            stages.waking,
            tick_us if number == 0 else None,
            stages.bounding.get(name),
            stages.row_bounds.get(name),
        )
        for number, (name, timestamp) in enumerate(timestamps.items())
    }


@dataclass(frozen=True)
class SourceClock:
    """The branch of a source's timestamps, for a commit at pts.  Picklable.

    Parameters
    ----------
    source : str
        The source.
    by_rows : bool
        Whether its rows give bounds; else its bound rows do, and these rows are not used.
    row_bounds : RowBounds, optional
        The bounds that they give besides, to operators other than the gate.
    """

    source: str
    by_rows: bool
    row_bounds: RowBounds | None

    def chunks(self, latest: int, packer: Packer, routing: Routing) -> Iterator[Chunk]:
        """Yield the bounds for later epochs that follow from the highest timestamp of a task."""
        if self.row_bounds is None:
            return
        for target, offset in self.row_bounds.targets:
            bound = int(shifted(np.array([latest], np.int64), offset)[0])
            bounds = all_keys(routing.targets[target].key, bound)
            for bucket in range(routing.buckets):
                yield packer.bounds(target, bucket, self.source, bounds)


@dataclass(frozen=True)
class PlanPacking:
    """Stage 0 where Spark's plan computes it: the tagged rows of a task become chunks.  Picklable.

    Spark's plan has only rows.  So the bound rows of a source, and the timestamps that a commit at pts needs, are
    branches of the plan beside the operators, and become here what a source's own reader makes of them otherwise
    (:class:`Packing`).  Their order relative to rows is lost: they follow all rows of the epoch.

    The order of arrival is that of Spark's partitions, which is the same in a replay.

    Parameters
    ----------
    routes : Routes
        How to tell the ends of the plan apart.
    routing : Routing
        Where chunks go.
    bounding : mapping of str to Bounding
        Source -> how its bound rows are read, where an operator uses them.
    clocks : mapping of int to SourceClock
        Target -> the source whose timestamps are its rows.
    """

    routes: Routes
    routing: Routing
    bounding: Mapping[str, Bounding] = field(default_factory=dict)
    clocks: Mapping[int, SourceClock] = field(default_factory=dict)

    def packed(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of the task of a number."""
        packer = Packer(self.routing, rank_of(0, 0, number), number)
        bounds: dict[str, list[pa.RecordBatch]] = {}
        latest: dict[int, pa.RecordBatch] = {}
        for batch in batches:
            for target, rows in self.routes.split(batch):
                if target.startswith(BOUND_ROWS):
                    bounds.setdefault(target.removeprefix(BOUND_ROWS), []).append(rows)
                elif int(target) in self.clocks:
                    _note_latest(latest, int(target), rows)
                elif chunks := list(packer.add(int(target), rows)):
                    yield self.routing.to_batch(chunks, 1)
        if chunks := [*packer.rows(), *self._bounds(packer, bounds, latest)]:
            yield self.routing.to_batch(chunks, 1)

    def _bounds(
        self, packer: Packer, bounds: Mapping[str, list[pa.RecordBatch]], latest: Mapping[int, pa.RecordBatch]
    ) -> Iterator[Chunk]:
        """Yield the bounds of this task."""
        for target, row in latest.items():
            clock = self.clocks[target]
            if clock.by_rows:
                yield from packer.add(target, row)
                yield from clock.chunks(int(row.column(0).cast(pa.int64())[0].as_py()), packer, self.routing)
        yield from packer.rows()
        for source, rows in bounds.items():
            if source not in self.bounding:
                continue
            bounding = self.bounding[source]
            for batch in rows:
                bounding.check(batch)
            for to in bounding.targets:
                for bucket, found in bounding.for_target(
                    rows, to, self.routing.targets[to.number].key, self.routing.buckets
                ):
                    yield packer.bounds(to.number, bucket, source, found)


def _note_latest(latest: dict[int, pa.RecordBatch], target: int, rows: pa.RecordBatch) -> None:
    """Keep, of a branch of timestamps, the row with the latest."""
    known = latest.get(target)
    table = pa.Table.from_batches([rows] if known is None else [known, rows])
    ticks = table.column(0).cast(pa.int64())
    highest = pc.max(ticks)
    if highest.is_valid:
        found = table.filter(pc.equal(ticks, highest)).slice(0, 1).combine_chunks()
        latest[target] = found.to_batches()[0]


def control_packing(stages: Stages, number: int, *, tick_us: int | None = None) -> Packing:
    """Return the packing of the source of control chunks that stands beside Spark's plan of stage 0.

    Parameters
    ----------
    stages : Stages
        The pipeline.
    number : int
        That of the source: behind all others.
    tick_us : int, optional
        As for :func:`packings`.
    """
    return Packing(CONTROLS, number, None, stages.routing, None, stages.closing, stages.waking, tick_us)


def plan_packing(stages: Stages, routes: Routes) -> PlanPacking:
    """Return the packing of rows behind Spark's plan of stage 0.

    Parameters
    ----------
    stages : Stages
        The pipeline.
    routes : Routes
        How to tell the ends of Spark's plan apart.
    """
    return PlanPacking(routes, stages.routing, stages.bounding, _clocks_of(stages))


def _clocks_of(stages: Stages) -> dict[int, SourceClock]:
    """Return the branches of sources' timestamps, where a pipeline commits at pts: target -> whose they are."""
    hosted = [one for stage in stages.stages for one in stage.hosted.values()]
    return {
        one.targets[name]: SourceClock(name, clock.by_rows, stages.row_bounds.get(name))
        for one in hosted
        if isinstance(one.step, GateStep)
        for name, clock in one.step.clocks.items()
        if name in stages.closing  # a source, not an operator
    }
