"""Rows that tasks staged in PostgreSQL: prepared transactions and staging tables, found again by their labels.

A label is ``holdfast:<place>:<sink>:<task name>:<nonce>``: the ``gid`` of a prepared transaction, or the comment of
a staging table.  ``place`` distinguishes pipelines of one name that write to different schemas; the nonce keeps two
writers of one task apart, so a label is never used twice: "this prepared transaction is gone" has one meaning.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast import faults
from holdfast.connectors.kit import refusals, sql
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.staging import reach_server
from holdfast.connectors.postgres import copy as postgres_copy
from holdfast.connectors.postgres.copy import CopyColumn
from holdfast.connectors.postgres.dsn import Dsn
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.table import DELETE, ORDER, PostgresTable
from holdfast.errors import Diverged, InDoubt, Unavailable, invariant
from holdfast.ports import Part, Staged, Task

logger = logging.getLogger("holdfast.connectors.postgres")

GID_BYTES = 199
"""PostgreSQL's limit is 200 with the closing zero."""

STAGE_PREFIX = "holdfast_stage_"

DROP_TIMEOUT = "2s"

_BUT_SOME = "(SELECT * FROM {} WHERE NOT ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[])) AS taken"

COPY_LOCK_TIMEOUT = "90s"
"""How long a task waits for a lock, for instance of DDL, before it says Unavailable: it must not wait indefinitely."""


