"""``commit_at="pts"`` with SQLite, files and PostgreSQL, killed at every write: each holds what lies before its pts.

The coordinator, the operator that keeps rows back and the sinks are the real ones; the engine is simulated.  A place to
die lies before and after each durable write of the checkpoint and of the state, each durable statement of PostgreSQL,
each call of the other sinks.  Between any two writes somebody looks at all sinks from outside (design/0015).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.store.local import LocalStore
from holdfast.testing import SinkUnderTest, World, real_sink
from holdfast.testing.simulation.world import PIPELINE
from tests.crash.mortal import Database, as_killed
from tests.sim.pts_plays import Auditor, Rows, Shown, View, live, pairs, places, plain
from tests.specs import sqlite_spec

pytestmark = pytest.mark.postgres

ROW = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.int64()})
CARRIED_SHARE = {"carried": 1.0, "staged": 0.0}
EVENTS = 10
FEW_EVENTS = 6
"""Enough for pts to move twice, and few enough for every pair of deaths."""


@pytest.fixture
def database(postgres_plain: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    database = Database(postgres_plain)
    monkeypatch.setattr(psycopg, "connect", database.connect)
    yield database
    database.close()


# --- the sinks --------------------------------------------------------------------------------------------------------


def table_rows(path: Path, query: str) -> Rows:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_ledger'").fetchone()
        return connection.execute(query).fetchall() if has_table else []


def table(name: str, path: Path) -> SinkUnderTest:
    spec = sqlite_spec(os.fspath(path), "rows")

    def leftovers() -> list[str]:
        return [os.fspath(found) for found in Path(f"{path}-holdfast").rglob("*") if found.is_file()]

    def connect() -> object:
        return spec.connect(name, PIPELINE, ROW)

    return real_sink(name, connect, lambda: table_rows(path, "SELECT k, t, v FROM rows"), leftovers)  # type: ignore[arg-type]


def table_view(path: Path) -> View:
    def look() -> Shown:
        held = table_rows(path, "SELECT pts FROM holdfast_ledger")
        return Shown(held[0][0] if held else None, table_rows(path, "SELECT k, t, v FROM rows"))

    return look


def file_rows(directory: Path) -> Rows:
    found = dataset.dataset(directory, format="parquet", schema=ROW).to_table().to_pylist()
    return [tuple(row.values()) for row in found]


def files(name: str, directory: Path) -> SinkUnderTest:
    spec = FilesSinkSpec(os.fspath(directory))

    def leftovers() -> list[str]:
        own = directory / "_holdfast" / PIPELINE / name
        return [os.fspath(path) for path in [*own.glob("staging/*"), *own.glob("writing/*")]]

    return real_sink(name, lambda: spec.connect(name, PIPELINE, ROW), lambda: file_rows(directory), leftovers)


def files_view(directory: Path) -> View:
    read: dict[tuple[Path, int], Rows] = {}

    def rows_of(path: Path) -> Rows:
        """Return the rows of a file; one that is as it was is not read again."""
        key = path, path.stat().st_mtime_ns
        if key not in read:
            read[key] = [tuple(row.values()) for row in pq.read_table(path, schema=ROW).to_pylist()]
        return read[key]

    def look() -> Shown:
        rows = [row for path in sorted(directory.glob("*.parquet")) for row in rows_of(path)]
        entries = sorted((directory / "_holdfast").glob("*/*/log/*.json"))
        if not entries:
            return Shown(None, rows)
        entry = json.loads(entries[-1].read_text())["entry"]  # the commit; its files are renamed behind it, one by one
        is_renamed = all((directory / to).exists() for _, to in entry["renames"])
        return Shown(entry["pts"], rows, is_renamed)

    return look


def world(
    database: Database, new_path: Callable[[], Path], way: str, seed: int, events: int = EVENTS
) -> tuple[World, Auditor]:
    """Return a new world, and who looks at its sinks."""
    database.reset()
    fast, slow = new_path(), new_path()
    sinks = [
        as_killed(table, "of_fast", fast),
        as_killed(files, "of_slow", slow),
        database.sink("of_both", ROW),
    ]
    views: dict[str, View] = {
        "of_fast": table_view(fast / "target"),
        "of_slow": files_view(slow / "target"),
        "of_both": lambda: Shown(pts := database.pts("of_both"), [] if pts is None else database.rows("of_both", ROW)),
    }
    store = LocalStore(os.fspath(new_path()))
    return plain(events).world_of(sinks, views, seed, carried_share=CARRIED_SHARE[way], store=store)


# --- the loops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", CARRIED_SHARE)
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])])
def test_a_crash_at_every_write_leaves_each_sink_at_its_pts(
    way: str, stride: int, database: Database, new_path: Callable[[], Path]
) -> None:
    count = 0
    for crash in places(stride):
        made, auditor = world(database, new_path, way, seed=crash.n % 2)
        if live(made, auditor, [crash]) == [False] and crash.when == "after":
            break
        for sink, moved in auditor.seen.items():
            assert len(moved) > 2, f"pts of {sink} hardly moves: nothing is shown"
        count += 1
    assert count * stride > 100, "hardly any place to die"


@pytest.mark.parametrize("way", CARRIED_SHARE)
@pytest.mark.parametrize(
    ("first", "second"),
    [(97, 61), pytest.param(1, 1, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])],
    ids=["everyday", "whole"],
)
def test_every_pair_of_crashes_leaves_each_sink_at_its_pts(
    way: str, first: int, second: int, database: Database, new_path: Callable[[], Path]
) -> None:
    """Dead after each write, and after each of the next life; ``make test`` tries some, nightly all.

    A death before a write leaves what one after the write before it does: ``tests/sim/test_commit_at_pts.py``.
    """
    moved = count = 0
    for crash, others in pairs(first, second):
        for again, looks_from in others:
            made, auditor = world(database, new_path, way, crash.n % 2, FEW_EVENTS)
            first_met, again_met = live(made, auditor, [crash, again], looks_from=looks_from)
            moved = max(moved, *map(len, auditor.seen.values()))
            if not (first_met and again_met):
                break
            count += 1
        if not first_met:
            break
    assert moved > 2, "pts hardly moves: nothing is shown"
    assert count * first * second > 1000, "hardly any pair of places to die"
