"""Signatures of keys: a cheap scan of every row of a large table leaves a few candidates for the exact comparison.

A signature is some bits of eight bytes of each column: equal keys have equal ones.  Where 1000 keys are wanted among
10^6 rows, a hundredth of the others passes, in less than half the time that a hash table takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

_KEYS_MAX = 1 << 17
"""Above this many keys the filter lets too much through to be worth its time."""

_ROWS_MIN = 1 << 13
"""Below this many rows the exact comparison alone is as fast."""

_APART_MIN = 1 << 12
"""The rows of a smaller chunk are looked at as fast as its lowest and highest numbers are found."""

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: spreads close values over the high bits


def candidates(table: pa.Table, keys: pa.Table) -> Ints | None:
    """Return the rows of a table that may be among keys, ascending; None where looking is not worth its time.

    Parameters
    ----------
    table, keys : pa.Table
        The same columns, one or more; nothing else.
    """
    if keys.num_rows > _KEYS_MAX or table.num_rows < _ROWS_MIN or not any(map(_has_word, table.schema.types)):
        return None
    bits = 17 if keys.num_rows <= 1 << 12 else 21  # as small as keeps most others out: it must fit in the cache
    wanted = np.zeros(1 << bits, np.bool_)
    for batch in keys.to_batches():
        wanted[_signatures(batch, bits)] = True
    spans = [_span(column) for column in keys.columns]
    found, begin = [np.zeros(0, np.int64)], 0
    for batch in table.to_batches():
        if not _is_apart(batch, spans):
            found.append(begin + np.flatnonzero(wanted[_signatures(batch, bits)]))
        begin += batch.num_rows
    return np.concatenate(found) if len(found) != 2 else found[1]


def near(table: pa.Table, keys: pa.Table) -> Ints | None:
    """Return the rows of those chunks of a table that may have some of the keys, ascending; None for all rows.

    A look at the lowest and highest numbers of each large chunk.  What an epoch adds mostly has numbers that no row
    before it has.

    Parameters
    ----------
    table, keys : pa.Table
        The same columns, one or more; nothing else.
    """
    spans = [_span(column) for column in keys.columns]
    if not any(spans):
        return None
    batches = table.to_batches()
    apart = [_is_apart(batch, spans) for batch in batches]
    if not any(apart):
        return None
    found, begin = [np.zeros(0, np.int64)], 0
    for batch, is_left_out in zip(batches, apart, strict=True):
        if not is_left_out:
            found.append(np.arange(begin, begin + batch.num_rows))
        begin += batch.num_rows
    return np.concatenate(found)


Span = tuple[int, int] | None


def _span(column: pa.ChunkedArray | pa.Array) -> Span:
    """Return the lowest and the highest of whole numbers or times; None for others, and where one is null."""
    kind = column.type
    if column.null_count or not len(column) or not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        return None
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64()) if isinstance(column, pa.Array) else column.cast(pa.int64())
    ends = pc.min_max(column)
    return ends["min"].as_py(), ends["max"].as_py()


def _is_apart(batch: pa.RecordBatch, spans: Sequence[Span]) -> bool:
    """Return whether no row of a chunk can be among keys: all its numbers of one column are below theirs, or above.

    Rows are kept in the order in which they came, so numbers that grow with time are apart in nearly all chunks.  It
    is not asked of small ones.
    """
    if batch.num_rows < _APART_MIN:
        return False
    for column, span in zip(batch.columns, spans, strict=True):
        mine = None if span is None else _span(column)
        if span is not None and mine is not None and (mine[1] < span[0] or span[1] < mine[0]):
            return True
    return False


def _has_word(kind: pa.DataType) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_number or is_text or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _signatures(batch: pa.RecordBatch, bits: int) -> Ints:
    """Return a number of some bits for each row: equal rows have equal numbers."""
    mixed = _word(batch.column(0)) * _MIX
    for column in batch.columns[1:]:
        mixed ^= mixed >> np.uint64(32)
        mixed += _word(column)
        mixed *= _MIX
    mixed >>= np.uint64(64 - bits)
    return mixed.view(np.int64)  # an index of this type is not converted


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
    """Return the last eight bytes of each text as a number; shorter ones as if padded with leading zeros."""
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
