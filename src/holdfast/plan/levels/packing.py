"""Stage 0 of a pipeline with state: rows of a source become chunks before they leave the worker that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import present
from holdfast.plan.bounds import Bounding, all_keys
from holdfast.plan.chunks import Chunk, Packer, Routing, rank_of
from holdfast.plan.counts import Counts
from holdfast.plan.program import Program
from holdfast.plan.stages import RowBounds, Stages
from holdfast.ports import Source, Span
from holdfast.sources.bounds import MarkedSource
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

    def rows(self, ordinal: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of one span."""
        assert self.program is not None
        packer = Packer(self.routing, rank_of(0, self.number, ordinal), ordinal)
        counts = Counts({self.source: self.timestamp})
        pending: list[pa.RecordBatch] = []
        highest = UNBOUNDED
        for batch in batches:
            for rows, bounds in [(batch, None)] if self.bounding is None else self.bounding.cut(batch):
                if self.bounding is not None and pending and self.bounding.lowest(rows) < highest:
                    yield from self._sent(self._bounds(packer, pending))
                    pending, highest = [], UNBOUNDED
                counts.add(self.source, rows)
                for target, made in self.program.run(self.source, rows, counts.passed):
                    yield from self._sent(list(packer.add(int(target), made)))
                if self.bounding is not None and bounds is not None and bounds.num_rows:
                    pending.append(bounds)
                    highest = max(highest, self.bounding.highest(bounds))
        yield from self._sent(self._bounds(packer, pending))
        yield from self._sent(self._bounds_of_rows(packer, counts))
        if counts.found:
            yield from self._sent([packer.report("", counts.report())])

    def controls(self, ordinal: int, ended: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the control chunks of one epoch: the end of sources, and calls of steps that depend on batch time."""
        packer = Packer(self.routing, rank_of(0, self.number, ordinal), ordinal)
        buckets = range(self.routing.buckets)
        chunks = [packer.wake(target, bucket) for target in self.waking for bucket in buckets]
        for source in ended:
            for target in self.closing[source]:
                bounds = all_keys(self.routing.targets[target].key, CLOSED)
                chunks += [packer.bounds(target, bucket, source, bounds) for bucket in buckets]
        yield from self._sent(chunks)

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
            for bound in shifted(latest, offset - self.row_bounds.disorder)
            for bucket in range(self.routing.buckets)
        ]

    def _sent(self, chunks: Sequence[Chunk]) -> Iterator[pa.RecordBatch]:
        if chunks:
            yield self.routing.to_batch(chunks, 1)


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
