"""The experiment: run, kill at a seeded random moment of real work, restart, until the input is used up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.demo.processes import Running, kill_tree
from holdfast.demo.watch import SinkWatch

LOOK_S = 0.05
"""Pause between two looks at the sinks."""

DELAY_MAX_S = 1.0
"""Longest wait between the row that a kill waits for and the kill: an epoch or two, so that it hits any part of one."""

START_LIMIT_S = 300.0
"""A run that shows no new row for so long is taken for hung."""


@dataclass(frozen=True)
class Kill:
    """One SIGKILL of the whole tree, and how long the next run took to its first new row."""

    at_s: float
    rows: int
    process_count: int
    waiting: int = 0
    """Rows that were in one sink already and for another still in state."""
    first_row_s: float | None = None


@dataclass(frozen=True)
class Experiment:
    """What happened."""

    kills: tuple[Kill, ...]
    seconds: float
    first_row_s: float
    """Seconds from the very first start to the first row."""


class DemoFailed(Exception):
    """The experiment could not be carried out: says why, with the end of the run's log."""


class Disturbance(Protocol):
    """Something else that happens while a run works; called at every look."""

    def __call__(self, run: int, new_rows: int) -> bool:
        """``run`` counts from 0, ``new_rows`` are visible since it began; return whether it may be killed now."""


def no_disturbance(run: int, new_rows: int) -> bool:
    """Let the run work."""
    return True


def carry_out(
    start_run: Callable[[int], Running],
    watch: SinkWatch,
    *,
    rows_expected: int,
    kill_count: int,
    seed: int,
    say: Callable[[str], None],
    show: Callable[[], None] = lambda: None,
    waiting: Callable[[], int] | None = None,
    disturb: Disturbance = no_disturbance,
) -> Experiment:
    """Start the pipeline, kill it ``kill_count`` times, and let the last run finish.

    Parameters
    ----------
    start_run : callable
        Starts run number 0, 1, ...
    watch : SinkWatch
        Sees the sinks.
    rows_expected : int
        Rows that all sinks hold in the end: kills are spread over what is still to come.
    kill_count, seed : int
        How often, and the seed of the moments.
    say, show : callable
        Gets a line for every event; is called at every look.
    waiting : callable
        Returns how many rows wait in state, as far as the sinks show; called after a kill.  None: nobody knows.
    disturb : Disturbance
        Called at every look while a run works.

    Raises
    ------
    DemoFailed
        If a run ends before its kill, fails, or hangs.
    """
    moments = random.Random(seed)
    kills: list[Kill] = []
    first_rows: list[float] = []
    for run in range(kill_count + 1):
        kills_left = kill_count - run
        before = _rows_at_rest(watch)
        wanted = _rows_to_wait_for(moments, rows_expected - before, kills_left)
        delay_s = moments.uniform(0.0, DELAY_MAX_S)
        running = start_run(run)
        started = time.monotonic()
        try:
            first_row_s, has_finished = _follow(
                running, watch, run=run, before=before, wanted=wanted, started=started, show=show, disturb=disturb
            )
            first_rows.append(first_row_s)
            if has_finished != (kills_left == 0):
                raise DemoFailed(_why_too_early(running, run, kill_count))
            if kills_left:
                time.sleep(delay_s)
                if running.has_ended:
                    raise DemoFailed(_why_too_early(running, run, kill_count))
                process_count = kill_tree(running)
                sample = watch.look()
                kills.append(Kill(sample.at_s, sample.total, process_count, waiting() if waiting else 0))
                in_state = f", {kills[-1].waiting:,} waiting in state" if waiting else ""
                told = f"kill {run + 1}: {process_count} processes at {sample.at_s:.1f} s"
                say(f"{told}, {sample.total:,} rows visible{in_state}")
        finally:
            if not running.has_ended:
                kill_tree(running)
    timed = tuple(replace(kill, first_row_s=first) for kill, first in zip(kills, first_rows[1:], strict=True))
    return Experiment(timed, watch.samples[-1].at_s, first_rows[0])


def _follow(
    running: Running,
    watch: SinkWatch,
    *,
    run: int,
    before: int,
    wanted: int | None,
    started: float,
    show: Callable[[], None],
    disturb: Disturbance,
) -> tuple[float, bool]:
    """Look until the rows wanted are visible or the run has finished; return seconds to the first row, and which."""
    first_row_s: float | None = None
    while True:
        has_ended = running.has_ended  # NB asked before looking: what an ended run wrote is all visible
        new_rows = watch.look().total - before
        show()
        waited_s = time.monotonic() - started
        if first_row_s is None and new_rows > 0:
            first_row_s = waited_s
        may_kill = new_rows > 0 and disturb(run, new_rows)
        if wanted is not None and new_rows >= wanted and may_kill:
            return first_row_s or waited_s, False
        if has_ended:
            if running.process.returncode != 0:
                raise DemoFailed(f"run {run} failed with exit code {running.process.returncode}:\n{running.log_tail()}")
            return first_row_s or waited_s, True
        if first_row_s is None and waited_s > START_LIMIT_S:
            raise DemoFailed(f"run {run} wrote no row within {START_LIMIT_S:.0f} s:\n{running.log_tail()}")
        time.sleep(LOOK_S)


def _rows_to_wait_for(moments: random.Random, rows_left: int, kills_left: int) -> int | None:
    """Draw after how many new rows to kill: at least one, to hit real work, and leaving work for the kills to come."""
    share = moments.uniform(0.0, 0.8)  # drawn for the last run too: the moments depend on the seed alone
    if kills_left == 0:
        return None
    return 1 + int(share * rows_left / (kills_left + 1))


def _rows_at_rest(watch: SinkWatch) -> int:
    """Return the rows visible once nothing moves any more: a database may finish a COMMIT whose sender is dead."""
    total = watch.look().total
    for _ in range(200):
        time.sleep(LOOK_S)
        now = watch.look().total
        if now == total:
            return now
        total = now
    raise DemoFailed("rows keep arriving although the whole tree is dead")


def _why_too_early(running: Running, run: int, kill_count: int) -> str:
    if run < kill_count:
        why = f"run {run} used up its input before kill {run + 1} of {kill_count}; try another seed."
        return f"{why}\n{running.log_tail(10)}"
    return f"run {run} was not to be killed, and did not finish:\n{running.log_tail()}"
