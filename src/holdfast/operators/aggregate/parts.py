"""Parts: what the state holds of each aggregate for a window, how parts are made, merged and read.

Every part is a set of columns with one value per group, and three functions over all groups at once: ``made`` of rows,
``merged`` of parts, ``read`` as the result.  Merging is associative and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate import exact, histogram, hyperloglog
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.state import keyed
from holdfast.state.keys import Ints

Columns = list[pa.Array]
_LOW = np.int64(2**32)


@dataclass(frozen=True)
class RowGroups:
    """Rows (or parts) and the group of each.

    Parameters
    ----------
    groups : ndarray of int64
        For each row its group, below ``size``.
    size : int
        Number of groups.
    ticks : ndarray of int64
        For each row its time; zeros where there is none.
    retracted : ndarray of bool, optional
        Which rows retract others; None: rows only come.
    """

    groups: Ints
    size: int
    ticks: Ints
    retracted: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Partial:
    """What the state holds of one aggregate.

    Parameters
    ----------
    fields : sequence of (suffix, type)
        Columns of the windows table.
    result : pa.DataType
        Type of the aggregate.
    made : callable of (values, RowGroups) -> columns
        Of rows; ``values`` is None for a count of rows, and a struct where an aggregate is over several columns.
    merged : callable of (columns, RowGroups) -> columns
        Of parts; the time of a part is of no account.
    read : callable of (columns) -> array
        The aggregate.
    """

    fields: Sequence[tuple[str, pa.DataType]]
    result: pa.DataType
    made: Callable[[pa.Array | None, RowGroups], Columns]
    merged: Callable[[Columns, RowGroups], Columns]
    read: Callable[[Columns], pa.Array]

    def under(self, condition: str | None) -> Partial:
        """Return the part whose columns carry the name of a condition: with another one they are others."""
        if condition is None:
            return self
        return replace(self, fields=[(f"{condition}__{suffix}", kind) for suffix, kind in self.fields])


def values_type(name: str, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of the values that an aggregate is over: of several columns a struct, None of none."""
    fields = [keyed.field_of(schema, column, name) for column in aggregate.columns]
    return pa.struct(fields) if len(fields) > 1 else fields[0].type if fields else None


def part_of(name: str, aggregate: Aggregate, kind: pa.DataType | None) -> Partial | None:
    """Return the part of an aggregate over a column of a type; None where the state keeps the values themselves.

    Raises
    ------
    InvalidPipeline
        If the aggregate cannot work with the type.
    """
    if aggregate.kind in ("collect", "distinct_count"):
        if aggregate.kind == "distinct_count" and pa.types.is_nested(kind):
            raise _wrong_type(name, aggregate, kind, "whose values cannot be distinguished", "a part of it")
        return None
    if aggregate.kind == "count":
        return _COUNT
    if kind is None:
        raise InvalidPipeline(f"{name}=hf.{aggregate.kind}() names no column.", do="name one.")
    if aggregate.kind == "approx_count_distinct":
        if not hyperloglog.can_hash(kind):
            raise _wrong_type(name, aggregate, kind, "whose values cannot be distinguished", "a part of it")
        return _approximate(hyperloglog.precision_of(aggregate.error))
    if aggregate.kind in ("max_by", "min_by"):
        of_value, of_order = kind.field(0).type, kind.field(1).type
        if pa.types.is_nested(of_order):
            raise InvalidPipeline(
                f"{name}=hf.{aggregate.kind}(..., {aggregate.order!r}) is by a column of type {of_order}.",
                why="it is of a type which has no order.",
                do='take a part of it: stream | hf.select("*", x="...") '
                f'| hf.aggregate(..., {name}=hf.{aggregate.kind}({aggregate.column!r}, "x"))',
            )
        return _by_order(of_value, of_order, aggregate.kind.removesuffix("_by"))
    if aggregate.kind in ("first", "last"):
        return _edge(kind, is_last=aggregate.kind == "last", ignore_nulls=aggregate.ignore_nulls)
    if aggregate.kind in ("min", "max"):
        if pa.types.is_nested(kind):
            raise _wrong_type(name, aggregate, kind, "which has no order", "a part of it")
        return _extreme(kind, aggregate.kind)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise _wrong_type(name, aggregate, kind, "which is no number", "a number made of it")
    if aggregate.kind == "sum":
        return _sum(name, kind)
    if aggregate.kind == "mean":
        return _mean(kind)
    if aggregate.kind == "variance":
        return _variance(is_population=aggregate.is_population)
    return _quantiles(aggregate)


def _wrong_type(name: str, aggregate: Aggregate, kind: pa.DataType | None, why: str, cure: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{name}=hf.{aggregate.kind}({aggregate.column!r}) names a column of type {kind}.",
        why=f"it is of a type {why}.",
        do=f'aggregate {cure}: stream | hf.select("*", x="...") | hf.aggregate(..., {name}=hf.{aggregate.kind}("x"))',
    )


