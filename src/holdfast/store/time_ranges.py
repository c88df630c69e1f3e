"""Where timestamps are: lowest and highest of rows, and of row groups of Parquet files, by their statistics.

A range may be wider than the rows, never narrower: by it rows are only ever left alone that are outside of a wanted
time.  Rows without a timestamp are in no range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_NANOSECONDS = {"milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}


class TimeRange(NamedTuple):
    """Lowest and highest timestamp, both inclusive: microseconds of Unix time, or ticks where they are integers."""

    low: int
    high: int


def united(ranges: Iterable[TimeRange | None]) -> TimeRange | None:
    """Return the range of several; None if one of them is unknown, or there is none.

    Examples
    --------
    >>> united([TimeRange(3, 5), TimeRange(1, 4)]), united([TimeRange(3, 5), None])
    (TimeRange(low=1, high=5), None)
    """
    known: list[TimeRange] = []
    for each in ranges:
        if each is None:
            return None
        known.append(each)
    return TimeRange(min(r.low for r in known), max(r.high for r in known)) if known else None


def of_groups(parquet: pq.ParquetFile, column: pa.Field) -> list[tuple[int, int, TimeRange | None]]:
    """Return first row, row after the last, and range of each row group."""
    index, nanoseconds = _place(parquet, column)
    found, first = [], 0
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        range_ = None if index is None else _of_statistics(group.column(index).statistics, nanoseconds)
        found.append((first, first + group.num_rows, range_))
        first += group.num_rows
    return found


def _place(parquet: pq.ParquetFile, column: pa.Field) -> tuple[int | None, int | None]:
    """Return the number of a column whose statistics are in the order of time, and the nanoseconds of its unit.

    The number is None where there is no such column, or its values are converted when they are read (texts, INT96,
    numbers of another kind); the nanoseconds are None where the values are ticks.
    """
    schema = parquet.schema
    found = [number for number in range(len(schema)) if schema.column(number).path == column.name]
    if len(found) != 1 or schema.column(found[0]).physical_type not in ("INT32", "INT64"):
        return None, None
    held = schema.column(found[0])
    if held.max_repetition_level:
        return None, None
    kind = json.loads(held.logical_type.to_json())
    if pa.types.is_timestamp(column.type):
        return (found[0], _NANOSECONDS[kind["timeUnit"]]) if kind.get("Type") == "Timestamp" else (None, None)
    is_signed = kind.get("Type") == "None" or (kind.get("Type") == "Int" and kind.get("isSigned", False))
    return (found[0], None) if is_signed else (None, None)


def _of_statistics(statistics: pq.Statistics | None, nanoseconds: int | None) -> TimeRange | None:
    if statistics is None or not statistics.has_min_max:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    if not isinstance(low, int) or not isinstance(high, int) or low > high:
        return None
    if nanoseconds is None:
        return TimeRange(low, high)
    # Outwards: how digits behind the microseconds are cut off when a row is read is the reader's business.
    return TimeRange(low * nanoseconds // 1000, -(-high * nanoseconds // 1000))
