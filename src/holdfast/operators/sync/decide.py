"""What each input policy decides in an epoch: which rows are emitted in which set, which wait, which are dropped.

One function for each policy, over whole arrays.  The rules are in design/0007-synchronisation.md, by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow
from holdfast.operators.sync import ask, queues
from holdfast.operators.sync.custom import DROPS, WAITS, Custom
from holdfast.operators.sync.epoch import SENT, Epoch, Pool, offset_column, whole
from holdfast.operators.sync.nearest import mutual_nearest
from holdfast.operators.sync.policy import (
    Barrier,
    EarlyClose,
    FixedSize,
    Immediate,
    Mux,
    TimestampAlign,
    Within,
)
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import checks, joins, timeline
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints

WAIT, EMIT, DROP, FORGET = 0, 1, 2, 3
Fates = npt.NDArray[np.int8]


@dataclass(frozen=True)
class SetDecision:
    """What happens to each row of each pool.

    Parameters
    ----------
    fates : sequence of array
        For each input and row of its pool: WAIT, EMIT (into a set), DROP (to the side output), or FORGET (it was in
        a set before, and it is no longer used).
    rows : sequence of array of int64
        For each input: the rows of its pool that leave in sets.
    ranks : sequence of tuple of array of int64
        For each input: what identifies and orders the set of each of these rows, the weightiest first; not negative.
    times : sequence of array of int64
        For each input: the timestamp of the set of each of these rows.
    settled : array of int64
        For each key: the bound of the output.
    needs : array of int64, keys x inputs
        A waiting row of the key waits on an input while that one's bound is at or below this.
    columns : mapping of str to array of int64
        Columns of the keys' state that the policy keeps.
    dropped_because : str
        Why rows are dropped, for the side output.
    """

    fates: Sequence[Fates]
    rows: Sequence[Ints]
    ranks: Sequence[tuple[Ints, ...]]
    times: Sequence[Ints]
    settled: Ints
    needs: Ints
    columns: Mapping[str, Ints] = field(default_factory=dict)
    dropped_because: str = ""


def decide(step: SyncRules, epoch: Epoch) -> SetDecision:
    """Return what the step's policy makes of the epoch."""
    match step.policy:
        case Immediate():
            return _immediate(epoch)
        case Barrier():
            return _barrier(epoch)
        case EarlyClose():
            return _early_close(epoch)
        case FixedSize():
            return _fixed_size(step.policy, epoch)
        case Mux():
            return _mux(step, step.policy, epoch)
        case TimestampAlign():
            return _timestamp_align(step, step.policy, epoch)
        case Within():
            return _within(step, step.policy, epoch)
        case Custom():
            return _custom(step, step.policy, epoch)
        case _:
            return _settled(step, epoch)


def _by_time(epoch: Epoch, fates: Sequence[Fates], settled: Ints, **more: object) -> SetDecision:
    """Return the decision in which a set is all rows of one timestamp."""
    rows = _emitted(fates)
    at = [pool.at if len(chosen) == len(pool.at) else pool.at[chosen] for pool, chosen in _each(epoch.pools, rows)]
    key = [pool.key if len(chosen) == len(pool.key) else pool.key[chosen] for pool, chosen in _each(epoch.pools, rows)]
    ranks = [(when, whose) for when, whose in zip(_from_zero(at), key, strict=True)]
    needs = np.repeat(_first_waiting(epoch, fates)[:, None], len(epoch.pools), axis=1)
    return SetDecision(fates, rows, ranks, at, settled, needs, **more)  # type: ignore[arg-type]


def _settled(step: SyncRules, epoch: Epoch) -> SetDecision:
    if len(step.groups) == 1:
        settled = timeline.settled_before(epoch.bounds)
        return _by_time(epoch, [_fate(pool.at < settled[pool.key]) for pool in epoch.pools], settled)
    return _sync_sets(step, epoch)


