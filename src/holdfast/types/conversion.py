"""Columns of files that others have written, as columns of the declared types: every value, or an error.

Arrow has more types than Spark, and its cast neither finds members of a struct by name nor goes into every list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.canonical import is_text
from holdfast.types.plain import flat, flat_type
from holdfast.types.schema import is_list

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
_UUID_BYTES, _UUID_TEXT = 16, 36
_HYPHENS = (8, 13, 18, 23)
_INTEGERS = pa.decimal128(20, 0)
"""Holds every integer of 64 bits, signed or not."""

FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
"""Seconds since 1970 of the years 1 to 9999: those of Spark's timestamps.  The second one is exclusive."""

_DAY_SECONDS = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def is_convertible(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value, or every value in range, of one type is a value of the other.

    Examples
    --------
    >>> is_convertible(pa.list_(pa.uint8(), 3), pa.list_(pa.int64())), is_convertible(pa.string(), pa.int64())
    (True, False)
    """
    kinds = pa.types
    if held == wanted or (isinstance(held, pa.UuidType) and kinds.is_string(wanted)):
        return True
    held = flat_type(held)
    if kinds.is_null(held):
        return True
    if kinds.is_struct(held) and kinds.is_struct(wanted):
        places = [(held.get_field_index(member.name), member.type) for member in wanted]  # -1: none, or several
        return bool(places) and all(at >= 0 and is_convertible(held.field(at).type, kind) for at, kind in places)
    if kinds.is_map(held) and kinds.is_map(wanted):
        return is_convertible(held.key_type, wanted.key_type) and is_convertible(held.item_type, wanted.item_type)
    if is_list(held) and is_list(wanted):
        return is_convertible(held.value_type, wanted.value_type)
    number = (kinds.is_integer, kinds.is_decimal, kinds.is_floating)
    rank_held = next((rank for rank, test in enumerate(number) if test(held)), None)
    rank_wanted = next((rank for rank, test in enumerate(number) if test(wanted)), None)
    if rank_held is not None and rank_wanted is not None:
        return rank_held <= rank_wanted and not (kinds.is_float64(held) and kinds.is_float32(wanted))
    if kinds.is_fixed_size_binary(held):
        return bool(kinds.is_binary(wanted))
    alike = (is_text_or_bytes, kinds.is_timestamp, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(test(held) and test(wanted) for test in alike)


def convert(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column's values in another type, to which its own :func:`is_convertible`.

    Members of structs are found by name.  Digits after the microseconds are cut off, as in every other format, and a
    decimal becomes the nearest floating-point number; nothing else is lost.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value is none of the type.

    Examples
    --------
    >>> convert(pa.array([{"b": 2, "a": [1]}]), pa.struct([("a", pa.list_(pa.int8()))])).to_pylist()
    [{'a': [1]}]
    """
    if column.type == wanted:
        return column
    if isinstance(column.type, pa.UuidType) and pa.types.is_string(wanted):
        return _uuid_texts(column.storage)
    column = flat(column)
    kinds = pa.types
    if kinds.is_null(column.type):
        return pa.nulls(len(column), wanted)
    if kinds.is_struct(wanted):
        members = column.flatten()  # not field(): below a null struct the members must be null too
        of = column.type
        parts = [convert(members[of.get_field_index(member.name)], member.type) for member in wanted]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    if kinds.is_map(wanted):
        entries = map_entries(column)
        keys, items = entries.flatten().flatten()
        parts = [convert(keys, wanted.key_type), convert(items, wanted.item_type)]
        return pa.MapArray.from_arrays(list_offsets(entries), *parts, type=wanted, mask=column.is_null())
    if is_list(wanted):
        values = convert(column.flatten(), wanted.value_type)
        return pa.ListArray.from_arrays(list_offsets(column), values, type=wanted, mask=column.is_null())
    return _leaf(column, wanted)


def check_range(column: pa.Array) -> None:
    """Check that no decimal, however deep, has more digits before the point than its type, and no date or timestamp
    another year than Spark's: 1 to 9999.

    Arrow's types and its readers of texts have more of both.

    Raises
    ------
    pyarrow.ArrowInvalid
        If one has.

    Examples
    --------
    >>> check_range(pa.array([[2147483647]], pa.list_(pa.date32())))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: a value is outside of the years 1 to 9999
    """
    kinds = pa.types
    for leaf in leaves(column):
        kind = leaf.type
        if kinds.is_decimal(kind):
            _check_digits(leaf, kind)
        elif kinds.is_date32(kind):
            _check_years(leaf.view(pa.int32()), FIRST_SECOND // _DAY_SECONDS, END_SECOND // _DAY_SECONDS)
        elif kinds.is_date64(kind) or kinds.is_timestamp(kind):
            units = _PER_SECOND[kind.unit if kinds.is_timestamp(kind) else "ms"]
            _check_years(leaf.view(pa.int64()), FIRST_SECOND * units, END_SECOND * units)


def check_ranges(rows: pa.RecordBatch | pa.Table) -> None:
    """Check all columns of rows (:func:`check_range`): whatever others have made as Arrow, or by a reader of Arrow's.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value is out of range: names the column.
    """
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                check_range(column)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r}: {error}") from error


def check_int96(source: Any, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> None:
    """Check that a Parquet file has no INT96 outside of the years 1 to 9999, in all or some columns and row groups.

    It is read in seconds, which hold each; in microseconds, in which Arrow is asked for it, some are others.

    Raises
    ------
    pyarrow.ArrowInvalid
        If one has: names the column.
    """
    import pyarrow.parquet as pq  # not in workers that read none

    with pq.ParquetFile(source, coerce_int96_timestamp_unit="s") as parquet:
        held = map(parquet.schema.column, range(len(parquet.schema)))
        paths = [column.path for column in held if column.physical_type == "INT96"]
        read = [path for path in paths if columns is None or any(f"{path}.".startswith(f"{name}.") for name in columns)]
        for batch in parquet.iter_batches(row_groups=groups, columns=read, use_threads=False) if read else ():
            check_ranges(batch)


def leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the values within a column that are not nested."""
    column = flat(column)
    kinds = pa.types
    if kinds.is_map(column.type):
        column = map_entries(column)
    if kinds.is_nested(column.type):
        for part in column.flatten() if kinds.is_struct(column.type) else [column.flatten()]:
            yield from leaves(part)
    else:
        yield column


def _leaf(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    kinds = pa.types
    held = column.type
    if kinds.is_decimal(wanted):
        if kinds.is_integer(held):
            column = column.cast(_INTEGERS)
        elif held.bit_width < _INTEGERS.bit_width:
            column = column.cast(pa.decimal128(held.precision, held.scale))
        _check_digits(column, wanted)
    if kinds.is_decimal(held) and kinds.is_floating(wanted):  # the cast rounds twice
        column = column.cast(pa.string())
    if kinds.is_timestamp(held) and held.unit == "ns":  # the cast cuts towards 1970
        column = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
    return pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))


def _check_digits(column: pa.Array, wanted: pa.DataType) -> None:
    """Check that values have no more digits before the point than a type: Arrow appends digits modulo 2**128."""
    limit = 10 ** (wanted.precision - wanted.scale)
    for value in pc.min_max(column).as_py().values():
        if value is not None and value.copy_abs() >= limit:
            raise pa.ArrowInvalid(f"{value} does not fit in {wanted}")


def _check_years(values: pa.Array, first: int, end: int) -> None:
    if any(value is not None and not first <= value < end for value in pc.min_max(values).as_py().values()):
        raise pa.ArrowInvalid("a value is outside of the years 1 to 9999")


def map_entries(column: pa.MapArray) -> pa.ListArray:
    """Return a map as a list of structs: the same entries, of which Arrow can do more."""
    fields = [column.type.key_field, column.type.item_field]
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=fields)
    as_list = pa.list_(entries.type)
    return pa.Array.from_buffers(as_list, len(column), column.buffers()[:2], offset=column.offset, children=[entries])


def list_offsets(column: pa.Array) -> pa.Array:
    """Return where the lists of a column begin and end in its flattened values, whatever kind of list they are."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])).cast(pa.int32())


def _uuid_texts(storage: pa.Array) -> pa.Array:
    """Return UUIDs as texts, in the usual form."""
    count = len(storage)
    first = storage.offset * _UUID_BYTES
    held = np.frombuffer(storage.buffers()[1], np.uint8)[first : first + count * _UUID_BYTES]
    texts = np.full((count, _UUID_TEXT), ord("-"), np.uint8)
    digits = [place for place in range(_UUID_TEXT) if place not in _HYPHENS]
    texts[:, digits] = _HEX[held].reshape(count, 2 * _UUID_BYTES)
    offsets = np.arange(0, (count + 1) * _UUID_TEXT, _UUID_TEXT, dtype=np.int32)
    valid = None if not storage.null_count else storage.is_valid().buffers()[1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts.tobytes()), valid)


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Return whether values are texts or bytes: bytes that are UTF-8 are texts, of which many writers do not say so."""
    kinds = pa.types
    return kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind) or is_text(kind)
