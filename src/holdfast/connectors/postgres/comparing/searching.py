"""Rows of a PostgreSQL table for ``holdfast trace``: by declaration, in a transaction that reads only."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql as pg

from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres.session import PostgresSession
from holdfast.errors import InvalidPipeline


def find(session: PostgresSession, where: str | tuple[str, str], limit: int) -> list[dict[str, Any]]:
    """Return rows of a table: parameters as of :class:`~holdfast.ports.LineageSpec`."""
    with session.explained():
        connection = session.connection()
        table = pg.Identifier(*catalog.located(connection, session.node, session.table))
        if isinstance(where, str):
            condition: pg.Composable = pg.SQL(where.replace("%", "%%"))
            values = []
        else:
            condition, values = pg.SQL("{}::text = %s").format(pg.Identifier(where[0])), [where[1]]
        statement = pg.SQL("SELECT * FROM {} WHERE ({}\n) LIMIT %s").format(table, condition)
        try:
            with connection.transaction():
                connection.execute("SET TRANSACTION READ ONLY")
                found = connection.execute(statement, [*values, limit])
                columns = [column.name for column in found.description or ()]
                return [dict(zip(columns, row, strict=True)) for row in found]
        except (psycopg.errors.SyntaxErrorOrAccessRuleViolation, psycopg.errors.DataError) as error:
            raise InvalidPipeline(
                f"{session.node}: its rows cannot be asked for.",
                why=f"PostgreSQL said: {str(error).splitlines()[0]}.",
                do="write the condition as PostgreSQL takes it behind WHERE, with the columns of the table.",
            ) from error
