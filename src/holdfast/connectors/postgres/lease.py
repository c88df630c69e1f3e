"""A lease in PostgreSQL: a row beside the sink's ledger, which expires by the server's clock."""

from __future__ import annotations

from psycopg import sql as pg

from holdfast.connectors.kit.lease_text import TABLE, dumped, loaded
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.ports import Lease, SeenLease

_OURS = pg.SQL("pipeline OPERATOR(pg_catalog.=) %s")
_EXPIRY = pg.SQL("pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => %s)")


class PostgresLease:
    """The lease of a pipeline, in the schema of a sink's table.

    Parameters
    ----------
    session : PostgresSession
        Its own connection: it must not wait behind a publish.
    pipeline : str
        Whose lease.
    """

    def __init__(self, session: PostgresSession, pipeline: str) -> None:
        self._session = session
        self._pipeline = pipeline
        self._known: pg.Identifier | None = None
        """The table, once it has been found: looks and beats are many."""

    def read(self) -> SeenLease | None:
        """Return the row, and how long it is good for by the server's clock."""
        with self._session.explained():
            connection = self._session.connection()
            if self._known is None:
                schema = self._schema(connection)
                if not catalog.has_table(connection, schema, TABLE):
                    return None
                self._known = pg.Identifier(schema, TABLE)
            row = connection.execute(
                pg.SQL(
                    "SELECT beat, text, (EXTRACT(EPOCH FROM expires_at OPERATOR(pg_catalog.-)"
                    " pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint FROM {} WHERE {}"
                ).format(self._known, _OURS),
                (self._pipeline,),
            ).fetchone()
        return None if row is None else SeenLease(row[0], loaded(row[1]), row[2])

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Replace the row if it has the beat that was seen."""
        ttl_s = lease.ttl_us / 1e6
        if self._known is None:
            with self._session.transaction() as connection:
                known = self._table(connection)
            self._known = known
        if seen is None:
            statement = pg.SQL(
                "INSERT INTO {} (pipeline, beat, text, expires_at) VALUES (%s, 1, %s, {}) ON CONFLICT DO NOTHING"
            ).format(self._known, _EXPIRY)
            values: tuple[object, ...] = (self._pipeline, dumped(lease), ttl_s)
        else:
            statement = pg.SQL(
                "UPDATE {} SET beat = beat OPERATOR(pg_catalog.+) 1, text = %s, expires_at = {}"
                " WHERE {} AND beat OPERATOR(pg_catalog.=) %s"
            ).format(self._known, _EXPIRY, _OURS)
            values = (dumped(lease), ttl_s, self._pipeline, seen.beat)
        with self._session.explained():
            return self._session.connection().execute(statement, values).rowcount == 1

    def close(self) -> None:
        """Close the connection."""
        self._session.drop()

    def _schema(self, connection: Connection) -> str:
        return catalog.located(connection, self._session.node, self._session.table)[0]

    def _table(self, connection: Connection) -> pg.Identifier:
        schema = self._schema(connection)
        if not catalog.has_table(connection, schema, TABLE):
            catalog.check_may_create(connection, self._session.node, schema, f"table {TABLE}")
            catalog.lock_ddl(connection)
            connection.execute(
                pg.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (pipeline pg_catalog.text PRIMARY KEY, beat bigint NOT NULL,"
                    " text pg_catalog.text NOT NULL, expires_at timestamp with time zone NOT NULL)"
                ).format(pg.Identifier(schema, TABLE))
            )
        return pg.Identifier(schema, TABLE)
