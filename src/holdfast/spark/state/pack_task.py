"""A task of Spark that packs what Spark's plan computed of stage 0 (:mod:`holdfast.plan.levels.packing`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import crossing
from holdfast.plan.levels.packing import PlanPacking


@dataclass(frozen=True)
class PackTask:
    """Called by ``mapInArrow``.  Picklable.

    The order of arrival is that of Spark's partitions, which is the same in a replay.

    Parameters
    ----------
    packing : PlanPacking
        What it does.
    """

    packing: PlanPacking

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of this task."""
        context = TaskContext.get()
        assert context is not None
        with crossing():
            yield from self.packing.packed(context.partitionId(), batches)
