"""SQLite as a dialect: its types, the statements and values that write rows, what a table refuses by rules of its own.

A table as Holdfast creates it refuses nothing but a null in its key.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import sql
from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.lease_text import TABLE as LEASE
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LEDGER
from holdfast.connectors.kit.sql_table import RowPlace, SqlColumn, SqlDialect, SqlRules, SqlTable
from holdfast.connectors.kit.sql_values import check_converted, converted, is_binary
from holdfast.connectors.sqlite.stored import SqliteColumn
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.values import LossKind

_EXACT_DIGITS = 15
"""Decimal digits that SQLite keeps when a NUMERIC column turns text into a float."""

_RULES = re.compile(r"\b(CHECK|STRICT|REFERENCES|GENERATED|VIRTUAL|RAISE)\b", re.IGNORECASE)
"""Words of a table's DDL that may mean a rule.  A column of that name costs a trial, and no row."""

_ESCAPING = partial(str, encoding="utf-8", errors="surrogateescape")
"""What reads a text that is no UTF-8; costs a quarter more than ``str``."""

_OURS = "pipeline TEXT NOT NULL, sink TEXT NOT NULL"


class SqliteDialect(SqlDialect):
    """SQLite."""

    system = "SQLite"
    now = "datetime('now')"
    errors = sqlite3.Error
    begin = "BEGIN IMMEDIATE"  # the write lock of the whole file: behind it the ledger row is nobody else's
    insert_new = "INSERT OR IGNORE INTO"
    read_only = "PRAGMA query_only = true"
    losses_of_floats = frozenset({LossKind.NAN})
    own_tables = {  # noqa: RUF012
        LEDGER: f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    {_OURS}, epoch INTEGER NOT NULL, generation INTEGER NOT NULL,
    positions TEXT NOT NULL, pts INTEGER, in_progress TEXT, updated_at TEXT NOT NULL,
    PRIMARY KEY (pipeline, sink))
""",
        EXPLANATIONS: f"""
CREATE TABLE IF NOT EXISTS {EXPLANATIONS} (
    {_OURS}, source TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    text TEXT NOT NULL, PRIMARY KEY (pipeline, sink, source, first)) WITHOUT ROWID
""",
        EPOCHS: f"""
CREATE TABLE IF NOT EXISTS {EPOCHS} (
    {_OURS}, epoch INTEGER NOT NULL, target TEXT NOT NULL, positions TEXT NOT NULL,
    PRIMARY KEY (pipeline, sink, epoch)) WITHOUT ROWID
""",
        LEASE: f"""
