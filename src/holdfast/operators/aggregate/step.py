"""The step of ``aggregate``: rows join the windows of their keys; windows are emitted when final or changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.collected import START, CollectedValues
from holdfast.operators.aggregate.counting import earlier_conditions
from holdfast.operators.aggregate.cutting import WindowCut
from holdfast.operators.aggregate.open import END, Windows, WindowsTable
from holdfast.operators.aggregate.parts import Partial, RowGroups, part_of, values_type
from holdfast.operators.aggregate.ranking import TABLE as RANKED
from holdfast.operators.aggregate.ranking import RankedRows, Ranks
from holdfast.operators.aggregate.shared_set import shared_sets
from holdfast.operators.aggregate.touched import SCOPE, Keys, KeysTable
from holdfast.state import checks, growth, keyed, tables
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StateTable,
    StepTime,
)
from holdfast.state.timeline import Promise

_WHY_LATE = "that its key's rows and bounds had reached"


@dataclass(frozen=True)
class AggregateStep:
    """Aggregates of each key and window.

    State: ``windows``, one row per key and open window with the parts of all aggregates; ``keys``, one row per key
    with its bound (of windows that count: its rows); for each ``collect`` and ``distinct_count`` a table of values; one
    for all distinct counts of a column that have conditions.

    Parameters
    ----------
    name : str
        The input.
    schema, key : pa.Schema
        Its columns, and those of them that are the key.
    time : str, optional
        Its timestamp column.
    cut : WindowCut
        The window.
    aggregates : mapping of str to Aggregate
        Output column -> what it holds.
    on_change : bool
        Whether a window is emitted in each epoch that changes it, and not once when it is final.
    promise : Promise
        What the order of rows promises.
    idle_us, forget_us : int
        Logged time after which a silent key's windows are final, and after which the key is forgotten; 0 for never.
    max_waiting_rows : int, optional
        Open windows and collected values of one key from which that is reported.
    ranked : RankedRows, optional
        The first rows of each window, instead of aggregates.
    """

    name: str
    schema: pa.Schema
    key: pa.Schema
    time: str | None
    cut: WindowCut
    aggregates: Mapping[str, Aggregate]
    on_change: bool = False
    promise: Promise = field(default_factory=lambda: Promise(is_strict=False))
    idle_us: int = 0
    forget_us: int = 0
    max_waiting_rows: int | None = None
    ranked: RankedRows | None = None
    for_all_keys: ClassVar[Mapping[str, str]] = {"keys": SCOPE}

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``windows``, ``keys`` and the values that are kept."""
        keys = self._keys_table
        return self._windows_table.declared | ({"keys": keys.declared} if keys.columns else {})

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """``rows``: key, start and end of the window, aggregates; ``late`` where event time decides."""
        windows = self._windows_table
        types = {name: part.result for name, part in windows.parts.items()}
        types |= {kept.name: kept.result for kept in windows.kept}
        types |= {name: pa.int64() for shared in windows.sets for name in shared.conditions}
        columns = [pa.field(name, types[name]) for name in self.aggregates]
        if self.ranked is not None:
            columns = self.ranked.output_fields()
        spans = [] if self.cut.kind == "total" else [pa.field(name, self._span_type) for name in (START, END)]
        rows = {"rows": pa.schema([*self.key, *spans, *columns])}
        if not self.cut.by_time or self.time is None:
            return rows
        conditions = {one.condition for one in self.aggregates.values()}
        given = pa.schema([each for each in self.schema if each.name not in conditions])
        return rows | {"late": keyed.late_schema(self.key, self.schema.field(self.time).type, {self.name: given})}

    @property
    def waiting_tables(self) -> tuple[str, ...]:
        """The tables with the open windows, and with the values collected for them."""
        return tuple(self._windows_table.declared)

    def time_of(self, name: str) -> str | None:
        """Return the timestamp column of an input."""
        return self.time

    def by_bounds(self, inputs: Collection[str]) -> AggregateStep:
        """Return the step for which rows promise nothing.

        Not where sessions are emitted as they change: a row between two of them would take back what was emitted.
        """
        if self.on_change and self.cut.kind == "session":
            return self
        return replace(self, promise=self.promise.silent()) if self.name in inputs else self

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Add the epoch's rows to their windows, and emit what is final or has changed."""
        given, known, of_keys, of_windows = (
            arrivals[self.name], state.get("keys"), self._keys_table, self._windows_table
        )  # fmt: skip
        silent = of_keys.silent(known, at)
        has_clock = self.cut.kind == "timer" and state["windows"].num_rows > 0
        if not given.rows.num_rows and not given.bounds.num_rows and not len(silent) and not has_clock:
            return Result(due_us=of_keys.due(known, None, at, tells_forgotten=not self.on_change), fates={})
        checks.require_values(given.rows, [*self.key.names, *([self.time] if self.time else [])], self.name)
        keys, rows = of_keys.read(known, given, silent, at)
        loaded, keys = of_windows.load(state["windows"], keys, at)
        windows = of_windows.merged(loaded, keys, rows, at)

        changes: dict[str, Change] = {}
        results: dict[str, pa.Array] = {}
        if (change := of_windows.change(windows, keys)) is not None:
            changes["windows"] = change
        for kept in of_windows.kept:
            results[kept.name], values = of_windows.follow(kept, state[kept.table], rows, windows, keys, at)
            if values.upserts.num_rows or values.deletes.num_rows:
                changes[kept.table] = values
        for shared in of_windows.sets:
            counts, values = of_windows.follow_set(shared, state[shared.table], rows, windows, keys)
            results |= counts
            if values.upserts.num_rows or values.deletes.num_rows:
                changes[shared.table] = values
        if (change := of_keys.change(known, keys, windows.counted, windows.open_ends(keys.size), at)) is not None:
            changes["keys"] = change
        if self.cut.kind == "timer":
            due_us = self._timer_due(state, changes, at)
        else:
            due_us = of_keys.due(known, change, at, tells_forgotten=not self.on_change)
        if self.ranked is None:
            outputs = {"rows": self._emitted(windows, keys, results)}
        else:
            ranks, values = of_windows.rank_rows(self.ranked, state[RANKED], rows, windows, keys, at)
            if values.upserts.num_rows or values.deletes.num_rows:
                changes[RANKED] = values
            outputs = {"rows": self._ranks_to_emit(ranks, windows, keys)}
        if rows.late.num_rows:
            assert self.time is not None
            late = self.outputs["late"]
            outputs["late"] = keyed.late_rows(late, self.name, rows.late, self.time, rows.limits, _WHY_LATE)
        bounds = self._bounds(of_windows, windows, state["windows"], keys)
        fates = {"late": len(rows.limits), ABSORBED: len(rows.codes)}
        return Result(outputs, changes, bounds, keyed.late_counts(rows.limits), due_us, fates=fates)

    def _timer_due(self, state: Mapping[str, pa.Table], changes: Mapping[str, Change], at: StepTime) -> int | None:
        """Return when the next window of a timer ends."""
        change = changes.get("windows")
        every = [state["windows"].column(END), *([] if change is None else [change.upserts.column(END)])]
        open_ends = [pc.min(ends.filter(pc.greater(ends, at.batch_us))).as_py() for ends in every]
        return min((int(end) for end in open_ends if end is not None), default=None)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return ``windows`` with more aggregates: these begin as over no rows.  And new tables of values.

        An aggregate with another condition is another one.
        """
        declared = self._windows_table
        for shared in declared.sets:
            if shared.table == table:
                return shared.grow(known, self.tables[table], self.aggregates)
        if table == RANKED and known is not None:
            return growth.grown(known, self.tables[table], growth.nulls)
        if known is None:
            return self.tables[table].schema.empty_table() if table in {kept.table for kept in declared.kept} else None
        if table != "windows":
            return None
        neutral = {
            f"{name}__{suffix}": (name, place)
            for name, part in declared.parts.items()
            for place, (suffix, _) in enumerate(part.fields)
        }

        def fill(column: pa.Field, rows: int) -> pa.Array | None:
            if column.name not in neutral:
                return None
            name, place = neutral[column.name]
            of = values_type(name, self.aggregates[name], self.schema)
            nothing = np.zeros(0, np.int64)
            values = None if of is None else pa.array([], of)
            return declared.parts[name].made(values, RowGroups(nothing, rows, nothing))[place]

        past = earlier_conditions(known.column_names, self.aggregates, self.tables[table].schema.names)
        return growth.grown(known.drop_columns(past), self.tables[table], fill)

    def _emitted(self, windows: Windows, keys: Keys, results: Mapping[str, pa.Array]) -> pa.Table:
        """Return the windows that are final, or those that changed, by start, then key."""
        spans = windows.spans
        emitted = np.flatnonzero(windows.is_changed if self.on_change else windows.is_closing)
        ranks = keys.ranks(spans.codes[emitted]) if self.key.names else np.zeros(len(emitted), np.int64)
        emitted = emitted[np.lexsort((ranks, spans.starts[emitted]))]
        where = pa.array(emitted)
        columns = keys.arrays(spans.codes[emitted])
        if self.cut.kind != "total":
            columns += [pa.array(values[emitted]).cast(self._span_type) for values in (spans.starts, spans.ends)]
        parts = self._windows_table.parts
        for name in self.aggregates:
            if name in results:
                columns.append(results[name].take(where))
            else:
                columns.append(parts[name].read([array.take(where) for array in windows.columns[name]]))
        return pa.Table.from_arrays(columns, schema=self.outputs["rows"])

    def _ranks_to_emit(self, ranks: Ranks, windows: Windows, keys: Keys) -> pa.Table:
        """Return all ranks of the windows that are final, or the ranks that changed, by start, key, then rank."""
        spans, owners = windows.spans, ranks.owners
        emitted = np.flatnonzero(ranks.ranks != ranks.before if self.on_change else windows.is_closing[owners])
        codes = spans.codes[owners[emitted]]
        of_keys = keys.ranks(codes) if self.key.names else np.zeros(len(emitted), np.int64)
        emitted = emitted[np.lexsort((of_keys, spans.starts[owners[emitted]]))]  # ranks stay in their order
        owners, where = owners[emitted], pa.array(emitted)
        columns = [*keys.arrays(spans.codes[owners])]
        if self.cut.kind != "total":
            columns += [pa.array(values[owners]).cast(self._span_type) for values in (spans.starts, spans.ends)]
        columns += [pa.array(ranks.ranks[emitted]), *(column.take(where) for column in ranks.rows)]
        return pa.Table.from_arrays(columns, schema=self.outputs["rows"])

    def _bounds(self, table: WindowsTable, windows: Windows, state: pa.Table, keys: Keys) -> pa.Table | None:
        """Return the bounds of the output's ``window_start``, where they have risen."""
        nothing = np.full(keys.size, UNBOUNDED)
        before = np.maximum(keys.before.get("bound", nothing), keys.overall_before)
        bounds, overall = table.bounds(windows, state, keys)
        # A key that only the bound for all keys concerns has no bound of its own to report: its other windows are not
        # loaded.
        advanced = np.flatnonzero((keys.bounds > np.maximum(before, keys.overall)) & (bounds > overall))
        shared = [overall] if keys.overall > keys.overall_before and overall > UNBOUNDED else []
        if not len(advanced) and not shared:
            return None
        if not self.key.names:  # there is but one key
            shared, advanced = [max([*shared, *bounds[advanced].tolist()])], advanced[:0]
        schema = tables.bounds_schema(self.key)
        flags = pa.array(np.zeros(len(advanced), np.bool_))
        rows = pa.Table.from_arrays([*keys.arrays(advanced), flags, pa.array(bounds[advanced])], schema=schema)
        for_all = pa.Table.from_pylist([{ALL_KEYS: True, BOUND: bound} for bound in shared], schema=schema)
        return tables.united([rows, for_all])

    # --- what follows from the declaration ----------------------------------------------------------------------------

    @property
    def _keys_table(self) -> KeysTable:
        return KeysTable(self.key, self.time, self.cut, self.promise, self.idle_us, self.forget_us, self.name)

    @property
    def _windows_table(self) -> WindowsTable:
        columns = {
            name: [keyed.field_of(self.schema, column, "aggregate").name for column in one.columns]
            for name, one in self.aggregates.items()
        }
        parts: dict[str, Partial] = {}
        kept: list[CollectedValues] = []
        shared: list[tuple[str, str, pa.DataType, str]] = []
        for name, one in self.aggregates.items():
            kind = values_type(name, one, self.schema)
            part = part_of(name, one, kind)
            if part is not None:
                parts[name] = part.under(one.condition)
            elif one.kind == "distinct_count" and one.condition is not None:
                shared.append((name, columns[name][0], kind, one.condition))
            else:
                is_distinct = one.kind == "distinct_count"
                kept.append(CollectedValues(name, columns[name][0], kind, is_distinct, one.condition))
        conditions = {name: one.condition for name, one in self.aggregates.items()}
        return WindowsTable(self.key, self.cut, columns, conditions, parts, kept, shared_sets(shared), self.ranked)

    @property
    def _span_type(self) -> pa.DataType:
        if self.cut.by_time and self.time is not None:
            return self.schema.field(self.time).type
        return pa.int64() if self.cut.kind == "count_window" else pa.timestamp("us", "UTC")
