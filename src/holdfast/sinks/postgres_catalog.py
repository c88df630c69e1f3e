"""The target in PostgreSQL's catalog: found or created, and checked before a run: columns, index, privileges."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql as pg

from holdfast.errors import InvalidPipeline
from holdfast.sinks import rewinds, sql
from holdfast.sinks.postgres_session import Connection
from holdfast.sinks.postgres_table import Table
from holdfast.sinks.postgres_types import TableColumn, declared_type, fits
from holdfast.sinks.rewinds import EPOCHS
from holdfast.sinks.sql import LEDGER, TableMode

NAME_BYTES = 63
_TABLE_NAME = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


def split_name(node: str, table: str) -> tuple[str | None, str]:
    """Return schema (None: the first of the search path) and name; a name with a dot in it stands in double quotes.

    Examples
    --------
    >>> split_name("sink", "trips"), split_name("sink", 'mart."Trips.v2"')
    ((None, 'trips'), ('mart', 'Trips.v2'))
    """
    match = _TABLE_NAME.fullmatch(table)
    if match is None:
        raise InvalidPipeline(
            f"{node}: table={table!r} is no table name.",
            why='it is "table" or "schema.table"; a part with a dot or a quote stands in double quotes.',
            do='write for instance table="analytics.flights".',
        )
    schema, name = (part[1:-1].replace('""', '"') if part and part[0] == '"' else part for part in match.groups())
    if name is None or name in (LEDGER, EPOCHS):
        raise InvalidPipeline(
            f"{node}: table={table!r} cannot be written.",
            why=f"{LEDGER} and {EPOCHS} are the sink's own.",
            do='name another table: table="flights".',
        )
    return schema, name


def find(connection: Connection, node: str, table: str, schema: pa.Schema, mode: TableMode) -> Table:
    """Find the target or create it, and check that rows of ``schema`` fit.  The caller holds the transaction.

    Raises
    ------
    InvalidPipeline
        Naming the column and both types, the missing index, or the privilege and its GRANT.
    """
    schema_name, name = split_name(node, table)
    if mode.rewindable:
        schema = schema.append(pa.field(rewinds.EPOCH, pa.int64()))
    for identifier in (name, *schema.names):
        if len(identifier.encode()) > NAME_BYTES:
            raise InvalidPipeline(
                f"{node}: the name {identifier!r} is too long.",
                why=f"PostgreSQL cuts names after {NAME_BYTES} bytes.",
                do="shorten it.",
            )
    schema_name = _schema(connection, node, schema_name, name)
    oid, kind = _relation(connection, schema_name, name)
    if oid is None:
        _create(connection, node, schema_name, name, mode.stored(schema), mode)
        oid, kind = _relation(connection, schema_name, name)
    if kind not in ("r", "p"):
        raise InvalidPipeline(
            f"{node}: {schema_name}.{name} is not a table.",
            why="a view or a foreign table cannot take rows by COPY.",
            do="name the table behind it.",
        )
    assert oid is not None
    _check_privileges(connection, node, schema_name, name, oid, _wanted_privileges(mode))
    columns = _checked_columns(node, f"{schema_name}.{name}", _columns(connection, oid), mode.stored(schema))
    if mode.mode == "upsert":
        _check_unique_index(connection, node, schema_name, name, oid, mode)
    obstacle = _obstacle(connection, oid, mode)
    return Table(node, schema_name, name, columns, schema, mode, not obstacle, obstacle)


def _schema(connection: Connection, node: str, schema_name: str | None, name: str) -> str:
    """Return the schema that holds the table, or is to hold it."""
    if schema_name is None:
        row = connection.execute(
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = %s AND pg_table_is_visible(c.oid) LIMIT 1), current_schema())",
            (name,),
        ).fetchone()
        schema_name = row[0] if row else None
    found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema_name,)).fetchone()
    if schema_name is None or not found:
        raise InvalidPipeline(
            f"{node}: there is no schema {schema_name!r} for table {name}.",
            why="Holdfast creates tables, not schemas.",
            do=f'CREATE SCHEMA "{schema_name or "analytics"}"; or name an existing one: table="public.{name}".',
        )
    return schema_name


def _relation(connection: Connection, schema_name: str, name: str) -> tuple[int | None, str]:
    row = connection.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema_name, name),
    ).fetchone()
    return (int(row[0]), str(row[1])) if row else (None, "")


def _create(connection: Connection, node: str, schema_name: str, name: str, stored: pa.Schema, mode: TableMode) -> None:
    check_may_create(connection, node, schema_name, f"table {name}")
    lock_ddl(connection)
    definitions = [
        pg.SQL("{} {}").format(pg.Identifier(field.name), pg.SQL(declared_type(field.type))) for field in stored
    ]
    if mode.key:
        definitions.append(pg.SQL("PRIMARY KEY ({})").format(pg.SQL(", ").join(map(pg.Identifier, mode.key))))
    connection.execute(
        pg.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            pg.Identifier(schema_name, name), pg.SQL(", ").join(definitions)
        )
    )


def lock_ddl(connection: Connection) -> None:
    """Let one session at a time create tables: CREATE TABLE IF NOT EXISTS alone fails when two race."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast'))")


def check_may_create(connection: Connection, node: str, schema_name: str, what: str) -> None:
    """Raise :class:`InvalidPipeline` with the GRANT if this role may not create tables in the schema."""
    row = connection.execute(
        "SELECT has_schema_privilege(%s, 'CREATE') AND has_schema_privilege(%s, 'USAGE'), current_user",
        (schema_name, schema_name),
    ).fetchone()
    assert row is not None
    if not row[0]:
        raise InvalidPipeline(
            f"{node}: {what} cannot be created in schema {schema_name}.",
            why=f"role {row[1]} may not create tables there.",
            do=f'as owner of the schema: GRANT USAGE, CREATE ON SCHEMA "{schema_name}" TO "{row[1]}";',
        )


