"""``write.sqlite``: a table in a SQLite file, written exactly once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.control.columns import ControlColumns, check_control_mode, control_arguments
from holdfast.connectors.kit.files.staged import ArrowStaging, Check, unchecked
from holdfast.connectors.kit.sql import APPEND, OWN_TABLES, Mode, OnNewColumn, TableMode
from holdfast.connectors.kit.sql_spec import SqlSpec
from holdfast.connectors.kit.sql_table import SqlTable
from holdfast.connectors.sqlite.dialect import SQLITE, SqliteDialect
from holdfast.connectors.sqlite.lease import SqliteLease
from holdfast.connectors.sqlite.session import asking
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.trigger import pace


def sqlite(
    path: str | os.PathLike[str],
    *,
    table: str,
    mode: Mode = "append",
    key: str | Sequence[str] = (),
    delete: str | None = None,
    rewindable: bool = False,
    commit_every: str | int | None = None,
    on_new_column: OnNewColumn = "add",
    control: str | None = None,
    extra: str | None = None,
    name: str | None = None,
    freshness: str | None = None,
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
    key : str or sequence of str
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
    One process writes; any number may read meanwhile (WAL).  The executors must share the file system of the
    driver: small epochs are carried by the driver, large ones are staged as Arrow files in ``<path>-holdfast/``.
    """
    with building("sink", name):
        columns = ControlColumns.of("write.sqlite", control, extra)
        spec = SqliteSpec(os.fspath(path), table, TableMode.of(mode, key, delete, rewindable, on_new_column), columns)
        own_pace = pace(commit_every, node="write.sqlite", key=() if columns else spec.mode.key)  # commands have no key
    return nodes.sink(spec, name=name, backfill=backfill, pace=own_pace, freshness=freshness)


@dataclass(frozen=True)
class SqliteSpec(SqlSpec):
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

    @property
    def dialect(self) -> SqliteDialect:
        """SQLite's."""
        return SQLITE

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check the key, the delete column and the control columns against the rows' columns."""
        super().check_columns(columns)
        if self.control is not None:
            self.control.check_columns("write.sqlite", columns, (*self.mode.key, self.mode.delete or ""))

    def lease(self, name: str, pipeline: str) -> SqliteLease:
        """Return the lease in the file."""
        return SqliteLease(self._absolute, pipeline)

    @property
    def _absolute(self) -> str:
        return os.path.abspath(self.path)

    @property
    def _where(self) -> str:
        return f"in {self._absolute}"

    def _data(self, name: str, schema: pa.Schema) -> pa.Schema:
        return schema if self.control is None else self.control.data(f"sink {name!r}", schema)

    def _asking(self, name: str, pipeline: str) -> AbstractContextManager[sqlite3.Connection | None]:
        return asking(self._absolute, name)

    def _staging(self, name: str, pipeline: str, check: Check = unchecked) -> ArrowStaging:
        return ArrowStaging(f"{self._absolute}-holdfast", pipeline, name, check)

    def _sink(self, name: str, pipeline: str, table: SqlTable) -> SqliteSink:
        check = table.check_values if self.control is None else unchecked
        staging = self._staging(name, pipeline, check)
        return SqliteSink(name, pipeline, self._absolute, table, staging, self.control)
