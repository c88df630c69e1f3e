"""The ledger of a PostgreSQL sink: its row, and what the positions in it mean.

The row is taken by a generation, locked first of all, and moved together with the rows.  What positions mean
(:mod:`holdfast.connectors.kit.explained`) is written in the transaction of the epoch that needs it first, under that
lock.

Invariants: ``epoch`` and ``generation`` only grow; but ``epoch`` goes back where every row of the last decision was
rolled back by somebody else.  ``in_progress`` names the prepared transactions that the row has decided to commit: any
run that finds it commits them, in any order, any number of times.  Design: 0003.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit import sql
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
from holdfast.connectors.kit.rewinds import EPOCHS, of_table
from holdfast.connectors.kit.sql import APPEND, CONTROL, LEDGER, LedgerRow
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.staging import PostgresStaging
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import EpochRecord, Explanation, Publication, PublishedEpoch, Reset, SinkLedger

_OWN = (LEDGER, EXPLANATIONS, EPOCHS, CONTROL)
"""Tables beside the target with rows of each sink."""

logger = logging.getLogger("holdfast.connectors.postgres")

OURS = pg.SQL("pipeline OPERATOR(pg_catalog.=) %s AND sink OPERATOR(pg_catalog.=) %s")
"""The rows of one sink, in each table of ours."""


@dataclass(frozen=True)
class RowBefore:
    """What the ledger row said before a decision: where it goes back to, if nothing of that can become visible."""

    epoch: int
    positions: str
    pts: int | None
    recent_ends: str = ""


@dataclass(frozen=True)
class Begun:
    """The ledger row's decision to commit prepared transactions: ``in_progress``.

    ``first`` is the first epoch of the decision; all from there to the row's epoch are decided and not complete.
    ``gids`` gives each prepared transaction's id.  ``before`` is None where rows of these epochs are visible with the
    decision (they were in staging tables), or an older version made it.
    """

    first: int
    gids: Mapping[str, str]
    before: RowBefore | None = None

    @property
    def text(self) -> str:
        """As the ledger stores it."""
        before = {} if self.before is None else {"before": astuple(self.before)}
        return json.dumps({"first": self.first, "gids": dict(self.gids), **before})

    @staticmethod
    def parsed(text: str | None) -> Begun | None:
        """Return what the ledger stores; None when nothing is in progress."""
        if text is None:
            return None
        value = json.loads(text)
        before = None
        if "before" in value:
            epoch, positions, pts, recent_ends = value["before"]
            # Version 09f82eec had the batch time of the epoch in its place, or null.
            before = RowBefore(epoch, positions, pts, recent_ends if isinstance(recent_ends, str) else "")
        return Begun(int(value["first"]), value["gids"], before)


class PostgresLedger:
    """One sink's row of ``holdfast_ledger``, in the schema of its table."""

    def __init__(self, session: PostgresSession, table: PostgresTable, pipeline: str, sink: str) -> None:
        self._session = session
        self._table = table
        self._node = table.node
        self._pipeline = pipeline
        self._sink = sink
        self._took: tuple[int, str, LedgerRow] | None = None

    # --- the takeover -------------------------------------------------------------------------------------------------

    def take(self, generation: int, *, lock_timeout: str) -> LedgerRow:
        """Raise the generation; return the row as it was.

        Parameters
        ----------
        generation : int
            The new one.
        lock_timeout : str
            How long to wait for the row before the session that holds it is ended.

        Raises
        ------
        Fenced
            If a generation as high has taken it already.  Nothing is changed.
        """
        for last_try in (False, False, True):
            try:
                with self._session.transaction() as connection:
                    connection.execute(set_lock_timeout(lock_timeout))
                    self._create(connection)
                    connection.execute(
                        pg.SQL(
                            "INSERT INTO {} (pipeline, sink, epoch, generation, positions)"
                            " VALUES (%s, %s, 0, 0, '{{}}') ON CONFLICT DO NOTHING"
                        ).format(self._name),
                        (self._pipeline, self._sink),
                    )
                    row = self.locked_row(connection)
                    assert row is not None
                    if row.generation >= generation:
                        return self._taken_already(connection, generation, row)
                    xid = connection.execute(
                        pg.SQL(
                            "UPDATE {} SET generation = %s, updated_at = pg_catalog.now() WHERE {}"
                            " RETURNING pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text"
                        ).format(self._name, OURS),
                        (generation, self._pipeline, self._sink),
                    ).fetchone()
                    assert xid is not None
                    self._took = (generation, xid[0], row)
                return row
            except Unavailable as error:
                if last_try or not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                    raise
                self._end_owner()
        raise AssertionError

    def _taken_already(self, connection: Connection, generation: int, row: LedgerRow) -> LedgerRow:
        """Return the row as it was if it was this very object that took it, in a COMMIT whose reply was lost."""
        if self._took is not None and row.generation == generation == self._took[0]:
            status = connection.execute(
                "SELECT pg_catalog.pg_xact_status(%s::pg_catalog.xid8)", (self._took[1],)
            ).fetchone()
            if status == ("committed",):
                return self._took[2]
        raise sql.fenced(self._node, self._pipeline, generation, row.generation)

    def _create(self, connection: Connection) -> None:
        if catalog.check_ledger(connection, self._table):
            return
        catalog.check_may_create(connection, self._node, self._table.schema_name, f"table {LEDGER}")
        catalog.lock_ddl(connection)
        connection.execute(
            pg.SQL(
                "CREATE TABLE IF NOT EXISTS {} (pipeline pg_catalog.text, sink pg_catalog.text, epoch bigint NOT NULL,"
                " generation bigint NOT NULL, positions pg_catalog.text NOT NULL, pts bigint,"
                " in_progress pg_catalog.text, updated_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now(),"
                " PRIMARY KEY (pipeline, sink))"
            ).format(self._name)
        )

    def _end_owner(self) -> None:
        """End the session that holds the ledger row: its driver is dead, or about to be fenced.

        Its publish is undone as a whole, or is committed already.  ``xmax`` of the row is the transaction that holds
        it, so it can be no other.
        """
        with self._session.explained():
            connection = self._session.connection()
            if not catalog.check_ledger(connection, self._table):
                return  # tables are being created, here or elsewhere in the database
            ended = connection.execute(
                pg.SQL(
                    "SELECT a.pid, pg_catalog.pg_terminate_backend(a.pid)"
                    " FROM {} AS l JOIN pg_catalog.pg_stat_activity AS a ON a.backend_xid OPERATOR(pg_catalog.=) l.xmax"
                    " WHERE l.pipeline OPERATOR(pg_catalog.=) %s AND l.sink OPERATOR(pg_catalog.=) %s"
                    " AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()"
                ).format(self._name),
                (self._pipeline, self._sink),
            ).fetchall()
        for pid, _ in ended:
            logger.info("%s: ended server process %d, which still held the ledger row", self._node, pid)

    # --- the row ------------------------------------------------------------------------------------------------------

    def row(self, connection: Connection, suffix: str = "") -> LedgerRow | None:
        """Return the row; None when it is gone."""
        found = connection.execute(
            pg.SQL("SELECT epoch, generation, positions, pts, in_progress FROM {} WHERE {} {}").format(
                self._name, OURS, pg.SQL(suffix)
            ),
            (self._pipeline, self._sink),
        ).fetchone()
        return LedgerRow(*found) if found else None

    def row_if_any(self, connection: Connection) -> LedgerRow | None:
        """Return the row; None too where the sink was never opened and has no ledger yet."""
        return self.row(connection) if catalog.check_ledger(connection, self._table) else None

    def locked_row(self, connection: Connection) -> LedgerRow | None:
        """Return the row, locked until the transaction ends; None when it is gone, or the whole ledger is."""
        try:
            return self.row(connection, "FOR UPDATE")
        except psycopg.errors.UndefinedTable:
            return None

    def move(self, connection: Connection, last: EpochRecord, begun: Begun | None) -> str:
        """Move the locked row to an epoch, with what it decides to commit; return the transaction's id."""
        xid = connection.execute(
            pg.SQL(
                "UPDATE {} SET epoch = %s, positions = %s, pts = %s, in_progress = %s, updated_at = pg_catalog.now()"
                " WHERE {} RETURNING pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text"
            ).format(self._name, OURS),
            (
                last.epoch,
                sql.positions_text(last.positions),
                last.pts,
                begun.text if begun else None,
                self._pipeline,
                self._sink,
            ),
        ).fetchone()
        assert xid is not None
        return str(xid[0])

    def take_back(self, connection: Connection, begun: Begun) -> bool:
        """Let the row say what it said before a decision; False, with nothing changed, if it says something else."""
        before = begun.before
        if before is None:
            return False
        changed = connection.execute(
            pg.SQL(
                "UPDATE {} SET epoch = %s, positions = %s, pts = %s, in_progress = NULL, updated_at = pg_catalog.now()"
                " WHERE {} AND in_progress OPERATOR(pg_catalog.=) %s"
            ).format(self._name, OURS),
            (before.epoch, before.positions, before.pts, self._pipeline, self._sink, begun.text),
        )
        return changed.rowcount == 1

    def clear(self, connection: Connection, begun: Begun) -> None:
        """Say that what the row had decided is complete."""
        connection.execute(
            pg.SQL("UPDATE {} SET in_progress = NULL WHERE {} AND in_progress OPERATOR(pg_catalog.=) %s").format(
                self._name, OURS
            ),
            (self._pipeline, self._sink, begun.text),
        )

    @property
    def _name(self) -> pg.Identifier:
        return self._table.identifier(LEDGER)