CREATE TABLE IF NOT EXISTS {LEASE} (pipeline TEXT PRIMARY KEY, beat INTEGER NOT NULL, text TEXT NOT NULL)
""",
    }

    # --- names and types --------------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Return an identifier as SQLite reads it."""
        return '"' + name.replace('"', '""') + '"'

    def declared_type(self, kind: pa.DataType, *, is_key: bool = False) -> str:
        """Return the type that a column is created with.

        Decimals, dates and times are text: SQLite has no such types, and a DECIMAL column would turn them into floats.
        """
        kind = sql.flat_type(kind)
        if pa.types.is_boolean(kind):
            return "BOOLEAN"
        if pa.types.is_integer(kind) or pa.types.is_duration(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        return "BLOB" if is_binary(kind) else "TEXT"

    def keeps(self, kind: pa.DataType, column: SqlColumn) -> bool:
        """Return whether a column keeps every value unchanged.  Affinity BLOB never converts."""
        declared = column.declared
        affinity = affinity_of(declared)
        if pa.types.is_null(kind) or (affinity == "BLOB" and ("BLOB" not in declared.upper() or is_binary(kind))):
            return True
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_duration(kind):
            is_exact_float = pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32)
            return affinity in ("INTEGER", "NUMERIC") or (affinity == "REAL" and is_exact_float)
        if pa.types.is_floating(kind):
            return affinity in ("REAL", "NUMERIC")
        if is_binary(kind):
            return False
        if pa.types.is_decimal(kind):
            return affinity == "TEXT" or (affinity == "NUMERIC" and kind.precision <= _EXACT_DIGITS)
        if pa.types.is_temporal(kind):
            return affinity == "TEXT" or (
                affinity == "NUMERIC" and any(w in declared.upper() for w in ("DATE", "TIME"))
            )
        return affinity == "TEXT"

    # --- what is there ----------------------------------------------------------------------------------------------

    def has_table(self, connection: sqlite3.Connection, name: str) -> bool:
        """Return whether a table is there."""
        return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None

    def columns(self, connection: sqlite3.Connection, table: str) -> list[SqlColumn]:
        """Return the columns of a table."""
        rows = connection.execute(f"PRAGMA table_xinfo({self.quoted(table)})").fetchall()
        keys = [row for row in rows if row[5]]
        # A rowid alias (INTEGER PRIMARY KEY) fills itself.
        rowid = keys[0][1] if len(keys) == 1 and keys[0][2].upper() == "INTEGER" else None
        return [
            SqlColumn(
                str(name),
                str(declared),
                bool(required),
                default is not None or name == rowid,
                hidden != 0,
                {"key": key},
            )
            for _, name, declared, required, default, key, hidden in rows
        ]

    def check_table(self, connection: sqlite3.Connection, table: SqlTable) -> None:
        """Raise where no unique index of an upsert has exactly the columns of its key."""
        if table.mode.mode == "append":
            return
        wanted = {name.lower() for name in table.mode.key}
        unique = [{each.name.lower() for each in self.columns(connection, table.name) if each.details["key"]}]
        for _, index, is_unique, _, is_partial in connection.execute(
            f"PRAGMA index_list({table.quoted_name})"
        ).fetchall():
            columns = connection.execute(f"PRAGMA index_info({self.quoted(index)})").fetchall()
            if is_unique and not is_partial:
                unique.append({str(row[2]).lower() for row in columns})
        if wanted not in unique:
            raise table.no_unique_index()

    def is_in_transaction(self, connection: sqlite3.Connection) -> bool:
        """Return whether a transaction is open."""
        return connection.in_transaction

    def rules_version(self, connection: sqlite3.Connection, table: SqlTable) -> int:
        """Return the number that every change of the file's schema raises."""
        return int(connection.execute("PRAGMA schema_version").fetchone()[0])

    def rules(self, connection: sqlite3.Connection, table: SqlTable, version: object) -> SqlRules:
        """Ask the file's schema what the table refuses."""
        found = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)", (table.name,)
        ).fetchone()
        if found is None:
            return SqlRules(version, why_tried="it is not a plain table")
        columns = self.columns(connection, table.name)
        key = {name.lower() for name in table.mode.key}
        stored = {name.lower(): name for name in table.stored.names}
        required = {each.name.lower() for each in columns if each.is_required}
        why = self._why_tried(connection, table, str(found[0]), columns, key)
        if any(
            each.is_required and not each.is_filled and each.name.lower() not in stored and not each.details["key"]
            for each in columns
        ):
            why = why or "a column that no row fills takes no null"
        return SqlRules(version, tuple(name for low, name in stored.items() if low in required - key), why)

    def _why_tried(
        self, connection: sqlite3.Connection, table: SqlTable, ddl: str, columns: list[SqlColumn], key: set[str]
    ) -> str:
        word = _RULES.search(ddl)
        if word is not None:
            return word[1].upper()
        if any(each.is_computed for each in columns):
            return "a generated column"
        trigger = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)", (table.name,)
        ).fetchone()
        if trigger is not None:
            return f"trigger {trigger[0]}"
        primary = {each.name.lower() for each in columns if each.details["key"]}
        if primary and primary != key:
            return "a primary key"
        for _, index, unique, _, partial_ in connection.execute(f"PRAGMA index_list({table.quoted_name})").fetchall():
            names = [row[2] for row in connection.execute(f"PRAGMA index_info({self.quoted(index)})").fetchall()]
            if partial_ or None in names or (unique and {str(name).lower() for name in names} != key):
                return f"index {index}"
        return ""

    # --- rows -------------------------------------------------------------------------------------------------------

    def check_values(self, node: str, batch: pa.RecordBatch, field: pa.Field) -> None:
        """Raise :class:`BadRow` if a column has a value that :func:`values_of` or SQLite cannot take."""
        values = sql.flat(batch.column(field.name))
        if pa.types.is_uint64(values.type):
            _check_uint64(node, field.name, values)
        else:
            check_converted(node, field, values, self.system)

    def insert(self, connection: sqlite3.Connection, table: SqlTable, batch: pa.RecordBatch) -> None:
        """Write rows."""
        statement = table.insertion(f"({', '.join('?' * batch.num_columns)})")
        if table.mode.mode == "upsert":
            others = [f"{self.quoted(name)} = excluded.{self.quoted(name)}" for name in table.replaced_columns]
            action = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
            statement += f" ON CONFLICT ({', '.join(map(self.quoted, table.mode.key))}) DO {action}"
        connection.executemany(statement, _rows(table.node, batch))

    def delete(self, connection: sqlite3.Connection, table: SqlTable, keys: pa.RecordBatch) -> None:
        """Remove the rows of some keys."""
        where = " AND ".join(f"{self.quoted(name)} = ?" for name in table.mode.key)
        connection.executemany(f"DELETE FROM {table.quoted_name} WHERE {where}", _rows(table.node, keys))

    # --- rows that are compared -------------------------------------------------------------------------------------

    def place(self, connection: sqlite3.Connection, table: SqlTable) -> RowPlace:
        """Return the rowid, or the primary key where the table has none."""
        columns = self.columns(connection, table.name)
        taken = {each.name.lower() for each in columns}
        rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)
        if rowid is not None:
            try:
                connection.execute(f"SELECT {table.quoted_name}.{rowid} FROM {table.quoted_name} LIMIT 0")
                return _place([f"{table.quoted_name}.{rowid}"])
            except sqlite3.OperationalError:  # WITHOUT ROWID
                pass
        keys = sorted((each.details["key"], each.name) for each in columns if each.details["key"])
        if not keys:
            raise InvalidPipeline(
                f"Rows of table {table.name} cannot be told apart.",
                why="its columns have all the names of a rowid, and it has no primary key.",
                do="rename the column rowid before the sink.",
            )
        return _place([f"{table.quoted_name}.{self.quoted(name)}" for _, name in keys])

    def stored_column(self, field: pa.Field, column: SqlColumn, lost: frozenset[LossKind]) -> SqliteColumn:
        """Return how the values of a column are read."""
        return SqliteColumn(field, lost, affinity_of(column.declared))

    def read_in_parts(self, connection: sqlite3.Connection, statement: str) -> _Reading:
        """Return the rows of a statement, texts of any bytes included."""
        return _Reading(connection, statement)

    def read_row(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        """Return a row, texts of any bytes included."""
        return next(iter(_Reading(connection, statement, values).fetchmany(1)), None)


SQLITE = SqliteDialect()


class _Reading:
    """The rows of a statement.  From the first text that is no UTF-8 on, texts are read so that any can be."""

    def __init__(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> None:
        self._connection = connection
        self._statement = statement
        self._values = values
        self._read_count = 0
        self._cursor: sqlite3.Cursor | None = None

    def fetchmany(self, count: int) -> list[Any]:
        try:
            if self._cursor is None:
                statement = f"{self._statement} LIMIT -1 OFFSET {self._read_count}"
                self._cursor = self._connection.execute(statement, self._values)
            rows = self._cursor.fetchmany(count)
        except sqlite3.OperationalError as error:
            if self._connection.text_factory is _ESCAPING or "decode to UTF-8" not in str(error):
                raise
            self._connection.text_factory = _ESCAPING
            self._cursor = None
            return self.fetchmany(count)
        self._read_count += len(rows)
        return rows


def _place(names: list[str]) -> RowPlace:
    return RowPlace(tuple(names), " AND ".join(f"{name} = ?" for name in names))


def _rows(node: str, batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(values_of(node, batch, field) for field in batch.schema), strict=True)


def values_of(node: str, batch: pa.RecordBatch, field: pa.Field) -> list[Any]:
    """Return a column as the values that SQLite stores.

    Timestamps become ISO text with microseconds (and ``Z`` where they have a zone), decimals their exact digits,
    nested values JSON, durations microseconds.
    """
    values = sql.flat(batch.column(field.name))
    kind = values.type
    if pa.types.is_uint64(kind):
        _check_uint64(node, field.name, values)
    try:
        return list(converted(values).to_pylist())
    except UnicodeDecodeError as error:  # Arrow does not check the texts of a Parquet file or of a user's code
        raise sql.no_utf8(node, field.name, f"it holds {error.object[:40]!r}") from error
    except (ValueError, OverflowError) as error:
        raise sql.unkept_value(node, field.name, "SQLite", error) from error


def _check_uint64(node: str, column: str, values: pa.Array) -> None:
    highest = pc.max(values).as_py()
    if highest is not None and highest >= 2**63:
        raise BadRow(
            f"{node}: {highest} in column {column!r} is too large.",
            why="SQLite's integers end at 9223372036854775807.",
            do="cast the column to string or double before the sink.",
        )


def affinity_of(declared: str) -> str:
    """Return the storage class that SQLite prefers for a declared type (https://www.sqlite.org/datatype3.html, 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper or upper == "ANY":
        return "BLOB"
    if any(word in upper for word in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"
