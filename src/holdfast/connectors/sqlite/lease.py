"""A lease in the SQLite file of a sink.  The file has no clock of its own: who watches measures beats on its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.connectors.kit.book import SqlLease
from holdfast.connectors.sqlite.dialect import SQLITE
from holdfast.connectors.sqlite.session import open_file
from holdfast.errors import Unavailable


class SqliteLease(SqlLease):
    """The lease of a pipeline in a file.

    Parameters
    ----------
    path : str
        The file, absolute.
    pipeline : str
        Whose lease.
    """

    def __init__(self, path: str, pipeline: str) -> None:
        @contextmanager
        def connect(writes: bool) -> Iterator[sqlite3.Connection | None]:
            if not writes and not Path(path).exists():
                yield None
                return
            try:
                with open_file(path, "rwc" if writes else "rw") as connection:
                    if writes:
                        connection.execute(SQLITE.begin)
                    yield connection
                    if writes:
                        connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise Unavailable(
                    f"the lease of pipeline {pipeline!r} in {path} cannot be reached.",
                    why=f"SQLite said: {error}.",
                    do="it is tried again.",
                    pipeline=pipeline,
                ) from error

        super().__init__(SQLITE, pipeline, connect)
