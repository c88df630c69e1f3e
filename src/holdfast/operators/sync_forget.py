"""Forgetting in ``sync``: a key that was quiet for ``forget_after`` leaves, and what waits under it is late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.operators import sync_output, tables
from holdfast.operators.step import Change, Moment
from holdfast.operators.sync_intake import KEYS, ORDER, SENT, waiting_table, whole
from holdfast.timeline import UNBOUNDED

if TYPE_CHECKING:
    from holdfast.operators.sync_step import SyncStep

ACTIVE = "__active_us__"


def forget(
    step: SyncStep, state: Mapping[str, pa.Table], changes: dict[str, Change], at: Moment
) -> tuple[pa.Table, dict[str, Change]] | None:
    """Return the rows that waited under keys now forgotten, and the changes with the keys gone."""
    assert step.forget_us is not None
    active = whole(state[KEYS].column(ACTIVE), UNBOUNDED)
    quiet = state[KEYS].filter(pa.array(at.batch_us - active >= step.forget_us))
    if KEYS in changes and quiet.num_rows and step.key.names:
        touched = changes[KEYS].upserts
        touched = touched.filter(pa.array(whole(touched.column(ACTIVE)) == at.batch_us))
        quiet = tables.anti_join(quiet, touched, step.key.names)
    elif KEYS in changes and (whole(changes[KEYS].upserts.column(ACTIVE)) == at.batch_us).any():
        quiet = quiet.slice(0, 0)
    if quiet.num_rows == 0:
        return None
    changes, parts = dict(changes), []
    for place, name in enumerate([None, *step.inputs]):
        table = KEYS if name is None else waiting_table(name)
        declared, change = step.tables[table], changes.get(table, tables.no_change(step.tables[table]))
        there = tables.semi_join(tables.apply_change(state[table], declared, change), quiet, step.key.names)
        if name is not None:
            waited = unsent(there).sort_by(ORDER)
            reason = "the key was forgotten: it had no row for longer than forget_after"
            parts.append(sync_output.side_rows(step, place - 1, waited, reason))
        gone = tables.fitted(there.select(list(declared.key)), tables.key_schema(declared))
        if there.num_rows:
            changes[table] = tables.merged_change(change, Change(tables.empty(declared.schema), gone), declared)
    return pa.concat_tables(parts), changes


def forgetting_due(step: SyncStep, state: Mapping[str, pa.Table], changes: Mapping[str, Change]) -> int | None:
    """Return when the next key is forgotten under which rows wait; with the others nothing leaves."""
    if step.forget_us is None:
        return None
    names, dues = step.key.names, []
    for name in step.inputs:
        waiting = unsent(_changed(step, state, changes, waiting_table(name)))
        # Before the change is made too: it is made to few keys then.
        near = {KEYS: tables.semi_join(state[KEYS], waiting, names)}
        keys = tables.semi_join(_changed(step, near, changes, KEYS), waiting, names)
        active = whole(keys.column(ACTIVE), UNBOUNDED)
        dues += [int(active.min()) + step.forget_us] if len(active) else []
    return min(dues, default=None)


def unsent(waiting: pa.Table) -> pa.Table:
    """Return the rows that are in no set yet: with ``within`` one in a set stays while later ones may look at it."""
    if SENT not in waiting.column_names:
        return waiting
    return waiting.filter(pa.array(~np.asarray(waiting.column(SENT)).astype(bool)))


def _changed(step: SyncStep, state: Mapping[str, pa.Table], changes: Mapping[str, Change], table: str) -> pa.Table:
    return tables.apply_change(state[table], step.tables[table], changes[table]) if table in changes else state[table]
