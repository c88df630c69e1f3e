"""A SQLite table as a target: its types, whether our columns fit, the statements and values that write rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.sql import TableMode
from holdfast.errors import BadRow, InvalidPipeline

_EXACT_DIGITS = 15
"""Decimal digits that SQLite keeps when a NUMERIC column turns text into a float."""


def quoted(name: str) -> str:
    """Return an identifier as SQLite reads it."""
    return '"' + name.replace('"', '""') + '"'


def declared_type(kind: pa.DataType) -> str:
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
    if is_binary(kind):
        return "BLOB"
    return "TEXT"


@dataclass(frozen=True)
class SqliteTable:
    """The target: its name, the columns that rows fill, and how rows are written."""

    node: str
    name: str
    schema: pa.Schema
    mode: TableMode

    @property
    def stored(self) -> pa.Schema:
        """The columns that the table holds."""
        return self.mode.stored(self.schema)

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the table unless it exists.  An upsert table gets the key as its primary key."""
        columns = [
            f"{quoted(field.name)} {declared_type(field.type)}{' NOT NULL' if field.name in self.mode.key else ''}"
            for field in self.stored
        ]
        if self.mode.rewindable:
            columns.append(f"{quoted(rewinds.EPOCH)} INTEGER")
        if self.mode.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.mode.key))})")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(self.name)} ({', '.join(columns)})")

    def exists(self, connection: sqlite3.Connection) -> bool:
        """Return whether the table is there."""
        return bool(connection.execute(f"PRAGMA table_xinfo({quoted(self.name)})").fetchall())

    def check(self, connection: sqlite3.Connection) -> None:
        """Check that every column fits, that no NOT NULL column stays empty, and that an upsert finds its index.

        Raises
        ------
        InvalidPipeline
            Naming the column and both types, or the index that is missing.
        """
        present = self._present(connection)
        for field in self.stored:
            if field.name.lower() in present:
                self._check_column(field, present[field.name.lower()])
            elif not self.mode.adds(field.name):
                raise sql.unknown_column(self.node, self.name, field.name, [row[1] for row in present.values()])
        if self.mode.rewindable and rewinds.EPOCH not in present:
            ddl = f"ALTER TABLE {quoted(self.name)} ADD COLUMN {quoted(rewinds.EPOCH)} INTEGER"
            raise rewinds.no_epoch_column(self.node, self.name, ddl)
        given = {name.lower() for name in self.stored.names}
        # A rowid alias (INTEGER PRIMARY KEY) fills itself.
        keys = [row for row in present.values() if row[5]]
        rowid = keys[0][1] if len(keys) == 1 and keys[0][2].upper() == "INTEGER" else None
        empty = [
            row[1]
            for name, row in present.items()
            if name not in given and row[3] and row[4] is None and not row[6] and row[1] != rowid
        ]
        if empty:
            raise sql.unfilled_columns(self.node, self.name, empty)
        if self.mode.mode == "upsert" and not self._has_unique_index(connection, [row[1] for row in keys]):
            columns = ", ".join(map(quoted, self.mode.key))
            raise sql.no_unique_index(
                self.node, self.name, self.mode.key, f"CREATE UNIQUE INDEX ... ON {quoted(self.name)} ({columns})"
            )

    def missing(self, connection: sqlite3.Connection) -> list[str]:
        """Return the columns that the table has not."""
        present = self._present(connection)
        return [name for name in self.stored.names if name.lower() not in present]

    def add_columns(self, connection: sqlite3.Connection) -> None:
        """Add the columns that are missing.  The caller holds the transaction."""
        for name in self.missing(connection):
            kind = declared_type(self.stored.field(name).type)
            connection.execute(f"ALTER TABLE {quoted(self.name)} ADD COLUMN {quoted(name)} {kind}")
        self.check(connection)

    def _present(self, connection: sqlite3.Connection) -> dict[str, Any]:
        rows = connection.execute(f"PRAGMA table_xinfo({quoted(self.name)})").fetchall()
        return {row[1].lower(): row for row in rows}

    def misfit(self, connection: sqlite3.Connection, field: pa.Field) -> str:
        """Return why a column of the table does not take a column of rows; empty if it does."""
        for row in connection.execute(f"PRAGMA table_xinfo({quoted(self.name)})").fetchall():
            if row[1].lower() == field.name.lower():
                try:
                    self._check_column(field, row)
                except InvalidPipeline as error:
                    return error.what.rstrip(".")
                return ""
        return f"table {self.name} has no column {field.name!r}"

    def _check_column(self, field: pa.Field, row: Sequence[Any]) -> None:
        declared, hidden = str(row[2]), row[6]
        if hidden in (2, 3):
            raise InvalidPipeline(
                f"{self.node}: column {field.name!r} of table {self.name} is computed by the database.",
                why="a generated column cannot be written.",
                do="leave it out with select(...) before the sink.",
            )
        if not _fits(sql.flat_type(field.type), declared):
            raise sql.misfit(
                self.node,
                self.name,
                field.name,
                str(field.type),
                declared or "untyped",
                f"cast the column before the sink, or declare it {declared_type(field.type)} in the table.",
            )

    def _has_unique_index(self, connection: sqlite3.Connection, primary_key: Sequence[str]) -> bool:
        wanted = {name.lower() for name in self.mode.key}
        if {name.lower() for name in primary_key} == wanted:
            return True
        for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(self.name)})").fetchall():
            columns = connection.execute(f"PRAGMA index_info({quoted(index)})").fetchall()
            if unique and not partial and {str(row[2]).lower() for row in columns} == wanted:
                return True
        return False

    def check_values(self, batch: pa.RecordBatch) -> None:
        """Raise :class:`BadRow` if a row has a value that SQLite cannot keep, or no key.  Touches no single row."""
        sql.check_columns(self.node, self.schema, batch)
        sql.check_keys(self.node, self.mode, batch)
        for field in self.stored:
            check_values(self.node, batch, field)

    def write(self, connection: sqlite3.Connection, batch: pa.RecordBatch, epoch: int) -> None:
        """Write a batch in its order, so that the last row of a key wins.  The caller holds the transaction."""
        if not batch.num_rows:
            return
        sql.check_columns(self.node, self.schema, batch)
        sql.check_keys(self.node, self.mode, batch)
        columns = [values_of(self.node, batch, field) for field in self.stored]
        if self.mode.rewindable:
            columns.append([epoch] * batch.num_rows)
        rows = zip(*columns, strict=True)
        if self.mode.delete is None:
            connection.executemany(self._insert(), rows)
            return
        # Deletes and upserts take turns in row order: only so does the database itself say which keys are equal
        # (a NOCASE column holds "a" and "A" for one).
        flags = pc.fill_null(batch.column(self.mode.delete), False).to_pylist()
        names = self.stored.names
        places = [names.index(column) for column in self.mode.key]
        for is_delete, run in groupby(flags):
            taken = islice(rows, sum(1 for _ in run))
            if is_delete:
                connection.executemany(self._delete(), _picked(taken, places))
            else:
                connection.executemany(self._insert(), taken)

    def withdraw(self, connection: sqlite3.Connection, after_epoch: int) -> None:
        """Remove the rows of later epochs."""
        statement = f"DELETE FROM {quoted(self.name)} WHERE {quoted(rewinds.EPOCH)} > ?"
        connection.execute(statement, (after_epoch,))

    def is_empty(self, connection: sqlite3.Connection) -> bool:
        """Return whether it has no row, of anybody."""
        return connection.execute(f"SELECT 1 FROM {quoted(self.name)} LIMIT 1").fetchone() is None

    def count_after(self, connection: sqlite3.Connection, epoch: int) -> int:
        """Return how many rows later epochs have."""
        statement = f"SELECT count(*) FROM {quoted(self.name)} WHERE {quoted(rewinds.EPOCH)} > ?"
        return int(connection.execute(statement, (epoch,)).fetchone()[0])

    def _insert(self) -> str:
        names = [*self.stored.names, *([rewinds.EPOCH] if self.mode.rewindable else [])]
        statement = (
            f"INSERT INTO {quoted(self.name)} ({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        )
        if self.mode.mode == "append":
            return statement
        others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in self.mode.key]
        action = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        return f"{statement} ON CONFLICT ({', '.join(map(quoted, self.mode.key))}) DO {action}"

    def _delete(self) -> str:
        return f"DELETE FROM {quoted(self.name)} WHERE {' AND '.join(f'{quoted(name)} = ?' for name in self.mode.key)}"


