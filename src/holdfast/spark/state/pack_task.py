"""Stage 0 where Spark's plan computes it: the rows that it returns become chunks, and the bounds of sources with them.

Spark's plan has only rows.  So the bound rows of a source, and the timestamps that a commit at pts needs, are branches
of the plan beside the operators, and become here what a source's own reader makes of them otherwise
(:mod:`holdfast.plan.levels.packing`).  Their order relative to rows is lost: they follow all rows of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.errors import crossing
from holdfast.plan.bounds import Bounding, all_keys
from holdfast.plan.chunks import Chunk, Packer, Routing, rank_of
from holdfast.plan.routes import Routes
from holdfast.plan.stages import BOUND_ROWS, RowBounds
from holdfast.state.timeline import shifted


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
            bound = int(shifted(np.array([latest], np.int64), offset - self.row_bounds.disorder)[0])
            bounds = all_keys(routing.targets[target].key, bound)
            for bucket in range(routing.buckets):
                yield packer.bounds(target, bucket, self.source, bounds)


@dataclass(frozen=True)
class PackTask:
    """Stage 0 where Spark computes it: the tagged rows of a task become chunks.  Called by ``mapInArrow``.

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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of this task."""
        context = TaskContext.get()
        assert context is not None
        with crossing():
            yield from self.packed(context.partitionId(), batches)

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
