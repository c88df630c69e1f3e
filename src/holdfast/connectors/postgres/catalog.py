"""The target in PostgreSQL's catalog: found or created, and checked before a run: columns, index, privileges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.sql import LEDGER, OWN_TABLES, TableMode
from holdfast.connectors.postgres.session import Connection
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.types import TableColumn, declared_type, fits, modifier_of, qualified_type
from holdfast.errors import InvalidPipeline, Unavailable

NAME_BYTES = 63
_TABLE_NAME = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


def split_name(node: str, table: str) -> tuple[str | None, str]:
    """Return schema (None: the first of the search path) and name; a name with a dot in it is in double quotes.

    Examples
    --------
    >>> split_name("sink", "trips"), split_name("sink", 'mart."Trips.v2"')
    ((None, 'trips'), ('mart', 'Trips.v2'))
    """
    match = _TABLE_NAME.fullmatch(table)
    if match is None:
        raise InvalidPipeline(
            f"{node}: table={table!r} is not a table name.",
            why='it is "table" or "schema.table"; a part with a dot or a quote stands in double quotes.',
            do='write for instance table="analytics.flights".',
        )
    schema, name = (part[1:-1].replace('""', '"') if part and part[0] == '"' else part for part in match.groups())
    if name is None or name.lower().startswith(OWN_TABLES):
        raise InvalidPipeline(
            f"{node}: table={table!r} cannot be written.",
            why=f"names in {OWN_TABLES}* are the sink's own.",
            do='name another table: table="flights".',
        )
    return schema, name


def find(connection: Connection, node: str, table: str, schema: pa.Schema, mode: TableMode) -> PostgresTable:
    """Find the target or create it, and check that rows of ``schema`` fit.  The caller holds the transaction.

    Raises
    ------
    InvalidPipeline
        Naming the column and both types, the missing index, or the privilege and its GRANT.
    """
    found = look(connection, node, table, schema, mode)
    if found is None:
        schema_name, name = located(connection, node, table)
        _create(connection, node, schema_name, name, mode.stored(_with_epoch(schema, mode)), mode)
        found = look(connection, node, table, schema, mode)
    assert found is not None
    return found


def look(connection: Connection, node: str, table: str, schema: pa.Schema, mode: TableMode) -> PostgresTable | None:
    """Return the target, or None where a start would create it; changes nothing, and raises what :func:`find` does."""
    schema_name, name = split_name(node, table)
    schema = _with_epoch(schema, mode)
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
        check_may_create(connection, node, schema_name, f"table {name}")
        return None
    if kind not in ("r", "p"):
        raise InvalidPipeline(
            f"{node}: {schema_name}.{name} is not a table.",
            why="a view or a foreign table cannot take rows by COPY.",
            do="name the table behind it.",
        )
    _check_privileges(connection, node, schema_name, name, oid, _wanted_privileges(mode))
    full_name, stored = f"{schema_name}.{name}", mode.stored(schema)
    _check_rewriting(connection, node, full_name, oid)
    present = _columns(connection, oid)
    added = _added(connection, present, stored, mode)
    if added:
        _check_owner(connection, node, full_name, oid, added)
    columns = _checked_columns(node, full_name, [*present, *added], stored)
    is_upsert = mode.mode == "upsert"
    key_equals = _key_equals(connection, node, schema_name, name, oid, mode) if is_upsert else ()
    obstacle = _obstacle(connection, oid, mode)
    missing = tuple(column.name for column in added)
    return PostgresTable(node, schema_name, name, columns, schema, mode, obstacle, key_equals, missing)


def _with_epoch(schema: pa.Schema, mode: TableMode) -> pa.Schema:
    return schema.append(pa.field(rewinds.EPOCH, pa.int64())) if mode.rewindable else schema


def examine(
    connection: Connection,
    node: str,
    table: str,
    schema: pa.Schema,
    mode: TableMode,
    stage: str,
    *,
    with_commands: bool,
) -> tuple[str, ...]:
    """Raise what :func:`find` and :func:`checked_way` would, and return what is missing; changes nothing."""
    target = look(connection, node, table, schema, mode)
    if target is None:
        return ()
    checked_way(connection, target, stage, with_commands=with_commands)
    return target.missing


def checked_way(connection: Connection, target: PostgresTable, stage: str, *, with_commands: bool) -> bool:
    """Return whether tasks prepare transactions; refuse a schema in which the sink may not create what it needs."""
    prepares = not with_commands and _prepares(connection, target, stage)
    if not (prepares and check_ledger(connection, target)):
        what = f"table {LEDGER}" if prepares else f"tables ({LEDGER}, staging tables)"
        check_may_create(connection, target.node, target.schema_name, what)
    return prepares


def located(connection: Connection, node: str, table: str) -> tuple[str, str]:
    """Return the schema that holds a table, or will, and the table's name."""
    schema_name, name = split_name(node, table)
    return _schema(connection, node, schema_name, name), name


