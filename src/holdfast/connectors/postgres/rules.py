"""What a PostgreSQL table refuses by rules of its own, as the catalog says: rows are tried only where necessary.

A table as Holdfast creates it refuses no row that passes :mod:`holdfast.connectors.postgres.checks`.  Whatever is not
understood here means that rows are tried: slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql as pg

from holdfast.connectors.kit import sql
from holdfast.connectors.postgres.copy import is_binary, is_text
from holdfast.connectors.postgres.session import Connection
from holdfast.connectors.postgres.table import DELETE, PostgresTable
from holdfast.connectors.postgres.types import TableColumn

INDEXED_BYTES = 2000
"""A B-tree takes no entry above 2704 bytes; shorter ones fit whatever else is in them."""

_ASK = """
SELECT pg_catalog.json_build_object(
    'kind', c.relkind, 'is_partition', c.relispartition, 'has_rules', c.relhasrules,
    'has_row_security', c.relrowsecurity, 'encoding', pg_catalog.current_setting('server_encoding'),
    'constraints', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', conname, 'kind', contype, 'is_own', conrelid OPERATOR(pg_catalog.=) c.oid))
        FROM pg_catalog.pg_constraint
       WHERE conrelid OPERATOR(pg_catalog.=) c.oid OR confrelid OPERATOR(pg_catalog.=) c.oid),
    'triggers', (SELECT pg_catalog.json_agg(tgname) FROM pg_catalog.pg_trigger
                  WHERE tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT tgisinternal),
    'columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'number', a.attnum, 'name', a.attname, 'declared', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'is_required', a.attnotnull OR t.typnotnull, 'kind', t.typtype, 'generated', a.attgenerated,
            'is_filled', a.atthasdef OR a.attidentity OPERATOR(pg_catalog.<>) '' OR t.typdefault IS NOT NULL,
            'labels', (SELECT pg_catalog.json_agg(enumlabel) FROM pg_catalog.pg_enum
                        WHERE enumtypid OPERATOR(pg_catalog.=) t.oid)))
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
       WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped),
    'indexes', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', n.relname, 'is_unique', i.indisunique OR i.indisexclusion, 'is_immediate', i.indimmediate,
            'method', m.amname, 'is_plain', i.indexprs IS NULL AND i.indpred IS NULL,
            'columns', i.indkey::pg_catalog.int2[], 'key_length', i.indnkeyatts))
        FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class n ON n.oid OPERATOR(pg_catalog.=) i.indexrelid
        JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) n.relam
       WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid))
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace
 WHERE s.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s
"""


_PARENT = """
SELECT n.nspname, p.relname
  FROM pg_catalog.pg_constraint k
  JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.conrelid
  JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace
  JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) k.confrelid
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.relnamespace
 WHERE s.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s
   AND k.conname OPERATOR(pg_catalog.=) %s
"""
_DATABASE = """
SELECT pg_catalog.pg_postmaster_start_time()::pg_catalog.text, oid
  FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