def _sync_sets(step: SyncRules, epoch: Epoch) -> SetDecision:
    pools, count = epoch.pools, len(epoch.pools)
    group_of = np.empty(count, np.int64)
    settled = np.empty((epoch.keys.num_rows, len(step.groups)), np.int64)
    for place, group in enumerate(step.groups):
        group_of[list(group)] = place
        settled[:, place] = timeline.settled_before(epoch.bounds[:, list(group)])
    fates = [_fate(pool.at < settled[pool.key, group_of[i]]) for i, pool in enumerate(pools)]
    rows = _emitted(fates)
    first = np.full(settled.shape, CLOSED, np.int64)
    for i, (pool, chosen) in enumerate(_each(pools, rows)):
        np.minimum.at(first[:, group_of[i]], pool.key[chosen], pool.at[chosen])
    ahead = _group_that_settled_first(step, epoch, first)
    at = [pool.at[chosen] for pool, chosen in _each(pools, rows)]
    key = [pool.key[chosen] for pool, chosen in _each(pools, rows)]
    ranks = []
    for i, when in enumerate(_from_zero(at)):
        is_ahead = (ahead[key[i]] == group_of[i]) & (at[i] == first[key[i], group_of[i]])
        ranks.append((1 - is_ahead.astype(np.int64), when, key[i], np.full(len(when), group_of[i])))
    needs = np.empty((epoch.keys.num_rows, count), np.int64)
    for group in step.groups:
        waiting = _first_waiting(epoch, fates, group)
        for i in group:
            needs[:, i] = waiting
    return SetDecision(fates, rows, ranks, at, settled.min(axis=1), needs)


def _group_that_settled_first(step: SyncRules, epoch: Epoch, first: Ints) -> Ints:
    """Return for each key the group whose first set was ready before those of the others."""
    ready = np.full(first.shape, CLOSED, np.int64)
    for place, group in enumerate(step.groups):
        wanted = first[:, place]
        ready[:, place] = np.max([_reached(epoch, i, wanted) for i in group], axis=0)
    ready[first == CLOSED] = CLOSED
    return np.asarray(np.argmin(ready, axis=1), np.int64)


def _reached(epoch: Epoch, i: int, wanted: Ints) -> Ints:
    """Return for each key the place at which an input's bound went above a time; -1: it was there before."""
    event = epoch.events[i]
    place = np.full(len(wanted), CLOSED, np.int64)
    above = event.value > wanted[event.key]
    np.minimum.at(place, event.key[above], event.place[above])
    for value, where in zip(event.all_value, event.all_place, strict=True):  # few: bounds for all keys
        place = np.where(value > wanted, np.minimum(place, where), place)
    return np.where(epoch.before[:, i] > wanted, -1, place)


def _immediate(epoch: Epoch) -> SetDecision:
    pools = epoch.pools
    first = np.full(epoch.keys.num_rows, CLOSED, np.int64)
    for pool in pools:
        np.minimum.at(first, pool.key, pool.order)
    rows = [np.arange(len(pool.key)) for pool in pools]
    ranks = []
    for pool, when in zip(pools, _from_zero([pool.at for pool in pools]), strict=True):
        # The first row finds the operator idle and goes alone; rows that arrive meanwhile are joined.
        ranks.append(((pool.order != first[pool.key]).astype(np.int64), when, pool.key))
    nothing = np.full(epoch.bounds.shape, UNBOUNDED, np.int64)
    fates = [np.full(len(pool.key), EMIT, np.int8) for pool in pools]
    return SetDecision(fates, rows, ranks, [pool.at for pool in pools], timeline.settled_before(epoch.bounds), nothing)


