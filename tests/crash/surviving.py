"""Crash loops over a sink whose statements have names: what was survived, and that the loop went where it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.testing import World, crash_loop
from tests.everyday import FIRST_SEED, PAIRS


def survive(make_world: Callable[[], World], *places: str, **options: Any) -> None:
    """Go through a crash loop.

    Parameters
    ----------
    make_world : callable
        As :func:`holdfast.testing.crash_loop` takes it.
    places : str
        Statements of the sink ``rows``: some life must have died before each of them, and some after it.
    **options
        Of the loop.
    """
    traces: list[list[str]] = []

    def noted() -> World:
        world = make_world()
        traces.append(world.trace)
        return world

    crash_loop(noted, **options)
    deaths = {f"{line} " for trace in traces for line in trace if line.startswith("crash ")}
    for place in [f"crash {when} sink rows {statement} " for statement in places for when in ("before", "after")]:
        assert any(line.startswith(place) for line in deaths), (place, deaths)


def survive_pairs(make_world: Callable[[], World], *places: str, stride: int = 1, second_stride: int = 1) -> None:
    """Go through the loop with a second crash in each recovery: those of this night."""
    survive(make_world, *places, stride=stride, second_stride=second_stride * PAIRS, second_offset=FIRST_SEED)
