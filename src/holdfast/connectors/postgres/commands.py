"""Commands to a PostgreSQL table: noted in ``holdfast_control``, and carried out in the transaction of the rows.

Invariant: the columns are folded from what is noted, within the transaction that writes; so they are those that the
table has, whatever was rolled back, restored or in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.control.columns import Awaited, Columns, ControlColumns, pieces
from holdfast.connectors.control.commands import (
    AddColumn,
    Command,
    DropPartition,
    Widen,
    check_drops_own,
    kind_of,
    text_of,
    type_of,
    wrong,
)
from holdfast.connectors.kit.sql import CONTROL
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres import command_blobs as blobs
from holdfast.connectors.postgres.comparing.content import shards
from holdfast.connectors.postgres.session import Connection
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.types import fits, qualified_type
from holdfast.errors import InvalidPipeline
from holdfast.ports import Carried, Part

COPIED_BYTES = 32 * 2**20
"""Of rows between two commands that one COPY takes, about."""

WriteRows: TypeAlias = Callable[[Connection, PostgresTable, pa.Table, int], None]

_OURS = "pipeline OPERATOR(pg_catalog.=) %s AND sink OPERATOR(pg_catalog.=) %s"
_LIMITED_TEXTS = frozenset({"varchar", "bpchar"})


class PostgresControl:
    """What a sink does with control rows.  The caller holds the transaction.

    Parameters
    ----------
    table : PostgresTable
        The target, with the columns of data that the pipeline declares.
    columns : ControlColumns
        Which columns of the rows are not data.
    pipeline, sink : str
        Identity.
    write_rows : callable
        ``write_rows(connection, table, rows, epoch)`` writes rows of data.
    """

    def __init__(
        self, table: PostgresTable, columns: ControlColumns, pipeline: str, sink: str, write_rows: WriteRows
    ) -> None:
        self.awaited = Awaited(columns)
        self._table = table
        self._columns = columns
        self._ours = (pipeline, sink)
        self._write_rows = write_rows
        self._known: tuple[Columns, PostgresTable] = (Columns(table.schema), table)

    def batches(self, connection: Connection, part: Part) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, carried or staged."""
        if isinstance(part, Carried):
            return iter(part.rows.to_batches())
        return blobs.batches(connection, self._table, part)

    def write(self, connection: Connection, batches: Iterable[pa.RecordBatch], epoch: int) -> None:
        """Write rows of data, and carry out the commands among them, in their order."""
        now = self._now(connection)
        table = self._table_of(connection, now)
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for batch in batches:
            for piece in pieces(batch, self._columns):
                if isinstance(piece, pa.RecordBatch):
                    waiting.append(now.conformed(piece, self._columns))
                    waiting_bytes += waiting[-1].nbytes
                    if waiting_bytes > COPIED_BYTES:
                        self._flush(connection, table, waiting, epoch)
                        waiting_bytes = 0
                    continue
                self._flush(connection, table, waiting, epoch)
                waiting_bytes = 0
                before, now = now, now.after(piece)
                if now is not before or self._has_effect(table, piece):
                    self._note(connection, piece, epoch)
                    self._carry_out(connection, table, now, piece)
                    now = self._now(connection)
                    table = self._checked(connection, now, piece)
        self._flush(connection, table, waiting, epoch)

    def _flush(self, connection: Connection, table: PostgresTable, waiting: list[pa.RecordBatch], epoch: int) -> None:
        if waiting:
            self._write_rows(connection, table, pa.Table.from_batches(waiting), epoch)
            waiting.clear()

    def counts(self, connection: Connection) -> dict[str, int]:
        """Return how many commands of each kind were carried out."""
        return dict(self._noted(connection, "kind, pg_catalog.count(*)", "true GROUP BY kind"))

    # --- the columns --------------------------------------------------------------------------------------------

    def _now(self, connection: Connection) -> Columns:
        """Return the columns as this transaction sees them."""
        which = "kind OPERATOR(pg_catalog.=) 'schema' ORDER BY number"
        return Columns(self._table.schema).noted(text for (text,) in self._noted(connection, "command", which))

    def _table_of(self, connection: Connection, now: Columns) -> PostgresTable:
        known = self._known  # a trial may be made meanwhile
        if now != known[0]:
            known = self._known = (now, catalog.again(connection, self._table, now.schema))
        return known[1]

    def _checked(self, connection: Connection, now: Columns, command: Command) -> PostgresTable:
        try:
            return self._table_of(connection, now)
        except InvalidPipeline as error:
            raise wrong(text_of(command), error.what.rstrip(".")) from error

    def _noted(self, connection: Connection, what: str, which: str) -> list[tuple[Any, ...]]:
        if not catalog.has_table(connection, self._table.schema_name, CONTROL):
            return []
        statement = pg.SQL(f"SELECT {what} FROM {{}} WHERE {_OURS} AND {which}")
        return connection.execute(statement.format(self._name), self._ours).fetchall()

    # --- commands -----------------------------------------------------------------------------------------------

    def _has_effect(self, table: PostgresTable, command: Command) -> bool:
        """Return whether a command that leaves the columns as they are changes the table."""
        if isinstance(command, Widen):  # a text of any length, where the table has limited it
            base = next((column.base for column in table.columns if column.name == command.column), "")
            return base in _LIMITED_TEXTS and pa.types.is_string(type_of(command))
        return isinstance(command, DropPartition)

    def _note(self, connection: Connection, command: Command, epoch: int) -> None:
        if not catalog.has_table(connection, self._table.schema_name, CONTROL):
            what = f"table {CONTROL}"
            catalog.check_may_create(connection, self._table.node, self._table.schema_name, what)
            catalog.lock_ddl(connection)
            connection.execute(
                pg.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (pipeline pg_catalog.text, sink pg_catalog.text, number bigint,"
                    " epoch bigint NOT NULL, kind pg_catalog.text NOT NULL, command pg_catalog.text NOT NULL,"
                    " PRIMARY KEY (pipeline, sink, number))"
                ).format(self._name)
            )
        kind = kind_of(command)
        statement = pg.SQL(
            "INSERT INTO {0} (pipeline, sink, number, epoch, kind, command) SELECT %s, %s,"
            f" coalesce(pg_catalog.max(number), 0) OPERATOR(pg_catalog.+) 1, %s, %s, %s FROM {{0}} WHERE {_OURS}"
        ).format(self._name)
        connection.execute(statement, (*self._ours, epoch, kind, text_of(command), *self._ours))

    def _carry_out(self, connection: Connection, table: PostgresTable, now: Columns, command: Command) -> None:
        target = table.identifier()
        match command:
            case AddColumn(name, _):
                form = pg.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}")
                kind = pg.SQL(qualified_type(now.schema.field(name).type))
                connection.execute(form.format(target, pg.Identifier(name), kind))
            case Widen(name, _):
                field = now.schema.field(name)
                column = next(column for column in table.columns if column.name == name)
                if not fits(field.type, column) or self._has_effect(table, command):
                    form = pg.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}")
                    kind = pg.SQL(qualified_type(field.type))
                    connection.execute(form.format(target, pg.Identifier(name), kind))
            case DropPartition(values):
                check_drops_own(command, shards(connection, self._table, *self._ours))
                declared = {column.name: column.qualified for column in table.columns}
                terms = [
                    pg.SQL("{} IS NULL").format(pg.Identifier(name))
                    if value is None
                    else pg.SQL("{} OPERATOR(pg_catalog.=) {}::{}").format(
                        pg.Identifier(name), pg.Literal(value), pg.SQL(declared[name])
                    )
                    for name, value in values.items()
                ]
                connection.execute(pg.SQL("DELETE FROM {} WHERE {}").format(target, pg.SQL(" AND ").join(terms)))

    @property
    def _name(self) -> pg.Identifier:
        return self._table.identifier(CONTROL)