class PostgresExplanations:
    """One sink's rows, in the schema of its table."""

    def __init__(self, table: PostgresTable, pipeline: str, sink: str) -> None:
        self._table = table
        self._ours = (pipeline, sink)
        self._is_kept = False

    def begin(self, connection: Connection, row: LedgerRow) -> None:
        """Create the table when absent; forget what explains positions that nobody holds any more.

        A role that may write the ledger, but not this table or none of its own, keeps nothing here: the sink is as
        exact as before, but cannot help when the checkpoint is lost.
        """
        self._is_kept = False
        try:
            exists = catalog.check_explanations(connection, self._table)
            if not exists:
                what = f"table {EXPLANATIONS}"
                catalog.check_may_create(connection, self._table.node, self._table.schema_name, what)
        except InvalidPipeline as error:
            logger.warning("%s A lost checkpoint could not be restored from this sink. %s", error.what, error.do)
            return
        self._is_kept = True
        if exists:
            if not row.epoch:
                connection.execute(pg.SQL("DELETE FROM {} WHERE {}").format(self._name, OURS), self._ours)
            return
        catalog.lock_ddl(connection)
        connection.execute(
            pg.SQL(
                "CREATE TABLE IF NOT EXISTS {} (pipeline pg_catalog.text, sink pg_catalog.text, source pg_catalog.text,"
                " first bigint, last bigint NOT NULL, text pg_catalog.text NOT NULL,"
                " PRIMARY KEY (pipeline, sink, source, first))"
            ).format(self._name)
        )

    def held(self, connection: Connection) -> dict[str, int] | None:
        """Return source -> highest number; None where nothing can be kept."""
        return self._numbers(connection) if self._is_kept else None

    def recent_ends(self, connection: Connection, epoch: int) -> str:
        """Return what an epoch said of the last ends; empty where it is not the last one, or said nothing."""
        if not catalog.check_explanations(connection, self._table):
            return ""
        row = connection.execute(
            pg.SQL(
                "SELECT text FROM {} WHERE {} AND source OPERATOR(pg_catalog.=) %s AND last OPERATOR(pg_catalog.=) %s"
            ).format(self._name, OURS),
            (*self._ours, RECENT_ENDS, epoch),
        ).fetchone()
        return "" if row is None else str(row[0])

    def take(self, connection: Connection, publications: Sequence[Publication]) -> None:
        """Keep what these epochs explain and the sink lacks, their ends, and what the last one says of recent ends."""
        if not self._is_kept:
            return
        if publications:
            self._note_ends(connection, publications)
        if publications and (ended := publications[-1].record).recent_ends:
            self.set_recent_ends(connection, ended.epoch, ended.recent_ends)
        if not needed(publications):
            return
        for each in lacking(publications, self._numbers(connection), self._table.node):
            self._insert(connection, each.source, each.number, each.number, each.text)
            for first, last in merged_at(each.number):
                self._merge(connection, each.source, first, last)

    def _note_ends(self, connection: Connection, publications: Sequence[Publication]) -> None:
        """One statement, however many epochs: a round trip to the server is what costs."""
        at_us = time.time_ns() // 1000
        by_place = {row[0]: row for row in (end_row(each.record, at_us) for each in publications)}
        rows = [(*self._ours, ENDS, *row) for row in by_place.values()]
        statement = pg.SQL(
            "INSERT INTO {} (pipeline, sink, source, first, last, text) VALUES {}"
            " ON CONFLICT (pipeline, sink, source, first) DO UPDATE SET last = excluded.last, text = excluded.text"
        ).format(self._name, pg.SQL(", ").join([pg.SQL("(%s, %s, %s, %s, %s, %s)")] * len(rows)))
        connection.execute(statement, [value for row in rows for value in row])

    def ends(self, connection: Connection) -> list[PublishedEpoch]:
        """Return the last epochs."""
        if not catalog.check_explanations(connection, self._table):
            return []
        statement = pg.SQL("SELECT last, text FROM {} WHERE {} AND source OPERATOR(pg_catalog.=) %s")
        return ends_in(connection.execute(statement.format(self._name, OURS), (*self._ours, ENDS)).fetchall())

    def set_recent_ends(self, connection: Connection, epoch: int, recent_ends: str) -> None:
        """Keep what the last epoch says of recent ends."""
        if self._is_kept:
            statement = pg.SQL("DELETE FROM {} WHERE {} AND source OPERATOR(pg_catalog.=) %s").format(self._name, OURS)
            connection.execute(statement, (*self._ours, RECENT_ENDS))
            self._insert(connection, RECENT_ENDS, 0, epoch, recent_ends)

    def all(self, connection: Connection, row: LedgerRow | None) -> list[Explanation]:
        """Return everything that is kept of what the ledger row holds."""
        if row is None or not row.epoch or not catalog.check_explanations(connection, self._table):
            return []
        rows = connection.execute(
            pg.SQL(
                "SELECT source, first, text FROM {} WHERE {} AND source OPERATOR(pg_catalog.<>) %s"
                " ORDER BY source, first"
            ).format(self._name, OURS),
            (*self._ours, ENDS),
        ).fetchall()
        return parted(rows)

    def _numbers(self, connection: Connection) -> dict[str, int]:
        rows = connection.execute(
            pg.SQL("SELECT source, pg_catalog.max(last) FROM {} WHERE {} GROUP BY source").format(self._name, OURS),
            self._ours,
        ).fetchall()
        return numbers(rows)

    def _merge(self, connection: Connection, source: str, first: int, last: int) -> None:
        where = pg.SQL("{} AND source OPERATOR(pg_catalog.=) %s AND first OPERATOR(pg_catalog.>=) %s").format(OURS)
        values = (*self._ours, source, first)
        rows = connection.execute(
            pg.SQL("SELECT text FROM {} WHERE {} ORDER BY first").format(self._name, where), values
        ).fetchall()
        connection.execute(pg.SQL("DELETE FROM {} WHERE {}").format(self._name, where), values)
        self._insert(connection, source, first, last, joined(text for (text,) in rows))

    def _insert(self, connection: Connection, source: str, first: int, last: int, text: str) -> None:
        statement = pg.SQL("INSERT INTO {} (pipeline, sink, source, first, last, text) VALUES (%s, %s, %s, %s, %s, %s)")
        connection.execute(statement.format(self._name), (*self._ours, source, first, last, text))

    @property
    def _name(self) -> pg.Identifier:
        return self._table.identifier(EXPLANATIONS)


