"""One kept PostgreSQL connection: transactions whose COMMIT is never misjudged, and errors in our own words.

Invariants: a statement that fails before COMMIT was rolled back; a COMMIT whose reply never came is
:class:`InDoubt` and nothing else; a broken connection is never used again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from holdfast.connectors.postgres.dsn import Dsn
from holdfast.errors import BadRow, Diverged, HoldfastError, InDoubt, InvalidPipeline, Unavailable, invariant

Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECTION_DEFAULTS = {
    # A peer that vanished is detected within a minute, not after hours.
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SESSION_SETTINGS = """
SELECT pg_catalog.set_config('client_min_messages', 'warning', false),
       pg_catalog.set_config('TimeZone', 'UTC', false),
       pg_catalog.set_config('tcp_keepalives_idle', '30', false),
       pg_catalog.set_config('tcp_keepalives_interval', '10', false),
       pg_catalog.set_config('tcp_keepalives_count', '3', false),
       CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
            THEN pg_catalog.set_config('synchronous_commit', 'on', false) END,
       pg_catalog.pg_is_in_recovery()
"""
"""``synchronous_commit = off`` would let the server forget an epoch after it said that it holds it."""

_WRONG_PARAMETER = re.compile(
    r'invalid integer value ".*" for connection option "(\w+)"|invalid (\w+) value: "|bad value for (\w+): '
    r"|could not match \d+ (port) numbers|could not parse network (address)"
)
"""What libpq and psycopg say of a parameter before they ask any server: to try again would not help."""

_OF_A_ROW = frozenset({"54000", "P0001"})
"""Too long for an index; refused by a trigger that says so (RAISE EXCEPTION)."""

APPLICATION_NAME_BYTES = 63

_TRANSACTION: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_SNAPSHOT: LiteralString = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_READ_ONLY = "25006"
"""A statement that writes, in a session that must not."""


@dataclass
class PostgresSession:
    """A connection that is opened when needed and replaced when broken.

    Parameters
    ----------
    dsn : Dsn
        Where, with variables filled in.
    node : str
        ``sink 'name'``, for errors.
    table : str
        The target, for errors.
    application_name : str
        Shown in ``pg_stat_activity``.
    """

    dsn: Dsn
    node: str
    table: str
    application_name: str
    _connection: Connection | None = None

    def connection(self) -> Connection:
        """Return the kept connection, or a new one in autocommit mode.

        Raises
        ------
        Unavailable
            If the server does not answer.
        InvalidPipeline
            If it refuses us, or the DSN cannot be read.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def drop(self) -> None:
        """Close the connection; the server rolls back what was open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _connect(self) -> Connection:
        try:
            parameters: dict[str, Any] = {**_CONNECTION_DEFAULTS, **conninfo_to_dict(self.dsn.text)}
        except psycopg.Error:
            raise self._unreadable("it is neither a URL nor a list of keywords") from None
        if not all(_is_port(each.strip()) for each in str(parameters.get("port") or "").split(",")):
            raise self._unreadable("its port is not a valid value")  # else a host is looked for
        if _names_several(parameters):
            parameters.setdefault("target_session_attrs", "read-write")
        parameters["application_name"] = self.application_name[:APPLICATION_NAME_BYTES]
        parameters["client_encoding"] = "utf8"
        with self.explained():
            try:
                connection = psycopg.connect("", autocommit=True, **parameters)
            except psycopg.Error as error:
                if wrong := _WRONG_PARAMETER.search(str(error)):
                    option = next(name for name in wrong.groups() if name)
                    raise self._unreadable(f"its {option} is not a valid value") from None
                raise
            try:
                (*_, is_standby) = connection.execute(_SESSION_SETTINGS).fetchone() or (False,)
                if is_standby:  # what it reports about an epoch may be out of date
                    raise self._not_primary("PostgreSQL said: it is in recovery.")
            except BaseException:
                connection.close()
                raise
        return connection

    def _not_primary(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self.node}: PostgreSQL at {self.dsn} is a standby, or accepts no writes.",
            why=why,
            do="it is retried, with a new connection; for a cluster name all of its hosts in the DSN "
            "(host=a,b port=5432,5432): the one that accepts writes is used.",
            participant=self.node,
        )

    def _unreadable(self, why: str) -> InvalidPipeline:
        # The driver's message quotes the text, password and all: of one with a slash a part is mistaken for the port.
        return InvalidPipeline(
            f"{self.node}: the DSN cannot be read.",
            why=f"{why}.",
            do="write postgresql://user@host:5432/database, or host=... dbname=... user=...; in a URL, letters like "
            "/ and @ of a password are written %2F and %40.",
            participant=self.node,
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the driver's errors of the block as ours; drop the connection if it broke."""
        try:
            yield
        except psycopg.Error as error:
            if self._connection is not None and (self._connection.closed or error.sqlstate == _READ_ONLY):
                self.drop()  # read-only: a pooler or an address that moves may lead to the primary next time
            raise translated(error, self.node, self.table, self.dsn) from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the block in one transaction and commit it.

        Raises
        ------
        Unavailable, InvalidPipeline, BadRow
            From before COMMIT, or by the server's answer to COMMIT: nothing was changed.
        InDoubt
            If the connection broke during COMMIT.
        """
        with self.explained():
            connection = self._begun()
            try:
                yield connection
            except BaseException:
                self._roll_back(connection)
                raise
        self.settle(sql.SQL("COMMIT"))

    @contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """Run the block in one transaction and always roll it back."""
        with self.explained():
            connection = self._begun()
            try:
                yield connection
            finally:
                self._roll_back(connection)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Run the block in one transaction that reads the database of one moment, and changes nothing."""
        with self.explained():
            connection = self._begun(_SNAPSHOT)
            try:
                yield connection
            finally:
                self._roll_back(connection)

    def _begun(self, statement: LiteralString = _TRANSACTION) -> Connection:
        kept = self._connection is not None
        connection = self.connection()
        try:
            self._begin(connection, statement)
        except psycopg.OperationalError:
            if not (kept and connection.closed):
                raise
            # It broke while it was idle (a restart, a firewall): nothing was sent, so a new one is as good.
            self.drop()
            connection = self.connection()
            self._begin(connection, statement)
        return connection

    def _begin(self, connection: Connection, statement: LiteralString) -> None:
        try:
            connection.execute(statement)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.ReadOnlySqlTransaction) as error:
            self.drop()  # a pooler's way to a standby: a new connection may find the primary
            raise self._not_primary(f"PostgreSQL said: {_said(error)}.") from error

    def _roll_back(self, connection: Connection) -> None:
        if connection.closed:
            return
        try:
            connection.execute("ROLLBACK")
        except BaseException as error:
            self.drop()  # interrupted, too: the next user would find a transaction that is open
            if not isinstance(error, Exception):
                raise

    def settle(self, statement: sql.SQL | sql.Composed) -> None:
        """Execute COMMIT, COMMIT PREPARED or PREPARE TRANSACTION; a reply that never came is :class:`InDoubt`.

        Notes
        -----
        An error *reply* on a living connection is a definite no.  A FATAL one is not: a server that is shut
        down while it waits for its replicas has committed already.
        """
        connection = self._connection
        assert connection is not None
        verb = statement.as_string(None).split("'")[0].strip()
        try:
            status = connection.execute(statement).statusmessage
        except psycopg.Error as error:
            if not connection.closed:
                self._roll_back(connection)
                raise translated(error, self.node, self.table, self.dsn) from error
            self.drop()
            raise InDoubt(
                f"{self.node}: the connection to {self.dsn} broke during {verb}.",
                why=f"it is unknown whether the server carried it out: {_first_line(error)}.",
                do="nothing by hand: the sink is asked what it holds.",
                participant=self.node,
            ) from error
        except BaseException:  # Ctrl-C while waiting: what this connection says next belongs to the past
            self.drop()
            raise
        invariant(status == verb, f"{self.node}: {verb} was answered by {status}.", participant=self.node)


