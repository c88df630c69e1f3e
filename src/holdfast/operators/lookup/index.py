"""Which rows of a table have the keys of other rows: hashed and sorted once, then searched batch by batch.

Invariant: every pair of equal keys is found, and no other; a null is equal to nothing.  What the numbers of keys say is
only where to look: candidates are compared exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types import canonical

Ints = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio


class Index:
    """The keys of a table.

    Parameters
    ----------
    keys : sequence of pa.ChunkedArray
        The key columns of the table, of plain types; one or more.

    Examples
    --------
    >>> index = Index([pa.chunked_array([[7, 3, None, 7]])])
    >>> rows, found = index.pairs([pa.array([3, 7, None, 4])])
    >>> rows.tolist(), found.tolist()
    ([0, 1, 1], [1, 0, 3])
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._keys = [_one(column) for column in keys]
        numbers, is_whole = _numbers(self._keys)
        valid = np.flatnonzero(is_whole)
        order = valid[np.argsort(numbers[valid], kind="stable")]
        self._rows = order
        self._sorted = numbers[order]

    def pairs(self, keys: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        """Return every pair of a row with one of the given keys and a row of the table that has the same.

        Parameters
        ----------
        keys : sequence of pa.Array
            Columns of the same types as those of the table.

        Returns
        -------
        (array of int64, array of int64)
            Rows of ``keys``, ascending; for each a row of the table, for one row of ``keys`` ascending.
        """
        numbers, is_whole = _numbers(keys)
        first = np.searchsorted(self._sorted, numbers, side="left")
        after = np.searchsorted(self._sorted, numbers, side="right")
        counts = np.where(is_whole, after - first, 0)
        rows = np.repeat(np.arange(len(numbers), dtype=np.int64), counts)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(rows), dtype=np.int64) - np.repeat(starts - first, counts)
        found = self._rows[places]
        if not len(rows) or (len(self._keys) == 1 and _is_exact(self._keys[0].type)):
            return rows, found
        equal = np.ones(len(rows), bool)
        for ours, theirs in zip(self._keys, keys, strict=True):
            same = pc.equal(theirs.take(pa.array(rows)), ours.take(pa.array(found)))
            equal &= np.asarray(same.fill_null(False))
        return (rows, found) if equal.all() else (rows[equal], found[equal])

    def repeated(self) -> Ints:
        """Return the rows of the table whose key an earlier row has, too, ascending."""
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if not len(again):
            return np.zeros(0, np.int64)
        wanted = np.unique(np.concatenate([self._rows[again], self._rows[again + 1]]))
        rows, found = self.pairs([column.take(pa.array(wanted)) for column in self._keys])
        return np.unique(wanted[rows][found < wanted[rows]])


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether a value is one number of 64 bits itself."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _numbers(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return a number for each row, equal where the values are; and whether no value of the row is null."""
    is_whole = np.ones(len(columns[0]), bool)
    numbers: npt.NDArray[np.uint64] | None = None
    for column in columns:
        if column.null_count:
            is_whole &= np.asarray(column.is_valid())
        mine = _column(column)
        numbers = mine if numbers is None else (numbers ^ numbers >> np.uint64(32)) * _MIX + mine
    assert numbers is not None
    return numbers, is_whole


def _column(column: pa.Array) -> npt.NDArray[np.uint64]:
    kind = column.type
    if not _is_exact(kind):
        return canonical.column_hashes(column, "")
    if not pa.types.is_integer(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    plain = column.fill_null(0) if column.null_count else column
    return np.asarray(plain).astype(np.int64).view(np.uint64)
