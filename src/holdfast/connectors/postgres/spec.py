"""``write.postgres``: a PostgreSQL table, written exactly once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from holdfast.connectors.control.columns import ControlColumns, check_control_mode, control_arguments
from holdfast.connectors.kit.rewinds import declared
from holdfast.connectors.kit.sql import APPEND, Mode, OnNewColumn, TableMode
from holdfast.connectors.postgres.dsn import Dsn
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.trigger import pace
from holdfast.ports import Guarantee, LeasePlace, PublishedEpoch, Reset, Sink, SinkLedger, Withdrawal

Stage = Literal["auto", "prepared", "table"]


def postgres(
    dsn: str,
    *,
    table: str,
    mode: Mode = "append",
    key: str | Sequence[str] = (),
    delete: str | None = None,
    stage: Stage = "auto",
    rewindable: bool = False,
    control: str | None = None,
    extra: str | None = None,
    commit_every: str | int | None = None,
    on_new_column: OnNewColumn = "add",
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows to a PostgreSQL table, exactly once.

    Parameters
    ----------
    dsn : str
        ``postgresql://user@host:5432/database`` or ``host=... dbname=...``.  ``${NAME}`` is filled in from the
        environment when the run starts, percent-encoded in a URL.  Secrets in it are never shown, stored or
        fingerprinted.
    table : str
        ``"table"`` or ``"schema.table"``; names are taken as they are written, capitals included.  Created from
        the rows' schema when absent.
    mode : {"append", "upsert"}
        Add every row, or let the last row of each key win.
    key : str or sequence of str
        Columns that identify a row: upsert only.
    delete : str, optional
        Boolean column, upsert only: a true row deletes its key.  The column is not stored.
    stage : {"auto", "prepared", "table"}
        How tasks stage large epochs: as prepared transactions, or in staging tables.  ``auto`` prepares where the
        server and the table allow it; ``inspect`` shows which.
    rewindable : bool
        Append only: keep the epoch of each row in a column ``__holdfast_epoch``, so that ``holdfast rewind`` can
        withdraw rows.
    control : str, optional
        Text column whose values that are not null are commands (``hf.control``), carried out in order with the rows.
        Not stored; ``docs/control-rows.md``.
    extra : str, optional
        Column with values of columns that commands have added: a JSON object as text, or a map of text to text.  Not
        stored.
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
    Needs PostgreSQL 13 or newer and ``pip install 'holdfast[postgres]'``; no superuser.  Small epochs are carried by
    the driver: one transaction with the ledger row.
    """
    with building("sink", name):
        columns = ControlColumns.of("write.postgres", control, extra)
        spec = PostgresSpec(dsn, table, TableMode.of(mode, key, delete, rewindable, on_new_column), stage, columns)
        own_pace = pace(
            commit_every, node="write.postgres", key=() if columns else spec.mode.key
        )  # commands have no key
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace, freshness=freshness)


