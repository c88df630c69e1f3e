"""A sink goes back under a living driver, at every durable write and by seeds: no gap is ever published over."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, simulated_sink
from holdfast.testing.failures import SeededFailures
from holdfast.testing.simulation.rows import ROW_US, is_for


def world_of(seed: int) -> World:
    """Return a world of one to three sinks, everything chosen by the seed; its sinks can go back."""
    chance = random.Random(seed)
    sinks = [
        simulated_sink(f"sink{number}", way=chance.choice(("transaction", "prepared")), can_go_back=True)
        for number in range(chance.choice((1, 1, 2, 3)))
    ]
    load = Load(
        row_count=chance.randint(3, 8),
        epoch_rows_max=chance.randint(1, 2),
        carried_share=chance.choice((0.0, 0.5, 1.0)),
    )
    setting = Setting(
        load,
        commit_thread=chance.random() < 0.5,
        commit_every_ticks=chance.choice((None, None, 3 * ROW_US)),
    )
    failures = SeededFailures(chance, chance.choice((0.0, 0.0, 0.1)))
    return World(sinks, seed=seed, setting=setting, failures=failures)


def live_and_go_back(seed: int) -> str:
    """Run a seed; a sink goes back once, between two durable writes.  Returns how the life ended."""
    world = world_of(seed)
    chance = random.Random(f"back {seed}")
    sink = chance.choice(list(enumerate(world.sinks)))[1]
    at, written = chance.randint(8, 40), 0
    target = sink.target
    assert target is not None

    def go_back(label: str) -> None:
        nonlocal written
        written += 1
        if written >= at and target.moment_count > 1 and label.startswith(("store ", "stage ")):
            target.go_back(chance.randrange(1, target.moment_count))
            written = -(10**9)

    ending = "finished"
    try:
        with world.life(on_write=go_back) as life:
            life.run()
    except HoldfastError as error:
        ending = type(error).__name__
    return "; ".join([ending, *gaps(world)])


def gaps(world: World) -> list[str]:
    """Return the sinks that hold a row without all those before it."""
    found = []
    for index, sink in enumerate(world.sinks):
        wanted = [row for row in range(world.setting.load.row_count) if is_for(index, row)]
        seen: list[Any] = [row[0] for row in sink.rows()]
        if sorted(seen) != wanted[: len(seen)]:
            found.append(f"{sink.name} holds {seen} of {wanted}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (100, 200, 300))])
def test_no_seed_publishes_over_a_gap(first: int) -> None:
    endings = [live_and_go_back(seed) for seed in range(first, first + 100)]
    assert set(endings) <= {"finished", "Diverged", "Unavailable", "InDoubt"}
    assert endings.count("Diverged") > 20, "the seeds hardly ever notice"


def change_die_and_go_back(seed: int) -> str:
    """Run alone and without grouping; change either of the two, die, and let the sink go back.  Returns the ending."""
    chance = random.Random(f"change {seed}")
    table, files = (simulated_sink(name, can_go_back=True) for name in ("table", "files"))
    load = Load(row_count=12, epoch_rows_max=1, carried_share=chance.choice((0.0, 0.5, 1.0)))
    world = World([table], seed=seed, setting=Setting(load))
    with world.life() as life:
        life.run(epochs_max=chance.randint(1, 4))
    if chance.random() < 0.5:
        world.setting = replace(world.setting, commit_every_ticks=3 * ROW_US)
    else:
        world.sinks = [table, files]
    crash = CrashAt(chance.randint(5, 25), chance.choice(("before", "after")))
    with suppress(SimulatedCrash), world.life(crash) as life:
        life.run()
    assert table.target is not None
    table.target.go_back(chance.randrange(1, table.target.moment_count))
    ending = "finished"
    try:
        with world.life() as life:
            life.run()
    except HoldfastError as error:
        ending = type(error).__name__
    seen = [row[0] for row in table.rows()]
    return ending if seen == list(range(len(seen))) else f"{ending}; {seen}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 200), marks=pytest.mark.nightly)], ids=len)
def test_no_seed_publishes_a_decision_over_what_was_published_without_one(seeds: range) -> None:
    endings = [change_die_and_go_back(seed) for seed in seeds]
    assert set(endings) == {"finished", "Diverged"}
