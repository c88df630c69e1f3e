"""MySQL and MariaDB as a dialect: types, statements, what a table refuses by rules of its own.

Traps that this module goes around: a table of another engine than InnoDB knows no transaction; an upsert replaces by
*any* unique index; texts compare by a collation, which may hold "a" for "A" or for "a "; a column of another character
set loses letters; DDL ends a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pymysql import err

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.lease_text import TABLE as LEASE
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LEDGER
from holdfast.connectors.kit.sql_table import RowPlace, SqlColumn, SqlDialect, SqlRules, SqlTable
from holdfast.connectors.kit.sql_values import check_converted, is_binary, is_text
from holdfast.connectors.kit.stored import (
    StoredColumn,
    binaries,
    is_whole,
    read_texts,
    texts,
    usual_moments,
    where,
    whole,
)
from holdfast.connectors.mysql.literals import statements
from holdfast.connectors.mysql.session import MysqlConnection
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.types.plain import flat_type, is_nested
from holdfast.values import LossKind

STAGED = "holdfast_staged"
"""Rows that tasks staged: Arrow record batches, some to a row."""

VALUE_BYTES_MAX = 8 * 2**20
"""How long a text or bytes may be: a statement must fit the server's ``max_allowed_packet``, 16 MiB or more."""

KEY_LETTERS = 255
"""Of a text in a key: an index has 3072 bytes."""

DELETES_AT_ONCE = 1000
"""Keys in one DELETE: with many more the server no longer looks each up in the index."""

_DECIMAL_DIGITS, _DECIMAL_SCALE = 65, 30
_TEXT = "CHARACTER SET utf8mb4 /*M! COLLATE utf8mb4_nopad_bin */ /*!80017 COLLATE utf8mb4_0900_bin */"
"""Byte by byte, spaces at the end included: MariaDB reads the one comment, MySQL the other."""

_OWN = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_OURS = f"pipeline VARCHAR(150) {_OWN}, sink VARCHAR(150) {_OWN}"
_ENGINE = " ENGINE=InnoDB"