def _barrier(epoch: Epoch) -> SetDecision:
    pools, key_count = epoch.pools, epoch.keys.num_rows
    ranks, counts = [], np.zeros(epoch.bounds.shape, np.int64)
    for i, pool in enumerate(pools):
        rank, counts[:, i] = _rank_in_key(pool, key_count)
        ranks.append(rank)
    set_count = counts.min(axis=1)
    # An input that has ended and is used up ends the key: what waits elsewhere will never be matched.
    ended = ((epoch.bounds == CLOSED) & (counts == set_count[:, None])).any(axis=1)
    fates = [
        np.where(rank < set_count[pool.key], EMIT, np.where(ended[pool.key], DROP, WAIT)).astype(np.int8)
        for pool, rank in zip(pools, ranks, strict=True)
    ]
    rows = _emitted(fates)
    lowest = np.full((key_count, int(set_count.max(initial=0))), CLOSED, np.int64)
    for rank, (pool, chosen) in zip(ranks, _each(pools, rows), strict=True):
        np.minimum.at(lowest, (pool.key[chosen], rank[chosen]), pool.at[chosen])
    chosen_ranks = [
        (rank[chosen], pool.key[chosen]) for rank, (pool, chosen) in zip(ranks, _each(pools, rows), strict=True)
    ]
    times = [lowest[key, rank] for rank, key in chosen_ranks]
    is_missing = (counts == set_count[:, None]) & (counts.max(axis=1) > set_count)[:, None]
    needs = np.where(is_missing & ~ended[:, None], CLOSED, UNBOUNDED)
    settled = np.where(ended, CLOSED, UNBOUNDED)
    return SetDecision(
        fates, rows, chosen_ranks, times, settled, needs, dropped_because="barrier: another input has ended"
    )


def _early_close(epoch: Epoch) -> SetDecision:
    ends = _ends(epoch)
    settled = timeline.settled_before(epoch.bounds)
    # Until the ended input is used up all stays: whether another one was empty when it ended can still count.
    is_over = (settled >= ends) | (ends == UNBOUNDED + 1)
    fates = [
        np.where(pool.at < np.minimum(settled, ends)[pool.key], EMIT, np.where(is_over[pool.key], DROP, WAIT)).astype(
            np.int8
        )
        for pool in epoch.pools
    ]
    reached = np.where(is_over, CLOSED, settled)
    because = "early_close: another input has ended"
    return _by_time(epoch, fates, reached, columns={"ends": ends}, dropped_because=because)


def _ends(epoch: Epoch) -> Ints:
    """Return for each key the time from which on no set is made, because an input has ended before; CLOSED: none."""
    ends = epoch.column("ends", CLOSED)
    # An input ended for all keys while this one had nothing waiting: it ended the key.
    had_ended = (epoch.before == CLOSED).any(axis=1)
    ends = np.where(had_ended & (ends == CLOSED), UNBOUNDED + 1, ends)  # null means UNBOUNDED
    # Sets that were settled before the epoch have left; of an input that ends in it only what it has is used up.
    settled = timeline.settled_before(epoch.before)
    for i, pool in enumerate(epoch.pools):
        closing = (epoch.before[:, i] < CLOSED) & (epoch.bounds[:, i] == CLOSED)
        if not closing.any():
            continue
        last = np.full(len(ends), UNBOUNDED, np.int64)
        np.maximum.at(last, pool.key, pool.at)
        end = np.maximum(np.maximum(settled, timeline.shifted(last, 1)), UNBOUNDED + 1)
        ends = np.where(closing, np.minimum(ends, end), ends)
    return ends


