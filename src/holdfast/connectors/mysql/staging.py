"""Rows that tasks staged in the database: Arrow record batches as they came, in a table that all sinks share.

A task's rows are those of one nonce: two writers of one task have two, so a name is never used twice.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.sql_table import SqlTable
from holdfast.connectors.kit.staging import Staging, reach_server
from holdfast.connectors.mysql.dialect import MYSQL, STAGED
from holdfast.connectors.mysql.session import MysqlConnection, MysqlSession
from holdfast.connectors.mysql.url import MysqlUrl
from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Part, Staged, Task

PIECE_BYTES = 4 * 2**20
"""Of rows in one piece, about: the driver has one of them in memory."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_OURS = "pipeline = ? AND sink = ?"
_ONE = f"{_OURS} AND generation = ? AND epoch = ? AND nonce = ?"


@dataclass(frozen=True)
class MysqlWriterFactory:
    """Picklable factory of :class:`MysqlWriter`.

    Parameters
    ----------
    url : MysqlUrl
        Where, with variables filled in.
    sink : str
        The sink's name.
    table : SqlTable
        The target, by which values are checked.
    """

    url: MysqlUrl
    sink: str
    table: SqlTable

    def __call__(self, task: Task) -> MysqlWriter:
        """Open a writer for one attempt of one task.  No connection is made before the first row."""
        return MysqlWriter(self, task)


class MysqlWriter:
    """Stages one task's rows in one transaction."""

    def __init__(self, factory: MysqlWriterFactory, task: Task) -> None:
        table = factory.table
        self._table = table
        self._task = task
        self._session = MysqlSession(
            table.node, factory.url, table.name, task.pipeline, factory.sink, program="holdfast writer"
        )
        self._connection: MysqlConnection | None = None
        self._nonce = secrets.token_hex(8)
        self._row_count = 0
        self._piece_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Stage a batch."""
        if not batch.num_rows:
            return
        self._table.check_values(batch)  # here, and not when the epoch is decided
        task = self._task
        with self._session.explained():
            if self._connection is None:
                self._connection = reach_server(self._session.connection)
                self._session.begin(self._connection, "write")
            step = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
            for first in range(0, batch.num_rows, step):
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, batch.schema, options=_OPTIONS) as stream:
                    stream.write_batch(batch.slice(first, step))
                row = (task.pipeline, self._session.sink, task.generation, task.epoch, self._nonce, self._piece_count)
                self._connection.execute(
                    f"INSERT INTO {STAGED} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, task.name, out.getvalue().to_pybytes()),
                )
                self._piece_count += 1
        self._row_count += batch.num_rows
        faults.reach("stage-write", task.epoch, task.pipeline)

    def stage(self) -> Staged:
        """Commit."""
        task = self._task
        if self._connection is None:
            return Staged(task.name, 0)
        try:
            self._session.commit(self._connection)
        except InDoubt as error:
            # No one has the handle, so the rows will never be published: an orphan, if they are there at all.
            raise Unavailable(error.what, why=error.why, do="the task is tried again.") from error
        self._session.close()
        place = f"{task.generation}.{task.epoch}.{self._nonce}"
        return Staged(task.name, self._row_count, {"place": place, "pieces": str(self._piece_count)})

    def abort(self) -> None:
        """Close the connection: the server rolls back."""
        self._session.close()


class MysqlStaging(Staging):
    """What tasks staged for one sink.

    Parameters
    ----------
    session : MysqlSession
        Its own.
    url : MysqlUrl
        Where, with variables filled in.
    table : SqlTable, optional
        The target; None where nothing is to be staged.
    """

    tables = (STAGED,)

    def __init__(self, session: MysqlSession, url: MysqlUrl, table: SqlTable | None = None) -> None:
        self._session = session
        self._lock = threading.Lock()
        """Of a statement and its answer: ``admit`` reads while another thread is in ``publish``, which reads too."""
        self._url = url
        self._table = table
        self._ours = (session.pipeline, session.sink)

    @property
    def node(self) -> str:
        """The sink, in errors."""
        return self._session.node

    def factory(self) -> MysqlWriterFactory:
        """Return the factory that executors call."""
        assert self._table is not None
        return MysqlWriterFactory(self._url, self._session.sink, self._table)

    def whole(self, part: Staged) -> Iterator[pa.RecordBatch]:
        """Read all rows of a staged part, piece by piece."""
        for piece in range(int(part.reference["pieces"])):
            with self._lock, self._session.explained():
                statement = f"SELECT data FROM {STAGED} WHERE {_ONE} AND piece = ?"
                row = self._session.connection().execute(statement, (*self._key(part), piece)).fetchone()
            if row is None:
                raise rows_gone(self.node, part.name, f"piece {piece} is not in {STAGED}.")
            yield from pa.ipc.open_stream(pa.py_buffer(row[0]))

    def remove(self, parts: Sequence[Part]) -> None:
        """Remove staged parts."""
        self._remove([self._key(part) for part in parts if isinstance(part, Staged) and part.reference])

    def sweep(self, generation: int, below_epoch: int) -> int:
        """Remove what lower generations left, and this one below an epoch.

        Each by its key: a task that is still at work has rows that nobody sees, and nobody must wait for.
        """
        found = self._asked(
            f"SELECT DISTINCT generation, epoch, nonce FROM {STAGED} WHERE {_OURS}"
            " AND (generation < ? OR (generation = ? AND epoch < ?))",
            (generation, generation, below_epoch),
        )
        return self._remove([(*self._ours, *row) for row in found])

    def names(self) -> list[str]:
        """Return the names of the tasks."""
        return sorted(name for (name,) in self._asked(f"SELECT DISTINCT task FROM {STAGED} WHERE {_OURS}", ()))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _asked(self, statement: str, values: tuple[object, ...]) -> Sequence[tuple[Any, ...]]:
        with self._lock, self._session.explained():
            connection = self._session.connection()
            if not MYSQL.has_table(connection, STAGED):
                return []
            found: Sequence[tuple[Any, ...]] = connection.execute(statement, (*self._ours, *values)).fetchall()
        return found

    def _remove(self, keys: Sequence[tuple[object, ...]]) -> int:
        return sum(self._remove_one(key) > 0 for key in keys)

    def _remove_one(self, key: tuple[object, ...]) -> int:
        with self._lock, self._session.explained():
            statement = f"DELETE FROM {STAGED} WHERE {_ONE}"
            return int(self._session.connection().execute(statement, key).rowcount)

    def _key(self, part: Staged) -> tuple[object, ...]:
        generation, epoch, nonce = part.reference["place"].split(".")
        return (*self._ours, int(generation), int(epoch), nonce)
