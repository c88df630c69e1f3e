"""Prepared transactions that the ledger row has decided to commit: committed, or proven to be.

Any run that finds ``in_progress`` completes it, any number of times: a transaction that is gone was committed by an
earlier call, or by a predecessor with the same decision, and its transaction id proves it.  Design: 0003.
"""

from __future__ import annotations

import logging

import psycopg
from psycopg import sql as pg
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from holdfast import faults
from holdfast.errors import Diverged, HoldfastError, InDoubt, Unavailable
from holdfast.sinks.postgres.ledger import Begun, PostgresLedger
from holdfast.sinks.postgres.session import Connection, PostgresSession
from holdfast.sinks.postgres.table import PostgresTable
from holdfast.sinks.sql import LEDGER

logger = logging.getLogger("holdfast.sinks.postgres")

BUSY_S = 10.0
"""How long to wait for another session that is ending the same prepared transaction."""

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

    def complete(self, begun: Begun, epoch: int) -> None:
        """Commit the prepared transactions that the ledger row has decided on, then say so in the row.

        One that is gone was committed already by an earlier call, or by a predecessor with the same decision; its
        transaction id proves it.
        """
        try:
            for gid, xid in begun.gids.items():
                faults.reach("publish-begun", epoch)
                with self._session.explained():
                    self._session.connection()
                self._commit(gid, xid)
            with self._session.explained():
                self._ledger.clear(self._session.connection(), begun)
        except Unavailable as error:
            # The decision is made, so "nothing was changed" would be false.
            raise InDoubt(
                f"{self._node}: epoch {epoch} is decided, and not all of it is visible yet.",
                why=error.what,
                do="nothing by hand: publishing or opening the sink again completes it.",
                pipeline=self._pipeline,
                participant=self._sink,
                epoch=epoch,
            ) from error

    def _commit(self, gid: str, xid: str) -> None:
        statement = pg.SQL("COMMIT PREPARED {}").format(pg.Literal(gid))
        # Busy: a predecessor that is just being fenced completes the same decision.
        for attempt in Retrying(
            stop=stop_after_delay(BUSY_S), wait=wait_fixed(0.02), retry=retry_if_exception(_is_busy), reraise=True
        ):
            with attempt:
                try:
                    self._session.settle(statement)
                except HoldfastError as error:
                    # Gone: a crash or a lost reply followed its COMMIT PREPARED, before ``in_progress`` was cleared.
                    if not isinstance(error.__cause__, psycopg.errors.UndefinedObject):
                        raise
                    self._check_committed(gid, xid)

    def _check_committed(self, gid: str, xid: str) -> None:
        """Raise :class:`Diverged` if a transaction that the ledger row has decided to commit did not commit here.

        Raises
        ------
        InDoubt
            If the server no longer knows its outcome, and no row of it is found.
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
        if status == "aborted":
            raise Diverged(
                f"{self._node}: rows of a decided epoch were rolled back.",
                why=f"ROLLBACK PREPARED '{gid}' was run after the ledger row had decided to commit it.",
                do="see the server's log for who ran it; load the rows of that task again from the source, then UPDATE "
                f"{LEDGER} SET in_progress = NULL for this sink.",
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


def _is_busy(error: BaseException) -> bool:
    return isinstance(error.__cause__, psycopg.errors.ObjectNotInPrerequisiteState)
