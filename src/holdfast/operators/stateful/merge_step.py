"""The step of ``merge``: main rows wait until every slow input is past them, then take its latest row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import checks, joins, keyed, tables
from holdfast.state.input_bounds import InputReport, reported
from holdfast.state.keyed import Ticks
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    CLOSED,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StateTable,
    StepTime,
)
from holdfast.state.timeline import Promise

INPUT = "__input__"
SEQ = "__seq__"
"""Number of a main row in the order of arrival."""

SINCE = "__since_us__"
"""Batch time at which a main row began to wait, or anything of a key last arrived."""

MAIN = "main"

HOWS = ("left", "inner", "semi", "anti")
"""Rows with what they find, or nulls; those that find something; these without columns; those that find nothing."""


@dataclass(frozen=True)
class Flat:
    """The rows that leave where the columns of the only slow input are added one by one, and not as a struct.

    Parameters
    ----------
    how : str
        One of :data:`HOWS`: which rows leave, and whether with columns.
    added : tuple of (str, str)
        Name beside the main columns, and column of the slow input.
    """

    how: str
    added: tuple[tuple[str, str], ...]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the schema of rows whose last column is the struct."""
        kind = rows.field(len(rows) - 1).type
        added = [pa.field(name, kind.field(column).type) for name, column in self.added]
        return pa.schema([*list(rows)[:-1], *added])

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows that leave."""
        last = rows.column(rows.num_columns - 1)
        if self.how != "left":
            mask = pc.is_null(last) if self.how == "anti" else pc.is_valid(last)
            rows, last = rows.filter(mask), last.filter(mask)
        added = [pc.struct_field(last, column) for _, column in self.added]
        return pa.Table.from_arrays([*rows.columns[:-1], *added], schema=self.schema(rows.schema))


@dataclass(frozen=True)
class MergeStep:
    """Each main row with the latest slow rows.

    State: ``waiting``, main rows that are not settled; ``slow_<input>``, rows that a main row may still need, one per
    key and time; ``bounds`` per key and input; ``inputs``, the bound for all keys of each input.
    """

    inputs: Mapping[str, pa.Schema]
    key: pa.Schema
    times: Mapping[str, str]
    promises: Mapping[str, Promise]
    tolerance: int | None
    idle_us: int | None
    forget_us: int | None
    max_waiting_rows: int | None = None
    gives_unmatched: bool = False
    flat: Flat | None = None
    for_all_keys: ClassVar[Mapping[str, str]] = {"inputs": ""}

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the slow inputs."""
        return tuple(name for name in self.inputs if name != MAIN)

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Waiting rows, slow rows and bounds."""
        key = self.key.names
        number, text = pa.int64(), pa.string()
        bounds = [pa.field(INPUT, text), pa.field(BOUND, number)]
        waiting = pa.schema([*self.inputs[MAIN], pa.field(SEQ, number), pa.field(SINCE, number)])
        return {
            "waiting": StateTable(waiting, (*key, SEQ)),
            **{f"slow_{name}": StateTable(self.inputs[name], (*key, self.times[name])) for name in self.slow},
            "bounds": StateTable(pa.schema([*self.key, *bounds, pa.field(SINCE, number)]), (*key, INPUT)),
            "inputs": StateTable(pa.schema([*bounds, pa.field(SEQ, number)]), (INPUT,)),
        }

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Main rows with a struct column for each slow input, late rows, and main rows without any slow one."""
        time = self.inputs[MAIN].field(self.times[MAIN]).type
        beside = keyed.late_schema(self.key, time, self.inputs)
        rows = self._with_structs if self.flat is None else self.flat.schema(self._with_structs)
        found = {"rows": rows, "late": beside}
        return found | ({"unmatched": beside} if self.gives_unmatched else {})

    def giving(self, outputs: Collection[str]) -> MergeStep:
        """Return the step that seeks main rows without a slow row where they are read."""
        return replace(self, gives_unmatched="unmatched" in outputs)

    def by_bounds(self, inputs: Collection[str]) -> MergeStep:
        """Return the step for which rows of these inputs promise nothing."""
        promises = {name: one.silent() if name in inputs else one for name, one in self.promises.items()}
        return replace(self, promises=promises)

    @property
    def _with_structs(self) -> pa.Schema:
        return pa.schema([*self.inputs[MAIN], *(pa.field(name, self._struct(name)) for name in self.slow)])

    def _struct(self, name: str) -> pa.StructType:
        return pa.struct([field for field in self.inputs[name] if field.name not in self.key.names])

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.times[name]

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Add what arrived, emit what is settled, forget what is no longer needed."""
        for name, given in arrivals.items():
            checks.require_values(given.rows, [*self.key.names, self.times[name]], name)
        everywhere, seq = self._inputs(state["inputs"])
        touched = self._touched(state, arrivals, everywhere, at)
        bounds = self._bounds(state["bounds"], touched)
        news = {
            name: reported(given, self.times[name], self.promises[name], touched, bounds[name], everywhere[name])
            for name, given in arrivals.items()
        }
        late = self._late(arrivals, news)
        now = {name: np.maximum(new.bounds, new.everywhere) for name, new in news.items()}

        fresh = arrivals[MAIN].rows.filter(pa.array(~news[MAIN].is_late)).drop_columns([PLACE])
        fresh = fresh.append_column(SEQ, pa.array(np.arange(seq, seq + fresh.num_rows), pa.int64()))
        fresh = fresh.append_column(SINCE, pa.array(np.full(fresh.num_rows, at.batch_us), pa.int64()))
        before = joins.semi_join(state["waiting"], touched, self.key.names)
        waiting = tables.united([before, fresh], before.schema)
        codes = joins.index_in(waiting, touched, self.key.names)
        times = keyed.ticks(waiting.column(self.times[MAIN]))
        is_ready, own, since = self._ready(waiting, codes, times, now, news, at)

        known = {name: joins.semi_join(state[f"slow_{name}"], touched, self.key.names) for name in self.slow}
        slow = {name: self._slow(known[name], arrivals[name].rows, name, news[name], touched) for name in self.slow}
        order = self._order(waiting, times, is_ready)
        rows = self._merged(waiting.take(pa.array(order)), codes[order], times[order], slow, touched)
        stays = ~is_ready
        floor = np.maximum(own[MAIN], news[MAIN].everywhere)
        np.minimum.at(floor, codes[stays], times[stays])
        changes = {
            "waiting": Change(
                joins.semi_join(waiting.filter(pa.array(stays)), fresh, [SEQ]),
                # NB by key too: rows of keys merged from two buckets may have the same number.
                joins.semi_join(
                    before.select([*self.key.names, SEQ]), waiting.filter(pa.array(is_ready)), [*self.key.names, SEQ]
                ),
            ),
            **{f"slow_{name}": self._kept(known[name], name, slow[name], touched, floor) for name in self.slow},
            "bounds": self._bound_changes(touched, own, at),
        }
        everywhere = {name: new.everywhere for name, new in news.items()}
        changes["inputs"] = self._inputs_change(state["inputs"], everywhere, seq + fresh.num_rows)
        forgotten = self._forget(state, touched, changes, at)
        out = self._output_bounds(touched, floor, everywhere[MAIN], state["waiting"], changes["waiting"])
        waiting_rows = state["waiting"].num_rows + int(stays.sum()) - before.num_rows
        counts = keyed.late_counts(np.concatenate([new.before[new.is_late] for new in news.values()]))
        counts["waiting_rows"] = waiting_rows
        if self.forget_us is not None:
            counts["forgotten"] = forgotten
        worth = {name: change for name, change in changes.items() if change.upserts.num_rows or change.deletes.num_rows}
        due_us = self._due(since[stays], state["waiting"], touched, at)
        leaves = rows if self.flat is None else self.flat.of(rows)
        outputs = {"rows": leaves, "late": late}
        if self.gives_unmatched:
            outputs["unmatched"] = self._unmatched(rows)
            counts |= keyed.counted("unmatched", {keyed.ALONE: outputs["unmatched"].num_rows})
        fates = {
            "rows": leaves.num_rows,
            "late": sum(int(new.is_late.sum()) for new in news.values()),
            ABSORBED: sum(int((~news[name].is_late).sum()) for name in self.slow),
        }
        if self.flat is not None and self.flat.how != "left":
            fates["dropped"] = counts["dropped"] = int(is_ready.sum()) - leaves.num_rows
        return Result(outputs, worth, out, counts, due_us, fates=fates)

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many main rows wait."""
        return int(state["waiting"].num_rows)

    # --- what is known --------------------------------------------------------------------------------------

    def _inputs(self, table: pa.Table) -> tuple[dict[str, int], int]:
        known = {row[INPUT]: row for row in table.to_pylist()}
        bounds = {name: known[name][BOUND] if name in known else UNBOUNDED for name in self.inputs}
        return bounds, known[MAIN][SEQ] if MAIN in known else 0

    def _touched(
        self,
        state: Mapping[str, pa.Table],
        arrivals: Mapping[str, Arrivals],
        everywhere: Mapping[str, int],
        at: StepTime,
    ) -> pa.Table:
        """Return the keys for which something may happen in this epoch."""
        key = self.key.names
        parts = [given.rows.select(key) for given in arrivals.values()]
        is_all = False
        for name, given in arrivals.items():
            parts.append(given.bounds.filter(pc.invert(given.bounds.column(ALL_KEYS))).select(key))
            highest = pc.max(given.bounds.filter(given.bounds.column(ALL_KEYS)).column(BOUND)).as_py()
            is_all = is_all or (highest is not None and highest > everywhere[name])
        if is_all:  # a bound for all keys may let rows of any key go
            parts += [state[name].select(key) for name in state if name != "inputs"]
        elif any(self.promises[name].is_whole and given.rows.num_rows for name, given in arrivals.items()):
            parts.append(state["waiting"].select(key))  # so may a row of another key
            parts += [_repeated(state[f"slow_{name}"], key) for name in self.slow if arrivals[name].rows.num_rows]
        if not is_all and self.idle_us is not None and not self._is_nobody_idle(at, self.idle_us):
            waiting = state["waiting"]
            parts.append(waiting.filter(pc.less_equal(waiting.column(SINCE), at.batch_us - self.idle_us)).select(key))
        schema = pa.schema([field.with_nullable(True) for field in self.key])
        together = tables.united(parts, schema)
        return joins.distinct_keys(together, key)

    def _is_nobody_idle(self, at: StepTime, idle_us: int) -> bool:
        return all(at.heard_us.get(name, UNBOUNDED) > at.batch_us - idle_us for name in self.inputs)

    def _bounds(self, table: pa.Table, touched: pa.Table) -> dict[str, Ticks]:
        """Return each input's own bounds of the touched keys."""
        known = joins.semi_join(table, touched, self.key.names)
        codes = joins.index_in(known, touched, self.key.names)
        inputs = joins.index_in(known, pa.table({INPUT: list(self.inputs)}), [INPUT])
        values = keyed.ticks(known.column(BOUND))
        bounds = {}
        for number, name in enumerate(self.inputs):
            one = np.full(touched.num_rows, UNBOUNDED, np.int64)
            mine = inputs == number
            one[codes[mine]] = values[mine]
            bounds[name] = one
        return bounds

    def _late(self, arrivals: Mapping[str, Arrivals], news: Mapping[str, InputReport]) -> pa.Table:
        """Return the late rows of all inputs in the order of their arrival."""
        parts, places = [], []
        for name, new in news.items():
            rows = arrivals[name].rows.filter(pa.array(new.is_late))
            before = new.before[new.is_late]
            parts.append(keyed.late_rows(self.outputs["late"], name, rows, self.times[name], before, f"of {name}"))
            places.append(keyed.ticks(rows.column(PLACE)))
        return tables.united(parts).take(pa.array(np.argsort(np.concatenate(places))))

    # --- what goes ------------------------------------------------------------------------------------------

    def _ready(
        self,
        waiting: pa.Table,
        codes: Ticks,
        times: Ticks,
        now: Mapping[str, Ticks],
        news: Mapping[str, InputReport],
        at: StepTime,
    ) -> tuple[npt.NDArray[np.bool_], dict[str, Ticks], Ticks]:
        """Return which waiting rows go, each key's own bounds after that, and since when each row's wait counts."""
        own = {name: new.bounds for name, new in news.items()}
        since = keyed.ticks(waiting.column(SINCE))
        ready = np.ones(len(times), np.bool_)
        for name in self.inputs:
            bound = now[name][codes]
            is_blocked = times > bound if name == MAIN else times >= bound
            ready &= ~is_blocked
            since = np.where(is_blocked, at.silent_since(name, since), since)
        if self.idle_us is None or not len(times):
            return ready, own, since
        is_tired = ~ready & (since <= at.batch_us - self.idle_us)
        # A row that has waited long enough is emitted, with those before it; later rows below it are late.
        limit = np.full(len(own[MAIN]), UNBOUNDED, np.int64)
        np.maximum.at(limit, codes[is_tired], times[is_tired])
        own = {
            name: np.maximum(bound, limit if name == MAIN else np.where(limit > UNBOUNDED, limit + 1, limit))
            for name, bound in own.items()
        }
        has_limit = limit > UNBOUNDED
        return ready | (has_limit[codes] & (times <= limit[codes])), own, since

    def _due(self, stays: Ticks, waiting: pa.Table, touched: pa.Table, at: StepTime) -> int | None:
        """Return when a row will have waited long enough: one of those that stay, or of keys not checked now."""
        if self.idle_us is None:
            return None
        others = joins.anti_join(waiting, touched, self.key.names)
        # What they wait for is not known here: an epoch too early for one of them checks it, and then knows.
        active_us = min(at.heard_us.get(name, UNBOUNDED) for name in self.inputs)
        since = np.concatenate([stays, np.maximum(keyed.ticks(others.column(SINCE)), active_us)])
        return int(since.min()) + self.idle_us if len(since) else None

    def _order(self, waiting: pa.Table, times: Ticks, is_ready: npt.NDArray[np.bool_]) -> Ticks:
        """Return the rows that go, by time, key and arrival."""
        chosen = np.flatnonzero(is_ready)
        ready = waiting.select([*self.key.names, SEQ]).take(pa.array(chosen))
        ready = ready.append_column(BOUND, pa.array(times[chosen], pa.int64()))
        by = [(BOUND, "ascending"), *((name, "ascending") for name in self.key.names), (SEQ, "ascending")]
        order: Ticks = chosen[np.asarray(pc.sort_indices(ready, sort_keys=by))]
        return order

    def _slow(self, known: pa.Table, rows: pa.Table, name: str, new: InputReport, touched: pa.Table) -> pa.Table:
        """Return all slow rows of the touched keys by key and time; of one time the last to arrive."""
        fresh = rows.filter(pa.array(~new.is_late)).drop_columns([PLACE])
        rows = tables.united([known, fresh], known.schema)
        codes = joins.index_in(rows, touched, self.key.names)
        times = keyed.ticks(rows.column(self.times[name]))
        order = np.lexsort((np.arange(len(times)), times, codes))
        is_last = np.ones(len(order), bool)
        is_last[:-1] = (np.diff(codes[order]) != 0) | (np.diff(times[order]) != 0)
        return rows.take(pa.array(order[is_last]))

    def _merged(
        self, main: pa.Table, codes: Ticks, times: Ticks, slow: Mapping[str, pa.Table], touched: pa.Table
    ) -> pa.Table:
        columns = [main.column(name) for name in self.inputs[MAIN].names]
        for name in self.slow:
            rows = slow[name]
            of_rows = joins.index_in(rows, touched, self.key.names)
            found = latest(codes, times, of_rows, keyed.ticks(rows.column(self.times[name])))
            if self.tolerance is not None and len(found):
                theirs = keyed.ticks(rows.column(self.times[name]))
                near = (found >= 0) & (times - theirs[np.maximum(found, 0)] <= self.tolerance) if len(theirs) else False
                found = np.where(near, found, -1)
            indices = pa.array(np.maximum(found, 0), mask=found < 0)
            columns.append(keyed.structs(rows.take(indices), self._struct(name), found >= 0))
        return pa.Table.from_arrays(columns, schema=self._with_structs)

    def _unmatched(self, rows: pa.Table) -> pa.Table:
        """Return those of the merged rows that no slow row was found for."""
        is_alone, main_count = np.ones(rows.num_rows, bool), len(self.inputs[MAIN])
        for place in range(main_count, rows.num_columns):  # a main column may have the name of a look-up's table
            is_alone &= np.asarray(rows.column(place).is_null())
        main = rows.select(list(range(main_count))).filter(pa.array(is_alone))
        within = "" if self.tolerance is None else ", within the tolerance"
        reason = f"no row of {', '.join(self.slow)} at or before its timestamp{within}"
        why = pa.repeat(reason, main.num_rows)
        return keyed.side_rows(self.outputs["unmatched"], MAIN, main, self.times[MAIN], why)

    # --- what stays -----------------------------------------------------------------------------------------

    def _kept(self, known: pa.Table, name: str, rows: pa.Table, touched: pa.Table, floor: Ticks) -> Change:
        """Return the change of a slow table: a key's rows above its floor stay, and the latest at or below it."""
        declared = self.tables[f"slow_{name}"]
        key = list(declared.key)
        codes = joins.index_in(rows, touched, self.key.names)
        times = keyed.ticks(rows.column(self.times[name]))
        floors = floor[codes]
        is_below = times <= floors
        is_followed = np.zeros(len(times), bool)  # rows are by key and time
        is_followed[:-1] = (codes[1:] == codes[:-1]) & is_below[1:]
        needless = is_below & (is_followed | (floors == CLOSED))
        if self.tolerance is not None:
            needless |= is_below & (floors > times + self.tolerance)
        gone = rows.filter(pa.array(needless)).select(key)
        stays = rows.filter(pa.array(~needless))
        return Change(self._new(known, stays, key), joins.semi_join(known.select(key), gone, key))

    def _new(self, known: pa.Table, rows: pa.Table, key: list[str]) -> pa.Table:
        """Return the rows that the state does not hold: new ones, and those that replace one of their time."""
        at = joins.index_in(rows, known, key)
        is_new = at < 0
        both = np.flatnonzero(~is_new)
        if len(both):
            ours, theirs = rows.take(pa.array(both)), known.take(pa.array(at[both]))
            for name in rows.schema.names:
                same = ours.column(name).combine_chunks().equals(theirs.column(name).combine_chunks())
                if not same:
                    is_new[both] = True  # rare: a time was set again; all of the key's shared times are written
                    break
        return rows.filter(pa.array(is_new))

    def _bound_changes(self, touched: pa.Table, own: Mapping[str, Ticks], at: StepTime) -> Change:
        declared = self.tables["bounds"]
        parts = []
        for name in self.inputs:
            is_told = own[name] > UNBOUNDED
            keys = touched.filter(pa.array(is_told))
            count = keys.num_rows
            columns = [
                *keys.columns,
                pa.repeat(pa.scalar(name), count),
                pa.array(own[name][is_told]),
                pa.repeat(pa.scalar(at.batch_us), count),
            ]
            parts.append(pa.Table.from_arrays(columns, schema=declared.schema))
        return Change(tables.united(parts), tables.empty(tables.key_schema(declared)))

    def _inputs_change(self, before: pa.Table, everywhere: Mapping[str, int], seq: int) -> Change:
        declared = self.tables["inputs"]
        rows = [
            {INPUT: name, BOUND: bound, SEQ: seq if name == MAIN else 0}
            for name, bound in everywhere.items()
            if bound > UNBOUNDED or (name == MAIN and seq)
        ]
        known = before.to_pylist()
        changed = [row for row in rows if row not in known]
        return Change(pa.Table.from_pylist(changed, schema=declared.schema), tables.empty(tables.key_schema(declared)))

    def _forget(
        self, state: Mapping[str, pa.Table], touched: pa.Table, changes: dict[str, Change], at: StepTime
    ) -> int:
        """Add the deletes of keys of which nothing arrived for long and nothing waits."""
        key = self.key.names
        if self.forget_us is None:
            return 0
        bounds = state["bounds"]
        is_old = pc.less_equal(bounds.column(SINCE), at.batch_us - self.forget_us)
        old = joins.distinct_keys(bounds.filter(is_old), key)
        for alive in (touched, bounds.filter(pc.invert(is_old)), state["waiting"]):
            old = joins.anti_join(old, alive, key)
        if old.num_rows:
            for name in ("bounds", *(f"slow_{slow}" for slow in self.slow)):
                gone = joins.semi_join(state[name], old, key).select(list(self.tables[name].key))
                change = changes[name]
                changes[name] = Change(change.upserts, tables.united([change.deletes, gone]))
        return int(old.num_rows)

    def _output_bounds(
        self, touched: pa.Table, floor: Ticks, everywhere: int, waiting: pa.Table, change: Change
    ) -> pa.Table:
        """Return the bounds of the merged rows: no row below what may arrive or still waits."""
        schema = tables.bounds_schema(self.key)
        is_told = floor > UNBOUNDED
        keys = touched.filter(pa.array(is_told))
        columns = [*keys.columns, pa.repeat(pa.scalar(False), keys.num_rows), pa.array(floor[is_told])]
        parts = [pa.Table.from_arrays(columns, schema=schema)]
        if everywhere > UNBOUNDED:
            left = tables.apply_change(waiting, self.tables["waiting"], change).column(self.times[MAIN])
            least = min(everywhere, int(keyed.ticks(left).min())) if len(left) else everywhere
            nulls = [pa.nulls(1, field.type) for field in self.key]
            parts.append(pa.Table.from_arrays([*nulls, pa.array([True]), pa.array([least])], schema=schema))
        return tables.united(parts)


