"""The step of ``aggregate``: parts of each window in state, merged with those of the epoch, read when it is time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.aggregates import Aggregate
from holdfast.operators import aggregate_windows as cutting
from holdfast.operators import keyed, tables
from holdfast.operators.aggregate_bounds import Promise, Told, admitted
from holdfast.operators.aggregate_keys import Ints, coded, coded_pairs, found, numbers, ordinals_from
from holdfast.operators.aggregate_parts import Group, Part, part_of, state_fields
from holdfast.operators.aggregate_values import Kept, followed
from holdfast.operators.aggregate_windows import Cut, Spans
from holdfast.operators.step import (
    ALL_KEYS,
    BOUND,
    CLOSED,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Moment,
    Result,
    StateTable,
)

Flags = npt.NDArray[np.bool_]
START, END = "window_start", "window_end"
SCOPE = "scope"
"""Column of the keys table: 0 for a key, 1 for the row that holds for all keys."""


def _none() -> npt.NDArray[Any]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Keys:
    """The keys of an epoch, by number.

    ``bounds`` is what holds of each key's rows, ``ends`` the time up to which its windows are final: more where a silent
    key is forgotten or where arrival decides.
    """

    table: pa.Table
    size: int
    rows: Ints
    told: Told
    columns: dict[str, Ints]
    is_known: Flags
    is_silent: Flags
    overall_before: int
    overall: int
    ticks: Ints = field(default_factory=_none)
    ends: Ints = field(default_factory=_none)
    bounds: Ints = field(default_factory=_none)
    forgotten: Flags = field(default_factory=_none)
    clock: int = 0
    columns_before: dict[str, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.columns_before:
            self.columns_before.update({name: values.copy() for name, values in self.columns.items()})

    def extended(self, others: pa.Table, limit: int) -> _Keys:
        """Return these keys and others that only a bound for all keys concerns."""
        count = others.num_rows

        def more(values: Ints, filler: int) -> Ints:
            return np.concatenate([values, np.full(count, filler, values.dtype)])

        return replace(
            self,
            table=pa.concat_tables([self.table, others]),
            size=self.size + count,
            columns={name: more(values, 0) for name, values in self.columns.items()},
            columns_before={name: more(values, 0) for name, values in self.columns_before.items()},
            is_known=more(self.is_known, 0),
            is_silent=more(self.is_silent, 0),
            ends=more(self.ends, limit),
            bounds=more(self.bounds, self.overall),
            forgotten=more(self.forgotten, 0),
        )


@dataclass(frozen=True)
class _Loaded:
    """Rows of the windows table, and the key of each."""

    table: pa.Table
    codes: Ints


@dataclass(frozen=True)
class _Windows:
    """The windows of an epoch: ``owners`` says of ``old`` loaded ones, then of those of the epoch, which they became."""

    spans: Spans
    columns: dict[str, list[pa.Array]]
    owners: Ints
    old: int
    changed: Flags
    closing: Flags
    groups: Ints
    cell_counts: Ints
    cells: Ints

    def cells_of(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return for each window of each of some rows the row and which of the epoch's windows it is."""
        counts = self.cell_counts[groups]
        which = np.repeat(np.arange(len(groups)), counts)
        firsts = np.cumsum(self.cell_counts) - self.cell_counts
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, self.cells[firsts[groups][which] + within]


