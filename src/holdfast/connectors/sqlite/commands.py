"""Control rows of a SQLite sink: noted in ``holdfast_control``, and carried out in the transaction of the rows.

Invariant: the columns are folded from what is noted, within the transaction that writes; so they are those that the
table has, whatever was rolled back, restored or in doubt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.control.columns import Columns, ControlColumns, pieces
from holdfast.connectors.control.commands import (
    AddColumn,
    Command,
    DropPartition,
    Widen,
    check_drops_own,
    kind_of,
    text_of,
    wrong,
)
from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.kit.sql import CONTROL
from holdfast.connectors.kit.sql_table import SqlTable
from holdfast.connectors.sqlite.dialect import SQLITE, values_of

_DDL = f"""
CREATE TABLE IF NOT EXISTS {CONTROL} (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, number INTEGER NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    command TEXT NOT NULL, PRIMARY KEY (pipeline, sink, number)) WITHOUT ROWID
"""
_OURS = "pipeline = ? AND sink = ?"


@dataclass(frozen=True)
class SqliteControl:
    """What a sink does with control rows.  The caller holds the transaction.

    Parameters
    ----------
    table : SqlTable
        The target, with the columns of data that the pipeline declares.
    columns : ControlColumns
        Which columns of the rows are not data.
    pipeline, sink : str
        Identity.
    """

    table: SqlTable
    columns: ControlColumns
    pipeline: str
    sink: str

    def write(self, connection: sqlite3.Connection, rows: pa.RecordBatch, epoch: int) -> None:
        """Write rows of data, and carry out the commands among them, in their order."""
        now = self.now(connection)
        table = self.table.with_schema(now.schema)
        for piece in pieces(rows, self.columns):
            if isinstance(piece, pa.RecordBatch):
                table.write(connection, now.conformed(piece, self.columns), epoch)
                continue
            before, now = now, now.after(piece)
            table = self.table.with_schema(now.schema)
            if now is not before or isinstance(piece, DropPartition):
                self._note(connection, piece, epoch)
                self._carry_out(connection, now, piece)

    def now(self, connection: sqlite3.Connection) -> Columns:
        """Return the columns as this transaction sees them."""
        noted = self._noted(connection, "command", "kind = 'schema'")
        return Columns(self.table.schema).noted(text for (text,) in noted)

    def counts(self, connection: sqlite3.Connection) -> dict[str, int]:
        """Return how many commands of each kind were carried out."""
        return dict(self._noted(connection, "kind, count(*)", "true GROUP BY kind"))

    def _noted(self, connection: sqlite3.Connection, what: str, which: str) -> Iterator[Any]:
        if not SQLITE.has_table(connection, CONTROL):
            return iter(())
        statement = f"SELECT {what} FROM {CONTROL} WHERE {_OURS} AND {which} ORDER BY number"
        return iter(connection.execute(statement, (self.pipeline, self.sink)).fetchall())

    def _note(self, connection: sqlite3.Connection, command: Command, epoch: int) -> None:
        connection.execute(_DDL)
        kind = kind_of(command)
        number = f"(SELECT coalesce(max(number), 0) + 1 FROM {CONTROL} WHERE {_OURS})"
        ours = (self.pipeline, self.sink)
        connection.execute(
            f"INSERT INTO {CONTROL} VALUES (?, ?, {number}, ?, ?, ?)", (*ours, *ours, epoch, kind, text_of(command))
        )

    def _carry_out(self, connection: sqlite3.Connection, now: Columns, command: Command) -> None:
        table = self.table.with_schema(now.schema)
        match command:
            case AddColumn(column, _):
                present = {each.name.lower() for each in SQLITE.columns(connection, table.name)}
                if column.lower() not in present:
                    table.add_column(connection, column)
                self._check_fits(connection, now, command)
            case Widen():  # its types have no width: INTEGER has 64 bits, and decimals are text
                self._check_fits(connection, now, command)
            case DropPartition():
                check_drops_own(command, SqlBook(SQLITE, self.pipeline, self.sink).shards(connection))
                where, values = self._where(now, command)
                connection.execute(f"DELETE FROM {table.quoted_name} WHERE {where}", values)

    def _check_fits(self, connection: sqlite3.Connection, now: Columns, command: AddColumn | Widen) -> None:
        why = self.table.with_schema(now.schema).misfit(connection, now.schema.field(command.column))
        if why:
            raise wrong(text_of(command), why)

    def _where(self, now: Columns, command: DropPartition) -> tuple[str, list[object]]:
        terms, values = [], []
        for name in command.values:
            value = now.value_of(command, name)
            row = pa.RecordBatch.from_arrays([pa.array([value.as_py()], value.type)], names=[name])
            (stored,) = values_of(self.table.node, row, row.schema.field(0))
            terms.append(f"{SQLITE.quoted(name)} IS ?")
            values.append(stored)
        return " AND ".join(terms), values
