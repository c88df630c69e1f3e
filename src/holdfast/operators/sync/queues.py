"""The queues of the policy ``fixed_size``: what is dropped, and what is emitted, for all keys together.

Timestamps are strict, so each queue is ascending and its rows are those after a *head*.  A head moves only at a *cut*,
where a queue has grown too long and all are cut to the newest rows, and where a set is taken.  So an epoch is a few
rounds: each finds, for every key, the next cut, or the first set that is ready before it.  Between two of them nothing
is dropped, so no row is processed on its own.  A key that is cut very often goes row by row
(:mod:`holdfast.operators.sync.queues_by_row`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.operators.sync.epoch import Epoch, Events, Pool
from holdfast.operators.sync.policy import FixedSize
from holdfast.operators.sync.queues_by_row import by_row
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints, bounds_before, shifted

_EMIT, _DROP = 1, 2
_ROUNDS = 16
"""Up to this many cuts of one key in one epoch are found for all keys together."""

_SIMPLE_ROUNDS = 4
"""After this many, where a cut follows from the rows alone, each event is checked, all of them together."""

_NEVER = CLOSED
"""A place after every event."""


class _Ranked:
    """Ascending values of each key, to be searched for all keys together."""

    def __init__(self, keys: Ints, values: Ints, key_count: int) -> None:
        self._distinct = np.unique(values)
        self._width = len(self._distinct) + 1
        self._line = keys * self._width + np.searchsorted(self._distinct, values)
        self.counts = np.bincount(keys, minlength=key_count).astype(np.int64)
        self.starts = np.cumsum(self.counts) - self.counts

    def below(self, keys: Ints, values: Ints, *, inclusive: bool = False) -> Ints:
        """Return how many values of each key are below one; with ``inclusive`` also those that are equal."""
        rank = np.searchsorted(self._distinct, values, side="right" if inclusive else "left")
        return np.searchsorted(self._line, keys * self._width + rank) - self.starts[keys]


class _Queue:
    """One input: its rows by key and arrival, and how its bounds rise."""

    def __init__(self, pool: Pool, events: Events, before: Ints) -> None:
        key_count = len(before)
        self.row = np.lexsort((pool.order, pool.key))
        key = pool.key[self.row]
        self._at = pool.at[self.row]
        self.places = pool.place[self.row]
        self._times = _Ranked(key, self._at, key_count)
        self._places = _Ranked(key, self.places, key_count)
        self.starts, self.counts = self._times.starts, self._times.counts
        self.key = key
        self._before = before
        rising = np.maximum(events.value, bounds_before(events.key, events.value, before[events.key]))
        self._bounds = _Ranked(events.key, rising, key_count)
        self._rising = rising
        self._event_key, self._event_place = events.key, events.place
        self._event_places = _Ranked(events.key, events.place, key_count)
        self._for_all = (events.all_place, np.maximum.accumulate(np.r_[np.int64(UNBOUNDED), events.all_value]))

    def at(self, keys: Ints, number: Ints, otherwise: int) -> Ints:
        """Return the time of the key's row of a number."""
        return self._picked(self._at, keys, number, otherwise)

    def place(self, keys: Ints, number: Ints) -> Ints:
        """Return the place at which the key's row of a number arrives; -1: it waited."""
        return self._picked(self.places, keys, number, _NEVER)

    def _picked(self, values: Ints, keys: Ints, number: Ints, otherwise: int) -> Ints:
        if not len(values):
            return np.full(len(keys), otherwise)
        is_there = (number >= 0) & (number < self.counts[keys])
        return np.where(is_there, values[np.where(is_there, self.starts[keys] + number, 0)], otherwise)

    def first_from(self, keys: Ints, time: Ints, *, behind: bool = False) -> Ints:
        """Return the number of the first row at or above a time; with ``behind`` above it."""
        return self._times.below(keys, time, inclusive=behind)

    def arrived(self, keys: Ints, place: Ints) -> Ints:
        """Return how many rows are there at a place."""
        return self._places.below(keys, place, inclusive=True)

    def bound(self, keys: Ints, place: Ints) -> Ints:
        """Return the bound at a place, its event included."""
        number = self._event_places.below(keys, place, inclusive=True)
        bound = self._before[keys]
        has_any = number > 0
        if has_any.any():
            where = np.where(has_any, self._bounds.starts[keys] + number - 1, 0)
            bound = np.where(has_any, np.maximum(bound, self._rising[where]), bound)
        places, steps = self._for_all
        return np.maximum(bound, steps[np.searchsorted(places, place, side="right")])

    def reached(self, keys: Ints, time: Ints) -> Ints:
        """Return the place at which the bound goes above a time; -1: it was there before."""
        number = self._bounds.below(keys, time, inclusive=True)
        is_there = number < self._bounds.counts[keys]
        place = np.full(len(keys), _NEVER)
        if is_there.any():
            where = np.where(is_there, self._bounds.starts[keys] + number, 0)
            place = np.where(is_there, self._event_place[where], _NEVER)
        places, steps = self._for_all
        if len(places):
            step = np.searchsorted(steps[1:], time, side="right")
            place = np.minimum(place, np.where(step < len(places), places[np.minimum(step, len(places) - 1)], _NEVER))
        return np.where(self._before[keys] > time, -1, place)

    def events(self, keys: Ints, behind: Ints) -> tuple[Ints, Ints]:
        """Return key and place of every event of some keys after a place."""
        is_mine = np.zeros(len(behind), np.bool_)
        is_mine[keys] = True
        mine = np.flatnonzero(is_mine[self._event_key] & (self._event_place > behind[self._event_key]))
        for_all = self._for_all[0]
        key = np.r_[self._event_key[mine], np.repeat(keys, len(for_all))]
        place = np.r_[self._event_place[mine], np.tile(for_all, len(keys))]
        later = place > behind[key]
        return key[later], place[later]

    def first_event(self) -> Ints:
        """Return the place of each key's first event."""
        counts = self._event_places.counts
        place = np.full(len(counts), _NEVER)
        has_any = counts > 0
        place[has_any] = self._event_place[self._event_places.starts[has_any]]
        return np.minimum(place, self._for_all[0][0]) if len(self._for_all[0]) else place