def _repeated(rows: pa.Table, key: list[str]) -> pa.Table:
    """Return the keys of several rows each: of which older ones may be needed no more."""
    codes = joins.key_codes(rows, key)
    return rows.select(key).filter(pa.array(np.bincount(codes)[codes] > 1)) if rows.num_rows else rows.select(key)


def latest(codes: Ticks, times: Ticks, of_slow: Ticks, slow: Ticks) -> Ticks:
    """Return for each (key, time) the last slow row of the key at or before it, or -1.

    Parameters
    ----------
    codes, times : numpy arrays of int64
        Key number and time of the rows that look.
    of_slow, slow : numpy arrays of int64
        Key number and time of the rows searched, ascending by both.

    Examples
    --------
    >>> latest(np.array([0, 0, 1]), np.array([5, 1, 9]), np.array([0, 0, 1]), np.array([2, 4, 10])).tolist()
    [1, -1, -1]
    """
    if not len(slow) or not len(times):
        return np.full(len(times), -1, np.int64)
    ranks = np.unique(np.concatenate([times, slow]))
    line = of_slow * len(ranks) + np.searchsorted(ranks, slow)
    at = np.searchsorted(line, codes * len(ranks) + np.searchsorted(ranks, times), side="right") - 1
    return np.where((at >= 0) & (of_slow[np.maximum(at, 0)] == codes), at, -1).astype(np.int64)
