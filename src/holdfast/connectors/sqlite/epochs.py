"""The list of epochs of a rewindable SQLite table: where each ended, so that later rows can be withdrawn.

Invariant: an epoch is noted in the transaction that publishes it, and withdrawn in the one that removes its rows.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.connectors.sqlite.table import SqliteTable
from holdfast.errors import invariant
from holdfast.ports import EpochRecord, Withdrawal
from holdfast.positions import Positions

_DDL = f"""
CREATE TABLE IF NOT EXISTS {EPOCHS} (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, epoch INTEGER NOT NULL, target TEXT NOT NULL, positions TEXT NOT NULL,
    PRIMARY KEY (pipeline, sink, epoch)) WITHOUT ROWID
"""


@dataclass(frozen=True)
class SqliteEpochs:
    """One sink's rows of ``holdfast_epochs``.  The caller holds the transaction."""

    table: SqliteTable
    pipeline: str
    sink: str

    def begin(self, connection: sqlite3.Connection, row: LedgerRow) -> None:
        """Make the list; one that does not lead to what the sink holds is restarted there."""
        connection.execute(_DDL)
        others = connection.execute(
            f"SELECT DISTINCT pipeline, sink FROM {EPOCHS} WHERE target = ? AND (pipeline, sink) <> (?, ?)",
            (self._target, *self._ours),
        ).fetchall()
        rewinds.check_one_writer(self.table.node, self.table.name, others)
        if rewinds.has_gap(self._epochs(connection), row):
            self.restart(connection, row)

    def restart(self, connection: sqlite3.Connection, row: LedgerRow) -> None:
        """Let the list begin at what the sink holds: no rewind goes to before it."""
        self._forget(connection, after_epoch=-1)
        self._insert(connection, row.epoch, row.positions)

    def note(self, connection: sqlite3.Connection, epoch: int, positions: Positions) -> None:
        """Record the end of an epoch; the oldest ones go."""
        self._insert(connection, epoch, sql.positions_text(positions))
        connection.execute(
            f"DELETE FROM {EPOCHS} WHERE pipeline = ? AND sink = ? AND epoch <= ?",
            (*self._ours, epoch - rewinds.EPOCHS_KEPT),
        )

    def withdrawal(self, connection: sqlite3.Connection, to: Positions, row: LedgerRow | None) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        listed = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (EPOCHS,)).fetchone()
        if listed is None or row is None:
            return Withdrawal(obstacle=rewinds.not_held([]))
        epochs = rewinds.leading(self._epochs(connection), row)
        last = rewinds.last_at(epochs, to)
        if last is None:
            return Withdrawal(obstacle=rewinds.not_held(sorted(epochs)))
        return Withdrawal(last, sum(epoch > last for epoch in epochs), self.table.count_after(connection, last))

    def withdraw(self, connection: sqlite3.Connection, record: EpochRecord) -> None:
        """Remove the rows of all epochs after the one that ended at the record's positions.

        Raises
        ------
        Diverged
            If none did.
        """
        last = rewinds.target_of(self.table.node, self._epochs(connection), record)
        self._check_transaction(connection)
        self.table.withdraw(connection, last)
        self._forget(connection, after_epoch=last)

    def _forget(self, connection: sqlite3.Connection, *, after_epoch: int) -> None:
        statement = f"DELETE FROM {EPOCHS} WHERE pipeline = ? AND sink = ? AND epoch > ?"
        connection.execute(statement, (*self._ours, after_epoch))

    def _insert(self, connection: sqlite3.Connection, epoch: int, positions: str) -> None:
        self._check_transaction(connection)
        row = (*self._ours, epoch, self._target, positions)
        connection.execute(f"INSERT INTO {EPOCHS} VALUES (?, ?, ?, ?, ?)", row)

    def _check_transaction(self, connection: sqlite3.Connection) -> None:
        what = f"{self.table.node}: its list of epochs is to change outside the transaction of the rows."
        invariant(connection.in_transaction, what, pipeline=self.pipeline, participant=self.sink)

    def _epochs(self, connection: sqlite3.Connection) -> dict[int, str]:
        statement = f"SELECT epoch, positions FROM {EPOCHS} WHERE pipeline = ? AND sink = ? AND target = ?"
        return dict(connection.execute(statement, (*self._ours, self._target)).fetchall())

    @property
    def _ours(self) -> tuple[str, str]:
        return self.pipeline, self.sink

    @property
    def _target(self) -> str:
        return self.table.name.lower()  # SQLite holds names that differ in capitals for one
