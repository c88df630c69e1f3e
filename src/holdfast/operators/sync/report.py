"""What a sync's state reports: which key waits on which input since when, and which inputs run ahead.

Pure functions of the state tables, called between epochs: for the status and for backpressure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from holdfast.operators.sync import ask
from holdfast.operators.sync.custom import Custom
from holdfast.operators.sync.decide import decide
from holdfast.operators.sync.epoch import (
    INPUTS,
    KEYS,
    ORDER,
    SENT,
    Epoch,
    Events,
    Late,
    Pool,
    bound_column,
    waiting_table,
    waits_column,
    whole,
)
from holdfast.operators.sync.intake import coded
from holdfast.operators.sync.step import SyncStep
from holdfast.operators.waits_table import Waits
from holdfast.state import joins
from holdfast.state.step import StepTime
from holdfast.state.timeline import UNBOUNDED, Bools, Ints


def waiting_rows(step: SyncStep, state: Mapping[str, pa.Table]) -> pa.Table:
    """Return how many rows wait, for each key with waiting rows.

    Parameters
    ----------
    step : SyncStep
        The step.
    state : mapping of str to pa.Table
        All its tables of one bucket.

    Returns
    -------
    pa.Table
        The key columns; ``waiting_rows``, BIGINT; and ``waiting_<input>``, BIGINT, for each input.  Ascending by key.
    """
    keys, _, _, counts = _held(step, state)
    some = np.flatnonzero(counts.sum(axis=1) > 0)
    return _table(
        step,
        keys,
        some,
        {
            "waiting_rows": counts[some].sum(axis=1),
            **{waiting_table(name): counts[some, place] for place, name in enumerate(step.inputs)},
        },
    )


def stalls(step: SyncStep, state: Mapping[str, pa.Table], at: StepTime) -> pa.Table:
    """Return which keys wait on which input, since when.

    Parameters
    ----------
    step : SyncStep
        The step.
    state : mapping of str to pa.Table
        All its tables of one bucket.
    at : StepTime
        Now: the last epoch's time.

    Returns
    -------
    pa.Table
        As of :meth:`.Waits.table`: a key waits since the epoch since which no row or bound of
        that input has come.
    """
    epoch, counts = _standing(step, state)
    blocked = _blocked(step, epoch)
    key, place = np.nonzero(blocked)
    since = np.column_stack([epoch.column(waits_column(name), at.batch_us) for name in step.inputs])
    # A bound for all keys counts for the input too.
    since = np.maximum(since, epoch.seen_us)[key, place]
    waits = Waits(key, place, since, counts[key].sum(axis=1))
    return waits.table(epoch.keys.select(step.key.names), list(step.inputs), epoch.bounds)


def running_ahead(step: SyncStep, state: Mapping[str, pa.Table], limit: int | None = None) -> pa.Table:
    """Return which inputs run ahead of the others, for the keys whose waiting rows have reached the limit.

    Parameters
    ----------
    step : SyncStep
        The step.
    state : mapping of str to pa.Table
        All its tables of one bucket.
    limit : int, optional
        Waiting rows of one key; by default the step's ``max_waiting_rows``.

    Returns
    -------
    pa.Table
        The key columns; ``input``, which has waiting rows and delays no other; ``ahead_rows``, how many of them wait;
        ``waiting_rows`` of the key.  Empty without a limit.

    Notes
    -----
    The host admits less of these inputs in the next epoch.  Where a key's limit is reached and none of its inputs runs
    ahead, or one source feeds both sides, throttling cannot help: the host relaxes the limit and reports.
    """
    limit = step.max_waiting_rows if limit is None else limit
    epoch, counts = _standing(step, state)
    is_full = counts.sum(axis=1) >= limit if limit is not None else np.zeros(len(counts), bool)
    key, place = np.nonzero(is_full[:, None] & (counts > 0) & ~_blocked(step, epoch))
    return _table(
        step,
        epoch.keys,
        key,
        {
            "input": pa.array(np.array(list(step.inputs), object)[place], pa.string()),
            "ahead_rows": counts[key, place],
            "waiting_rows": counts[key].sum(axis=1),
        },
    )


def _blocked(step: SyncStep, epoch: Epoch) -> Bools:
    if isinstance(step.policy, Custom):  # what waits is known, and the user's function is called by epochs alone
        needs = ask.needs(step, epoch, [np.ones(len(pool.at), bool) for pool in epoch.pools])
    else:
        needs = decide(step, epoch).needs
    return np.asarray((needs > UNBOUNDED) & (epoch.bounds <= needs), bool)


def _held(step: SyncStep, state: Mapping[str, pa.Table]) -> tuple[pa.Table, list[pa.Table], list[Ints], Ints]:
    """Return the keys with waiting rows, these rows by input, the key of each of them, and counts, keys x inputs."""
    parts = [_unsent(state[waiting_table(name)]) for name in step.inputs]
    keys, codes = coded(parts, step.key.names)
    counts = [np.bincount(code, minlength=keys.num_rows).astype(np.int64) for code in codes]
    return keys, parts, codes, np.column_stack(counts)


def _unsent(table: pa.Table) -> pa.Table:
    if SENT not in table.column_names:
        return table
    return table.filter(pa.array(~np.asarray(table.column(SENT)).astype(bool)))


def _standing(step: SyncStep, state: Mapping[str, pa.Table]) -> tuple[Epoch, Ints]:
    """Return the keys with waiting rows as an epoch without rows, and their rows by input."""
    names = list(step.inputs)
    keys, parts, codes, counts = _held(step, state)
    known_key = joins.index_in(state[KEYS], keys, step.key.names)
    known, known_key = state[KEYS].filter(pa.array(known_key >= 0)), known_key[known_key >= 0]
    own = np.full((keys.num_rows, len(names)), UNBOUNDED, np.int64)
    if known.num_rows:
        own[known_key] = np.column_stack([whole(known.column(bound_column(name)), UNBOUNDED) for name in names])
    of_all = {row["input"]: (row["bound"], row["seen_us"]) for row in state[INPUTS].to_pylist()}
    all_bounds, seen_us = (
        np.array([of_all.get(name, (UNBOUNDED, UNBOUNDED))[place] for name in names], np.int64) for place in (0, 1)
    )
    bounds = np.maximum(own, all_bounds)
    nothing = np.empty(0, np.int64)
    pools = tuple(
        Pool(part, code, whole(part.column(time)), whole(part.column(ORDER)), part.num_rows)
        for part, code, time in zip(parts, codes, step.times, strict=True)
    )
    quiet = Events(nothing, nothing, nothing, nothing, nothing)
    none_late = tuple(Late(part.slice(0, 0), nothing, nothing, nothing.astype(bool)) for part in parts)
    epoch = Epoch(
        keys,
        known,
        known_key,
        pools,
        (quiet,) * len(names),
        none_late,
        bounds,
        own,
        bounds,
        np.zeros(own.shape, bool),
        all_bounds,
        all_bounds,
        np.zeros(len(names), bool),
        seen_us,
    )
    return epoch, counts


def _table(step: SyncStep, keys: pa.Table, chosen: Ints, columns: Mapping[str, pa.Array | Ints]) -> pa.Table:
    of_key = {name: keys.column(name).take(pa.array(chosen)) for name in step.key.names}
    return pa.table({**of_key, **{name: pa.array(column) for name, column in columns.items()}})