@dataclass(frozen=True)
class PostgresSpec:
    """Declaration of a PostgreSQL table as a sink.

    Parameters
    ----------
    dsn, table, stage : str
        As in :func:`postgres`.
    mode : TableMode
        How rows meet the table.
    control : ControlColumns, optional
        Which columns of the rows are not data.
    """

    dsn: str = field(repr=False)
    table: str
    mode: TableMode = APPEND
    stage: Stage = "auto"
    control: ControlColumns | None = None

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return "postgres"

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        self.mode.check("write.postgres")
        check_control_mode("write.postgres", self.control, self.mode)
        Dsn(self.dsn).check()
        if self.stage not in ("auto", "prepared", "table"):
            raise InvalidPipeline(
                f"write.postgres: stage={self.stage!r} is not known.",
                why='tasks stage rows as "prepared" transactions or in a staging "table".',
                do='leave it at "auto", or choose one of the two.',
            )
        if self.stage == "prepared" and self.control is not None:
            raise InvalidPipeline(
                f'write.postgres: stage="prepared" and control={self.control.control!r} contradict each other.',
                why="a prepared transaction keeps its locks: the ALTER TABLE of a control row would wait for it.",
                do='leave stage at "auto": rows with commands are written by the driver, in their order.',
            )
        if self.stage == "prepared" and self.mode.mode == "upsert":
            raise InvalidPipeline(
                'write.postgres: stage="prepared" cannot upsert.',
                why="a prepared transaction would keep the rows that it replaces locked.",
                do='leave stage at "auto": an upsert goes through a staging table.',
            )

    @property
    def sends_secret(self) -> bool:
        """Whether a password travels to the executors, which stage rows by themselves."""
        return Dsn(self.dsn).expanded().has_password

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of the DSN only host, port, database and user."""
        return {
            "dsn": str(Dsn(self.dsn)),
            "table": self.table,
            **self.mode.arguments(),
            "stage": self.stage,
            **control_arguments(self.control),
        }

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return declared(self.mode)

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check the key and the delete column against the rows' columns."""
        self.mode.check_columns("write.postgres", columns)
        if self.control is not None:
            self.control.check_columns("write.postgres", columns, (*self.mode.key, self.mode.delete or ""))

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Connect, create the table when absent, and check that every column fits."""
        schema = self._data(name, schema)
        dsn = Dsn(self.dsn).expanded()
        with _driver(name):
            from holdfast.connectors.postgres.sink import PostgresSink
        return PostgresSink.connected(name, pipeline, dsn, self.table, schema, self.mode, self.stage, self.control)

    def examine(self, name: str, pipeline: str, schema: pa.Schema) -> Sequence[str]:
        """Check that every column fits, as ``connect`` does, without creating anything."""
        with _driver(name):
            from holdfast.connectors.postgres.catalog import examine
        schema = self._data(name, schema)
        with self._session(name, pipeline) as session, session.snapshot() as connection:
            commands = self.control is not None
            return examine(connection, session.node, self.table, schema, self.mode, self.stage, with_commands=commands)

    def _data(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns that are no commands, checked."""
        schema = schema if self.control is None else self.control.data(f"sink {name!r}", schema)
        self.mode.check_schema(f"sink {name!r}", schema)
        return schema

    def lease(self, name: str, pipeline: str) -> LeasePlace:
        """Return the lease beside the ledger."""
        with _driver(name):
            from holdfast.connectors.postgres.lease import PostgresLease
            from holdfast.connectors.postgres.session import PostgresSession
        dsn = Dsn(self.dsn).expanded()
        session = PostgresSession(dsn, f"sink {name!r}", self.table, f"holdfast {pipeline}/{name} lease")
        return PostgresLease(session, pipeline)

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs, of the table beside the ledger."""
        with _driver(name):
            from holdfast.connectors.postgres.ledger import history
        with self._session(name, pipeline) as session:
            return history(session, name, pipeline)

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the table."""
        with _driver(name):
            from holdfast.connectors.postgres.comparing.searching import find
        with self._session(name, "trace") as session:
            return find(session, where, limit)

    @contextmanager
    def _session(self, name: str, pipeline: str) -> Iterator[Any]:
        """Yield a connection of its own, by declaration alone."""
        from holdfast.connectors.postgres.session import PostgresSession

        dsn = Dsn(self.dsn).expanded()
        session = PostgresSession(dsn, f"sink {name!r}", self.table, f"holdfast {pipeline}/{name}")
        try:
            yield session
        finally:
            session.drop()

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger beside the table says."""
        with _driver(name):
            from holdfast.connectors.postgres.ledger import asked
        with self._session(name, pipeline) as session:
            return asked(session, name, pipeline)

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the tables beside the sink's say of it."""
        with _driver(name):
            from holdfast.connectors.postgres.ledger import reset
        with self._session(name, pipeline) as session:
            return reset(session, name, pipeline, rows=rows, is_dry_run=is_dry_run)


@contextmanager
def _driver(name: str) -> Iterator[None]:
    """Import what needs the driver in the block."""
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"sink {name!r}: the PostgreSQL driver is not installed.",
            why=f"{error}.",
            do="pip install 'holdfast[postgres]'",
        ) from error
