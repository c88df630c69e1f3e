"""From what a text holds to the declared type, column by column: times, dates, decimals, and what must not be null.

One rule for times: a text is ISO 8601; without a zone it is UTC; digits after the microseconds are truncated;
a number is seconds since 1970 in UTC.  TIMESTAMP is that instant, TIMESTAMP_NTZ its date and time in UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.conversion import END_SECOND, FIRST_SECOND
from holdfast.types.from_text import Unfit, may_overflow, numbers_from_text, timestamps_from_text

BEYOND = (
    "a number in a TIMESTAMP is seconds since 1970, and this one is outside of the years 1 to 9999 (milliseconds? "
    "declare BIGINT and divide)"
)
"""What is wrong with a number outside of these."""

_UTC = pa.timestamp("us", tz="UTC")
_NO_ROWS = np.zeros(0, np.int64)


def timestamps_from_seconds(seconds: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers of seconds since 1970 as timestamps, to the microsecond.

    Raises
    ------
    Unfit
        If some number is outside of the years 1 to 9999: most likely these are milliseconds.
    """
    is_second = pc.and_(pc.greater_equal(seconds, FIRST_SECOND), pc.less(seconds, END_SECOND))
    if not pc.all(is_second, skip_nulls=True, min_count=0).as_py():
        raise Unfit(BEYOND)
    whole = pc.floor(seconds)
    micros = pc.round(pc.multiply(pc.subtract(seconds, whole), 1e6))
    total = pc.add(pc.multiply(whole.cast(pa.int64()), 1_000_000), micros.cast(pa.int64()))
    return total.cast(_UTC).cast(wanted)


def read_type(data_type: pa.DataType, *, timestamps: pa.DataType | None, dates: pa.DataType | None) -> pa.DataType:
    """Return the type to read a declared one with: timestamps and dates replaced, however deep (None keeps them).

    Decimals that may overflow are read with twice the bits: :func:`may_overflow`.
    Members may all be null: Arrow's reader takes a NOT NULL member of a null struct for missing.
    """
    if pa.types.is_timestamp(data_type):
        return timestamps or data_type
    if pa.types.is_date32(data_type):
        return dates or data_type
    if may_overflow(data_type):
        return pa.decimal256(data_type.precision, data_type.scale)
    if pa.types.is_list(data_type):
        return pa.list_(_read_field(data_type.value_field, timestamps, dates))
    if pa.types.is_struct(data_type):
        return pa.struct([_read_field(field, timestamps, dates) for field in data_type])
    return data_type


def _read_field(field: pa.Field, timestamps: pa.DataType | None, dates: pa.DataType | None) -> pa.Field:
    return pa.field(field.name, read_type(field.type, timestamps=timestamps, dates=dates))


def holds_timestamp(data_type: pa.DataType) -> bool:
    """Return whether a type has a timestamp in it."""
    if pa.types.is_struct(data_type):
        return any(holds_timestamp(member.type) for member in data_type)
    if pa.types.is_list(data_type):
        return holds_timestamp(data_type.value_type)
    return bool(pa.types.is_timestamp(data_type))


def to_declared(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return an array that was read with its :func:`read_type`, or numbers as texts, in the declared one.

    Raises
    ------
    Unfit
        If some value does not fit.
    """
    if array.type == wanted:
        return array
    if pa.types.is_timestamp(wanted):
        is_text = pa.types.is_string(array.type)
        return timestamps_from_text(array, wanted) if is_text else timestamps_from_seconds(array, wanted)
    if pa.types.is_struct(wanted):
        # flatten() and not field(): below a null struct the members must be null too, not whatever is in memory.
        members = [to_declared(part, field.type) for part, field in zip(array.flatten(), wanted, strict=True)]
        return pa.StructArray.from_arrays(members, fields=list(wanted), mask=array.is_null())
    if pa.types.is_list(wanted):
        values = to_declared(array.values, wanted.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=wanted, mask=array.is_null())
    try:
        if pa.types.is_string(array.type) and (pa.types.is_decimal(wanted) or pa.types.is_integer(wanted)):
            array = numbers_from_text(array, wanted)
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise Unfit(str(error)) from error


def infinite_rows(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the rows with an infinite number, however deep; one may be named several times."""
    if pa.types.is_struct(values.type):
        return np.concatenate([_NO_ROWS, *map(infinite_rows, values.flatten())])
    if pa.types.is_list(values.type):
        rows = infinite_rows(values.flatten())
        return pc.list_parent_indices(values).to_numpy()[rows] if len(rows) else rows
    if not pa.types.is_floating(values.type):
        return _NO_ROWS
    return np.flatnonzero(pc.fill_null(pc.is_inf(values), False).to_numpy(zero_copy_only=False))


def forbidden_null(array: pa.Array, field: pa.Field) -> str | None:
    """Return the path of a member that is declared NOT NULL and has a null, or None.

    Examples
    --------
    >>> forbidden_null(pa.array([1, None]), pa.field("a", pa.int64(), nullable=False))
    'a'
    """
    if not field.nullable and array.null_count:
        return str(field.name)
    if not _restricts(field.type):
        return None
    present = array.filter(array.is_valid()) if array.null_count else array
    if pa.types.is_struct(field.type):
        inner = list(zip(present.flatten(), field.type, strict=True))
    else:
        inner = [(present.flatten(), field.type.value_field)]
    paths = (forbidden_null(values, member) for values, member in inner)
    return next((f"{field.name}.{path}" for path in paths if path is not None), None)


_UNLESS = b"holdfast.unless"
"""Metadata of a field: the boolean column that is true in rows which need no value there."""


def required_unless(schema: pa.Schema, marker: str, *, but: Collection[str]) -> pa.Schema:
    """Return a schema whose NOT NULL columns may be null in rows that a boolean column marks; some stay as they are.

    Examples
    --------
    >>> schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("is_bound", pa.bool_())])
    >>> relaxed = required_unless(schema, "is_bound", but=())
    >>> rows = [pa.array([1, None, None]), pa.array([None, True, False])]
    >>> (lacking([column.slice(0, 2) for column in rows], relaxed), lacking(rows, relaxed))
    (None, 'a')
    """
    fields = [
        field
        if field.nullable or field.name in (marker, *but)
        else field.with_nullable(True).with_metadata({_UNLESS: marker.encode()})
        for field in schema
    ]
    return pa.schema(fields)


def unless_of(field: pa.Field) -> str | None:
    """Return the column whose true values excuse a null in this one; None where nothing is required, or always."""
    marker = (field.metadata or {}).get(_UNLESS)
    return None if marker is None else str(marker.decode())


def lacking(columns: Sequence[pa.Array], schema: pa.Schema) -> str | None:
    """Return a column in which a row has no value that needs one, by :func:`required_unless`; or None."""
    for field, column in zip(schema, columns, strict=True):
        marker = unless_of(field)
        if marker is not None and column.null_count and marker in schema.names:
            is_excused = pc.fill_null(columns[schema.get_field_index(marker)], False)
            if pc.any(pc.and_(pc.is_null(column), pc.invert(is_excused))).as_py():
                return str(field.name)
    return None


def _restricts(data_type: pa.DataType) -> bool:
    """Return whether something within a nested type is declared NOT NULL."""
    if pa.types.is_struct(data_type):
        return any(not member.nullable or _restricts(member.type) for member in data_type)
    if pa.types.is_list(data_type):
        return not data_type.value_field.nullable or _restricts(data_type.value_type)
    return False
