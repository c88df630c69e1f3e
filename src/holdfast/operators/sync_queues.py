"""The queues of the policy ``fixed_size``, event by event.

What is dropped depends on what came before, row by row, so this is the one place of ``sync`` that loops over rows: over
plain integers, about four microseconds each.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.operators.sync_intake import Epoch
from holdfast.policy import FixedSize
from holdfast.timeline import CLOSED, UNBOUNDED, Ints

_EMIT, _DROP = 1, 2
Queue = deque[tuple[int, int]]


@dataclass
class _Key:
    """The queues of one key: (timestamp, row) ascending, the bounds, and the time below which all is dropped."""

    queues: list[Queue]
    bounds: list[int]
    kept: int


def fixed_size(policy: FixedSize, epoch: Epoch) -> tuple[list[npt.NDArray[np.int8]], Ints]:
    """Return the fate of each row, and for each key the time below which rows are dropped from now on."""
    pools = epoch.pools
    fates = [np.zeros(len(pool.key), np.int8) for pool in pools]
    kept = epoch.column("kept", UNBOUNDED)
    keys = [
        _Key([deque() for _ in pools], bounds, low)
        for bounds, low in zip(epoch.before.tolist(), kept.tolist(), strict=True)
    ]
    events: list[list[tuple[int, int, int]]] = [[] for _ in keys]
    row_at: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in keys]
    for i, (pool, event) in enumerate(zip(pools, epoch.events, strict=True)):
        by_order = np.argsort(pool.order[: pool.waited_count], kind="stable")
        for row, key, at in zip(
            by_order.tolist(), pool.key[by_order].tolist(), pool.at[by_order].tolist(), strict=True
        ):
            keys[key].queues[i].append((at, row))
        came = range(pool.waited_count, len(pool.key))
        cut = slice(pool.waited_count, None)
        for row, key, at, place in zip(
            came, pool.key[cut].tolist(), pool.at[cut].tolist(), pool.place[cut].tolist(), strict=True
        ):
            row_at[key][i, place] = (at, row)
        for key, place, value in zip(event.key.tolist(), event.place.tolist(), event.value.tolist(), strict=True):
            events[key].append((place, i, value))
        for place, value in zip(event.all_place.tolist(), event.all_value.tolist(), strict=True):
            for mine in events:
                mine.append((place, i, value))
    for key, state in enumerate(keys):
        _run(policy, state, sorted(events[key]), row_at[key], fates)
        kept[key] = state.kept
    return fates, kept


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
