"""Crash before and after every durable write, and at every pair of them, with one to three sinks (design/0001, 8)."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from holdfast.graph.trigger import SinkPace
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, crash_loop, simulated_sink

ROWS = 3
"""Few rows and epochs: a pair of crashes at each of n places is n * n runs."""

PACES = {"sink1": SinkPace(every_epochs=2)}
"""Beside a sink that gets every epoch."""

LOAD = Load(row_count=ROWS, epoch_rows_max=2, carried_share=0.0)
CARRIED = Load(row_count=ROWS, epoch_rows_max=2, carried_share=1.0)
FAILING = Load(row_count=4, epoch_rows_max=2, carried_share=0.3, task_failure_rate=0.4)


def world(count, **options):
    sinks = [simulated_sink(f"sink{n}", way="prepared" if n == 1 else "transaction") for n in range(count)]
    return World(sinks, setting=Setting(**options), seed=3)


EVERY_OTHER: dict[str, Any] = {"stride": 2, "second_stride": 2}
"""Before and after every other write: every pair of deaths that leave unlike worlds, in a quarter of the runs."""

WORLDS = {
    "one sink": lambda: world(1, load=LOAD),
    "staged": lambda: world(2, load=LOAD),
    "carried": lambda: world(2, load=CARRIED),
    "commit thread": lambda: world(2, load=LOAD, commit_thread=True),
    "grouping": lambda: world(2, load=LOAD, commit_thread=True, commit_every_ticks=2_000),
    "stray workers": lambda: world(2, load=FAILING),
    "paces": lambda: world(2, load=replace(LOAD, row_count=5, snapshot_share=0.2), paces=PACES),
}


def written(make_world, crash):
    """Return what is written in a first life that ends so; None where it does not."""
    made = make_world()
    try:
        with made.life(crash) as life:
            life.run()
    except SimulatedCrash:
        return [line for line in made.trace if not line.startswith(("epoch ", "crash "))]
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_death_before_a_write_is_one_after_the_write_before_it(name):
    """So pairs may leave out half of the places, for each of the two."""
    for number in itertools.count(1):
        after = written(WORLDS[name], CrashAt(number, "after"))
        before = written(WORLDS[name], CrashAt(number + 1, "before"))
        if before is None:
            break
        assert (before, len(before)) == (after, number)
    assert number > 15


BOTH = pytest.mark.parametrize("load", [LOAD, CARRIED], ids=["staged", "carried"])


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_single_crash_is_survived(count, load):
    report = crash_loop(lambda: world(count, load=load), pairs=False)
    assert report.place_count > 8 * count


@pytest.mark.slow
@BOTH
def test_every_pair_of_crashes_is_survived_with_one_sink(load):
    report = crash_loop(lambda: world(1, load=load), **EVERY_OTHER)
    assert report.run_count > 50


@pytest.mark.slow
@BOTH
@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, 3])
def test_every_pair_of_crashes_is_survived_with_several_sinks(count, load):
    report = crash_loop(lambda: world(count, load=load), **EVERY_OTHER)
    assert report.run_count > 125


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_every_crash_with_commit_thread_and_grouping_is_survived(count):
    crash_loop(lambda: world(count, load=LOAD, commit_thread=True, commit_every_ticks=2_000), pairs=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "threaded"),
    [
        (LOAD, True),
        (CARRIED, False),
        pytest.param(LOAD, False, marks=pytest.mark.nightly),
        pytest.param(CARRIED, True, marks=pytest.mark.nightly),
    ],
    ids=["staged-threaded", "carried", "staged", "carried-threaded"],
)
def test_every_single_crash_with_a_sink_that_has_a_pace_of_its_own_is_survived(load, threaded):
    slow = replace(load, row_count=6, snapshot_share=0.2)
    report = crash_loop(lambda: world(2, load=slow, commit_thread=threaded, paces=PACES), pairs=False)
    assert report.place_count > 25


@pytest.mark.slow
@BOTH
def test_every_single_crash_is_survived_where_the_only_sink_has_a_pace(load):
    paces = {"sink0": SinkPace(every_epochs=3)}
    crash_loop(lambda: world(1, load=replace(load, row_count=5), paces=paces), pairs=False)


@pytest.mark.slow
@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_pair_of_crashes_with_paces_is_survived(count, load):
    paces = {"sink0": SinkPace(every_epochs=3)} if count == 1 else {**PACES, "sink2": SinkPace(every_epochs=3)}
    paces = {name: pace for name, pace in paces.items() if int(name[-1]) < count}
    crash_loop(lambda: world(count, load=replace(load, row_count=5), paces=paces), **EVERY_OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("commit thread", marks=pytest.mark.nightly), "grouping"])
def test_every_pair_of_crashes_with_the_commit_thread_is_survived(name):
    crash_loop(WORLDS[name], **EVERY_OTHER)


@pytest.mark.nightly
def test_every_pair_of_crashes_with_failing_tasks_and_stray_workers_is_survived():
    crash_loop(WORLDS["stray workers"], **EVERY_OTHER)
