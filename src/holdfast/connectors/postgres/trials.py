"""Rows tried in transactions that are rolled back: whether a table takes an epoch, and which rows of one it refuses.

After a decision the refused rows are found by bisection, and left out of the part when it is published.  Those of a
staging table stay in it: its handle says which are not published.  They are numbered by their place in the table
(``ctid``), which nothing moves: a staging table never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.refusals import Halving, TableRows
from holdfast.connectors.postgres import checks
from holdfast.connectors.postgres import rules as postgres_rules
from holdfast.connectors.postgres.commands import PostgresControl
from holdfast.connectors.postgres.ledger import PostgresLedger, set_lock_timeout
from holdfast.connectors.postgres.rules import PostgresRules
from holdfast.connectors.postgres.session import Connection, PostgresSession, translated
from holdfast.connectors.postgres.staging import tables_of
from holdfast.connectors.postgres.table import ORDER, PostgresTable
from holdfast.errors import BadRow, HoldfastError
from holdfast.ports import Carried, Part, Publication, Refused, Staged

LOCK_TIMEOUT = "30s"
"""How long a trial, or a publish, waits for a lock before it says Unavailable."""

CARRIED = pg.Identifier("pg_temp", "holdfast_carried")
"""The temporary table of carried rows on their way into an upsert's table."""

_PLACES = (
    "SELECT ctid::pg_catalog.text FROM {} WHERE NOT ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[]) ORDER BY {}"
)
_SOME = "(SELECT * FROM {} WHERE ctid OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.tid[])) AS taken"


Earlier = Sequence[tuple["PostgresTrials", Publication]]
"""What the sinks that publish before this one write in the same epoch."""


