"""How an epoch of a pipeline with state is evaluated: its chunks to the sinks, its counts to the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.checkpoint.barriers import Barriers
from holdfast.plan.chunks import COUNTS, ROWS, Chunk, decode, from_batch, in_order
from holdfast.plan.counts import Observed
from holdfast.plan.routes import Routes
from holdfast.ports import Carried
from holdfast.positions import Positions
from holdfast.resume.spark_log import heard
from holdfast.spark.evaluation import Evaluated, evaluated
from holdfast.spark.failure import is_too_large
from holdfast.spark.staging import HANDLES, TaskStaging
from holdfast.spark.state.host import BARRIER_PROPERTY, BATCH_TIME_PROPERTY, EPOCH_PROPERTY, HEARD_PROPERTY
from holdfast.types.casting import fitted


@dataclass(frozen=True)
class StateEvaluation:
    """Through the levels.  Every epoch is evaluated, also one that the sinks hold: the state must have it.

    Parameters
    ----------
    routes : Routes
        The sinks, with their schemas.
    sinks : mapping of int to str
        Target -> sink.
    observe : callable
        Returns what Spark counted at sources that it reads itself.
    barriers : Barriers, optional
        Says which epochs are barriers; told what buckets report for the checkpointer.
    """

    routes: Routes
    sinks: Mapping[int, str]
    observe: Callable[[], Mapping[str, Observed]]
    barriers: Barriers | None = None

    def begin(self, batch: DataFrame, epoch: int, batch_us: int, end: Positions) -> None:
        """Tell the steps which epoch it is, and who is silent: jobs of this thread carry it to the workers."""
        context = batch.sparkSession.sparkContext
        context.setLocalProperty(EPOCH_PROPERTY, str(epoch))
        context.setLocalProperty(BATCH_TIME_PROPERTY, str(batch_us))
        context.setLocalProperty(HEARD_PROPERTY, json.dumps(heard(end, batch_us)))
        is_barrier = self.barriers is not None and self.barriers.begin(epoch)
        context.setLocalProperty(BARRIER_PROPERTY, str(int(is_barrier)))

    def carry(self, batch: DataFrame, start: Positions, end: Positions, sinks: frozenset[str]) -> Evaluated | None:
        """Bring the chunks of a small epoch to the driver."""
        try:
            table: pa.Table = batch.toArrow()
        except Exception as error:
            if is_too_large(error):
                return None
            raise
        chunks = [chunk for part in table.to_batches() for chunk in from_batch(part)]
        schemas = dict(zip(self.routes.sinks, self.routes.schemas, strict=True))
        rows: dict[str, list[pa.Table]] = {sink: [schemas[sink].empty_table()] for sink in sinks}
        for sink, decoded in self._rows(chunks):
            if sink in rows:
                rows[sink].append(decoded)
        parts = {sink: (Carried(pa.concat_tables(several)),) for sink, several in rows.items()}
        observed, operators = counted([json.loads(bytes(c.data)) for c in chunks if c.kind == COUNTS])
        return Evaluated(parts, {**self.observe(), **observed}, self._heard(operators))

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run the levels and the writers in one job."""
        rows = batch.mapInArrow(ChunkTask(staging, self), HANDLES).collect()
        found = evaluated([row for row in rows if row["sink"]], staging, {})
        observed, operators = counted([json.loads(row["reference"]) for row in rows if not row["sink"]])
        return Evaluated(found.parts, {**self.observe(), **observed}, self._heard(operators))

    def mute(self, batch: DataFrame) -> None:
        """Evaluate an epoch for its state alone."""
        batch.mapInArrow(_nothing, HANDLES).collect()
        if self.barriers is not None:
            self.barriers.forget()

    def _heard(self, operators: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return operators if self.barriers is None else self.barriers.hear(operators)

    def __reduce__(self) -> tuple[object, ...]:
        return StateEvaluation, (self.routes, self.sinks, dict)  # workers count nothing by observing

    def _rows(self, chunks: list[Chunk]) -> Iterator[tuple[str, pa.Table]]:
        schemas = dict(zip(self.routes.sinks, self.routes.schemas, strict=True))
        for chunk in in_order([chunk for chunk in chunks if chunk.kind == ROWS]):
            sink = self.sinks[chunk.target]
            for batch in decode(chunk.data).to_batches():
                yield sink, pa.Table.from_batches([fitted(batch, schemas[sink])])

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each sink in a batch of chunks."""
        for sink, rows in self._rows(from_batch(batch)):
            for part in rows.to_batches():
                yield sink, part


@dataclass(frozen=True)
class ChunkTask:
    """One task of a staged epoch: chunks to writers.  Picklable; called by ``mapInArrow``."""

    staging: TaskStaging
    evaluation: StateEvaluation

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of all chunks; yield the handles, then the counts in the same form."""
        counts: list[str] = []
        yield self.staging.stage(self._rows(batches, counts))
        columns: list[list[object]] = [[""] * len(counts), [""] * len(counts), [0] * len(counts), list(counts)]
        kinds = [pa.string(), pa.string(), pa.int64(), pa.string()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["sink", "name", "row_count", "reference"])

    def _rows(self, batches: Iterator[pa.RecordBatch], counts: list[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in batches:
            counts += [bytes(chunk.data).decode() for chunk in from_batch(batch) if chunk.kind == COUNTS]
            yield from self.evaluation.split(batch)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def counted(found: list[dict[str, dict[str, Any]]]) -> tuple[dict[str, Observed], dict[str, dict[str, Any]]]:
    """Return what was counted at sources, and what buckets reported, from what tasks and buckets sent.

    Examples
    --------
    >>> counted([{"in": {"rows": 3, "rejects": 0, "max": 7}}, {"sums/0": {"late": 1}}, {"sums/1": {"late": 2}}])
    ({'in': Observed(rows=3, rejects=0, timestamp_max=7)}, {'sums/0': {'late': 1}, 'sums/1': {'late': 2}})
    """
    observed: dict[str, Observed] = {}
    reported: dict[str, dict[str, Any]] = {}
    for one in found:
        for name, counts in one.items():
            if "/" in name:
                reported[name] = counts
                continue
            more = Observed(counts["rows"] or 0, counts["rejects"] or 0, counts["max"])
            observed[name] = observed[name].plus(more) if name in observed else more
    return observed, reported