def again(connection: Connection, table: PostgresTable, schema: pa.Schema) -> PostgresTable:
    """Return a target whose columns a command has changed, with those of ``schema``; in that command's transaction.

    Raises
    ------
    InvalidPipeline
        If a column does not fit: names it and both types.
    """
    oid, _ = _relation(connection, table.schema_name, table.name)
    assert oid is not None
    name = f"{table.schema_name}.{table.name}"
    columns = _checked_columns(table.node, name, _columns(connection, oid), table.mode.stored(schema))
    return replace(table, columns=columns, schema=schema)


def add_columns(connection: Connection, table: PostgresTable) -> None:
    """Add the columns that are missing, and check that all fit.  The caller holds the transaction, and the ledger row.

    Raises
    ------
    Unavailable
        If another session uses the table for longer than the caller's ``lock_timeout``.
    InvalidPipeline
        If somebody has added one meanwhile that does not fit.
    """
    names = ", ".join(repr(name) for name in table.missing)
    try:
        connection.execute(table.add_columns())
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"{table.node}: column {names} cannot be added to table {table.schema_name}.{table.name} now.",
            why="another session uses the table: a long query, or a transaction that was prepared and not ended.",
            do="it is tried again; if it stays so, end that session (pg_stat_activity, pg_prepared_xacts).",
            participant=table.node,
        ) from error
    again(connection, table, table.schema)


def has_table(connection: Connection, schema_name: str, name: str) -> bool:
    """Return whether a table of ours is there."""
    return _relation(connection, schema_name, name)[0] is not None


def _schema(connection: Connection, node: str, schema_name: str | None, name: str) -> str:
    """Return the schema that holds the table, or will."""
    if schema_name is None:
        row = connection.execute(
            "SELECT coalesce((SELECT n.nspname FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
            " WHERE c.relname OPERATOR(pg_catalog.=) %s AND pg_catalog.pg_table_is_visible(c.oid) LIMIT 1),"
            " pg_catalog.current_schema())",
            (name,),
        ).fetchone()
        schema_name = row[0] if row else None
    found = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s", (schema_name,)
    ).fetchone()
    if schema_name is None or not found:
        raise InvalidPipeline(
            f"{node}: there is no schema {schema_name!r} for table {name}.",
            why="Holdfast creates tables, not schemas.",
            do=f'CREATE SCHEMA "{schema_name or "analytics"}"; or name an existing one: table="public.{name}".',
        )
    return schema_name


def _relation(connection: Connection, schema_name: str, name: str) -> tuple[int | None, str]:
    row = connection.execute(
        "SELECT c.oid, c.relkind::pg_catalog.text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
        " WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s",
        (schema_name, name),
    ).fetchone()
    return (int(row[0]), str(row[1])) if row else (None, "")


def _create(connection: Connection, node: str, schema_name: str, name: str, stored: pa.Schema, mode: TableMode) -> None:
    lock_ddl(connection)
    definitions = [
        pg.SQL("{} {}").format(pg.Identifier(field.name), pg.SQL(qualified_type(field.type))) for field in stored
    ]
    if mode.key:
        definitions.append(pg.SQL("PRIMARY KEY ({})").format(pg.SQL(", ").join(map(pg.Identifier, mode.key))))
    connection.execute(
        pg.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            pg.Identifier(schema_name, name), pg.SQL(", ").join(definitions)
        )
    )


