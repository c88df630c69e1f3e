"""The keys that an epoch of an aggregation touches: their bounds, which rows are late, which keys were silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.cutting import WindowCut
from holdfast.state import keyed, tables
from holdfast.state.keys import Ints, by_code, coded, found, numbers, one
from holdfast.state.step import (
    ALL_KEYS,
    BOUND,
    CLOSED,
    PLACE,
    ROW_COUNT,
    UNBOUNDED,
    Arrivals,
    Change,
    StateTable,
    StepTime,
)
from holdfast.state.timeline import Promise, bound_at, bounds_before

Flags = npt.NDArray[np.bool_]
SCOPE = "scope"
"""Column of the keys table: 0 for a key, 1 for the row that holds for all keys."""


@dataclass(frozen=True)
class DeclaredBounds:
    """Bound rows, ascending by place.

    Parameters
    ----------
    codes : ndarray of int64
        Key of each; -1 for all keys.
    bounds, places : ndarray of int64
        The bound, and its place among the rows.
    """

    codes: Ints
    bounds: Ints
    places: Ints


@dataclass(frozen=True)
class Keys:
    """The keys that an epoch touches, by number.

    Parameters
    ----------
    table : pa.Table
        Key columns of each.
    size : int
        How many they are.
    before : mapping of str to ndarray of int64
        The keys table's other columns, as they were; of a new key their first values.
    is_known, is_present, is_forgotten : ndarray of bool
        Which have a row in the keys table, which have a timely row or a bound, which have to be forgotten.
    overall_before, overall : int
        The bound for all keys, before and after.
    bounds : ndarray of int64
        What holds of each key's rows after the epoch.
    ends : ndarray of int64
        The time up to which its windows are final: more where a silent key is forgotten or where arrival decides.
    """

    table: pa.Table
    size: int
    before: Mapping[str, Ints]
    is_known: Flags
    is_present: Flags
    is_forgotten: Flags
    overall_before: int
    overall: int
    bounds: Ints
    ends: Ints

    def extended(self, others: pa.Table, limit: int) -> Keys:
        """Return these keys and others that only the bound for all keys, or the clock, concerns."""
        count = others.num_rows

        def more(values: Ints, filler: int) -> Ints:
            return np.concatenate([values, np.full(count, filler, np.int64)])

        nothing = np.zeros(count, np.bool_)
        return replace(
            self,
            table=tables.united([self.table, others]),
            size=self.size + count,
            before={name: more(values, UNBOUNDED) for name, values in self.before.items()},
            is_known=np.concatenate([self.is_known, nothing]),
            is_present=np.concatenate([self.is_present, nothing]),
            is_forgotten=np.concatenate([self.is_forgotten, nothing]),
            bounds=more(self.bounds, self.overall),
            ends=more(self.ends, limit),
        )

    def arrays(self, codes: Ints) -> list[pa.Array]:
        """Return the key columns, a row for each number."""
        return [one(column.take(pa.array(codes))) for column in self.table.columns]

    def ranks(self, codes: Ints) -> Ints:
        """Return for each number the place of its key in the order of keys; each key is compared once."""
        is_used = np.zeros(self.size, np.bool_)
        is_used[codes] = True
        used = np.flatnonzero(is_used)
        keys = [(name, "ascending") for name in self.table.column_names]
        order = pc.sort_indices(self.table.take(pa.array(used)), sort_keys=keys)
        ranks = np.zeros(self.size, np.int64)
        ranks[used[np.asarray(order).astype(np.int64)]] = np.arange(len(used))
        return ranks[codes]


@dataclass(frozen=True)
class Admitted:
    """Rows parted into those in time and late ones.

    Parameters
    ----------
    rows : pa.Table
        In time.
    codes, ticks : ndarray of int64
        Their keys and times; zeros where they have none.
    late : pa.Table
        The others.
    limits : ndarray of int64
        The bounds that these are below.
    partials : pa.Table, optional
        What was made of other rows where they were packed; none of these is late.
    of_partials : ndarray of int64
        The keys of these.
    others : int
        How many rows in time partial rows stand for, beyond ``rows``.
    """

    rows: pa.Table
    codes: Ints
    ticks: Ints
    late: pa.Table
    limits: Ints
    partials: pa.Table | None = None
    of_partials: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    others: int = 0

    @property
    def count(self) -> int:
        """How many rows are in time."""
        return len(self.codes) + self.others


@dataclass(frozen=True)
class LeftOut:
    """Rows that were not sent, because each is beaten by rows that were.

    Parameters
    ----------
    count : int
        How many they are.
    times, holders : ndarray of int64
        Time of each, and the row that stands for it: it arrived when they did, so its bound is theirs.  Nothing where
        no row is late.
    """

    count: int
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    holders: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class KeysTable:
    """The state table ``keys``: what it holds, what an epoch reads of it, and what it writes.

    Parameters
    ----------
    key : pa.Schema
        Key columns.
    time : str, optional
        Timestamp column of the rows.
    cut : WindowCut
        The window.
    promise : Promise
        What the order of rows promises.
    idle_us, forget_us : int
        Logged time after which a silent key's windows are final, and after which the key is forgotten; 0 for never.
    input : str
        Name of the input that they are silent on.
    """

    key: pa.Schema
    time: str | None
    cut: WindowCut
    promise: Promise
    idle_us: int
    forget_us: int
    input: str = "rows"

    @property
    def columns(self) -> dict[str, int]:
        """Columns after key and scope, with their values for a new key; without any there is no such table."""
        columns = {"bound": UNBOUNDED} if self.cut.by_time else {"rows": 0} if self.cut.counts else {}
        if self.cut.trigger:
            columns["opens"] = UNBOUNDED
        if self.idle_us or self.forget_us:
            columns |= {"seen_us": UNBOUNDED, "open_end": UNBOUNDED}
        return columns

    @property
    def declared(self) -> StateTable:
        """Schema and identity."""
        own = [pa.field(name, pa.int64()) for name in self.columns]
        fields = [column.with_nullable(True) for column in self.key]
        return StateTable(pa.schema([*fields, pa.field(SCOPE, pa.int8()), *own]), (*self.key.names, SCOPE))

    def silent(self, known: pa.Table | None, at: StepTime) -> Ints:
        """Return the rows of the table whose key has been silent long enough to have an effect."""
        if known is None or not (self.idle_us or self.forget_us) or not known.num_rows:
            return np.zeros(0, np.int64)
        seen = numbers(known.column("seen_us"))
        is_due = np.zeros(len(seen), np.bool_)
        if self.idle_us:
            since = at.silent_since(self.input, seen)
            is_due |= (since <= at.batch_us - self.idle_us) & (numbers(known.column("open_end")) > UNBOUNDED)
        if self.forget_us:
            is_due |= seen <= at.batch_us - self.forget_us
        return np.flatnonzero(is_due & (numbers(known.column(SCOPE)) == 0))

    def due(self, known: pa.Table | None, change: Change | None, at: StepTime, *, tells_forgotten: bool) -> int | None:
        """Return when the next silent key's windows will be final and reported: those of a forgotten key may not be."""
        forget_us = self.forget_us if tells_forgotten else 0
        if known is None or not (self.idle_us or forget_us):
            return None
        found: list[int] = []
        # What was changed is checked in both forms: an epoch too early finds nothing, and then knows the time.
        for table in (known, *(() if change is None else (change.upserts,))):
            is_open = (numbers(table.column("open_end")) > UNBOUNDED) & (numbers(table.column(SCOPE)) == 0)
            seen = numbers(table.column("seen_us"))[is_open]
            of_idle = at.silent_since(self.input, seen) + self.idle_us if self.idle_us else seen[:0]
            for dues in (of_idle, seen + forget_us if forget_us else seen[:0]):
                later = dues[dues > at.batch_us]
                found += [int(later.min())] if len(later) else []
        return min(found, default=None)

    def read(
        self, known: pa.Table | None, given: Arrivals, silent: Ints, at: StepTime, left_out: LeftOut | None = None
    ) -> tuple[Keys, Admitted]:  # fmt: skip
        """Return the keys that the epoch touches, and the rows that are in time."""
        table, codes, of_partials, explicit, is_silent = self._named(known, given, silent)
        size = len(is_silent)
        before, is_known, overall_before = self._looked_up(known, table, size)
        ticks = keyed.ticks(given.rows.column(self.time)) if self.time else np.zeros(len(codes), np.int64)
        of_all = explicit.bounds[explicit.codes < 0]
        overall = max(overall_before, int(of_all.max(initial=UNBOUNDED)))
        if self.cut.by_time:
            start = np.maximum(before["bound"], overall_before)
            is_alone = left_out is None or not len(left_out.times)
            places = numbers(given.rows.column(PLACE))
            limits, bounds = admitted(start, codes, ticks, places, explicit, self.promise, are_all=is_alone)
            is_late, ends = ticks < limits, bounds.copy()
        else:
            limits, is_late = ticks, np.zeros(len(ticks), np.bool_)
            overall = CLOSED if overall == CLOSED else UNBOUNDED  # of other bounds nothing follows
            bounds = np.full(size, overall)
            bounds[explicit.codes[(explicit.bounds == CLOSED) & (explicit.codes >= 0)]] = CLOSED
            ends = np.maximum(bounds, at.batch_us) if self.cut.kind == "timer" else bounds.copy()
        is_forgotten = np.zeros(size, np.bool_)
        if is_silent.any():
            if self.forget_us:
                is_forgotten = is_silent & (before["seen_us"] <= at.batch_us - self.forget_us)
            idle = is_silent & ~is_forgotten
            ends[idle] = bounds[idle] = np.maximum(ends, before["open_end"])[idle]
            ends[is_forgotten] = CLOSED
        rows = _parted(given.rows, codes, ticks, is_late, limits)
        if left_out is not None:
            rows = self._with_left_out(rows, given.rows, limits, left_out)
        if given.partials is not None:
            others = int(numbers(given.partials.column(ROW_COUNT)).sum())
            rows = replace(rows, partials=given.partials, of_partials=of_partials, others=others)
        is_present = np.zeros(size, np.bool_)
        is_present[rows.codes] = is_present[rows.of_partials] = True
        is_present[explicit.codes[explicit.codes >= 0]] = True
        return Keys(
            table, size, before, is_known, is_present, is_forgotten, overall_before, overall, bounds, ends
        ), rows  # fmt: skip

    def _with_left_out(self, parted: Admitted, rows: pa.Table, limits: Ints, left_out: LeftOut) -> Admitted:
        """Return rows with those that were left out: late by the bound of the row that stands for them.

        Of these no more is known than key and time; nobody reads the other columns where rows are left out.
        """
        late = np.flatnonzero(left_out.times < limits[left_out.holders])
        if not len(late):
            return replace(parted, others=left_out.count)
        assert self.time is not None
        holders, times = left_out.holders[late], pa.array(left_out.times[late])
        known = {name: rows.column(name).take(pa.array(holders)) for name in self.key.names}
        known[self.time] = times.cast(rows.schema.field(self.time).type)
        columns = [known.get(field.name, pa.nulls(len(late), field.type)) for field in rows.schema]
        more = pa.Table.from_arrays(columns, names=rows.column_names)
        late_rows, late_limits = tables.united([parted.late, more]), np.concatenate([parted.limits, limits[holders]])
        return replace(parted, late=late_rows, limits=late_limits, others=left_out.count - len(late))

    def _named(
        self, known: pa.Table | None, given: Arrivals, silent: Ints
    ) -> tuple[pa.Table, Ints, Ints, DeclaredBounds, Flags]:  # fmt: skip
        """Return the distinct keys, the number of each row's and partial row's, the bound rows, and the silent keys."""
        partials = [] if given.partials is None else [given.partials]
        names, row_count = self.key.names, given.rows.num_rows
        count = row_count + sum(table.num_rows for table in partials)
        for_all = np.asarray(given.bounds.column(ALL_KEYS).combine_chunks().fill_null(False)).astype(np.bool_)
        explicit_count = int((~for_all).sum())
        if names:
            named = [given.rows, *partials, given.bounds.filter(pa.array(~for_all))]
            named += [known.take(pa.array(silent))] if known is not None else []
            pool = tables.united([self.part(table) for table in named])
            codes, first = coded(pool)
            table, size = pool.take(pa.array(first)), len(first)
        else:
            codes, size = np.zeros(count + explicit_count + len(silent), np.int64), 1
            table = pa.table({})
        of_explicit = np.full(len(for_all), -1)
        of_explicit[~for_all] = codes[count : count + explicit_count]
        explicit = DeclaredBounds(of_explicit, numbers(given.bounds.column(BOUND)), numbers(given.bounds.column(PLACE)))
        is_silent = np.zeros(size, np.bool_)
        is_silent[codes[count + explicit_count :]] = True
        is_silent[codes[: count + explicit_count]] = False
        return table, codes[:row_count], codes[row_count:count], explicit, is_silent

    def _looked_up(self, known: pa.Table | None, table: pa.Table, size: int) -> tuple[dict[str, Ints], Flags, int]:
        columns = {name: np.full(size, default) for name, default in self.columns.items()}
        is_known, overall = np.zeros(size, np.bool_), UNBOUNDED
        if known is not None and known.num_rows:
            scope = numbers(known.column(SCOPE))
            shared = np.flatnonzero(scope == 1)
            overall = int(known.column("bound")[int(shared[0])].as_py()) if len(shared) else UNBOUNDED
            positions, of_known = found(known, table)
            own = scope[positions] == 0
            positions, of_known = positions[own], of_known[own]
            is_known[of_known] = True
            for name, values in columns.items():
                values[of_known] = numbers(known.column(name).take(pa.array(positions)))
        return columns, is_known, overall

    def part(self, table: pa.Table) -> pa.Table:
        """Return the key columns of a table under one schema."""
        fields = [column.with_nullable(True) for column in self.key]
        return pa.Table.from_arrays([table.column(name) for name in self.key.names], schema=pa.schema(fields))

    def change(
        self, known: pa.Table | None, keys: Keys, counted: Ints | None, open_ends: Ints, at: StepTime
    ) -> Change | None:  # fmt: skip
        """Return how the table changes.

        Parameters
        ----------
        known : pa.Table, optional
            The table.
        keys : Keys
            What the epoch touched.
        counted : ndarray of int64, optional
            For each key its rows, after the epoch.
        open_ends : ndarray of int64
            For each key the last end of a window that stays open.
        at : StepTime
            The epoch.
        """
        if known is None:
            return None
        columns = dict(keys.before)
        if counted is not None:
            columns["rows"] = counted
        if self.cut.trigger:
            columns["opens"] = np.where(keys.is_present, self.cut.period_of(at.batch_us), columns["opens"])
        if "seen_us" in columns:
            columns["open_end"] = open_ends
            columns["seen_us"] = np.where(keys.is_present, at.batch_us, columns["seen_us"])
        if self.cut.by_time:
            columns["bound"] = keys.bounds
        changed = keys.is_present & ~keys.is_known
        for name, before in keys.before.items():
            changed |= columns[name] != before
        gone = keys.is_forgotten.copy()
        has_risen = self.cut.by_time and keys.overall > keys.overall_before
        told_by_all = self.cut.by_time and "seen_us" not in columns  # then a bound that the one for all has reached
        if told_by_all:
            gone |= keys.bounds <= keys.overall
        stays = np.flatnonzero(changed & ~gone & (keys.is_known | keys.is_present))
        leaves = self.part(known).take(pa.array(np.flatnonzero(numbers(known.column("bound")) <= keys.overall))) if (
            told_by_all and has_risen
        ) else keys.table.take(pa.array(np.flatnonzero(gone & keys.is_known)))  # fmt: skip
        return self._written(keys, stays, columns, leaves, has_risen)

    def _written(
        self, keys: Keys, stays: Ints, columns: Mapping[str, Ints], leaves: pa.Table, has_risen: bool
    ) -> Change | None:  # fmt: skip
        if not len(stays) and not leaves.num_rows and not has_risen:
            return None
        declared = self.declared
        scopes = pa.array(np.zeros(len(stays), np.int8))
        arrays = [*keys.arrays(stays), scopes, *(pa.array(columns[name][stays]) for name in self.columns)]
        upserts = pa.Table.from_arrays(arrays, schema=declared.schema)
        if has_risen:
            row = {SCOPE: 1, **self.columns, "bound": keys.overall}
            upserts = tables.united([upserts, pa.Table.from_pylist([row], schema=declared.schema)])
        deletes = [*leaves.columns, pa.array(np.zeros(leaves.num_rows, np.int8))]
        return Change(upserts, pa.Table.from_arrays(deletes, schema=tables.key_schema(declared)))


