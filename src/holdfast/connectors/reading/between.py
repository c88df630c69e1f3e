"""Rows of a time: what a first reading gives, and what a later one gives that was left.

A row below ``before`` belongs to the first reading, one at or above it to the next; so does every row to exactly one of
them.  A row without a timestamp, or that is rejected, belongs to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.identified import Numbered
from holdfast.ports import REJECT_COLUMN


def rows_between(
    batches: Iterable[pa.RecordBatch], column: str, since: int | None, before: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one reading.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        All rows.
    column : str
        The timestamp.
    since : int, optional
        What an earlier reading has given up to, exclusive: microseconds of Unix time, or ticks where the timestamps are
        integers.  None: nothing was read.
    before : int, optional
        Where this reading ends, exclusive; None: nowhere.

    Examples
    --------
    >>> batch = pa.record_batch({"t": [4, None, 7, 9]})
    >>> [batch.column(0).to_pylist() for batch in rows_between([batch], "t", None, 7)]
    [[4, None]]
    >>> [batch.column(0).to_pylist() for batch in rows_between([batch], "t", 7, 9)]
    [[7]]
    """
    for batch in batches:
        stays = _stays(batch, column, since, before)
        yield batch if stays.true_count == batch.num_rows else batch.filter(stays)


def numbered_between(
    several: Iterable[Numbered], column: str, since: int | None, before: int | None
) -> Iterator[Numbered]:
    """Yield the rows of one reading, as :func:`rows_between` does, each with the number that it has among all rows."""
    for runs, batch in several:
        stays = _stays(batch, column, since, before)
        mask = stays.to_numpy(zero_copy_only=False)
        left, first = [], 0
        for run in runs:
            left.append(run._replace(numbers=run.numbers[mask[first : first + len(run.numbers)]]))
            first += len(run.numbers)
        yield Numbered([run for run in left if len(run.numbers)] or left[:1], batch.filter(stays))


def _stays(batch: pa.RecordBatch, column: str, since: int | None, before: int | None) -> pa.BooleanArray:
    values, is_first = batch.column(column), since is None
    stays = pa.repeat(pa.scalar(True), batch.num_rows)
    for border, is_inside in ((since, is_from), (before, is_below)):
        if border is not None:
            stays = pc.and_(stays, pc.fill_null(is_inside(values, border), is_first))
    if REJECT_COLUMN in batch.schema.names:
        is_reject = pc.is_valid(batch.column(REJECT_COLUMN))
        stays = pc.or_(stays, is_reject) if is_first else pc.and_(stays, pc.invert(is_reject))
    return stays


def is_below(values: pa.Array, at: int) -> pa.BooleanArray:
    """Return which timestamps are below a time; null where there is none."""
    return pc.invert(is_from(values, at))


def is_from(values: pa.Array, at: int) -> pa.BooleanArray:
    """Return which timestamps are not before a time: microseconds of Unix time, or ticks where they are integers.

    Times without a zone are UTC.  Null where there is none.

    Examples
    --------
    >>> is_from(pa.array([4, 5, None]), 5).to_pylist()
    [False, True, None]
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        border = pa.scalar(at, pa.timestamp("us", kind.tz))
        values = values if kind.unit == "us" else pc.cast(values, border.type, safe=False)
    else:
        values = pc.cast(values, pa.int64())
        border = pa.scalar(at, pa.int64())
    return pc.greater_equal(values, border)