def _names_several(parameters: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a DSN names several hosts, and leaves open which of them to take.

    Then the one that accepts writes is meant, whichever is the primary.
    """
    if "target_session_attrs" in parameters or "PGTARGETSESSIONATTRS" in environment:
        return False
    named = parameters.get("host") or parameters.get("hostaddr") or environment.get("PGHOST", "")
    return "," in str(named)


def _is_port(text: str) -> bool:
    """Return whether a text is a port, or leaves it to the default."""
    return not text or (text.isdecimal() and 0 < int(text) < 2**16)


def translated(error: psycopg.Error, node: str, table: str, dsn: Dsn) -> HoldfastError:
    """Return the driver's error in our words, its kind chosen by what the user should do."""
    state = error.sqlstate or ""
    diagnosis = error.diag
    why = f"PostgreSQL said: {_said(error)}."
    if _is_connection_loss(error, state):
        return Unavailable(
            f"{node}: PostgreSQL at {dsn} does not answer.",
            why=why,
            do="it is retried; if the problem persists, check that the server runs and that host and port are right.",
            participant=node,
        )
    if state.startswith(("28", "3D")) or (not state and _is_refusal(error)):
        return InvalidPipeline(
            f"{node}: PostgreSQL at {dsn} refuses the connection.",
            why=why,
            do="correct user, password or database in the DSN, or let pg_hba.conf admit this client.",
            participant=node,
        )
    if state == "42501":
        return InvalidPipeline(
            f"{node}: a privilege is missing for table {table}.",
            why=why,
            do=f"as owner: GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO the role of the DSN; "
            "GRANT CREATE, USAGE ON its schema.",
            participant=node,
        )
    if state.startswith(("22", "23", "44")) or state in _OF_A_ROW:
        column = f", column {diagnosis.column_name!r}" if diagnosis.column_name else ""
        rule = f", constraint {diagnosis.constraint_name!r}" if diagnosis.constraint_name else ""
        return BadRow(
            f"{node}: table {diagnosis.table_name or table}{column}{rule} refuses a row.",
            why=why,
            do='correct such rows before the sink, or use mode="upsert" where a row may occur again.',
            participant=node,
        )
    if state.startswith("42"):
        return InvalidPipeline(
            f"{node}: table {table} is not as it was when the run began.",
            why=why,
            do="undo the change of the table, or start the run again: columns are then checked.",
            participant=node,
        )
    if state.startswith(("0A", "2F", "38", "39", "P0")):
        return InvalidPipeline(
            f"{node}: table {table} cannot be written in this way.",
            why=why,
            do="check the table's triggers, rules and row-level security.",
            participant=node,
        )
    if state == "XX001" or state == "XX002":
        return Diverged(
            f"{node}: PostgreSQL reports damaged data in or around table {table}.",
            why=why,
            do="check the server before anything else is written.",
            participant=node,
        )
    return Unavailable(
        f"{node}: PostgreSQL at {dsn} did not carry out a statement; nothing was changed.",
        why=why,
        do="it is retried; if the problem persists, see the server's log.",
        participant=node,
    )


def _is_connection_loss(error: psycopg.Error, state: str) -> bool:
    if state:
        return state.startswith(("08", "57P"))
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not _is_refusal(error)


def _is_refusal(error: psycopg.Error) -> bool:
    """Return whether a failed connection attempt was answered: libpq then has no code, only the server's text."""
    text = str(error)
    return any(
        words in text
        for words in (
            "authentication failed",
            "no password supplied",
            "no pg_hba.conf entry",
            "pg_hba.conf rejects",
            "does not exist",
            "is not permitted to log in",
            "permission denied for database",
            "certificate verify failed",
            "does not support SSL",
        )
    )


def _said(error: psycopg.Error) -> str:
    diagnosis = error.diag
    parts = [diagnosis.message_primary or _first_line(error), diagnosis.message_detail, diagnosis.context]
    return "; ".join(part.strip().rstrip(".") for part in parts if part)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