@dataclass(frozen=True)
class AggregateStep:
    """Aggregates of each key and window.

    State: ``windows``, one row per key and open window with the parts of all aggregates; ``keys``, one row per key
    with its bound (of windows that count: its rows); for each ``collect`` and ``distinct_count`` a table of values.

    Parameters
    ----------
    name : str
        The input.
    schema, key : pa.Schema
        Its columns, and those of them that are the key.
    time : str, optional
        Its timestamp column.
    cut : Cut
        The window.
    aggregates : mapping of str to Aggregate
        Output column -> what it holds.
    on_change : bool
        Whether a window is emitted in each epoch that changes it, and not once when it is final.
    promise : Promise
        What the order of rows promises.
    idle_us, forget_us : int
        Logged time after which a silent key's windows are final, and after which the key is forgotten; 0 for never.
    """

    name: str
    schema: pa.Schema
    key: pa.Schema
    time: str | None
    cut: Cut
    aggregates: Mapping[str, Aggregate]
    on_change: bool = False
    promise: Promise = field(default_factory=Promise)
    idle_us: int = 0
    forget_us: int = 0

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``windows``, ``keys`` and the values that are kept."""
        names = tuple(self.key.names)
        spans = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        of_keys = [pa.field(name, pa.int64()) for name in self._key_columns]
        found = {"windows": StateTable(pa.schema([*self._keys, *spans, *state_fields(self._parts())]), (*names, START))}
        if of_keys:
            found["keys"] = StateTable(pa.schema([*self._keys, pa.field(SCOPE, pa.int8()), *of_keys]), (*names, SCOPE))
        for kept in self._kept():
            fields = kept.fields()
            identity = fields if kept.is_distinct else fields[:-1]
            schema = pa.schema([*self._keys, spans[0], *fields])
            found[kept.table] = StateTable(schema, (*names, START, *(column.name for column in identity)))
        return found

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """``rows``: key, start and end of the window, aggregates; ``late`` where event time decides."""
        parts = self._parts()
        kept = {one.name: one.result for one in self._kept()}
        columns = [
            pa.field(name, kept[name] if (part := parts[name]) is None else part.result) for name in self.aggregates
        ]
        spans = [] if self.cut.kind == "total" else [pa.field(name, self._span_type) for name in (START, END)]
        rows = {"rows": pa.schema([*self.key, *spans, *columns])}
        if not self.cut.by_time or self.time is None:
            return rows
        return rows | {"late": keyed.late_schema(self.key, self.schema.field(self.time).type, self.inputs)}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: Moment) -> Result:
        """Add the epoch's rows to their windows, and emit what is final or has changed."""
        given = arrivals[self.name]
        known = state.get("keys")
        silent = self._silent(known, at)
        has_clock = self.cut.kind == "timer" and state["windows"].num_rows > 0
        if not given.rows.num_rows and not given.bounds.num_rows and not len(silent) and not has_clock:
            return Result()
        tables.require_values(given.rows, [*self.key.names, *([self.time] if self.time else [])], self.name)
        keys = self._touched(given, known, silent)
        rows, late, limits, keys = self._admitted(given, keys, at)
        loaded, keys = self._loaded(state["windows"], keys)
        windows = self._windows(rows, loaded, keys, at)
        return self._result(state, given, rows, late, limits, loaded, windows, keys, at)

    # --- keys and bounds ----------------------------------------------------------------------------------------------

    def _touched(self, given: Arrivals, known: pa.Table | None, silent: Ints) -> _Keys:
        """Return the keys that the epoch touches, with what the state knows of them."""
        names, count = self.key.names, given.rows.num_rows
        for_all = np.asarray(given.bounds.column(ALL_KEYS).combine_chunks().fill_null(False)).astype(np.bool_)
        told_count = int((~for_all).sum())
        if names:
            named = [given.rows, given.bounds.filter(pa.array(~for_all))]
            named += [known.take(pa.array(silent))] if known is not None else []
            pool = pa.concat_tables([self._key_part(table) for table in named])
            codes, first = coded(pool)
            table, size = pool.take(pa.array(first)), len(first)
        else:
            codes, size = np.zeros(count + told_count + len(silent), np.int64), 1
            table = pa.table({})
        told_codes = np.full(len(for_all), -1)
        told_codes[~for_all] = codes[count : count + told_count]
        told = Told(told_codes, numbers(given.bounds.column(BOUND)), numbers(given.bounds.column(PLACE)))
        is_silent = np.zeros(size, np.bool_)
        is_silent[codes[count + told_count :]] = True
        is_silent[codes[: count + told_count]] = False

        columns = {name: np.full(size, default) for name, default in self._key_columns.items()}
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
                values[of_known] = numbers(known.column(name))[positions]
        return _Keys(table, size, codes[:count], told, columns, is_known, is_silent, overall, overall)

    def _silent(self, known: pa.Table | None, at: Moment) -> Ints:
        """Return the rows of the keys table whose key has brought nothing for so long that something follows."""
        if known is None or not (self.idle_us or self.forget_us) or not known.num_rows:
            return np.zeros(0, np.int64)
        seen = numbers(known.column("seen_us"))
        is_due = np.zeros(len(seen), np.bool_)
        if self.idle_us:
            is_due |= (seen <= at.batch_us - self.idle_us) & (numbers(known.column("open_end")) > UNBOUNDED)
        if self.forget_us:
            is_due |= seen <= at.batch_us - self.forget_us
        return np.flatnonzero(is_due & (numbers(known.column(SCOPE)) == 0))

    def _admitted(self, given: Arrivals, keys: _Keys, at: Moment) -> tuple[pa.Table, pa.Table, Ints, _Keys]:
        """Part the rows into those in time and late ones, with the bounds that these are below."""
        told = keys.told
        of_all = told.bounds[told.codes < 0]
        overall = max(keys.overall, int(of_all.max())) if len(of_all) else keys.overall
        ticks = keyed.ticks(given.rows.column(self.time)) if self.time else np.zeros(given.rows.num_rows, np.int64)
        if self.cut.by_time:
            start = np.maximum(keys.columns["bound"], keys.overall)
            limits, ends = admitted(start, keys.rows, ticks, numbers(given.rows.column(PLACE)), told, self.promise)
            is_late = ticks < limits
            bounds = ends.copy()
        else:
            limits, is_late = ticks, np.zeros(len(ticks), np.bool_)
            ends = np.full(keys.size, at.batch_us if self.cut.kind == "timer" else UNBOUNDED)
            ends[told.codes[(told.bounds == CLOSED) & (told.codes >= 0)]] = CLOSED
            overall = CLOSED if (of_all == CLOSED).any() else UNBOUNDED
            ends = np.maximum(ends, overall)
            bounds = np.where(ends == CLOSED, CLOSED, UNBOUNDED)
        if keys.is_silent.any():
            forgotten = keys.is_silent & (keys.columns["seen_us"] <= at.batch_us - self.forget_us)
            forgotten &= self.forget_us > 0
            idle = keys.is_silent & ~forgotten
            ends[idle] = bounds[idle] = np.maximum(ends, keys.columns["open_end"])[idle]
            ends[forgotten] = CLOSED
        else:
            forgotten = np.zeros(keys.size, np.bool_)
        kept = np.flatnonzero(~is_late) if is_late.any() else None
        keys = replace(
            keys, overall=overall, ends=ends, bounds=bounds, forgotten=forgotten,
            ticks=ticks if kept is None else ticks[kept], rows=keys.rows if kept is None else keys.rows[kept],
            clock=at.batch_us,
        )  # fmt: skip
        if kept is None:
            return given.rows, given.rows.slice(0, 0), limits[:0], keys
        return given.rows.take(pa.array(kept)), given.rows.filter(pa.array(is_late)), limits[is_late], keys

    def _loaded(self, windows: pa.Table, keys: _Keys) -> tuple[_Loaded, _Keys]:
        """Return the state's windows of the touched keys, and all others that a bound for all keys has passed."""
        names = self.key.names
        positions, codes = found(windows, keys.table)
        limit = max(keys.clock, keys.overall) if self.cut.kind == "timer" else keys.overall
        if names and windows.num_rows and (self.cut.kind == "timer" or keys.overall > keys.overall_before):
            is_due = numbers(windows.column(END)) <= limit
            is_due[positions] = False
            others = np.flatnonzero(is_due)
            if len(others):
                strange = self._key_part(windows.take(pa.array(others)))
                more, first = coded(strange)
                positions, codes = np.concatenate([positions, others]), np.concatenate([codes, more + keys.size])
                keys = keys.extended(strange.take(pa.array(first)), limit)
        return _Loaded(windows.take(pa.array(positions)), codes), keys

    # --- windows ------------------------------------------------------------------------------------------------------

    def _windows(self, rows: pa.Table, loaded: _Loaded, keys: _Keys, at: Moment) -> _Windows:
        """Return every window concerned: what was in state, what the epoch adds, and both together."""
        base = keys.columns.get("rows")
        if base is not None and self.cut.kind == "timer":
            base = np.where(keys.columns["opens"] == at.batch_us // self.cut.size * self.cut.size, base, 0)
        ordinals = ordinals_from(base, keys.rows, keys.size) if base is not None else keys.rows
        groups, panes = cutting.grouped(self.cut, keys.rows, keys.ticks, ordinals, at.batch_us)
        of_rows = Group(groups, len(panes), keys.ticks)
        of_pane, fresh = cutting.spread(self.cut, panes)
        old = Spans(loaded.codes, numbers(loaded.table.column(START)), numbers(loaded.table.column(END)))
        both = Spans(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))
        owners, spans = cutting.joined(self.cut, both)
        of_parts = Group(owners, len(spans), np.zeros(len(owners), np.int64))

        columns: dict[str, list[pa.Array]] = {}
        for name, part in self._parts().items():
            if part is None:
                continue
            column = self.aggregates[name].column
            values = None if column is None else _one(rows.column(self._field(column).name))
            made = part.made(values, of_rows)
            if self.cut.kind == "sliding":
                made = [array.take(pa.array(of_pane)) for array in made]
            if len(old) or len(spans) != len(made[0]) or not (owners == np.arange(len(owners))).all():
                before = [_one(loaded.table.column(f"{name}__{suffix}")) for suffix, _ in part.fields]
                together = [pa.concat_arrays([was, new]) for was, new in zip(before, made, strict=True)]
                made = part.merged(together, of_parts)
            columns[name] = made
        changed = np.zeros(len(spans), np.bool_)
        changed[owners[len(old) :]] = True
        closing = spans.ends <= keys.ends[spans.codes]
        if base is not None:
            counted = base + np.bincount(keys.rows, minlength=keys.size)[: len(base)]
            if self.cut.kind == "timer":
                begun = spans.starts % self.cut.size
                closing |= begun < (counted // self.cut.trigger)[spans.codes]
            else:
                closing |= spans.ends <= counted[spans.codes]
            keys.columns["rows"] = counted
        cells = np.argsort(of_pane, kind="stable")
        return _Windows(
            spans,
            columns,
            owners,
            len(old),
            changed,
            closing,
            groups,
            np.bincount(of_pane, minlength=len(panes)),
            cells,
        )

    def _result(
        self, state: Mapping[str, pa.Table], given: Arrivals, rows: pa.Table, late: pa.Table, limits: Ints,
        loaded: _Loaded, windows: _Windows, keys: _Keys, at: Moment,
    ) -> Result:  # fmt: skip
        spans, closing = windows.spans, windows.closing
        old_starts = numbers(loaded.table.column(START))
        of_old = windows.owners[: windows.old]
        moved = old_starts != spans.starts[of_old]
        gone = closing[of_old] | moved
        stays = np.flatnonzero(windows.changed & ~closing)
        schemas = self.tables
        changes: dict[str, Change] = {}
        if len(stays) or gone.any():
            parts = self._parts()
            arrays = [column for name in parts if parts[name] is not None for column in windows.columns[name]]
            everything = [*self._key_arrays(keys, spans.codes), pa.array(spans.starts), pa.array(spans.ends), *arrays]
            upserts = [array.take(pa.array(stays)) for array in everything]
            changes["windows"] = Change(
                pa.Table.from_arrays(upserts, schema=schemas["windows"].schema),
                loaded.table.filter(pa.array(gone)).select([*self.key.names, START]),
            )
        results = {name: part.read for name, part in self._parts().items() if part is not None}
        kept_results = {}
        for kept in self._kept():
            kept_results[kept.name], change = self._follow(kept, state[kept.table], rows, loaded, windows, keys, at)
            if change.upserts.num_rows or change.deletes.num_rows:
                changes[kept.table] = change
        if (change := self._key_change(given, windows, keys, at)) is not None:
            changes["keys"] = change

        emitted = self._in_order(np.flatnonzero(windows.changed if self.on_change else closing), spans, keys)
        where = pa.array(emitted)
        columns = self._key_arrays(keys, spans.codes[emitted])
        if self.cut.kind != "total":
            columns += [pa.array(values[emitted]).cast(self._span_type) for values in (spans.starts, spans.ends)]
        for name in self.aggregates:
            if name in kept_results:
                columns.append(kept_results[name].take(where))
            else:
                columns.append(results[name]([array.take(where) for array in windows.columns[name]]))
        schema = self.outputs["rows"]
        out = pa.Table.from_arrays(columns, schema=schema)
        outputs = {"rows": out}
        if late.num_rows:
            assert self.time is not None
            why = "that its key's rows and bounds had reached"
            outputs["late"] = keyed.late_rows(self.outputs["late"], self.name, late, self.time, limits, why)
        return Result(outputs, changes, self._bounds(state, windows, keys), {"late": late.num_rows})

    def _in_order(self, emitted: Ints, spans: Spans, keys: _Keys) -> Ints:
        """Return windows by start, then key."""
        names = self.key.names
        if len(emitted) < 2 or not names:
            return emitted[np.argsort(spans.starts[emitted], kind="stable")]
        codes = spans.codes[emitted]
        used = np.unique(codes)  # each key is compared once, and not once per window
        order = pc.sort_indices(keys.table.take(pa.array(used)), sort_keys=[(name, "ascending") for name in names])
        ranks = np.zeros(keys.size, np.int64)
        ranks[used[np.asarray(order).astype(np.int64)]] = np.arange(len(used))
        return emitted[np.lexsort((ranks[codes], spans.starts[emitted]))]

    def _follow(
        self, kept: Kept, values: pa.Table, rows: pa.Table, loaded: _Loaded, windows: _Windows, keys: _Keys, at: Moment
    ) -> tuple[pa.Array, Change]:
        """Return one aggregate of kept values per window, and how its table changes."""
        positions, codes = found(values, keys.table)
        starts = numbers(values.column(START))[positions]
        old_starts = numbers(loaded.table.column(START))
        pairs, _ = coded_pairs(np.concatenate([loaded.codes, codes]), np.concatenate([old_starts, starts]))
        of_known = pairs[windows.old :]
        here = of_known < windows.old  # of a key that only a bound for all keys concerns, other windows stay unloaded
        of_known = windows.owners[: windows.old][of_known[here]]
        known = values.take(pa.array(positions[here]))

        column = rows.column(self._field(kept.column).name)
        valid = np.flatnonzero(np.asarray(column.combine_chunks().is_valid()))
        which, cells = windows.cells_of(windows.groups[valid])
        valid = valid[which]
        fresh = pa.table({"value": column.take(pa.array(valid))})
        if not kept.is_distinct:
            places = pa.array(numbers(rows.column(PLACE))[valid])
            times = pa.array(keys.ticks[valid])
            epochs = pa.array(np.full(len(valid), at.epoch))
            fresh = pa.table({"time": times, "epoch": epochs, "place": places, "value": fresh.column("value")})
        of_windows = np.concatenate([of_known, windows.owners[windows.old + cells]])
        key_arrays = self._key_arrays(keys, windows.spans.codes)
        return followed(
            kept, known, fresh, of_windows, windows.spans.starts, windows.closing, key_arrays, self.tables[kept.table]
        )

    def _key_change(self, given: Arrivals, windows: _Windows, keys: _Keys, at: Moment) -> Change | None:
        """Return how the keys table changes."""
        if not self._key_columns:
            return None
        columns, size = dict(keys.columns), keys.size
        is_there = np.zeros(size, np.bool_)
        is_there[keys.rows] = True
        is_there[keys.told.codes[keys.told.codes >= 0]] = True
        changed = is_there & ~keys.is_known
        if self.cut.trigger:
            columns["opens"] = np.where(is_there, at.batch_us // self.cut.size * self.cut.size, columns["opens"])
        if "seen_us" in columns:
            still = ~windows.closing
            open_end = np.full(size, UNBOUNDED)
            np.maximum.at(open_end, windows.spans.codes[still], windows.spans.ends[still])
            columns["open_end"] = open_end
            columns["seen_us"] = np.where(is_there, at.batch_us, columns["seen_us"])
        if self.cut.by_time:
            columns["bound"] = keys.bounds
        for name, before in keys.columns_before.items():
            changed |= columns[name] != before
        gone = keys.forgotten.copy()
        if self.cut.by_time and "seen_us" not in columns:
            gone |= keys.bounds <= keys.overall  # what holds for all keys says as much
        stays = np.flatnonzero(changed & ~gone & (keys.is_known | is_there))
        leaves = np.flatnonzero(gone & keys.is_known)
        shared = int(self.cut.by_time and keys.overall > keys.overall_before)
        if not len(stays) and not len(leaves) and not shared:
            return None
        table = self.tables["keys"]
        arrays = [
            *self._key_arrays(keys, stays), pa.array(np.zeros(len(stays), np.int8)),
            *(pa.array(columns[name][stays]) for name in self._key_columns),
        ]  # fmt: skip
        upserts = pa.Table.from_arrays(arrays, schema=table.schema)
        if shared:
            row = {SCOPE: 1, **self._key_columns, "bound": keys.overall}
            upserts = pa.concat_tables([upserts, pa.Table.from_pylist([row], schema=table.schema)])
        deletes = [*self._key_arrays(keys, leaves), pa.array(np.zeros(len(leaves), np.int8))]
        return Change(upserts, pa.Table.from_arrays(deletes, schema=tables.key_schema(table)))

    def _bounds(self, state: Mapping[str, pa.Table], windows: _Windows, keys: _Keys) -> pa.Table | None:
        """Return the bounds of the output's ``window_start``."""
        before = np.maximum(keys.columns_before.get("bound", np.full(keys.size, UNBOUNDED)), keys.overall_before)
        bounds = cutting.first_start(self.cut, keys.bounds)
        overall = cutting.first_start(self.cut, np.array([keys.overall]))[0]
        if self.cut.kind == "session":
            still = ~windows.closing
            np.minimum.at(bounds, windows.spans.codes[still], windows.spans.starts[still])
            starts = numbers(state["windows"].column(START))[numbers(state["windows"].column(END)) > keys.overall]
            overall = min(overall, *starts[:1], *(starts.min(initial=CLOSED),))
        advanced = np.flatnonzero((keys.bounds > before) & (bounds > overall))
        told = [int(overall)] if keys.overall > keys.overall_before and overall > UNBOUNDED else []
        if not len(advanced) and not told:
            return None
        if not self.key.names:
            told, advanced = [max([*told, *bounds[advanced].tolist()])], advanced[:0]
        schema = tables.bounds_schema(self.key)
        arrays = [
            *self._key_arrays(keys, advanced), pa.array(np.zeros(len(advanced), np.bool_)), pa.array(bounds[advanced]),
        ]  # fmt: skip
        rows = pa.Table.from_arrays(arrays, schema=schema)
        for_all = pa.Table.from_pylist([{ALL_KEYS: True, BOUND: bound} for bound in told], schema=schema)
        return pa.concat_tables([rows, for_all])

    # --- what follows from the declaration ----------------------------------------------------------------------------

    @property
    def _keys(self) -> list[pa.Field]:
        return [column.with_nullable(True) for column in self.key]

    @property
    def _key_columns(self) -> dict[str, int]:
        """Columns of the keys table behind key and scope, with their values for a new key."""
        columns = {"bound": UNBOUNDED} if self.cut.by_time else {"rows": 0} if self.cut.counts else {}
        if self.cut.trigger:
            columns["opens"] = UNBOUNDED
        if self.idle_us or self.forget_us:
            columns |= {"seen_us": UNBOUNDED, "open_end": UNBOUNDED}
        return columns

    @property
    def _span_type(self) -> pa.DataType:
        if self.cut.by_time and self.time is not None:
            return self.schema.field(self.time).type
        return pa.int64() if self.cut.kind == "count_window" else pa.timestamp("us", "UTC")

    def _field(self, column: str) -> pa.Field:
        return keyed.field_of(self.schema, column, "aggregate")

    def _parts(self) -> dict[str, Part | None]:
        return {
            name: part_of(name, aggregate, None if aggregate.column is None else self._field(aggregate.column).type)
            for name, aggregate in self.aggregates.items()
        }

    def _kept(self) -> list[Kept]:
        return [
            Kept(name, one.column, self._field(one.column).type, one.kind == "distinct_count")
            for name, one in self.aggregates.items()
            if one.kind in ("collect", "distinct_count") and one.column is not None
        ]

    def _key_part(self, table: pa.Table) -> pa.Table:
        """Return the key columns of a table under one schema."""
        return pa.Table.from_arrays([table.column(name) for name in self.key.names], schema=pa.schema(self._keys))

    def _key_arrays(self, keys: _Keys, codes: Ints) -> list[pa.Array]:
        return [_one(keys.table.column(name).take(pa.array(codes))) for name in self.key.names]


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
