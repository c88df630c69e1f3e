"""Rows of a table by their keys: found, joined, numbered.

Nothing here loops over rows or keys.  A key column is of a type that Arrow can hash (numbers, strings, binary, dates,
times, booleans, decimals); null is a value like others: it equals null and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import key_filter
from holdfast.state.rows import rows_at

_DENSE = 4
"""Up to this many possible numbers per row, a table of all of them is faster than a hash table."""
_LARGEST = 2**62
"""Above it a number for a whole key would not fit 64 bits."""
_FEW = 16
"""With fewer keys than a 16th of the rows, a scan of one column leaves few rows for the other columns."""


def index_in(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return for each row of a table the first row of ``keys`` that agrees with it in the columns ``on``, or -1.

    Parameters
    ----------
    table : pa.Table
        Any number of rows.
    keys : pa.Table
        The rows looked for; has the columns ``on`` in the same types.
    on : sequence of str
        Key columns.  Without any, every row agrees with the first of ``keys``.

    Returns
    -------
    numpy array of int64
        As long as ``table``.

    Notes
    -----
    A scan of the key columns of ``table``, and hash tables the size of ``keys`` only.

    Examples
    --------
    >>> rows = pa.table({"k": ["a", "b", None], "t": [1, 2, 3]})
    >>> index_in(rows, pa.table({"k": [None, "a"]}), ["k"]).tolist()
    [1, -1, 0]
    """
    if keys.num_rows == 0 or table.num_rows == 0:
        return np.full(table.num_rows, -1, np.int64)
    if not on:
        return np.zeros(table.num_rows, np.int64)
    if len(on) == 1 and _plain(keys.column(on[0])) is None:
        return _positions(table.column(on[0]), keys.column(on[0]))
    ours, theirs, size = _pack_keys(table, keys, on)
    if size <= _DENSE * (len(ours) + len(theirs)):
        return _first_of(theirs, size)[ours]
    return _positions(pa.array(ours), pa.array(theirs))


