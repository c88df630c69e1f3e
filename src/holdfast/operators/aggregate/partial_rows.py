"""Partial rows: what a task sends in place of its rows, one for each key, where that is exact and pays (design/0064).

The parts of aggregates are merged exactly, whoever has made them.  So a task may make them of its rows before they go
to the buckets of their keys.  Only where nothing depends on the order in which rows arrive, nor on bounds: these are
known to the bucket alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators.aggregate import cutting
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.collected import listed_values
from holdfast.operators.aggregate.counting import flags
from holdfast.operators.aggregate.cutting import WindowCut
from holdfast.operators.aggregate.open import WindowsTable
from holdfast.operators.aggregate.parts import RowGroups, state_fields
from holdfast.operators.aggregate.ranking import RankedRows, sort_keys
from holdfast.operators.aggregate.shared_set import SharedSet
from holdfast.operators.aggregate.touched import LeftOut
from holdfast.state import keyed, tables
from holdfast.state.keys import Ints, by_code, coded, numbers, one
from holdfast.state.rows import rows_at
from holdfast.state.step import LEFT_OUT, PLACE, ROW_COUNT, UNBOUNDED, Arrivals
from holdfast.state.timeline import Promise, bounds_before

Flags = npt.NDArray[np.bool_]
ROWS_MIN = 1024
"""Fewer rows are not worth the calls."""

SAMPLED = 1024
"""Rows that show whether keys, and the values of distinct counts, come again and again."""

_ORDERLESS = frozenset(("count", "sum", "mean", "variance", "min", "max", "quantiles", "approx_count_distinct"))
"""Aggregates that are functions of the set of values, each as often as it comes."""


@dataclass(frozen=True)
class PartialRows:
    """Makes partial rows for a table of windows.

    Parameters
    ----------
    table : WindowsTable
        What the state holds; of distinct counts it has no other values.
    required : sequence of str
        Columns without which a row is refused: a chunk with such a row is sent as it is.
    """

    table: WindowsTable
    required: Sequence[str]

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """Key, number of rows, parts as in the state table, and a list of values for each table of them."""
        keys = [column.with_nullable(True) for column in self.table.key]
        lists = [pa.field(kept.table, pa.list_(kept.type)) for kept in self.table.kept]
        lists += [pa.field(shared.table, pa.list_(pa.struct(shared.fields()))) for shared in self.table.sets]
        return pa.schema([*keys, pa.field(ROW_COUNT, pa.int64()), *state_fields(self.table.parts), *lists])

    def combine(self, rows: pa.Table) -> pa.Table | None:
        """Return a partial row for each key, in the order of their first rows; None where it does not pay."""
        if rows.num_rows < ROWS_MIN or any(rows.column(name).null_count for name in self.required):
            return None
        sample = rows.slice(0, SAMPLED)
        of_sample = _key_codes(sample, self.table.key)
        if not self._repeats(sample, *of_sample):
            return None
        codes, first = _key_codes(rows, self.table.key)
        tried = self._combine_all(sample, *of_sample)
        if len(first) > rows.num_rows // 2 or len(first) * tried.nbytes > tried.num_rows * rows.nbytes:
            return None
        return self._combine_all(rows, codes, first)

    def _combine_all(self, rows: pa.Table, codes: Ints, first: Ints) -> pa.Table:
        """Return the partial rows of some rows, whose keys are numbered."""
        size = len(first)
        keys = [one(rows.column(name)).take(pa.array(first)) for name in self.table.key.names]
        counts = pa.array(np.bincount(codes, minlength=size).astype(np.int64))
        made = self.table.parts_of_rows(rows, RowGroups(codes, size, np.zeros(len(codes), np.int64)))
        parts = [array for name in self.table.parts for array in made[name]]
        lists = [_lists_of(values, codes[counting], size) for counting, values in self._values(rows)]
        return pa.Table.from_arrays([*keys, counts, *parts, *lists], schema=self.partial_schema)

    def _repeats(self, sample: pa.Table, codes: Ints, first: Ints) -> bool:
        """Return whether keys come several times each, and with each key the values of distinct counts."""
        if len(first) > sample.num_rows // 2:
            return False
        return all(
            len(_pairs(values, codes[counting])[1]) <= len(counting) // 2 for counting, values in self._values(sample)
        )

    def _values(self, rows: pa.Table) -> Iterator[tuple[Ints, pa.Array]]:
        """Yield for each table of values which rows have some for it, and these: of shared ones with their flags."""
        for kept in self.table.kept:
            yield kept.fresh(rows)
        for shared in self.table.sets:
            counting, every = shared.fresh(one(rows.column(shared.column)), rows)
            columns = [one(column).take(pa.array(counting)) for column in every.columns]
            yield counting, pa.StructArray.from_arrays(columns, fields=shared.fields())


def _key_codes(rows: pa.Table, key: pa.Schema) -> tuple[Ints, Ints]:
    """Number the keys of rows, as :func:`coded` does."""
    if not key.names:
        return np.zeros(rows.num_rows, np.int64), np.zeros(min(1, rows.num_rows), np.int64)
    return coded(rows.select(key.names))


def _takes_all(cut: WindowCut) -> bool:
    """Return whether windows take a row whatever its time and its number are."""
    return cut.kind == "total" or (cut.kind == "timer" and not cut.counts)


def _have_one_form(types: Iterable[pa.DataType]) -> bool:
    """Return whether equal values look the same: of 0.0 and -0.0 the first to arrive is the one that is kept."""
    return not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in types)


def _are_distinct(names: Sequence[str]) -> bool:
    """Return whether no name, of a user's column say, comes twice."""
    return len(set(names)) == len(names)


