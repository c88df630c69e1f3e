"""Rows that are sent to the driver inside the tasks' handles: for sinks that live in the driver's process.

Nothing is stored anywhere else, so there are no orphans: rows whose handle is lost are lost with it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.errors import Corrupt
from holdfast.ports import Publication, Staged, Task
from holdfast.types.casting import declared, fitted_table


@dataclass(frozen=True)
class HandleWriterFactory:
    """Makes writers whose rows are sent to the driver inside the handle: for sinks that live there.

    Parameters
    ----------
    schema : pyarrow.Schema
        Columns of the rows.
    row_limit : int, optional
        Rows that are sent; all are counted.
    """

    schema: pa.Schema
    row_limit: int | None = None

    def __call__(self, task: Task) -> HandleWriter:
        """Open a writer for one attempt of one task."""
        return HandleWriter(self, task)


class HandleWriter:
    """Writes one task's rows into its handle; see :class:`holdfast.ports.Writer`."""

    def __init__(self, factory: HandleWriterFactory, task: Task) -> None:
        self._factory = factory
        self._task = task
        self._batches: list[pa.RecordBatch] = []
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        is_first = not self._row_count
        limit = self._factory.row_limit
        room = batch.num_rows if limit is None else max(0, limit - self._row_count)
        if min(room, batch.num_rows):
            self._batches.append(declared(batch.slice(0, room), self._factory.schema))
        self._row_count += batch.num_rows
        if is_first and self._row_count:
            faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Return the handle, rows inside."""
        if not self._batches:
            return Staged(self._task.name, self._row_count)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self._factory.schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        return Staged(self._task.name, self._row_count, {"arrow": base64.b64encode(buffer.getvalue()).decode()})

    def abort(self) -> None:
        """Drop everything written."""
        self._batches.clear()


def check_carried(publication: Publication, schema: pa.Schema) -> None:
    """See that carried rows fit a schema; those in handles were made to fit by their writers."""
    for part in publication.parts:
        if not isinstance(part, Staged):
            fitted_table(part.rows, schema)


def batches_of(publication: Publication, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the rows of one epoch, from its handles and its carried parts."""
    batches: list[pa.RecordBatch] = []
    for part in publication.parts:
        if not isinstance(part, Staged):
            batches += fitted_table(part.rows, schema).to_batches()
        elif "arrow" in part.reference:
            batches += [declared(batch, schema) for batch in _decode(part)]
        elif part.row_count:
            raise Corrupt(
                f"The handle {part.name} counts {part.row_count} rows and holds none.",
                why="rows of this sink travel in their handle.",
                do="start again: an undecided epoch is staged again.",
            )
    return batches


def _decode(part: Staged) -> list[pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(base64.b64decode(part.reference["arrow"])) as stream:
            return list(stream)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"The rows in the handle {part.name} are damaged.",
            why=str(error),
            do="start again: an undecided epoch is staged again.",
        ) from error
