"""What a column of a table holds, as Arrow values.

A value counts as one that the sink wrote only in the form in which the sink writes it.  Any other comes as null, and
its hash is that of no value (:func:`holdfast.types.canonical.unreadable`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import moments
from holdfast.types import canonical
from holdfast.types.lookup3 import Hashes
from holdfast.types.plain import flat_type, from_json_text, is_nested
from holdfast.values import LossKind


@dataclass(frozen=True)
class StoredColumn(ABC):
    """A column that is compared.

    Parameters
    ----------
    field : pa.Field
        Of the rows that were written.
    lost : frozenset of LossKind
        What its column does not keep.
    """

    field: pa.Field
    lost: frozenset[LossKind]

    def expression(self, name: str) -> str:
        """Return what a SELECT asks for, given the column's name."""
        return name

    def read(self, values: Sequence[object]) -> StoredValues:
        """Return values as the system's driver gives them."""
        found = self.values_of_type(values, flat_type(self.field.type))
        is_foreign = None
        if found.null_count and found.null_count != values.count(None):
            is_written = np.fromiter((value is not None for value in values), bool, len(values))
            is_foreign = is_written & pc.is_null(found).to_numpy(zero_copy_only=False)
        return StoredValues(self, found, is_foreign)

    @abstractmethod
    def values_of_type(self, values: Sequence[object], kind: pa.DataType) -> pa.Array:
        """Return values of a plain type; null where one is none of it."""


@dataclass(frozen=True)
class StoredValues:
    """Some values of a column.

    Parameters
    ----------
    column : StoredColumn
        Whose they are.
    plain : pa.Array
        Of the plain type; nested values as JSON text; null where it is no value of the column's type.
    is_foreign : numpy.ndarray, optional
        Where that is so; None: nowhere.
    """

    column: StoredColumn
    plain: pa.Array
    is_foreign: np.ndarray | None

    def hashes(self) -> Hashes:
        """Return the hash of each."""
        name = self.column.field.name
        lost = {LossKind.JSON} if is_nested(flat_type(self.column.field.type)) else self.column.lost
        found = canonical.column_hashes(self.plain, name, lost)
        if self.is_foreign is not None:
            found[self.is_foreign] = canonical.unreadable(name)
        return found

    def values(self, chosen: pa.Array) -> pa.Array:
        """Return some of them, of the column's type."""
        values = self.plain.take(chosen)
        kind = flat_type(self.column.field.type)
        return (from_json_text(values, kind) if is_nested(kind) else values).cast(self.column.field.type)


def is_whole(kind: pa.DataType) -> bool:
    """Return whether values are kept as integers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_duration(kind))


def texts(values: Sequence[object]) -> pa.Array:
    """Return texts; null where one is no UTF-8."""
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # bytes that are no UTF-8 came as surrogates
        return pa.array([None if value is None else _text_or_null(value) for value in values], pa.large_string())


def _text_or_null(value: object) -> str | None:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def binaries(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return bytes of a type; null where they have another length."""
    if pa.types.is_fixed_size_binary(kind):
        values = where(pc.equal(pc.binary_length(values), kind.byte_width), values)
    return pc.cast(values, kind)


def where(is_kept: pa.Array, values: pa.Array) -> pa.Array:
    """Return values, null where they are not kept."""
    if pc.all(pc.fill_null(is_kept, True)).as_py():
        return values
    return pc.if_else(is_kept, values, pa.scalar(None, values.type))


# --- numbers --------------------------------------------------------------------------------------------------------


def whole(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return integers of a type, or what a type keeps as such; null where one is beyond it."""
    if pa.types.is_duration(kind):
        return _back(pc.cast(numbers, pa.duration("us")), kind)
    low, high = _limits(kind)
    return pc.cast(where(pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high)), numbers), kind)


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_boolean(kind):
        return 0, 1
    edge = min(2 ** (kind.bit_width - (not pa.types.is_unsigned_integer(kind))), 2**63)
    return (0 if pa.types.is_unsigned_integer(kind) else -edge), edge - 1


# --- what is written as text ----------------------------------------------------------------------------------------


def read_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals, dates and times of texts; null where one is none."""
    try:
        return _read(texts, kind)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([_one(text, kind) for text in texts.to_pylist()], kind)


def usual_moments(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return dates and times of the usual form; None where one is not."""
    if pa.types.is_timestamp(kind):
        form, unit = (moments.INSTANT, pa.timestamp("us", "UTC")) if kind.tz else (moments.LOCAL, pa.timestamp("us"))
    elif pa.types.is_date(kind):
        form, unit = moments.DATE, pa.date32()
    elif pa.types.is_time(kind):
        form, unit = moments.TIME, pa.time64("us")
    else:
        return None
    found = moments.read(texts, form)
    if found is None:
        return None
    mask = pc.is_null(texts).to_numpy(zero_copy_only=False) if texts.null_count else None
    numbers = pa.array(found.astype(np.int32) if pa.types.is_date(kind) else found, mask=mask)
    return _back(pc.cast(numbers, unit), kind)


def _one(text: str | None, kind: pa.DataType) -> pa.Scalar | None:
    for read in (_read, _read_any_year):
        try:
            return None if text is None else read(pa.array([text], pa.large_string()), kind)[0]
        except (pa.ArrowInvalid, OverflowError, ValueError):
            continue
    return None


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        wide = pa.decimal256 if kind.bit_width > 128 else pa.decimal128
        return pc.cast(pc.cast(texts, wide(kind.precision, kind.scale)), kind)
    if pa.types.is_timestamp(kind):
        return _back(pc.cast(texts, pa.timestamp("us", "UTC" if kind.tz else None)), kind)
    if pa.types.is_date(kind):
        return pc.cast(pc.cast(texts, pa.date32()), kind)
    day, space = pa.scalar("1970-01-01", texts.type), pa.scalar(" ", texts.type)
    moments = pc.cast(pc.binary_join_element_wise(day, texts, space), pa.timestamp("us"))
    return _back(pc.cast(pc.cast(moments, pa.int64()), pa.time64("us")), kind)


def _read_any_year(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a date or a time of a year that has not four digits: Arrow writes it, and does not read it."""
    text = texts[0].as_py()
    if pa.types.is_date(kind):
        return pc.cast(pa.array([np.datetime64(text, "D").astype(np.int64).item()], pa.int32()).cast(pa.date32()), kind)
    moment = np.datetime64(text.removesuffix("Z"), "us").astype(np.int64).item()
    return _back(pa.array([moment], pa.int64()).cast(pa.timestamp("us", "UTC" if kind.tz else None)), kind)


def _back(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return microseconds in the column's own unit, null where it cannot say them."""
    found = pc.cast(values, kind, safe=False)
    return where(pc.equal(pc.cast(found, values.type, safe=False), values), found)
