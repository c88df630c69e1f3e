"""What the side of Holdfast does with rows that it discards: a module that workers import in no time."""

from __future__ import annotations

import pyarrow as pa


def count_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row with how many there are."""
    return pa.RecordBatch.from_pydict({"counted": [rows.num_rows]})
