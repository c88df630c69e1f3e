"""The crash loop over unlike real sinks beside each other: a database file, a directory, and a simulated system.

What they have in common is the port alone.  PostgreSQL and every sink by itself: ``tests/crash/``, ``tests/contract/``.
"""

import os
from dataclasses import replace

import pytest

from holdfast.graph.trigger import SinkPace
from holdfast.store.local import LocalStore
from holdfast.testing import Load, Setting, World, crash_loop, simulated_sink
from tests.sim.real_sinks import files, sqlite

SHORT = Load(row_count=4, epoch_rows_max=3, task_failure_rate=0.2)


def unlike(count, new_path):
    several = [
        sqlite("table", new_path()),
        files("directory", new_path()),
        simulated_sink("system", way="prepared"),
    ]
    return several[:count]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.nightly), 3])
def test_every_single_crash_is_survived_with_the_checkpoint_in_files(new_path, count):
    crash_loop(
        lambda: World(unlike(count, new_path), setting=Setting(SHORT), store=LocalStore(os.fspath(new_path()))),
        pairs=False,
    )


SLOW = Setting(SHORT, paces={"directory": SinkPace(every_epochs=2)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Setting(SHORT, commit_thread=True),
        Setting(SHORT, commit_every_ticks=3_000),
        pytest.param(SLOW, marks=pytest.mark.nightly),
        pytest.param(replace(SLOW, paces={"table": SinkPace(every_epochs=2)}), marks=pytest.mark.nightly),
    ],
)
def test_every_single_crash_is_survived_with_commit_thread_or_grouping(new_path, setting):
    crash_loop(lambda: World(unlike(2, new_path), setting=setting), pairs=False, stride=2)


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_pair_of_crashes_is_survived(new_path, count):
    load = Load(row_count=3, epoch_rows_max=2)
    crash_loop(lambda: World(unlike(count, new_path), setting=Setting(load)), second_stride=count)
