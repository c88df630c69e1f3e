"""Whether the rows of a result are the expected ones, each as often."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset

from bench.nexmark.expected import expected


class Difference(NamedTuple):
    """How a result differs from what is expected."""

    rows: int
    """Rows that are expected."""
    missing: int
    surplus: int
    examples: list[Any]
    """Some of the rows that are missing or surplus."""


def read_result(out: Path) -> pa.Table:
    """Return the rows that a run has written: files of a directory, or the table ``result`` of a SQLite file."""
    if out.is_dir():
        return pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table()
    with sqlite3.connect(out) as connection:
        rows = connection.execute("SELECT * FROM result")
        names = [column[0] for column in rows.description]
        values = rows.fetchall()
    return pa.table({name: [row[at] for row in values] for at, name in enumerate(names)})


def compare(query: str, found: pa.Table, database: Any) -> Difference:
    """Return how rows differ from what a query should find in a database of :func:`~bench.nexmark.expected.database`.

    Values are compared as the expected types; times as microseconds, and means to four decimals.
    """
    wanted = expected(query, database)
    database.register("wanted", wanted)
    database.register("found", found)
    try:
        kinds = [row[1] for row in database.execute("DESCRIBE wanted").fetchall()]
        columns = list(zip(wanted.schema.names, kinds, strict=True))
        theirs = f"SELECT {', '.join(_value(name, kind) for name, kind in columns)} FROM wanted"
        ours = f"SELECT {', '.join(_value(name, kind, text=True) for name, kind in columns)} FROM {_rows(query)}"
        missing = database.execute(f"{theirs} EXCEPT ALL {ours}").fetchall()
        surplus = database.execute(f"{ours} EXCEPT ALL {theirs}").fetchall()
    finally:
        database.unregister("found")
        database.unregister("wanted")
    return Difference(wanted.num_rows, len(missing), len(surplus), [*missing[:2], *surplus[:2]])


def _rows(query: str) -> str:
    """Return the rows of ours that are compared: of windows of processing time the sums over them."""
    return "(SELECT bidder, sum(bids) AS bids FROM found GROUP BY bidder)" if query == "q12" else "found"


def _value(name: str, kind: str, *, text: bool = False) -> str:
    if kind.startswith("TIMESTAMP"):
        return f'epoch_us(CAST("{name}" AS TIMESTAMPTZ))' if text else f'epoch_us("{name}")'
    return f'round(CAST("{name}" AS DOUBLE), 4)' if kind == "DOUBLE" else f'CAST("{name}" AS {kind})'
