"""Rows with commands, as tasks stage them in PostgreSQL: unread, as Arrow blobs in a staging table of the task's own.

Which columns a row has, its commands say; and these a task does not know that tasks before it were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit import refusals, sql
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.postgres.session import Connection
from holdfast.connectors.postgres.staging import PostgresWriter, PostgresWriterFactory, tables_of
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.types import TableColumn
from holdfast.ports import Staged, Task

BLOB_BYTES = 4 * 2**20
"""Of rows in one blob, about."""

BLOBS_AT_ONCE = 8
"""That the driver reads: so many it has in memory."""

_SCHEMA = pa.schema([("place", pa.int64()), ("rows", pa.binary())])
_COLUMNS = (
    TableColumn("place", "bigint", "bigint", "int8", "N", -1, True, False, False, None),
    TableColumn("rows", "bytea", "pg_catalog.bytea", "bytea", "U", -1, True, False, False, None),
)


def blob_table(table: PostgresTable) -> PostgresTable:
    """Return what staging tables beside a target are made from, to hold blobs."""
    return PostgresTable(table.node, table.schema_name, table.name, _COLUMNS, _SCHEMA, sql.APPEND)


@dataclass(frozen=True)
class BlobWriterFactory:
    """Picklable factory of :class:`BlobWriter`; ``inner`` writes the blobs."""

    inner: PostgresWriterFactory

    def __call__(self, task: Task) -> BlobWriter:
        """Open a writer for one attempt of one task.  No connection is made before the first row."""
        return BlobWriter(self.inner(task))


class BlobWriter:
    """Writes one task's rows as they come."""

    def __init__(self, inner: PostgresWriter) -> None:
        self._inner = inner
        self._row_count = 0
        self._place = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        step = max(1, batch.num_rows * BLOB_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, step):
            piece = batch.slice(first, step)
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, piece.schema) as stream:
                stream.write_batch(piece)
            blob = pa.array([out.getvalue().to_pybytes()], pa.binary())
            self._inner.write(pa.RecordBatch.from_arrays([pa.array([self._place], pa.int64()), blob], schema=_SCHEMA))
            self._place += 1
        self._row_count += batch.num_rows

    def stage(self) -> Staged:
        """Commit the staging table."""
        return replace(self._inner.stage(), row_count=self._row_count)

    def abort(self) -> None:
        """Close the connection: the server rolls back."""
        self._inner.abort()


def batches(connection: Connection, table: PostgresTable, part: Staged) -> Iterator[pa.RecordBatch]:
    """Read what a task staged, some blobs at a time; without what the part leaves out.

    Raises
    ------
    Diverged
        If there are fewer rows than the handle promises.
    """
    gone, row_count = refusals.left_out(part), 0
    query = "SELECT place, rows FROM {} WHERE place OPERATOR(pg_catalog.>) %s ORDER BY place LIMIT %s"
    for name in tables_of([part]):
        last = -1
        while found := _blobs(connection, pg.SQL(query).format(table.identifier(name)), last):
            last = found[-1][0]
            for _, blob in found:
                for batch in pa.ipc.open_stream(pa.py_buffer(blob)):
                    first, row_count = row_count, row_count + batch.num_rows
                    here = [number - first for number in gone if first <= number < row_count]
                    yield from refusals.without(pa.Table.from_batches([batch]), here).to_batches()
    promised = part.row_count + len(gone)
    if row_count != promised:
        raise rows_gone(table.node, part.name, f"{row_count} of {promised} rows are there.")


def _blobs(connection: Connection, query: pg.Composed, after: int) -> list[tuple[int, bytes]]:
    with connection.cursor(binary=True) as cursor:
        cursor.execute(query, (after, BLOBS_AT_ONCE))
        return cursor.fetchall()
