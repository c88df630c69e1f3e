"""What a sink of SQL keeps of a pipeline beside its target: ledger row, meaning of positions, ends of epochs; a lease.

Invariants: all of it changes in the transaction that writes the rows, behind the lock of the ledger row; epochs and
generations of that row only grow.  The lease changes by itself.  The caller holds the transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from holdfast.connectors.kit import rewinds
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
from holdfast.connectors.kit.lease_text import TABLE as LEASE
from holdfast.connectors.kit.lease_text import dumped, loaded
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LEDGER, LedgerRow, check_generation, fenced, positions_text, rows_of_shards
from holdfast.connectors.kit.sql_table import Connection, SqlDialect, SqlTable
from holdfast.errors import invariant
from holdfast.ports import (
    EpochRecord,
    Explanation,
    Lease,
    Publication,
    PublishedEpoch,
    RunIdentity,
    SeenLease,
    SinkLedger,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.shards.naming import shard_of

_OURS = "pipeline = ? AND sink = ?"


@dataclass(frozen=True)
class SqlBook:
    """One sink's rows in tables of Holdfast's own.

    Parameters
    ----------
    dialect : SqlDialect
        Of the system.
    pipeline, sink : str
        Whose rows.
    """

    dialect: SqlDialect
    pipeline: str
    sink: str

    @property
    def node(self) -> str:
        """The sink, in errors."""
        return f"sink {self.sink!r}"

    @property
    def _ours(self) -> tuple[str, str]:
        return self.pipeline, self.sink

    def create(self, connection: Connection, tables: Sequence[str]) -> None:
        """Create some of the tables, where they are absent."""
        for name in tables:
            if not self.dialect.has_table(connection, name):
                connection.execute(self.dialect.own_tables[name])

    # --- the ledger row ---------------------------------------------------------------------------------------------

    def row(self, connection: Connection, *, locks: bool = False) -> LedgerRow | None:
        """Return the row; None where the sink was never opened, or it was dropped."""
        if not self.dialect.has_table(connection, LEDGER):
            return None
        lock = self.dialect.lock if locks else ""
        statement = f"SELECT epoch, generation, positions, pts FROM {LEDGER} WHERE {_OURS}{lock}"
        found = connection.execute(statement, self._ours).fetchone()
        return LedgerRow(*found) if found else None

    def shards(self, connection: Connection, *, locks: bool = False) -> dict[str, LedgerRow]:
        """Return the rows of all shards that hold something, the own one among them where it is there."""
        if not self.dialect.has_table(connection, LEDGER):
            return {}
        base, lock = shard_of(self.pipeline)[0], self.dialect.lock if locks else ""
        statement = (
            f"SELECT pipeline, epoch, generation, positions, pts FROM {LEDGER} WHERE sink = ?"
            f" AND (pipeline = ? OR substr(pipeline, 1, ?) = ?) ORDER BY pipeline{lock}"
        )
        found = connection.execute(statement, (self.sink, base, len(base) + 1, f"{base}-")).fetchall()
        return rows_of_shards(self.pipeline, ((name, LedgerRow(*row)) for name, *row in found))

    def own_row(self, connection: Connection, generation: int) -> LedgerRow:
        """Return the row, locked, if this generation owns it; raises as :func:`check_generation`."""
        return check_generation(self.node, self.pipeline, generation, self.row(connection, locks=True))

    def claim(self, connection: Connection, run: RunIdentity) -> LedgerRow:
        """Take the sink for a generation; return the row as it was.

        Raises
        ------
        Fenced
            If another run has opened the sink with this generation, or a higher one.
        """
        row = self.row(connection, locks=True)
        if row is None:
            connection.execute(
                f"{self.dialect.insert_new} {LEDGER} (pipeline, sink, epoch, generation, positions, updated_at)"
                f" VALUES (?, ?, 0, 0, '{{}}', {self.dialect.now})",
                self._ours,
            )
            row = self.row(connection, locks=True)  # two that take a new sink at once: one waits here
        assert row is not None
        if row.generation >= run.generation:  # another run took it between our claim and here
            raise fenced(self.node, self.pipeline, run.generation, row.generation)
        connection.execute(
            f"UPDATE {LEDGER} SET generation = ?, updated_at = {self.dialect.now} WHERE {_OURS}",
            (run.generation, *self._ours),
        )
        return row

    def move(self, connection: Connection, to: EpochRecord) -> None:
        """Let the row say that the sink holds everything up to an epoch."""
        self._check_transaction(connection, "ledger row")
        connection.execute(
            f"UPDATE {LEDGER} SET epoch = ?, positions = ?, pts = ?, updated_at = {self.dialect.now} WHERE {_OURS}",
            (to.epoch, positions_text(to.positions), to.pts, *self._ours),
        )

    def ledger(self, connection: Connection) -> SinkLedger | None:
        """Return all that it says of the sink; None where there is nothing."""
        row = self.row(connection)
        if row is None:
            return None
        held = replace(row.held(), recent_ends=self.recent_ends(connection, row.epoch))
        return SinkLedger(held, tuple(self.explanations(connection, row)))

    # --- what positions mean ----------------------------------------------------------------------------------------

    def forget_explanations(self, connection: Connection, row: LedgerRow) -> None:
        """Forget what explains positions that nobody holds any more."""
        if not row.epoch:
            connection.execute(f"DELETE FROM {EXPLANATIONS} WHERE {_OURS}", self._ours)

    def explanation_numbers(self, connection: Connection) -> dict[str, int]:
        """Return source -> highest number of its explanations."""
        if not self.dialect.has_table(connection, EXPLANATIONS):
            return {}
        statement = f"SELECT source, max(last) FROM {EXPLANATIONS} WHERE {_OURS} GROUP BY source"
        return numbers(connection.execute(statement, self._ours).fetchall())

    def recent_ends(self, connection: Connection, epoch: int) -> str:
        """Return what an epoch said of the last ends; empty where it is not the last one, or said nothing."""
        if not self.dialect.has_table(connection, EXPLANATIONS):
            return ""
        statement = f"SELECT text FROM {EXPLANATIONS} WHERE {_OURS} AND source = ? AND last = ?"
        row = connection.execute(statement, (*self._ours, RECENT_ENDS, epoch)).fetchone()
        return "" if row is None else str(row[0])

    def explain(self, connection: Connection, publications: Sequence[Publication]) -> None:
        """Keep what these epochs explain and the sink lacks, their ends, and what the last one says of recent ends."""
        at_us = time.time_ns() // 1000
        for each in publications:
            place, epoch, text = end_row(each.record, at_us)
            self._forget(connection, ENDS, "first = ?", place)
            self._explain(connection, ENDS, place, epoch, text)
        if publications and (ended := publications[-1].record).recent_ends:
            self._forget(connection, RECENT_ENDS, "first >= ?", 0)
            self._explain(connection, RECENT_ENDS, 0, ended.epoch, ended.recent_ends)
        if not needed(publications):
            return
        for told in lacking(publications, self.explanation_numbers(connection), self.node):
            self._explain(connection, told.source, told.number, told.number, told.text)
            for first, last in merged_at(told.number):
                self._merge(connection, told.source, first, last)

    def history(self, connection: Connection) -> list[PublishedEpoch]:
        """Return the last epochs."""
        if not self.dialect.has_table(connection, EXPLANATIONS):
            return []
        statement = f"SELECT last, text FROM {EXPLANATIONS} WHERE {_OURS} AND source = ?"
        return ends_in(connection.execute(statement, (*self._ours, ENDS)).fetchall())

    def explanations(self, connection: Connection, row: LedgerRow | None) -> list[Explanation]:
        """Return everything that is kept of what the ledger row holds."""
        if row is None or not row.epoch or not self.dialect.has_table(connection, EXPLANATIONS):
            return []
        statement = (
            f"SELECT source, first, text FROM {EXPLANATIONS} WHERE {_OURS} AND source <> ? ORDER BY source, first"
        )
        return parted(connection.execute(statement, (*self._ours, ENDS)).fetchall())

    def _merge(self, connection: Connection, source: str, first: int, last: int) -> None:
        statement = f"SELECT text FROM {EXPLANATIONS} WHERE {_OURS} AND source = ? AND first >= ? ORDER BY first"
        found = connection.execute(statement, (*self._ours, source, first)).fetchall()
        self._forget(connection, source, "first >= ?", first)
        self._explain(connection, source, first, last, joined(text for (text,) in found))

    def _forget(self, connection: Connection, source: str, which: str, number: int) -> None:
        statement = f"DELETE FROM {EXPLANATIONS} WHERE {_OURS} AND source = ? AND {which}"
        connection.execute(statement, (*self._ours, source, number))

    def _explain(self, connection: Connection, source: str, first: int, last: int, text: str) -> None:
        row = (*self._ours, source, first, last, text)
        connection.execute(f"INSERT INTO {EXPLANATIONS} VALUES (?, ?, ?, ?, ?, ?)", row)

    # --- where epochs of a rewindable table ended -------------------------------------------------------------------

    def begin_epochs(self, connection: Connection, table: SqlTable, row: LedgerRow) -> None:
        """Begin the list; one that does not lead to what the sink holds is restarted there."""
        statement = f"SELECT DISTINCT pipeline, sink FROM {EPOCHS} WHERE target = ?"
        writers = connection.execute(statement, (_target(table),)).fetchall()
        rewinds.check_writers(self.node, table.name, self._ours, writers)
        if rewinds.has_gap(self._epochs(connection, table), row):
            self.restart_epochs(connection, table, row)

    def restart_epochs(self, connection: Connection, table: SqlTable, row: LedgerRow) -> None:
        """Let the list begin at what the sink holds: no rewind goes to before it."""
        self._forget_epochs(connection, after_epoch=-1)
        self._note_epoch(connection, table, row.epoch, row.positions)

    def note_epoch(self, connection: Connection, table: SqlTable, epoch: int, positions: Positions) -> None:
        """Record the end of an epoch; the oldest ones go."""
        self._note_epoch(connection, table, epoch, positions_text(positions))
        statement = f"DELETE FROM {EPOCHS} WHERE {_OURS} AND epoch <= ?"
        connection.execute(statement, (*self._ours, epoch - rewinds.EPOCHS_KEPT))

    def withdrawal(self, connection: Connection, table: SqlTable, to: Positions, row: LedgerRow | None) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        if row is None or not self.dialect.has_table(connection, EPOCHS):
            return Withdrawal(obstacle=rewinds.not_held([]))
        epochs = rewinds.leading(self._epochs(connection, table), row)
        last = rewinds.last_at(epochs, to)
        if last is None:
            return Withdrawal(obstacle=rewinds.not_held(sorted(epochs)))
        return Withdrawal(last, sum(epoch > last for epoch in epochs), table.count_after(connection, last))

    def withdraw(self, connection: Connection, table: SqlTable, record: EpochRecord) -> None:
        """Remove the rows of all epochs after the one that ended at the record's positions.

        Raises
        ------
        Diverged
            If none did.
        """
        last = rewinds.target_of(self.node, self._epochs(connection, table), record)
        self._check_transaction(connection, "list of epochs")
        table.withdraw(connection, last)
        self._forget_epochs(connection, after_epoch=last)

    def _forget_epochs(self, connection: Connection, *, after_epoch: int) -> None:
        connection.execute(f"DELETE FROM {EPOCHS} WHERE {_OURS} AND epoch > ?", (*self._ours, after_epoch))

    def _note_epoch(self, connection: Connection, table: SqlTable, epoch: int, positions: str) -> None:
        self._check_transaction(connection, "list of epochs")
        row = (*self._ours, epoch, _target(table), positions)
        connection.execute(f"INSERT INTO {EPOCHS} VALUES (?, ?, ?, ?, ?)", row)

    def _epochs(self, connection: Connection, table: SqlTable) -> dict[int, str]:
        statement = f"SELECT epoch, positions FROM {EPOCHS} WHERE {_OURS} AND target = ?"
        return dict(connection.execute(statement, (*self._ours, _target(table))).fetchall())

    def _check_transaction(self, connection: Connection, what: str) -> None:
        invariant(
            self.dialect.is_in_transaction(connection),
            f"{self.node}: its {what} is to change outside the transaction of the rows.",
            pipeline=self.pipeline,
            participant=self.sink,
        )


def _target(table: SqlTable) -> str:
    return table.name.lower()  # names that differ in capitals may be one


class SqlLease:
    """The lease of a pipeline, in a table beside the sink's ledger; see :class:`holdfast.ports.LeasePlace`.

    Parameters
    ----------
    dialect : SqlDialect
        Of the system.
    pipeline : str
        Whose lease.
    connected : callable
        Yields a connection of its own, for a look or to write; None where there is no database yet.
    close : callable
        Closes what that has opened.
    """

    def __init__(
        self,
        dialect: SqlDialect,
        pipeline: str,
        connected: Callable[[bool], AbstractContextManager[Connection | None]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._dialect = dialect
        self._pipeline = pipeline
        self._connected = connected
        self.close = close

    def read(self) -> SeenLease | None:
        """Return the row, and how long it is good for, where the system has a clock."""
        left = self._dialect.lease_left or "NULL"
        with self._connected(False) as connection:
            if connection is None or not self._dialect.has_table(connection, LEASE):
                return None
            statement = f"SELECT beat, text, {left} FROM {LEASE} WHERE pipeline = ?"
            row = connection.execute(statement, (self._pipeline,)).fetchone()
        return None if row is None else SeenLease(row[0], loaded(row[1]), row[2])

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Replace the row if it has the beat that was seen."""
        expiry = self._dialect.lease_expiry
        values = (dumped(lease), lease.ttl_us) if expiry else (dumped(lease),)
        with self._connected(True) as connection:
            assert connection is not None
            if not self._dialect.has_table(connection, LEASE):
                connection.execute(self._dialect.own_tables[LEASE])
            if seen is None:
                columns, more = (", expires_at", f", {expiry}") if expiry else ("", "")
                statement = f"{self._dialect.insert_new} {LEASE} (pipeline, beat, text{columns}) VALUES (?, 1, ?{more})"
                return bool(connection.execute(statement, (self._pipeline, *values)).rowcount == 1)
            more = f", expires_at = {expiry}" if expiry else ""
            statement = f"UPDATE {LEASE} SET beat = beat + 1, text = ?{more} WHERE pipeline = ? AND beat = ?"
            return bool(connection.execute(statement, (*values, self._pipeline, seen.beat)).rowcount == 1)
