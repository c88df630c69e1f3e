"""What runs on executors: rows go to writers; handles come back, and a report.

A worker decides nothing.  When the JVM dies, the worker lives on and takes its cut stream for a normal end; it then
stages part of a partition.  That is harmless only because a handle counts when the *driver* received it from a
finished task; what such a worker staged is an orphan, found by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.errors import invariant
from holdfast.plan.counts import EpochReport, united
from holdfast.plan.laps import OTHER, Laps
from holdfast.plan.levels.taps import Taps, Wish
from holdfast.ports import Part, Staged, Task, Writer, WriterFactory

ANSWERS = StructType(
    [
        StructField("sink", StringType()),
        StructField("name", StringType()),
        StructField("row_count", LongType()),
        StructField("reference", StringType()),
        StructField("report", StringType()),
    ]
)
"""Schema of what tasks answer: a row is a handle, or has a report in its last column.

NB not as DDL: that would be parsed by Spark in every epoch.
"""

_HANDLES = pa.schema(
    [("sink", pa.string()), ("name", pa.string()), ("row_count", pa.int64()), ("reference", pa.string())]
)
_REPORT = pa.field("report", pa.string())


@dataclass(frozen=True)
class TaskStaging:
    """One epoch, for the tasks that stage it.  Picklable.

    Parameters
    ----------
    pipeline, generation, epoch
        For the names of what is staged.
    writers : mapping of str to WriterFactory
        For each sink that lacks the epoch.
    wish : mapping of str to int
        Of which rows somebody wants to see some (:mod:`holdfast.plan.levels.taps`).
    """

    pipeline: str
    generation: int
    epoch: int
    writers: Mapping[str, WriterFactory]
    wish: Wish = field(default_factory=dict)

    def stage(self, rows: Iterator[tuple[str, pa.RecordBatch]], laps: Laps, taps: Taps) -> pa.RecordBatch:
        """Write all rows of this task, stage them, and return the handles as one batch.

        Parameters
        ----------
        rows : iterator of (str, pa.RecordBatch)
            Sink and rows; rows for a sink that holds the epoch already are left out.
        laps : Laps
            Of this task: what writers do with rows is a lap of their sink.
        taps : Taps
            Of this task.
        """
        context = TaskContext.get()
        assert context is not None
        task = Task(self.pipeline, self.generation, self.epoch, context.partitionId(), context.taskAttemptId())
        opened: dict[str, Writer] = {}
        try:
            for sink, batch in rows:
                if sink not in self.writers:
                    continue
                taps.see(sink, (batch,))
                laps.to(sink)
                if sink not in opened:
                    opened[sink] = self.writers[sink](task)
                opened[sink].write(batch)
                laps.to(OTHER)
            staged = []
            for sink, writer in opened.items():
                laps.to(sink)
                staged.append((sink, writer.stage()))
            laps.to(OTHER)
        except BaseException:
            for writer in opened.values():
                writer.abort()
            raise
        return _to_batch(staged)


def answer_of(report: EpochReport) -> pa.RecordBatch:
    """Return a report in the form of a task's answer."""
    nothing = [pa.nulls(1, field.type) for field in _HANDLES]
    return pa.RecordBatch.from_arrays([*nothing, pa.array([report.to_json()])], schema=_HANDLES.append(_REPORT))


def answered(rows: Iterable[Any], sinks: Iterable[str]) -> tuple[dict[str, tuple[Part, ...]], EpochReport]:
    """Return the handles for each sink, and what all tasks reported, from what the tasks of a finished job answered."""
    parts: dict[str, list[Staged]] = {sink: [] for sink in sinks}
    reports: list[EpochReport] = []
    for row in rows:
        if row["report"] is not None:
            reports.append(EpochReport.from_json(row["report"]))
        else:
            invariant(row["sink"] in parts, f"a task has staged rows for {row['sink']!r}, which is not to get any.")
            parts[row["sink"]].append(Staged(row["name"], row["row_count"], json.loads(row["reference"])))
    for sink, handles in parts.items():
        _check_once(sink, [handle.name for handle in handles])
    return {sink: tuple(handles) for sink, handles in parts.items()}, united(reports)


def _check_once(sink: str, names: list[str]) -> None:
    invariant(
        len(names) == len(set(names)),
        f"tasks have staged the same part for sink {sink!r} twice.",
        why="a part has one handle: its rows would be published twice.",
        participant=sink,
        story=lambda: f"Parts: {sorted(names)}",
    )


def _to_batch(staged: list[tuple[str, Staged]]) -> pa.RecordBatch:
    columns = [
        [sink for sink, _ in staged],
        [handle.name for _, handle in staged],
        [handle.row_count for _, handle in staged],
        [json.dumps(dict(handle.reference)) for _, handle in staged],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _HANDLES, strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, pa.nulls(len(staged), _REPORT.type)], schema=_HANDLES.append(_REPORT))