def _picked(rows: Iterator[tuple[Any, ...]], places: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    return (tuple(row[place] for place in places) for row in rows)


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


def converted(values: pa.Array) -> pa.Array:
    """Return a column in the form in which it is stored."""
    convert = next((convert for matches, convert in _CONVERSIONS if matches(values.type)), None)
    return convert(values) if convert else values


def check_values(node: str, batch: pa.RecordBatch, field: pa.Field) -> None:
    """Raise :class:`BadRow` if a column has a value that :func:`values_of` or SQLite cannot take."""
    values = sql.flat(batch.column(field.name))
    kind = values.type
    if pa.types.is_uint64(kind):
        _check_uint64(node, field.name, values)
    elif is_text(kind):
        sql.check_text(node, field.name, values)
    elif sql.is_nested(kind):
        sql.check_nested(node, field.name, values, "SQLite")
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        try:
            converted(values)
        except (ValueError, OverflowError) as error:
            raise sql.unkept_value(node, field.name, "SQLite", error) from error


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _timestamp_text(values: pa.Array) -> pa.Array:
    kind = values.type
    return _moment_text(pc.cast(values, pa.timestamp("us", "UTC" if kind.tz else None), safe=False))


def _date_text(values: pa.Array) -> pa.Array:
    return _moment_text(pc.cast(values, pa.date32()))


def _moment_text(values: pa.Array) -> pa.Array:
    """Return ISO text; Arrow has none beyond the year 32767, and writes another year or an apology."""
    is_date = pa.types.is_date(values.type)
    numbers = pc.cast(values, pa.int32() if is_date else pa.int64())
    limit = _DAYS_MAX if is_date else _DAYS_MAX * 86_400_000_000
    for edge in pc.min_max(numbers).as_py().values():
        if edge is not None and abs(edge) > limit:
            raise ValueError(f"{edge} {'days' if is_date else 'microseconds'} from 1970: beyond the year 32767")
    return pc.cast(values, pa.string())


_DAYS_MAX = 11_248_737
"""From 1970 to the end of the year 32767."""

_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (sql.is_nested, sql.json_text),
    (pa.types.is_timestamp, _timestamp_text),
    (pa.types.is_date, _date_text),
    (pa.types.is_time, lambda values: pc.cast(pc.cast(values, pa.time64("us"), safe=False), pa.string())),
    (pa.types.is_duration, lambda values: pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64())),
    (pa.types.is_decimal, lambda values: pc.cast(values, pa.string())),
)


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


def _fits(kind: pa.DataType, declared: str) -> bool:
    """Return whether a column keeps every value unchanged.  Affinity BLOB never converts."""
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
        return affinity == "TEXT" or (affinity == "NUMERIC" and any(w in declared.upper() for w in ("DATE", "TIME")))
    return affinity == "TEXT"