def _mux(step: SyncRules, policy: Mux, epoch: Epoch) -> SetDecision:
    control = list(step.inputs).index(policy.select)
    data = [i for i in range(len(epoch.pools)) if i != control]
    pool = epoch.pools[control]
    chosen = np.array(data, np.int64)[choices(step, policy, pool.table)]
    is_ready = (pool.at < epoch.bounds[pool.key, control]) & (pool.at < epoch.bounds[pool.key, chosen])
    # In order: a control row that cannot go yet delays those after it.
    head = np.full(epoch.keys.num_rows, CLOSED, np.int64)
    np.minimum.at(head, pool.key[~is_ready], pool.at[~is_ready])
    goes = pool.at < head[pool.key]
    fates: list[Fates] = [np.empty(0, np.int8)] * len(epoch.pools)
    fates[control] = _fate(goes)
    # No control row chooses a time any more that is below the first waiting one, or below the control's bound.
    passed = np.minimum(head, epoch.bounds[:, control])
    wanted = pa.table({"key": pool.key[goes], "at": pool.at[goes], "input": chosen[goes]})
    for i in data:
        other = epoch.pools[i]
        look = pa.table({"key": other.key, "at": other.at, "input": np.full(len(other.key), i)})
        is_chosen = np.asarray(joins.member_mask(look, wanted, ["key", "at", "input"])).astype(bool)
        fates[i] = np.where(is_chosen, EMIT, np.where(other.at < passed[other.key], DROP, WAIT)).astype(np.int8)
    needs = np.full(epoch.bounds.shape, UNBOUNDED, np.int64)
    at_head = ~goes & (pool.at == head[pool.key])
    needs[pool.key[at_head], chosen[at_head]] = pool.at[at_head]
    for i in data:
        other = epoch.pools[i]
        still = other.key[fates[i] == WAIT]
        needs[still, control] = np.maximum(
            needs[still, control], np.where(head[still] == CLOSED, epoch.bounds[still, control], UNBOUNDED)
        )
    decision = _by_time(epoch, fates, passed, dropped_because="mux: not chosen by the control row of its time")
    return SetDecision(
        decision.fates,
        decision.rows,
        decision.ranks,
        decision.times,
        decision.settled,
        needs,
        dropped_because=decision.dropped_because,
    )


def choices(step: SyncRules, policy: Mux, table: pa.Table) -> Ints:
    """Return for each control row the data input that it chooses, as a place among the data inputs.

    Raises
    ------
    BadRow
        If a choice is null or no data input.
    """
    names = [name for name in step.inputs if name != policy.select]
    column = table.column(step.mux_column)
    if pa.types.is_integer(column.type):
        found = whole(column.cast(pa.int64()), -1)
    else:
        found = whole(pc.cast(pc.index_in(column, value_set=pa.array(names, column.type)), pa.int64()), -1)
    wrong = (found < 0) | (found >= len(names))
    if wrong.any():
        bad = table.filter(pa.array(wrong))
        raise BadRow(
            f"{bad.num_rows} row(s) of input {policy.select!r} choose no data input in {step.mux_column!r}.",
            why=f"the data inputs are {', '.join(f'{n} ({name})' for n, name in enumerate(names))}; "
            f"the first: {checks.first_rows(bad)}.",
            do='give each control row one of these, or drop such rows before: stream | hf.filter("...").',
        )
    return found


def _timestamp_align(step: SyncRules, policy: TimestampAlign, epoch: Epoch) -> SetDecision:
    pools, key_count = epoch.pools, epoch.keys.num_rows
    base = list(step.inputs).index(policy.base)
    offsets, alone_below = _offsets(step, base, epoch)
    is_aligned = offsets[:, base] == 0
    at = [
        pool.at if i == base else np.where(is_aligned[pool.key], timeline.shifted(pool.at, offsets[pool.key, i]), 0)
        for i, pool in enumerate(pools)
    ]
    bounds = timeline.shifted(epoch.bounds, np.where(is_aligned[:, None], offsets, 0))
    settled = np.where(is_aligned, timeline.settled_before(bounds), epoch.bounds[:, base])
    fates = []
    for i, pool in enumerate(pools):
        goes = is_aligned[pool.key] & (at[i] < settled[pool.key])
        if i == base:
            goes |= pool.at < alone_below[pool.key]
        fates.append(_fate(goes))
    rows = _emitted(fates)
    chosen_at = [times[chosen] for times, chosen in zip(at, rows, strict=True)]
    ranks = []
    for i, when in enumerate(_from_zero(chosen_at)):
        key = pools[i].key[rows[i]]
        is_alone = (chosen_at[i] < alone_below[key]) if i == base else np.zeros(len(key), bool)
        ranks.append(((~is_alone).astype(np.int64), when, key))
    waiting = np.full(key_count, CLOSED, np.int64)
    for i, pool in enumerate(pools):
        stays = fates[i] == WAIT
        np.minimum.at(waiting, pool.key[stays], at[i][stays])
    needs = np.where(is_aligned[:, None], timeline.shifted(np.repeat(waiting[:, None], len(pools), 1), -offsets), 0)
    has_rows = np.column_stack([np.bincount(pool.key, minlength=key_count) > 0 for pool in pools])
    has_rows[:, base] = False
    unaligned = np.where(has_rows | (waiting == CLOSED)[:, None], UNBOUNDED, CLOSED)
    needs = np.where(is_aligned[:, None] & (waiting < CLOSED)[:, None], needs, unaligned)
    needs = np.where((waiting == CLOSED)[:, None], UNBOUNDED, needs)
    columns = {offset_column(name): offsets[:, i] for i, name in enumerate(step.inputs)}
    return SetDecision(fates, rows, ranks, chosen_at, settled, needs, columns)


