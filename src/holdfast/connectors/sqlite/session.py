"""A connection to a SQLite file during a run: to the file that is at the path, with ``synchronous=FULL``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.connectors.kit.sql_session import Begin, SqlSession
from holdfast.connectors.sqlite.dialect import SQLITE
from holdfast.connectors.sqlite.file import DatabaseFile
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline, Unavailable

_BUSY_TIMEOUT_S = 5.0


class SqliteSession(SqlSession):
    """A connection to a file.

    Parameters
    ----------
    node, pipeline, sink : str
        As in :class:`SqlSession`.
    path, table : str
        The file, absolute, and the table, for errors.
    creates : bool
        Whether the first connection may create the file.
    """

    errors = sqlite3.Error
    system = "SQLite"

    def __init__(self, node: str, path: str, table: str, pipeline: str, sink: str, *, creates: bool = True) -> None:
        super().__init__(node, path, pipeline, sink)
        self.file = DatabaseFile(path, node, creates=creates)
        self._table = table

    @property
    def address(self) -> str:
        """The file's path."""
        return self.place

    def beside(self) -> SqliteSession:
        """Return another one with the same file."""
        return SqliteSession(self.node, self.place, self._table, self.pipeline, self.sink, creates=False)

    def connection(self) -> sqlite3.Connection:
        """Return a connection to the file that is now at the path."""
        return self.file.connection()

    def again(self) -> sqlite3.Connection:
        """Return a fresh one."""
        return self.file.again()

    def close(self) -> None:
        """Close the connection."""
        self.file.close()

    def begin(self, connection: sqlite3.Connection, how: Begin) -> None:
        """Begin a transaction; one that writes takes the write lock at once."""
        connection.execute(SQLITE.begin if how == "write" else "BEGIN")

    def check(self) -> None:
        """Raise :class:`Unavailable` where another file is at the path."""
        self.file.check()

    def check_commit(self) -> None:
        """Raise where the COMMIT may have gone into a file that is no longer at the path."""
        if not self.file.is_ours():
            raise self.in_doubt("another file is there now: it was renamed or replaced meanwhile.")

    def translate(self, error: Exception) -> HoldfastError:
        """Return SQLite's error in our words."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        where = f"{self.node}: table {self._table} in {self.place}"
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            return BadRow(
                f"{where} refused a row.",
                why=f"SQLite said: {error}.",
                do='correct the row before the sink, or use mode="upsert" where a row may occur again.',
                pipeline=self.pipeline,
                participant=self.sink,
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Corrupt(
                f"{where} cannot be read.",
                why=f"SQLite said: {error}.",
                do="restore the file from a backup, or choose another path.",
                participant=self.sink,
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return InvalidPipeline(
                f"{where} cannot be written.",
                why=f"SQLite said: {error}.",
                do="give this user write permission to the file and its directory.",
                participant=self.sink,
            )
        if code in _TRANSIENT:
            return Unavailable(
                f"{where} did not accept the transaction; nothing was changed.",
                why=f"SQLite said: {error}.",
                do="it is retried; if the problem persists, look for another writer (lsof) and for disk space (df).",
                participant=self.sink,
            )
        return InvalidPipeline(
            f"{where} refused a statement.",
            why=f"SQLite said: {error}.",
            do="check that the table has not changed since the run began.",
            participant=self.sink,
        )


_TRANSIENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)


@contextmanager
def asking(path: str, name: str) -> Iterator[sqlite3.Connection | None]:
    """Yield a connection to a file for questions; None where it is not there.

    Raises
    ------
    Unavailable, Corrupt
        If the file cannot be read, or is no database.
    """
    if not Path(path).exists():
        yield None
        return
    try:
        with open_file(path, "rw") as connection:  # one that may only read would leave -wal and -shm behind
            yield connection
    except sqlite3.Error as error:
        is_damaged = not isinstance(error, sqlite3.OperationalError)  # which is: busy, not readable
        kind = Corrupt if is_damaged else Unavailable
        raise kind(
            f"sink {name!r}: {path} cannot be read.",
            why=f"SQLite said: {error}.",
            do="restore the file from a backup." if is_damaged else "give this user read permission, and try again.",
            participant=name,
        ) from error


@contextmanager
def open_file(path: str, mode: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection of its own, without changing anything of the file."""
    address = f"{Path(path).as_uri()}?mode={mode}"
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as connection:
        yield connection
