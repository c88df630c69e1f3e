"""Back-pressure: sources that run ahead are held while keys have as many waiting rows as they may.

A bucket reports its fullest key and, of the keys that are full, which inputs run ahead and which lag.  The driver holds
the sources of those ahead, by a file that every source's planning process reads; they deliver nothing then.  Where that
cannot help, because one source feeds both sides or the lagging ones have nothing more to read, the limit is relaxed, so
that a run never stalls.  Holding changes when rows arrive and not which: what depends on timestamps is the same.

References
----------
MediaPipe, ``CalculatorGraph``: throttled sources, and the relief of a graph that is idle with something throttled.

The first epochs after a start: the first one is small, and each of the next about as long as the run is old.

What a run that is killed has planned, and not finished, takes the next one about as long as this one lived.  So a run
that is killed again and again gets on, however much waits in its sources.  Planning processes read the limit from a
file that the driver writes after each epoch; where an epoch ends is logged as ever, and replayed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import offers, optional
from holdfast.errors import invariant
from holdfast.operators.join.side import known
from holdfast.operators.join.step import JoinStep
from holdfast.operators.stateful.gate_step import GateStep, bounds_in, waiting_for
from holdfast.operators.stateful.merge_step import MergeStep
from holdfast.operators.sync import report as sync_report
from holdfast.operators.sync.step import SyncStep
from holdfast.operators.waits import merge_fullness
from holdfast.plan.operation import write_held
from holdfast.plan.stages import Stages
from holdfast.state import tables
from holdfast.state.bucket_report import WAITING_ROWS_MAX, BucketReport, Pressure
from holdfast.state.keys import coded
from holdfast.state.step import UNBOUNDED, Step
from holdfast.steer.holding import read_controls
from holdfast.store.notes import write_note

log = logging.getLogger("holdfast.run")

PATIENCE_US = 5_000_000
"""How long a lagging source may deliver nothing before the others are released, where a run waits for more rows."""


# --- in a bucket ----------------------------------------------------------------------------------------------------


def pressure_of(step: Step, state: Mapping[str, pa.Table]) -> Pressure | None:
    """Return how full a bucket is.

    Parameters
    ----------
    step : Step
        The operator.
    state : mapping of str to pa.Table
        All tables of the bucket.

    Returns
    -------
    Pressure, optional
        None for an operator without a limit.

    Notes
    -----
    Scans the waiting rows, but only where there are as many as one key may have.
    """
    if limit_of(step) is None:
        return None
    if isinstance(step, MergeStep):
        return _pressure_of_merge(step, state)
    if isinstance(step, GateStep):
        return _pressure_of_gate(step, state)
    if isinstance(step, JoinStep):
        return _pressure_of_join(step, state)
    if offers(step, KeepsRows):
        return _pressure_of_one(step, state)
    assert isinstance(step, SyncStep)
    assert step.max_waiting_rows is not None
    if sum(state[f"waiting_{name}"].num_rows for name in step.inputs) < step.max_waiting_rows:
        return Pressure()
    counts = sync_report.waiting_rows(step, state).column("waiting_rows")
    full = int(pc.sum(pc.greater_equal(counts, step.max_waiting_rows)).as_py() or 0)
    if not full:
        return Pressure()
    ahead = sync_report.running_ahead(step, state).column("input").to_pylist()
    return Pressure(
        pc.max(counts).as_py(),
        tuple(name for name in step.inputs if name in ahead),
        tuple(name for name in step.inputs if ahead.count(name) < full),
    )


def limit_of(step: Step) -> int | None:
    """Return how many rows may wait under one key of an operator; None: it has no limit."""
    if isinstance(step, SyncStep | MergeStep | JoinStep | GateStep):
        return step.max_waiting_rows
    return step.max_waiting_rows if offers(step, KeepsRows) else None


@optional(Step)
class KeepsRows(Protocol):
    """A step that keeps rows of one input until others of the same input have come: ``aggregate``, ``distinct``.

    Named by what is asked of it: a worker that has neither need not import how they are declared.
    """

    max_waiting_rows: int | None
    waiting_tables: Sequence[str]
    key: pa.Schema
    inputs: Mapping[str, pa.Schema]


def is_costly(step: Step, state_rows: int) -> bool:
    """Return whether a bucket of this many rows is too large to be examined in every epoch."""
    is_large = min(state_rows, limit_of(step) or 0) >= WAITING_ROWS_MAX
    return is_large and not isinstance(step, GateStep | JoinStep)


def _pressure_of_one(step: KeepsRows, state: Mapping[str, pa.Table]) -> Pressure:
    """Return how full a key is of an operator whose rows wait for others of the same input, or for time to pass."""
    assert step.max_waiting_rows is not None
    held = [state[table] for table in step.waiting_tables]
    if sum(table.num_rows for table in held) < step.max_waiting_rows:
        return Pressure()
    codes, _ = coded(tables.united([table.select(step.key.names) for table in held]))
    most = int(np.bincount(codes).max()) if step.key.names else sum(table.num_rows for table in held)
    if most < step.max_waiting_rows:
        return Pressure()
    return Pressure(most, tuple(step.inputs), tuple(step.inputs))


def _pressure_of_merge(step: MergeStep, state: Mapping[str, pa.Table]) -> Pressure:
    assert step.max_waiting_rows is not None
    tables = ["waiting", *(f"slow_{name}" for name in step.slow)]
    if sum(state[table].num_rows for table in tables) < step.max_waiting_rows:
        return Pressure()
    _, counts, is_ahead = merge_fullness(step, state)
    is_full = counts.sum(axis=1) >= step.max_waiting_rows
    if not is_full.any():
        return Pressure()
    ahead = list(zip(step.inputs, is_ahead[is_full].T, strict=True))
    return Pressure(
        int(counts.sum(axis=1).max()),
        tuple(name for name, mine in ahead if mine.any()),
        tuple(name for name, mine in ahead if not mine.all()),
    )


def _pressure_of_join(step: JoinStep, state: Mapping[str, pa.Table]) -> Pressure:
    """Return how many rows are not settled: all wait for the input whose bound is the lower one."""
    assert step.max_waiting_rows is not None
    waiting = sum(state[f"waiting_{name}"].num_rows for name in step.inputs)
    if waiting < step.max_waiting_rows:
        return Pressure()
    bounds = {name: known(state["inputs"], name)[0] for name in step.inputs}
    lagging = tuple(name for name in step.inputs if bounds[name] == min(bounds.values()))
    return Pressure(waiting, tuple(name for name in step.inputs if name not in lagging), lagging)


def _pressure_of_gate(step: GateStep, state: Mapping[str, pa.Table]) -> Pressure:
    """Return how full the gate is: all wait for the input whose bound is pts, and the others run ahead."""
    waiting = sum(state[waiting_for(sink)].num_rows for sink in step.times)
    if waiting < step.max_waiting_rows:
        return Pressure()
    bounds = bounds_in(state)
    lowest = min(bounds.get(name, UNBOUNDED) for name in step.clocks)
    lagging = tuple(name for name in step.clocks if bounds.get(name, UNBOUNDED) == lowest)
    return Pressure(waiting, tuple(name for name in step.clocks if name not in lagging), lagging)


# --- on the driver --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limited:
    """An operator whose waiting rows are limited.

    Parameters
    ----------
    limit : int
        Waiting rows of one key; of a join, and of the gate before the sinks, all of them.
    sources : mapping of str to frozenset of str
        Input -> the sources that its rows come from.
    """

    limit: int
    sources: Mapping[str, frozenset[str]]


def limited_operators(stages: Stages) -> dict[str, Limited]:
    """Return the operators of a pipeline that limit what waits."""
    hosted = {name: one for stage in stages.stages for name, one in stage.hosted.items()}
    found = {}
    for name, one in hosted.items():
        if (limit := limit_of(one.step)) is not None:
            found[name] = Limited(limit, one.sources)
    return found


class BackPressure:
    """Says after each epoch which sources are held in the next one.  Lives on the driver, called by one thread.

    Parameters
    ----------
    operators : mapping of str to Limited
        The operators with a limit.
    path : str
        The file that planning processes read; see :mod:`holdfast.plan.operation`.
    is_bounded : bool
        Whether the run ends when there is nothing more to read: then lagging sources are not waited for.
    """

    def __init__(self, operators: Mapping[str, Limited], path: str, *, is_bounded: bool) -> None:
        self._operators = operators
        self._path = path
        self._patience_us = 0 if is_bounded else PATIENCE_US
        self._limits = {name: one.limit for name, one in operators.items()}
        self._pressure: dict[str, Pressure] = {}
        self._held: frozenset[str] = frozenset()
        self._moved_us: int | None = None
        self._warned: set[str] = set()

    def note(
        self, reported: Mapping[str, BucketReport], moved: Collection[str], batch_us: int
    ) -> dict[str, BucketReport]:
        """Take in what buckets reported, and hold or release sources.

        Parameters
        ----------
        reported : mapping of str to BucketReport
            ``operator/bucket`` -> its report.
        moved : collection of str
            The sources that delivered something in this epoch.
        batch_us : int
            The epoch's batch time.

        Returns
        -------
        dict
            The reports without the pressure, and with a count for the status: ``limit_relaxed``, how often.
        """
        reports = {bucket: replace(report, pressure=None) for bucket, report in reported.items()}
        self._pressure |= {bucket: said.pressure for bucket, said in reported.items() if said.pressure is not None}
        held, lagging = self._wanted()
        if not self._held or set(lagging) & set(moved) or self._moved_us is None or self._are_paused(lagging):
            self._moved_us = batch_us
        relaxed: set[str] = set()
        if self._held and held and not set(lagging) & set(moved) and batch_us - self._moved_us >= self._patience_us:
            relaxed |= self._relax("the lagging source has nothing more to read", self._full())
        # Where no source can be held, waiting cannot help.
        relaxed |= self._relax("the rows that are waited for come from the same source", self._helpless())
        held, waited_for = self._wanted()
        invariant(
            not held & waited_for,
            f"back-pressure is to hold {sorted(held & waited_for)}, which an operator waits for.",
            why="the run would never go on.",
        )
        self._write(held)
        return {**reports, **{f"{operator}/limit": BucketReport({"limit_relaxed": 1}) for operator in relaxed}}

    @property
    def held(self) -> frozenset[str]:
        """The sources that are held now."""
        return self._held

    def _are_paused(self, sources: Collection[str]) -> bool:
        """Return whether a source that is waited for was told to deliver nothing, or little: it has more to read."""
        if not self._patience_us or not sources:
            return False
        controls = read_controls(self._path)
        return any(controls.is_paused(source) or source in controls.limits for source in sources)

    def _full(self) -> dict[str, int]:
        """Return the operators with full keys, and the row count of the fullest."""
        most: dict[str, int] = {}
        for bucket, pressure in self._pressure.items():
            operator = bucket.partition("/")[0]
            if pressure.most >= self._limits[operator]:
                most[operator] = max(pressure.most, most.get(operator, 0))
        return most

    def _wanted(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the sources to be held, and those that are waited for."""
        held: set[str] = set()
        waited_for: set[str] = set()
        for bucket, pressure in self._pressure.items():
            operator = bucket.partition("/")[0]
            if pressure.most >= self._limits[operator]:
                lagging = self._of(operator, pressure.lagging)
                held |= self._of(operator, pressure.ahead) - lagging
                waited_for |= lagging
        # A source that one operator waits for is never held for the sake of another.
        return frozenset(held - waited_for), frozenset(waited_for)

    def _helpless(self) -> dict[str, int]:
        """Return the full operators for which no source can be held."""
        held, _ = self._wanted()
        return {
            operator: most
            for operator, most in self._full().items()
            if not held & self._of(operator, self._operators[operator].sources)
        }

    def _of(self, operator: str, inputs: Iterable[str]) -> frozenset[str]:
        sources = self._operators[operator].sources
        return frozenset().union(*(sources[name] for name in inputs))

    def _relax(self, why: str, operators: Mapping[str, int]) -> set[str]:
        for operator, most in operators.items():
            self._limits[operator] = 2 * most
            if operator not in self._warned:
                log.warning(
                    "operator %r: %d rows wait, or are kept, under one key, max_waiting_rows is %d, and holding "
                    "sources back does not help: %s. The limit is relaxed to %d; it will be relaxed further without "
                    "another warning.",
                    operator,
                    most,
                    self._operators[operator].limit,
                    why,
                    2 * most,
                )
            self._warned.add(operator)
        return set(operators)

    def _write(self, held: frozenset[str]) -> None:
        if held == self._held:
            return
        self._held = held
        write_held(self._path, held)
        log.info("back-pressure holds %s", ", ".join(sorted(held)) or "no source any more")