@dataclass
class _Heads:
    """The heads of the queues of some keys.

    Parameters
    ----------
    heads : array of int64, keys x inputs
        Number of each queue's first row among the key's rows of the input.
    kept : array of int64
        Below this time rows are dropped.
    cut_below : array of int64
        ``min_size``: the time of the last cut.
    now : array of int64
        The place that has been reached.
    """

    heads: Ints
    kept: Ints
    cut_below: Ints
    now: Ints


@dataclass(frozen=True)
class _Rounds:
    """The rounds of an epoch."""

    policy: FixedSize
    queues: list[_Queue]
    state: _Heads
    taken: list[Bools]

    @property
    def _too_long(self) -> int:
        return max(self.policy.trigger, self.policy.target + 1)

    def next_cut(self, keys: Ints) -> Ints:
        """Return the place of each key's next cut."""
        heads, target = self.state.heads[keys], self.policy.target
        if not self.policy.min_size:
            of = [queue.place(keys, heads[:, i] + self._too_long - 1) for i, queue in enumerate(self.queues)]
            return np.asarray(np.min(of, axis=0))
        of = []
        for i, queue in enumerate(self.queues):
            # As many as trigger a cut, and enough that the cut is above the last one.
            above = queue.first_from(keys, self.state.cut_below[keys], behind=True)
            of.append(queue.place(keys, np.maximum(heads[:, i] + self.policy.trigger, above + target) - 1))
        return np.asarray(np.maximum(np.max(of, axis=0), self.state.now[keys]))

    def next_set(self, keys: Ints) -> Ints:
        """Return the place at which a set of each key is ready, if nothing is cut before."""
        heads = self.state.heads[keys]
        found = np.full(len(keys), _NEVER)
        for i, queue in enumerate(self.queues):
            time = queue.at(keys, heads[:, i], CLOSED)
            settled = np.max([other.reached(keys, time) for other in self.queues], axis=0)
            found = np.minimum(found, np.maximum(queue.place(keys, heads[:, i]), settled))
        return np.asarray(np.maximum(found, self.state.now[keys]))

    def may_take(self, keys: Ints) -> Bools:
        """Return which keys may have a set in this epoch: a row below what is settled at its end."""
        settled = np.min([queue.bound(keys, np.full(len(keys), _NEVER)) for queue in self.queues], axis=0)
        firsts = [queue.first_from(keys, settled) > self.state.heads[keys, i] for i, queue in enumerate(self.queues)]
        return np.asarray(np.any(firsts, axis=0))

    def cut(self, keys: Ints, place: Ints) -> None:
        """Cut the queues of keys at a place."""
        state, target = self.state, self.policy.target
        state.now[keys] = place
        counts = np.column_stack([queue.arrived(keys, place) for queue in self.queues])
        if self.policy.min_size:
            below = np.min([q.at(keys, counts[:, i] - target, UNBOUNDED) for i, q in enumerate(self.queues)], axis=0)
            state.cut_below[keys] = below
            for i, queue in enumerate(self.queues):
                first = np.minimum(queue.first_from(keys, below), counts[:, i])
                state.heads[keys, i] = np.maximum(state.heads[keys, i], first)
            return
        lengths = counts - state.heads[keys]
        for i, queue in enumerate(self.queues):
            newest_gone = queue.at(keys, counts[:, i] - target - 1, UNBOUNDED)
            kept = np.where(lengths[:, i] >= self._too_long, shifted(newest_gone, 1), UNBOUNDED)
            state.kept[keys] = np.maximum(state.kept[keys], kept)
        self.raise_heads(keys)

    def take(self, keys: Ints, place: Ints) -> None:
        """Take one set of keys at a place."""
        state = self.state
        state.now[keys] = place
        counts = np.column_stack([queue.arrived(keys, place) for queue in self.queues])
        # A head may be at a row that has not arrived yet: what is dropped then follows from the time kept after this.
        heads = np.minimum(state.heads[keys], counts)
        times = np.column_stack([queue.at(keys, heads[:, i], CLOSED) for i, queue in enumerate(self.queues)])
        times[heads >= counts] = CLOSED
        state.kept[keys] = np.minimum(state.kept[keys], self._newest(keys, heads, counts, place))
        first = times.min(axis=1)
        for i, queue in enumerate(self.queues):
            goes = (times[:, i] == first) & (heads[:, i] < counts[:, i])
            self.taken[i][queue.starts[keys[goes]] + heads[goes, i]] = True
            heads[:, i] += goes
        state.heads[keys] = heads
        if not self.policy.min_size:
            self.raise_heads(keys)

    def cut_until_a_set(self, keys: Ints) -> None:
        """Cut at every row that is one too many, up to the first set of each key, and take that."""
        state, target = self.state, self.policy.target
        left = np.zeros(len(state.now), np.bool_)
        left[keys] = True
        parts = []
        for queue in self.queues:  # rows first: at one place they are cut before it is asked whether a set is ready
            mine = np.flatnonzero(left[queue.key] & (queue.places > state.now[queue.key]))
            key = queue.key[mine]
            gone = queue.at(key, mine - queue.starts[key] - target, UNBOUNDED)
            parts.append((key, queue.places[mine], shifted(gone, 1)))
        for queue in self.queues:
            key, place = queue.events(keys, state.now)
            parts.append((key, place, np.full(len(key), UNBOUNDED)))
        key, place, gain = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((place, key))
        key, place, gain = key[order], place[order], gain[order]
        kept = np.maximum(gain, bounds_before(key, gain, state.kept[key]))
        first = np.full(len(key), CLOSED)
        for queue in self.queues:
            head = queue.first_from(key, kept)
            first = np.minimum(first, np.where(head < queue.arrived(key, place), queue.at(key, head, CLOSED), CLOSED))
        settled = np.min([queue.bound(key, place) for queue in self.queues], axis=0)
        ready = np.flatnonzero(first < settled)
        _, at = np.unique(key[ready], return_index=True)
        ready = ready[at]
        state.kept[key[ready]] = kept[ready]
        self.raise_heads(key[ready])
        self.take(key[ready], place[ready])

    def cut_to_the_end(self, keys: Ints) -> None:
        """Make all further cuts at once, where a queue that is too long by one row is cut."""
        heads, target = self.state.heads[keys], self.policy.target
        for i, queue in enumerate(self.queues):
            last = queue.counts[keys] - target - 1
            time = queue.at(keys, np.where(last >= heads[:, i], last, -1), UNBOUNDED)
            self.state.kept[keys] = np.maximum(self.state.kept[keys], shifted(time, 1))
        self.raise_heads(keys)

    def take_the_rest(self, keys: Ints) -> None:
        """Take every set that is ready at the end of the epoch, when nothing more arrives."""
        state = self.state
        end = np.full(len(keys), _NEVER)
        counts = np.column_stack([queue.counts[keys] for queue in self.queues])
        heads = np.minimum(state.heads[keys], counts)
        settled = np.min([queue.bound(keys, end) for queue in self.queues], axis=0)
        ends = np.column_stack([queue.first_from(keys, settled) for queue in self.queues])
        any_goes = (ends > heads).any(axis=1)
        newest = np.minimum(state.kept[keys], self._newest(keys, heads, counts, end))
        state.kept[keys] = np.where(any_goes, newest, state.kept[keys])
        state.heads[keys] = heads
        for i, queue in enumerate(self.queues):
            number = np.arange(len(queue.key)) - queue.starts[queue.key]
            is_mine = np.zeros(len(queue.counts), np.bool_)
            is_mine[keys] = True
            first, last = np.zeros(len(queue.counts), np.int64), np.zeros(len(queue.counts), np.int64)
            first[keys], last[keys] = heads[:, i], ends[:, i]
            self.taken[i] |= is_mine[queue.key] & (number >= first[queue.key]) & (number < last[queue.key])

    def _newest(self, keys: Ints, heads: Ints, counts: Ints, place: Ints) -> Ints:
        """Return the lowest of the newest times of all queues; of an empty one what is below its bound."""
        newest = np.full(len(keys), CLOSED)
        for i, queue in enumerate(self.queues):
            last = queue.at(keys, counts[:, i] - 1, UNBOUNDED)
            newest = np.minimum(newest, np.where(heads[:, i] < counts[:, i], last, queue.bound(keys, place) - 1))
        return newest

    def raise_heads(self, keys: Ints) -> None:
        for i, queue in enumerate(self.queues):
            first = queue.first_from(keys, self.state.kept[keys])
            self.state.heads[keys, i] = np.maximum(self.state.heads[keys, i], first)


