"""The queues of the policy ``fixed_size``, event by event: the few keys that drop repeatedly within one epoch.

About four microseconds for each row.  :mod:`holdfast.operators.sync.queues` decides all other keys at once, by the same
rules, and the tests compare the two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.operators.sync.epoch import Epoch
from holdfast.operators.sync.policy import FixedSize
from holdfast.state.timeline import CLOSED, Bools, Ints

_EMIT, _DROP = 1, 2
Queue = deque[tuple[int, int]]


@dataclass
class _Key:
    """The queues of one key: (timestamp, row) ascending, the bounds, and the time below which all is dropped."""

    queues: list[Queue]
    bounds: list[int]
    kept: int


def by_row(policy: FixedSize, epoch: Epoch, of: Bools, fates: list[npt.NDArray[np.int8]], kept: Ints) -> None:
    """Decide the rows of some keys: write their fates, and the time below which rows are dropped from now on.

    Parameters
    ----------
    policy : FixedSize
        The sizes.
    epoch : Epoch
        Rows and events.
    of : array of bool
        Which keys.
    fates : list of array of int8
        For each input the fate of each row.
    kept : array of int64
        For each key the time below which rows are dropped; as it was before the epoch.
    """
    pools = epoch.pools
    keys = {
        key: _Key([deque() for _ in pools], epoch.before[key].tolist(), int(kept[key]))
        for key in np.flatnonzero(of).tolist()
    }
    events: dict[int, list[tuple[int, int, int]]] = {key: [] for key in keys}
    row_at: dict[int, dict[tuple[int, int], tuple[int, int]]] = {key: {} for key in keys}
    for i, (pool, event) in enumerate(zip(pools, epoch.events, strict=True)):
        mine = np.flatnonzero(of[pool.key])
        mine = mine[np.argsort(pool.order[mine], kind="stable")]
        facts = (mine, pool.key[mine], pool.at[mine], pool.place[mine])
        for row, key, at, place in zip(*(column.tolist() for column in facts), strict=True):
            if place < 0:
                keys[key].queues[i].append((at, row))
            else:
                row_at[key][i, place] = (at, row)
        chosen = of[event.key]
        columns = (event.key[chosen].tolist(), event.place[chosen].tolist(), event.value[chosen].tolist())
        for key, place, value in zip(*columns, strict=True):
            events[key].append((place, i, value))
        for place, value in zip(event.all_place.tolist(), event.all_value.tolist(), strict=True):
            for found in events.values():
                found.append((place, i, value))
    for key, state in keys.items():
        _run(policy, state, sorted(events[key]), row_at[key], fates)
        kept[key] = state.kept


def _run(
    policy: FixedSize,
    key: _Key,
    events: list[tuple[int, int, int]],
    row_at: dict[tuple[int, int], tuple[int, int]],
    fates: list[npt.NDArray[np.int8]],
) -> None:
    is_busy = False
    for place, i, value in events:
        key.bounds[i] = max(key.bounds[i], value)
        row = row_at.get((i, place))
        if row is not None:
            key.queues[i].append(row)
        _drop(policy, key, fates)
        # The first set is taken when it is ready; while it is worked on, the rest of the epoch piles up.
        is_busy = is_busy or _take(key, fates)
    _drop(policy, key, fates)
    while _take(key, fates):
        _drop(policy, key, fates)


def _take(key: _Key, fates: list[npt.NDArray[np.int8]]) -> bool:
    heads = [queue[0][0] for queue in key.queues if queue]
    if not heads:
        return False
    at = min(heads)
    if any(bound <= at for bound in key.bounds):
        return False
    newest = min(queue[-1][0] if queue else bound - 1 for queue, bound in zip(key.queues, key.bounds, strict=True))
    key.kept = min(key.kept, newest)  # so that one time survives
    for i, queue in enumerate(key.queues):
        if queue and queue[0][0] == at:
            fates[i][queue.popleft()[1]] = _EMIT
    return True


def _drop(policy: FixedSize, key: _Key, fates: list[npt.NDArray[np.int8]]) -> None:
    if policy.min_size:
        if any(len(queue) < policy.trigger for queue in key.queues):
            return
        below = min(queue[-policy.target][0] for queue in key.queues)
    else:
        for queue in key.queues:
            limit = policy.target if len(queue) >= policy.trigger else policy.trigger - 1
            if len(queue) > limit:
                key.kept = max(key.kept, min(queue[-limit - 1][0] + 1, CLOSED))
        below = key.kept
    for i, queue in enumerate(key.queues):
        while queue and queue[0][0] < below:
            fates[i][queue.popleft()[1]] = _DROP