def history(session: PostgresSession, name: str, pipeline: str) -> list[PublishedEpoch]:
    """Return the last epochs of a sink, as :func:`asked` asks."""
    with session.explained():
        connection = session.connection()
        schema_name, table_name = catalog.located(connection, session.node, session.table)
        table = PostgresTable(session.node, schema_name, table_name, (), pa.schema([]), APPEND)
        return PostgresExplanations(table, pipeline, name).ends(connection)


def asked(session: PostgresSession, name: str, pipeline: str) -> SinkLedger | None:
    """Return what the ledger beside a sink's table says of it; None where there is none.  Changes nothing.

    Raises
    ------
    InvalidPipeline
        If there is no such schema, or this role may not use the ledger.
    Unavailable
        If the server does not answer.
    """
    with session.explained():
        connection = session.connection()
        schema_name, table_name = catalog.located(connection, session.node, session.table)
        table = PostgresTable(session.node, schema_name, table_name, (), pa.schema([]), APPEND)
        row = PostgresLedger(session, table, pipeline, name).row_if_any(connection)
        if row is None:
            return None
        kept = PostgresExplanations(table, pipeline, name)
        try:
            told, recent_ends = kept.all(connection, row), kept.recent_ends(connection, row.epoch)
        except InvalidPipeline:
            told, recent_ends = [], ""  # a role that may not read the table keeps none there
        return SinkLedger(replace(row.held(), recent_ends=recent_ends), tuple(told))


