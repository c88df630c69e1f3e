"""Pathway: lines of files, a Python function, and a sink, with persistence.

As written in https://pathway.com/developers/user-guide/concepts/persistence: ``pw.persistence.Config`` with a backend
in the file system, handed to ``pw.run``.  The description at https://pypi.org/project/pathway/: "the free version of
Pathway gives the 'at least once' consistency while the enterprise version provides the 'exactly once' consistency".

- ``files``: ``pw.io.jsonlines.write``.
- ``sqlite``: ``pw.io.python.write`` with an observer that inserts each row and commits at the end of a time.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pathway as pw
from killed import AFTER_WRITE, BEFORE_WRITE, KILL_ROW, die_at, lead, seen

lead()
WORK, ADDRESS, SINK = Path(os.environ["MATRIX_WORK"]), os.environ["MATRIX_ADDRESS"], os.environ["MATRIX_SINK"]


def number_of(line: str) -> int:
    """Return the number in a line of JSON; ``id`` is the name of Pathway's own keys."""
    return seen(int(json.loads(line)["id"]))


class Table(pw.io.python.ConnectorObserver):
    """Inserts into a table of SQLite, and commits at the end of each time."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str]] = []

    def on_change(self, key: pw.Pointer, row: dict, time: int, is_addition: bool) -> None:
        """Take a row."""
        self._rows.append((row["number"], row["line"]))

    def on_time_end(self, time: int) -> None:
        """Insert the rows of a time, in one transaction."""
        is_here = any(number == KILL_ROW for number, _ in self._rows)
        if is_here:
            die_at(BEFORE_WRITE)
        with sqlite3.connect(ADDRESS, timeout=30) as table:
            table.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, line TEXT)")
            table.executemany("INSERT INTO rows VALUES (?, ?)", self._rows)
        self._rows.clear()
        if is_here:
            die_at(AFTER_WRITE)


lines = pw.io.plaintext.read(str(WORK / "in"), mode="static", name="lines")
rows = lines.select(number=pw.apply_with_type(number_of, int, pw.this.data), line=pw.this.data)
if SINK == "sqlite":
    pw.io.python.write(rows, Table())
else:
    pw.io.jsonlines.write(rows, ADDRESS)
backend = pw.persistence.Backend.filesystem(str(WORK / "persistence"))
pw.run(persistence_config=pw.persistence.Config(backend), monitoring_level=pw.MonitoringLevel.NONE)
