"""``write.mysql``: a table of MySQL or MariaDB, written exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kit.sql import APPEND, OWN_TABLES, Mode, OnNewColumn, TableMode
from holdfast.connectors.kit.sql_spec import SqlSpec
from holdfast.connectors.kit.sql_table import SqlTable
from holdfast.connectors.mysql.url import MysqlUrl
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.trigger import pace

if TYPE_CHECKING:
    from holdfast.connectors.kit.book import SqlLease
    from holdfast.connectors.kit.sql_sink import SqlSink
    from holdfast.connectors.mysql.dialect import MysqlDialect
    from holdfast.connectors.mysql.session import MysqlConnection, MysqlSession
    from holdfast.connectors.mysql.staging import MysqlStaging


def mysql(
    url: str,
    *,
    table: str,
    mode: Mode = "append",
    key: str | Sequence[str] = (),
    delete: str | None = None,
    rewindable: bool = False,
    control: None = None,
    commit_every: str | int | None = None,
    on_new_column: OnNewColumn = "add",
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows to a table of MySQL or MariaDB, exactly once.

    Parameters
    ----------
    url : str
        ``mysql://user:password@host:3306/database``; options after ``?`` are ``ssl_ca``, ``ssl_cert``, ``ssl_key``,
        ``ssl_verify_identity`` and ``unix_socket``.  ``${NAME}`` is filled in from the environment when the run starts,
        percent-encoded.  Secrets in it are never shown, stored or fingerprinted.
    table : str
        The table, of InnoDB, in that database.  Created from the rows' schema when absent.
    mode : {"append", "upsert"}
        Add every row, or let the last row of each key win.
    key : str or sequence of str
        Columns that identify a row: upsert only.
    delete : str, optional
        Boolean column, upsert only: a true row deletes its key.  The column is not stored.
    rewindable : bool
        Append only: keep the epoch of each row in a column ``__holdfast_epoch``, so that ``holdfast rewind`` can
        withdraw rows.
    control : None
        Other sinks have it (``docs/control-rows.md``): here a change of columns ends a transaction, so it cannot move
        with the rows.
    commit_every : str or int, optional
        Commit less often than the other sinks: after a duration (``"30 s"``) or a number of epochs, in one transaction.
        What it lacks until then is in the checkpoint: ``docs/sinks/README.md``.  Default: every epoch.
    on_new_column : {"add", "fail"}
        A start whose rows have a column that the table has not adds it (rows that are there get null), or is refused.
        ``holdfast plan`` says which.  A column of the key is never added.
    name : str, optional
        The sink's name: its ledger row is kept under it.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Raises
    ------
    InvalidPipeline
        If the arguments contradict each other.

    Notes
    -----
    Needs MariaDB 10.6 or MySQL 8.0, or newer, and ``pip install 'holdfast[mysql]'``.  Small epochs are carried by the
    driver, large ones are staged by tasks in the table ``holdfast_staged``: ``docs/sinks/mysql.md``.
    """
    with building("sink", name):
        check_no_control("write.mysql", control)
        spec = MysqlSpec(url, table, TableMode.of(mode, key, delete, rewindable, on_new_column))
        own_pace = pace(commit_every, node="write.mysql", key=spec.mode.key)
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace, freshness=freshness)


@dataclass(frozen=True)
class MysqlSpec(SqlSpec):
    """Declaration of a table of MySQL or MariaDB as a sink.

    Parameters
    ----------
    url, table : str
        As in :func:`mysql`.
    mode : TableMode
        How rows meet the table.
    """

    url: str = field(repr=False)
    table: str
    mode: TableMode = APPEND

    def __post_init__(self) -> None:
        self.mode.check("write.mysql")
        MysqlUrl(self.url).check()
        if not self.table or len(self.table) > 64 or self.table.lower().startswith(OWN_TABLES):
            raise InvalidPipeline(
                f"write.mysql: table={self.table!r} cannot be written.",
                why=f"a name has 1 to 64 letters, and names in {OWN_TABLES}* are the sink's own.",
                do='name another table: table="flights"; its database is that of the address.',
            )

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return "mysql"

    @property
    def dialect(self) -> MysqlDialect:
        """MySQL's."""
        with _driver():
            from holdfast.connectors.mysql.dialect import MYSQL
        return MYSQL

    @property
    def sends_secret(self) -> bool:
        """Whether a password travels to the executors, which stage rows by themselves."""
        return MysqlUrl(self.url).expanded().has_password

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of the address only host, port, database and user."""
        return {"url": str(MysqlUrl(self.url)), "table": self.table, **self.mode.arguments()}

    def lease(self, name: str, pipeline: str) -> SqlLease:
        """Return the lease beside the ledger: its rows expire by the server's clock."""
        from holdfast.connectors.kit.book import SqlLease

        session = self._session(name, pipeline)

        @contextmanager
        def connect(writes: bool) -> Iterator[MysqlConnection]:
            with session.explained():
                yield session.connection()

        return SqlLease(self.dialect, pipeline, connect, session.close)

    @property
    def _where(self) -> str:
        return f"in {MysqlUrl(self.url)}"

    def _session(self, name: str, pipeline: str, *, owns: bool = False) -> MysqlSession:
        with _driver():
            from holdfast.connectors.mysql.session import MysqlSession
        url = MysqlUrl(self.url).expanded()
        return MysqlSession(f"sink {name!r}", url, self.table, pipeline, name, owns=owns)

    @contextmanager
    def _asking(self, name: str, pipeline: str) -> Iterator[MysqlConnection]:
        session = self._session(name, pipeline)
        try:
            with session.explained():
                yield session.connection()
        finally:
            session.close()

    def _staging(self, name: str, pipeline: str, table: SqlTable | None = None) -> MysqlStaging:
        with _driver():
            from holdfast.connectors.mysql.staging import MysqlStaging
        return MysqlStaging(self._session(name, pipeline), MysqlUrl(self.url).expanded(), table)

    def _sink(self, name: str, pipeline: str, table: SqlTable) -> SqlSink:
        from holdfast.connectors.kit.sql_sink import SqlSink

        session = self._session(name, pipeline, owns=True)
        return SqlSink(name, pipeline, session, table, self._staging(name, pipeline, table), "rows in holdfast_staged")


@contextmanager
def _driver() -> Iterator[None]:
    """Import what needs the driver in the block."""
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            "write.mysql: the driver of MySQL is not installed.",
            why=f"{error}.",
            do="pip install 'holdfast[mysql]'",
        ) from error