def fixed_size(policy: FixedSize, epoch: Epoch) -> tuple[list[npt.NDArray[np.int8]], Ints]:
    """Return the fate of each row, and for each key the time below which rows are dropped from now on."""
    key_count = epoch.keys.num_rows
    queues = [
        _Queue(pool, event, epoch.before[:, i])
        for i, (pool, event) in enumerate(zip(epoch.pools, epoch.events, strict=True))
    ]
    started = epoch.column("kept", UNBOUNDED)
    now = np.min([queue.first_event() for queue in queues], axis=0) if queues else np.full(key_count, _NEVER)
    state = _Heads(np.zeros((key_count, len(queues)), np.int64), started.copy(), np.full(key_count, UNBOUNDED), now)
    rounds = _Rounds(policy, queues, state, [np.zeros(len(queue.key), np.bool_) for queue in queues])
    if not policy.min_size:
        rounds.raise_heads(np.arange(key_count))
    left = _decided(rounds, np.flatnonzero(now < _NEVER))
    is_left = np.zeros(key_count, np.bool_)
    is_left[left] = True
    rounds.take_the_rest(np.flatnonzero(~is_left))
    fates = []
    for i, queue in enumerate(queues):
        number = np.arange(len(queue.key)) - queue.starts[queue.key]
        fate = np.where(number < state.heads[queue.key, i], _DROP, 0)
        mine = np.where(rounds.taken[i], _EMIT, fate).astype(np.int8)
        mine[is_left[queue.key]] = 0
        back = np.empty_like(mine)
        back[queue.row] = mine
        fates.append(back)
    kept = np.where(is_left, started, state.kept)
    if len(left):
        by_row(policy, epoch, is_left, fates, kept)
    return fates, kept


