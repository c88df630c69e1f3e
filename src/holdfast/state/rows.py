"""Rows of a table by their numbers, without a look at the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def rows_at(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Return rows of a table by their numbers, in the order of these.

    Notes
    -----
    Arrow's ``take`` first puts the chunks of a column of texts together: it copies the whole column for a few rows.
    This takes from each chunk by itself.

    Examples
    --------
    >>> table = pa.concat_tables([pa.table({"k": ["a", "b"]}), pa.table({"k": ["c"]})])
    >>> rows_at(table, np.array([2, 0, 2])).column("k").to_pylist()
    ['c', 'a', 'c']
    """
    count = len(rows)
    if not count:
        return table.slice(0, 0)
    if all(column.num_chunks <= 1 for column in table.columns):
        return table.take(pa.array(rows))
    is_ascending = bool((rows[1:] >= rows[:-1]).all())
    order = None if is_ascending else np.argsort(rows, kind="stable")
    wanted = rows if order is None else rows[order]
    found = pa.Table.from_batches(_of_chunks(table, wanted), table.schema)
    if order is None:
        return found
    back = np.empty(count, np.int64)
    back[order] = np.arange(count)
    return found.combine_chunks().take(pa.array(back))


def _of_chunks(table: pa.Table, wanted: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Return ascending rows of a table, those of each chunk by themselves."""
    batches = table.to_batches()
    begins = np.concatenate([[0], np.cumsum([batch.num_rows for batch in batches])])
    cuts = np.searchsorted(wanted, begins)
    return [
        _of_batch(batch, wanted[low:high] - begin)
        for batch, begin, low, high in zip(batches, begins[:-1], cuts[:-1], cuts[1:], strict=True)
        if high > low
    ]


def _of_batch(batch: pa.RecordBatch, wanted: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if len(wanted) == batch.num_rows and bool((np.diff(wanted) == 1).all()):
        return batch  # all of it
    return batch.take(pa.array(wanted))