_ENOUGH = 10**12
"""Bytes beyond which there is no limit any more."""


class Ramp:
    """Says after each epoch how much the next one takes.  Lives on the driver, called by one thread.

    Parameters
    ----------
    path : str
        The file.
    first_bytes : int
        What the first epoch takes of each source at most, in a run whose trigger leaves no time between epochs; 0:
        there is no limit.
    interval_s : float
        Time between two epochs, as the trigger says: the first one may take as long, about, at ``first_bytes`` a
        second.  A run that waits an hour between epochs does not leave what is there for the next hour.
    now_s : callable
        A clock that never goes back, seconds.
    """

    def __init__(
        self, path: str, first_bytes: int, now_s: Callable[[], float] = time.monotonic, *, interval_s: float = 0.0
    ) -> None:
        self._path = path
        self._size_bytes = _as_limit(int(first_bytes * max(1.0, interval_s)))
        self._larger: dict[str, int] = {}
        """Source -> its limit, where it has taken more than the limit of all: an epoch has a whole block at least."""
        self._now_s = now_s
        self._began_s: float | None = None
        self._write()

    def note(self, took_s: float, taken: Mapping[str, int]) -> None:
        """Take in how long the epoch took that has just ended, and was planned by this run.

        The next one takes twice as much as that; more where the run has waited between epochs, as its trigger says.

        Parameters
        ----------
        took_s : float
            From its begin to the end of its commit.
        taken : mapping of str to int
            Source -> bytes of the epoch, where they are known: they may be more than the limit.
        """
        if (limit := self._size_bytes) is None:
            return
        now_s = self._now_s()
        if self._began_s is None:
            self._began_s = now_s - took_s
        times = max(2, int((now_s - self._began_s) / took_s) if took_s > 0 else 0)
        more = {source: size for source, size in taken.items() if size > self._larger.get(source, limit)}
        self._larger = {source: size * times for source, size in {**self._larger, **more}.items()}
        self._size_bytes = _as_limit(limit * times)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk: the last limit goes on
            if self._size_bytes is None:
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
            else:
                write_note(self._path, [self._size_bytes, self._larger])


def _as_limit(size_bytes: int) -> int | None:
    """Return a number of bytes; None where it is no limit."""
    return size_bytes if 0 < size_bytes <= _ENOUGH else None
