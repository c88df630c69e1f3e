"""The list of epochs of a rewindable PostgreSQL table: where each ended, so that later rows can be withdrawn.

Invariant: an epoch is noted in the transaction that publishes it, and withdrawn in the one that removes its rows; the
caller holds the ledger row's lock.
"""

from __future__ import annotations

from psycopg import sql as pg
from psycopg.pq import TransactionStatus

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres.ledger import OURS
from holdfast.connectors.postgres.session import Connection
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.errors import invariant
from holdfast.ports import EpochRecord, Withdrawal
from holdfast.positions import Positions


class PostgresEpochs:
    """One sink's rows of ``holdfast_epochs``, in the schema of its table."""

    def __init__(self, table: PostgresTable, pipeline: str, sink: str) -> None:
        self._table = table
        self._ours = (pipeline, sink)

    def begin(self, connection: Connection, row: LedgerRow) -> None:
        """Make the list; one that does not lead to what the sink holds is restarted there."""
        if not self._exists(connection):
            node, schema = self._table.node, self._table.schema_name
            catalog.check_may_create(connection, node, schema, f"table {EPOCHS}")
            catalog.lock_ddl(connection)
            connection.execute(
                pg.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (pipeline pg_catalog.text, sink pg_catalog.text, epoch bigint,"
                    " target pg_catalog.text NOT NULL, positions pg_catalog.text NOT NULL,"
                    " PRIMARY KEY (pipeline, sink, epoch))"
                ).format(self._name)
            )
        writers = connection.execute(
            pg.SQL("SELECT DISTINCT pipeline, sink FROM {} WHERE target OPERATOR(pg_catalog.=) %s").format(self._name),
            (self._table.name,),
        ).fetchall()
        rewinds.check_writers(self._table.node, self._table.name, self._ours, writers)
        if rewinds.has_gap(self._epochs(connection), row):
            self.restart(connection, row)

    def restart(self, connection: Connection, row: LedgerRow) -> None:
        """Let the list begin at what the sink holds: no rewind goes to before it."""
        self.forget(connection, after_epoch=-1)
        self._insert(connection, row.epoch, row.positions)

    def note(self, connection: Connection, epoch: int, positions: Positions) -> None:
        """Record the end of an epoch; the oldest ones go."""
        self._insert(connection, epoch, sql.positions_text(positions))
        connection.execute(
            pg.SQL("DELETE FROM {} WHERE {} AND epoch OPERATOR(pg_catalog.<=) %s").format(self._name, OURS),
            (*self._ours, epoch - rewinds.EPOCHS_KEPT),
        )

    def withdrawal(self, connection: Connection, to: Positions, row: LedgerRow | None) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        if not self._exists(connection) or row is None:
            return Withdrawal(obstacle=rewinds.not_held([]))
        epochs = rewinds.leading(self._epochs(connection), row)
        last = rewinds.last_at(epochs, to)
        if last is None:
            return Withdrawal(obstacle=rewinds.not_held(sorted(epochs)))
        counted = connection.execute(self._table.count_after(last)).fetchone()
        assert counted is not None
        return Withdrawal(last, sum(epoch > last for epoch in epochs), int(counted[0]))

    def withdraw(self, connection: Connection, record: EpochRecord) -> None:
        """Remove the rows of all epochs after the one that ended at the record's positions.

        Raises
        ------
        Diverged
            If none did.
        """
        last = rewinds.target_of(self._table.node, self._epochs(connection), record)
        self._check_transaction(connection)
        connection.execute(self._table.withdraw(last))
        self.forget(connection, after_epoch=last)

    def forget(self, connection: Connection, *, after_epoch: int) -> None:
        """Let later epochs not have been: their rows are withdrawn, or never became visible."""
        connection.execute(
            pg.SQL("DELETE FROM {} WHERE {} AND epoch OPERATOR(pg_catalog.>) %s").format(self._name, OURS),
            (*self._ours, after_epoch),
        )

    def _insert(self, connection: Connection, epoch: int, positions: str) -> None:
        self._check_transaction(connection)
        connection.execute(
            pg.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s)").format(self._name),
            (*self._ours, epoch, self._table.name, positions),
        )

    def _check_transaction(self, connection: Connection) -> None:
        what = f"{self._table.node}: its list of epochs is to change outside the transaction of the rows."
        is_within = connection.info.transaction_status == TransactionStatus.INTRANS
        invariant(is_within, what, pipeline=self._ours[0], participant=self._ours[1])

    def _epochs(self, connection: Connection) -> dict[int, str]:
        found = connection.execute(
            pg.SQL("SELECT epoch, positions FROM {} WHERE {} AND target OPERATOR(pg_catalog.=) %s").format(
                self._name, OURS
            ),
            (*self._ours, self._table.name),
        ).fetchall()
        return dict(found)

    def _exists(self, connection: Connection) -> bool:
        found = connection.execute(
            "SELECT pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::pg_catalog.text, %s::pg_catalog.text))"
            " IS NOT NULL",
            (self._table.schema_name, EPOCHS),
        ).fetchone()
        return found is not None and bool(found[0])

    @property
    def _name(self) -> pg.Identifier:
        return self._table.identifier(EPOCHS)