def _offsets(step: SyncRules, base: int, epoch: Epoch) -> tuple[Ints, Ints]:
    """Return the shift of each input (UNBOUNDED: not known yet), and the time below which base rows go alone."""
    pools, key_count = epoch.pools, epoch.keys.num_rows
    offsets = np.column_stack([epoch.column(offset_column(name), UNBOUNDED) for name in step.inputs])
    alone_below = np.full(key_count, UNBOUNDED, np.int64)
    heads, head_places = np.zeros((key_count, len(pools)), np.int64), np.full((key_count, len(pools)), CLOSED)
    for i, pool in enumerate(pools):
        order = np.full(key_count, CLOSED, np.int64)
        np.minimum.at(order, pool.key, pool.order)
        is_head = pool.order == order[pool.key]
        heads[pool.key[is_head], i] = pool.at[is_head]
        head_places[pool.key[is_head], i] = pool.place[is_head]
    others = [i for i in range(len(pools)) if i != base]
    ready_at = head_places[:, others].max(axis=1) if others else np.full(key_count, -1)
    is_new = (offsets[:, base] != 0) & (head_places[:, base] < CLOSED)
    first, first_place = heads[:, base], head_places[:, base]
    at_first = is_new & (ready_at < first_place)
    # The first base row found the others empty and went alone; whether the next ones do is decided when all have
    # arrived.
    is_new &= ~at_first
    pool = pools[base]
    second = np.full(key_count, CLOSED, np.int64)
    behind = is_new[pool.key] & (pool.at > first[pool.key])
    np.minimum.at(second, pool.key[behind], pool.at[behind])
    at_second = is_new & (ready_at < CLOSED) & (second < CLOSED)
    meeting = np.where(at_first, first, second)
    aligned = at_first | at_second
    offsets = np.where(aligned[:, None], meeting[:, None] - heads, offsets)
    offsets[aligned, base] = 0
    alone_below = np.where(at_second, second, np.where(is_new, CLOSED, alone_below))
    return offsets, alone_below


def _fixed_size(policy: FixedSize, epoch: Epoch) -> SetDecision:
    fates, kept = queues.fixed_size(policy, epoch)
    settled = timeline.settled_before(epoch.bounds)
    because = "fixed_size: newer rows were kept in its place"
    return _by_time(epoch, fates, settled, columns={"kept": kept}, dropped_because=because)