def _decided(rounds: _Rounds, keys: Ints) -> Ints:
    """Take the first set that is ready, and make all cuts; return the keys that need too many rounds."""
    policy = rounds.policy
    # Then a queue is cut at each row that is one too many, however the queues were cut before: nothing to go through.
    is_simple = not policy.min_size and policy.trigger <= policy.target + 1
    may_take = rounds.may_take(keys)
    free, busy = (keys[may_take], keys[~may_take]) if is_simple else (keys, keys[:0])
    for _ in range(_SIMPLE_ROUNDS if is_simple else _ROUNDS):
        ready, cut = rounds.next_set(free), rounds.next_cut(free)
        takes, is_cut = ready < cut, cut < _NEVER
        is_cut &= ~takes
        rounds.take(free[takes], ready[takes])
        rounds.cut(free[is_cut], cut[is_cut])
        busy, free = np.concatenate([busy, free[takes]]), free[is_cut]
        if not is_simple:
            cut = rounds.next_cut(busy)
            busy, cut = busy[cut < _NEVER], cut[cut < _NEVER]
            rounds.cut(busy, cut)
        if not len(free) and (is_simple or not len(busy)):
            break
    if not is_simple:
        return np.concatenate([free, busy])
    if len(free):
        rounds.cut_until_a_set(free)
    rounds.cut_to_the_end(np.concatenate([busy, free]))
    return free[:0]