def _pairs(values: pa.Array, groups: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values of each group, as :func:`coded` does; flags beside a value are of no account."""
    values = values.field(0) if pa.types.is_struct(values.type) else values
    return coded(pa.table({"group": groups, "value": values}))


def _lists_of(values: pa.Array, groups: Ints, size: int) -> pa.Array:
    """Return the distinct values of each group as a list, each with the flags that any of its rows has."""
    codes, first = _pairs(values, groups)
    order = by_code(groups[first], size)
    chosen = values.take(pa.array(first[order]))
    if pa.types.is_struct(values.type):
        met = [np.bincount(codes[flags(flag)], minlength=len(first)) > 0 for flag in values.flatten()[1:]]
        columns = [chosen.field(0), *(pa.array(flag[order]) for flag in met)]
        chosen = pa.StructArray.from_arrays(columns, fields=list(values.type))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups[first], minlength=size))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), chosen)


def partial_rows(
    table: WindowsTable, aggregates: Iterable[Aggregate], required: Sequence[str]
) -> PartialRows | None:  # fmt: skip
    """Return what makes partial rows; None where state or output could depend on it.

    Parameters
    ----------
    table : WindowsTable
        What the state holds, of rows that only come and are not ranked.
    aggregates : iterable of Aggregate
        The aggregates.
    required : sequence of str
        Columns without which a row is refused.
    """
    if not _takes_all(table.cut):
        return None
    if not {one.kind for one in aggregates} <= _ORDERLESS | {"distinct_count"}:
        return None
    sets = [shared for shared in table.sets if isinstance(shared, SharedSet)]
    types = [*table.key.types, *(kept.type for kept in table.kept), *(shared.type for shared in sets)]
    made = PartialRows(table, required)
    return made if _have_one_form(types) and _are_distinct([*made.partial_schema.names, PLACE]) else None


# --- the first rows of a window ---------------------------------------------------------------------------------------


RANKS_MAX = 16
"""For more ranks in windows of event time rows are sent as they are: each takes a pass."""

_WIDE = 2**38
"""Numbers below it, and the number of a group of a chunk's rows, fit 62 bits together."""


@dataclass(frozen=True)
class RankableRows:
    """Leaves out the rows that cannot be among the first of their window, because others of a task are.

    In a window of event time such a row is beaten by rows that are not older, and if it is in time, so are they: none
    of the chunk is below the bound that the rows before it in the chunk give.

    Parameters
    ----------
    table : WindowsTable
        What the state holds.
    ranked : RankedRows
        The ranks.
    schema : pa.Schema
        Of the rows.
    time : str, optional
        Their timestamp column, where event time decides.
    promise : Promise
        What the order of rows promises.
    required : sequence of str
        Columns without which a row is refused.
    """

    table: WindowsTable
    ranked: RankedRows
    schema: pa.Schema
    time: str | None
    promise: Promise
    required: Sequence[str]

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """Whole rows with their places, how many rows each stands for, and the times of those, where they decide."""
        own = [pa.field(name, pa.int64()) for name in (PLACE, ROW_COUNT)]
        return pa.schema(
            [*self.schema, *own, *([] if self.time is None else [pa.field(LEFT_OUT, pa.list_(pa.int64()))])]
        )

    def combine(self, rows: pa.Table) -> pa.Table | None:
        """Return the rows that may have a rank, in their order; None where that leaves out too few."""
        if rows.num_rows < ROWS_MIN or any(rows.column(name).null_count for name in self.required):
            return None
        sample = rows.slice(0, SAMPLED)
        if _leaves_few_out(self._may_rank(sample, _key_codes(sample, self.table.key)[0])):
            return None
        codes, first = _key_codes(rows, self.table.key)
        may_rank = self._may_rank(rows, codes)
        if may_rank is None or _leaves_few_out(may_rank):
            return None
        may_rank[first] = True  # the first row of a key stands for those that are left out: their bound is its bound
        places, others = np.flatnonzero(may_rank), np.flatnonzero(~may_rank)
        holders = np.searchsorted(places, first)[codes[others]]
        counts = 1 + np.bincount(holders, minlength=len(places))
        columns = [*rows_at(rows, places).columns, pa.array(places), pa.array(counts)]
        if self.time is not None:
            times = keyed.ticks(rows.column(self.time))[others]
            order = np.lexsort((times, holders))
            offsets = np.concatenate([[0], np.cumsum(counts - 1)]).astype(np.int32)
            columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(times[order])))
        return pa.Table.from_arrays(columns, schema=self.partial_schema)

    def _may_rank(self, rows: pa.Table, codes: Ints) -> Flags | None:
        """Return which rows may have a rank; None where some may be late by the rows before them."""
        if self.time is None:
            return ~_behind(self._strengths(rows), codes, self.ranked.n)
        ticks = keyed.ticks(rows.column(self.time))
        if _goes_back(ticks, self.promise.bounds_after(ticks), codes):
            return None
        groups, panes = cutting.grouped(self.table.cut, codes, ticks, codes, 0)
        if (ticks[1:] >= ticks[:-1]).all():
            order = len(groups) - 1 - by_code(groups[::-1], len(panes))
        else:
            order = np.lexsort((~ticks, groups))
        may_rank = np.empty(len(order), np.bool_)
        may_rank[order] = ~_behind_earlier(self._strengths(rows)[order], groups[order], self.ranked.n)
        return may_rank

    def _strengths(self, rows: pa.Table) -> Ints:
        """Return a number for each row's order, from 0 on; the lower ones are first, and equal ones are equal."""
        terms = [key for term in self.ranked.order for key in sort_keys(one(rows.column(term.column)), term)]
        low, high = int(terms[0].min()), int(terms[0].max())
        if len(terms) == 1 and high - low < _WIDE:
            return terms[0] - low
        order = np.lexsort(terms[::-1])
        differs = np.zeros(len(order), np.bool_)
        for term in terms:
            differs[1:] |= term[order][1:] != term[order][:-1]
        strengths = np.empty(len(order), np.int64)
        strengths[order] = np.cumsum(differs)
        return strengths


