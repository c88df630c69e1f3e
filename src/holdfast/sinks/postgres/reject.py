"""Rows of a decided epoch that PostgreSQL refuses: found by halves, and left out of the part when it is published.

Rows of a staging table stay in it: its handle says which are not published.  They are numbered by their place in the
table (``ctid``), which nothing moves: nobody changes a staging table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast.errors import BadRow
from holdfast.ports import Carried, Part, Staged
from holdfast.sinks import refusals
from holdfast.sinks.postgres.session import Connection, PostgresSession, translated
from holdfast.sinks.postgres.staging import tables_of
from holdfast.sinks.postgres.table import ORDER, PostgresTable
from holdfast.sinks.refusals import TableRows

_PLACES = (
    "SELECT ctid::pg_catalog.text FROM {} WHERE NOT ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[]) ORDER BY {}"
)
_SOME = "(SELECT * FROM {} WHERE ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[])) AS taken"
_BUT_SOME = "(SELECT * FROM {} WHERE NOT ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[])) AS taken"


def taken(stage: pg.Composable, part: Part) -> pg.Composable:
    """Return what of a staging table is published."""
    places = refusals.left_out(part) if isinstance(part, Staged) else []
    return pg.SQL(_BUT_SOME).format(stage, pg.Literal(places)) if places else stage


def carried_rows(
    session: PostgresSession, connection: Connection, part: Carried, write: Callable[[pa.Table], None]
) -> TableRows:
    """Return rows that the driver holds; ``write`` checks and writes some of them."""

    def refusal(low: int, high: int) -> BadRow | None:
        return _refusal(session, connection, lambda: write(part.rows.slice(low, high - low)))

    return TableRows(part, part.rows, refusal)


class StagedRows:
    """Rows of a staging table."""

    def __init__(self, session: PostgresSession, connection: Connection, table: PostgresTable, part: Staged) -> None:
        self._session = session
        self._connection = connection
        self._table = table
        self._part = part
        self._stage = table.identifier(tables_of([part])[0])
        order = pg.SQL("ctid") if table.mode.mode == "append" else pg.Identifier(ORDER)
        gone = pg.Literal(refusals.left_out(part))
        places = connection.execute(pg.SQL(_PLACES).format(self._stage, gone, order)).fetchall()
        self._places = [place for (place,) in places]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._places)

    def refusal(self, low: int, high: int) -> BadRow | None:
        """Write rows onto those before them."""
        some = pg.SQL(_SOME).format(self._stage, pg.Literal(self._places[low:high]))

        def write() -> None:
            for statement in self._table.from_stage(some):
                self._connection.execute(statement)

        return _refusal(self._session, self._connection, write)

    def row(self, number: int) -> pa.Table:
        """Return a row, its values as PostgreSQL writes them."""
        names = [column.name for column in self._table.columns]
        values = pg.SQL(", ").join(pg.SQL("{}::pg_catalog.text").format(pg.Identifier(name)) for name in names)
        some = pg.SQL(_SOME).format(self._stage, pg.Literal([self._places[number]]))
        found = self._connection.execute(pg.SQL("SELECT {} FROM {}").format(values, some)).fetchone()
        assert found is not None
        return pa.table({name: pa.array([value], pa.string()) for name, value in zip(names, found, strict=True)})

    def without(self, numbers: Collection[int]) -> Part:
        """Return the part without some rows."""
        return refusals.leaving_out(self._part, [self._places[number] for number in numbers])


def _refusal(session: PostgresSession, connection: Connection, write: Callable[[], None]) -> BadRow | None:
    connection.execute("SAVEPOINT holdfast_rows")
    try:
        try:
            write()
        except psycopg.Error as error:
            if connection.closed:
                raise
            raise translated(error, session.node, session.table, session.dsn) from error
    except BadRow as error:
        connection.execute("ROLLBACK TO SAVEPOINT holdfast_rows")
        return error
    connection.execute("RELEASE SAVEPOINT holdfast_rows")
    return None
