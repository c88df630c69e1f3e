"""Crash before and after every durable write, and at every pair of them, with one to three sinks (design/0001, 8)."""

from dataclasses import replace

import pytest

from holdfast.graph.pace import SinkPace
from holdfast.testing import Load, Setting, World, crash_loop, simulated_sink

ROWS = 3
"""Few rows and epochs: a pair of crashes at each of n places is n * n runs."""

PACES = {"sink1": SinkPace(every_epochs=2)}
"""Beside a sink that gets every epoch."""

LOAD = Load(row_count=ROWS, epoch_rows_max=2, carried_share=0.0)
CARRIED = Load(row_count=ROWS, epoch_rows_max=2, carried_share=1.0)


def world(count, **options):
    sinks = [simulated_sink(f"sink{n}", way="prepared" if n == 1 else "transaction") for n in range(count)]
    return World(sinks, setting=Setting(**options), seed=3)


BOTH = pytest.mark.parametrize("load", [LOAD, CARRIED], ids=["staged", "carried"])


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_single_crash_is_survived(count, load):
    report = crash_loop(lambda: world(count, load=load), pairs=False)
    assert report.place_count > 8 * count


@pytest.mark.slow
@BOTH
def test_every_pair_of_crashes_is_survived_with_one_sink(load):
    report = crash_loop(lambda: world(1, load=load))
    assert report.run_count > 200


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_every_pair_of_crashes_is_survived_with_several_sinks(count, load):
    report = crash_loop(lambda: world(count, load=load))
    assert report.run_count > 500


@pytest.mark.parametrize("count", [1, 2])
def test_every_crash_with_commit_thread_and_grouping_is_survived(count):
    crash_loop(lambda: world(count, load=LOAD, commit_thread=True, commit_every_ticks=2_000), pairs=False)


@BOTH
@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threaded"])
def test_every_single_crash_with_a_sink_that_has_a_pace_of_its_own_is_survived(load, threaded):
    slow = replace(load, row_count=6, snapshot_share=0.2)
    report = crash_loop(lambda: world(2, load=slow, commit_thread=threaded, paces=PACES), pairs=False)
    assert report.place_count > 25


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
    crash_loop(lambda: world(count, load=replace(load, row_count=5), paces=paces))


@pytest.mark.slow
@pytest.mark.parametrize("commit_every_ticks", [None, 2_000])
def test_every_pair_of_crashes_with_the_commit_thread_is_survived(commit_every_ticks):
    crash_loop(lambda: world(2, load=LOAD, commit_thread=True, commit_every_ticks=commit_every_ticks))


@pytest.mark.slow
def test_every_pair_of_crashes_with_failing_tasks_and_stray_workers_is_survived():
    load = Load(row_count=4, epoch_rows_max=2, carried_share=0.3, task_failure_rate=0.4)
    crash_loop(lambda: world(2, load=load), second_stride=3)
