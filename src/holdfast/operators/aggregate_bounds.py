"""Bounds of one input, per key, as its rows and bound rows arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.operators.aggregate_keys import Ints, by_code
from holdfast.operators.step import CLOSED, UNBOUNDED


@dataclass(frozen=True)
class Told:
    """Bound rows, ascending by place.

    Parameters
    ----------
    codes : ndarray of int64
        Key of each; -1 for all keys.
    bounds, places : ndarray of int64
        What it says, and where it stands among the rows.
    """

    codes: Ints
    bounds: Ints
    places: Ints


@dataclass(frozen=True)
class Promise:
    """What the order of an input's rows promises of those to come.

    Parameters
    ----------
    is_strict : bool
        A row comes after every earlier timestamp, and never at the same.
    disorder : int
        A row comes at most so many ticks below the highest timestamp before it.
    """

    is_strict: bool = False
    disorder: int = 0

    def bounds(self, ticks: Ints) -> Ints:
        """Return the bound that each row alone sets."""
        return np.where(ticks >= UNBOUNDED + self.disorder, ticks - self.disorder, UNBOUNDED) + int(self.is_strict)


def admitted(start: Ints, codes: Ints, ticks: Ints, places: Ints, told: Told, promise: Promise) -> tuple[Ints, Ints]:
    """Follow the bounds of all keys through an epoch.

    Parameters
    ----------
    start : ndarray of int64
        For each key the bound before.
    codes, ticks, places : ndarray of int64
        Of the rows, ascending by place.
    told : Told
        The bound rows.
    promise : Promise
        What the rows promise.

    Returns
    -------
    limits : ndarray of int64
        For each row the bound when it arrived: a row below it is late.
    end : ndarray of int64
        For each key the bound behind.
    """
    own = promise.bounds(ticks)
    end = start.copy()
    np.maximum.at(end, codes, own)
    for_all = told.codes < 0
    np.maximum.at(end, told.codes[~for_all], told.bounds[~for_all])
    if for_all.any():
        end = np.maximum(end, told.bounds[for_all].max())
    if not len(ticks):
        return own, end
    limits = start[codes]
    if len(told.places) and told.places[0] < places[-1]:
        if for_all.any():
            heights = np.maximum.accumulate(np.concatenate([[UNBOUNDED], told.bounds[for_all]]))
            limits = np.maximum(limits, heights[np.searchsorted(told.places[for_all], places)])
        codes = np.concatenate([codes, told.codes[~for_all]])
        own = np.concatenate([own, told.bounds[~for_all]])
        order = np.argsort(np.concatenate([places, told.places[~for_all]]), kind="stable")
        before = np.empty_like(own)
        before[order] = _highest_before(codes[order], own[order], len(start))
        return np.maximum(limits, before[: len(ticks)]), end
    overall = np.maximum.accumulate(own)
    if (ticks[1:] >= overall[:-1]).all():  # no row lies below any before it: only what was known at the start decides
        return limits, end
    return np.maximum(limits, _highest_before(codes, own, len(start))), end


def _highest_before(codes: Ints, values: Ints, size: int) -> Ints:
    """Return for each row the highest value of its code in the rows before it."""
    order = by_code(codes, size)
    highest = running_max(codes[order], values[order])
    before = np.full(len(values), UNBOUNDED)
    before[1:] = np.where(codes[order][1:] == codes[order][:-1], highest[:-1], UNBOUNDED)
    out = np.empty_like(values)
    out[order] = before
    return out


def running_max(codes: Ints, values: Ints) -> Ints:
    """Return the running maximum within each run of equal, ascending codes."""
    if not len(values):
        return values
    distinct, ranks = np.unique(values, return_inverse=True)
    lifted = np.maximum.accumulate(codes * len(distinct) + ranks)
    return distinct[lifted - codes * len(distinct)]


def is_told(bound: int) -> bool:
    """Return whether a bound is a time: neither unknown nor closed."""
    return UNBOUNDED < bound < CLOSED
