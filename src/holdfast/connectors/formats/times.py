"""The time index of files: the range of timestamps of each block, where that is known.

Parquet files say their ranges in the footer; of other files, and of Parquet files without, a range is known once their
rows have been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.formats.access import FilePart, opened
from holdfast.ports import REJECT_COLUMN
from holdfast.store.time_ranges import TimeRange, of_groups, united


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
            groups = of_groups(parquet, column)
    except (pa.ArrowException, OSError, ValueError):
        return [None] * len(cuts)  # the reader reports it
    return [
        united(range_ for first, last, range_ in groups if last > first and last > start and (end < 0 or first < end))
        for start, end in cuts
    ]


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
