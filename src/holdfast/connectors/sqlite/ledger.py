"""The ledger row of a SQLite sink; and the ledger asked without a look at the table, so without a schema."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from holdfast.connectors.kit.sql import LEDGER, LedgerRow, fenced, positions_text
from holdfast.connectors.sqlite.explained import SqliteExplanations
from holdfast.errors import Corrupt, Unavailable
from holdfast.ports import EpochRecord, RunIdentity, SinkLedger

_BUSY_TIMEOUT_S = 5.0

_DDL = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, epoch INTEGER NOT NULL, generation INTEGER NOT NULL,
    positions TEXT NOT NULL, pts INTEGER, in_progress TEXT, updated_at TEXT NOT NULL,
    PRIMARY KEY (pipeline, sink))
"""


def claimed(connection: sqlite3.Connection, node: str, sink: str, run: RunIdentity) -> LedgerRow:
    """Create the ledger when absent, and take a sink for a generation; return the row as it was.

    Raises
    ------
    Fenced
        If another run has opened the sink with this generation, or a higher one.
    """
    connection.execute(_DDL)
    row = ledger_row(connection, run.pipeline, sink) or LedgerRow(0, 0, "{}", None)
    if row.generation >= run.generation:  # another run took it between our claim and here
        raise fenced(node, run.pipeline, run.generation, row.generation)
    connection.execute(
        f"INSERT INTO {LEDGER} VALUES (?, ?, 0, ?, '{{}}', NULL, NULL, datetime('now'))"
        " ON CONFLICT (pipeline, sink) DO UPDATE SET generation = excluded.generation,"
        " updated_at = excluded.updated_at",
        (run.pipeline, sink, run.generation),
    )
    return row


def move(connection: sqlite3.Connection, sink: str, to: EpochRecord) -> None:
    """Let the row of a sink say that it holds everything up to an epoch."""
    connection.execute(
        f"UPDATE {LEDGER} SET epoch = ?, positions = ?, pts = ?, updated_at = datetime('now')"
        " WHERE pipeline = ? AND sink = ?",
        (to.epoch, positions_text(to.positions), to.pts, to.pipeline, sink),
    )


def ledger_row(connection: sqlite3.Connection, pipeline: str, sink: str) -> LedgerRow | None:
    """Return the row; None where the sink was never opened, or it was dropped."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (LEDGER,)).fetchone() is None:
        return None
    found = connection.execute(
        f"SELECT epoch, generation, positions, pts FROM {LEDGER} WHERE pipeline = ? AND sink = ?", (pipeline, sink)
    ).fetchone()
    return LedgerRow(*found) if found else None


def asked(path: str, name: str, pipeline: str) -> SinkLedger | None:
    """Return what the ledger in a file says of a sink; None where there is none.  Changes nothing.

    Raises
    ------
    Unavailable, Corrupt
        If the file cannot be read, or is no database.
    """
    if not os.path.exists(path):
        return None
    with reading(path, name) as connection:
        row = ledger_row(connection, pipeline, name)
        if row is None:
            return None
        kept = SqliteExplanations(f"sink {name!r}", pipeline, name)
        held = replace(row.held(), recent_ends=kept.recent_ends(connection, row.epoch))
        return SinkLedger(held, tuple(kept.all(connection, row)))


@contextmanager
def reading(path: str, name: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a file that is there, for questions.

    Raises
    ------
    Unavailable, Corrupt
        If the file cannot be read, or is no database.
    """
    try:
        address = f"{Path(path).as_uri()}?mode=rw"  # one that may only read would leave -wal and -shm behind
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
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
