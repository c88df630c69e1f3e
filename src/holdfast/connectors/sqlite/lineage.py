"""Rows of a SQLite table, and when epochs were published in it, for ``holdfast trace``: read only, by declaration."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from holdfast.connectors.sqlite.explained import SqliteExplanations
from holdfast.connectors.sqlite.table import quoted
from holdfast.errors import InvalidPipeline
from holdfast.ports import PublishedEpoch

_BUSY_TIMEOUT_S = 5.0


def history(path: str, name: str, pipeline: str) -> list[PublishedEpoch]:
    """Return the last epochs of a sink."""
    if not os.path.exists(path):
        return []
    with _read(path, name) as connection:
        return SqliteExplanations(f"sink {name!r}", pipeline, name).ends(connection)


def find(path: str, table: str, name: str, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of a table: parameters as of :class:`~holdfast.ports.LineageSpec`."""
    condition, values = (where, ()) if isinstance(where, str) else (f"{quoted(where[0])} = ?", (where[1],))
    with _read(path, name) as connection:
        found = connection.execute(f"SELECT * FROM {quoted(table)} WHERE ({condition}\n) LIMIT ?", (*values, limit))
        columns = [column[0] for column in found.description]
        return [dict(zip(columns, row, strict=True)) for row in found]


@contextmanager
def _read(path: str, name: str) -> Iterator[sqlite3.Connection]:
    try:
        address = f"{Path(path).as_uri()}?mode=rw"  # one that may only read would leave -wal and -shm behind
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA query_only = true")
            yield connection
    except sqlite3.Error as error:
        raise InvalidPipeline(
            f"sink {name!r}: its rows cannot be asked for.",
            why=f"SQLite said: {error}.",
            do="write the condition as SQLite takes it behind WHERE, with the columns of the table.",
            participant=name,
        ) from error
