"""What a SQLite column holds, as Arrow values: a column may hold anything, whatever type it declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit.sql_values import converted, is_binary, is_text
from holdfast.connectors.kit.stored import (
    StoredColumn,
    binaries,
    is_whole,
    read_texts,
    texts,
    usual_moments,
    where,
    whole,
)
from holdfast.types.plain import is_nested

_EXACT = 2.0**53
"""Up to here a float says every integer."""


@dataclass(frozen=True)
class SqliteColumn(StoredColumn):
    """A column that is compared.

    Parameters
    ----------
    affinity : str
        Which storage class the column prefers: numbers where it is not that of their type are the column's doing.
    """

    affinity: str

    def values_of_type(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Return values of a plain type; of other storage classes than the sink's they are none."""
        taken = self._classes(kind)
        if not {type(None), *taken}.issuperset(map(type, values)):
            values = [value if type(value) in taken else None for value in values]
        if pa.types.is_null(kind):
            return pa.nulls(len(values))
        if is_nested(kind):
            return texts(values)
        if is_binary(kind):
            return binaries(pa.array(values, pa.large_binary()), kind)
        if is_text(kind):
            return pc.cast(texts(values), kind)
        if is_whole(kind):
            return whole(_integers(values), kind)
        if pa.types.is_floating(kind):
            return _floats(values, kind)
        if pa.types.is_decimal(kind) and self.affinity == "NUMERIC":
            return _round(values, kind)
        return _parse(texts(values), kind)

    def _classes(self, kind: pa.DataType) -> tuple[type, ...]:
        """Return which classes of values the sink writes there."""
        if pa.types.is_null(kind):
            return ()
        if is_whole(kind):
            return (float,) if self.affinity == "REAL" else (int,)
        if pa.types.is_floating(kind):
            return (float, int) if self.affinity == "NUMERIC" else (float,)
        if pa.types.is_decimal(kind) and self.affinity == "NUMERIC":
            return (float, int)
        return (bytes,) if is_binary(kind) else (str,)


def _integers(values: Sequence[Any]) -> pa.Array:
    """Return integers that a column may keep as floats."""
    if float not in map(type, values):
        return pa.array(values, pa.int64())
    numbers = pa.array(values, pa.float64())
    is_whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less_equal(pc.abs(numbers), _EXACT))
    return pc.cast(where(is_whole, numbers), pa.int64())


def _numbers(values: Sequence[Any]) -> pa.Array:
    """Return floats, of which a column may keep some as integers."""
    try:
        return pa.array(values, pa.float64())
    except pa.ArrowInvalid:  # some are large
        kept = [None if value is None or float(value) != value else float(value) for value in values]
        return pa.array(kept, pa.float64())


def _floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    numbers = _numbers(values)
    found = pc.cast(numbers, kind, safe=False)
    return where(pc.equal(pc.cast(found, pa.float64()), numbers), found)


def _round(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return decimals of at most 15 digits, which a column keeps as numbers."""
    numbers = _numbers(values).to_numpy(zero_copy_only=False)  # nulls are NaN
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.rint(numbers * 10.0**kind.scale)
        is_kept = (np.abs(units) < 10.0**kind.precision) & (
            np.abs(units / 10.0**kind.scale - numbers) <= np.abs(numbers) * 2.0**-51
        )
    whole = pc.cast(pa.array(np.where(is_kept, units, 0).astype(np.int64)), pa.decimal128(19, 0))
    found = pa.Array.from_buffers(pa.decimal128(19, kind.scale), len(whole), whole.buffers())
    return pc.cast(where(pa.array(is_kept), found), kind)


def _parse(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what texts say, if they say it as the sink would."""
    quickly = usual_moments(texts, kind)
    if quickly is not None:
        return quickly
    found = read_texts(texts, kind)
    return where(pc.equal(pc.cast(converted(found), pa.large_string()), texts), found)
