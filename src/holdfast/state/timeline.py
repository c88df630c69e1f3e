"""Timelines: what inputs promise about their timestamps, the bounds that follow, and what is late; arithmetic only.

A *bound* is the lowest timestamp that an input may still deliver for a key.  It only grows.  A time is *settled* when
it is below the bound; across inputs, when it is below each bound.  Times and bounds are int64 ticks: microseconds
where the column is a TIMESTAMP, the user's unit where it is a BIGINT.  Everything here works on whole arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CLOSED = 2**63 - 1
"""The bound of an input that has ended: above every timestamp."""

UNBOUNDED = -(2**63)
"""The bound of an input of which nothing is known: below every timestamp."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Promise:
    """What an input promises about its timestamps, for each key separately or for all of its rows.

    Parameters
    ----------
    is_strict : bool
        At most one row for each timestamp; else repeats are allowed.
    disorder : int, optional
        Ticks by which a row may be below the highest timestamp before it.  None: timestamps ascend.
    is_whole : bool
        Whether that holds whatever the keys of the rows are: then each row is a bound for all keys.
    is_silent : bool
        Whether rows promise nothing about those to come: bounds come from elsewhere.

    Examples
    --------
    >>> at = np.array([10, 20])
    >>> Promise(True).bounds_after(at).tolist(), Promise(False).bounds_after(at).tolist()
    ([11, 21], [10, 20])
    >>> Promise(False, disorder=5).bounds_after(at).tolist()
    [5, 15]
    >>> Promise(False).silent().bounds_after(at).tolist() == [UNBOUNDED, UNBOUNDED]
    True
    """

    is_strict: bool = True
    disorder: int | None = None
    is_whole: bool = False
    is_silent: bool = False

    def silent(self) -> Promise:
        """Return what is left of it where the bounds of the source alone say which rows are still to come."""
        return Promise(self.is_strict, is_silent=True)

    @property
    def allows_repeats(self) -> bool:
        """Whether a row can have the time of an earlier one without being below its bound."""
        return not self.is_strict or self.disorder is not None or self.is_silent

    def bounds_after(self, times: Ints) -> Ints:
        """Return the bound that each row alone implies for its input; saturates at both ends."""
        if self.is_silent:
            return np.full(len(times), UNBOUNDED, np.int64)
        if self.disorder is not None:
            return shifted(times, -self.disorder)
        return shifted(times, 1) if self.is_strict else times


def shifted(times: Ints, by: Ints | int) -> Ints:
    """Return times or bounds moved by some ticks.  CLOSED and UNBOUNDED stay, and nothing else becomes one of them.

    Examples
    --------
    >>> shifted(np.array([UNBOUNDED, 3, CLOSED - 1, CLOSED]), 5).tolist() == [UNBOUNDED, 8, CLOSED - 1, CLOSED]
    True
    """
    if isinstance(by, int) and len(times) and UNBOUNDED + abs(by) < times.min() and times.max() < CLOSED - abs(by):
        return times + by
    with np.errstate(over="ignore"):
        moved = times + by
    moved = np.where((np.asarray(by) > 0) & (moved < times), CLOSED - 1, moved)
    moved = np.where((np.asarray(by) < 0) & (moved > times), UNBOUNDED + 1, moved)
    moved = np.clip(moved, UNBOUNDED + 1, CLOSED - 1)
    return np.where((times == CLOSED) | (times == UNBOUNDED), times, moved)


def settled_before(bounds: npt.NDArray[np.int64]) -> Ints:
    """Return for each key the time before which every input is settled.

    Parameters
    ----------
    bounds : array of int64, keys x inputs
        Not without inputs.

    Raises
    ------
    ValueError
        If there are no inputs: nothing ever settles.

    References
    ----------
    MediaPipe, "Synchronization": settled timestamps and input sets.

    Examples
    --------
    >>> settled_before(np.array([[90, 120], [7, CLOSED]])).tolist()
    [90, 7]
    """
    if bounds.shape[1] == 0:
        raise ValueError("bounds of no input: nothing ever settles")
    return np.asarray(bounds.min(axis=1), np.int64)


