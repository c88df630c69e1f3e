"""What a PostgreSQL table refuses by rules of its own: asked of the catalog, so that rows are tried only where they must.

A table as Holdfast creates it refuses no row that passes :mod:`holdfast.sinks.postgres_checks`.  Whatever is not
understood here means that rows are tried: slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql as pg

from holdfast.sinks import sql
from holdfast.sinks.postgres_copy import is_binary, is_text
from holdfast.sinks.postgres_session import Connection
from holdfast.sinks.postgres_table import DELETE, Table
from holdfast.sinks.postgres_types import TableColumn

INDEXED_BYTES = 2000
"""A B-tree takes no entry above 2704 bytes; shorter ones fit whatever else is in them."""

_ASK = """
SELECT pg_catalog.json_build_object(
    'whole', pg_catalog.concat_ws(', ',
        CASE WHEN c.relkind <> 'r' THEN 'partitions' END,
        CASE WHEN c.relispartition THEN 'it is a partition' END,
        CASE WHEN c.relhasrules THEN 'rules' END,
        CASE WHEN c.relrowsecurity THEN 'row-level security' END,
        CASE WHEN pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN 'the encoding of the server' END,
        (SELECT 'constraint ' || conname FROM pg_catalog.pg_constraint
          WHERE conrelid = c.oid AND contype IN ('c', 'f', 'x', 't') LIMIT 1),
        (SELECT 'a foreign key of another table' FROM pg_catalog.pg_constraint
          WHERE confrelid = c.oid AND contype = 'f' LIMIT 1),
        (SELECT 'trigger ' || tgname FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal LIMIT 1)),
    'columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', a.attname, 'declared', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'is_required', a.attnotnull OR t.typnotnull, 'is_domain', t.typtype = 'd',
            'is_generated', a.attgenerated <> '',
            'is_filled', a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
            'labels', (SELECT pg_catalog.json_agg(enumlabel) FROM pg_catalog.pg_enum WHERE enumtypid = t.oid)))
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
       WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'indexes', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', n.relname, 'is_unique', i.indisunique OR i.indisexclusion, 'is_immediate', i.indimmediate,
            'is_plain', m.amname = 'btree' AND i.indexprs IS NULL AND i.indpred IS NULL,
            'key', (SELECT pg_catalog.json_agg(a.attname) FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])),
            'columns', (SELECT pg_catalog.json_agg(a.attname) FROM pg_catalog.pg_attribute a
                         WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::pg_catalog.int2[]))))
        FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class n ON n.oid = i.indexrelid
        JOIN pg_catalog.pg_am m ON m.oid = n.relam
       WHERE i.indrelid = c.oid))
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
 WHERE s.nspname = %s AND c.relname = %s
"""


@dataclass(frozen=True)
class Rules:
    """What a table refuses, at this moment.

    Parameters
    ----------
    why_tried : str
        What it may refuse that only writing tells; empty: nothing.
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


def rules_of(connection: Connection, table: Table) -> Rules:
    """Ask the catalog what the table refuses."""
    found = connection.execute(_ASK, (table.schema_name, table.name)).fetchone()
    if found is None:
        return Rules("it is gone")
    asked = found[0]
    columns = {column["name"]: column for column in asked["columns"] or []}
    indexes = asked["indexes"] or []
    ours = [columns[column.name] for column in table.columns if column.name in columns]
    why = (
        asked["whole"]
        or ("a column is gone" if len(ours) < len(table.columns) else "")
        or next((why for column in columns.values() if (why := _of_column(column, table))), "")
        or next((why for index in indexes if (why := _of_index(index, table))), "")
    )
    varying = {column.name for column in table.columns if _is_varying(table, column)}
    indexed = [tuple(name for name in index["columns"] or [] if name in varying) for index in indexes]
    return Rules(
        why,
        tuple(column["name"] for column in ours if column["is_required"]),
        {column["name"]: tuple(column["labels"]) for column in ours if column["labels"]},
        tuple(names for names in indexed if names),
    )


def _of_column(now: dict[str, Any], table: Table) -> str:
    column = next((column for column in table.columns if column.name == now["name"]), None)
    if now["is_generated"]:
        return f"column {now['name']!r} is computed"
    if column is None:
        return f"nothing fills column {now['name']!r}" if now["is_required"] and not now["is_filled"] else ""
    if now["is_domain"] or now["declared"] != column.declared or not _is_judged(table, column):
        return f"the type of column {now['name']!r}"
    return ""


def _of_index(index: dict[str, Any], table: Table) -> str:
    is_key = table.mode.mode == "upsert" and set(index["key"] or []) == set(table.mode.key) and index["is_immediate"]
    return "" if index["is_plain"] and (is_key or not index["is_unique"]) else f"index {index['name']!r}"


def _is_judged(table: Table, column: TableColumn) -> bool:
    """Tell whether the checks of values say everything that the column's type would."""
    kind = sql.flat_type(table.schema.field(column.name).type)
    if is_text(kind):
        return column.base in ("text", "varchar", "bpchar", "uuid", "enum")
    return column.base in ("int2", "int4", "int8", "float4", "float8", "bool", "bytea", "json", "jsonb", "text") or (
        column.base in ("date", "time", "timestamp", "timestamptz")
        or (column.base == "numeric" and "float" not in str(kind) and "double" not in str(kind))
    )


def _is_varying(table: Table, column: TableColumn) -> bool:
    kind = sql.flat_type(table.schema.field(column.name).type)
    return is_text(kind) or is_binary(kind) or sql.is_nested(kind)


def suspects(stages: Sequence[pg.Composable], table: Table, rules: Rules) -> pg.Composed | None:
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
        conditions.append(pg.SQL("({}) > {}").format(pg.SQL(" + ").join(lengths), pg.Literal(INDEXED_BYTES)))
    if not conditions or not stages:
        return None
    form = pg.SQL("EXISTS (SELECT FROM {} WHERE {})")
    return pg.SQL("SELECT ") + pg.SQL(" OR ").join(form.format(each, pg.SQL(" OR ").join(conditions)) for each in stages)
