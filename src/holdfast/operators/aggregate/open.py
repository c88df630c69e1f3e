"""The open windows of an aggregation: what the state holds of them, what an epoch adds, which of them are final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators.aggregate import cutting
from holdfast.operators.aggregate.collected import START, CollectedValues, followed, listed_values
from holdfast.operators.aggregate.counting import CountingRows, counting_rows, flags
from holdfast.operators.aggregate.cutting import Spans, WindowCut
from holdfast.operators.aggregate.parts import Partial, RowGroups, state_fields
from holdfast.operators.aggregate.ranking import TABLE as RANKED
from holdfast.operators.aggregate.ranking import RankedRows, Ranks
from holdfast.operators.aggregate.shared_set import SharedSet
from holdfast.operators.aggregate.touched import Admitted, Keys
from holdfast.operators.aggregate.weighted import ROWS, CountedValues
from holdfast.state.keys import Ints, coded, coded_pairs, found, numbers, one, ordinals_from
from holdfast.state.rows import rows_at
from holdfast.state.step import CLOSED, PLACE, UNBOUNDED, Change, StateTable, StepTime
from holdfast.state.tables import united

Flags = npt.NDArray[np.bool_]
END = "window_end"


@dataclass(frozen=True)
class Loaded:
    """Rows of the windows table, and the key of each."""

    table: pa.Table
    codes: Ints


@dataclass(frozen=True)
class Windows:
    """The windows that an epoch concerns.

    Parameters
    ----------
    spans : Spans
        Key, start and end of each.
    columns : mapping of str to columns
        Aggregate -> its parts.
    owners : ndarray of int64
        Which of them each loaded window became, then each window that the epoch has rows of.
    loaded : Loaded
        Those in state.
    is_changed, is_closing : ndarray of bool
        Which the epoch has rows of, and which are final.
    counted : ndarray of int64, optional
        For each key its rows, where their number decides.
    groups, cell_counts, cells : ndarray of int64
        For each row its group; for each group how many windows it belongs to; these, ordered by group.
    of_partials : ndarray of int64
        For each partial row its group.
    """

    spans: Spans
    columns: Mapping[str, list[pa.Array]]
    owners: Ints
    loaded: Loaded
    is_changed: Flags
    is_closing: Flags
    counted: Ints | None
    groups: Ints
    cell_counts: Ints
    cells: Ints
    of_partials: Ints

    @property
    def rows(self) -> Ints | None:
        """How many rows of each hold, where rows may be retracted."""
        return numbers(self.columns[ROWS][0]) if ROWS in self.columns else None

    @property
    def of_loaded(self) -> Ints:
        """Which window each loaded one became."""
        return self.owners[: len(self.loaded.codes)]

    @property
    def of_fresh(self) -> Ints:
        """Which window each of the epoch's own became."""
        return self.owners[len(self.loaded.codes) :]

    def open_ends(self, size: int) -> Ints:
        """Return for each key the last end of its windows that stay open."""
        ends = np.full(size, UNBOUNDED)
        np.maximum.at(ends, self.spans.codes[~self.is_closing], self.spans.ends[~self.is_closing])
        return ends

    def cells_of(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return for each window of each of some rows the row and which of the epoch's windows it is."""
        counts = self.cell_counts[groups]
        which = np.repeat(np.arange(len(groups)), counts)
        firsts = np.cumsum(self.cell_counts) - self.cell_counts
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, self.cells[firsts[groups][which] + within]


@dataclass(frozen=True)
class WindowsTable:
    """The state table ``windows``, with the tables of values beside it.

    Parameters
    ----------
    key : pa.Schema
        Key columns.
    cut : WindowCut
        The window.
    columns : mapping of str to sequence of str
        Aggregate -> the input's columns that it is over.
    conditions : mapping of str to str or None
        Aggregate -> the input's column that says which rows count; None: all do.
    parts : mapping of str to Partial
        Of the aggregates that have parts.
    kept : sequence of CollectedValues
        The others.
    sets : sequence of SharedSet or CountedValues
        The distinct counts with conditions, and the aggregates for which each value is counted.
    ranked : RankedRows, optional
        The first rows of each window.
    retracted : str, optional
        The input's column that is true for rows that retract others; None: rows only come.
    """

    key: pa.Schema
    cut: WindowCut
    columns: Mapping[str, Sequence[str]]
    conditions: Mapping[str, str | None]
    parts: Mapping[str, Partial]
    kept: Sequence[CollectedValues]
    sets: Sequence[SharedSet | CountedValues] = ()
    ranked: RankedRows | None = None
    retracted: str | None = None

    @cached_property
    def declared(self) -> dict[str, StateTable]:
        """Schema and identity of each table."""
        names = tuple(self.key.names)
        keys = [column.with_nullable(True) for column in self.key]
        spans = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        every = {"windows": StateTable(pa.schema([*keys, *spans, *state_fields(self.parts)]), (*names, START))}
        for kept in self.kept:
            fields = kept.fields()
            identity = fields if kept.is_distinct else fields[:-1]
            schema = pa.schema([*keys, spans[0], *fields])
            every[kept.table] = StateTable(schema, (*names, START, *(column.name for column in identity)))
        for shared in self.sets:
            every[shared.table] = StateTable(pa.schema([*keys, spans[0], *shared.fields()]), (*names, START, "value"))
        if self.ranked is not None:
            schema = pa.schema([*keys, spans[0], *self.ranked.state_fields()])
            every[RANKED] = StateTable(schema, (*names, START, "epoch", "place"))
        return every

    def load(self, windows: pa.Table, keys: Keys, at: StepTime) -> tuple[Loaded, Keys]:
        """Return the state's windows of the touched keys, and all others that the bound for all keys has passed."""
        positions, codes = found(windows, keys.table)
        is_timer = self.cut.kind == "timer"
        limit = max(at.batch_us, keys.overall) if is_timer else keys.overall
        if self.key.names and windows.num_rows and (is_timer or keys.overall > keys.overall_before):
            is_due = numbers(windows.column(END)) <= limit
            is_due[positions] = False
            others = np.flatnonzero(is_due)
            if len(others):
                taken = windows.take(pa.array(others)).select(self.key.names)
                strange = pa.Table.from_arrays(taken.columns, schema=keys.table.schema)
                more, first = coded(strange)
                positions, codes = np.concatenate([positions, others]), np.concatenate([codes, more + keys.size])
                keys = keys.extended(strange.take(pa.array(first)), limit)
        return Loaded(windows.take(pa.array(positions)), codes), keys

    def merged(self, loaded: Loaded, keys: Keys, rows: Admitted, at: StepTime) -> Windows:
        """Return every window concerned: what was in state and what the epoch adds, together."""
        base = self._counted_before(keys, at)
        codes, ticks = rows.codes, rows.ticks
        if len(rows.of_partials):
            codes = np.concatenate([codes, rows.of_partials])
            ticks = np.concatenate([ticks, np.zeros(len(rows.of_partials), np.int64)])
        ordinals = codes if base is None else ordinals_from(base, codes, keys.size)
        groups, panes = cutting.grouped(self.cut, codes, ticks, ordinals, at.batch_us)
        groups, of_partials = groups[: len(rows.codes)], groups[len(rows.codes) :]
        of_pane, fresh = cutting.spread(self.cut, panes)
        table = loaded.table
        old = Spans(loaded.codes, numbers(table.column(START)), numbers(table.column(END)))
        if len(old) or self.cut.kind in ("sliding", "session"):
            both = Spans(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))
            owners, spans = cutting.joined(self.cut, both)
        else:  # each group of rows is a window of its own
            owners, spans = np.arange(len(fresh)), fresh
        retracted = None if self.retracted is None else flags(rows.rows.column(self.retracted))
        of_rows = RowGroups(groups, len(panes), rows.ticks, retracted)
        columns = self._parts(loaded, self._parts_of_epoch(rows, of_rows, of_partials), of_pane, owners, len(spans))
        is_changed = np.zeros(len(spans), np.bool_)
        is_changed[owners[len(old) :]] = True
        is_closing = spans.ends <= keys.ends[spans.codes]
        counted = None
        if base is not None:
            counted = base + np.bincount(rows.codes, minlength=keys.size)
            if self.cut.trigger:
                is_closing |= spans.starts % self.cut.size < (counted // self.cut.trigger)[spans.codes]
            else:
                is_closing |= spans.ends <= counted[spans.codes]
        cell_counts, cells = np.bincount(of_pane, minlength=len(panes)), np.argsort(of_pane, kind="stable")
        return Windows(
            spans, columns, owners, loaded, is_changed, is_closing, counted, groups, cell_counts, cells, of_partials
        )  # fmt: skip

    def _counted_before(self, keys: Keys, at: StepTime) -> Ints | None:
        """Return for each key how many rows it had in the running window or period, where that decides."""
        if not self.cut.counts:
            return None
        if not self.cut.trigger:
            return keys.before["rows"]
        return np.where(keys.before["opens"] == self.cut.period_of(at.batch_us), keys.before["rows"], 0)

    def parts_of_rows(self, rows: pa.Table, of_rows: RowGroups) -> dict[str, list[pa.Array]]:
        """Return the parts of each aggregate, of some rows: for each group."""
        counting: dict[str | None, CountingRows] = {}
        columns: dict[str, list[pa.Array]] = {}
        for name, part in self.parts.items():
            condition = self.conditions[name]
            if condition not in counting:
                counting[condition] = counting_rows(rows, condition, of_rows)
            columns[name] = part.made(counting[condition].values(self.columns[name]), counting[condition].groups)
        return columns

    def _parts_of_epoch(self, rows: Admitted, of_rows: RowGroups, of_partials: Ints) -> dict[str, list[pa.Array]]:
        """Return the parts of what an epoch adds, rows and partial rows, for each group."""
        made, partials, size = self.parts_of_rows(rows.rows, of_rows), rows.partials, of_rows.size
        if partials is None:
            return made
        groups = np.concatenate([np.arange(size), of_partials])
        of_parts = RowGroups(groups, size, np.zeros(len(groups), np.int64))
        sent = {name: [one(partials.column(f"{name}__{suffix}")) for suffix, _ in part.fields]
                for name, part in self.parts.items()}  # fmt: skip
        return {
            name: part.merged([pa.concat_arrays(pair) for pair in zip(made[name], sent[name], strict=True)], of_parts)
            for name, part in self.parts.items()
        }

    def _parts(
        self, loaded: Loaded, of_groups: Mapping[str, list[pa.Array]], of_pane: Ints, owners: Ints, size: int
    ) -> dict[str, list[pa.Array]]:  # fmt: skip
        columns: dict[str, list[pa.Array]] = {}
        is_alone = not len(loaded.codes) and size == len(of_pane) and bool((owners == np.arange(size)).all())
        of_parts = RowGroups(owners, size, np.zeros(len(owners), np.int64))
        for name, part in self.parts.items():
            made = of_groups[name]
            if self.cut.kind == "sliding":
                made = [array.take(pa.array(of_pane)) for array in made]
            if not is_alone:
                before = [one(loaded.table.column(f"{name}__{suffix}")) for suffix, _ in part.fields]
                made = part.merged([pa.concat_arrays(pair) for pair in zip(before, made, strict=True)], of_parts)
            columns[name] = made
        return columns

    def change(self, windows: Windows, keys: Keys) -> Change | None:
        """Return how the table of windows changes."""
        loaded, spans = windows.loaded, windows.spans
        moved = numbers(loaded.table.column(START)) != spans.starts[windows.of_loaded]
        ends = windows.is_closing if windows.rows is None else windows.is_closing | (windows.rows == 0)
        gone = ends[windows.of_loaded] | moved
        stays = np.flatnonzero(windows.is_changed & ~ends)
        if not len(stays) and not gone.any():
            return None
        parts = [column.take(pa.array(stays)) for columns in windows.columns.values() for column in columns]
        places = [pa.array(spans.starts[stays]), pa.array(spans.ends[stays])]
        schema = self.declared["windows"].schema
        upserts = pa.Table.from_arrays([*keys.arrays(spans.codes[stays]), *places, *parts], schema=schema)
        return Change(upserts, loaded.table.filter(pa.array(gone)).select([*self.key.names, START]))

    def follow(
        self, kept: CollectedValues, values: pa.Table, rows: Admitted, windows: Windows, keys: Keys, at: StepTime
    ) -> tuple[pa.Array, Change]:  # fmt: skip
        """Return one aggregate of kept values per window, and how its table changes."""
        known, of_known = self._loaded_values(values, windows, keys)
        valid, given = kept.fresh(rows.rows)
        groups = windows.groups[valid]
        if rows.partials is not None:  # of distinct counts alone
            sent, owners = listed_values(rows.partials.column(kept.table))
            given = pa.concat_arrays([given, sent])
            groups = np.concatenate([groups, windows.of_partials[owners]])
        which, cells = windows.cells_of(groups)
        fresh = pa.table({"value": given.take(pa.array(which))})
        if not kept.is_distinct:
            valid = valid[which]
            places = pa.array(numbers(rows.rows.column(PLACE))[valid])
            epochs = pa.array(np.full(len(valid), at.epoch))
            times = pa.array(rows.ticks[valid])
            fresh = pa.table({"time": times, "epoch": epochs, "place": places, "value": fresh.column("value")})
        owners = np.concatenate([of_known, windows.of_fresh[cells]])
        key_columns = keys.arrays(windows.spans.codes)
        table = self.declared[kept.table]
        return followed(kept, known, fresh, owners, windows.spans.starts, windows.is_closing, key_columns, table)

    def follow_set(
        self, shared: SharedSet | CountedValues, values: pa.Table, rows: Admitted, windows: Windows, keys: Keys
    ) -> tuple[dict[str, pa.Array], Change]:  # fmt: skip
        """Return the aggregates that share a table of values, per window, and how it changes."""
        known, of_known = self._loaded_values(values, windows, keys)
        counting, every = shared.fresh(one(rows.rows.column(shared.column)), rows.rows)
        groups = windows.groups[counting]
        if rows.partials is not None:
            sent, holders = listed_values(rows.partials.column(shared.table))
            more = pa.Table.from_arrays(sent.flatten(), names=every.column_names)
            counting = np.concatenate([counting, every.num_rows + np.arange(len(sent))])
            every = united([every, more])
            groups = np.concatenate([groups, windows.of_partials[holders]])
        which, cells = windows.cells_of(groups)
        owners = np.concatenate([of_known, windows.of_fresh[cells]])
        fresh = every.take(pa.array(counting[which]))
        key_columns = keys.arrays(windows.spans.codes)
        table = self.declared[shared.table]
        return shared.follow(known, fresh, owners, windows.spans.starts, windows.is_closing, key_columns, table)

    def rank_rows(
        self, ranked: RankedRows, values: pa.Table, rows: Admitted, windows: Windows, keys: Keys, at: StepTime
    ) -> tuple[Ranks, Change]:  # fmt: skip
        """Return the first rows of each window, and how their table changes."""
        positions, of_known = self._found_values(values, windows, keys)
        which, cells = windows.cells_of(windows.groups)
        fresh = ranked.entries(rows.rows, which, rows.ticks, numbers(rows.rows.column(PLACE)), at.epoch)
        retracted = None if self.retracted is None else flags(rows.rows.column(self.retracted))[which]
        owners = np.concatenate([of_known, windows.of_fresh[cells]])
        key_columns = keys.arrays(windows.spans.codes)
        table, starts = self.declared[RANKED], windows.spans.starts
        return ranked.rank_rows(
            values, positions, fresh, owners, starts, windows.is_closing, key_columns, table, retracted
        )  # fmt: skip

    def _loaded_values(self, values: pa.Table, windows: Windows, keys: Keys) -> tuple[pa.Table, Ints]:
        """Return the rows of a table of values that belong to the windows, and the window of each."""
        positions, of_known = self._found_values(values, windows, keys)
        return rows_at(values, positions), of_known

    def _found_values(self, values: pa.Table, windows: Windows, keys: Keys) -> tuple[Ints, Ints]:
        """Return the places of the rows of a table of values that belong to the windows, and the window of each."""
        loaded = windows.loaded
        positions, codes = found(values, keys.table)
        starts = numbers(values.column(START))[positions]
        old_starts = numbers(loaded.table.column(START))
        pairs, _ = coded_pairs(np.concatenate([loaded.codes, codes]), np.concatenate([old_starts, starts]))
        of_known = pairs[len(old_starts) :]
        here = of_known < len(old_starts)  # where only a bound for all keys concerns a key, other windows stay unloaded
        of_known = windows.of_loaded[of_known[here]]
        return positions[here], of_known

    def bounds(self, windows: Windows, state: pa.Table, keys: Keys) -> tuple[Ints, int]:
        """Return the lowest start that a window not yet final can have: for each key, and for all keys."""
        of_keys = cutting.first_start(self.cut, keys.bounds)
        overall = int(cutting.first_start(self.cut, np.array([keys.overall]))[0])
        if self.cut.kind == "session":  # an open session began before its bound
            still = ~windows.is_closing
            np.minimum.at(of_keys, windows.spans.codes[still], windows.spans.starts[still])
            if keys.overall > keys.overall_before:
                waiting = numbers(state.column(START))[numbers(state.column(END)) > keys.overall]
                fresh = windows.spans.starts[still]
                overall = min(overall, int(waiting.min(initial=CLOSED)), int(fresh.min(initial=CLOSED)))
        return of_keys, overall
