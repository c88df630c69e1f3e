"""Bounds of an input: how an epoch's rows and bound rows change them, and which rows are late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import invariant
from holdfast.state import joins, keyed
from holdfast.state.keyed import Ticks
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals
from holdfast.state.timeline import UNBOUNDED, Promise, bound_at, bounds_before, raised_by


@dataclass(frozen=True)
class InputReport:
    """What one epoch says about one input.

    Parameters
    ----------
    is_late : numpy array of bool
        For each row.
    before : numpy array of int64
        For each row the bound when it arrived.
    bounds : numpy array of int64
        For each key its own bound now.
    everywhere : int
        The bound for all keys now.
    """

    is_late: npt.NDArray[np.bool_]
    before: Ticks
    bounds: Ticks
    everywhere: int


def reported(
    given: Arrivals, time: str, promise: Promise | None, keys: pa.Table, bounds: Ticks, everywhere: int
) -> InputReport:
    """Return what an epoch says about one input.

    Parameters
    ----------
    given : Arrivals
        Rows and bound rows.
    time : str
        Timestamp column.
    promise : Promise, optional
        What rows say about rows to come; None: nothing.
    keys : pa.Table
        Every key that any input touches in this epoch.
    bounds : numpy array of int64
        For each of these keys its own bound before.
    everywhere : int
        The bound for all keys before.
    """
    names = keys.schema.names
    is_for_all = given.bounds.column(ALL_KEYS)
    of_keys = given.bounds.filter(pc.invert(is_for_all))
    for_all = given.bounds.filter(is_for_all)
    times = keyed.ticks(given.rows.column(time))
    places = np.concatenate([keyed.ticks(given.rows.column(PLACE)), keyed.ticks(of_keys.column(PLACE))])
    codes = np.concatenate([joins.index_in(given.rows, keys, names), joins.index_in(of_keys, keys, names)])
    of_rows = np.full(len(times), UNBOUNDED) if promise is None else promise.bounds_after(times)
    steps, of_steps = keyed.ticks(for_all.column(BOUND)), keyed.ticks(for_all.column(PLACE))
    if promise is not None and promise.is_whole:
        steps, of_steps = np.concatenate([steps, of_rows]), np.concatenate([of_steps, places[: len(times)]])
        by_place = np.argsort(of_steps, kind="stable")
        steps, of_steps = steps[by_place], of_steps[by_place]
        of_rows = np.full(len(times), UNBOUNDED)
    says = np.concatenate([of_rows, keyed.ticks(of_keys.column(BOUND))])
    order = np.lexsort((places, codes))
    before = np.empty(len(order), np.int64)
    before[order] = bounds_before(codes[order], says[order], bounds[codes[order]])
    below = np.maximum(before[: len(times)], bound_at(places[: len(times)], of_steps, steps, everywhere))
    highest = max(everywhere, int(steps.max())) if len(steps) else everywhere
    raised = raised_by(bounds, codes[order], says[order])
    invariant(
        highest >= everywhere and (raised >= bounds).all(),
        "a bound of an input falls.",
        why="a bound only grows: rows below it are late for ever.",
        story=lambda: f"For all keys: {everywhere}, {highest}. Of each key: {bounds.tolist()}, {raised.tolist()}.",
    )
    return InputReport(times < below, below, raised, highest)


def end_of(bounds: pa.Table) -> pa.Table | None:
    """Return the bound that reports the end of an input to downstream operators; None where it has not ended.

    For operators whose function may give any timestamp: no other bound of their input holds for their output.
    """
    is_end = pc.and_(bounds.column(ALL_KEYS), pc.equal(bounds.column(BOUND), CLOSED))
    ends = bounds.filter(is_end)
    return ends.slice(0, 1).drop_columns([PLACE]) if ends.num_rows else None