def bounds_before(groups: Ints, values: Ints, start: Ints) -> Ints:
    """Return for each event the bound of its group just before it: the highest of its start and the values before.

    Parameters
    ----------
    groups : array of int64
        Group of each event, ascending; within a group in the order of arrival.
    values : array of int64
        The bound that each event implies.
    start : array of int64
        For each event, the bound that its group had before the first of them.

    Notes
    -----
    Events that are themselves late may be among them: the bound they imply is at or below the one they missed.

    Examples
    --------
    >>> bounds_before(np.array([0, 0, 0, 1]), np.array([3, 9, 4, 1]), np.array([5, 5, 5, 0])).tolist()
    [5, 5, 9, 0]
    """
    if len(groups) == 0:
        return start.copy()
    is_first = np.ones(len(groups), bool)
    is_first[1:] = groups[1:] != groups[:-1]
    highest = values
    if not np.all(is_first[1:] | (values[1:] >= values[:-1])):
        highest = _running_max(groups, values)
    before = np.empty_like(values)
    before[0] = start[0]
    before[1:] = np.where(is_first[1:], start[1:], highest[:-1])
    return np.maximum(before, start)


def _running_max(groups: Ints, values: Ints) -> Ints:
    # Values become ranks, and each group's ranks are above those of the group before: one running maximum serves all.
    distinct, ranks = np.unique(values, return_inverse=True)
    _, place = np.unique(groups, return_inverse=True)
    raised = place.astype(np.int64) * len(distinct) + ranks
    highest = np.maximum.accumulate(raised) - place * len(distinct)
    return np.asarray(distinct[highest], np.int64)


def raised_by(bounds: Ints, groups: Ints, values: Ints) -> Ints:
    """Return bounds after events: for each group the highest of its bound and of those that its events imply.

    Parameters
    ----------
    bounds : array of int64
        One for each group.
    groups : array of int64
        Group of each event, ascending.
    values : array of int64
        The bound that each event implies.
    """
    raised = bounds.copy()
    if len(groups):
        starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
        at = groups[starts]
        raised[at] = np.maximum(raised[at], np.maximum.reduceat(values, starts))
    return raised


def bound_at(places: Ints, of_places: Ints, of_values: Ints, start: int) -> Ints:
    """Return the bound for all keys as it was just before each place.

    Parameters
    ----------
    places : array of int64
        Where to look.
    of_places, of_values : array of int64
        Place and value of the bounds that arrived, ascending by place.
    start : int
        What it was before the first of them.

    Examples
    --------
    >>> bound_at(np.array([0, 5, 9]), np.array([2, 7]), np.array([30, 20]), 10).tolist()
    [10, 30, 30]
    """
    steps = np.maximum.accumulate(np.r_[np.int64(start), of_values])
    return np.asarray(steps[np.searchsorted(of_places, places, side="left")], np.int64)


def idle_raised(bounds: npt.NDArray[np.int64], is_idle: npt.NDArray[np.bool_], otherwise: Ints) -> Ints:
    """Return bounds after the idle rule: who is idle no longer holds the others up.

    Parameters
    ----------
    bounds : array of int64, keys x inputs
        What is known.
    is_idle : array of bool, keys x inputs
        Which inputs have kept the key waiting for too long.
    otherwise : array of int64
        For each key, the bound to take when every input is idle.

    Notes
    -----
    The idle input's bound becomes the lowest bound of the others, so a row of it that arrives nevertheless and is below
    is late like any other.  A bound never falls.

    Examples
    --------
    >>> idle_raised(np.array([[50, 3, 40]]), np.array([[False, True, False]]), np.array([0])).tolist()
    [[50, 40, 40]]
    """
    active = np.where(is_idle, CLOSED, bounds).min(axis=1)
    reached = np.where(is_idle.all(axis=1), otherwise, active)
    return np.where(is_idle, np.maximum(bounds, reached[:, None]), bounds)