_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "TINYINT(1)"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_uint8, "TINYINT UNSIGNED"),
    (pa.types.is_uint16, "SMALLINT UNSIGNED"),
    (pa.types.is_uint32, "INT UNSIGNED"),
    (pa.types.is_uint64, "BIGINT UNSIGNED"),
    (is_whole, "BIGINT"),
    (pa.types.is_floating, "DOUBLE"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_timestamp, "DATETIME(6)"),
    (pa.types.is_time, "TIME(6)"),
)
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_BINARIES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_WIDTH = re.compile(r"(int)\(\d+\)")
_YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Microseconds of the years 1 to 9999."""


class MysqlDialect(SqlDialect):
    """MySQL and MariaDB."""

    system = "MySQL"
    now = "UTC_TIMESTAMP(6)"
    errors = err.Error
    begin = "START TRANSACTION"
    lock = " FOR UPDATE"
    insert_new = "INSERT IGNORE INTO"
    read_only = "START TRANSACTION READ ONLY"
    losses_of_floats = frozenset({LossKind.NAN, LossKind.INFINITE})
    lease_left = "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)"
    lease_expiry = "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"
    delete_one = " LIMIT 1"
    table_options = f"{_ENGINE} {_TEXT}"
    own_tables = {  # noqa: RUF012
        name: f"CREATE TABLE IF NOT EXISTS {name} ({columns}){_ENGINE}"
        for name, columns in {
            LEDGER: f"{_OURS}, epoch BIGINT NOT NULL, generation BIGINT NOT NULL, positions LONGTEXT {_OWN},"
            " pts BIGINT, in_progress LONGTEXT, updated_at DATETIME(6) NOT NULL, PRIMARY KEY (pipeline, sink)",
            EXPLANATIONS: f"{_OURS}, source VARCHAR(300) {_OWN}, first BIGINT NOT NULL, last BIGINT NOT NULL,"
            f" text LONGTEXT {_OWN}, PRIMARY KEY (pipeline, sink, source, first)",
            EPOCHS: f"{_OURS}, epoch BIGINT NOT NULL, target VARCHAR(300) {_OWN}, positions LONGTEXT {_OWN},"
            " PRIMARY KEY (pipeline, sink, epoch)",
            LEASE: f"pipeline VARCHAR(150) {_OWN} PRIMARY KEY, beat BIGINT NOT NULL, text LONGTEXT {_OWN},"
            " expires_at DATETIME(6) NOT NULL",
            STAGED: f"{_OURS}, generation BIGINT NOT NULL, epoch BIGINT NOT NULL, nonce CHAR(16) {_OWN},"
            f" piece BIGINT NOT NULL, task VARCHAR(300) {_OWN}, data LONGBLOB NOT NULL,"
            " PRIMARY KEY (pipeline, sink, generation, epoch, nonce, piece)",
        }.items()
    }

    # --- names and types --------------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Return an identifier as MySQL reads it."""
        return "`" + name.replace("`", "``") + "`"

    def declared_type(self, kind: pa.DataType, *, is_key: bool = False) -> str:
        """Return the type that a column is created with: texts compare byte by byte, moments are of UTC."""
        kind = sql.flat_type(kind)
        if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS and 0 <= kind.scale <= _DECIMAL_SCALE:
            return f"DECIMAL({kind.precision},{kind.scale})"
        if is_binary(kind):
            return f"VARBINARY({KEY_LETTERS})" if is_key else "LONGBLOB"
        kept = next((declared for matches, declared in _DECLARED if matches(kind)), None)
        return kept or f"{f'VARCHAR({KEY_LETTERS})' if is_key else 'LONGTEXT'} {_TEXT}"

    def keeps(self, kind: pa.DataType, column: SqlColumn) -> bool:
        """Return whether a column keeps every value unchanged (texts may still be too long)."""
        of, details = str(column.details["DATA_TYPE"]), column.details
        bits = _INTEGER_BITS.get(of, {"float": 24, "double": 53}.get(of, 0))
        if pa.types.is_null(kind):
            return True
        if pa.types.is_boolean(kind):
            return of in _INTEGER_BITS
        if is_whole(kind):
            is_unsigned = pa.types.is_unsigned_integer(kind)
            if of == "decimal":
                return _has_digits(details, len(str(2**kind.bit_width)), 0)
            if of in _INTEGER_BITS and "unsigned" in column.declared:
                return bool(is_unsigned and bits >= kind.bit_width)
            return bool(bits >= kind.bit_width + is_unsigned)
        if pa.types.is_floating(kind):
            return of == "double" or (of == "float" and kind.bit_width <= 32)
        if pa.types.is_decimal(kind) and of == "decimal":
            return _has_digits(details, kind.precision - kind.scale, kind.scale)
        if pa.types.is_date(kind):
            return of == "date"
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            wanted = "datetime" if pa.types.is_timestamp(kind) else "time"
            return of == wanted and details["DATETIME_PRECISION"] == 6
        if is_binary(kind):
            return of in _BINARIES
        is_kept = of in _TEXTS or (of == "json" and is_nested(kind))
        return is_kept and (of == "json" or details["CHARACTER_SET_NAME"] == "utf8mb4")

    # --- what is there ----------------------------------------------------------------------------------------------

    def has_table(self, connection: MysqlConnection, name: str) -> bool:
        """Return whether a table is there."""
        return bool(_schema(connection, "TABLES", name, "ENGINE"))

    def columns(self, connection: MysqlConnection, table: str) -> list[SqlColumn]:
        """Return the columns of a table."""
        details = ("DATA_TYPE", "NUMERIC_PRECISION", "NUMERIC_SCALE", "DATETIME_PRECISION", "CHARACTER_SET_NAME")
        asked = ("COLUMN_NAME", "COLUMN_TYPE", "IS_NULLABLE", "COLUMN_DEFAULT", "EXTRA", "COLUMN_KEY", *details)
        return [
            SqlColumn(
                name,
                _WIDTH.sub(r"\1", declared) if declared != "tinyint(1)" else declared,
                is_null == "NO",
                default is not None or "auto_increment" in extra,
                " GENERATED" in extra,  # NB MySQL says DEFAULT_GENERATED of a default
                {"is_primary": key == "PRI", **dict(zip(details, more, strict=True))},
            )
            for name, declared, is_null, default, extra, key, *more in _schema(
                connection, "COLUMNS", table, *asked, order="ORDINAL_POSITION"
            )
        ]

    def check_table(self, connection: MysqlConnection, table: SqlTable) -> None:
        """Raise where rows and ledger could not move together, or where an upsert could replace the wrong row."""
        ((engine,),) = _schema(connection, "TABLES", table.name, "ENGINE")
        if engine != "InnoDB":
            raise InvalidPipeline(
                f"{table.node}: table {table.name} is of the engine {engine or 'VIEW'}.",
                why="only a table of InnoDB is written in one transaction with the sink's ledger.",
                do=f"ALTER TABLE {table.quoted_name} ENGINE=InnoDB, or write to another table.",
            )
        if table.mode.mode == "append":
            return
        indexes: dict[str, set[str]] = {}
        found = _schema(connection, "STATISTICS", table.name, "INDEX_NAME", "NON_UNIQUE", "COLUMN_NAME", "SUB_PART")
        for index, is_plain, column, part in found:
            if not is_plain:
                indexes.setdefault(index, set()).add(str(column).lower() if part is None else "")
        wanted = {name.lower() for name in table.mode.key}
        if wanted not in indexes.values():
            raise table.no_unique_index()
        others = [index for index, columns in indexes.items() if columns != wanted]
        if others:
            raise InvalidPipeline(
                f"{table.node}: table {table.name} has the unique index {others[0]!r} besides its key.",
                why="MySQL's upsert replaces a row that is equal in any unique index: by this one it would be another.",
                do="drop that index, or make it one that is not unique.",
            )

    def hold(self, connection: MysqlConnection, table: SqlTable) -> None:
        """Raise as :meth:`check_table`; a table that a transaction has read is not altered before its end."""
        connection.execute(f"SELECT 1 FROM {table.quoted_name} LIMIT 0")
        self.check_table(connection, table)

    def is_in_transaction(self, connection: MysqlConnection) -> bool:
        """Return whether a transaction is open."""
        return connection.is_in_transaction

    def rules_version(self, connection: MysqlConnection, table: SqlTable) -> object:
        """Return the table's DDL and its triggers."""
        ((_, ddl, *_),) = connection.execute(f"SHOW CREATE TABLE {table.quoted_name}").fetchall()
        triggers = _schema(connection, "TRIGGERS", table.name, "TRIGGER_NAME", of="EVENT_OBJECT_TABLE")
        return re.sub(r" AUTO_INCREMENT=\d+", "", ddl), triggers

    def rules(self, connection: MysqlConnection, table: SqlTable, version: object) -> SqlRules:
        """Ask what the table refuses, of what its DDL says."""
        ddl, triggers = cast("tuple[str, Sequence[Any]]", version)
        key = {name.lower() for name in table.mode.key}
        stored = {name.lower(): field for name, field in zip(table.stored.names, table.stored, strict=True)}
        columns = self.columns(connection, table.name)
        required = [each for each in columns if each.is_required and each.name.lower() not in key]
        names = tuple(stored[each.name.lower()].name for each in required if each.name.lower() in stored)
        if triggers:
            return SqlRules(version, names, f"trigger {triggers[0][0]}")
        if table.mode.delete is not None:
            return SqlRules(version, names, "a deleted row may be one that others refer to")
        for line in ddl.split("\n")[1:-1]:
            if not re.match(r"\s*(`|KEY |PRIMARY KEY )", line) or re.search(r"\b(CHECK|GENERATED)\b", line):
                return SqlRules(version, names, line.strip())
        for each in columns:
            field = stored.get(each.name.lower())
            if field is None:
                is_ours = each.name == rewinds.EPOCH or not each.is_required or each.is_filled
            else:
                declared = self.declared_type(field.type, is_key=field.name in table.mode.key)
                is_ours = declared.partition(" CHARACTER")[0].lower() == each.declared.lower()
            if not is_ours or (each.details["is_primary"] and each.name.lower() not in key):
                return SqlRules(version, names, f"column {each.name}: {each.declared}")
        return SqlRules(version, names, "a key's length" if self._may_be_long(table) else "")

    def _may_be_long(self, table: SqlTable) -> bool:
        kinds = (flat_type(table.schema.field(name).type) for name in table.mode.key)
        return any(is_binary(kind) or is_text(kind) for kind in kinds)

    # --- rows -------------------------------------------------------------------------------------------------------

    def check_values(self, node: str, batch: pa.RecordBatch, field: pa.Field) -> None:
        """Raise :class:`BadRow` if a column has a value that MySQL cannot keep."""
        values = sql.flat(batch.column(field.name))
        check_converted(node, field, values, self.system)
        for wrong, what in _wrong_values(values):
            if pc.any(wrong).as_py():
                raise BadRow(
                    f"{node}: column {field.name!r} holds {what}, which MySQL cannot keep.",
                    why="its types have no such value.",
                    do="correct or filter such rows before the sink.",
                )

    def insert(self, connection: MysqlConnection, table: SqlTable, batch: pa.RecordBatch) -> None:
        """Write rows, some at a time."""
        tail = ""
        if table.mode.mode == "upsert":
            replaced = table.replaced_columns or [table.mode.key[0]]
            assigned = ", ".join(f"{self.quoted(name)} = VALUES({self.quoted(name)})" for name in replaced)
            tail = f" ON DUPLICATE KEY UPDATE {assigned}"
        before = [b"(", *[b","] * (batch.num_columns - 1)]
        for statement in statements(batch, table.insertion("").encode(), before, b",", tail.encode()):
            connection.send(statement)

    def delete(self, connection: MysqlConnection, table: SqlTable, keys: pa.RecordBatch) -> None:
        """Remove the rows of some keys."""
        columns, before, opening = [], [], b"("
        for field in keys.schema:
            name = self.quoted(field.name).encode()
            declared = self.declared_type(field.type)
            if declared.startswith("DECIMAL"):  # NB with a text MySQL compares it as a float: neighbours are equal
                columns.append(field)
                before.append(opening + name + b" = CAST(")
                opening = f" AS {declared}) AND ".encode()
            columns.append(field)
            before.append(opening + name + b" = ")
            opening = b" AND "
        keys = pa.RecordBatch.from_arrays([keys.column(field.name) for field in columns], schema=pa.schema(columns))
        head = f"DELETE FROM {table.quoted_name} WHERE ".encode()
        for statement in statements(keys, head, before, b" OR ", rows_max=DELETES_AT_ONCE):
            connection.send(statement)

    # --- rows that are compared -------------------------------------------------------------------------------------

    def place(self, connection: MysqlConnection, table: SqlTable) -> RowPlace:
        """Return the primary key; or all columns, where there is none: of equal rows one is as good as another."""
        columns = {each.name.lower(): each for each in self.columns(connection, table.name)}
        primary = [each.name for each in columns.values() if each.details["is_primary"]]
        fields = [pa.field(name, pa.binary()) for name in primary] or list(table.stored)
        names, terms = [], []
        for field in fields:
            column = columns[field.name.lower()]
            name = MysqlColumn(field, frozenset(), column).expression(f"{table.quoted_name}.{self.quoted(field.name)}")
            is_bytewise = str(column.details["DATA_TYPE"]) in _TEXTS and not primary
            terms.append(f"CAST({name} AS BINARY) <=> CAST(? AS BINARY)" if is_bytewise else f"{name} <=> ?")
            names.append(name)
        return RowPlace(tuple(names), " AND ".join(terms))

    def stored_column(self, field: pa.Field, column: SqlColumn, lost: frozenset[LossKind]) -> MysqlColumn:
        """Return how the values of a column are read."""
        return MysqlColumn(field, lost, column)

    def read_in_parts(self, connection: MysqlConnection, statement: str) -> Any:
        """Return a cursor that the server feeds."""
        return connection.stream(statement)


