"""What runs on executors: rows go to writers, handles come back.

A worker never has the last word.  When the JVM dies, this worker lives on and sees its cut stream as a normal end; it
then stages part of a partition.  That is harmless only because a handle counts when the *driver* received it from a
finished task; what such a worker staged is an orphan, found by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast.ports import Staged, Task, Writer, WriterFactory
from holdfast.spark.routes import Routes

HANDLES = "sink string, name string, row_count long, reference string"
"""Schema of the handles, as Spark writes it."""


@dataclass(frozen=True)
class StageTask:
    """Stages the rows of one task, for each sink that lacks the epoch.  Picklable; called by ``mapInArrow``."""

    pipeline: str
    generation: int
    epoch: int
    routes: Routes
    writers: Mapping[str, WriterFactory]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write every batch, stage, and yield one batch of handles."""
        context = TaskContext.get()
        assert context is not None
        task = Task(self.pipeline, self.generation, self.epoch, context.partitionId(), context.taskAttemptId())
        opened: dict[str, Writer] = {}
        try:
            for batch in batches:
                for sink, rows in self.routes.split(batch):
                    if sink not in self.writers:
                        continue  # this sink holds the epoch already
                    if sink not in opened:
                        opened[sink] = self.writers[sink](task)
                    opened[sink].write(rows)
            staged = [(sink, writer.stage()) for sink, writer in opened.items()]
        except BaseException:
            for writer in opened.values():
                writer.abort()
            raise
        yield _to_batch(staged)


def _to_batch(staged: list[tuple[str, Staged]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "sink": pa.array([sink for sink, _ in staged], pa.string()),
            "name": pa.array([handle.name for _, handle in staged], pa.string()),
            "row_count": pa.array([handle.row_count for _, handle in staged], pa.int64()),
            "reference": pa.array([json.dumps(dict(handle.reference)) for _, handle in staged], pa.string()),
        }
    )


def handles(rows: list[Any]) -> dict[str, list[Staged]]:
    """Return the handles that the driver received, by sink."""
    received: dict[str, list[Staged]] = {}
    for row in rows:
        handle = Staged(row["name"], row["row_count"], json.loads(row["reference"]))
        received.setdefault(row["sink"], []).append(handle)
    return received