def reset(session: PostgresSession, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
    """Remove what the tables beside a sink's say of it; parameters as of :class:`~holdfast.ports.ResettableSpec`.

    The durable writes: 1. what is staged, and prepared: as if nobody had decided it; 2. a transaction with the ledger
    and the rows.  A crash between them leaves a sink whose decided rows are gone, of which no start takes it for whole.
    """
    with session.explained():
        connection = session.connection()
        schema_name, table_name = catalog.located(connection, session.node, session.table)
        table = PostgresTable(session.node, schema_name, table_name, (), pa.schema([]), APPEND)
        staging = PostgresStaging(session, table, pipeline, name)
        there = {each for each in (*_OWN, table_name) if catalog.has_table(connection, schema_name, each)}
        staged_count = len(staging.labelled())
    if not is_dry_run:
        staging.drop(*staging.orphans(sys.maxsize, 0))
    counts = {}
    with session.rolled_back() if is_dry_run else session.transaction() as connection:
        for own in (each for each in _OWN if each in there):
            statement = pg.SQL("DELETE FROM {} WHERE {}").format(table.identifier(own), OURS)
            counts[own] = connection.execute(statement, (pipeline, name)).rowcount
        if rows and table_name in there:
            counts[table_name] = connection.execute(pg.SQL("DELETE FROM {}").format(table.identifier())).rowcount
    if not is_dry_run:
        staging.drop(*staging.orphans(sys.maxsize, 0))  # what a task that was alive has staged meanwhile
    where = f"in schema {schema_name}"
    return of_table(counts, {"staged tasks": staged_count}, table_name, where, rows=rows and table_name in there)


def set_lock_timeout(duration: str) -> pg.Composed:
    """Return the statement that limits waiting for locks until the transaction ends."""
    return pg.SQL("SET LOCAL lock_timeout = {}").format(pg.Literal(duration))
