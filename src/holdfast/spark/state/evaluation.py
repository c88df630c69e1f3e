"""How an epoch of a pipeline with state is evaluated: its chunks to the sinks, its reports to the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.checkpoint.barriers import Barriers
from holdfast.errors import crossing
from holdfast.plan.chunks import from_batch, reported
from holdfast.plan.counts import EpochReport, Observed, united
from holdfast.plan.levels.outlets import Outlets
from holdfast.ports import Carried
from holdfast.positions import Positions
from holdfast.resume.spark_log import active_until
from holdfast.spark.evaluation import Evaluated
from holdfast.spark.failure import is_too_large
from holdfast.spark.staging import ANSWERS, TaskStaging, answer_of, answered
from holdfast.spark.state.host import ACTIVE_UNTIL_PROPERTY, BARRIER_PROPERTY, BATCH_TIME_PROPERTY, EPOCH_PROPERTY


@dataclass(frozen=True)
class StateEvaluation:
    """Through the levels.  Every epoch is evaluated, also one that the sinks hold: the state needs it.

    Parameters
    ----------
    outlets : Outlets
        The sinks.
    observe : callable
        Returns what Spark counted at sources that it reads itself.
    barriers : Barriers, optional
        Decides which epochs are barriers; receives what buckets report for the checkpointer.
    """

    outlets: Outlets
    observe: Callable[[], Mapping[str, Observed]]
    barriers: Barriers | None = None

    def begin(self, batch: DataFrame, epoch: int, batch_us: int, end: Positions) -> None:
        """Pass the epoch and the active sources to the steps: as properties of this thread's jobs."""
        context = batch.sparkSession.sparkContext
        context.setLocalProperty(EPOCH_PROPERTY, str(epoch))
        context.setLocalProperty(BATCH_TIME_PROPERTY, str(batch_us))
        context.setLocalProperty(ACTIVE_UNTIL_PROPERTY, json.dumps(active_until(end, batch_us)))
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
        parts = {sink: (Carried(rows),) for sink, rows in self.outlets.tables(chunks, sinks).items()}
        return Evaluated(parts, self._reported(united(reported(chunks))))

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run the levels and the writers in one job."""
        task = ChunkTask(staging, self.outlets)
        parts, report = answered(batch.mapInArrow(task, ANSWERS).collect(), staging.writers)
        return Evaluated(parts, self._reported(report))

    def mute(self, batch: DataFrame) -> None:
        """Evaluate an epoch for its state alone."""
        batch.mapInArrow(_nothing, ANSWERS).collect()
        if self.barriers is not None:
            self.barriers.forget()

    def _reported(self, report: EpochReport) -> EpochReport:
        """Add Spark's counts; take out what is for the checkpointer."""
        buckets = report.buckets if self.barriers is None else self.barriers.take(report.buckets)
        return EpochReport({**self.observe(), **report.observed}, buckets)


@dataclass(frozen=True)
class ChunkTask:
    """One task of a staged epoch: chunks to writers.  Picklable; called by ``mapInArrow``."""

    staging: TaskStaging
    outlets: Outlets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of all chunks; yield the handles, then what the chunks report."""
        reports: list[EpochReport] = []
        with crossing():
            yield self.staging.stage(self._rows(batches, reports))
        yield answer_of(united(reports))

    def _rows(
        self, batches: Iterator[pa.RecordBatch], reports: list[EpochReport]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in batches:
            chunks = from_batch(batch)
            reports += reported(chunks)
            yield from self.outlets.rows(chunks)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()