def _check_rewriting(connection: Connection, node: str, full_name: str, oid: int) -> None:
    """Refuse a table whose writes the server rewrites: COPY passes rules by, and is not done under policies.

    Some rows are copied and some inserted, by the size of their epoch: a rule would hold for a part of them.
    """
    found = connection.execute(
        "SELECT (SELECT rulename FROM pg_catalog.pg_rewrite WHERE ev_class OPERATOR(pg_catalog.=) %s"
        " AND ev_type OPERATOR(pg_catalog.<>) '1' AND ev_enabled OPERATOR(pg_catalog.<>) 'D' LIMIT 1),"
        " pg_catalog.row_security_active(%s::pg_catalog.oid), current_user",
        (oid, oid),
    ).fetchone()
    assert found is not None
    rule, has_policies, role = found
    if rule is not None:
        raise InvalidPipeline(
            f"{node}: table {full_name} has the rule {rule!r}.",
            why="COPY passes rules by, so it would hold for the rows of large epochs and not for those of small ones.",
            do=f'let a trigger do what it does, then: DROP RULE "{rule}" ON {full_name};',
        )
    if has_policies:
        raise InvalidPipeline(
            f"{node}: row-level security holds for role {role} in table {full_name}.",
            why="PostgreSQL does not COPY into a table under its policies.",
            do=f'as superuser: ALTER ROLE "{role}" BYPASSRLS; and keep rows out with a filter before the sink, or a '
            "CHECK constraint.",
        )


def lock_ddl(connection: Connection) -> None:
    """Let one session at a time create tables: CREATE TABLE IF NOT EXISTS alone fails when two race."""
    connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('holdfast'))")


def check_may_create(connection: Connection, node: str, schema_name: str, what: str) -> None:
    """Raise :class:`InvalidPipeline` with the GRANT if this role may not create tables in the schema."""
    row = connection.execute(
        "SELECT pg_catalog.has_schema_privilege(%s, 'CREATE') AND pg_catalog.has_schema_privilege(%s, 'USAGE'),"
        " current_user",
        (schema_name, schema_name),
    ).fetchone()
    assert row is not None
    if not row[0]:
        raise InvalidPipeline(
            f"{node}: {what} cannot be created in schema {schema_name}.",
            why=f"role {row[1]} may not create tables there.",
            do=f'as owner of the schema: GRANT USAGE, CREATE ON SCHEMA "{schema_name}" TO "{row[1]}";',
        )


def check_ledger(connection: Connection, table: PostgresTable) -> bool:
    """Return whether the ledger table exists; raise :class:`InvalidPipeline` with the GRANT if we may not use it."""
    oid, _ = _relation(connection, table.schema_name, LEDGER)
    if oid is not None:
        _check_privileges(connection, table.node, table.schema_name, LEDGER, oid, ["SELECT", "INSERT", "UPDATE"])
    return oid is not None


def check_explanations(connection: Connection, table: PostgresTable) -> bool:
    """Return whether the table of explanations exists; raise :class:`InvalidPipeline` if we may not use it."""
    oid, _ = _relation(connection, table.schema_name, EXPLANATIONS)
    if oid is not None:
        wanted = ["SELECT", "INSERT", "DELETE"]
        _check_privileges(connection, table.node, table.schema_name, EXPLANATIONS, oid, wanted)
    return oid is not None


def _wanted_privileges(mode: TableMode) -> list[str]:
    if mode.mode == "append":
        return ["SELECT", "INSERT", "DELETE"] if mode.rewindable else ["INSERT"]
    return ["SELECT", "INSERT", "UPDATE", *(["DELETE"] if mode.delete is not None else [])]