def _within(step: SyncRules, policy: Within, epoch: Epoch) -> SetDecision:
    pools = epoch.pools
    base = 0 if policy.base is None else list(step.inputs).index(policy.base)
    settled = timeline.settled_before(epoch.bounds)
    # Whether two rows are each other's nearest is known when all is known up to twice the tolerance beyond them.
    final = timeline.shifted(settled, -step.reach)
    sent = [np.asarray(pool.table.column(SENT)).astype(bool) for pool in pools]
    set_at = [pool.at.copy() for pool in pools]
    set_order = [pool.order.copy() for pool in pools]
    matched = [np.zeros(len(pool.key), bool) for pool in pools]
    for i, pool in enumerate(pools):
        if i != base:
            theirs, ours = mutual_nearest(pools[base], pool, step.tolerance)
            set_at[i][ours] = pools[base].at[theirs]
            set_order[i][ours] = pools[base].order[theirs]
            matched[i][ours] = True
    fates = [
        np.where(~sent[i] & (set_at[i] < final[pool.key]), EMIT, WAIT).astype(np.int8) for i, pool in enumerate(pools)
    ]
    rows = _emitted(fates)
    chosen_at = [times[chosen] for times, chosen in zip(set_at, rows, strict=True)]
    ranks = []
    for i, when in enumerate(_from_zero(chosen_at)):
        # The set of a base row and all its matches has the base's number; a single row has its own.
        of = np.where(matched[i][rows[i]], base, i)
        ranks.append((when, pools[i].key[rows[i]], np.where(of == base, 0, of + 1), set_order[i][rows[i]]))
    forget = timeline.shifted(final, -step.reach)
    for i, pool in enumerate(pools):
        gone = (fates[i] != EMIT) & sent[i] & (pool.at < forget[pool.key])
        fates[i][gone] = FORGET
    unsent = [np.where(sent[i] | (fates[i] == EMIT), EMIT, fate).astype(np.int8) for i, fate in enumerate(fates)]
    waiting = timeline.shifted(_first_waiting(epoch, unsent), step.reach)
    needs = np.repeat(np.where(waiting == CLOSED, UNBOUNDED, waiting)[:, None], len(pools), axis=1)
    return SetDecision(fates, rows, ranks, chosen_at, final, needs)


def _custom(step: SyncRules, policy: Custom, epoch: Epoch) -> SetDecision:
    answers = ask.answers(step, policy, epoch)
    fates = [np.where(at == WAITS, WAIT, np.where(at == DROPS, DROP, EMIT)).astype(np.int8) for at in answers]
    rows = _emitted(fates)
    times = [at[chosen] for at, chosen in zip(answers, rows, strict=True)]
    keys = [pool.key[chosen] for pool, chosen in _each(epoch.pools, rows)]
    ranks = [(when, whose) for when, whose in zip(_from_zero(times), keys, strict=True)]
    settled = timeline.shifted(timeline.settled_before(epoch.bounds), -step.reach)
    waits = ask.needs(step, epoch, [fate == WAIT for fate in fates])
    because = f"custom: {policy.name} lets it leave in no set"
    return SetDecision(fates, rows, ranks, times, settled, waits, dropped_because=because)


def _fate(goes: Bools) -> Fates:
    return goes.astype(np.int8)  # EMIT is 1 and WAIT is 0


def _emitted(fates: Sequence[Fates]) -> list[Ints]:
    return [np.flatnonzero(fate == EMIT) for fate in fates]


def _each(pools: Sequence[Pool], rows: Sequence[Ints]) -> list[tuple[Pool, Ints]]:
    return list(zip(pools, rows, strict=True))


def _from_zero(times: Sequence[Ints]) -> list[Ints]:
    """Return times as numbers from zero on, in the same order; spread out ones become ranks."""
    present = [part for part in times if len(part)]
    if not present:
        return list(times)
    low, high = min(int(part.min()) for part in present), max(int(part.max()) for part in present)
    if high - low < 2**62:
        return [part - low for part in times]
    distinct = np.unique(np.concatenate(present))
    return [np.searchsorted(distinct, part) for part in times]


def _first_waiting(epoch: Epoch, fates: Sequence[Fates], among: Sequence[int] | None = None) -> Ints:
    """Return for each key the earliest timestamp that still waits; UNBOUNDED where none does."""
    first = np.full(epoch.keys.num_rows, CLOSED, np.int64)
    for i in range(len(epoch.pools)) if among is None else among:
        stays = fates[i] == WAIT
        if stays.any():
            np.minimum.at(first, epoch.pools[i].key[stays], epoch.pools[i].at[stays])
    return np.where(first == CLOSED, UNBOUNDED, first)


def _rank_in_key(pool: Pool, key_count: int) -> tuple[Ints, Ints]:
    """Return each row's number among its key's rows by order, and the number of rows of each key."""
    counts = np.bincount(pool.key, minlength=key_count).astype(np.int64)
    sorting = np.lexsort((pool.order, pool.key))
    rank = np.empty(len(pool.key), np.int64)
    starts = np.cumsum(counts) - counts
    rank[sorting] = np.arange(len(pool.key)) - starts[pool.key[sorting]]
    return rank, counts
