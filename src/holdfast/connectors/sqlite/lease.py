"""A lease in the SQLite file of a sink.  The file has no clock of its own: who watches measures beats on its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.connectors.kit.lease_text import TABLE, dumped, loaded
from holdfast.errors import Unavailable
from holdfast.ports import Lease, SeenLease

_BUSY_TIMEOUT_S = 5.0


class SqliteLease:
    """The lease of a pipeline in a file.

    Parameters
    ----------
    path : str
        The file, absolute.
    pipeline : str
        Whose lease.
    """

    def __init__(self, path: str, pipeline: str) -> None:
        self._path = path
        self._pipeline = pipeline

    def read(self) -> SeenLease | None:
        """Return the row."""
        if not Path(self._path).exists():
            return None
        with self._connected("rw") as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone() is None:
                return None
            found = connection.execute(f"SELECT beat, text FROM {TABLE} WHERE pipeline = ?", (self._pipeline,))
            row = found.fetchone()
        return None if row is None else SeenLease(row[0], loaded(row[1]))

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Replace the row if it has the beat that was seen."""
        with self._connected("rwc") as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (pipeline TEXT PRIMARY KEY, beat INTEGER NOT NULL, text TEXT NOT"
                " NULL)"
            )
            if seen is None:
                changed = connection.execute(
                    f"INSERT OR IGNORE INTO {TABLE} VALUES (?, 1, ?)", (self._pipeline, dumped(lease))
                ).rowcount
            else:
                changed = connection.execute(
                    f"UPDATE {TABLE} SET beat = beat + 1, text = ? WHERE pipeline = ? AND beat = ?",
                    (dumped(lease), self._pipeline, seen.beat),
                ).rowcount
            connection.execute("COMMIT")
        return changed == 1

    def close(self) -> None:
        """Nothing is held open."""

    @contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            address = f"{Path(self._path).as_uri()}?mode={mode}"
            opened = sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            with closing(opened) as connection:
                yield connection
        except sqlite3.Error as error:
            raise Unavailable(
                f"the lease of pipeline {self._pipeline!r} in {self._path} cannot be reached.",
                why=f"SQLite said: {error}.",
                do="it is tried again.",
                pipeline=self._pipeline,
            ) from error
