"""Keys as small integers, and the rows of a large table that belong to a few keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators import tables

Ints = npt.NDArray[np.int64]

_FILTER_KEYS_MAX = 1 << 17
"""Above this many keys the filter lets too much through to be worth its time."""

_FILTER_ROWS_MIN = 1 << 13
"""Below this many rows the exact comparison alone is as fast."""

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: spreads close values over the high bits


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
    codes = tables.key_codes(table, table.column_names)
    return codes, first_of(codes, int(codes.max(initial=-1)) + 1)


def coded_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Number distinct pairs in order of first appearance; return codes and first rows as :func:`coded` does."""
    if not len(left):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ranks, size = _encoded(right)
    codes, count = _encoded(left * size + ranks)
    return codes, first_of(codes, count)


def _encoded(values: Ints) -> tuple[Ints, int]:
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
    A look at eight bytes of each key leaves a few candidates, which are then compared exactly: 10^6 keys of state and
    1000 that are wanted cost some milliseconds.
    """
    if not keys.num_columns:
        return np.arange(table.num_rows), np.zeros(table.num_rows, np.int64)
    if not keys.num_rows or not table.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns = table.select(keys.column_names)
    positions: Ints | None = None
    if keys.num_rows <= _FILTER_KEYS_MAX and table.num_rows >= _FILTER_ROWS_MIN:
        bits = 17 if keys.num_rows <= 1 << 12 else 21  # as small as keeps most others out: it must fit in the cache
        wanted = np.zeros(1 << bits, np.bool_)
        wanted[_signatures(keys, bits)] = True
        positions = np.flatnonzero(wanted[_signatures(columns, bits)])
        columns = columns.take(pa.array(positions))
    codes, _ = coded(pa.concat_tables([keys, columns]))
    codes = codes[keys.num_rows :]
    rows = np.flatnonzero(codes < keys.num_rows)
    return (rows if positions is None else positions[rows]), codes[rows]


def _signatures(table: pa.Table, bits: int) -> Ints:
    """Return a number of some bits for each row: equal rows have equal numbers."""
    parts = [np.zeros(0, np.int64)]
    shift = np.uint64(64 - bits)
    for batch in table.to_batches():
        mixed = _word(batch.column(0)) * _MIX
        for column in batch.columns[1:]:
            mixed ^= mixed >> np.uint64(32)
            mixed += _word(column)
            mixed *= _MIX
        mixed >>= shift
        parts.append(mixed.view(np.int64))  # an index of this type is not converted
    return np.concatenate(parts) if len(parts) != 2 else parts[1]


def _word(array: pa.Array) -> npt.NDArray[np.uint64]:
    kind = array.type
    if array.null_count or not len(array):
        return np.zeros(len(array), np.uint64) if array.null_count == len(array) else _word_with_nulls(array)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        plain = array.view({64: pa.int64(), 32: pa.int32()}.get(kind.bit_width, kind))
        return np.asarray(plain.to_numpy()).astype(np.int64).view(np.uint64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _last_bytes(array, np.int32)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _last_bytes(array, np.int64)
    return np.zeros(len(array), np.uint64)


def _word_with_nulls(array: pa.Array) -> npt.NDArray[np.uint64]:
    words = np.zeros(len(array), np.uint64)
    valid = np.asarray(array.is_valid())
    words[valid] = _word(array.drop_null())
    return words


def _last_bytes(array: pa.Array, offset_type: type[np.int32] | type[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the last eight bytes of each text as a number; shorter ones as if zeros stood before."""
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)[array.offset : array.offset + len(array) + 1]
    size = 0 if data is None else data.size
    ends = offsets[1:]
    lengths = np.diff(offsets)
    if size < 8 or ends[0] < 8:  # the first texts have fewer than eight bytes before their end
        head = int(np.searchsorted(ends, 8)) if size >= 8 else len(ends)
        words = np.zeros(len(ends), np.uint64)
        padded = np.frombuffer(
            bytes(8) + (b"" if data is None else data.slice(0, min(size, 16)).to_pybytes()), np.uint8
        )
        words[:head] = _at(padded, ends[:head])
        if head < len(ends):
            words[head:] = _at(np.frombuffer(data, np.uint8), ends[head:] - 8)
    else:
        words = _at(np.frombuffer(data, np.uint8), ends - 8)
    if len(lengths) and lengths.min() < 8:
        missing = np.clip(8 - lengths, 0, 7).astype(np.uint64)
        words = np.where(lengths > 0, words >> (missing * np.uint64(8)), np.uint64(0))
    return words


def _at(data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    windows = np.ndarray((max(len(data) - 7, 0),), "<u8", data, strides=(1,))
    return np.asarray(windows[starts], np.uint64)
