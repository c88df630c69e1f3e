"""Gathers the input of one epoch of a sync and what waits there already: keys become codes, bounds a matrix.

Only keys that the epoch touches are processed; all keys with waiting rows where a bound for all keys rose or time alone
may release rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.sync.epoch import (
    INPUTS,
    KEYS,
    ORDER,
    PLACES,
    SENT,
    SINCE,
    Epoch,
    Events,
    Late,
    Pool,
    bound_column,
    waiting_table,
    whole,
)
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import checks, joins, tables, timeline
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals, StepTime
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints


def coded(parts: Sequence[pa.Table], on: Sequence[str]) -> tuple[pa.Table, list[Ints]]:
    """Return the distinct keys of several tables, ascending, and for each table the code of each row's key."""
    together = tables.united([part.select(list(on)) for part in parts])
    if not on:
        count = sum(part.num_rows for part in parts)
        one = parts[0].select([]) if count == 0 else pa.table({"one": [0]}).select([])
        return one, [np.zeros(part.num_rows, np.int64) for part in parts]
    codes = joins.key_codes(together, on)
    highest = np.maximum.accumulate(codes)
    first = np.flatnonzero(np.r_[True, codes[1:] > highest[:-1]]) if len(codes) else np.empty(0, np.int64)
    distinct = together.take(pa.array(first))
    ascending = np.asarray(pc.sort_indices(distinct, sort_keys=[(name, "ascending") for name in on]))
    rank = np.empty(len(ascending), np.int64)
    rank[ascending] = np.arange(len(ascending))
    codes = rank[codes]
    ends = np.cumsum([part.num_rows for part in parts])[:-1]
    return distinct.take(pa.array(ascending)), list(np.split(codes, ends))


def stable_order(codes: Ints, count: int) -> Ints:
    """Return the stable order of codes below ``count``; small codes are sorted by radix."""
    small = codes.astype(np.uint16) if count <= 2**16 else codes
    return np.argsort(small, kind="stable")


def gather(
    step: SyncRules, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime
) -> Epoch | None:
    """Return what the epoch is about, or None when there is nothing to do.

    Raises
    ------
    BadRow
        If a key column or a timestamp is null.
    """
    names, by = list(step.inputs), step.key.names
    rows = [arrivals[name].rows for name in names]
    for name, time, table in zip(names, step.times, rows, strict=True):
        checks.require_values(table, [*by, time], name)
    all_rows, key_rows = zip(*(_split_bounds(arrivals[name].bounds, by, name) for name in names), strict=True)
    all_before, seen_us = _all_bounds(state[INPUTS], names)
    all_bounds = np.array(
        [max([start, *whole(table.column(BOUND)).tolist()]) for start, table in zip(all_before, all_rows, strict=True)],
        np.int64,
    )
    all_signs = np.array([table.num_rows > 0 for table in all_rows])
    waiting = [state[waiting_table(name)] for name in names]
    is_scan = bool((all_bounds > all_before).any()) or step.idle_us is not None
    parts = [*rows, *key_rows, *(waiting if is_scan else [])]
    keys, codes = coded(parts, by)
    count = len(names)
    if keys.num_rows == 0 and not all_signs.any():
        return None
    if not by and (all_signs.any() or any(part.num_rows for part in parts)):
        keys = pa.table({"one": [0]}).select([])
    row_codes, bound_codes = codes[:count], codes[count : 2 * count]
    wait_codes = codes[2 * count :] if is_scan else [joins.index_in(table, keys, by) for table in waiting]
    known_key = joins.index_in(state[KEYS], keys, by)
    known = state[KEYS]
    if (known_key < 0).any():
        known = known.filter(pa.array(known_key >= 0))
        known_key = known_key[known_key >= 0]
    own_before = np.full((keys.num_rows, count), UNBOUNDED, np.int64)
    for place, name in enumerate(names):
        if known.num_rows:
            own_before[known_key, place] = whole(known.column(bound_column(name)), UNBOUNDED)
    before = np.maximum(own_before, all_before)
    own = own_before.copy()
    touched = np.zeros((keys.num_rows, count), bool)
    pools, events, late = [], [], []
    orders = _orders([whole(table.column(PLACE)) for table in rows], at.epoch)
    for place in range(count):
        event, pool, missed, raised = _input(
            step,
            place,
            rows[place],
            row_codes[place],
            orders[place],
            key_rows[place],
            bound_codes[place],
            all_rows[place],
            waiting[place],
            wait_codes[place],
            before[:, place],
            own_before[:, place],
            at,
        )
        own[:, place] = raised
        touched[row_codes[place], place] = True
        touched[bound_codes[place], place] = True
        pools.append(pool)
        events.append(event)
        late.append(missed)
    bounds = np.maximum(own, all_bounds)
    seen_us = np.where(all_signs, at.batch_us, seen_us)
    return Epoch(
        keys,
        known,
        known_key,
        tuple(pools),
        tuple(events),
        tuple(late),
        before,
        own,
        bounds,
        touched,
        all_before,
        all_bounds,
        all_signs,
        seen_us,
    )


