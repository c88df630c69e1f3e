"""What runs on executors: rows go to writers, handles come back.

A worker never has the last word.  When the JVM dies, this worker lives on and sees its cut stream as a normal end; it
then stages part of a partition.  That is harmless only because a handle counts when the *driver* received it from a
finished task; what such a worker staged is an orphan, found by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.ports import Staged, Task, Writer, WriterFactory

HANDLES = StructType(
    [
        StructField("sink", StringType()),
        StructField("name", StringType()),
        StructField("row_count", LongType()),
        StructField("reference", StringType()),
    ]
)
"""Schema of the handles.  NB not as DDL: Spark would be asked in every epoch what it means."""


@dataclass(frozen=True)
class TaskStaging:
    """One epoch as the tasks that stage it see it.  Picklable.

    Parameters
    ----------
    pipeline, generation, epoch
        For the names of what is staged.
    writers : mapping of str to WriterFactory
        For each sink that lacks the epoch.
    """

    pipeline: str
    generation: int
    epoch: int
    writers: Mapping[str, WriterFactory]

    def stage(self, rows: Iterator[tuple[str, pa.RecordBatch]]) -> pa.RecordBatch:
        """Write all rows of this task, stage them, and return the handles as one batch.

        Parameters
        ----------
        rows : iterator of (str, pa.RecordBatch)
            Sink and rows; rows for a sink that holds the epoch already are left out.
        """
        context = TaskContext.get()
        assert context is not None
        task = Task(self.pipeline, self.generation, self.epoch, context.partitionId(), context.taskAttemptId())
        opened: dict[str, Writer] = {}
        try:
            for sink, batch in rows:
                if sink not in self.writers:
                    continue
                if sink not in opened:
                    opened[sink] = self.writers[sink](task)
                opened[sink].write(batch)
            staged = [(sink, writer.stage()) for sink, writer in opened.items()]
        except BaseException:
            for writer in opened.values():
                writer.abort()
            raise
        return _to_batch(staged)


def _to_batch(staged: list[tuple[str, Staged]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "sink": pa.array([sink for sink, _ in staged], pa.string()),
            "name": pa.array([handle.name for _, handle in staged], pa.string()),
            "row_count": pa.array([handle.row_count for _, handle in staged], pa.int64()),
            "reference": pa.array([json.dumps(dict(handle.reference)) for _, handle in staged], pa.string()),
        }
    )