class PostgresTrials:
    """What one sink tries before and after the decision of an epoch.

    Parameters
    ----------
    session : PostgresSession
        The sink's.  Trials have one like it: they may be made while another thread publishes.
    table : PostgresTable
        The target.
    write : callable
        ``write(connection, part, epoch)`` writes a part as the sink publishes it.
    ledger : PostgresLedger
        The sink's.
    control : PostgresControl, optional
        What it does with control rows: then rows are always tried.
    """

    def __init__(
        self,
        session: PostgresSession,
        table: PostgresTable,
        write: Callable[[Connection, Part, int], None],
        ledger: PostgresLedger,
        control: PostgresControl | None = None,
    ) -> None:
        self._session = PostgresSession(session.dsn, session.node, session.table, f"{session.application_name} trial")
        """Connected at the first trial."""
        self._table = table
        self._write = write
        self._ledger = ledger
        self._control = control

    def admit(self, publication: Publication, earlier: Earlier) -> bool:
        """Check the values; try the rows where the table has rules of its own (``rules.py``).

        Rows that are prepared have passed every rule already: PREPARE TRANSACTION checks what COMMIT would.
        """
        if self._control is not None:
            return self._admit_commands(publication, earlier, self._control)
        carried = [part.rows for part in publication.parts if isinstance(part, Carried)]
        stages = [self._table.identifier(name) for name in tables_of(publication.parts)]
        if not stages and not any(rows.num_rows for rows in carried):
            return False
        with self._session.explained():
            connection = self._session.connection()
            rules = postgres_rules.rules_of(connection, self._table)
        is_odd = [checks.check_values(self._table, rules, rows) for rows in carried]
        question = None if rules.why_tried or any(is_odd) else postgres_rules.suspects(stages, self._table, rules)
        if question is not None:
            with self._session.explained():
                is_odd += [bool(found) for (found,) in connection.execute(question).fetchall()]
        if not rules.why_tried and not any(is_odd):
            return False
        self._try_behind(earlier, publication)
        return True

    def _admit_commands(self, publication: Publication, earlier: Earlier, control: PostgresControl) -> bool:
        """Try the rows, behind the commands of epochs that wait: what they may be depends on these."""
        if not any(part.row_count for part in publication.parts):
            control.awaited.forget(publication.record.epoch)
            return False
        with self._session.explained():
            connection = self._session.connection()
            row = self._ledger.row_if_any(connection)
        before = control.awaited.before(publication.record.epoch, row.epoch if row else 0)
        self._try_behind(earlier, publication, [(self, each) for each in before])
        with self._session.explained():
            batches = (control.batches(self._session.connection(), part) for part in publication.parts)
            control.awaited.note(publication, chain.from_iterable(batches))
        return True

    def _try_behind(self, earlier: Earlier, publication: Publication, before: Earlier = ()) -> None:
        beside = self._beside(earlier)
        same = [(trials, theirs) for trials, theirs in beside if trials._table.identifier() == self._table.identifier()]
        try:
            refusals.try_behind(beside, same, (self, publication), lambda writes: self._try([*before, *writes]))
        except BadRow as refusal:
            if not self._points_elsewhere(refusal, earlier):
                raise

    def _points_elsewhere(self, refusal: HoldfastError, earlier: Earlier) -> bool:
        """Return whether a foreign key refers to rows that another sink may be about to write, on its own connection.

        Another role, or another name of the host, leads to the same database.  What that sink stages may be hidden from
        this role, so it cannot be tried here; refused, good rows would stop every start.  A sink without rows adds
        none.
        """
        others = [
            trials
            for trials, theirs in earlier
            if not trials._shares(self) and any(part.row_count for part in theirs.parts)
        ]
        if not others or not isinstance(refusal.__cause__, psycopg.errors.ForeignKeyViolation):
            return False
        with self._session.explained():
            parent = postgres_rules.parent_of(self._session.connection(), refusal.__cause__)
        parents = [trials for trials in others if (trials._table.schema_name, trials._table.name) == parent]
        return any(trials._database() == self._database() for trials in parents)

    def _database(self) -> tuple[Any, ...] | None:
        with self._session.explained():
            return postgres_rules.database_of(self._session.connection())

    def _shares(self, other: PostgresTrials) -> bool:
        """Return whether another sink writes to the same database."""
        return self._session.dsn == other._session.dsn

    def _try(self, writes: Earlier) -> None:
        """Write, and roll back: a transaction that stayed open until the decision would hold its locks against the
        other sinks of the epoch, which may write to the same table, and hide its rows from their foreign keys.
        """
        with self._session.rolled_back() as connection:
            connection.execute(set_lock_timeout(LOCK_TIMEOUT))
            _write_trial(connection, writes)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _beside(self, earlier: Earlier) -> Earlier:
        """Return those of other sinks that write to the same database."""
        return [(trials, theirs) for trials, theirs in earlier if trials._shares(self)]

    def reject(self, publication: Publication, earlier: Earlier) -> tuple[Publication, list[Refused]]:
        """Find the rows that the table refuses; prepared ones were all taken."""
        with self._session.explained():
            rules = postgres_rules.rules_of(self._session.connection(), self._table)
        with self._session.rolled_back() as connection:
            connection.execute(set_lock_timeout(LOCK_TIMEOUT))
            _write_trial(connection, self._beside(earlier))
            connection.execute(pg.SQL("DROP TABLE IF EXISTS {}").format(CARRIED))
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            left, found = refusals.rejected(
                publication, lambda part: self._rows(connection, part, publication.record.epoch, rules)
            )
        return left, [each for each in found if not self._points_elsewhere(each.error, earlier)]

    def _rows(self, connection: Connection, part: Part, epoch: int, rules: PostgresRules) -> Halving | None:
        if self._control is not None:
            control, batches = self._control, list(self._control.batches(connection, part))
            rows = pa.Table.from_batches(batches) if batches else pa.table({})

            def refusal(low: int, high: int) -> BadRow | None:
                some = rows.slice(low, high - low).to_batches()
                return _refusal(self._session, connection, lambda: control.write(connection, some, epoch))

            return TableRows(part, rows, refusal)
        if isinstance(part, Carried):

            def check(rows: pa.Table) -> None:
                checks.check_values(self._table, rules, rows)
                self._write(connection, Carried(rows), epoch)

            return carried_rows(self._session, connection, part, check)
        return StagedRows(self._session, connection, self._table, part) if tables_of([part]) else None

    def close(self) -> None:
        """Close the connection."""
        self._session.drop()


def _write_trial(connection: Connection, writes: Earlier) -> None:
    for trials, publication in writes:
        connection.execute(pg.SQL("DROP TABLE IF EXISTS {}").format(CARRIED))
        for part in publication.parts:
            trials._write(connection, part, publication.record.epoch)


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
            if connection.closed:  # it broke meanwhile: that says nothing of the row
                raise
            raise translated(error, session.node, session.table, session.dsn) from error
    except BadRow as error:
        connection.execute("ROLLBACK TO SAVEPOINT holdfast_rows")
        return error
    connection.execute("RELEASE SAVEPOINT holdfast_rows")
    return None