def _input(
    step: SyncRules,
    place: int,
    rows: pa.Table,
    codes: Ints,
    order: Ints,
    key_rows: pa.Table,
    bound_codes: Ints,
    all_rows: pa.Table,
    waiting: pa.Table,
    wait_codes: Ints,
    before: Ints,
    own: Ints,
    at: StepTime,
) -> tuple[Events, Pool, Late, Ints]:
    """Sort one input's rows into those in time and those late, and raise its bounds."""
    name, promise = list(step.inputs)[place], step.promises[place]
    times, places = whole(rows.column(step.times[place])), whole(rows.column(PLACE))
    values = promise.bounds_after(times) if step.has_time_order else np.full(len(times), UNBOUNDED, np.int64)
    event_key, event_place, event_value, event_time = codes, places, values, times
    if key_rows.num_rows:
        event_key = np.r_[codes, bound_codes]
        event_place = np.r_[places, whole(key_rows.column(PLACE))]
        event_value = np.r_[values, whole(key_rows.column(BOUND))]
        # A bound row is never late itself.
        event_time = np.r_[times, np.full(key_rows.num_rows, CLOSED, np.int64)]
        by_place = np.argsort(event_place, kind="stable")
    else:
        by_place = None
    key_of = event_key if by_place is None else event_key[by_place]
    sorting = stable_order(key_of, len(before))
    sorting = sorting if by_place is None else by_place[sorting]
    event = Events(
        event_key[sorting],
        event_place[sorting],
        event_value[sorting],
        whole(all_rows.column(PLACE)),
        whole(all_rows.column(BOUND)),
    )
    start = before[event.key]
    standing = timeline.bounds_before(event.key, event.value, start)
    if all_rows.num_rows:
        standing = np.maximum(standing, timeline.bound_at(event.place, event.all_place, event.all_value, UNBOUNDED))
    # Barrier ignores timestamps: a row misses only the end of its input.
    missed = event_time[sorting] < standing if step.has_time_order else standing == CLOSED
    if key_rows.num_rows:
        missed &= sorting < len(times)
    raised = timeline.raised_by(own, event.key, event.value)
    is_late = np.zeros(len(times), bool)
    below = np.empty(0, np.int64)
    if missed.any():
        late_rows = sorting[missed]
        is_late[late_rows] = True
        by_row = np.argsort(late_rows, kind="stable")
        below = standing[missed][by_row]
    pool = _pool(step, place, name, rows, codes, times, order, ~is_late, waiting, wait_codes, at)
    late = Late(
        rows.filter(pa.array(is_late)) if len(below) else rows.slice(0, 0), times[is_late], below, below < below
    )
    if promise.is_strict and promise.allows_repeats:
        pool, late = _without_repeats(pool, late)
    return event, pool, late, raised


