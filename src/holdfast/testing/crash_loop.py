"""Crash before and after durable write n = 1, 2, ... until a run survives; then every pair of crashes.

The second crash of a pair hits the run that recovers from the first one.  After each the pipeline is run to its end,
and everything is looked at from outside.  SQLite's ``test/writecrash.test`` is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.testing.simulation.process import CrashAt, SimulatedCrash
from holdfast.testing.simulation.world import World


@dataclass(frozen=True)
class CrashLoopReport:
    """How much was tried: runs in all, and the places to die of the longest first life."""

    run_count: int
    place_count: int


def crash_loop(
    make_world: Callable[[], World],
    *,
    pairs: bool = True,
    stride: int = 1,
    second_stride: int = 1,
    second_offset: int = 0,
) -> CrashLoopReport:
    """Crash a pipeline at every durable write, and at every pair of them.

    Parameters
    ----------
    make_world : callable
        Returns a new world (new targets, new checkpoint, same seed) for every run.  One world is done with before
        the next is made, so they may share a server whose tables are dropped in between.
    pairs : bool
        Also crash during recovery.
    stride, second_stride : int
        Take only every n-th place, where sinks are slow: for the first crash, for the second one.
    second_offset : int
        Which of them, for the second one: loops with ``second_stride`` successive offsets take every place.

    Raises
    ------
    AssertionError
        If anything is lost, doubled, out of order, undecided or left behind: names the crashes and shows the trace.

    Examples
    --------
    >>> from holdfast.testing.simulation.world import simulated_sink
    >>> crash_loop(lambda: World([simulated_sink("table")]), pairs=False).run_count > 20
    True
    """
    run_count = place_count = 0
    for first in _places(stride):
        world = make_world()
        survived = _live(world, first)
        run_count += 1
        _finish(world, first)
        if not survived and pairs:
            run_count += _second_crashes(make_world, first, second_stride, second_offset)
        if survived and first.when == "after":
            break
        place_count = max(place_count, first.n)
    return CrashLoopReport(run_count, place_count)


def _second_crashes(make_world: Callable[[], World], first: CrashAt, stride: int, offset: int) -> int:
    count = 0
    for second in _places(stride, offset):
        world = make_world()
        _live(world, first)
        survived = _live(world, second)
        count += 1
        _finish(world, first, second)
        if survived and second.when == "after":
            break
    return count


def _places(stride: int, offset: int = 0) -> Iterator[CrashAt]:
    n = 1 + offset % stride
    while True:
        yield CrashAt(n, "before")
        yield CrashAt(n, "after")
        n += stride


def _live(world: World, crash: CrashAt | None) -> bool:
    """Run one life; return whether it survived."""
    try:
        with world.life(crash) as life:
            life.run()
    except SimulatedCrash:
        return False
    return True


def _finish(world: World, *crashes: CrashAt) -> None:
    _live(world, None)
    world.finish()
    problems = world.audit()
    if problems:
        trace = "\n  ".join(world.trace)
        raise AssertionError(f"crashes {', then '.join(map(str, crashes))}: {'; '.join(problems)}\n  {trace}")
