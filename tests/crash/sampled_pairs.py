"""Pairs of crashes, as many as a time allows, drawn from all that there are: where each takes a second.

The second crash hits the run that recovers from the first one, as with :func:`holdfast.testing.crash_loop`, which
tries all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from holdfast.testing import CrashAt, SimulatedCrash, World

RECOVERIES = 6
"""Lives after a crash whose writes are counted, to know how many pairs there are."""


@dataclass(frozen=True)
class Sampled:
    """What was tried.

    Parameters
    ----------
    tried : int
        Pairs, each another one.
    hit : int
        Those whose second crash hit: else the recovering run was at its end before.
    there_are : int
        About how many there are.
    """

    tried: int
    hit: int
    there_are: int

    def __str__(self) -> str:
        share = 100 * self.hit / self.there_are
        return f"{self.hit} pairs of crashes of about {self.there_are} ({share:.1f} %), {self.tried} tried"


def sampled_pairs(make_world: Callable[[], World], chance: random.Random, time_s: float) -> Sampled:
    """Crash pipelines at pairs of durable writes; raise ``AssertionError`` with the trace where anything is wrong."""
    end = time.monotonic() + time_s
    world = make_world()
    first_count, _ = lived(world, None)
    look(world)

    def drawn(count: int) -> CrashAt:
        return CrashAt(chance.randint(1, count), chance.choice(("before", "after")))

    counts = []
    for _ in range(RECOVERIES):
        world = make_world()
        lived(world, drawn(first_count))
        counts.append(lived(world, None)[0])
        look(world)
    second_count = max(counts)
    seen: set[tuple[CrashAt, CrashAt]] = set()
    hit = 0
    while time.monotonic() < end and len(seen) < 4 * first_count * second_count:
        pair = drawn(first_count), drawn(second_count)
        if pair in seen:
            continue
        seen.add(pair)
        world = make_world()
        lived(world, pair[0])
        hit += lived(world, pair[1])[1]
        lived(world, None)
        look(world, *pair)
    return Sampled(len(seen), hit, round(4 * first_count * mean(counts)))


def lived(world: World, crash: CrashAt | None) -> tuple[int, bool]:
    """Run one life; return how many writes it did, and whether it died."""
    count = 0
    try:
        with world.life(crash) as life:
            try:
                life.run()
            finally:
                count = life.process.write_count
    except SimulatedCrash:
        return count, True
    return count, False


def look(world: World, *crashes: CrashAt) -> None:
    """Look at a world that has come to its end."""
    world.finish()
    if problems := world.audit():
        trace = "\n  ".join(world.trace)
        raise AssertionError(f"crashes {', then '.join(map(str, crashes))}: {'; '.join(problems)}\n  {trace}")