def admitted(
    start: Ints, codes: Ints, ticks: Ints, places: Ints, explicit: DeclaredBounds, promise: Promise,
    *, are_all: bool = True,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Follow the bounds of all keys through an epoch.

    Parameters
    ----------
    start : ndarray of int64
        For each key the bound before.
    codes, ticks, places : ndarray of int64
        Of the rows, ascending by place.
    explicit : DeclaredBounds
        The bound rows.
    promise : Promise
        What the rows promise.
    are_all : bool
        Whether the limits are asked for of no other rows: then those of rows that are above all before may be lower.

    Returns
    -------
    limits : ndarray of int64
        For each row the bound when it arrived: a row below it is late.
    end : ndarray of int64
        For each key the bound afterwards.
    """
    says = promise.bounds_after(ticks)
    for_all = explicit.codes < 0
    of_keys = ~for_all
    end = start.copy()
    np.maximum.at(end, codes, says)
    np.maximum.at(end, explicit.codes[of_keys], explicit.bounds[of_keys])
    end = np.maximum(end, explicit.bounds[for_all].max(initial=UNBOUNDED))
    limits = start[codes]
    if not len(ticks):
        return limits, end
    if are_all and (not len(explicit.places) or explicit.places[0] > places[-1]):
        overall = np.maximum.accumulate(says)
        if (ticks[1:] >= overall[:-1]).all():  # no row is below any before it: what was known at the start decides
            return limits, end
    every_code = np.concatenate([codes, explicit.codes[of_keys]])
    every_bound = np.concatenate([says, explicit.bounds[of_keys]])
    arrived = np.argsort(np.concatenate([places, explicit.places[of_keys]]), kind="stable")
    order = arrived[by_code(every_code[arrived], len(start))]
    before = np.empty_like(every_bound)
    before[order] = bounds_before(every_code[order], every_bound[order], start[every_code[order]])
    of_all = bound_at(places, explicit.places[for_all], explicit.bounds[for_all], UNBOUNDED)
    return np.maximum(before[: len(ticks)], of_all), end


def _parted(rows: pa.Table, codes: Ints, ticks: Ints, is_late: Flags, limits: Ints) -> Admitted:
    if not is_late.any():
        return Admitted(rows, codes, ticks, rows.slice(0, 0), limits[:0])
    kept = np.flatnonzero(~is_late)
    in_time = rows.take(pa.array(kept))
    return Admitted(in_time, codes[kept], ticks[kept], rows.filter(pa.array(is_late)), limits[is_late])