@dataclass(frozen=True)
class MysqlColumn(StoredColumn):
    """A column that is compared.

    Parameters
    ----------
    column : SqlColumn
        As it is declared.
    """

    column: SqlColumn

    def expression(self, name: str) -> str:
        """Return what a SELECT asks for: decimals and moments as texts, floats with all of their digits."""
        of, kind = self.column.details["DATA_TYPE"], flat_type(self.field.type)
        if of == "float":
            return f"({name} + 0e0)"
        if of in ("decimal", "date", "datetime", "time"):
            text = f"CAST({name} AS CHAR)"
            return f"CONCAT({text}, 'Z')" if pa.types.is_timestamp(kind) and kind.tz else text
        return name

    def values_of_type(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Return values of a plain type; null where one is beyond it."""
        if pa.types.is_null(kind):
            return pa.nulls(len(values))
        if is_binary(kind):
            return binaries(pa.array(values, pa.large_binary()), kind)
        if is_nested(kind) or is_text(kind):
            found = texts(values)
            return found if is_nested(kind) else pc.cast(found, kind)
        if pa.types.is_uint64(kind):
            return pa.array([None if value is None or int(value) < 0 else int(value) for value in values], kind)
        if is_whole(kind):
            return whole(pa.array(values).cast(pa.int64()), kind)
        if pa.types.is_floating(kind):
            numbers = pa.array(values, pa.float64())
            found = pc.cast(numbers, kind, safe=False)
            return where(pc.equal(pc.cast(found, pa.float64()), numbers), found)
        found = texts(values)
        quickly = usual_moments(found, kind)
        return read_texts(found, kind) if quickly is None else quickly


def _schema(
    connection: MysqlConnection, view: str, table: str, *columns: str, order: str = "1", of: str = "TABLE_NAME"
) -> Sequence[Any]:
    """Return what the server says of a table of the session's database."""
    statement = (
        f"SELECT {', '.join(columns)} FROM information_schema.{view}"
        f" WHERE {of.rpartition('_')[0]}_SCHEMA = DATABASE() AND {of} = ? ORDER BY {order}"
    )
    found: Sequence[Any] = connection.execute(statement, (table,)).fetchall()
    return found


def _has_digits(details: Any, before: int, after: int) -> bool:
    precision, scale = int(details["NUMERIC_PRECISION"]), int(details["NUMERIC_SCALE"])
    return precision - scale >= before and scale >= after


def _wrong_values(values: pa.Array) -> list[tuple[pa.Array, str]]:
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = values.cast(pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None), safe=False)
        moments = moments.cast(pa.int64())
        beyond = pc.or_(pc.less(moments, _YEARS[0]), pc.greater(moments, _YEARS[1]))
        return [(beyond, "a moment outside of the years 1 to 9999")]
    if is_binary(kind) or is_text(kind):
        return [(pc.greater(pc.binary_length(values), VALUE_BYTES_MAX), f"more than {VALUE_BYTES_MAX:,} bytes")]
    return []


MYSQL = MysqlDialect()
