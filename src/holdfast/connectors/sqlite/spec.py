"""``write.sqlite``: a table in a SQLite file, written exactly once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.control.columns import ControlColumns, check_control_mode, control_arguments
from holdfast.connectors.kit.rewinds import declared
from holdfast.connectors.kit.sql import APPEND, OWN_TABLES, Mode, OnNewColumn, TableMode
from holdfast.connectors.sqlite import ledger, lineage, reset
from holdfast.connectors.sqlite.lease import SqliteLease
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.connectors.sqlite.table import SqliteTable
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.trigger import pace
from holdfast.ports import Guarantee, PublishedEpoch, Reset, Sink, SinkLedger, Withdrawal


def sqlite(
    path: str | os.PathLike[str],
    *,
    table: str,
    mode: Mode = "append",
    key: Sequence[str] = (),
    delete: str | None = None,
    rewindable: bool = False,
    commit_every: str | int | None = None,
    on_new_column: OnNewColumn = "add",
    control: str | None = None,
    extra: str | None = None,
    name: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows to a table of a SQLite file, exactly once.

    Parameters
    ----------
    path : str or path
        The database file.  Created when absent, with the directories above it.
    table : str
        The table.  Created from the rows' schema when absent.
    mode : {"append", "upsert"}
        Add every row, or let the last row of each key win.
    key : sequence of str
        Columns that identify a row: upsert only.
    delete : str, optional
        Boolean column, upsert only: a true row deletes its key.  The column is not stored.
    rewindable : bool
        Append only: keep the epoch of each row in a column ``__holdfast_epoch``, so that ``holdfast rewind`` can
        withdraw rows.
    commit_every : str or int, optional
        Commit less often than the other sinks: after a duration (``"30 s"``) or a number of epochs, in one transaction.
        What it lacks until then is in the checkpoint: ``docs/sinks/README.md``.  Default: every epoch.
    control : str, optional
        Text column whose values that are not null are commands (``hf.control``), carried out in order with the rows.
        Not stored; ``docs/control-rows.md``.
    extra : str, optional
        Column with values of columns that commands have added: a JSON object as text, or a map of text to text.  Not
        stored.
    on_new_column : {"add", "fail"}
        A start whose rows have a column that the table has not adds it (rows that are there get null), or is refused.
        ``holdfast plan`` says which.  A column of the key is never added.
    name : str, optional
        The sink's name: its ledger row is kept under it.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Raises
    ------
    InvalidPipeline
        If the arguments contradict each other.

    Notes
    -----
    One process writes; any number may read meanwhile (WAL).  The executors must share the file system of the
    driver: small epochs are carried by the driver, large ones are staged as Arrow files in ``<path>-holdfast/``.
    """
    with building("sink", name):
        columns = ControlColumns.of("write.sqlite", control, extra)
        spec = SqliteSpec(os.fspath(path), table, TableMode.of(mode, key, delete, rewindable, on_new_column), columns)
        own_pace = pace(commit_every, node="write.sqlite", key=() if columns else spec.mode.key)  # commands have no key
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace)


@dataclass(frozen=True)
class SqliteSpec:
    """Declaration of a SQLite table as a sink.

    Parameters
    ----------
    path, table : str
        As in :func:`sqlite`.
    mode : TableMode
        How rows meet the table.
    control : ControlColumns, optional
        Which columns of the rows are not data.
    """

    path: str
    table: str
    mode: TableMode = APPEND
    control: ControlColumns | None = None

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return "sqlite"

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        self.mode.check("write.sqlite")
        check_control_mode("write.sqlite", self.control, self.mode)
        if not self.table or self.table.lower().startswith((OWN_TABLES, "sqlite_")):
            raise InvalidPipeline(
                f"write.sqlite: table={self.table!r} cannot be written.",
                why=f"names in {OWN_TABLES}* are the sink's own, and names in sqlite_* are SQLite's.",
                do='name another table: table="flights".',
            )
        if not self.path or self.path == ":memory:" or self.path.startswith("file:"):
            raise InvalidPipeline(
                f"write.sqlite: path={self.path!r} is not a file.",
                why="what is written exactly once must outlive the process.",
                do='give a file: "out/flights.db"; for tests there is hf.write.memory.',
            )

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        return {
            "path": self.path,
            "table": self.table,
            **self.mode.arguments(),
            **control_arguments(self.control),
        }

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws in a rewind, as far as this declaration says."""
        return declared(self.mode)

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check the key and the delete column against the rows' columns."""
        self.mode.check_columns("write.sqlite", columns)
        if self.control is not None:
            self.control.check_columns("write.sqlite", columns, (*self.mode.key, self.mode.delete or ""))

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Open the file, create the table when absent, and check that every column fits."""
        table = self._table(name, schema)
        sink = SqliteSink(name, pipeline, os.path.abspath(self.path), table, self.control)
        try:
            sink.prepare()
        except BaseException:
            sink.close()
            raise
        return sink

    def examine(self, name: str, pipeline: str, schema: pa.Schema) -> list[str]:
        """Check that every column fits, as ``connect`` does, without creating anything."""
        table = self._table(name, schema)
        if not os.path.exists(self.path):
            return []
        with ledger.reading(os.path.abspath(self.path), name) as connection:
            if not table.exists(connection):
                return []
            table.check(connection)
            return table.missing(connection)

    def _table(self, name: str, schema: pa.Schema) -> SqliteTable:
        node = f"sink {name!r}"
        schema = schema if self.control is None else self.control.data(node, schema)
        self.mode.check_schema(node, schema)
        lowered = [column.lower() for column in schema.names]
        if len(set(lowered)) < len(lowered):
            raise InvalidPipeline(
                f"{node}: two columns differ only in case: {', '.join(schema.names)}.",
                why="SQLite treats such names as one.",
                do="rename one before the sink.",
            )
        return SqliteTable(node, self.table, schema, self.mode)

    def lease(self, name: str, pipeline: str) -> SqliteLease:
        """Return the lease in the file."""
        return SqliteLease(os.path.abspath(self.path), pipeline)

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs, of the table beside the ledger."""
        return lineage.history(os.path.abspath(self.path), name, pipeline)

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the table."""
        return lineage.find(os.path.abspath(self.path), self.table, name, where, limit)

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger in the file says."""
        return ledger.asked(os.path.abspath(self.path), name, pipeline)

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the file says of the sink."""
        path = os.path.abspath(self.path)
        return reset.reset(path, self.table, name, pipeline, rows=rows, is_dry_run=is_dry_run)