def _leaves_few_out(may_rank: Flags | None) -> bool:
    return may_rank is None or 4 * int(may_rank.sum()) > 3 * len(may_rank)


def _goes_back(ticks: Ints, says: Ints, codes: Ints) -> bool:
    """Return whether a row is below the bound that rows of its key before it give."""
    if (ticks[1:] >= np.maximum.accumulate(says)[:-1]).all():
        return False
    order = by_code(codes, int(codes.max()) + 1)
    before = bounds_before(codes[order], says[order], np.full(len(order), UNBOUNDED))
    return bool((ticks[order] < before).any())


def _behind(strengths: Ints, groups: Ints, count: int) -> Flags:
    """Return which rows have so many stronger ones in their group."""
    order = np.argsort(groups * (int(strengths.max(initial=0)) + 1) + strengths)
    of_group, there = groups[order], strengths[order]
    begins = np.concatenate([[True], of_group[1:] != of_group[:-1]])
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    is_behind = np.empty(len(order), np.bool_)
    last = np.minimum(starts + count - 1, len(order) - 1)
    is_behind[order] = (np.arange(len(order)) >= starts + count) & (there > there[last])
    return is_behind


def _behind_earlier(strengths: Ints, groups: Ints, count: int) -> Flags:
    """Return which rows have so many stronger ones before them in their group; groups ascend.

    Each pass has the next strongest so far: of what a row puts back, and of what was weaker before.
    """
    width = int(strengths.max(initial=0)) + 1
    there = (groups[-1] - groups) * width + strengths  # of a later group all are lower: nothing carries over
    rest = there
    for _ in range(count):
        best = np.minimum.accumulate(rest)
        rest = np.concatenate([[np.iinfo(np.int64).max], np.maximum(rest[1:], best[:-1])])
    return np.asarray(there > best)


def rankable_rows(
    table: WindowsTable, ranked: RankedRows, schema: pa.Schema, time: str | None, promise: Promise,
    required: Sequence[str],
) -> RankableRows | None:  # fmt: skip
    """Return what leaves rows out; None where that could show.

    Parameters
    ----------
    table : WindowsTable
        What the state holds, of rows that only come.
    ranked, schema, promise, required
        As of :class:`RankableRows`.
    time : str, optional
        The timestamp column.
    """
    by_time = table.cut.kind in ("tumbling", "sliding")
    if not by_time and not _takes_all(table.cut):
        return None
    if ranked.keeps_all or not _have_one_form(table.key.types) or (by_time and ranked.n > RANKS_MAX):
        return None
    made = RankableRows(table, ranked, schema, time if by_time else None, promise, required)
    return made if _are_distinct(made.partial_schema.names) else None


def with_rankable_rows(given: Arrivals) -> tuple[Arrivals, LeftOut | None]:
    """Return what arrives with partial rows that have places as rows among the others, and what these stand for."""
    partials = given.partials
    if partials is None or PLACE not in partials.column_names:
        return given, None
    every = tables.united([partials.select(given.rows.column_names), given.rows])
    count = int(numbers(partials.column(ROW_COUNT)).sum()) - partials.num_rows
    times, holders = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if LEFT_OUT in partials.column_names and LEFT_OUT not in given.rows.column_names:
        listed, holders = listed_values(partials.column(LEFT_OUT))
        times = np.asarray(listed)
    places = numbers(every.column(PLACE))
    if (places[1:] < places[:-1]).any():
        order = np.argsort(places)
        every, holders = rows_at(every, order), np.argsort(order)[holders]
    return Arrivals(every, given.bounds), LeftOut(count, times, holders)