"""


@dataclass(frozen=True)
class PostgresRules:
    """What a table refuses, at this moment.

    Parameters
    ----------
    why_tried : str
        What it may refuse that only writing shows; empty: nothing.
    required : tuple of str
        Columns of the rows that take no null.
    labels : mapping of str to tuple of str
        Column -> the values of its enumeration.
    indexed : tuple of tuple of str
        Columns of varying length that an index has together.
    """

    why_tried: str = ""
    required: tuple[str, ...] = ()
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    indexed: tuple[tuple[str, ...], ...] = ()


def rules_of(connection: Connection, table: PostgresTable) -> PostgresRules:
    """Ask the catalog what the table refuses."""
    found = connection.execute(_ASK, (table.schema_name, table.name)).fetchone()
    if found is None:
        return PostgresRules("it is gone")
    asked = found[0]
    columns = {column["name"]: column for column in asked["columns"] or []}
    names = {column["number"]: name for name, column in columns.items()}
    indexes = [
        {**index, "names": [names.get(number, "") for number in index["columns"]]} for index in asked["indexes"] or []
    ]
    ours = [columns[column.name] for column in table.columns if column.name in columns]
    why = (
        _of_table(asked)
        or ("a column is gone" if len(ours) < len(table.columns) else "")
        or next((why for column in columns.values() if (why := _of_column(column, table))), "")
        or next((why for index in indexes if (why := _of_index(index, table))), "")
    )
    varying = {column.name for column in table.columns if _is_varying(table, column)}
    indexed = [tuple(name for name in index["names"] if name in varying) for index in indexes]
    return PostgresRules(
        why,
        tuple(column["name"] for column in ours if column["is_required"]),
        {column["name"]: tuple(column["labels"]) for column in ours if column["labels"]},
        tuple(each for each in indexed if each),
    )


def parent_of(connection: Connection, refusal: psycopg.errors.ForeignKeyViolation) -> tuple[str, str] | None:
    """Return schema and name of the table that a violated foreign key points to."""
    said = refusal.diag
    found = connection.execute(_PARENT, (said.schema_name, said.table_name, said.constraint_name)).fetchone()
    return (found[0], found[1]) if found is not None else None


def database_of(connection: Connection) -> tuple[Any, ...] | None:
    """Return what identifies the database of a connection, whatever the DSN; for this moment."""
    return connection.execute(_DATABASE).fetchone()


def _of_table(asked: dict[str, Any]) -> str:
    if asked["kind"] != "r" or asked["is_partition"]:
        return "its partitions"
    if asked["has_rules"] or asked["has_row_security"]:
        return "its rules"
    if asked["encoding"] != "UTF8":
        return f"the server's encoding {asked['encoding']}"
    if asked["triggers"]:
        return f"trigger {asked['triggers'][0]!r}"
    # Those of other tables matter where they point here: an upsert may change what they point to.
    kinds = {True: "cfxt", False: "f"}
    found = [each["name"] for each in asked["constraints"] or [] if each["kind"] in kinds[each["is_own"]]]
    return f"constraint {found[0]!r}" if found else ""


def _of_column(now: dict[str, Any], table: PostgresTable) -> str:
    column = next((column for column in table.columns if column.name == now["name"]), None)
    if now["generated"].strip():
        return f"column {now['name']!r} is computed"
    if column is None:
        return f"nothing fills column {now['name']!r}" if now["is_required"] and not now["is_filled"] else ""
    if now["kind"] == "d" or now["declared"] != column.declared or not _is_judged(table, column):
        return f"the type of column {now['name']!r}"
    return ""


def _of_index(index: dict[str, Any], table: PostgresTable) -> str:
    key = set(index["names"][: index["key_length"]])
    is_key = table.mode.mode == "upsert" and key == set(table.mode.key) and index["is_immediate"]
    is_plain = index["is_plain"] and index["method"] == "btree"
    return "" if is_plain and (is_key or not index["is_unique"]) else f"index {index['name']!r}"


def _is_judged(table: PostgresTable, column: TableColumn) -> bool:
    """Return whether the checks of values say everything that the column's type would."""
    kind = sql.flat_type(table.schema.field(column.name).type)
    if is_text(kind):
        return column.base in ("text", "varchar", "bpchar", "uuid", "enum")
    return column.base in ("int2", "int4", "int8", "float4", "float8", "bool", "bytea", "json", "jsonb", "text") or (
        column.base in ("date", "time", "timestamp", "timestamptz")
        or (column.base == "numeric" and "float" not in str(kind) and "double" not in str(kind))
    )


def _is_varying(table: PostgresTable, column: TableColumn) -> bool:
    kind = sql.flat_type(table.schema.field(column.name).type)
    return is_text(kind) or is_binary(kind) or sql.is_nested(kind)


def suspects(stages: Sequence[pg.Composable], table: PostgresTable, rules: PostgresRules) -> pg.Composed | None:
    """Return the question whether staging tables hold a row that only a trial can judge; None: none can.

    A staging table has the target's types and its NOT NULL; what it has not are indexes, and NOT NULL where rows
    delete, or where it was declared since the run began.
    """
    declared = {column.name for column in table.columns if column.is_required and table.mode.delete is None}
    conditions = [
        pg.SQL("({} IS NULL{})").format(
            pg.Identifier(name), pg.SQL(f' AND NOT "{DELETE}"' if table.mode.mode == "upsert" else "")
        )
        for name in rules.required
        if name not in declared
    ]
    for names in rules.indexed:
        lengths = [
            pg.SQL("coalesce(pg_catalog.octet_length({}::pg_catalog.text), 0)").format(pg.Identifier(name))
            for name in names
        ]
        conditions.append(
            pg.SQL("({}) OPERATOR(pg_catalog.>) {}").format(
                pg.SQL(" OPERATOR(pg_catalog.+) ").join(lengths), pg.Literal(INDEXED_BYTES)
            )
        )
    if not conditions or not stages:
        return None
    form, condition = pg.SQL("EXISTS (SELECT FROM {} WHERE {})"), pg.SQL(" OR ").join(conditions)
    return pg.SQL("SELECT ") + pg.SQL(" OR ").join(form.format(each, condition) for each in stages)
