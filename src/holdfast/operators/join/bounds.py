"""Bounds of a join's inputs over one epoch: for all keys, with the places at which they rise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.state import keyed
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals
from holdfast.state.timeline import UNBOUNDED, Bools, Ints, Promise

BEFORE = -1
"""The place of what was so when the epoch began."""

NEVER = 2**62
"""The place of what has not happened at its end."""


@dataclass(frozen=True)
class Rise:
    """How the bound of an input rises over an epoch.

    Parameters
    ----------
    before, after : int
        The bound for all keys when it begins and when it ends.
    places, bounds : array of int64
        The places at which something is said, ascending, and the bound after each.
    times : array of int64
        Timestamps of its rows.
    below : array of int64
        For each row the bound when it arrived.
    """

    before: int
    after: int
    places: Ints
    bounds: Ints
    times: Ints
    below: Ints

    @property
    def is_late(self) -> Bools:
        """Which rows are below the bound that was known when they arrived."""
        return self.times < self.below

    def passed(self, times: Ints) -> Ints:
        """Return for each time the place at which the bound is above it; NEVER where it is not in this epoch."""
        at = np.searchsorted(self.bounds, times, side="right")
        places = np.append(self.places, NEVER)[at]
        return np.where(times < self.before, BEFORE, places)


def rise(given: Arrivals, time: str, promise: Promise, before: int) -> Rise:
    """Return how an input's bound rises.

    Parameters
    ----------
    given : Arrivals
        What arrives on it.
    time : str
        Its timestamp column.
    promise : Promise
        What its rows promise, whatever their keys.
    before : int
        The bound so far.
    """
    of_all = given.bounds.filter(given.bounds.column(ALL_KEYS))
    times = keyed.ticks(given.rows.column(time))
    row_places = keyed.ticks(given.rows.column(PLACE))
    says = promise.bounds_after(times)
    places = row_places
    if of_all.num_rows:
        places = np.concatenate([row_places, keyed.ticks(of_all.column(PLACE))])
        says = np.concatenate([says, keyed.ticks(of_all.column(BOUND))])
        order = np.argsort(places, kind="stable")
        places, says = places[order], says[order]
    bounds = np.maximum.accumulate(np.concatenate([np.array([before], np.int64), says]))
    below = bounds[np.searchsorted(places, row_places, side="left")]
    return Rise(before, int(bounds[-1]), places, bounds[1:], times, below)


INPUT = "__input__"
SEQ = "__seq__"
"""Number of a row in the order of its input's arrival."""

INPUTS = pa.schema([(INPUT, pa.string()), (BOUND, pa.int64()), (SEQ, pa.int64())])


def known(table: pa.Table, name: str) -> tuple[int, int]:
    """Return the bound of an input as it is in the state, and the number of its next row."""
    for row in table.to_pylist():
        if row[INPUT] == name:
            return int(row[BOUND]), int(row[SEQ])
    return UNBOUNDED, 0