def _check_privileges(
    connection: Connection, node: str, schema_name: str, name: str, oid: int, wanted: Sequence[str]
) -> None:
    row = connection.execute(
        "SELECT current_user, pg_catalog.has_schema_privilege(%s, 'USAGE'),"
        " ARRAY(SELECT privilege FROM pg_catalog.unnest(%s::pg_catalog.text[]) AS privilege"
        "       WHERE NOT pg_catalog.has_table_privilege(%s::pg_catalog.oid, privilege))",
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
        SELECT a.attname, f.declared,
               -- A keyword ("character varying") has no schema; what the path does not find first has one already.
               CASE WHEN pg_catalog.pg_type_is_visible(t.oid) AND f.name OPERATOR(pg_catalog.=) f.typname
                    THEN pg_catalog.format('%%I.%%s', n.nspname, f.declared) ELSE f.declared END,
               CASE WHEN b.typtype OPERATOR(pg_catalog.=) 'e' THEN 'enum' ELSE b.typname::pg_catalog.text END,
               b.typcategory::pg_catalog.text,
               CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'd' THEN t.typtypmod ELSE a.atttypmod END,
               a.attnotnull,
               a.atthasdef OR a.attidentity OPERATOR(pg_catalog.<>) '' OR t.typdefault IS NOT NULL,
               a.attgenerated OPERATOR(pg_catalog.<>) '' OR a.attidentity OPERATOR(pg_catalog.=) 'a',
               (SELECT pg_catalog.format('%%I.%%I', n.nspname, c.collname) FROM pg_catalog.pg_collation c
                  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.collnamespace
                 WHERE c.oid OPERATOR(pg_catalog.=) a.attcollation
                   AND a.attcollation OPERATOR(pg_catalog.<>) t.typcollation)
          FROM pg_catalog.pg_attribute a
          JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
          JOIN pg_catalog.pg_type b ON b.oid OPERATOR(pg_catalog.=)
               CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'd' THEN t.typbasetype ELSE t.oid END
         CROSS JOIN LATERAL (SELECT pg_catalog.format_type(t.oid, a.atttypmod) AS declared,
                                    pg_catalog.format_type(t.oid, NULL) AS name,
                                    pg_catalog.quote_ident(t.typname) AS typname) f
         WHERE a.attrelid OPERATOR(pg_catalog.=) %s AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
         ORDER BY a.attnum
        """,
        (oid,),
    ).fetchall()
    return [TableColumn(*row) for row in rows]


def _added(
    connection: Connection, present: Sequence[TableColumn], stored: pa.Schema, mode: TableMode
) -> list[TableColumn]:
    """Return the columns that a start adds, as the catalog will describe them."""
    names = {column.name for column in present}
    found = []
    for field in stored:
        if field.name in names or field.name == rewinds.EPOCH or not mode.adds(field.name):
            continue
        declared, kind = declared_type(field.type), sql.flat_type(field.type)
        row = connection.execute(
            "SELECT t.typname::pg_catalog.text, t.typcategory::pg_catalog.text FROM pg_catalog.pg_type t"
            " WHERE t.oid OPERATOR(pg_catalog.=) pg_catalog.to_regtype(%s)::pg_catalog.oid",
            (qualified_type(field.type).partition("(")[0],),
        ).fetchone()
        assert row is not None
        is_decimal = "(" in declared
        modifier = modifier_of(kind) if is_decimal else -1
        found.append(
            TableColumn(
                field.name, declared, qualified_type(field.type), row[0], row[1], modifier, False, False, False, None
            )
        )
    return found


def _check_owner(connection: Connection, node: str, table: str, oid: int, added: Sequence[TableColumn]) -> None:
    row = connection.execute(
        "SELECT current_user, pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c"
        " WHERE c.oid OPERATOR(pg_catalog.=) %s",
        (oid,),
    ).fetchone()
    assert row is not None
    if not row[1]:
        ddl = ", ".join(f'ADD COLUMN "{column.name}" {column.declared}' for column in added)
        raise InvalidPipeline(
            f"{node}: column {added[0].name!r} cannot be added to table {table}.",
            why=f"role {row[0]} does not own the table, and only an owner may change it.",
            do=f"as owner: ALTER TABLE {table} {ddl};",
        )


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


def _key_equals(
    connection: Connection, node: str, schema_name: str, name: str, oid: int, mode: TableMode
) -> tuple[str, ...]:
    """Return by which operators the unique index on the key finds a row; refuse a table without such an index."""
    rows = connection.execute(
        """
        SELECT i.indexrelid, a.attname::pg_catalog.text,
               pg_catalog.format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
          FROM pg_catalog.pg_index i
          JOIN LATERAL ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]),
                                  pg_catalog.unnest(i.indclass::pg_catalog.oid[]))
               WITH ORDINALITY AS k(attnum, class, place) ON k.place OPERATOR(pg_catalog.<=) i.indnkeyatts
          JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid
               AND a.attnum OPERATOR(pg_catalog.=) k.attnum
          JOIN pg_catalog.pg_opclass c ON c.oid OPERATOR(pg_catalog.=) k.class
          JOIN pg_catalog.pg_amop m ON m.amopfamily OPERATOR(pg_catalog.=) c.opcfamily
               AND m.amoplefttype OPERATOR(pg_catalog.=) c.opcintype
               AND m.amoprighttype OPERATOR(pg_catalog.=) c.opcintype
               AND m.amopstrategy OPERATOR(pg_catalog.=) 3  -- a B-tree's equality
          JOIN pg_catalog.pg_operator o ON o.oid OPERATOR(pg_catalog.=) m.amopopr
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) o.oprnamespace
         WHERE i.indrelid OPERATOR(pg_catalog.=) %s AND i.indisunique AND i.indisvalid AND i.indimmediate
           AND i.indpred IS NULL AND i.indexprs IS NULL
         ORDER BY i.indexrelid
        """,
        (oid,),
    ).fetchall()
    indexes: dict[int, dict[str, str]] = {}
    for index, column, equals in rows:
        indexes.setdefault(index, {})[column] = equals
    for columns in indexes.values():
        if columns.keys() == set(mode.key):
            return tuple(columns[column] for column in mode.key)
    names = ", ".join(f'"{column}"' for column in mode.key)
    ddl = f'CREATE UNIQUE INDEX ON "{schema_name}"."{name}" ({names});'
    raise sql.no_unique_index(node, f"{schema_name}.{name}", mode.key, ddl)


def _obstacle(connection: Connection, oid: int, mode: TableMode) -> str:
    """Return why a task must not leave its rows prepared in the table, or nothing.

    A prepared transaction keeps its row locks until it is ended: a second attempt of the same task, which
    inserts the same key, would wait for the orphan of the first.
    """
    if mode.mode == "upsert":
        return "an upsert replaces rows, and a prepared transaction would keep them locked"
    row = connection.execute(
        """
        SELECT EXISTS (SELECT FROM pg_catalog.pg_index
                        WHERE indrelid OPERATOR(pg_catalog.=) %(oid)s AND (indisunique OR indisexclusion)),
               EXISTS (SELECT FROM pg_catalog.pg_trigger
                        WHERE tgrelid OPERATOR(pg_catalog.=) %(oid)s AND NOT tgisinternal)
        """,
        {"oid": oid},
    ).fetchone()
    assert row is not None
    if row[0]:
        return "a unique index makes a task wait for the orphan of its first attempt"
    if row[1]:
        return "a trigger may do what a prepared transaction must not (NOTIFY, temporary tables)"
    return ""


def _prepares(connection: Connection, table: PostgresTable, stage: str) -> bool:
    if stage == "table":
        return False
    row: Any = connection.execute("SELECT pg_catalog.current_setting('max_prepared_transactions')::int").fetchone()
    if stage == "prepared" and (not row[0] or table.obstacle):
        raise InvalidPipeline(
            f'{table.node}: stage="prepared" is not possible.',
            why=table.obstacle or "the server has max_prepared_transactions = 0.",
            do='leave stage at "auto", or set max_prepared_transactions = 64 in postgresql.conf and restart.',
        )
    return row[0] > 0 and not table.obstacle
