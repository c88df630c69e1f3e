"""The crash loop over unlike real sinks beside each other: a database file, a directory, and a simulated system.

What they have in common is the port alone.  PostgreSQL and every sink by itself: ``tests/crash/``, ``tests/contract/``.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.graph.trigger import SinkPace
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Load, Setting, World, crash_loop, real_sink, simulated_sink
from holdfast.testing.simulation.world import PIPELINE

SHORT = Load(row_count=4, epoch_rows_max=3, task_failure_rate=0.2)


def sqlite(name, path):
    spec = SqliteSpec(path=os.fspath(path), table="rows")

    def rows():
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            has_table = connection.execute("select 1 from sqlite_master where name = 'rows'").fetchone()
            query = "select id, segment, seq, value from rows order by rowid"
            return connection.execute(query).fetchall() if has_table else []

    def leftovers():
        return [os.fspath(found) for found in Path(f"{path}-holdfast").rglob("*") if found.is_file()]

    return real_sink(name, lambda: spec.connect(name, PIPELINE, SCHEMA), rows, leftovers, is_ordered=True)


def files(name, directory):
    spec = FilesSinkSpec(os.fspath(directory))

    def rows():
        found = dataset.dataset(directory, format="parquet", schema=SCHEMA).to_table().to_pylist()
        return [tuple(row[column] for column in SCHEMA.names) for row in found]

    def leftovers():
        own = directory / "_holdfast" / PIPELINE / name
        return [os.fspath(path) for path in [*own.glob("staging/*"), *own.glob("writing/*")]]

    return real_sink(name, lambda: spec.connect(name, PIPELINE, SCHEMA), rows, leftovers)


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
