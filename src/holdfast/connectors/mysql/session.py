"""A connection to MySQL or MariaDB: its settings, statements with values, transactions, errors in our words."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql import converters, cursors, err
from pymysql.constants import FIELD_TYPE, SERVER_STATUS

from holdfast.connectors.kit.sql_session import Begin, SqlSession
from holdfast.connectors.mysql.url import MysqlUrl
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable

logger = logging.getLogger("holdfast.connectors.mysql")

LOCK_TIMEOUT_S = 10
"""How long a statement waits for a row or a table that another session holds."""

_SETTINGS = """
SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION',
    SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = {0}, SESSION lock_wait_timeout = {0},
    SESSION sql_notes = 1, SESSION max_error_count = 4096, SESSION unique_checks = 1, SESSION completion_type = 0,
    SESSION sql_select_limit = 18446744073709551615
"""
"""Strict: what a column does not keep is an error and no warning (but spaces: see ``send``).  What follows the timeouts
is as installed; a server may have other defaults, with which rows are not looked at, or not shown."""

_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

_TOKENS = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|\?|%", re.DOTALL)

_AS_TEXT = (
    FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP,
    FIELD_TYPE.TIME,
)  # fmt: skip
_CONVERTERS = {kind: convert for kind, convert in converters.conversions.items() if kind not in _AS_TEXT}

_LOCK_WAIT = 1205
_TRUNCATED = 1265
_TOO_LARGE = 1153
_LOST = frozenset({0, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031})
_BUSY = frozenset({1021, 1040, 1041, 1114, 1180, 1203, _LOCK_WAIT, 1206, 1213, 1226, 1290, 1317, 1792, 1836, 1969})
"""Disk, connections, locks, time, a server that takes no writes: it may be otherwise next time."""
_UNDONE = frozenset({_LOCK_WAIT, 1213, 1290, 1792, 1836, 3101})
"""Answers to a COMMIT that undid it: a deadlock or a conflict between servers, a server that takes no writes."""
_REFUSED = frozenset({1044, 1045, 1049, 1129, 1130, 1251, 1698, 2026, 2054, 2059})
_PRIVILEGE = frozenset({1142, 1143, 1227, 1370, 1410})
_OF_A_ROW = frozenset({1153, 1366, 1406, 1264, 1265, 1292, 1301, 1411, 1644, 1690, 3140, 3819, 4025})
"""Values that a column or a constraint does not take; refused by a trigger that says so (SIGNAL)."""


class MysqlConnection:
    """A connection in autocommit mode.

    Parameters
    ----------
    parameters : dict
        For the driver.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._bytes_max = 2**20
        self._raw = pymysql.connect(
            **parameters, charset="utf8mb4", autocommit=True, conv=_CONVERTERS, connect_timeout=10,
            read_timeout=600, write_timeout=600,
        )  # fmt: skip
        self.execute(_SETTINGS.format(LOCK_TIMEOUT_S))
        self.execute(_ISOLATION)
        ((size,),) = self.execute("SELECT @@max_allowed_packet").fetchall()
        self._bytes_max = int(size) - 1024

    @property
    def number(self) -> int:
        """The server's number of it."""
        return int(self._raw.thread_id())

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._raw.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement whose values are question marks; return a cursor."""
        cursor = self._raw.cursor()
        if values:
            statement = cursor.mogrify(_with_markers(statement), tuple(values))
            self._check_size(statement)
        cursor.execute(statement)
        return cursor

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> Any:
        """Run a statement once for each row; return a cursor that has counted all."""
        cursor = self._raw.cursor()
        cursor.executemany(_with_markers(statement), rows)
        return cursor

    def send(self, statement: bytes) -> None:
        """Run a statement that is complete.

        Raises
        ------
        pymysql.err.DataError
            Also where a value lost spaces at its end: to MySQL that is a note in any mode, and two keys become one.
        """
        self._check_size(statement)
        cursor = self._raw.cursor()
        cursor.execute(statement)
        if cursor.warning_count:
            for _, code, message in self._raw.show_warnings():
                if code == _TRUNCATED:
                    raise err.DataError(code, message)

    def _check_size(self, statement: str | bytes) -> None:
        """Raise where the server would hang up instead of answering: that of one row, which no retry makes shorter."""
        if len(statement) > self._bytes_max:
            raise err.DataError(_TOO_LARGE, f"{len(statement):,} bytes are more than max_allowed_packet allows")

    def stream(self, statement: str) -> Any:
        """Return a cursor whose rows come as they are asked for."""
        cursor = self._raw.cursor(cursors.SSCursor)
        cursor.execute(statement)
        return cursor

    def is_alive(self) -> bool:
        """Ask the server."""
        try:
            self._raw.ping(reconnect=False)
        except err.Error:
            return False
        return True

    def close(self) -> None:
        """Close it: the server rolls back what is open."""
        with suppress(err.Error):
            self._raw.close()


def _with_markers(statement: str) -> str:
    """Return a statement as the driver takes it.

    Examples
    --------
    >>> _with_markers("SELECT `a?` FROM t WHERE b = ? AND c LIKE '5%?'")
    "SELECT `a?` FROM t WHERE b = %s AND c LIKE '5%%?'"
    """
    return _TOKENS.sub(lambda token: "%s" if token[0] == "?" else token[0].replace("%", "%%"), statement)


class MysqlSession(SqlSession):
    """A connection to a database.

    Parameters
    ----------
    node, pipeline, sink : str
        As in :class:`SqlSession`.
    url : MysqlUrl
        Where, with variables filled in.
    table : str
        The target, for errors.
    owns : bool
        Whether it is the one that publishes: it has a lock by which a takeover finds its number.
    program : str
        Shown by the server, with pipeline and sink.
    """

    errors = err.Error
    system = "MySQL"

    def __init__(
        self,
        node: str,
        url: MysqlUrl,
        table: str,
        pipeline: str,
        sink: str,
        *,
        owns: bool = False,
        program: str = "holdfast",
    ) -> None:
        super().__init__(node, str(url), pipeline, sink)
        self._url = url
        self._table = table
        self._owns = owns
        self._program = program
        self._connection: MysqlConnection | None = None
        self._has_lock = False

    @property
    def address(self) -> MysqlUrl:
        """Host, database and user."""
        return self._url

    def beside(self) -> MysqlSession:
        """Return another one with the same database."""
        return MysqlSession(self.node, self._url, self._table, self.pipeline, self.sink)

    def connection(self) -> MysqlConnection:
        """Return the connection, or a new one where it broke while it was idle (a restart, a firewall)."""
        if self._connection is not None and not self._connection.is_alive():
            self.close()
        if self._connection is None:
            with self.explained():
                program = f"{self._program} {self.pipeline}/{self.sink}"
                self._connection = MysqlConnection({**self._url.parameters(), "program_name": program})
        return self._connection

    def again(self) -> MysqlConnection:
        """Return a fresh one."""
        self.close()
        return self.connection()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._has_lock = self._connection, None, False
        if connection is not None:
            connection.close()

    def begin(self, connection: MysqlConnection, how: Begin) -> None:
        """Begin a transaction."""
        if how == "read":
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # of the next one only
            connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            return
        if self._owns and not self._has_lock:
            ((found,),) = connection.execute("SELECT GET_LOCK(?, 0)", (self._lock_name,)).fetchall()
            self._has_lock = found == 1
        connection.execute("START TRANSACTION")

    @contextmanager
    def after_commits(self) -> Iterator[MysqlConnection]:
        """Yield a fresh connection in a transaction: a locking read waits for a COMMIT that is still on its way."""
        self.again()
        with self.rolled_back() as connection:
            yield connection

    def end_owner(self, error: Unavailable) -> bool:
        """End the session that publishes, if a takeover waited for its lock of the ledger row in vain."""
        if not isinstance(error.__cause__, err.Error) or error.__cause__.args[:1] != (_LOCK_WAIT,):
            return False
        with self.explained():
            connection = self.connection()
            ((owner,),) = connection.execute("SELECT IS_USED_LOCK(?)", (self._lock_name,)).fetchall()
            if owner is None or owner == connection.number:
                return False
            logger.info("%s: ending connection %d, which still held the ledger row", self.node, owner)
            with suppress(err.OperationalError):  # it has ended by itself
                connection.execute(f"KILL {int(owner)}")
        return True

    @property
    def _lock_name(self) -> str:
        """Of 64 letters at most."""
        database = self._url.parameters()["database"]
        whose = f"{database}\0{self.pipeline}\0{self.sink}"
        return f"holdfast:{hashlib.sha256(whose.encode()).hexdigest()[:40]}"

    def is_refusal(self, error: Exception) -> bool:
        """Return whether the server has answered that nothing was kept; any other answer is asked about."""
        return error.args[:1] != () and error.args[0] in _UNDONE

    def translate(self, error: Exception) -> HoldfastError:
        """Return the driver's error in our words, its kind chosen by what the user should do."""
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        why = f"MySQL said: {error.args[-1] if error.args else error!r} ({code})."
        if code in _LOST or isinstance(error, err.InterfaceError):
            self.close()
            return Unavailable(
                f"{self.node}: MySQL at {self.place} does not answer.",
                why=why,
                do="it is retried; if the problem persists, check that the server runs and that host and port are "
                "right.",
                participant=self.sink,
            )
        if code in _BUSY:
            return Unavailable(
                f"{self.node}: MySQL at {self.place} did not carry out a statement; nothing was changed.",
                why=why,
                do="it is retried; if the problem persists, look for a transaction that stays open (SHOW PROCESSLIST), "
                "for disk space, and whether the server accepts writes.",
                participant=self.sink,
            )
        if code in _REFUSED:
            return InvalidPipeline(
                f"{self.node}: MySQL at {self.place} refuses the connection.",
                why=why,
                do="correct user, password or database in the address, or let the server admit this client.",
                participant=self.sink,
            )
        if code in _PRIVILEGE:
            return InvalidPipeline(
                f"{self.node}: a privilege is missing for table {self._table}.",
                why=why,
                do="GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER ON the database TO the user of the address.",
                participant=self.sink,
            )
        if code in _OF_A_ROW or isinstance(error, err.IntegrityError | err.DataError):
            return BadRow(
                f"{self.node}: table {self._table} refuses a row.",
                why=why,
                do='correct such rows before the sink, or use mode="upsert" where a row may occur again.',
                pipeline=self.pipeline,
                participant=self.sink,
            )
        return InvalidPipeline(
            f"{self.node}: table {self._table} refused a statement.",
            why=why,
            do="undo the change of the table, or start the run again: columns are then checked.",
            participant=self.sink,
        )
