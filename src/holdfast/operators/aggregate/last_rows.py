"""Aggregates over spans of rows: of each row the last ones of its key (design/0061).

A span is a pair of places in arrays that have the rows of each key beside each other.  Rows that an aggregate skips are
left out of the arrays first, and spans moved accordingly.  All sums are exact, in limbs of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators.aggregate import exact
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.counting import flags
from holdfast.operators.aggregate.parts import Columns, Partial
from holdfast.operators.aggregate.ranking import Flags, SortTerm, sort_keys
from holdfast.state.keys import Ints, one

_AT_ONCE = 1 << 16
"""Spans of floating-point numbers that are added together: their limbs take some megabytes, whatever the exponents."""

_BITS = 32
_MASK = np.int64(2**_BITS - 1)


@dataclass(frozen=True)
class RowSpans:
    """Spans of places; none begins before the one before it does.

    Parameters
    ----------
    starts, ends : ndarray of int64
        The first place of each, and the one behind its last.
    """

    starts: Ints
    ends: Ints

    @property
    def sizes(self) -> Ints:
        """How many places each has."""
        return self.ends - self.starts

    def among(self, chosen: Flags) -> RowSpans:
        """Return the spans in an array that has the chosen places alone.

        Examples
        --------
        >>> RowSpans(np.array([0, 1]), np.array([2, 3])).among(np.array([True, False, True])).sizes.tolist()
        [1, 1]
        """
        before = np.concatenate([[0], np.cumsum(chosen)])
        return RowSpans(before[self.starts], before[self.ends])


def over_spans(wanted: Aggregate, part: Partial, rows: pa.Table, spans: RowSpans) -> pa.Array:
    """Return an aggregate of each span.

    Parameters
    ----------
    wanted : Aggregate
        The aggregate; its columns by the names that they have here.
    part : Partial
        What reads it.
    rows : pa.Table
        The rows that spans are of.
    spans : RowSpans
        The spans.
    """
    counts = np.ones(rows.num_rows, np.bool_) if wanted.condition is None else flags(rows.column(wanted.condition))
    columns = {name: one(rows.column(name)) for name in wanted.columns}
    if columns and not (wanted.kind in ("first", "last") and not wanted.ignore_nulls):
        counts = counts & np.asarray(columns[wanted.order or wanted.columns[0]].is_valid())
    if not counts.all():
        spans, which = spans.among(counts), pa.array(np.flatnonzero(counts))
        columns = {name: column.take(which) for name, column in columns.items()}
    return part.read(_part_columns(wanted, columns, spans))


def _part_columns(wanted: Aggregate, columns: dict[str, pa.Array], spans: RowSpans) -> Columns:
    """Return the columns of a part, as far as it is read: of values without nulls, but for what is only chosen."""
    count = pa.array(spans.sizes)
    if wanted.column is None or wanted.kind == "count":
        return [count]
    values = columns[wanted.column]
    if wanted.kind in ("first", "last"):
        return [_values_at(values, spans.starts if wanted.kind == "first" else spans.ends - 1, spans)]
    if wanted.order is not None:
        return [_values_at(values, _extremes(columns[wanted.order], wanted.kind == "max_by", spans), spans)]
    if wanted.kind in ("min", "max"):
        if pa.types.is_floating(values.type):
            values = pa.array(np.asarray(values) + values.type.to_pandas_dtype()(0), values.type)  # -0.0 becomes 0.0
        return [_values_at(values, _extremes(values, wanted.kind == "max", spans), spans)]
    if wanted.kind == "variance":
        numbers = np.asarray(values.cast(pa.float64(), safe=False))
        both = np.stack(exact.squares(numbers), axis=1).ravel()
        return [count, _added_floats(numbers, spans), _added_floats(both, RowSpans(2 * spans.starts, 2 * spans.ends))]
    if pa.types.is_floating(values.type):
        return [count, _added_floats(np.asarray(values.cast(pa.float64())), spans)]
    if pa.types.is_decimal(values.type):
        return [count, _added_decimals(values, spans)]
    whole = np.asarray(values.cast(pa.int64()))
    limbs = _span_sums(np.stack([whole & _MASK, whole >> _BITS], axis=1), spans)
    return [count, pa.array(limbs[:, 1]), pa.array(limbs[:, 0])]


def _values_at(values: pa.Array, places: Ints, spans: RowSpans) -> pa.Array:
    """Return the value at a place of each span; null where it is empty."""
    is_empty = spans.sizes == 0
    return values.take(pa.array(np.where(is_empty, 0, places), mask=is_empty))


def _extremes(values: pa.Array, is_highest: bool, spans: RowSpans) -> Ints:
    (codes,) = sort_keys(values, SortTerm("", not is_highest, True))
    return highest(codes, spans)


def highest(codes: Ints, spans: RowSpans) -> Ints:
    """Return of each span the first place with its highest number; anything where it is empty.

    Examples
    --------
    >>> highest(np.array([3, 9, 9, 1]), RowSpans(np.array([0, 0, 3]), np.array([1, 4, 4]))).tolist()
    [0, 1, 3]
    """
    found = np.zeros(len(spans.starts), np.int64)
    levels = np.frexp(spans.sizes.astype(np.float64))[1] - 1  # below zero: empty
    best = np.arange(len(codes))  # at level k: of the 2**k places from each one on
    for level in range(int(levels.max(initial=-1)) + 1):
        length = 1 << level
        mine = np.flatnonzero(levels == level)
        # two spans of this length cover it
        found[mine] = _better(codes, best[spans.starts[mine]], best[spans.ends[mine] - length])
        best = _better(codes, best[:-length], best[length:])
    return found


def _better(codes: Ints, left: Ints, right: Ints) -> Ints:
    return np.where(codes[right] > codes[left], right, left)


# --- sums -------------------------------------------------------------------------------------------------------------


def _span_sums(limbs: Ints, spans: RowSpans) -> Ints:
    """Return the sum of each span's limbs, in normal form.

    A running sum may wrap around; the difference of two is what it should be, for a span's own sum fits.
    """
    running = np.zeros((len(limbs) + 1, limbs.shape[1]), np.int64)
    np.cumsum(limbs, axis=0, out=running[1:])
    return exact.normal(running[spans.ends] - running[spans.starts])


def _added_floats(values: npt.NDArray[np.float64], spans: RowSpans) -> pa.Array:
    """Return the exact sum of each span as :data:`exact.STATE`."""
    parts = [exact.to_state(exact.Sums(0, np.zeros((0, 1), np.int64), np.zeros(0, np.int8)))]
    for at in range(0, len(spans.starts), _AT_ONCE):
        starts, ends = spans.starts[at : at + _AT_ONCE], spans.ends[at : at + _AT_ONCE]
        first = int(starts[0])
        parts.append(exact.to_state(_sums(values[first : int(ends[-1])], RowSpans(starts - first, ends - first))))
    return pa.concat_arrays(parts)


def _sums(values: npt.NDArray[np.float64], spans: RowSpans) -> exact.Sums:
    special = np.zeros(len(spans.starts), np.int8)
    if not len(values):
        return exact.Sums(0, np.zeros((len(special), 1), np.int64), special)
    is_finite = np.isfinite(values)
    if not is_finite.all():
        infinite = ((exact.INFINITE, values == np.inf), (exact.NEGATIVE_INFINITE, values == -np.inf))
        for bit, is_so in ((exact.NAN, np.isnan(values)), *infinite):
            special |= np.where(spans.among(is_so).sizes > 0, np.int8(bit), np.int8(0))
        values = np.where(is_finite, values, 0.0)
    low, lower, middle, upper, places, width = exact.split(values)
    limbs, rows = np.zeros((len(values), width), np.int64), np.arange(len(values))
    for step, limb in enumerate((lower, middle, upper)):
        limbs[rows, places + step] = limb
    return exact.Sums(low, _span_sums(limbs, spans), special)


def _added_decimals(values: pa.Array, spans: RowSpans) -> pa.Array:
    """Return the exact sum of each span as a decimal of 256 bits."""
    wide = values.cast(pa.decimal128(38, values.type.scale))
    data = wide.buffers()[1]
    words = np.zeros((0, 2), np.int64) if data is None else np.frombuffer(data, np.int64).reshape(-1, 2)
    low, high = words[wide.offset : wide.offset + len(wide)].T
    limbs = _span_sums(np.stack([low & _MASK, (low >> _BITS) & _MASK, high & _MASK, high >> _BITS], axis=1), spans)
    sign = limbs[:, 3] >> _BITS  # what is above 128 bits
    sums = [limbs[:, 0] | limbs[:, 1] << _BITS, limbs[:, 2] | limbs[:, 3] << _BITS, sign, sign >> np.int64(63)]
    whole = pa.py_buffer(np.ascontiguousarray(np.stack(sums, axis=1)))
    return pa.Array.from_buffers(pa.decimal256(76, values.type.scale), len(sign), [None, whole])
