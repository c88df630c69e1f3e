"""Prepared transactions that the ledger row has decided to commit: committed, or proven to be; or taken back.

Any run that finds ``in_progress`` completes it, any number of times: a transaction that is gone was committed by an
earlier call, or by a predecessor with the same decision, and its transaction id proves it.  Where somebody has rolled
one back and no row of the decision is visible, the rest is rolled back too, and the epochs are produced again.
Design: 0003.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg
from psycopg import sql as pg

from holdfast import faults
from holdfast.connectors.kit.sql import LEDGER
from holdfast.connectors.postgres.ledger import Begun, PostgresLedger
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.staging import Label, transaction_ids
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.errors import Diverged, HoldfastError, InDoubt, Unavailable
from holdfast.retry import UNLIMITED, RetryPolicy

logger = logging.getLogger("holdfast.connectors.postgres")

BUSY_S = 10.0
"""How long to wait for another session that is ending the same prepared transaction."""

_ENDING = RetryPolicy(UNLIMITED, first_s=0.02, cap_s=0.02, jitter=0.0)

FORGOTTEN = "too old to tell"
"""The server's word (NULL) on a transaction whose end it no longer knows: neither committed nor rolled back."""


class PreparedTransactions:
    """Those that one sink's ledger row has decided to commit."""

    def __init__(
        self, session: PostgresSession, table: PostgresTable, ledger: PostgresLedger, pipeline: str, sink: str
    ) -> None:
        self._session = session
        self._table = table
        self._node = table.node
        self._ledger = ledger
        self._pipeline = pipeline
        self._sink = sink

    def complete(self, begun: Begun, epoch: int) -> bool:
        """Commit the prepared transactions that the ledger row has decided on, then say so in the row.

        One that is gone was committed already by an earlier call, or by a predecessor with the same decision; its
        transaction id proves it.  Or somebody has rolled it back: then those that are left are committed and the others
        named; but where no row of the decision is visible, the others are rolled back as well.

        Returns
        -------
        bool
            Whether they are committed.  False: all of them are rolled back, and the row still has to be taken back.

        Raises
        ------
        Diverged
            If some rows are visible, and others will never be.
        InDoubt
            If the server does not know, or does not answer: the decision is made, so "nothing was changed" would be
            false.
        """
        try:
            gone = self._rolled_back(begun)
            if gone and len(gone) < len(begun.gids) and begun.before is not None and self._has_rolled_back(begun):
                gone = [*begun.gids]
            if gone and len(gone) == len(begun.gids) and begun.before is not None:
                return False
            for gid, xid in begun.gids.items():
                faults.reach("publish-begun", epoch, self._pipeline)
                with self._session.explained():
                    self._session.connection()
                if gid not in gone:
                    self._commit(gid, xid)
            if gone:
                raise self._published_in_part(begun, gone, epoch)
            with self._session.explained():
                self._ledger.clear(self._session.connection(), begun)
        except Unavailable as error:
            raise InDoubt(
                f"{self._node}: epoch {epoch} is decided, and not all of it is visible yet.",
                why=error.what,
                do="nothing by hand: publishing or opening the sink again completes it.",
                pipeline=self._pipeline,
                participant=self._sink,
                epoch=epoch,
            ) from error
        return True

    def _rolled_back(self, begun: Begun) -> list[str]:
        """Return what was rolled back of a decision."""
        with self._session.explained():
            there = transaction_ids(self._session.connection(), [*begun.gids])
        return [gid for gid, xid in begun.gids.items() if gid not in there and not self._is_committed(gid, xid)]

    def _has_rolled_back(self, begun: Begun) -> bool:
        """Roll back what is left of a decision of which something was rolled back; False if some of it is visible."""
        with self._session.explained():
            there = transaction_ids(self._session.connection(), [*begun.gids])
        if len(there) + len(self._rolled_back(begun)) < len(begun.gids):
            return False
        for gid in there:
            with self._session.explained():
                try:
                    self._session.connection().execute(pg.SQL("ROLLBACK PREPARED {}").format(pg.Literal(gid)))
                except psycopg.errors.UndefinedObject:
                    logger.info("%s: %s has been ended by another session", self._node, gid)
        return len(self._rolled_back(begun)) == len(begun.gids)

    def _published_in_part(self, begun: Begun, gone: Sequence[str], epoch: int) -> Diverged:
        visible = [gid for gid in begun.gids if gid not in gone]
        tables = "" if begun.before is not None or visible else " Rows of staging tables are visible."
        of_tasks = ", ".join(_task_of(gid) for gid in gone)
        return Diverged(
            f"{self._node}: rows of epoch {epoch} were rolled back by somebody, and others of it are visible.",
            why=f"ROLLBACK PREPARED was run for {of_tasks} after the ledger row had decided to commit them; visible "
            f"are {', '.join(map(_task_of, visible)) or 'none of the prepared transactions'}.{tables} "
            f"(The names are pipeline/generation/epoch/task/attempt; prepared as {', '.join(map(repr, gone))}.)",
            do="see the server's log for who ran it; load the rows of those tasks again from the source (the epoch's "
            f"rows that table {self._table.name} lacks), then UPDATE {LEDGER} SET in_progress = NULL for this sink, "
            "and start again.",
            pipeline=self._pipeline,
            participant=self._sink,
            epoch=epoch,
        )

    def _commit(self, gid: str, xid: str) -> None:
        statement = pg.SQL("COMMIT PREPARED {}").format(pg.Literal(gid))
        try:
            # Busy: a predecessor that is just being fenced completes the same decision.
            _ENDING.call(lambda: self._session.settle(statement), _is_busy, BUSY_S)
        except HoldfastError as error:
            # Gone: a crash or a lost reply followed its COMMIT PREPARED, before ``in_progress`` was cleared.
            if not isinstance(error.__cause__, psycopg.errors.UndefinedObject):
                raise
            if not self._is_committed(gid, xid):  # rolled back since we looked
                raise InDoubt(
                    f"{self._node}: '{gid}' was rolled back while it was to be committed.",
                    why="somebody ran ROLLBACK PREPARED.",
                    do="start the pipeline again: it asks which rows are there.",
                    pipeline=self._pipeline,
                    participant=self._sink,
                ) from error

    def _is_committed(self, gid: str, xid: str) -> bool:
        """Return whether a transaction that is gone, and that the ledger row has decided to commit, was; else it was
        rolled back.

        Raises
        ------
        InDoubt
            If the server no longer knows its outcome, and no row of it is found.
        Diverged
            If the transaction was never on this server.
        """
        with self._session.explained():
            status = xact_status(self._session.connection(), xid)
        if status == FORGOTTEN and not self._is_seen(gid, xid):
            raise InDoubt(
                f"{self._node}: it is unknown whether rows of a decided epoch are there.",
                why=f"its ledger row has decided to commit '{gid}', which is gone; the server no longer knows the "
                f"outcome of its transaction id {xid}, and no row in table {self._table.name} has it.",
                do="check whether the rows of that task are in the table; if not, load them again from the source;"
                f" then UPDATE {LEDGER} SET in_progress = NULL for this sink.",
                pipeline=self._pipeline,
                participant=self._sink,
            )
        if status == "in the future":
            raise Diverged(
                f"{self._node}: rows of a decided epoch never reached this server.",
                why=f"its ledger row has decided to commit '{gid}', whose transaction id {xid} the server has not yet "
                "assigned: the ledger came from another server, by a dump, which leaves prepared transactions behind.",
                do="restore a physical backup, or commit it on the former server and dump again; or load the rows of"
                f" that task again from the source, then UPDATE {LEDGER} SET in_progress = NULL for this sink.",
                pipeline=self._pipeline,
                participant=self._sink,
            )
        return status != "aborted"

    def _is_seen(self, gid: str, xid: str) -> bool:
        """Return whether a transaction unknown to the server was committed: its rows, or the ledger, say so.

        A row keeps the id of the transaction that inserted it, in 32 bits: they mean this one while the server has
        assigned fewer ids than that since.
        """
        with self._session.explained():
            connection = self._session.connection()
            row = self._ledger.row(connection)
            begun = Begun.parsed(row.in_progress) if row is not None else None
            if begun is None or gid not in begun.gids:
                return row is not None  # another run has completed it meanwhile
            newest = connection.execute(
                "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text"
            ).fetchone()
            if newest is None or int(newest[0]) - int(xid) >= 2**32:
                return False
            statement = "SELECT 1 FROM {} WHERE xmin OPERATOR(pg_catalog.=) %s::pg_catalog.xid8::pg_catalog.xid LIMIT 1"
            try:
                found = connection.execute(pg.SQL(statement).format(self._table.identifier()), (xid,)).fetchone()
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedColumn) as error:
                logger.info("%s: its table cannot be asked for rows of transaction %s: %s", self._node, xid, error)
                return False
        return found is not None


def xact_status(connection: Connection, xid: str) -> str:
    """Return the server's answer about a transaction."""
    try:
        row = connection.execute("SELECT pg_catalog.pg_xact_status(%s::pg_catalog.xid8)", (xid,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return "in the future"  # a replica was promoted that never saw it
    return row[0] if row is not None and row[0] is not None else FORGOTTEN


def _task_of(gid: str) -> str:
    label = Label.parsed(gid)
    return label.name if label is not None else gid


def _is_busy(error: Exception) -> bool:
    return isinstance(error.__cause__, psycopg.errors.ObjectNotInPrerequisiteState)