# --- counting and adding ----------------------------------------------------------------------------------------------


def _valid(values: pa.Array, group: RowGroups) -> tuple[pa.Array, Ints]:
    if not values.null_count:
        return values, group.groups
    return values.drop_null(), group.groups[np.asarray(values.is_valid())]


def _floats(values: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(values.cast(pa.float64(), safe=False)) if len(values) else np.zeros(0)


def _ints(array: pa.Array) -> Ints:
    return np.asarray(array).astype(np.int64, copy=False)


def _add(numbers: Ints, groups: Ints, size: int) -> Ints:
    out = np.zeros(size, np.int64)
    np.add.at(out, groups, numbers)
    return out


def _count_made(values: pa.Array | None, group: RowGroups) -> Columns:
    groups = group.groups if values is None else _valid(values, group)[1]
    return [pa.array(np.bincount(groups, minlength=group.size).astype(np.int64))]


_COUNT = Partial(
    [("count", pa.int64())],
    pa.int64(),
    _count_made,
    lambda columns, group: [pa.array(_add(_ints(columns[0]), group.groups, group.size))],
    lambda columns: columns[0],
)


def _whole_made(values: pa.Array, groups: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the sums of integers in two halves, upper * 2**32 + lower with the lower in [0, 2**32)."""
    numbers = _ints(values.cast(pa.int64()) if values.type != pa.uint64() else values)
    if len(numbers) and max(int(numbers.max()), -int(numbers.min())) < 2**62 // len(numbers):
        total = _add(numbers, groups, size)  # no sum can overflow
        return total >> 32, total & (_LOW - 1)
    return _carry(_add(numbers >> 32, groups, size), _add(numbers & (_LOW - 1), groups, size))


def _carry(upper: Ints, lower: Ints) -> tuple[Ints, Ints]:
    return upper + (lower >> 32), lower & (_LOW - 1)


def _sum(name: str, kind: pa.DataType) -> Partial:
    result = (
        pa.int64() if pa.types.is_integer(kind)
        else pa.float64() if pa.types.is_floating(kind)
        else pa.decimal128(min(38, kind.precision + 10), kind.scale)
    )  # fmt: skip
    adding = _adding(kind)
    if pa.types.is_integer(kind):
        read = lambda columns: _read_whole(name, columns)  # noqa: E731
    elif pa.types.is_floating(kind):
        read = lambda columns: _mask(exact.rounded(_sums(columns[1]))[0], columns[0])  # noqa: E731
    else:
        read = lambda columns: _read_decimal(name, columns, result)  # noqa: E731
    return Partial(adding.fields, result, adding.made, adding.merged, read)


def _adding(kind: pa.DataType) -> Partial:
    """Return the part that counts and adds the values of a column: what sum and mean share.  It is read by them."""

    def made(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        values, groups = _valid(values, group)
        count = pa.array(np.bincount(groups, minlength=group.size).astype(np.int64))
        if pa.types.is_integer(kind):
            return [count, *map(pa.array, _whole_made(values, groups, group.size))]
        if pa.types.is_floating(kind):
            return [count, exact.to_state(exact.summed(_floats(values), groups, group.size))]
        return [count, _decimals(values, groups, group.size)]

    def merged(columns: Columns, group: RowGroups) -> Columns:
        size = group.size
        count = pa.array(_add(_ints(columns[0]), group.groups, size))
        if pa.types.is_integer(kind):
            halves = (_add(_ints(column), group.groups, size) for column in columns[1:])
            return [count, *map(pa.array, _carry(*halves))]
        if pa.types.is_floating(kind):
            return [count, exact.to_state(exact.merged(columns[1], group.groups, size))]
        return [count, _decimals(columns[1], group.groups, size)]

    states: list[tuple[str, pa.DataType]] = (
        [("upper", pa.int64()), ("lower", pa.int64())] if pa.types.is_integer(kind)
        else [("sum", exact.STATE)] if pa.types.is_floating(kind)
        else [("sum", pa.decimal256(76, kind.scale))]
    )  # fmt: skip
    return Partial([("count", pa.int64()), *states], pa.null(), made, merged, lambda columns: columns[0])


def _decimals(values: pa.Array, groups: Ints, size: int) -> pa.Array:
    wide = pa.decimal256(76, values.type.scale)
    table = pa.table({"g": groups, "x": values.cast(wide)})
    found = table.group_by("g", use_threads=False).aggregate([("x", "sum")])
    where = np.full(size, -1)
    where[_ints(found.column("g").combine_chunks())] = np.arange(found.num_rows)
    taken = found.column("x_sum").combine_chunks().take(pa.array(where, mask=where < 0))
    return pc.fill_null(taken, pa.scalar(0).cast(wide))


def _sums(states: pa.Array) -> exact.Sums:
    return exact.merged(states, np.arange(len(states)), len(states))


def _mask(values: npt.NDArray[np.float64], count: pa.Array, least: int = 1) -> pa.Array:
    return pa.array(values, mask=_ints(count) < least)


def _read_whole(name: str, columns: Columns) -> pa.Array:
    upper, lower = _ints(columns[1]), _ints(columns[2])
    if ((upper < -(2**31)) | (upper >= 2**31)).any():
        raise _overflow(name, "BIGINT")
    return pa.array(upper * _LOW + lower, mask=_ints(columns[0]) == 0)


def _read_decimal(name: str, columns: Columns, result: pa.DataType) -> pa.Array:
    try:
        fit = columns[1].cast(result)
    except pa.ArrowInvalid as error:
        raise _overflow(name, str(result)) from error
    return pc.if_else(pa.array(_ints(columns[0]) > 0), fit, pa.scalar(None, result))


def _overflow(name: str, kind: str) -> BadRow:
    return BadRow(
        f"the sum {name!r} of a window does not fit in {kind}.",
        why="it is exact up to there and is not rounded or wrapped.",
        do='sum a wider type: stream | hf.select("*", x="cast(x as DECIMAL(38, 0))"), or as DOUBLE.',
    )


def _mean(kind: pa.DataType) -> Partial:
    adding = _adding(kind)

    def read(columns: Columns) -> pa.Array:
        count = np.maximum(_ints(columns[0]), 1)
        if pa.types.is_integer(kind):
            total = _ints(columns[1]) * 2.0**32 + _ints(columns[2])
        elif pa.types.is_floating(kind):
            total = exact.rounded(_sums(columns[1]))[0]
        else:
            total = _floats(columns[1])
        return _mask(total / count, columns[0])

    return Partial(adding.fields, pa.float64(), adding.made, adding.merged, read)


def _variance(*, is_population: bool) -> Partial:
    def made(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        values, groups = _valid(values, group)
        numbers, size = _floats(values), group.size
        product, error = exact.squares(numbers)
        count = pa.array(np.bincount(groups, minlength=size).astype(np.int64))
        square = exact.summed(np.concatenate([product, error]), np.concatenate([groups, groups]), size)
        return [count, exact.to_state(exact.summed(numbers, groups, size)), exact.to_state(square)]

    def merged(columns: Columns, group: RowGroups) -> Columns:
        count = pa.array(_add(_ints(columns[0]), group.groups, group.size))
        return [count, *(exact.to_state(exact.merged(sums, group.groups, group.size)) for sums in columns[1:])]

    def read(columns: Columns) -> pa.Array:
        count = _ints(columns[0])
        least = 1 if is_population else 2
        n = np.maximum(count, least).astype(np.float64)
        spread = exact.spread(n, exact.rounded(_sums(columns[1])), exact.rounded(_sums(columns[2])))
        return _mask(np.maximum(spread, 0.0) / (n if is_population else n - 1), columns[0], least)

    fields = [("count", pa.int64()), ("sum", exact.STATE), ("squares", exact.STATE)]
    return Partial(fields, pa.float64(), made, merged, read)


# --- choosing ---------------------------------------------------------------------------------------------------------


def _extreme(kind: pa.DataType, which: str) -> Partial:
    is_floating = pa.types.is_floating(kind)

    def chosen(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        values, groups = _valid(values, group)
        is_nan = np.zeros(group.size, np.bool_)
        if is_floating and len(values):
            numbers = np.asarray(values) + values.type.to_pandas_dtype()(0)  # -0.0 becomes 0.0: they are equal
            odd = np.isnan(numbers)
            if odd.any():
                is_nan[groups[odd]] = True
                numbers, groups = numbers[~odd], groups[~odd]
            values = pa.array(numbers, kind)
        table = pa.table({"g": groups, "x": values})
        best = table.group_by("g", use_threads=False).aggregate([("x", which)])
        where = np.full(group.size, -1)
        where[_ints(best.column("g").combine_chunks())] = np.arange(best.num_rows)
        taken = best.column(f"x_{which}").combine_chunks().take(pa.array(where, mask=where < 0))
        if is_nan.any():  # NaN is larger than every number
            taken = pc.if_else(pa.array(is_nan & ((where < 0) | (which == "max"))), pa.scalar(np.nan, kind), taken)
        return [taken.cast(kind)]

    return Partial(
        [(which, kind)], kind, chosen, lambda columns, group: chosen(columns[0], group), lambda columns: columns[0]
    )


def _edge(kind: pa.DataType, *, is_last: bool, ignore_nulls: bool) -> Partial:
    def chosen(values: pa.Array, ticks: Ints, counts: npt.NDArray[np.bool_], group: RowGroups) -> Columns:
        rows = np.flatnonzero(counts)
        times = ticks[rows]
        if len(times) > 1 and (np.diff(times) < 0).any():
            rows = rows[np.argsort(times, kind="stable")]  # rows of one time stay in the order of arrival
        if not is_last:
            rows = rows[::-1]
        which = np.full(group.size, -1)
        which[group.groups[rows]] = rows  # of repeated indices the last assignment stays
        is_empty = which < 0
        at = np.where(is_empty, 0, ticks[which]) if len(ticks) else np.zeros(group.size, np.int64)
        taken = values.take(pa.array(which, mask=is_empty))
        return [taken, pa.array(at), pa.array(~is_empty)]

    def made(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        counts = np.asarray(values.is_valid()) if ignore_nulls else np.ones(len(values), np.bool_)
        return chosen(values, group.ticks, counts, group)

    def merged(columns: Columns, group: RowGroups) -> Columns:
        return chosen(columns[0], _ints(columns[1]), np.asarray(columns[2]), group)

    fields = [("value", kind), ("time", pa.int64()), ("is_set", pa.bool_())]
    return Partial(fields, kind, made, merged, lambda columns: columns[0])


def _by_order(kind: pa.DataType, of_order: pa.DataType, which: str) -> Partial:
    """Return the part that keeps the value of the row with the highest or lowest order, with order and time."""
    extreme = _extreme(of_order, which)

    def pick(values: pa.Array, orders: pa.Array, ticks: Ints, group: RowGroups) -> Columns:
        rows = np.flatnonzero(np.asarray(orders.is_valid()))
        there, groups = orders.take(pa.array(rows)), group.groups[rows]
        (best,) = extreme.made(there, RowGroups(groups, group.size, ticks[rows]))
        is_best = _equal(there, best.take(pa.array(groups)))
        rows = rows[is_best]
        times = ticks[rows]
        if len(times) > 1 and (np.diff(times) < 0).any():
            rows = rows[np.argsort(times, kind="stable")]  # rows of one time stay in the order of arrival
        found = np.full(group.size, -1)
        found[group.groups[rows[::-1]]] = rows[::-1]  # of repeated indices the last assignment stays
        is_empty = found < 0
        at = np.where(is_empty, 0, ticks[found]) if len(ticks) else np.zeros(group.size, np.int64)
        return [values.take(pa.array(found, mask=is_empty)), best, pa.array(at)]

    def of_rows(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        return pick(values.field(0), values.field(1), group.ticks, group)

    def of_parts(columns: Columns, group: RowGroups) -> Columns:
        return pick(columns[0], columns[1], _ints(columns[2]), group)

    fields = [("value", kind), ("order", of_order), ("time", pa.int64())]
    return Partial(fields, kind, of_rows, of_parts, lambda columns: columns[0])


def _equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns without nulls are equal; NaN is equal to itself."""
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return np.asarray(same)


def _approximate(precision: int) -> Partial:
    """Return the part that counts different values; its column says how many registers there are."""

    def of_rows(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        values, groups = _valid(values, group)
        return [hyperloglog.sketches_of(values, groups, group.size, precision)]

    return Partial(
        [(f"registers_{precision}", hyperloglog.STATE)],
        pa.int64(),
        of_rows,
        lambda columns, group: [hyperloglog.merge(columns[0], group.groups, group.size, precision)],
        lambda columns: hyperloglog.counts(columns[0], precision),
    )


def _quantiles(aggregate: Aggregate) -> Partial:
    octave = histogram.buckets_per_octave(aggregate.error)

    def made(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        values, groups = _valid(values, group)
        return [histogram.made(_floats(values), groups, group.size, octave)]

    def read(columns: Columns) -> pa.Array:
        found = histogram.quantiles(columns[0], aggregate.ranks, octave)
        is_empty = np.diff(_ints(columns[0].field("buckets").offsets)) == 0
        if aggregate.is_single:
            return pa.array(found[:, 0], mask=is_empty)
        width = len(aggregate.ranks)
        offsets = pa.array(np.arange(len(found) + 1, dtype=np.int32) * width)
        lists = pa.ListArray.from_arrays(offsets, pa.array(found.ravel()))
        return pc.if_else(pa.array(~is_empty), lists, pa.scalar(None, lists.type)) if is_empty.any() else lists

    return Partial(
        [("histogram", histogram.STATE)],
        pa.float64() if aggregate.is_single else pa.list_(pa.float64()),
        made,
        lambda columns, group: [histogram.merged(columns[0], group.groups, group.size)],
        read,
    )


def state_fields(parts: Mapping[str, Partial]) -> list[pa.Field]:
    """Return the columns of the windows table that all parts need."""
    return [pa.field(f"{name}__{suffix}", kind) for name, part in parts.items() for suffix, kind in part.fields]