def _pack_keys(
    table: pa.Table, keys: pa.Table, on: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return one number for each row's key in both tables, equal where the keys are, and above all of them the size.

    Whole numbers and times count from the lowest on, which costs no hash table; values of other types are numbered as
    they appear in ``keys``.  A row with a value that ``keys`` lacks is the last number: none of theirs.
    """
    ours = np.zeros(table.num_rows, np.int64)
    theirs = np.zeros(keys.num_rows, np.int64)
    size, absent = 1, np.zeros(table.num_rows, bool)
    for name in on:
        mine, other, width = _values_as_numbers(table, keys, name, most=_LARGEST // size)
        if size * width > _LARGEST:  # coded anew by the rows of `keys`, so that no number of columns overflows
            distinct = pc.unique(pa.array(theirs))
            ours, theirs, size = (
                _positions(pa.array(ours), distinct),
                _positions(pa.array(theirs), distinct),
                len(distinct),
            )
            absent |= ours < 0
        absent |= mine < 0
        ours, theirs, size = ours * width + mine, theirs * width + other, size * width
    return np.where(absent, size, ours), theirs, size + 1


def _values_as_numbers(
    table: pa.Table, keys: pa.Table, name: str, *, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return a number for each value of a column in both tables, at least 0 and below the third result; -1 for values
    of ``table`` that are certainly not in ``keys``.
    """
    mine, other = _plain(table.column(name)), _plain(keys.column(name))
    if mine is not None and other is not None:
        lowest = min(int(mine.min()), int(other.min()))
        width = max(int(mine.max()), int(other.max())) - lowest + 1
        if width <= most:
            return mine - lowest, other - lowest, width
    distinct = pc.unique(keys.column(name))
    mine, other = _positions(table.column(name), distinct), _positions(keys.column(name), distinct)
    return mine, other, int(other.max()) + 1


def _first_of(values: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Return for each number below ``size`` the first place that has it, or -1."""
    first = np.full(size, -1, np.int64)
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1)  # of repeated indices the last assignment stays
    return first


def _plain(column: pa.ChunkedArray) -> npt.NDArray[np.int64] | None:
    """Return whole numbers or times without nulls as int64; None for anything else."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return None
    if kind == pa.uint64():
        return None
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if not pa.types.is_integer(kind):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return np.asarray(array).astype(np.int64, copy=False)


def _positions(column: pa.ChunkedArray | pa.Array, distinct: pa.Array) -> npt.NDArray[np.int64]:
    found = pc.fill_null(pc.index_in(column, value_set=distinct, skip_nulls=False), -1)
    return np.asarray(found).astype(np.int64)


def semi_join(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the rows of a table whose key is among ``keys``, in their order."""
    return _matching(table, keys, on, wanted=True)


def anti_join(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the rows of a table whose key is not among ``keys``, in their order."""
    return _matching(table, keys, on, wanted=False)


def _matching(table: pa.Table, keys: pa.Table, on: Sequence[str], *, wanted: bool) -> pa.Table:
    if keys.num_rows == 0 or table.num_rows == 0:
        return table.slice(0, 0) if wanted else table
    there = members(table, keys, on)
    if len(there) == table.num_rows:
        return table if wanted else table.slice(0, 0)
    if wanted:
        return rows_at(table, there)
    if not len(there):
        return table
    stays = np.ones(table.num_rows, bool)
    stays[there] = False
    return table.filter(pa.array(stays))


def members(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows of a table whose key is among ``keys``, ascending.

    Notes
    -----
    Chunks whose numbers are apart from those of ``keys`` are left out.  Of the others a cheap scan of all rows, by
    their signatures or a column at a time, until few are left; only these are compared as a whole.
    """
    if not on or keys.num_rows == 0:
        return np.arange(table.num_rows if keys.num_rows else 0, dtype=np.int64)
    columns = table.select(list(on))
    rows = key_filter.near(columns, keys.select(list(on)))
    if rows is None:
        return _members(table, keys, on)
    return rows[_members(rows_at(columns, rows), keys, on)] if len(rows) else rows


def _members(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    if keys.num_rows * _FEW > table.num_rows and len(on) > 1:
        return np.flatnonzero(index_in(table, keys, on) >= 0)
    if keys.num_rows * _FEW <= table.num_rows:
        few = key_filter.candidates(table.select(list(on)), keys.select(list(on)))
        if few is not None:
            left = rows_at(table.select(list(on)), few)
            return few[index_in(left, keys, on) >= 0]
    near: npt.NDArray[np.int64] | None = None
    left = table.select(list(on))
    for name in on:
        if near is not None and len(near) * 4 <= table.num_rows:
            break
        inside = np.flatnonzero(np.asarray(_among(left, keys, name)))
        near = inside if near is None else near[inside]
        left = rows_at(left, inside) if len(inside) < left.num_rows else left
    assert near is not None
    return near if len(on) == 1 else near[index_in(left, keys, on) >= 0]


def member_mask(table: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Array:
    """Return for each row of a table whether its key is among ``keys``."""
    mask = np.zeros(table.num_rows, bool)
    mask[members(table, keys, on)] = True
    return pa.array(mask)


def _among(table: pa.Table, keys: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.is_in(table.column(name), value_set=pc.unique(keys.column(name)))


def key_codes(table: pa.Table, on: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return a number for each row's key: 0, 1, 2, … in the order in which the keys first appear.

    Examples
    --------
    >>> key_codes(pa.table({"k": ["b", "a", "b", None]}), ["k"]).tolist()
    [0, 1, 0, 2]
    """
    if not on or table.num_rows == 0:
        return np.zeros(table.num_rows, np.int64)
    if len(on) == 1:
        return _codes(table.column(on[0]))
    packed, size = np.zeros(table.num_rows, np.int64), 1
    for name in on:
        values, width = _offsets(table.column(name), most=_LARGEST // size)
        if size * width > _LARGEST:
            packed = _codes(pa.array(packed))
            size = int(packed.max()) + 1
        packed, size = packed * width + values, size * width
    return _codes(pa.array(packed))


def _offsets(column: pa.ChunkedArray, *, most: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return a number for each value of a column, and above all of them the number of possible ones."""
    plain = _plain(column)
    if plain is not None:
        lowest = int(plain.min())
        width = int(plain.max()) - lowest + 1
        if width <= most:
            return plain - lowest, width
    codes = _codes(column)
    return codes, int(codes.max()) + 1


def _codes(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # larger than one array can be
        return _positions(whole, pc.unique(whole))
    plain = _plain(pa.chunked_array([whole]))
    if plain is not None:
        lowest = int(plain.min())
        width = int(plain.max()) - lowest + 1
        if width <= _DENSE * len(plain):
            return _dense_codes(plain - lowest, width)
    encoded = whole.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64)


def _dense_codes(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Return the codes of numbers below ``width``: a table of them instead of a hash table."""
    every = np.arange(len(values))
    first = np.empty(width, np.int64)
    first[values[::-1]] = every[::-1]  # of repeated indices the last assignment stays
    first_of = first[values]
    return (np.cumsum(first_of == every) - 1)[first_of]


def distinct_keys(table: pa.Table, on: Sequence[str]) -> pa.Table:
    """Return the key columns of a table, each key once, in the order in which the keys first appear."""
    chosen = table.select(list(on))
    if not on or table.num_rows == 0:
        return chosen
    codes = key_codes(table, on)
    _, first = np.unique(codes, return_index=True)
    return chosen if len(first) == len(codes) else chosen.take(pa.array(first))
