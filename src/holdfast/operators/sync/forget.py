"""Forgetting in ``sync``: a key that was silent for ``forget_after`` is removed, and its waiting rows are late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from holdfast.operators.sync import output
from holdfast.operators.sync.epoch import ACTIVE, KEYS, ORDER, SENT, waiting_table, whole
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import joins, tables
from holdfast.state.step import Change, StepTime
from holdfast.state.timeline import UNBOUNDED, Ints

_FEW = 64
"""Keys that are checked first; waiting rows are few where there are this many times as many keys."""


def forget(
    step: SyncRules, state: Mapping[str, pa.Table], changes: dict[str, Change], at: StepTime
) -> tuple[pa.Table, dict[str, Change]] | None:
    """Return the rows that waited under keys now forgotten, and the changes with the keys gone."""
    assert step.forget_us is not None
    active = whole(state[KEYS].column(ACTIVE), UNBOUNDED)
    quiet = state[KEYS].filter(pa.array(at.batch_us - active >= step.forget_us))
    if KEYS in changes and quiet.num_rows and step.key.names:
        touched = changes[KEYS].upserts
        touched = touched.filter(pa.array(whole(touched.column(ACTIVE)) == at.batch_us))
        quiet = joins.anti_join(quiet, touched, step.key.names)
    elif KEYS in changes and (whole(changes[KEYS].upserts.column(ACTIVE)) == at.batch_us).any():
        quiet = quiet.slice(0, 0)
    if quiet.num_rows == 0:
        return None
    changes, parts = dict(changes), []
    for place, name in enumerate([None, *step.inputs]):
        table = KEYS if name is None else waiting_table(name)
        declared, change = step.tables[table], changes.get(table, tables.no_change(step.tables[table]))
        there = joins.semi_join(tables.apply_change(state[table], declared, change), quiet, step.key.names)
        if name is not None:
            waited = unsent(there).sort_by(ORDER)
            reason = "the key was forgotten: it had no row for longer than forget_after"
            parts.append(output.side_rows(step, place - 1, waited, reason))
        gone = tables.fitted(there.select(list(declared.key)), tables.key_schema(declared))
        if there.num_rows:
            changes[table] = tables.merged_change(change, Change(tables.empty(declared.schema), gone), declared)
    return tables.united(parts), changes


def forgetting_due(step: SyncRules, state: Mapping[str, pa.Table], changes: Mapping[str, Change]) -> int | None:
    """Return when the next key is forgotten under which rows wait; with the others nothing leaves.

    Notes
    -----
    Keys that were quiet for longest are checked first, some at a time: of many that wait few are compared.
    """
    if step.forget_us is None:
        return None
    known, oldest = _near_waiting(step, state, changes), None
    active = whole(known.column(ACTIVE), UNBOUNDED)
    for few in _ascending(active):
        oldest = _oldest_waiting(step, state, changes, known.take(pa.array(few)))
        if oldest is not None and len(few) and oldest <= active[few].max():
            break  # of the others none is older
    return None if oldest is None else oldest + step.forget_us


def _near_waiting(step: SyncRules, state: Mapping[str, pa.Table], changes: Mapping[str, Change]) -> pa.Table:
    """Return the keys in state under which rows may wait; where these are not few, all keys."""
    names = step.key.names
    waiting = [state[waiting_table(name)] for name in step.inputs]
    waiting += [changes[waiting_table(name)].upserts for name in step.inputs if waiting_table(name) in changes]
    if sum(table.num_rows for table in waiting) * _FEW > state[KEYS].num_rows:
        return state[KEYS]
    return joins.semi_join(state[KEYS], tables.united([table.select([*names, ORDER]) for table in waiting]), names)


def _ascending(values: Ints) -> Iterator[Ints]:
    """Yield the places of values: those of the smallest ones first, then of more and more; the last may be empty."""
    left, size = np.arange(len(values)), _FEW
    while len(left) > size:
        split = np.argpartition(values[left], size)
        yield left[split[:size]]
        left, size = left[split[size:]], size * 8
    yield left


def _oldest_waiting(
    step: SyncRules, state: Mapping[str, pa.Table], changes: Mapping[str, Change], known: pa.Table
) -> int | None:
    """Return the smallest ACTIVE of those keys, and of keys that the epoch changes, under which rows wait."""
    keys = _changed(step, {KEYS: known}, changes, KEYS)
    found = []
    for table in map(waiting_table, step.inputs):
        # Before the change is made too: it is made to few rows then.
        near = {table: joins.semi_join(state[table], keys, step.key.names)}
        waiting = unsent(_changed(step, near, changes, table))
        active = whole(joins.semi_join(keys, waiting, step.key.names).column(ACTIVE), UNBOUNDED)
        found += [int(active.min())] if len(active) else []
    return min(found, default=None)


def unsent(waiting: pa.Table) -> pa.Table:
    """Return the rows that are in no set yet: with ``within`` one in a set stays while later ones may use it."""
    if SENT not in waiting.column_names:
        return waiting
    return waiting.filter(pa.array(~np.asarray(waiting.column(SENT)).astype(bool)))


def _changed(step: SyncRules, state: Mapping[str, pa.Table], changes: Mapping[str, Change], table: str) -> pa.Table:
    return tables.apply_change(state[table], step.tables[table], changes[table]) if table in changes else state[table]
