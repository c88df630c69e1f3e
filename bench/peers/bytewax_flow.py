"""Bytewax: lines of files, a Python function, and a sink, with recovery.

As written in https://docs.bytewax.io/stable/guide/concepts/recovery.html (``RecoveryConfig``, ``epoch_interval``,
``init_db_dir``) and in the docstrings of ``bytewax.connectors.files``: of ``FileSink`` "can support exactly-once
processing in a batch context.  The file will be truncated during resume".  Of ``DynamicSink``,
``bytewax.outputs`` says that it "only naively can support at-least-once processing".

- ``files``: ``FileSink``.
- ``sqlite``: a ``DynamicSink`` that inserts each batch of items in one transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.files import DirSource, FileSink
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from killed import AFTER_WRITE, BEFORE_WRITE, KILL_ROW, die_at, lead, seen

lead()
WORK, ADDRESS, SINK = Path(os.environ["MATRIX_WORK"]), os.environ["MATRIX_ADDRESS"], os.environ["MATRIX_SINK"]


class TablePartition(StatelessSinkPartition):
    """Inserts into a table of SQLite."""

    def __init__(self) -> None:
        self._table = sqlite3.connect(ADDRESS, timeout=30)
        self._table.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, value REAL)")

    def write_batch(self, items: list) -> None:
        """Insert some rows, in one transaction."""
        is_here = any(item["id"] == KILL_ROW for item in items)
        if is_here:
            die_at(BEFORE_WRITE)
        self._table.executemany("INSERT INTO rows VALUES (:id, :value)", items)
        self._table.commit()
        if is_here:
            die_at(AFTER_WRITE)


class TableSink(DynamicSink):
    """A table of SQLite."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> TablePartition:
        """Return the part of a worker."""
        return TablePartition()


def read(line: str) -> dict:
    """Return a line as a row."""
    row = json.loads(line)
    seen(row["id"])
    return row


flow = Dataflow("matrix")
lines = op.input("lines", flow, DirSource(WORK / "in", "*.json", batch_size=10))
rows = op.map("rows", lines, read)
if SINK == "sqlite":
    op.output("table", rows, TableSink())
else:
    Path(ADDRESS).touch()
    op.output("file", op.map("keyed", rows, lambda row: (str(row["id"]), json.dumps(row))), FileSink(Path(ADDRESS)))
recovery = WORK / "recovery"
if not recovery.exists():
    recovery.mkdir()
    init_db_dir(recovery, 1)
cli_main(flow, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(str(recovery)))
