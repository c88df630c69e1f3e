"""What the positions of a SQLite sink mean: rows of ``holdfast_positions``, beside the ledger.

Invariant: they are written in the transaction of the epoch that needs them first.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.connectors.kit.explained import (
    ENDS,
    EXPLANATIONS,
    RECENT_ENDS,
    end_row,
    ends_in,
    joined,
    lacking,
    merged_at,
    needed,
    numbers,
    parted,
)
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.ports import Explanation, Publication, PublishedEpoch

_DDL = f"""
CREATE TABLE IF NOT EXISTS {EXPLANATIONS} (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, source TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    text TEXT NOT NULL, PRIMARY KEY (pipeline, sink, source, first)) WITHOUT ROWID
"""
_OURS = "pipeline = ? AND sink = ?"


@dataclass(frozen=True)
class SqliteExplanations:
    """One sink's rows.  The caller holds the transaction."""

    node: str
    pipeline: str
    sink: str

    def begin(self, connection: sqlite3.Connection, row: LedgerRow) -> None:
        """Create the table when absent; forget what explains positions that nobody holds any more."""
        connection.execute(_DDL)
        if not row.epoch:
            connection.execute(f"DELETE FROM {EXPLANATIONS} WHERE {_OURS}", self._ours)

    def held(self, connection: sqlite3.Connection) -> dict[str, int]:
        """Return source -> highest number."""
        if not self._exists(connection):
            return {}
        statement = f"SELECT source, max(last) FROM {EXPLANATIONS} WHERE {_OURS} GROUP BY source"
        return numbers(connection.execute(statement, self._ours).fetchall())

    def recent_ends(self, connection: sqlite3.Connection, epoch: int) -> str:
        """Return what an epoch said of the last ends; empty where it is not the last one, or said nothing."""
        if not self._exists(connection):
            return ""
        statement = f"SELECT text FROM {EXPLANATIONS} WHERE {_OURS} AND source = ? AND last = ?"
        row = connection.execute(statement, (*self._ours, RECENT_ENDS, epoch)).fetchone()
        return "" if row is None else str(row[0])

    def take(self, connection: sqlite3.Connection, publications: Sequence[Publication]) -> None:
        """Keep what these epochs explain and the sink lacks, their ends, and what the last one says of recent ends."""
        at_us = time.time_ns() // 1000
        ends = [(*self._ours, ENDS, *end_row(each.record, at_us)) for each in publications]
        connection.executemany(f"INSERT OR REPLACE INTO {EXPLANATIONS} VALUES (?, ?, ?, ?, ?, ?)", ends)
        if publications and (ended := publications[-1].record).recent_ends:
            connection.execute(f"DELETE FROM {EXPLANATIONS} WHERE {_OURS} AND source = ?", (*self._ours, RECENT_ENDS))
            self._insert(connection, RECENT_ENDS, 0, ended.epoch, ended.recent_ends)
        if not needed(publications):
            return
        for each in lacking(publications, self.held(connection), self.node):
            self._insert(connection, each.source, each.number, each.number, each.text)
            for first, last in merged_at(each.number):
                self._merge(connection, each.source, first, last)

    def ends(self, connection: sqlite3.Connection) -> list[PublishedEpoch]:
        """Return the last epochs."""
        if not self._exists(connection):
            return []
        statement = f"SELECT last, text FROM {EXPLANATIONS} WHERE {_OURS} AND source = ?"
        return ends_in(connection.execute(statement, (*self._ours, ENDS)).fetchall())

    def all(self, connection: sqlite3.Connection, row: LedgerRow | None) -> list[Explanation]:
        """Return everything that is kept of what the ledger row holds."""
        if row is None or not row.epoch or not self._exists(connection):
            return []
        statement = (
            f"SELECT source, first, text FROM {EXPLANATIONS} WHERE {_OURS} AND source <> ? ORDER BY source, first"
        )
        return parted(connection.execute(statement, (*self._ours, ENDS)).fetchall())

    def _merge(self, connection: sqlite3.Connection, source: str, first: int, last: int) -> None:
        where = f"{_OURS} AND source = ? AND first >= ?"
        values = (*self._ours, source, first)
        found = connection.execute(f"SELECT text FROM {EXPLANATIONS} WHERE {where} ORDER BY first", values).fetchall()
        connection.execute(f"DELETE FROM {EXPLANATIONS} WHERE {where}", values)
        self._insert(connection, source, first, last, joined(text for (text,) in found))

    def _insert(self, connection: sqlite3.Connection, source: str, first: int, last: int, text: str) -> None:
        row = (*self._ours, source, first, last, text)
        connection.execute(f"INSERT INTO {EXPLANATIONS} VALUES (?, ?, ?, ?, ?, ?)", row)

    def _exists(self, connection: sqlite3.Connection) -> bool:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (EXPLANATIONS,)).fetchone()
        return found is not None

    @property
    def _ours(self) -> tuple[str, str]:
        return self.pipeline, self.sink
