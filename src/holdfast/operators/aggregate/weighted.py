"""Aggregates over rows that may be retracted: what is added for a row is subtracted for the one that retracts it.

Counts and exact sums are numbers to which a row adds itself, or of which it is subtracted; so they stay parts
(:mod:`holdfast.operators.aggregate.parts`).  For the smallest and largest value, and the number of different ones, the
state counts each value: the next one must be known when the largest is retracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate import exact
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.collected import change_of
from holdfast.operators.aggregate.counting import flags
from holdfast.operators.aggregate.parts import Columns, Partial, RowGroups, part_of
from holdfast.operators.aggregate.shared_set import table_name
from holdfast.state import tables
from holdfast.state.keys import Ints, coded, numbers
from holdfast.state.step import Change, StateTable

ROWS = ""
"""Name of the part that counts the rows of a window that hold: its state column is ``__count``."""

_ODD = ("nan", "infinite", "negative")
"""Columns that count the numbers that are not finite: these cannot be subtracted from a sum."""

_BITS = (exact.NAN, exact.INFINITE, exact.NEGATIVE_INFINITE)


def retractable(part: Partial, kind: pa.DataType | None) -> Partial:
    """Return a part of counts and sums for rows of which some retract others.

    Parameters
    ----------
    part : Partial
        The part for rows that only come.
    kind : pa.DataType, optional
        Type of the values; None of a count of rows.
    """
    if kind is not None and pa.types.is_floating(kind) and len(part.fields) > 1:
        return _with_odd_numbers(part)
    return replace(part, made=lambda values, group: _difference(part, values, group))


def _difference(part: Partial, values: pa.Array | None, group: RowGroups) -> Columns:
    """Return the part of the rows that come, less that of the rows that are retracted."""
    retracted = _flags(group)
    if not retracted.any():
        return part.made(values, group)
    halves = [_part_of_rows(part, values, group, np.flatnonzero(which)) for which in (~retracted, retracted)]
    both = [pa.concat_arrays([came, _negative(went)]) for came, went in zip(*halves, strict=True)]
    every = np.arange(group.size)
    owners = np.concatenate([every, every])
    return part.merged(both, RowGroups(owners, group.size, np.zeros(len(owners), np.int64)))


def _part_of_rows(part: Partial, values: pa.Array | None, group: RowGroups, which: Ints) -> Columns:
    taken = None if values is None else values.take(pa.array(which))
    return part.made(taken, RowGroups(group.groups[which], group.size, group.ticks[which]))


def _flags(group: RowGroups) -> npt.NDArray[np.bool_]:
    return np.zeros(len(group.groups), np.bool_) if group.retracted is None else group.retracted


def _negative(column: pa.Array) -> pa.Array:
    if column.type != exact.STATE:
        return pc.negate(column)
    limbs = column.field("limbs")
    lists = pa.ListArray.from_arrays(limbs.offsets, pc.negate(limbs.values))
    return pa.StructArray.from_arrays([column.field("low"), lists, column.field("special")], fields=list(exact.STATE))


def _with_odd_numbers(part: Partial) -> Partial:
    """Return a part of sums of floating point, in which NaN and the infinities are counted beside the sum."""
    width = len(part.fields)

    def of_rows(values: pa.Array | None, group: RowGroups) -> Columns:
        assert values is not None
        numbers = np.asarray(values.fill_null(0.0))
        which = (np.isnan(numbers), numbers == np.inf, numbers == -np.inf)
        is_odd = which[0] | which[1] | which[2]
        weights = np.where(_flags(group), -1, 1)
        counted = []
        for one in which:
            counts = np.zeros(group.size, np.int64)
            np.add.at(counts, group.groups[one], weights[one])
            counted.append(pa.array(counts))
        finite = pc.if_else(pa.array(is_odd), pa.scalar(0.0, values.type), values) if is_odd.any() else values
        return [*_difference(part, finite, group), *counted]

    def of_parts(columns: Columns, group: RowGroups) -> Columns:
        counted = []
        for column in columns[width:]:
            counts = np.zeros(group.size, np.int64)
            np.add.at(counts, group.groups, numbers(column))
            counted.append(pa.array(counts))
        return [*part.merged(columns[:width], group), *counted]

    def read(columns: Columns) -> pa.Array:
        special = np.zeros(len(columns[0]), np.int8)
        for bit, column in zip(_BITS, columns[width:], strict=True):
            special[numbers(column) > 0] |= bit
        sums = columns[1]
        marked = [sums.field("low"), _whole_lists(sums.field("limbs")), pa.array(special)]
        return part.read([columns[0], pa.StructArray.from_arrays(marked, fields=list(exact.STATE))])

    fields = [*part.fields, *((name, pa.int64()) for name in _ODD)]
    return Partial(fields, part.result, of_rows, of_parts, read)


def _whole_lists(lists: pa.Array) -> pa.Array:
    """Return lists that begin at the beginning of their values."""
    offsets = np.asarray(lists.offsets)
    return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), lists.flatten())


@dataclass(frozen=True)
class CountedValues:
    """The values of a column, each with the number of rows that have it.

    Parameters
    ----------
    column : str
        Whose values.
    type : pa.DataType
        Of the values.
    condition : str, optional
        The Boolean column that says which rows count.
    aggregates : mapping of str to str
        Aggregate -> ``min``, ``max`` or ``distinct_count``.
    retracted : str
        The Boolean column that is true for a row that is retracted.
    """

    column: str
    type: pa.DataType
    condition: str | None
    aggregates: Mapping[str, str]
    retracted: str

    @property
    def table(self) -> str:
        """Name of the state table."""
        column = table_name(self.column)
        return f"{column}__counted" if self.condition is None else f"{column}__{self.condition}__counted"

    def fields(self) -> list[pa.Field]:
        """Return the columns of the state table after key and start; the value identifies a row."""
        return [pa.field("value", self.type), pa.field("rows", pa.int64())]

    def results(self) -> dict[str, pa.DataType]:
        """Return the type of each aggregate."""
        return {name: pa.int64() if kind == "distinct_count" else self.type for name, kind in self.aggregates.items()}

    def fresh(self, values: pa.Array, rows: pa.Table) -> tuple[Ints, pa.Table]:
        """Return the rows that count, and value and weight of all rows."""
        counts = np.asarray(values.is_valid())
        if self.condition is not None:
            counts = counts & flags(rows.column(self.condition))
        weights = np.where(flags(rows.column(self.retracted)), -1, 1)
        return np.flatnonzero(counts), pa.table({"value": values, "rows": weights})

    def follow(
        self, known: pa.Table, fresh: pa.Table, windows: Ints, starts: Ints, closing: npt.NDArray[np.bool_],
        keys: Sequence[pa.Array], table: StateTable,
    ) -> tuple[dict[str, pa.Array], Change]:  # fmt: skip
        """Return each aggregate of each window, and what changes in the table of values.

        Parameters
        ----------
        known : pa.Table
            Rows of the state table, of these windows.
        fresh : pa.Table
            The new values and their weights.
        windows : ndarray of int64
            Window of each known and then of each fresh row.
        starts : ndarray of int64
            Start of each window.
        closing : ndarray of bool
            For each window whether it is final.
        keys : sequence of pa.Array
            Key columns of each window.
        table : StateTable
            The table of values.
        """
        count = known.num_rows
        names = [field.name for field in self.fields()]
        entries = tables.united([known.select(names), fresh.select(names)]).combine_chunks()
        codes, first = coded(pa.table({"window": windows, "value": entries.column("value")}))
        owners, weights = windows[first], numbers(entries.column("rows"))
        after, before = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        np.add.at(after, codes, weights)
        before[codes[:count]] = weights[:count]
        results = self._read(entries.column("value"), first, owners, after > 0, len(starts))
        stays = np.flatnonzero((after != before) & (after != 0) & ~closing[owners])
        gone = (after[codes[:count]] == 0) | closing[windows[:count]]
        put = [entries.column("value").take(pa.array(first[stays])), pa.array(after[stays])]
        return results, change_of(known, gone, owners[stays], starts, keys, put, table)

    def _read(
        self, values: pa.ChunkedArray, first: Ints, owners: Ints, holds: npt.NDArray[np.bool_], size: int
    ) -> dict[str, pa.Array]:  # fmt: skip
        group = RowGroups(owners[holds], size, np.zeros(int(holds.sum()), np.int64))
        there = values.take(pa.array(first[holds])).combine_chunks()
        there = there if isinstance(there, pa.Array) else pa.concat_arrays(there.chunks)
        found: dict[str, pa.Array] = {}
        for name, kind in self.aggregates.items():
            if kind == "distinct_count":
                found[name] = pa.array(np.bincount(group.groups, minlength=size).astype(np.int64))
            elif (part := part_of(name, Aggregate(kind, self.column), self.type)) is not None:
                (found[name],) = part.made(there, group)
        return found


def counted_values(
    counts: Sequence[tuple[str, str, str, pa.DataType, str | None]], retracted: str
) -> list[CountedValues]:
    """Return the tables of some aggregates: one for each column and condition.

    Parameters
    ----------
    counts : sequence of (str, str, str, pa.DataType, str or None)
        Aggregate, its kind, its column, the column's type, and the column of the condition.
    retracted : str
        The Boolean column that is true for a row that is retracted.
    """
    of: dict[tuple[str, str | None], dict[str, str]] = {}
    types: dict[str, pa.DataType] = {}
    for name, aggregate, column, kind, condition in counts:
        of.setdefault((column, condition), {})[name] = aggregate
        types[column] = kind
    return [
        CountedValues(column, types[column], condition, kinds, retracted) for (column, condition), kinds in of.items()
    ]
