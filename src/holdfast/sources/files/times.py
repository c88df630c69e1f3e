"""The time index of files: the lowest and the highest timestamp of each block, where that is known.

A range may be wider than the rows, never narrower: by it rows are only ever left alone that are outside of a wanted
time.  Rows without a timestamp are in no range.  Parquet files say their ranges in the footer (statistics of row
groups); of other files, and of Parquet files without, a range is known once their rows have been read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.ports import REJECT_COLUMN
from holdfast.sources.files.access import FilePart, opened

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


def of_blocks(part: FilePart, column: pa.Field, cuts: Sequence[tuple[int, int]]) -> list[TimeRange | None]:
    """Return the ranges of blocks of a Parquet file, by the statistics in its footer.

    Parameters
    ----------
    part : FilePart
        The whole file.
    column : pyarrow.Field
        The timestamp, as it is declared.
    cuts : sequence of (int, int)
        First row and the one after the last of each block; -1 is the end of the file.

    Raises
    ------
    Corrupt
        If it is not the file that was found.
    """
    try:
        with opened(part) as file, pq.ParquetFile(file) as parquet:
            groups = _of_groups(parquet, column)
    except (pa.ArrowException, OSError, ValueError):
        return [None] * len(cuts)  # the reader reports it
    return [
        united(range_ for first, last, range_ in groups if last > first and last > start and (end < 0 or first < end))
        for start, end in cuts
    ]


def _of_groups(parquet: pq.ParquetFile, column: pa.Field) -> list[tuple[int, int, TimeRange | None]]:
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


def of_rows(batches: Iterable[pa.RecordBatch], column: str) -> TimeRange | None:
    """Return the range of rows; None where none of them has a timestamp, those that are rejected apart.

    Examples
    --------
    >>> of_rows([pa.record_batch({"t": [4, None, 2]}), pa.record_batch({"t": [9]})], "t")
    TimeRange(low=2, high=9)
    """
    found: list[TimeRange | None] = []
    for batch in batches:
        values = batch.column(column)
        if REJECT_COLUMN in batch.schema.names:
            values = values.filter(pc.is_null(batch.column(REJECT_COLUMN)))
        ends = pc.min_max(values.cast(pa.int64()))
        if ends["min"].is_valid:
            found.append(TimeRange(ends["min"].as_py(), ends["max"].as_py()))
    return united(found)
