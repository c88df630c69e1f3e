"""Rows that the server sends as CSV, read into columns without touching a single row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit.sql import is_nested
from holdfast.connectors.postgres.comparing.hashing import HashedColumn, is_whole
from holdfast.connectors.postgres.copy import DAYS_TO_2000, US_TO_2000, is_binary
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN
from holdfast.types.from_text import read_csv
from holdfast.types.plain import from_json_text

CHUNK_BYTES = 8_000_000


def batches(
    columns: Sequence[HashedColumn], schema: pa.Schema, messages: Iterable[bytes | bytearray | memoryview]
) -> Iterator[pa.RecordBatch]:
    """Yield rows from what ``COPY ... TO STDOUT (FORMAT csv)`` sends: the columns, the place and the hash."""
    pending: list[bytes | bytearray | memoryview] = []
    size = 0
    for message in messages:  # each is a row
        pending.append(message)
        size += len(message)
        if size >= CHUNK_BYTES:
            yield _read(columns, schema, b"".join(pending))
            pending, size = [], 0
    if pending:
        yield _read(columns, schema, b"".join(pending))


def _read(columns: Sequence[HashedColumn], schema: pa.Schema, data: bytes) -> pa.RecordBatch:
    names = [str(number) for number in range(len(columns))]
    kinds = {name: _sent_as(column.kind) for name, column in zip(names, columns, strict=True)}
    kinds |= {PLACE_COLUMN: pa.binary(), HASH_COLUMN: pa.int64()}
    table = read_csv(data, [*names, PLACE_COLUMN, HASH_COLUMN], kinds).combine_chunks()
    arrays = [_value(_chunk(table, name), column.kind) for name, column in zip(names, columns, strict=True)]
    arrays += [_chunk(table, PLACE_COLUMN), _chunk(table, HASH_COLUMN).view(pa.uint64())]
    fields = [pa.field(column.column.name, column.kind) for column in columns]
    plain = pa.schema([*fields, (PLACE_COLUMN, pa.binary()), (HASH_COLUMN, pa.uint64())])
    return pa.RecordBatch.from_arrays(arrays, schema=plain)


def _chunk(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _sent_as(kind: pa.DataType) -> pa.DataType:
    if is_whole(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else pa.string()


def _value(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if is_binary(kind):
        return pc.cast(_bytes(values), kind)
    if is_nested(kind):
        return from_json_text(values, kind)
    if pa.types.is_timestamp(kind):
        return pc.cast(pc.cast(_numbers(values, ">i8", US_TO_2000), pa.timestamp("us", kind.tz)), kind)
    if pa.types.is_time(kind):
        return pc.cast(pc.cast(_numbers(values, ">i8", 0), pa.time64("us")), kind, safe=False)
    if pa.types.is_date(kind):
        return pc.cast(pc.cast(_numbers(values, ">i4", DAYS_TO_2000), pa.date32()), kind)
    if pa.types.is_duration(kind):
        return pc.cast(pc.cast(values, pa.duration("us")), kind, safe=False)
    return pc.cast(values, kind, safe=False)  # a number that does not fit: its hash says that it is none of ours


def _numbers(values: pa.Array, wire: str, first: int) -> pa.Array:
    """Return the numbers whose bytes the digits say; null for ``infinity``, which is no moment."""
    zero = "0" * (2 * np.dtype(wire).itemsize)
    data = _bytes(pc.fill_null(values, zero)).buffers()[2]
    numbers = np.frombuffer(data or b"", wire, len(values)).astype(np.dtype(wire).newbyteorder("="))
    limits = np.iinfo(numbers.dtype)
    is_none = pc.is_null(values).to_numpy(zero_copy_only=False) | (numbers == limits.min) | (numbers == limits.max)
    return pa.array(numbers + numbers.dtype.type(first), mask=is_none)


def _bytes(values: pa.Array) -> pa.Array:
    """Return the bytes that hexadecimal digits say."""
    filled = pc.fill_null(values, "")
    offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4)
    data = filled.buffers()[2]
    digits = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    halves = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0")).astype(np.uint8).reshape(-1, 2)
    joined = (halves[:, 0] << 4) | halves[:, 1]
    places = ((offsets - offsets[0]) // 2).astype(np.int32)
    found = pa.Array.from_buffers(pa.binary(), len(filled), [None, pa.py_buffer(places), pa.py_buffer(joined)])
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.binary()))
