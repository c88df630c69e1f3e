"""Stage 0 where Spark's plan computes it: the rows that it returns become chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import crossing
from holdfast.plan.chunks import Packer, Routing, rank_of
from holdfast.plan.routes import Routes


@dataclass(frozen=True)
class PackTask:
    """Stage 0 where Spark computes it: the tagged rows of a task become chunks.  Called by ``mapInArrow``.

    The order of arrival is that of Spark's partitions, which is the same in a replay.
    """

    routes: Routes
    routing: Routing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of this task."""
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        packer = Packer(self.routing, rank_of(0, 0, number), number)
        with crossing():
            for batch in batches:
                for target, rows in self.routes.split(batch):
                    chunks = list(packer.add(int(target), rows))
                    if chunks:
                        yield self.routing.to_batch(chunks, 1)
            chunks = list(packer.rows())
            if chunks:
                yield self.routing.to_batch(chunks, 1)
