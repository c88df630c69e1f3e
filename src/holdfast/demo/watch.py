"""Counts the rows that anyone can see in the demo's sinks, without a word from the pipeline."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

Counter = Callable[[], int]
"""Returns the rows visible now; 0 as long as the table or the directory does not exist."""


def sqlite_rows(database: Path, table: str) -> Counter:
    """Count the rows of a SQLite table."""

    def count() -> int:
        if not database.exists():
            return 0
        # A connection for each look: one kept open would hold SQLite's write-ahead log alive over the kills, and
        # the restarted pipeline would never have to recover it.
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        except sqlite3.OperationalError:  # no such table yet, or the file is being made
            return 0
        finally:
            connection.close()

    return count


def parquet_rows(directory: Path, in_lists_of: str | None = None) -> Counter:
    """Count the rows of a directory of Parquet files as any reader sees it: hidden files and directories left out.

    With ``in_lists_of``, a column of lists, count what its lists hold instead.
    """
    known: dict[Path, int] = {}

    def count() -> int:
        if not directory.exists():
            return 0
        for path in _visible(directory):
            if path not in known:
                known[path] = _list_items(path, in_lists_of) if in_lists_of else int(pq.read_metadata(path).num_rows)
        return sum(known.values())

    return count


def _visible(directory: Path) -> Iterator[Path]:
    """Yield the files of Parquet that any reader sees; hidden directories, which come and go, are not entered."""
    for place, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(("_", "."))]
        for name in files:
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                yield Path(place, name)


def _list_items(path: Path, column: str) -> int:
    lists = pq.read_table(path, columns=[column])[column]
    return int(pc.sum(pc.list_value_length(lists)).as_py() or 0)


@dataclass(frozen=True)
class Sample:
    """Rows of every sink at one moment, seconds since the demo began."""

    at_s: float
    rows: tuple[int, ...]

    @property
    def total(self) -> int:
        """Rows of all sinks together."""
        return sum(self.rows)


@dataclass
class SinkWatch:
    """Looks at the sinks when asked, and remembers what it saw."""

    counters: dict[str, Counter]
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> Sample:
        """Count the rows of every sink now."""
        rows = tuple(count() for count in self.counters.values())
        sample = Sample(time.monotonic() - self.began, rows)
        self.samples.append(sample)
        return sample
