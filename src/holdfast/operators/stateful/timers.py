"""Timers of ``apply``: a function asks to be called again for a key, at an event time or at a batch time.

An event timer is due when the bound of its key lies above its time: no row at or before it follows.  A batch timer is
due in the first later epoch whose logged batch time has reached it.  Both follow from what is logged, so a replay fires
the same timers in the same epochs.  They are rows of the state table ``timers``; an epoch looks at columns, and at
single timers only of those keys that it calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.state import declared_bounds, joins, keyed, tables
from holdfast.state.keyed import Ticks
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, UNBOUNDED, Arrivals, Change, StateTable, StepTime
from holdfast.state.timeline import Promise

EVENT, BATCH = "event", "batch"
CLOCKS = (EVENT, BATCH)
AT, CLOCK = "__at__", "__clock__"
TIMERS, BOUNDS = "timers", "bounds"

Key = tuple[Any, ...]


class FiredTimer(NamedTuple):
    """The timer for which a function is called: its time, in the form of the input's event time, and its clock.

    The time of a batch timer is in microseconds of Unix time.
    """

    at: Any
    clock: str


@dataclass(frozen=True)
class TimerRules:
    """Which timers a function may set.

    Parameters
    ----------
    clocks : tuple of str
        ``"event"``, ``"batch"``.
    time : str, optional
        The input's column of event time; None without event timers.
    disorder : str or int, optional
        How far behind its newest row a key's rows may be; None: rows promise nothing.
    """

    clocks: tuple[str, ...]
    time: str | None = None
    disorder: str | int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them for display and fingerprint."""
        return {"timers": list(self.clocks), "event_time": self.time, "disorder": self.disorder}

    def table(self, name: str, schema: pa.Schema, key: pa.Schema) -> TimerTable:
        """Return what a step keeps of timers, for rows of a schema."""
        if self.time is None:
            return TimerTable(name, key, None, None, self.clocks)
        time = keyed.time_field(schema, self.time)
        ticks = None if self.disorder is None else keyed.duration_ticks(self.disorder, time, "disorder")
        return TimerTable(
            name, key, time, None if ticks is None else Promise(is_strict=False, disorder=ticks), self.clocks
        )


