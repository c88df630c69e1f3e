"""The step of ``aggregate``: rows join the windows of their keys; windows are emitted when final or changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.aggregates import Aggregate, count
from holdfast.operators.aggregate.collected import START, CollectedValues
from holdfast.operators.aggregate.counting import earlier_conditions
from holdfast.operators.aggregate.cutting import Spans, WindowCut
from holdfast.operators.aggregate.open import END, Windows, WindowsTable
from holdfast.operators.aggregate.partial_rows import (
    PartialRows,
    RankableRows,
    partial_rows,
    rankable_rows,
    with_rankable_rows,
)
from holdfast.operators.aggregate.parts import Partial, RowGroups, part_of, values_type
from holdfast.operators.aggregate.ranking import TABLE as RANKED
from holdfast.operators.aggregate.ranking import RankedRows, Ranks
from holdfast.operators.aggregate.retractions import COUNTED, with_retractions
from holdfast.operators.aggregate.shared_set import SharedSet, shared_sets
from holdfast.operators.aggregate.touched import SCOPE, Admitted, Keys, KeysTable
from holdfast.operators.aggregate.weighted import ROWS, counted_values, retractable
from holdfast.state import checks, growth, keyed, tables
from holdfast.state.keys import Ints, numbers, one
from holdfast.state.rows import rows_at
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
    for all distinct counts of a column that have conditions.  Where rows may be retracted ``windows`` has the number of
    rows that hold, and there is a table of values, with a number each, for every column with a ``min``, ``max`` or
    ``distinct_count``.

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
    delete : str, optional
        The output's Boolean column that is true for rows that no longer hold; None: they are not emitted.
    retracted : str, optional
        The input's; None: rows only come.
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
    delete: str | None = None
    retracted: str | None = None
    for_all_keys: ClassVar[Mapping[str, str]] = {"keys": SCOPE}

    def __getstate__(self) -> dict[str, object]:
        """Return what was declared, not what follows from it and was computed once: that has functions in it."""
        return {each.name: vars(self)[each.name] for each in fields(self)}

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @cached_property
    def tables(self) -> Mapping[str, StateTable]:
        """``windows``, ``keys`` and the values that are kept."""
        keys = self._keys_table
        return self._windows_table.declared | ({"keys": keys.declared} if keys.columns else {})

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """``rows``: key, start and end of the window, aggregates; ``late`` where event time decides."""
        windows = self._windows_table
        types = {name: part.result for name, part in windows.parts.items()}
        types |= {kept.name: kept.result for kept in windows.kept}
        types |= {name: kind for shared in windows.sets for name, kind in shared.results().items()}
        columns = [pa.field(name, types[name]) for name in self.aggregates]
        if self.ranked is not None:
            columns = self.ranked.output_fields()
        if self.delete is not None:
            columns.append(pa.field(self.delete, pa.bool_()))
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

    @property
    def partial_schema(self) -> pa.Schema | None:
        """What it takes in place of rows, where its windows and all of its aggregates allow that."""
        return None if self._partial_rows is None else self._partial_rows.partial_schema

    def combine(self, rows: pa.Table) -> pa.Table | None:
        """Return partial rows for some rows, where there are fewer of them by far.

        Of a ranking the rows that may have a rank, which stand for the others.
        """
        return None if self._partial_rows is None else self._partial_rows.combine(rows)

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Add the epoch's rows to their windows, and emit what is final or has changed."""
        (given, left_out), known = with_rankable_rows(arrivals[self.name]), state.get("keys")
        of_keys, of_windows = self._keys_table, self._windows_table
        silent = of_keys.silent(known, at)
        has_clock = self.cut.kind == "timer" and state["windows"].num_rows > 0
        if not given.count and not given.bounds.num_rows and not len(silent) and not has_clock:
            return Result(due_us=of_keys.due(known, None, at, tells_forgotten=not self.on_change), fates={})
        checks.require_values(given.rows, [*self.key.names, *([self.time] if self.time else [])], self.name)
        keys, rows = of_keys.read(known, given, silent, at, left_out)
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
            before = {} if self.delete is None else self._results_before(of_windows, state, rows, windows, keys, at)
            outputs = {"rows": self._emitted(windows, keys, results, before)}
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
        fates = {"late": len(rows.limits), ABSORBED: rows.count}
        return Result(outputs, changes, bounds, keyed.late_counts(rows.limits), due_us, fates=fates)

    def _timer_due(self, state: Mapping[str, pa.Table], changes: Mapping[str, Change], at: StepTime) -> int | None:
        """Return when the next window of a timer ends."""
        change = changes.get("windows")
        every = [state["windows"].column(END), *([] if change is None else [change.upserts.column(END)])]
        open_ends = [pc.min(ends.filter(pc.greater(ends, at.batch_us))).as_py() for ends in every]
        return min((int(end) for end in open_ends if end is not None), default=None)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return ``windows`` with more aggregates: these begin as over no rows.  And new tables of values.

        An aggregate with another condition is another one.  Where rows may be retracted none can begin: the rows before
        are not known.
        """
        if self.retracted is not None:
            return None
        declared = self._windows_table
        for shared in declared.sets:
            if isinstance(shared, SharedSet) and shared.table == table:
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

    def _results_before(
        self, table: WindowsTable, state: Mapping[str, pa.Table], rows: Admitted, windows: Windows, keys: Keys,
        at: StepTime,
    ) -> dict[str, pa.Array]:  # fmt: skip
        """Return what the aggregates of kept values were, for each window, before the epoch's rows."""
        none = Admitted(rows.rows.slice(0, 0), rows.codes[:0], rows.ticks[:0], rows.late, rows.limits)
        nothing = replace(windows, groups=windows.groups[:0])
        found = {kept.name: table.follow(kept, state[kept.table], none, nothing, keys, at)[0] for kept in table.kept}
        for shared in table.sets:
            found |= table.follow_set(shared, state[shared.table], none, nothing, keys)[0]
        return found

    def _emitted(
        self, windows: Windows, keys: Keys, results: Mapping[str, pa.Array], before: Mapping[str, pa.Array]
    ) -> pa.Table:  # fmt: skip
        """Return the windows that are final, or those that changed, by start, then key; and what no longer holds."""
        spans = windows.spans
        is_emitted = windows.is_changed if self.on_change else windows.is_closing
        if windows.rows is not None:
            is_emitted = is_emitted & (windows.rows > 0)
        emitted = np.flatnonzero(is_emitted)
        emitted = emitted[np.lexsort((self._key_ranks(keys, spans.codes[emitted]), spans.starts[emitted]))]
        where = pa.array(emitted)
        parts = {name: [array.take(where) for array in columns] for name, columns in windows.columns.items()}
        taken = {name: column.take(where) for name, column in results.items()}
        rows = self._rows(keys, spans.taken(emitted), parts, taken)
        if self.delete is None:
            return rows
        loaded, owners = windows.loaded, windows.of_loaded
        was_emitted = windows.is_changed[owners]
        if windows.rows is not None:
            was_emitted = was_emitted & (numbers(loaded.table.column(f"{ROWS}__count")) > 0)
        known = np.flatnonzero(was_emitted)
        there, codes = loaded.table.take(pa.array(known)), loaded.codes[known]
        parts = {
            name: [one(there.column(f"{name}__{suffix}")) for suffix, _ in part.fields]
            for name, part in self._windows_table.parts.items()
        }
        taken = {name: column.take(pa.array(owners[known])) for name, column in before.items()}
        old = Spans(codes, numbers(there.column(START)), numbers(there.column(END)))
        places = np.full(len(spans), -1)
        places[emitted] = np.arange(len(emitted))
        return with_retractions(
            self._rows(keys, old, parts, taken), rows, np.concatenate([old.starts, spans.starts[emitted]]),
            self._key_ranks(keys, np.concatenate([codes, spans.codes[emitted]])),
            places[owners[known]], self.delete,
        )  # fmt: skip

    def _key_ranks(self, keys: Keys, codes: Ints) -> Ints:
        return keys.ranks(codes) if self.key.names else np.zeros(len(codes), np.int64)

    def _rows(
        self, keys: Keys, spans: Spans, parts: Mapping[str, list[pa.Array]], results: Mapping[str, pa.Array]
    ) -> pa.Table:  # fmt: skip
        """Return a row for each of some windows, with what their aggregates are."""
        columns = keys.arrays(spans.codes)
        if self.cut.kind != "total":
            columns += [pa.array(values).cast(self._span_type) for values in (spans.starts, spans.ends)]
        of_parts = self._windows_table.parts
        columns += [results[name] if name in results else of_parts[name].read(parts[name]) for name in self.aggregates]
        schema = self.outputs["rows"]
        return pa.Table.from_arrays(columns, schema=schema if self.delete is None else pa.schema([*schema][:-1]))

    def _ranks_to_emit(self, ranks: Ranks, windows: Windows, keys: Keys) -> pa.Table:
        """Return all ranks of the windows that are final, or the ranks that changed, by start, key, then rank."""
        spans, owners = windows.spans, ranks.owners
        is_emitted = ranks.ranks != ranks.before if self.on_change else windows.is_closing[owners]
        emitted = np.flatnonzero(is_emitted & (ranks.ranks > 0))
        owners, numbered, places = owners[emitted], ranks.ranks[emitted], ranks.places[emitted]
        is_retracted = np.zeros(len(owners), np.bool_)
        if self.delete is not None:
            was = ranks.former
            is_retracted = np.arange(len(was.owners) + len(owners)) < len(was.owners)
            pairs = (was.owners, owners), (was.ranks, numbered), (was.places, places)
            owners, numbered, places = (np.concatenate(pair) for pair in pairs)
        codes = spans.codes[owners]
        of_keys = self._key_ranks(keys, codes)
        order = np.lexsort((~is_retracted, numbered, of_keys, spans.starts[owners]))
        owners, columns = owners[order], keys.arrays(codes[order])
        if self.cut.kind != "total":
            columns += [pa.array(values[owners]).cast(self._span_type) for values in (spans.starts, spans.ends)]
        columns += [pa.array(numbered[order]), *rows_at(ranks.rows, places[order]).columns]
        columns += [] if self.delete is None else [pa.array(is_retracted[order])]
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

    @cached_property
    def _keys_table(self) -> KeysTable:
        return KeysTable(self.key, self.time, self.cut, self.promise, self.idle_us, self.forget_us, self.name)

    @cached_property
    def _windows_table(self) -> WindowsTable:
        columns = {
            name: [keyed.field_of(self.schema, column, "aggregate").name for column in one.columns]
            for name, one in self.aggregates.items()
        }
        conditions = {name: one.condition for name, one in self.aggregates.items()}
        if self.retracted is not None:
            return self._retractable_table(columns, conditions, self.retracted)
        parts: dict[str, Partial] = {}
        kept: list[CollectedValues] = []
        shared: list[tuple[str, str, pa.DataType, str]] = []
        for name, of in self.aggregates.items():
            kind = values_type(name, of, self.schema)
            part = part_of(name, of, kind)
            if part is not None:
                parts[name] = part.under(of.condition)
            elif of.kind == "distinct_count" and of.condition is not None:
                shared.append((name, columns[name][0], kind, of.condition))
            else:
                is_distinct = of.kind == "distinct_count"
                kept.append(CollectedValues(name, columns[name][0], kind, is_distinct, of.condition))
        return WindowsTable(self.key, self.cut, columns, conditions, parts, kept, shared_sets(shared), self.ranked)

    @cached_property
    def _partial_rows(self) -> PartialRows | RankableRows | None:
        if self.retracted is not None:
            return None
        required = self.key.names if self.time is None else (*self.key.names, self.time)
        if self.ranked is not None:
            return rankable_rows(self._windows_table, self.ranked, self.schema, self.time, self.promise, required)
        return partial_rows(self._windows_table, self.aggregates.values(), required)

    def _retractable_table(
        self, columns: Mapping[str, Sequence[str]], conditions: Mapping[str, str | None], retracted: str
    ) -> WindowsTable:  # fmt: skip
        """Return what the state holds where rows may be retracted."""
        rows_held = part_of(ROWS, count(), None)
        assert rows_held is not None
        parts = {ROWS: retractable(rows_held, None)}
        counted: list[tuple[str, str, str, pa.DataType, str | None]] = []
        for name, of in self.aggregates.items():
            kind = values_type(name, of, self.schema)
            part = part_of(name, of, kind)
            if of.kind in COUNTED:
                counted.append((name, of.kind, columns[name][0], kind, of.condition))
            elif part is not None:
                parts[name] = retractable(part, kind).under(of.condition)
        return WindowsTable(
            self.key, self.cut, {ROWS: [], **columns}, {ROWS: None, **conditions}, parts, (),
            counted_values(counted, retracted), self.ranked, retracted,
        )  # fmt: skip

    @property
    def _span_type(self) -> pa.DataType:
        if self.cut.by_time and self.time is not None:
            return self.schema.field(self.time).type
        return pa.int64() if self.cut.kind == "count_window" else pa.timestamp("us", "UTC")