def _pool(
    step: SyncRules,
    place: int,
    name: str,
    rows: pa.Table,
    codes: Ints,
    times: Ints,
    order: Ints,
    in_time: Bools,
    waiting: pa.Table,
    wait_codes: Ints,
    at: StepTime,
) -> Pool:
    schema = step.tables[waiting_table(name)].schema
    if not in_time.all():
        rows = rows.filter(pa.array(in_time))
        codes, times, order = codes[in_time], times[in_time], order[in_time]
    own = {ORDER: pa.array(order), SINCE: pa.array(np.full(len(order), at.batch_us, np.int64))}
    if SENT in schema.names:
        own[SENT] = pa.array(np.zeros(len(order), bool))
    came = pa.Table.from_arrays(
        [own[field.name] if field.name in own else rows.column(field.name) for field in schema], schema=schema
    )
    if (wait_codes < 0).any():
        waiting = waiting.filter(pa.array(wait_codes >= 0))
        wait_codes = wait_codes[wait_codes >= 0]
    if waiting.num_rows == 0:
        return Pool(came, codes, times, order, 0)
    table = tables.united([waiting, came])
    return Pool(
        table,
        np.r_[wait_codes, codes],
        np.r_[whole(waiting.column(step.times[place])), times],
        np.r_[whole(waiting.column(ORDER)), order],
        waiting.num_rows,
    )


def _without_repeats(pool: Pool, late: Late) -> tuple[Pool, Late]:
    """Move to the late rows those for which a row of the same key and timestamp came before."""
    sorting = np.lexsort((pool.order, pool.at, pool.key))
    key, at = pool.key[sorting], pool.at[sorting]
    again = np.zeros(len(key), bool)
    again[1:] = (key[1:] == key[:-1]) & (at[1:] == at[:-1])
    repeats = np.sort(sorting[again])
    if len(repeats) == 0:
        return pool, late
    stays = np.ones(len(key), bool)
    stays[repeats] = False
    columns = [name for name in late.rows.schema.names if name != PLACE]
    moved = pool.table.take(pa.array(repeats))
    rows = moved.select(columns).append_column(
        late.rows.schema.field(PLACE), pa.array(pool.order[repeats] % PLACES, pa.int64())
    )
    together = tables.united([late.rows, rows.select(late.rows.schema.names)])
    return (
        Pool(pool.table.filter(pa.array(stays)), pool.key[stays], pool.at[stays], pool.order[stays], pool.waited_count),
        Late(
            together,
            np.r_[late.at, pool.at[repeats]],
            np.r_[late.below, pool.at[repeats]],
            np.r_[late.is_repeat, np.ones(len(repeats), bool)],
        ),
    )


def _orders(places: Sequence[Ints], epoch: int) -> list[Ints]:
    """Return for each row its place among all rows of all epochs."""
    together = np.concatenate(places) if places else np.empty(0, np.int64)
    if len(together) and (together.min() < 0 or together.max() >= PLACES):
        together = np.searchsorted(np.sort(together), together)
    ends = np.cumsum([len(part) for part in places])[:-1]
    return np.split(together + np.int64(epoch) * PLACES, ends)


def _split_bounds(bounds: pa.Table, by: Sequence[str], name: str) -> tuple[pa.Table, pa.Table]:
    """Return the bound rows for all keys, and those for single keys."""
    if bounds.num_rows == 0:
        return bounds, bounds
    checks.require_values(bounds, [BOUND, PLACE], name)
    if not by:
        return bounds, bounds.slice(0, 0)
    for_all = pc.fill_null(bounds.column(ALL_KEYS), False)
    single = bounds.filter(pc.invert(for_all))
    checks.require_values(single, by, name)
    return bounds.filter(for_all), single


def _all_bounds(inputs: pa.Table, names: Sequence[str]) -> tuple[Ints, Ints]:
    bounds, seen = np.full(len(names), UNBOUNDED, np.int64), np.full(len(names), UNBOUNDED, np.int64)
    for row in inputs.to_pylist():  # one row for each input
        if row["input"] in names:
            place = names.index(row["input"])
            bounds[place], seen[place] = row["bound"], row["seen_us"]
    return bounds, seen
