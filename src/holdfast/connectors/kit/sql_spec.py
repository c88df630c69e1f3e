"""What the declarations of sinks of SQL answer without a run: columns that fit, ledger, epochs, rows, a reset."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.rewinds import EPOCHS, declared, of_table
from holdfast.connectors.kit.sql import CONTROL, LEDGER, TableMode
from holdfast.connectors.kit.sql_sink import SqlSink
from holdfast.connectors.kit.sql_table import Connection, SqlDialect, SqlTable
from holdfast.connectors.kit.staging import Staging
from holdfast.errors import InvalidPipeline
from holdfast.ports import Guarantee, PublishedEpoch, Reset, Sink, SinkLedger, Withdrawal


class SqlSpec(ABC):
    """Declaration of a table as a sink; a kind of it has a frozen dataclass with these fields."""

    table: str
    mode: TableMode

    # --- what a system says -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dialect(self) -> SqlDialect:
        """Of its system."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Kind of the sink."""

    @property
    @abstractmethod
    def _where(self) -> str:
        """Where the table is, in a few words: ``in trips.db``."""

    @abstractmethod
    def _asking(self, name: str, pipeline: str) -> AbstractContextManager[Connection | None]:
        """Yield a connection of its own, for questions; None where there is no database yet."""

    @abstractmethod
    def _sink(self, name: str, pipeline: str, table: SqlTable) -> SqlSink:
        """Return the sink, before it has prepared anything."""

    @abstractmethod
    def _staging(self, name: str, pipeline: str) -> Staging:
        """Return what tasks staged."""

    def _data(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the rows that are data."""
        return schema

    # --- what all of them do ----------------------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return Guarantee.EXACTLY_ONCE

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return declared(self.mode)

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check the key and the delete column against the rows' columns."""
        self.mode.check_columns(f"write.{self.kind}", columns)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Connect, create the table when absent, and check that every column fits."""
        sink = self._sink(name, pipeline, self._table(name, pipeline, schema))
        try:
            sink.prepare()
        except BaseException:
            sink.close()
            raise
        return sink

    def examine(self, name: str, pipeline: str, schema: pa.Schema) -> list[str]:
        """Check that every column fits, as ``connect`` does, without creating anything."""
        table = self._table(name, pipeline, schema)
        with self._asking(name, pipeline) as connection:
            if connection is None or not table.exists(connection):
                return []
            table.check(connection)
            return table.missing(connection)

    def _table(self, name: str, pipeline: str, schema: pa.Schema) -> SqlTable:
        node = f"sink {name!r}"
        schema = self._data(name, schema)
        self.mode.check_schema(node, schema)
        lowered = [column.lower() for column in schema.names]
        if len(set(lowered)) < len(lowered):
            raise InvalidPipeline(
                f"{node}: two columns differ only in case: {', '.join(schema.names)}.",
                why=f"{self.dialect.system} treats such names as one.",
                do="rename one before the sink.",
            )
        return SqlTable(node, self.table, schema, self.mode, self.dialect, pipeline)

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger beside the table says."""
        with self._asking(name, pipeline) as connection:
            return None if connection is None else SqlBook(self.dialect, pipeline, name).ledger(connection)

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs, of the table beside the ledger."""
        with self._asking(name, pipeline) as connection:
            return [] if connection is None else SqlBook(self.dialect, pipeline, name).history(connection)

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the table."""
        quoted = self.dialect.quoted
        condition, values = (where, ()) if isinstance(where, str) else (f"{quoted(where[0])} = ?", (where[1],))
        with self._asking(name, "trace") as connection:
            try:
                if connection is None:
                    raise self.dialect.errors(f"there is no table {self.table}")
                connection.execute(self.dialect.read_only)
                statement = f"SELECT * FROM {quoted(self.table)} WHERE ({condition}\n) LIMIT ?"
                found = connection.execute(statement, (*values, limit))
            except self.dialect.errors as error:
                raise InvalidPipeline(
                    f"sink {name!r}: its rows cannot be asked for.",
                    why=f"{self.dialect.system} said: {error}.",
                    do=f"write the condition as {self.dialect.system} takes it behind WHERE, with the columns of the "
                    "table.",
                    participant=name,
                ) from error
            columns = [column[0] for column in found.description]
            return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the tables beside the target say of the sink.

        The durable writes: 1. the transaction; a crash after it leaves staged rows, which the same call removes.
        """
        staging = self._staging(name, pipeline)
        with self._asking(name, pipeline) as connection:
            if connection is None:
                return Reset()
            staged_count = len(staging.names())
            connection.execute(self.dialect.begin)
            deletions: list[tuple[str, str, tuple[str, ...]]] = [
                (own, f"DELETE FROM {own} WHERE pipeline = ? AND sink = ?", (pipeline, name))
                for own in (LEDGER, EXPLANATIONS, EPOCHS, CONTROL)
                if self.dialect.has_table(connection, own)
            ]
            if removes_rows := rows and self.dialect.has_table(connection, self.table):
                deletions.append((self.table, f"DELETE FROM {self.dialect.quoted(self.table)}", ()))
            counts = {own: connection.execute(statement, values).rowcount for own, statement, values in deletions}
            connection.execute("ROLLBACK" if is_dry_run else "COMMIT")
        if not is_dry_run:
            staging.sweep(sys.maxsize, 0)
        staging.close()
        return of_table(counts, {"staged tasks": staged_count}, self.table, self._where, rows=removes_rows)
