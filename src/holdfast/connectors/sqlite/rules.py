"""What a SQLite table refuses by rules of its own: read from its schema, so that rows are tried only where necessary.

A table as Holdfast creates it refuses nothing but a null in its key.  Whatever is not understood here means that rows
are tried: slower, never wrong.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import refusals
from holdfast.connectors.sqlite.table import SqliteTable, quoted

_RULES = re.compile(r"\b(CHECK|STRICT|REFERENCES|GENERATED|VIRTUAL|RAISE)\b", re.IGNORECASE)
"""Words of a table's DDL that may mean a rule.  A column of that name costs a trial, and no row."""


@dataclass(frozen=True)
class SqliteRules:
    """What a table refuses.

    Parameters
    ----------
    version : int
        Of the schema: SQLite counts every change of it.
    required : tuple of str
        Columns that take no null, besides the key.
    why_tried : str
        What else the table may refuse, which only writing shows; empty: nothing.
    """

    version: int
    required: tuple[str, ...] = ()
    why_tried: str = ""


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the number that every change of the file's schema raises."""
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def rules_of(connection: sqlite3.Connection, table: SqliteTable) -> SqliteRules:
    """Ask the file's schema what the table refuses."""
    version = schema_version(connection)
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)", (table.name,)
    ).fetchone()
    if found is None:
        return SqliteRules(version, why_tried="it is not a plain table")
    columns = connection.execute(f"PRAGMA table_xinfo({quoted(table.name)})").fetchall()
    key = {name.lower() for name in table.mode.key}
    stored = {name.lower() for name in table.stored.names}
    required = tuple(
        name for name in table.stored.names for row in columns if row[1].lower() == name.lower() and row[3]
    )
    why = _why_tried(connection, table, str(found[0]), columns, key)
    if any(row[3] and row[4] is None and row[1].lower() not in stored and not row[5] for row in columns):
        why = why or "a column that no row fills takes no null"
    return SqliteRules(version, tuple(name for name in required if name.lower() not in key), why)


def _why_tried(
    connection: sqlite3.Connection, table: SqliteTable, ddl: str, columns: list[tuple[object, ...]], key: set[str]
) -> str:
    word = _RULES.search(ddl)
    if word is not None:
        return word[1].upper()
    if any(row[6] for row in columns):
        return "a generated column"
    trigger = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)", (table.name,)
    ).fetchone()
    if trigger is not None:
        return f"trigger {trigger[0]}"
    primary = {str(row[1]).lower() for row in columns if row[5]}
    if primary and primary != key:
        return "a primary key"
    for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(table.name)})").fetchall():
        names = [row[2] for row in connection.execute(f"PRAGMA index_info({quoted(index)})").fetchall()]
        if partial or None in names or (unique and {str(name).lower() for name in names} != key):
            return f"index {index}"
    return ""


def check_required(node: str, table: SqliteTable, required: tuple[str, ...], rows: pa.Table) -> None:
    """Raise :class:`BadRow` where a row has a null in a column that takes none; rows that delete store nothing."""
    if table.mode.delete is not None and required:
        rows = rows.filter(pc.invert(pc.fill_null(rows.column(table.mode.delete), False)))
    for name in required:
        refusals.check_no_null(node, table.name, name, rows.column(name))
