"""The longest waits in a bucket's state, for the status of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.stateful.merge_step import INPUT, MAIN, SINCE, MergeStep
from holdfast.operators.sync import report
from holdfast.operators.sync.step import SyncStep
from holdfast.operators.waits_table import Waits
from holdfast.state import joins, keyed, tables
from holdfast.state.step import BOUND, UNBOUNDED, Step, StepTime
from holdfast.state.timeline import Bools, Ints

WAITS_MAX = 10
"""A report is bounded: the longest waits say what is wrong, the others say it again."""


def longest_waits(
    step: Step, state: Mapping[str, pa.Table], at: StepTime, most: int = WAITS_MAX
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the longest waits of a bucket, the longest first, and how many keys wait.

    Parameters
    ----------
    step : Step
        A step whose inputs wait for each other; of any other there is nothing to report.
    state : mapping of str to pa.Table
        All its tables of one bucket.
    at : StepTime
        The last epoch's time.
    most : int
        How many at most.

    Returns
    -------
    list of dict
        ``key`` (column -> JSON value), ``input``, ``since_us``, ``bound`` (ticks, None: it has said nothing) and
        ``waiting_rows``: the fields of :class:`holdfast.status.Wait`.
    int, optional
        Keys that wait, for whichever input; None of a step in which none can.

    Notes
    -----
    A scan of what waits, so it is called now and then, never as part of the step.
    """
    if isinstance(step, SyncStep):
        found = report.stalls(step, state, at)
    elif isinstance(step, MergeStep):
        found = merge_waits(step, state)
    else:
        return [], None
    names = step.key.names
    times = {name: schema.field(step.time_of(name)).type for name, schema in step.inputs.items()}
    longest = [
        {
            "is_time": pa.types.is_timestamp(times[row["input"]]) and times[row["input"]].unit == "us",
            "key": {name: _plain(row[name]) for name in names},
            **{field: row[field] for field in ("input", "since_us", "bound", "waiting_rows")},
        }
        for row in found.slice(0, most).to_pylist()
    ]
    return longest, joins.distinct_keys(found, names).num_rows


def merge_waits(step: MergeStep, state: Mapping[str, pa.Table]) -> pa.Table:
    """Return which keys of a merge wait on which input, since when.

    Parameters
    ----------
    step : MergeStep
        The step.
    state : mapping of str to pa.Table
        All its tables of one bucket.

    Returns
    -------
    pa.Table
        As of :meth:`.Waits.table`: a key waits since the batch time at which the first of the
        waiting rows arrived; ``waiting_rows`` are those that wait on the input.
    """
    names = step.key.names
    waiting = state["waiting"]
    keys = joins.distinct_keys(waiting, names)
    if names:
        keys = keys.sort_by([(name, "ascending") for name in names])
    codes = joins.index_in(waiting, keys, names)
    times, since = keyed.ticks(waiting.column(step.times[MAIN])), keyed.ticks(waiting.column(SINCE))
    inputs = list(step.inputs)
    bounds = _bounds(step, state, keys)
    parts = []
    for place, name in enumerate(inputs):
        is_blocked = _waits_for(name, times, bounds[:, place][codes])
        first = np.full(keys.num_rows, np.iinfo(np.int64).max)
        np.minimum.at(first, codes[is_blocked], since[is_blocked])
        count = np.bincount(codes[is_blocked], minlength=keys.num_rows)
        some = np.flatnonzero(count)
        parts.append(np.stack([first[some], some, np.full(len(some), place), count[some]]))
    first, key, place, count = np.concatenate(parts, axis=1).astype(np.int64)
    return Waits(key, place, first, count).table(keys.select(names), inputs, bounds)


def merge_fullness(step: MergeStep, state: Mapping[str, pa.Table]) -> tuple[pa.Table, Any, Any]:
    """Return how many rows of each input wait under each key of a merge, and which inputs run ahead there.

    A main row waits for the slow inputs; a slow row above the bound of the main input waits for main rows.

    Parameters
    ----------
    step : MergeStep
        The step.
    state : mapping of str to pa.Table
        All its tables of one bucket.

    Returns
    -------
    keys : pa.Table
        The keys with waiting rows.
    counts : array of int64, keys x inputs
        Their waiting rows.
    is_ahead : array of bool, keys x inputs
        The inputs that have waiting rows and delay no other.
    """
    names, inputs = step.key.names, list(step.inputs)
    held = [state["waiting"] if name == MAIN else state[f"slow_{name}"] for name in inputs]
    keys = joins.distinct_keys(tables.united([table.select(names) for table in held]), names)
    bounds = _bounds(step, state, keys)
    counts = np.zeros((keys.num_rows, len(inputs)), np.int64)
    is_blocked = np.zeros(counts.shape, bool)
    place_of_main = inputs.index(MAIN)
    for place, (name, table) in enumerate(zip(inputs, held, strict=True)):
        codes, times = joins.index_in(table, keys, names), keyed.ticks(table.column(step.times[name]))
        if name != MAIN:
            codes = codes[times > bounds[:, place_of_main][codes]]
        else:
            for other, waited_for in enumerate(inputs):
                is_blocked[codes[_waits_for(waited_for, times, bounds[:, other][codes])], other] = True
        counts[:, place] = np.bincount(codes, minlength=keys.num_rows)
    # Without main rows it is the main input that slow rows wait for.
    is_blocked[:, place_of_main] |= counts[:, place_of_main] == 0
    return keys, counts, (counts > 0) & ~is_blocked


def _waits_for(name: str, times: Ints, bounds: Ints) -> Bools:
    """Return which main rows wait for an input: for slow rows up to their own time, for main rows before it."""
    return np.asarray(times > bounds if name == MAIN else times >= bounds, bool)


def _bounds(step: MergeStep, state: Mapping[str, pa.Table], keys: pa.Table) -> Any:
    """Return the bounds of keys, keys x inputs, with those that hold for all keys."""
    inputs = list(step.inputs)
    everywhere = {row[INPUT]: row[BOUND] for row in state["inputs"].to_pylist()}
    bounds = np.tile(np.array([everywhere.get(name, UNBOUNDED) for name in inputs], np.int64), (keys.num_rows, 1))
    known = state["bounds"]
    codes = joins.index_in(known, keys, step.key.names)
    places = joins.index_in(known, pa.table({INPUT: inputs}), [INPUT])
    is_here = codes >= 0
    np.maximum.at(bounds, (codes[is_here], places[is_here]), keyed.ticks(known.column(BOUND))[is_here])
    return bounds


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
