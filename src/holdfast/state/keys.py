"""Keys as small integers, and the rows of a large table that belong to a few keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state import joins, key_filter
from holdfast.state.rows import rows_at

Ints = npt.NDArray[np.int64]


def numbers(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Return a BIGINT or TIMESTAMP column without nulls as int64."""
    array = one(column)
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def coded(table: pa.Table) -> tuple[Ints, Ints]:
    """Number the distinct rows of a table in order of first appearance; null is a value like others.

    Returns
    -------
    codes : ndarray of int64
        For each row the number of its value.
    first : ndarray of int64
        For each number the first row that has it.
    """
    codes = joins.key_codes(table, table.column_names)
    return codes, first_of(codes, int(codes.max(initial=-1)) + 1)


def coded_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Number distinct pairs in order of first appearance; return codes and first rows as :func:`coded` does."""
    if not len(left):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ranks, size = _encode(right)
    codes, count = _encode(left * size + ranks)
    return codes, first_of(codes, count)


def _encode(values: Ints) -> tuple[Ints, int]:
    encoded = pa.array(values).dictionary_encode()
    return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)


def first_of(codes: Ints, size: int) -> Ints:
    """Return for each code the first row that has it."""
    first = np.zeros(size, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of repeated indices the last assignment stays
    return first


def by_code(codes: Ints, size: int) -> Ints:
    """Return the rows ordered by code, rows of one code in their order."""
    narrow = codes.astype(np.uint16) if size <= 1 << 16 else codes  # sixteen bits are sorted by radix
    return np.argsort(narrow, kind="stable")


def ordinals_from(base: Ints, codes: Ints, size: int) -> Ints:
    """Number the rows of each code, in their order, from the base of the code on."""
    order = by_code(codes, size)
    counts = np.bincount(codes, minlength=size)
    ordinals = np.empty(len(codes), np.int64)
    ordinals[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return base[codes] + ordinals


def found(table: pa.Table, keys: pa.Table) -> tuple[Ints, Ints]:
    """Find the rows of a table whose key is among ``keys``.

    Parameters
    ----------
    table : pa.Table
        Has the columns of ``keys``, and others.
    keys : pa.Table
        Distinct rows.  Without columns every row of the table is of its only key.

    Returns
    -------
    positions : ndarray of int64
        Rows of the table, ascending.
    codes : ndarray of int64
        For each of them the row of ``keys``.

    Notes
    -----
    A comparison of eight bytes of each key leaves a few candidates, which are then compared exactly: 10^6 keys of state
    and 1000 that are wanted cost some milliseconds.
    """
    if not keys.num_columns:
        return np.arange(table.num_rows), np.zeros(table.num_rows, np.int64)
    if not keys.num_rows or not table.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns = table.select(keys.column_names)
    positions = key_filter.candidates(columns, keys)
    if positions is not None:
        columns = rows_at(columns, positions)
    codes = joins.index_in(columns, keys, keys.column_names)
    rows = np.flatnonzero(codes >= 0)
    return (rows if positions is None else positions[rows]), codes[rows]