def place(schema_name: str) -> str:
    """Return what distinguishes the schemas of one database in a label."""
    return hashlib.sha256(schema_name.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Label:
    """Whose rows they are."""

    place: str
    sink: str
    pipeline: str
    generation: int
    epoch: int
    text: str

    @property
    def name(self) -> str:
        """:attr:`Task.name` of the attempt that staged them."""
        return self.text.split(":")[3]

    @staticmethod
    def new(schema_name: str, sink: str, task: Task) -> Label:
        """Return a label that was never used before."""
        where = place(schema_name)
        text = f"holdfast:{where}:{sink}:{task.name}:{secrets.token_hex(4)}"
        invariant(len(text) <= GID_BYTES, f"the label {text!r} is longer than a GID may be: {GID_BYTES} bytes.")
        return Label(where, sink, task.pipeline, task.generation, task.epoch, text)

    @staticmethod
    def parsed(text: str | None) -> Label | None:
        """Return a label, or None if the text is none."""
        parts = (text or "").split(":")
        names = parts[3].split("/") if len(parts) == 5 else []
        if parts[0] != "holdfast" or len(names) != 5 or not (names[1].isdecimal() and names[2].isdecimal()):
            return None
        return Label(parts[1], parts[2], names[0], int(names[1]), int(names[2]), ":".join(parts))


def stage_name(label: Label) -> str:
    """Return the staging table's name; its comment holds the label."""
    return STAGE_PREFIX + hashlib.sha256(label.text.encode()).hexdigest()[:24]


# --- writers, on executors --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PostgresWriterFactory:
    """Picklable factory of :class:`PostgresWriter`."""

    dsn: Dsn
    table: PostgresTable
    sink: str
    prefers_prepared: bool

    def __call__(self, task: Task) -> PostgresWriter:
        """Open a writer for one attempt of one task.  No connection is made before the first row."""
        return PostgresWriter(self, task)


class PostgresWriter:
    """COPYs one task's rows into the target, to be prepared, or into a staging table of its own."""

    def __init__(self, factory: PostgresWriterFactory, task: Task) -> None:
        self._table = factory.table
        self._task = task
        self._prefers_prepared = factory.prefers_prepared
        self._label = Label.new(factory.table.schema_name, factory.sink, task)
        name = f"holdfast writer {task.pipeline}/{factory.sink}"
        self._session = PostgresSession(factory.dsn, factory.table.node, factory.table.name, name)
        self._stage: str | None = None
        self._columns: tuple[CopyColumn, ...] = ()
        self._copying = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """COPY a batch."""
        if not batch.num_rows:
            return
        sql.check_keys(self._table.node, self._table.mode, batch)
        is_append = self._table.mode.mode == "append"
        rows = self._table.numbered(batch, self._task.epoch)
        rows = rows if is_append else with_order(self._table, rows, self._row_count)
        with self._session.explained():
            if self._copy is None:
                self._begin()
            assert self._copy is not None
            for piece in postgres_copy.encoded(self._table.node, self._columns, rows):
                self._copy.write(piece)
        self._row_count += batch.num_rows
        faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """End the COPY, then PREPARE or commit the staging table."""
        if self._copy is None:
            return Staged(self._task.name, 0)
        try:
            with self._session.explained():
                self._copy.write(postgres_copy.trailer(self._columns))
                self._copying.close()
            if self._stage is not None:
                self._session.settle(pg.SQL("COMMIT"))
                reference = {"table": self._stage}
            else:
                self._session.settle(pg.SQL("PREPARE TRANSACTION {}").format(pg.Literal(self._label.text)))
                reference = {"gid": self._label.text}
        except InDoubt as error:
            # No one has the handle, so the rows will never be published: an orphan, if they are there at all.
            raise Unavailable(error.what, why=error.why, do="the task is tried again.") from error
        self._session.drop()
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Close the connection: the server rolls back."""
        self._session.drop()
        with suppress(Exception):  # left alone, the COPY would complain in the worker's log that it was not ended
            self._copying.close()

    def _begin(self) -> None:
        connection, prepares = reach_server(self._look)
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        connection.execute(pg.SQL("SET LOCAL lock_timeout = {}").format(pg.Literal(COPY_LOCK_TIMEOUT)))
        if prepares:
            target, self._columns = self._table.identifier(), self._table.copied
        else:
            self._stage = stage_name(self._label)
            target, self._columns = self._table.identifier(self._stage), self._table.copied_to_stage
            connection.execute(self._table.create_stage(target, temporary=False))
            connection.execute(pg.SQL("COMMENT ON TABLE {} IS {}").format(target, pg.Literal(self._label.text)))
        # Left by stage(), or by closing the connection: a writer lives longer than any block here.
        self._copy = self._copying.enter_context(connection.cursor().copy(copy_statement(target, self._columns)))
        self._copy.write(postgres_copy.header(self._columns))

    def _look(self) -> tuple[Connection, bool]:
        connection = self._session.connection()
        return connection, self._prefers_prepared and _may_prepare(connection, self._table)


def _may_prepare(connection: Connection, table: PostgresTable) -> bool:
    """Return whether a quarter of the server's slots is free, and the table still keeps no key unique.

    PREPARE without a slot would lose the task's work.  An index that was made during the run would let a task wait for
    the prepared rows of another with the same key, which may wait for this task's epoch.
    """
    row = connection.execute(
        "SELECT pg_catalog.current_setting('max_prepared_transactions')::int,"
        " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts),"
        " EXISTS (SELECT FROM pg_catalog.pg_index WHERE (indisunique OR indisexclusion)"
        " AND indrelid OPERATOR(pg_catalog.=)"
        " pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::pg_catalog.text, %s::pg_catalog.text)))",
        (table.schema_name, table.name),
    ).fetchone()
    assert row is not None
    slot_count, used_count, is_unique = row
    return 4 * used_count < 3 * slot_count and not is_unique


def with_order(table: PostgresTable, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return an upsert's batch with each row's place and its delete flag."""
    count = batch.num_rows
    flags = pa.repeat(False, count) if table.mode.delete is None else batch.column(table.mode.delete).fill_null(False)
    order = pa.array(np.arange(first, first + count, dtype=np.int64))
    return batch.append_column(ORDER, order).append_column(DELETE, flags)


def copy_statement(target: pg.Composable, columns: Sequence[CopyColumn]) -> pg.Composed:
    """Return the COPY that takes :func:`~holdfast.connectors.postgres.copy.encoded` rows."""
    names = pg.SQL(", ").join(pg.Identifier(column.name) for column in columns)
    form = pg.SQL("COPY {} ({}) FROM STDIN (FORMAT {})")
    return form.format(target, names, pg.SQL(postgres_copy.copy_format(columns)))


@contextmanager
def copying(connection: Connection, target: pg.Composable, columns: Sequence[CopyColumn]) -> Iterator[psycopg.Copy]:
    """COPY into a table for the length of the block (the driver's carried rows)."""
    with connection.cursor().copy(copy_statement(target, columns)) as copy:
        copy.write(postgres_copy.header(columns))
        yield copy
        copy.write(postgres_copy.trailer(columns))


# --- the driver's view ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PostgresStaging:
    """What tasks staged for one sink, as the driver sees it."""

    session: PostgresSession
    table: PostgresTable
    pipeline: str
    sink: str

    def check_present(self, connection: Connection, parts: Sequence[Part]) -> dict[str, str]:
        """Return the prepared transactions among the parts, each with its transaction id.

        Raises
        ------
        Diverged
            If a staged part's rows are gone.
        """
        present, prepared = self._present(connection, parts)
        for part in parts:
            if isinstance(part, Staged) and not present.issuperset(_names_of(part)):
                raise self.gone(part.name)
        return prepared

    def expired(self, connection: Connection, parts: Sequence[Staged], *, counts_rows: bool) -> list[str]:
        """Return the names of the parts whose rows are gone; a staging table has its rows, where these are counted."""
        present, _ = self._present(connection, parts)
        found = [part.name for part in parts if not present.issuperset(_names_of(part))]
        for part in parts if counts_rows else ():
            if part.name not in found and not self._is_whole(connection, part):
                found.append(part.name)
        return found

    def _is_whole(self, connection: Connection, part: Staged) -> bool:
        promised = part.row_count + len(refusals.left_out(part))
        query = pg.SQL("SELECT pg_catalog.count(*) FROM {}")
        tables = map(self.table.identifier, tables_of([part]))
        return all(connection.execute(query.format(table)).fetchone() == (promised,) for table in tables)

    def gone(self, name: str) -> Diverged:
        """Return the error of a part whose rows are gone."""
        why = "its prepared transaction was rolled back, or its staging table dropped."
        return rows_gone(self.table.node, name, why, pipeline=self.pipeline, participant=self.sink)

    def _present(self, connection: Connection, parts: Sequence[Part]) -> tuple[set[str], dict[str, str]]:
        """Return what is there of what parts name, and the transaction ids of what is prepared."""
        gids, tables = gids_of(parts), tables_of(parts)
        prepared = transaction_ids(connection, gids) if gids else {}
        present = set(prepared)
        if tables:
            found = connection.execute(
                "SELECT name FROM pg_catalog.unnest(%s::pg_catalog.text[]) AS name WHERE"
                " pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::pg_catalog.text, name)) IS NOT NULL",
                (tables, self.table.schema_name),
            ).fetchall()
            present |= {name for (name,) in found}
        return present, prepared

    def drop(self, gids: Collection[str], tables: Collection[str]) -> int:
        """Drop staged rows; what is gone already is fine.  Returns how many were dropped."""
        count = 0
        for gid in gids:
            statement = pg.SQL("ROLLBACK PREPARED {}").format(pg.Literal(gid))
            count += self._dropped(statement, gid, absent=psycopg.errors.UndefinedObject)
        for name in tables:
            statement = pg.SQL("DROP TABLE {}").format(self.table.identifier(name))
            count += self._dropped(statement, name, absent=psycopg.errors.UndefinedTable)
        return count

    def _dropped(self, statement: pg.Composed, name: str, *, absent: type[psycopg.Error]) -> bool:
        """One statement, one transaction.  A lock held by a reader or a busy transaction must not stop the run."""
        with self.session.explained():
            connection = self.session.connection()
            try:
                connection.execute(pg.SQL("SET lock_timeout = {}").format(pg.Literal(DROP_TIMEOUT)))
                connection.execute(statement)
            except absent:
                return False
            except (
                psycopg.errors.LockNotAvailable,
                psycopg.errors.ObjectNotInPrerequisiteState,  # another session is ending it right now
                psycopg.errors.InsufficientPrivilege,
            ) as error:
                logger.warning("%s: could not drop %s now, will try again: %s", self.table.node, name, error)
                return False
            finally:
                if not connection.closed:
                    connection.execute("SET lock_timeout = 0")
        return True

    def orphans(self, generation: int, below_epoch: int) -> tuple[list[str], list[str]]:
        """Return gids and staging tables of lower generations, and of this one below an epoch."""
        found = [
            (name, label)
            for name, label in self.labelled()
            if (label.generation, label.epoch) < (generation, below_epoch)
        ]
        # A prepared transaction's gid is its label; a staging table's name is a hash of it.
        gids = [name for name, label in found if name == label.text]
        return gids, [name for name, label in found if name != label.text]

    def labelled(self) -> list[tuple[str, Label]]:
        """Return everything staged for this sink: gid or table, and its label."""
        with self.session.explained():
            connection = self.session.connection()
            gids = connection.execute(
                "SELECT gid FROM pg_catalog.pg_prepared_xacts"
                " WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
            ).fetchall()
            tables = connection.execute(
                "SELECT c.relname, pg_catalog.obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c"
                " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
                " WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relkind OPERATOR(pg_catalog.=) 'r'"
                " AND pg_catalog.starts_with(c.relname, %s)",
                (self.table.schema_name, STAGE_PREFIX),
            ).fetchall()
        ours = (place(self.table.schema_name), self.sink, self.pipeline)
        labels = [(name, Label.parsed(text)) for name, text in [*((gid, gid) for (gid,) in gids), *tables]]
        return [(name, label) for name, label in labels if label and (label.place, label.sink, label.pipeline) == ours]


def transaction_ids(connection: Connection, gids: Sequence[str]) -> dict[str, str]:
    """Return gid -> transaction id of those that exist.

    The catalog gives the lower 32 bits only: the id meant is the one nearest to the snapshot's.  It may be beyond it,
    as a snapshot ends with the newest id that *ended*, and a prepared transaction has not.
    """
    rows = connection.execute(
        "SELECT gid, transaction::pg_catalog.text::bigint,"
        " pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::bigint"
        " FROM pg_catalog.pg_prepared_xacts WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
        " AND gid OPERATOR(pg_catalog.=) ANY(%s)",
        (list(gids),),
    ).fetchall()
    return {gid: str(ended + (short - ended + 2**31) % 2**32 - 2**31) for gid, short, ended in rows}


def _names_of(part: Staged) -> list[str]:
    return [*gids_of([part]), *tables_of([part])]


def gids_of(parts: Sequence[Part]) -> list[str]:
    """Return the prepared transactions among staged parts."""
    return [part.reference["gid"] for part in parts if isinstance(part, Staged) and "gid" in part.reference]


def tables_of(parts: Sequence[Part]) -> list[str]:
    """Return the staging tables among staged parts."""
    return [part.reference["table"] for part in parts if isinstance(part, Staged) and "table" in part.reference]


def taken(stage: pg.Composable, part: Part) -> pg.Composable:
    """Return what of a staging table is published."""
    places = refusals.left_out(part) if isinstance(part, Staged) else []
    return pg.SQL(_BUT_SOME).format(stage, pg.Literal(places)) if places else stage
