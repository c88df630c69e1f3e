"""Rows of two inputs that are each other's nearest in time: the matching of the policy ``within``.

Pairs never cross: were ``a1 < a2`` and ``b1 < b2`` matched crosswise, uncrossing them would move one of the four rows
nearer to another than to its own partner.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.operators.sync.epoch import Pool
from holdfast.state.timeline import Ints


def mutual_nearest(base: Pool, other: Pool, tolerance: int) -> tuple[Ints, Ints]:
    """Return the rows of two inputs that are each other's nearest, at most ``tolerance`` apart.

    Of two rows equally near, the base takes the later one and the other input the earlier one; so rows of one period
    and half a period apart all find a partner.

    Returns
    -------
    tuple of array of int64
        Rows of the base, and the rows of the other that belong to them.
    """
    base_order, other_order = (np.lexsort((pool.order, pool.at, pool.key)) for pool in (base, other))
    base_key, base_at = base.key[base_order], base.at[base_order]
    other_key, other_at = other.key[other_order], other.at[other_order]
    of_base = _nearest(base_key, base_at, other_key, other_at, tolerance, later=True)
    of_other = _nearest(other_key, other_at, base_key, base_at, tolerance, later=False)
    mine = np.flatnonzero(of_base >= 0)
    mine = mine[of_other[of_base[mine]] == mine]
    return base_order[mine], other_order[of_base[mine]]


def _nearest(key: Ints, at: Ints, in_key: Ints, in_at: Ints, tolerance: int, *, later: bool) -> Ints:
    """Return for each row the nearest of another sorted input, or -1."""
    if len(key) == 0 or len(in_key) == 0:
        return np.full(len(key), -1, np.int64)
    # Both are sorted by (key, time): the insertion point divides what is before from what is after.
    together = np.lexsort((np.r_[np.zeros(len(key)), np.ones(len(in_key))], np.r_[at, in_at], np.r_[key, in_key]))
    is_theirs = together >= len(key)
    before_count = np.cumsum(is_theirs)
    insertion = np.empty(len(key), np.int64)
    insertion[together[~is_theirs]] = before_count[~is_theirs]
    left, right = insertion - 1, insertion
    far = np.uint64(2**64 - 1)

    def distance(places: Ints) -> npt.NDArray[np.uint64]:
        safe = np.clip(places, 0, len(in_key) - 1)
        apart = np.abs(in_at[safe] - at).astype(np.uint64)
        is_there = (places >= 0) & (places < len(in_key)) & (in_key[safe] == key)
        return np.where(is_there, apart, far)

    from_left, from_right = distance(left), distance(right)
    takes_right = from_right <= from_left if later else from_right < from_left
    found = np.where(takes_right, right, left)
    apart = np.minimum(from_left, from_right)
    if later:  # of rows with one timestamp the last
        found = _end_of_run(in_key, in_at)[np.clip(found, 0, len(in_key) - 1)]
    else:
        found = _start_of_run(in_key, in_at)[np.clip(found, 0, len(in_key) - 1)]
    return np.where(apart <= np.uint64(tolerance), found, -1)


def _start_of_run(key: Ints, at: Ints) -> Ints:
    is_first = np.r_[True, (key[1:] != key[:-1]) | (at[1:] != at[:-1])]
    starts = np.flatnonzero(is_first)
    return np.asarray(starts[np.cumsum(is_first) - 1], np.int64)


def _end_of_run(key: Ints, at: Ints) -> Ints:
    is_last = np.r_[(key[1:] != key[:-1]) | (at[1:] != at[:-1]), True]
    ends = np.flatnonzero(is_last)
    return np.asarray(ends[np.cumsum(np.r_[False, is_last[:-1]])], np.int64)
