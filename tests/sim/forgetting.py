"""A pipeline under supervision whose targets lose what is staged in them, once, before some durable write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Diverged, HoldfastError, Unavailable
from holdfast.testing import CrashAt, SimulatedCrash, World
from holdfast.testing.simulation.rows import is_for

STARTS_MAX = 6
"""A crash, an error that the next start mends, a start that revokes, and one more directory; not endlessly many."""

Forget = Callable[[], Any]
"""Removes staged rows; returns what was removed, nothing where there was none."""


@dataclass
class Supervised:
    """What came of a world: how often it was started, and what stopped it at last."""

    start_count: int = 0
    final: HoldfastError | None = None
    gone: Any = None


def live(world: World, at: int, forget: Forget, *, crash: CrashAt | None = None) -> Supervised:
    """Run it as a supervisor does; from durable write number ``at`` of all lives on, staged rows are forgotten once."""
    told = Supervised()
    written = 0

    def on_write(label: str) -> None:
        nonlocal written
        written += 1
        if written >= at and not told.gone:
            told.gone = forget()
            if told.gone:
                world.trace.append(f"forgotten {told.gone}")

    while True:
        told.start_count += 1
        assert told.start_count <= STARTS_MAX, "\n".join(world.trace)
        try:
            with world.life(crash, on_write=on_write) as life:
                life.run()
            return told
        except (SimulatedCrash, Unavailable):  # unavailable: what a worker was about to stage went with it
            crash = None
        except Diverged as error:
            crash = None
            if not error.is_mended_by_start:
                told.final = error
                return told


def problems(world: World) -> list[str]:
    """Return what an auditor finds; values may differ where an epoch was evaluated twice."""
    world.finish()
    return [problem for problem in world.audit() if "has two values" not in problem]


def partly(world: World) -> list[str]:
    """Return the sinks that hold some rows twice, or rows that are not theirs: not even a refusal may leave that."""
    found = []
    for index, sink in enumerate(world.sinks):
        wanted = [row for row in range(world.setting.load.row_count) if is_for(index, row)]
        seen = sorted(int(str(row[0])) for row in sink.rows())
        if len(seen) != len(set(seen)) or not set(seen) <= set(wanted):
            found.append(f"{sink.name} holds {seen} of {wanted}")
    return found