def checked_clocks(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the clocks that ``timers=`` names.

    Raises
    ------
    InvalidPipeline
        If one is none.
    """
    named = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not named or any(each not in CLOCKS for each in named):
        raise InvalidPipeline(
            f"timers={given!r} names no clock.",
            why='a timer uses the "event" time of the input, or logged "batch" time.',
            do='write timers="event", timers="batch" or timers=["event", "batch"].',
        )
    return tuple(clock for clock in CLOCKS if clock in named)


@dataclass(frozen=True)
class TimerTable:
    """What a step keeps of timers: the table ``timers``, and ``bounds`` with what is known of event time.

    Parameters
    ----------
    name : str
        The input.
    key : pa.Schema
        Its key columns.
    time : pa.Field, optional
        Its column of event time.
    promise : Promise, optional
        What a key's rows say about rows to come.
    clocks : tuple of str
        As in :class:`TimerRules`.
    """

    name: str
    key: pa.Schema
    time: pa.Field | None
    promise: Promise | None
    clocks: tuple[str, ...]

    def by_bounds(self) -> TimerTable:
        """Return the table for which a key's rows say nothing about those to come."""
        return replace(self, promise=None)

    @cached_property
    def declared(self) -> dict[str, StateTable]:
        """The state tables."""
        columns = [*self.key, pa.field(CLOCK, pa.string()), pa.field(AT, pa.int64())]
        return {
            TIMERS: StateTable(pa.schema(columns), (*self.key.names, CLOCK, AT)),
            BOUNDS: declared_bounds.declared(self.key),
        }

    def opened(self, state: Mapping[str, pa.Table], given: Arrivals, at: StepTime) -> EpochTimers:
        """Return the timers of an epoch: those that are due, and those of keys that have rows."""
        before = state[BOUNDS]
        limits = declared_bounds.limits(before, self._timed(given), self.key, self._time_name, promise=self.promise)
        bounds = before
        if limits.change is not None:
            bounds = tables.apply_change(before, self.declared[BOUNDS], limits.change)
        return EpochTimers(self, state[TIMERS], given.rows, before, bounds, limits.change, at)

    def ticks(self, at: Any, clock: str) -> int:
        """Return a time as it is kept.

        Raises
        ------
        ValueError
            If it is none, or there is no such clock.
        """
        if clock not in self.clocks:
            raise ValueError(f"this function has no {clock!r} timers; apply was given timers={list(self.clocks)}")
        if isinstance(at, datetime):
            if clock == EVENT and self.time is not None and pa.types.is_integer(self.time.type):
                raise ValueError(f"event time is a BIGINT here ({self.time.name}): give ticks, not {at!r}")
            aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            return int(pa.scalar(aware, pa.timestamp("us", "UTC")).value)
        if isinstance(at, bool) or not isinstance(at, int) or not UNBOUNDED < at < CLOSED:
            raise ValueError(f"{at!r} is no time of a timer")
        return at

    def shown(self, ticks: int, clock: str) -> FiredTimer:
        """Return a timer as a function sees it."""
        if clock == EVENT and self.time is not None:
            return FiredTimer(pa.scalar(ticks, pa.int64()).cast(self.time.type).as_py(), clock)
        return FiredTimer(ticks, clock)

    @property
    def _time_name(self) -> str:
        return PLACE if self.time is None else self.time.name

    def _timed(self, given: Arrivals) -> Arrivals:
        # Without event time rows say nothing of bounds; only the end of the input is looked for.
        return given if self.time is not None else Arrivals(given.rows.slice(0, 0), given.bounds)


@dataclass
class KeyTimers:
    """The timers of one key while it is called.

    Parameters
    ----------
    table : TimerTable
        What is kept.
    bound : int
        The key's bound at the end of the epoch.
    batch_us : int
        Batch time of the epoch.
    before : frozenset of (str, int)
        Clock and time of each that was set before the epoch.
    """

    table: TimerTable
    bound: int
    batch_us: int
    before: frozenset[tuple[str, int]] = frozenset()
    now: set[tuple[str, int]] = field(default_factory=set)
    _fires: tuple[str, int] | None = None
    _due: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = set(self.before)

    def set(self, at: Any, clock: str) -> None:
        """Set a timer; one that is set already is the same one."""
        ticks = self.table.ticks(at, clock)
        if clock == EVENT and self._fires is not None:
            if self.bound == CLOSED:
                return  # the input has ended: what fires now is the last
            if self._fires[0] == EVENT and ticks <= self._fires[1]:
                raise ValueError(f"the timer of {at!r} is not later than the one that fires: it would fire for ever")
        if clock == EVENT and self._fires is not None and ticks < self.bound and (clock, ticks) not in self.now:
            heappush(self._due, ticks)
        self.now.add((clock, ticks))

    def cancel(self, at: Any, clock: str) -> None:
        """Remove a timer; one that is not set is no error."""
        self.now.discard((clock, self.table.ticks(at, clock)))

    def firing(self) -> Iterator[FiredTimer]:
        """Yield each timer that is due, removed: those of event time first, each clock in ascending order.

        An event timer that is set meanwhile, and is due, is among them; a batch timer waits for a later epoch.
        """
        self._due = sorted(at for clock, at in self.now if clock == EVENT and at < self.bound)  # a heap, too
        yield from self._due_events()
        for each in sorted(each for each in self.before if each[0] == BATCH and each[1] <= self.batch_us):
            if each in self.now:
                yield self._fired(each)
                yield from self._due_events()
        self._fires = None

    def _due_events(self) -> Iterator[FiredTimer]:
        while self._due:
            due = (EVENT, heappop(self._due))
            if due in self.now:  # else it was removed meanwhile
                yield self._fired(due)

    def _fired(self, timer: tuple[str, int]) -> FiredTimer:
        self.now.discard(timer)
        self._fires = timer
        return self.table.shown(timer[1], timer[0])


class EpochTimers:
    """All timers in one epoch of one bucket.

    Parameters
    ----------
    table : TimerTable
        What is kept.
    timers : pa.Table
        State: what was set before.
    rows : pa.Table
        Rows of the epoch.
    before, bounds : pa.Table
        The state table ``bounds`` before the epoch, and with its bounds.
    change : Change, optional
        How it changes.
    at : StepTime
        The epoch.
    """

    def __init__(
        self,
        table: TimerTable,
        timers: pa.Table,
        rows: pa.Table,
        before: pa.Table,
        bounds: pa.Table,
        change: Change | None,
        at: StepTime,
    ) -> None:
        self._table = table
        self._timers = timers
        self._at = at
        self._bounds = bounds
        self._change = change
        self._was_closed = _everywhere(before) == CLOSED
        self._everywhere = _everywhere(bounds)
        names = table.key.names
        due = timers.filter(pa.array(self._is_due())).select(names)
        wanted = joins.distinct_keys(tables.united([rows.select(names), due], due.schema), names)
        known = joins.semi_join(timers, wanted, names)
        before_of: dict[Key, set[tuple[str, int]]] = {}
        for row in known.to_pylist():
            before_of.setdefault(tuple(row[name] for name in names), set()).add((row[CLOCK], row[AT]))
        keys = [tuple(row[name] for name in names) for row in wanted.to_pylist()]
        self._of_key = {
            key: KeyTimers(table, int(bound), at.batch_us, frozenset(before_of.get(key, ())))
            for key, bound in zip(keys, self._bound_of(wanted), strict=True)
        }
        self._called: dict[Key, KeyTimers] = {}
        self.keys = wanted

    def of(self, key: Key) -> KeyTimers:
        """Return the timers of a key that has rows, or one that is due: it is called now."""
        return self._called.setdefault(key, self._of_key[key])

    def silent(self, called: set[Key]) -> list[Key]:
        """Return the keys that have no rows, and a timer that is due: by its time, then by key."""
        left = [key for key in self._of_key if key not in called]
        return sorted(left, key=lambda key: (min(at for _, at in self._of_key[key].before), repr(key)))

    def untimed(self, keys: pa.Table) -> pa.Table:
        """Return the rows whose key waits for no timer."""
        return joins.anti_join(keys, self._timers, self._table.key.names)

    def changes(self) -> dict[str, Change]:
        """Return what changes in the state tables."""
        declared = self._table.declared[TIMERS]
        names = self._table.key.names
        made: list[dict[str, Any]] = []
        gone: list[dict[str, Any]] = []
        for key, timers in self._called.items():  # whose order does not depend on that of the state's rows
            named = dict(zip(names, key, strict=True))
            made += [{**named, CLOCK: clock, AT: at} for clock, at in sorted(timers.now - timers.before)]
            gone += [{**named, CLOCK: clock, AT: at} for clock, at in sorted(timers.before - timers.now)]
        found = {} if self._change is None else {BOUNDS: self._change}
        if made or gone:
            found[TIMERS] = Change(
                pa.Table.from_pylist(made, schema=declared.schema),
                pa.Table.from_pylist(gone, schema=tables.key_schema(declared)),
            )
        return found

    def outlook(self) -> tuple[int | None, bool]:
        """Return when the next batch timer is due, and whether nothing follows any more, from this epoch on."""
        of_batch = self._timers.filter(pc.equal(self._timers.column(CLOCK), BATCH))
        untouched = joins.anti_join(of_batch, self.keys, self._table.key.names)
        first = pc.min(untouched.column(AT)).as_py()
        times = [] if first is None else [int(first)]
        times += [at for timers in self._of_key.values() for clock, at in timers.now if clock == BATCH]
        due_us = max(min(times), self._at.batch_us + 1) if times else None
        was_done = self._was_closed and not of_batch.num_rows
        return due_us, self._everywhere == CLOSED and not times and not was_done

    def _is_due(self) -> npt.NDArray[np.bool_]:
        times = keyed.ticks(self._timers.column(AT))
        is_event = np.asarray(pc.equal(self._timers.column(CLOCK), EVENT)).astype(bool)
        of_event = times < self._bound_of(self._timers)
        return np.where(is_event, of_event, times <= self._at.batch_us)

    def _bound_of(self, rows: pa.Table) -> Ticks:
        """Return for each row the bound of its key."""
        own = self._bounds.filter(pc.invert(self._bounds.column(ALL_KEYS)))
        names = self._table.key.names
        found = joins.index_in(tables.fitted(rows.select(names), own.select(names).schema), own, names)
        values = np.append(keyed.ticks(own.column(BOUND)), np.int64(UNBOUNDED))
        return np.maximum(values[found], self._everywhere)


def _everywhere(bounds: pa.Table) -> int:
    found = pc.max(bounds.column(BOUND).filter(bounds.column(ALL_KEYS))).as_py()
    return UNBOUNDED if found is None else int(found)
