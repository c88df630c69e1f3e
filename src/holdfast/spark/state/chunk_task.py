"""What the last tasks of a job make of chunks: rows to writers, reports to the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import crossing
from holdfast.plan.chunks import from_batch, reported
from holdfast.plan.counting.counts import EpochReport, united
from holdfast.plan.levels.outlets import Outlets
from holdfast.spark.staging import TaskStaging, answer_of


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


def reports_alone(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what chunks report, and none of their rows."""
    with crossing():
        yield answer_of(united(report for batch in batches for report in reported(from_batch(batch))))
