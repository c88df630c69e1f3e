"""Asks the function of a custom policy about an epoch, and holds its answer to what the policy promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.display.lines import utc
from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.operators.sync.custom import DROPS, WAITS, Custom, WaitingRows
from holdfast.operators.sync.epoch import Epoch
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import timeline
from holdfast.state.call import StepFailed
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints

_DO = "return one int64 for each row: the time of its set, hf.policy.WAITS or hf.policy.DROPS."


def answers(step: SyncRules, policy: Custom, epoch: Epoch) -> list[Ints]:
    """Return for each input and row of its pool the time of the set that it leaves in, WAITS or DROPS.

    Raises
    ------
    StepFailed
        If the function raises.
    InvalidPipeline
        If its answer is none, or breaks a promise of the policy.
    """
    sizes = [len(pool.at) for pool in epoch.pools]
    if not sum(sizes):
        return [np.empty(0, np.int64) for _ in sizes]
    waiting, sorting = _waiting(step, epoch)
    given = _ask(policy, waiting)
    _check_delay(step, policy, epoch, waiting, given)
    for place, name in enumerate(step.inputs):
        if not (policy.many or not step.promises[place].is_strict):
            _check_one(step, policy, name, waiting, given, waiting.input == place)
    # What nothing can join any more and still waits would wait for ever.
    is_over = (waiting.bounds == CLOSED).all(axis=1)[waiting.key]
    flat = np.empty(len(given), np.int64)
    flat[sorting] = np.where(is_over & (given == WAITS), DROPS, given)
    return np.split(flat, np.cumsum(sizes)[:-1])


def needs(step: SyncRules, epoch: Epoch, stays: Sequence[Bools]) -> Ints:
    """Return up to which bound each key waits on each input: on the lowest, and on those that its first row needs."""
    first = np.full(epoch.keys.num_rows, CLOSED, np.int64)
    for pool, still in zip(epoch.pools, stays, strict=True):
        np.minimum.at(first, pool.key[still], pool.at[still])
    lowest = timeline.settled_before(epoch.bounds)
    reached = np.maximum(timeline.shifted(first, step.reach), lowest)
    found = np.where((first == CLOSED) | (lowest == CLOSED), UNBOUNDED, reached)
    return np.repeat(found[:, None], len(epoch.pools), axis=1)


def _waiting(step: SyncRules, epoch: Epoch) -> tuple[WaitingRows, Ints]:
    """Return what waits, and for each row its place among the rows of all pools."""
    pools = epoch.pools
    key, at, order = (np.concatenate([getattr(pool, of) for pool in pools]) for of in ("key", "at", "order"))
    place = np.repeat(np.arange(len(pools)), [len(pool.at) for pool in pools])
    sorting = np.lexsort((order, place, at, key))
    place = place[sorting]
    starts = np.cumsum([0, *(len(pool.at) for pool in pools)])
    rows = tuple(
        pool.table.select(schema.names).take(pa.array(sorting[place == i] - starts[i]))
        for i, (pool, schema) in enumerate(zip(pools, step.inputs.values(), strict=True))
    )
    names, bounds = tuple(step.inputs), epoch.bounds.view()
    waiting = WaitingRows(names, key[sorting], at[sorting], place, bounds, rows, order[sorting])
    for array in (waiting.key, waiting.at, waiting.input, waiting.bounds):
        array.flags.writeable = False
    return waiting, sorting


def _ask(policy: Custom, waiting: WaitingRows) -> Ints:
    try:
        given: Any = policy.decide(waiting)
    except Exception as error:
        rows = next(table for table in waiting.tables if table.num_rows)
        raise StepFailed(rows, f"policy {policy.name!r}") from error
    try:
        array = np.asarray(given)
    except Exception:
        array = np.empty(0, object)
    if array.dtype.kind != "i" or array.shape != waiting.at.shape:
        shown = f"an array of {array.dtype} of shape {array.shape}" if array.dtype.kind != "O" else a_type(given)
        raise InvalidPipeline(
            f"the policy {policy.name!r} returned {shown}.",
            why=f"{len(waiting.at)} rows wait, and it answers for each of them.",
            do=_DO,
        )
    return array.astype(np.int64)


def _check_delay(step: SyncRules, policy: Custom, epoch: Epoch, waiting: WaitingRows, given: Ints) -> None:
    if policy.delay is None:
        return
    settled = timeline.shifted(timeline.settled_before(epoch.before), -step.reach)[waiting.key]
    breaks = np.flatnonzero((given != WAITS) & (given != DROPS) & (given < settled))
    if len(breaks):
        row = breaks[0]
        raise InvalidPipeline(
            f"the policy {policy.name!r} gave a set at {_said(step, given[row])}: "
            f"no set below {_said(step, settled[row])} may follow.",
            why=f"with delay={policy.delay!r} no set may be further below what is settled.",
            do="let sets go sooner or give them a later time, make delay= longer, or leave it out: then downstream "
            "operators receive no bound but the end.",
        )


def _check_one(step: SyncRules, policy: Custom, name: str, waiting: WaitingRows, given: Ints, mine: Bools) -> None:
    leaves = np.flatnonzero(mine & (given != WAITS) & (given != DROPS))
    key, at = waiting.key[leaves], given[leaves]
    order = np.lexsort((at, key))
    again = (np.diff(key[order]) == 0) & (np.diff(at[order]) == 0)
    if again.any():
        raise InvalidPipeline(
            f"the policy {policy.name!r} put two rows of input {name!r} into one set, "
            f"at {_said(step, at[order][1:][again][0])}.",
            why="the output's columns hold one row of each strict input.",
            do="write hf.policy.custom(..., many=True): columns are lists then; or let one of them go, or DROPS it.",
        )


def _said(step: SyncRules, ticks: int) -> str:
    """Return a time as messages say it: the ticks themselves where they have no unit."""
    return utc(int(ticks), is_exact=True) if pa.types.is_timestamp(step.time_type) else str(ticks)
