"""The step of ``sync``: one bucket, one epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.operators.sync import output
from holdfast.operators.sync.decide import DROP, EMIT, WAIT, SetDecision, decide
from holdfast.operators.sync.epoch import (
    ACTIVE,
    INPUTS,
    KEYS,
    SENT,
    Epoch,
    bound_column,
    waiting_table,
    waits_column,
    whole,
)
from holdfast.operators.sync.forget import forget, forgetting_due, unsent
from holdfast.operators.sync.intake import gather
from holdfast.operators.sync.policy import (
    TimestampAlign,
    Within,
)
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import joins, keyed, tables, timeline
from holdfast.state.step import ABSORBED, Arrivals, Change, Result, StepTime
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints

_INT = pa.int64()


@dataclass(frozen=True)
class SyncStep(SyncRules):
    """Rows of several inputs in sets, by the rules of one policy."""

    def giving(self, outputs: Collection[str]) -> SyncStep:
        """Return the step that seeks rows without a partner where they are read."""
        return replace(self, gives_unmatched="unmatched" in outputs)

    def by_bounds(self, inputs: Collection[str]) -> SyncStep:
        """Return the step for which rows of these inputs promise nothing."""
        named = zip(self.inputs, self.promises, strict=True)
        return replace(self, promises=tuple(one.silent() if name in inputs else one for name, one in named))

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Return the sets that the epoch settles."""
        epoch = gather(self, state, arrivals, at)
        if epoch is None:
            return self._forgetting(state, None, at)
        waits = _waits(self, epoch)
        is_idle = _idle(self, waits, at)
        epoch = _after_idling(self, epoch, is_idle)
        decision = decide(self, epoch)
        late = output.missed(self, epoch, decision)
        rows = output.sets(self, epoch, decision)
        changes = {
            **_key_changes(self, epoch, decision, waits, at),
            **_input_changes(self, epoch),
            **_waiting_changes(self, epoch, decision),
        }
        dropped = sum(int((fates == DROP).sum()) for fates in decision.fates)
        counts = {
            **_late_counts(epoch),
            **keyed.counted("dropped", {decision.dropped_because: dropped}),
            "sets": rows.num_rows,
        }
        outputs = {"rows": rows, "late": late}
        if self.gives_unmatched:
            outputs["unmatched"] = output.unmatched(self, epoch, decision)
            alone = outputs["unmatched"].num_rows - dropped
            counts |= keyed.counted("unmatched", {keyed.ALONE: alone, decision.dropped_because: dropped})
        due_us = _due(self, epoch, decision, waits, is_idle, at)
        result = Result(
            outputs,
            changes,
            _bounds(self, state, epoch, decision),
            counts,
            due_us,
            fates={ABSORBED: _into_sets(epoch, decision), "late": counts["late"] + dropped},
        )
        return self._forgetting(state, result, at)

    def _forgetting(self, state: Mapping[str, pa.Table], result: Result | None, at: StepTime) -> Result:
        """Return the result after keys that were quiet for too long are gone, with the number of waiting rows."""
        done = result or Result()
        counts = dict(done.counts)
        outputs, changes = dict(done.outputs), dict(done.changes)
        fates = dict(done.fates or {})
        if self.forget_us is not None:
            forgotten = forget(self, state, changes, at)
            if forgotten is not None:
                rows, changes = forgotten
                counts["forgotten"] = rows.num_rows
                fates["late"] = fates.get("late", 0) + rows.num_rows
                for name in ("late", "unmatched") if self.gives_unmatched else ("late",):
                    outputs[name] = tables.united([outputs[name], rows]) if name in outputs else rows
                if self.gives_unmatched and rows.num_rows:
                    known = counts.get("unmatched", 0)
                    counts |= keyed.counted("unmatched", {keyed.FORGOTTEN: rows.num_rows})
                    counts["unmatched"] += known
                    outputs["unmatched"] = output.in_time_order(outputs["unmatched"])
        counts["waiting_rows"] = _waiting_count(self, state, changes)
        dues = [due for due in (done.due_us, forgetting_due(self, state, changes)) if due is not None]
        return Result(outputs, changes, done.bounds, counts, min(dues, default=None), fates=fates)

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many rows wait to be in a set."""
        return sum(unsent(state[waiting_table(name)]).num_rows for name in self.inputs)


def _into_sets(epoch: Epoch, decision: SetDecision) -> int:
    """Return how many rows are in a set for the first time."""
    count = 0
    for pool, fates in zip(epoch.pools, decision.fates, strict=True):
        goes = fates == EMIT
        if SENT in pool.table.column_names:
            goes &= ~np.asarray(pool.table.column(SENT)).astype(bool)
        count += int(goes.sum())
    return count


def _late_counts(epoch: Epoch) -> dict[str, int]:
    repeated = sum(int(late.is_repeat.sum()) for late in epoch.late)
    ended = sum(int(((late.below == CLOSED) & ~late.is_repeat).sum()) for late in epoch.late)
    below = sum(late.rows.num_rows for late in epoch.late) - repeated - ended
    return keyed.counted("late", {keyed.BELOW: below, keyed.ENDED: ended, keyed.REPEATED: repeated})


def _waits(step: SyncStep, epoch: Epoch) -> Ints:
    """Return since when each key waits on each input, batch time; UNBOUNDED where the input has spoken since."""
    waits = np.column_stack([epoch.column(waits_column(name), UNBOUNDED) for name in step.inputs])
    return np.where(epoch.touched | (waits < epoch.seen_us), UNBOUNDED, waits)


def _silent_since(step: SyncStep, waits: Ints, at: StepTime) -> Ints:
    """Return since when waits count, keys x inputs."""
    return np.column_stack([at.silent_since(name, waits[:, i]) for i, name in enumerate(step.inputs)])


def _idle(step: SyncStep, waits: Ints, at: StepTime) -> Bools:
    """Return which inputs have kept which keys waiting for too long."""
    if step.idle_us is None:
        return np.zeros(waits.shape, bool)
    return (waits > UNBOUNDED) & (at.batch_us - _silent_since(step, waits, at) >= step.idle_us)


def _due(step: SyncStep, epoch: Epoch, decision: SetDecision, waits: Ints, is_idle: Bools, at: StepTime) -> int | None:
    """Return when the next of the inputs that hold rows up will have done so for too long."""
    if step.idle_us is None:
        return None
    is_waited_for = _blocking(decision, epoch.bounds) & ~is_idle
    since = np.where(waits == UNBOUNDED, at.batch_us, waits)
    dues = _silent_since(step, since, at)[is_waited_for] + step.idle_us
    return int(dues.min()) if len(dues) else None


def _after_idling(step: SyncStep, epoch: Epoch, is_idle: Bools) -> Epoch:
    """Return the epoch with the bounds of idle inputs raised."""
    if not is_idle.any():
        return epoch
    bounds, own = epoch.bounds.copy(), epoch.own.copy()
    for group in step.groups:
        members = list(group)
        latest = np.full(epoch.keys.num_rows, UNBOUNDED, np.int64)
        for i in members:
            np.maximum.at(latest, epoch.pools[i].key, epoch.pools[i].at)
        reached = timeline.shifted(latest, 1 + step.reach)
        raised = timeline.idle_raised(bounds[:, members], is_idle[:, members], reached)
        # Silence is no end: rows below are late then, but the input continues.
        raised = np.where(raised == CLOSED, np.maximum(bounds[:, members], reached[:, None]), raised)
        bounds[:, members] = np.where(is_idle[:, members], raised, bounds[:, members])
        own[:, members] = np.where(is_idle[:, members], np.maximum(own[:, members], raised), own[:, members])
    return Epoch(
        **{**{name: getattr(epoch, name) for name in Epoch.__dataclass_fields__}, "bounds": bounds, "own": own}
    )


def _blocking(decision: SetDecision, bounds: Ints) -> Bools:
    return (decision.needs > UNBOUNDED) & (bounds <= decision.needs)


def _key_changes(step: SyncStep, epoch: Epoch, decision: SetDecision, waits: Ints, at: StepTime) -> dict[str, Change]:
    names = list(step.inputs)
    is_blocked = _blocking(decision, epoch.bounds)
    waits = np.where(is_blocked & (waits == UNBOUNDED), at.batch_us, waits)
    before = epoch.column(ACTIVE, UNBOUNDED)
    is_touched = epoch.touched.any(axis=1)
    active = np.where(is_touched, at.batch_us, before)
    values = {
        ACTIVE: active,
        **{bound_column(name): epoch.own[:, i] for i, name in enumerate(names)},
        **{waits_column(name): waits[:, i] for i, name in enumerate(names)},
        **decision.columns,
    }
    changed = before == UNBOUNDED
    # When a key was last active matters only if keys are forgotten.
    for name, value in values.items():
        if name != ACTIVE or step.forget_us is not None:
            changed = changed | (value != epoch.column(name, UNBOUNDED))
    changed &= is_touched | (before > UNBOUNDED)
    if not changed.any():
        return {}
    declared = step.tables[KEYS]
    chosen = np.flatnonzero(changed)
    keys = epoch.keys.take(pa.array(chosen)) if step.key.names else None
    arrays = [
        keys.column(field.name)
        if keys is not None and field.name in step.key.names
        else pa.array(values[field.name][chosen], mask=values[field.name][chosen] == UNBOUNDED)
        for field in declared.schema
    ]
    upserts = pa.Table.from_arrays(arrays, schema=declared.schema)
    return {KEYS: Change(upserts, tables.empty(tables.key_schema(declared)))}


def _input_changes(step: SyncStep, epoch: Epoch) -> dict[str, Change]:
    declared = step.tables[INPUTS]
    rows = [
        {"input": name, "bound": int(epoch.all_bounds[i]), "seen_us": int(epoch.seen_us[i])}
        for i, name in enumerate(step.inputs)
        if epoch.all_signs[i]
    ]
    if not rows:
        return {}
    return {INPUTS: Change(pa.Table.from_pylist(rows, schema=declared.schema), tables.no_change(declared).deletes)}


def _waiting_changes(step: SyncStep, epoch: Epoch, decision: SetDecision) -> dict[str, Change]:
    changes = {}
    is_kept = isinstance(step.policy, Within)
    for name, pool, fates in zip(step.inputs, epoch.pools, decision.fates, strict=True):
        declared = step.tables[waiting_table(name)]
        fate = fates
        table = pool.table
        waited = np.arange(len(fate)) < pool.waited_count
        stays = fate == WAIT
        gone = np.flatnonzero(waited & ~stays)
        new = np.flatnonzero(~waited & stays)
        if is_kept:
            # A row in a set stays while later ones may still use it.
            new = np.flatnonzero((~waited & stays) | (fate == EMIT))
            gone = np.flatnonzero(waited & ~stays & (fate != EMIT))
            sent = np.asarray(table.column(SENT)).astype(bool) | (fate == EMIT)
            table = table.set_column(table.schema.get_field_index(SENT), table.schema.field(SENT), pa.array(sent))
        if len(gone) or len(new):
            changes[waiting_table(name)] = Change(
                tables.fitted(table.take(pa.array(new)), declared.schema),
                tables.fitted(table.select(list(declared.key)).take(pa.array(gone)), tables.key_schema(declared)),
            )
    return changes


def _bounds(step: SyncStep, state: Mapping[str, pa.Table], epoch: Epoch, decision: SetDecision) -> pa.Table | None:
    """Return the bounds of the output that rose."""
    if not step.ascends:
        return _end(step, epoch)
    keys, bounds = epoch.keys, decision.settled
    rose = np.flatnonzero((bounds > UNBOUNDED) & epoch.touched.any(axis=1) | (bounds > _settled_before(step, epoch)))
    for_all, for_all_before = _for_all(step, epoch.all_bounds), _for_all(step, epoch.all_before)
    keys, bounds = (keys.take(pa.array(rose)) if step.key.names else keys), bounds[rose]
    if not step.key.names:
        highest = int(decision.settled.max(initial=UNBOUNDED))
        return None if highest == UNBOUNDED else output.bounds_rows(step, epoch.keys.slice(0, 0), bounds[:0], highest)
    if (epoch.all_bounds > epoch.all_before).any() and not isinstance(step.policy, TimestampAlign):
        others, theirs = _quiet_keys(step, state, epoch, for_all)
        keys, bounds = tables.united([keys, others]), np.r_[bounds, theirs]
    if len(bounds) == 0 and for_all <= for_all_before:
        return None
    return output.bounds_rows(step, keys, bounds, for_all if for_all > for_all_before else None)


def _settled_before(step: SyncStep, epoch: Epoch) -> Ints:
    return timeline.shifted(timeline.settled_before(epoch.before), -step.reach)


def _for_all(step: SyncStep, bounds: Ints) -> int:
    """Return the bound of the output that follows for every key, also for those not yet seen."""
    if isinstance(step.policy, TimestampAlign) and not (bounds == CLOSED).all():
        return UNBOUNDED
    return int(timeline.shifted(timeline.settled_before(bounds[None, :]), -step.reach)[0])


def _end(step: SyncStep, epoch: Epoch) -> pa.Table | None:
    """Return the one bound that is known where timestamps do not ascend across the output: that it has ended."""
    is_over, was_over = bool((epoch.all_bounds == CLOSED).all()), bool((epoch.all_before == CLOSED).all())
    if not is_over or was_over:
        return None
    return output.bounds_rows(step, epoch.keys.slice(0, 0), np.empty(0, np.int64), CLOSED)


def _quiet_keys(step: SyncStep, state: Mapping[str, pa.Table], epoch: Epoch, for_all: int) -> tuple[pa.Table, Ints]:
    """Return the keys without rows in this epoch whose bound rose through one for all keys: one scan of columns."""
    known = state[KEYS]
    if known.num_rows == 0:
        return epoch.keys.slice(0, 0), np.empty(0, np.int64)
    own = np.column_stack([whole(known.column(bound_column(name)), UNBOUNDED) for name in step.inputs])
    before = timeline.settled_before(np.maximum(own, epoch.all_before))
    after = timeline.settled_before(np.maximum(own, epoch.all_bounds))
    before, after = (timeline.shifted(bound, -step.reach) for bound in (before, after))
    rose = (after > before) & (after > for_all)
    rows = np.flatnonzero(rose)
    keys = known.select(step.key.names).take(pa.array(rows))
    is_quiet = ~np.asarray(joins.member_mask(keys, epoch.keys, step.key.names)).astype(bool)
    return keys.filter(pa.array(is_quiet)), after[rows][is_quiet]


def _waiting_count(step: SyncStep, state: Mapping[str, pa.Table], changes: Mapping[str, Change]) -> int:
    """Return how many rows wait after the epoch; every delete is of a row that is there."""
    count = 0
    for name in step.inputs:
        table = waiting_table(name)
        sent = SENT in state[table].column_names
        present = state[table]
        if sent:
            present = tables.apply_change(present, step.tables[table], changes[table]) if table in changes else present
            count += int((~np.asarray(present.column(SENT)).astype(bool)).sum())
            continue
        count += present.num_rows
        if table in changes:
            count += changes[table].upserts.num_rows - changes[table].deletes.num_rows
    return count
