"""The step of ``limit_in_flight``: each new timestamp of a key is admitted or shed, in the order of arrival."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import checks, declared_bounds, joins, keyed, tables
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StateTable,
    StepTime,
)

ROWS, DONE = "rows", "done"
_SHED, _ADMITTED, _LATE = 0, 1, 2
_OF_ITS_KEY = "that follows from the newest of its key"
TICKS = "__ticks__"
_LAST = [
    pa.field("__newest__", pa.int64()),
    pa.field("__admitted__", pa.bool_()),
    pa.field("__span__", pa.int64()),
    pa.field("__used__", pa.int64()),
    pa.field("__since_us__", pa.int64()),
]


@dataclass
class _Key:
    """What is known of one key while an epoch is decided."""

    in_flight: list[int] = field(default_factory=list)
    newest: int = UNBOUNDED
    is_admitted: bool = False
    span: int = 0
    used: int = 0
    below: dict[int, bool] = field(default_factory=dict)
    """Timestamps of this epoch that are below the newest -> whether they were admitted."""


@dataclass(frozen=True)
class LimitStep:
    """The step of ``limit_in_flight``.

    State: ``in_flight``, the admitted timestamps per key that are not done; ``keys``, each key's newest timestamp,
    whether it was admitted, and what its span of batch time has used; ``bounds``, those declared for its stream.
    """

    n: int
    inputs: Mapping[str, pa.Schema]
    key: pa.Schema
    times: Mapping[str, str]
    timeout: int | None
    per_us: int | None
    forget_us: int | None
    is_by_bounds: bool = False

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``in_flight``, ``keys`` and ``bounds``."""
        names = tuple(self.key.names)
        flying = pa.schema([*self.key, pa.field(TICKS, pa.int64())])
        return {
            "in_flight": StateTable(flying, (*names, TICKS)),
            "keys": StateTable(pa.schema([*self.key, *_LAST]), names),
            "bounds": declared_bounds.declared(self.key),
        }

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Admitted rows, shed rows unchanged, and late ones."""
        schema = self.inputs[ROWS]
        late = keyed.late_schema(self.key, schema.field(self.times[ROWS]).type, {ROWS: schema})
        return {"rows": schema, "shed": schema, "late": late}

    def by_bounds(self, inputs: Collection[str]) -> LimitStep:
        """Return the step for which a row may be below the newest of its key, as far as bounds allow."""
        return replace(self, is_by_bounds=ROWS in inputs)

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.times[name]

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Decide every new timestamp in the order of arrival; rows of one timestamp share its fate."""
        for name, given in arrivals.items():
            checks.require_values(given.rows, [*self.key.names, self.times[name]], name)
        names = self.key.names
        rows = arrivals[ROWS].rows
        touched = joins.distinct_keys(tables.united([self._keys(given) for given in arrivals.values()]), names)
        flying = joins.semi_join(state["in_flight"], touched, names)
        known = self._known(state, flying, touched, at)
        codes = joins.index_in(rows, touched, names)
        times = keyed.ticks(rows.column(self.times[ROWS]))
        silent = self._silent(state["keys"], at)
        declared_limits = declared_bounds.limits(
            joins.anti_join(state["bounds"], silent, names), arrivals[ROWS], self.key, self.times[ROWS]
        )
        fates = np.where(times < declared_limits.of_rows, _LATE, _SHED).astype(np.int8)
        limits = declared_limits.of_rows.copy()
        self._decide(arrivals, touched, codes, times, known, fates, limits, at)
        is_late = fates == _LATE
        why = np.where(limits[is_late] > declared_limits.of_rows[is_late], _OF_ITS_KEY, declared_bounds.WHY)
        late = keyed.late_rows(
            self.outputs["late"],
            ROWS,
            rows.filter(pa.array(is_late)),
            self.times[ROWS],
            limits[is_late],
            pa.array(why, pa.string()),
        )
        plain = rows.drop_columns([PLACE])
        changes, forgotten = self._changes(state, flying, touched, known, self._done_for_all(arrivals), silent, at)
        if (change := _without(silent, state["bounds"], declared_limits.change, names)) is not None:
            changes["bounds"] = change
        counts = keyed.counted("shed", {self._limit(): int((fates == _SHED).sum())})
        counts |= keyed.late_counts(limits[is_late])
        if self.forget_us is not None:
            counts["forgotten"] = forgotten
        bounds = arrivals[ROWS].bounds
        return Result(
            {
                "rows": plain.filter(pa.array(fates == _ADMITTED)),
                "shed": plain.filter(pa.array(fates == _SHED)),
                "late": late,
            },
            changes,
            bounds.drop_columns([PLACE]) if bounds.num_rows else None,
            counts,
            fates={
                "rows": int((fates == _ADMITTED).sum()),
                "shed": int((fates == _SHED).sum()),
                "late": int(is_late.sum()),
                ABSORBED: arrivals[DONE].rows.num_rows if DONE in arrivals else 0,
            },
        )

    def _limit(self) -> str:
        return f"{self.n} in flight" if self.per_us is None else f"{self.n} in {self.per_us / 1e6:g} s"

    def _keys(self, given: Arrivals) -> pa.Table:
        schema = pa.schema([field.with_nullable(True) for field in self.key])
        of_bounds = given.bounds.filter(pc.invert(given.bounds.column(ALL_KEYS)))
        parts = (given.rows.select(self.key.names), of_bounds.select(self.key.names))
        return tables.united(parts, schema)

    def _known(self, state: Mapping[str, pa.Table], flying: pa.Table, touched: pa.Table, at: StepTime) -> list[_Key]:
        names = self.key.names
        known = [_Key() for _ in range(touched.num_rows)]
        last = joins.semi_join(state["keys"], touched, names)
        is_fresh = np.ones(touched.num_rows, bool)
        for code, row in zip(joins.index_in(last, touched, names).tolist(), last.to_pylist(), strict=True):
            if self.forget_us is not None and row["__since_us__"] <= at.batch_us - self.forget_us:
                is_fresh[code] = False
                continue
            one = known[code]
            one.newest, one.is_admitted = row["__newest__"], row["__admitted__"]
            one.span, one.used = row["__span__"], row["__used__"]
        codes = joins.index_in(flying, touched, names).tolist()
        for code, time in zip(codes, flying.column(TICKS).to_pylist(), strict=True):
            if is_fresh[code]:
                known[code].in_flight.append(time)
        for one in known:
            one.in_flight.sort()
        return known

    def _events(
        self, arrivals: Mapping[str, Arrivals], touched: pa.Table, codes: Any, times: Any
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (key, time, row) in the order of arrival; the row is -1 where a time is done."""
        names = self.key.names
        places = [keyed.ticks(arrivals[ROWS].rows.column(PLACE))]
        lines = [np.stack([codes, times, np.arange(len(times))], axis=1)]
        if DONE in arrivals:
            done = arrivals[DONE]
            ticks = keyed.ticks(done.rows.column(self.times[DONE]))
            places.append(keyed.ticks(done.rows.column(PLACE)))
            lines.append(np.stack([joins.index_in(done.rows, touched, names), ticks, np.full(len(ticks), -1)], axis=1))
            is_for_all = done.bounds.column(ALL_KEYS)
            of_keys = done.bounds.filter(pc.invert(is_for_all))
            ticks = keyed.ticks(of_keys.column(BOUND)) - 1  # below a bound all is done
            places.append(keyed.ticks(of_keys.column(PLACE)))
            lines.append(np.stack([joins.index_in(of_keys, touched, names), ticks, np.full(len(ticks), -1)], axis=1))
            for_all = done.bounds.filter(is_for_all)
            count, ticks = touched.num_rows, keyed.ticks(for_all.column(BOUND)) - 1
            places.append(np.repeat(keyed.ticks(for_all.column(PLACE)), count))
            everyone = np.tile(np.arange(count), len(ticks))
            lines.append(np.stack([everyone, np.repeat(ticks, count), np.full(len(everyone), -1)], axis=1))
        order = np.argsort(np.concatenate(places), kind="stable")
        yield from np.concatenate(lines)[order].tolist()

    def _decide(
        self,
        arrivals: Mapping[str, Arrivals],
        touched: pa.Table,
        codes: Any,
        times: Any,
        known: Sequence[_Key],
        fates: Any,
        limits: Any,
        at: StepTime,
    ) -> None:
        # One after the other: whether a timestamp is admitted depends on all before it.  What enters here is what
        # downstream cannot keep up with, frames of a camera for instance, so some microseconds for each are little.
        span = 0 if self.per_us is None else at.batch_us // self.per_us
        for code, time, row in self._events(arrivals, touched, codes, times):
            one = known[code]
            if row < 0:
                one.in_flight = [flying for flying in one.in_flight if flying > time]
                continue
            if time < limits[row] or (time < one.newest and not self.is_by_bounds):
                fates[row], limits[row] = _LATE, max(limits[row], UNBOUNDED if self.is_by_bounds else one.newest)
                continue
            if time < one.newest:
                if time not in one.below:
                    one.below[time] = time in one.in_flight or self._admits(one, time, span)
                fates[row] = _ADMITTED if one.below[time] else _SHED
                continue
            if time > one.newest:
                one.newest = time
                if self.timeout is not None:
                    one.in_flight = [flying for flying in one.in_flight if flying >= time - self.timeout]
                one.is_admitted = self._admits(one, time, span)
            fates[row] = _ADMITTED if one.is_admitted else _SHED

    def _admits(self, one: _Key, time: int, span: int) -> bool:
        """Return whether a new timestamp of a key is admitted, and note it."""
        if self.per_us is not None:
            if one.span != span:
                one.span, one.used = span, 0
            is_admitted = one.used < self.n
            one.used += is_admitted
            return is_admitted
        is_admitted = len(one.in_flight) < self.n
        if is_admitted:
            one.in_flight.append(time)
        return is_admitted

    def _silent(self, keys: pa.Table, at: StepTime) -> pa.Table:
        """Return the keys that are forgotten: no row or bound of them arrived for long."""
        names = self.key.names
        if self.forget_us is None:
            return keys.select(names).slice(0, 0)
        since = keyed.ticks(keys.column("__since_us__"))
        return keys.filter(pa.array(since <= at.batch_us - self.forget_us)).select(names)

    def _done_for_all(self, arrivals: Mapping[str, Arrivals]) -> int:
        """Return the time below which everything is done, also of keys that nothing arrives for."""
        if DONE not in arrivals:
            return UNBOUNDED
        bounds = arrivals[DONE].bounds
        highest = pc.max(bounds.filter(bounds.column(ALL_KEYS)).column(BOUND)).as_py()
        return UNBOUNDED if highest is None else int(highest)

    def _changes(
        self,
        state: Mapping[str, pa.Table],
        stored: pa.Table,
        touched: pa.Table,
        known: Sequence[_Key],
        done: int,
        old: pa.Table,
        at: StepTime,
    ) -> tuple[dict[str, Change], int]:
        names = self.key.names
        flying, last = self.tables["in_flight"], self.tables["keys"]
        now = pa.Table.from_arrays(
            [
                *touched.take(
                    pa.array([code for code, one in enumerate(known) for _ in one.in_flight], pa.int64())
                ).columns,
                pa.array([time for one in known for time in one.in_flight], pa.int64()),
            ],
            schema=flying.schema,
        )
        if done > UNBOUNDED:
            elsewhere = state["in_flight"].filter(pc.less(state["in_flight"].column(TICKS), done))
            stored = tables.united([stored, joins.anti_join(elsewhere, touched, names)])
        gone = joins.anti_join(stored, now, flying.key)
        added = joins.anti_join(now, stored, flying.key)
        columns = [
            pa.array([one.newest for one in known], pa.int64()),
            pa.array([one.is_admitted for one in known], pa.bool_()),
            pa.array([one.span for one in known], pa.int64()),
            pa.array([one.used for one in known], pa.int64()),
            pa.array([at.batch_us] * len(known), pa.int64()),
        ]
        upserts = pa.Table.from_arrays([*touched.columns, *columns], schema=last.schema)
        deletes = tables.fitted(old, tables.key_schema(last))
        if old.num_rows:
            gone = joins.distinct_keys(
                tables.united([gone, joins.semi_join(state["in_flight"], old, names)]), list(flying.key)
            )
            gone = joins.anti_join(gone, now, flying.key)
        changes = {"in_flight": Change(added, gone), "keys": Change(upserts, deletes)}
        worth = {name: one for name, one in changes.items() if one.upserts.num_rows or one.deletes.num_rows}
        return worth, deletes.num_rows


def _without(keys: pa.Table, bounds: pa.Table, change: Change | None, names: Sequence[str]) -> Change | None:
    """Return the change of the declared bounds, without those of forgotten keys."""
    gone = joins.semi_join(bounds, keys, names)
    if not gone.num_rows:
        return change
    deletes = gone.drop_columns([BOUND])
    if change is None:
        return Change(tables.empty(bounds.schema), deletes)
    return Change(change.upserts, tables.united([change.deletes, deletes]))