def check_ledger(connection: Connection, table: Table) -> bool:
    """Tell whether the ledger table exists; raise :class:`InvalidPipeline` with the GRANT if we may not use it."""
    oid, _ = _relation(connection, table.schema_name, LEDGER)
    if oid is not None:
        _check_privileges(connection, table.node, table.schema_name, LEDGER, oid, ["SELECT", "INSERT", "UPDATE"])
    return oid is not None


def _wanted_privileges(mode: TableMode) -> list[str]:
    if mode.mode == "append":
        return ["SELECT", "INSERT", "DELETE"] if mode.rewindable else ["INSERT"]
    return ["SELECT", "INSERT", "UPDATE", *(["DELETE"] if mode.delete is not None else [])]


def _check_privileges(
    connection: Connection, node: str, schema_name: str, name: str, oid: int, wanted: Sequence[str]
) -> None:
    row = connection.execute(
        "SELECT current_user, has_schema_privilege(%s, 'USAGE'),"
        " ARRAY(SELECT privilege FROM unnest(%s::text[]) AS privilege"
        "       WHERE NOT has_table_privilege(%s::oid, privilege))",
        (schema_name, list(wanted), oid),
    ).fetchone()
    assert row is not None
    role, has_usage, missing = row
    cures = [] if has_usage else [f'GRANT USAGE ON SCHEMA "{schema_name}" TO "{role}";']
    if missing:
        cures.append(f'GRANT {", ".join(missing)} ON "{schema_name}"."{name}" TO "{role}";')
    if cures:
        lacks = ", ".join([*missing, *([] if has_usage else ["USAGE of the schema"])])
        raise InvalidPipeline(
            f"{node}: role {role} may not write table {schema_name}.{name}.",
            why=f"it lacks {lacks}.",
            do=f"as owner: {' '.join(cures)}",
        )


def _columns(connection: Connection, oid: int) -> list[TableColumn]:
    rows = connection.execute(
        """
        SELECT a.attname, format_type(a.atttypid, a.atttypmod),
               CASE WHEN b.typtype = 'e' THEN 'enum' ELSE b.typname::text END, b.typcategory::text,
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
               a.attnotnull, a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
               a.attgenerated <> '' OR a.attidentity = 'a',
               (SELECT format('%%I.%%I', n.nspname, c.collname) FROM pg_collation c
                  JOIN pg_namespace n ON n.oid = c.collnamespace
                 WHERE c.oid = a.attcollation AND a.attcollation <> t.typcollation)
          FROM pg_attribute a
          JOIN pg_type t ON t.oid = a.atttypid
          JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
         WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY a.attnum
        """,
        (oid,),
    ).fetchall()
    return [TableColumn(*row) for row in rows]


def _checked_columns(
    node: str, table: str, present: Sequence[TableColumn], stored: pa.Schema
) -> tuple[TableColumn, ...]:
    by_name = {column.name: column for column in present}
    for field in stored:
        column = by_name.get(field.name)
        if column is None and field.name == rewinds.EPOCH:
            raise rewinds.no_epoch_column(node, table, f'ALTER TABLE {table} ADD COLUMN "{rewinds.EPOCH}" bigint')
        if column is None:
            raise sql.unknown_column(node, table, field.name, list(by_name))
        if column.is_generated:
            raise InvalidPipeline(
                f"{node}: column {field.name!r} of table {table} is computed by the database.",
                why="a column GENERATED ALWAYS cannot be written.",
                do="leave it out with select(...) before the sink.",
            )
        if not fits(sql.flat_type(field.type), column):
            wanted = declared_type(field.type)
            cure = f'cast the column before the sink, or ALTER TABLE {table} ALTER COLUMN "{field.name}" TYPE {wanted}.'
            raise sql.misfit(node, table, field.name, str(field.type), column.declared, cure)
    empty = [c.name for c in present if c.is_required and not c.is_filled and c.name not in stored.names]
    if empty:
        raise sql.unfilled_columns(node, table, empty)
    return tuple(by_name[field.name] for field in stored)


def _check_unique_index(
    connection: Connection, node: str, schema_name: str, name: str, oid: int, mode: TableMode
) -> None:
    rows = connection.execute(
        """
        SELECT array_agg(a.attname::text)
          FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place), pg_attribute a
         WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
           AND i.indpred IS NULL AND i.indexprs IS NULL
           AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum
         GROUP BY i.indexrelid
        """,
        (oid,),
    ).fetchall()
    if not any(set(columns) == set(mode.key) for (columns,) in rows):
        columns = ", ".join(f'"{column}"' for column in mode.key)
        ddl = f'CREATE UNIQUE INDEX ON "{schema_name}"."{name}" ({columns});'
        raise sql.no_unique_index(node, f"{schema_name}.{name}", mode.key, ddl)


def _obstacle(connection: Connection, oid: int, mode: TableMode) -> str:
    """Return why a task must not leave its rows prepared in the table, or nothing.

    A prepared transaction keeps its row locks until somebody ends it: a second attempt of the same task, which
    inserts the same key, would wait for the orphan of the first.
    """
    if mode.mode == "upsert":
        return "an upsert replaces rows, and a prepared transaction would keep them locked"
    row = connection.execute(
        """
        SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %(oid)s AND (indisunique OR indisexclusion)),
               EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal)
        """,
        {"oid": oid},
    ).fetchone()
    assert row is not None
    if row[0]:
        return "a unique index makes a task wait for the orphan of its first attempt"
    if row[1]:
        return "a trigger may do what a prepared transaction must not (NOTIFY, temporary tables)"
    return ""
