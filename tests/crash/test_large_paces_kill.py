"""Sinks of different pace at real sizes, killed twenty times: PostgreSQL each epoch, segments of 32 MB, a byte stream.

What is deleted or set back between two lives is the worst that the sinks alone must make up for: the whole checkpoint,
or one sink, restored from a backup of an earlier epoch.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow.dataset as dataset
import pytest
from psycopg import sql

from holdfast.connectors.segments.manifest import SegmentsManifest
from tests.byte_store import verify
from tests.crash import large_paces_pipeline as paces
from tests.crash.lives import MODES, Lives

pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.postgres,
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
]

KILLS = 20
TARGET_BYTES = 32_000_000
OURS = ("rows", "holdfast_ledger", "holdfast_positions")


@pytest.fixture
def lives(tmp_path: Path, postgres_prepared: str) -> Lives:
    paces.write_input(tmp_path)
    return Lives(tmp_path, "large_paces_pipeline", {"CRASH_DSN": postgres_prepared})


@pytest.mark.parametrize("wipes", [False, True], ids=["kept", "wiped"])
def test_every_row_is_in_each_sink_once_in_well_sized_files_after_twenty_kills(lives: Lives, wipes: bool) -> None:
    for _ in range(KILLS):
        die(lives)
        if wipes:
            lives.wait_for_survivors()
            shutil.rmtree(lives.work / "checkpoint")
    check(lives)


@pytest.mark.parametrize("wipes", [False, True], ids=["kept", "wiped"])
@pytest.mark.parametrize("sink", ["table", "segments", "recording"])
def test_one_of_them_restored_from_a_backup_gets_what_it_lacks(lives: Lives, sink: str, wipes: bool) -> None:
    die(lives, epochs=5)
    lives.wait_for_survivors()
    restore = BACKUPS[sink](lives)
    die(lives, epochs=5)
    lives.wait_for_survivors()
    restore()
    if wipes:
        shutil.rmtree(lives.work / "checkpoint")
    die(lives, epochs=1 if sink == "table" else 0)
    check(lives)


def committed(lives: Lives) -> int:
    """Return how many rows the table has."""
    with psycopg.connect(lives.environment["CRASH_DSN"], autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('rows')").fetchone() == (None,):
            return 0
        (count,) = connection.execute("SELECT count(*) FROM rows").fetchone() or (0,)
        return int(count)


def die(lives: Lives, epochs: int | None = None) -> None:
    """Kill a moment after so many epochs more."""
    dsn = lives.environment["CRASH_DSN"]
    lives.environment = {"CRASH_DSN": dsn, **lives.chance.choice([*MODES.values()])}
    goal = committed(lives) + paces.ROWS * (lives.chance.randint(1, 2) if epochs is None else epochs)
    lives.die_when(lambda: committed(lives) >= goal, f"{goal} rows", pause_s=lives.chance.uniform(0, 0.6))


def backup_of_table(lives: Lives) -> Callable[[], None]:
    """Copy the table, with what is ours beside it; return what restores it."""
    dsn = lives.environment["CRASH_DSN"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA backup")
        for name in OURS:
            connection.execute(f"CREATE TABLE backup.{name} AS TABLE public.{name}")

    def restore() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))  # no backup has them
        with psycopg.connect(dsn) as connection:
            for name in OURS:
                connection.execute(f"TRUNCATE public.{name}")
                connection.execute(f"INSERT INTO public.{name} TABLE backup.{name}")

    return restore


def backup_of(directory: str) -> Callable[[Lives], Callable[[], None]]:
    """Return what copies a directory and returns what restores it."""

    def backup(lives: Lives) -> Callable[[], None]:
        shutil.copytree(lives.work / directory, lives.work / "backup")

        def restore() -> None:
            shutil.rmtree(lives.work / directory)
            shutil.move(lives.work / "backup", lives.work / directory)

        return restore

    return backup


BACKUPS = {"table": backup_of_table, "segments": backup_of("segments"), "recording": backup_of("stream")}


def check(lives: Lives) -> None:
    """Run to a good end; compare each sink with the input."""
    assert lives.end() == 0, lives.said()
    work = lives.work
    numbers = range(paces.FILES * paces.ROWS)
    digests = [paces.digest_of(paces.data_of(number)) for number in numbers]
    with psycopg.connect(lives.environment["CRASH_DSN"]) as connection:
        table = connection.execute("SELECT id, camera, digest FROM rows ORDER BY id").fetchall()
        assert connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() == (0,)
    assert table == [(number, f"c{number % paces.CAMERAS}", digests[number]) for number in numbers]

    own = work / "segments" / "_holdfast" / "paces" / "segments"
    manifest = SegmentsManifest(os.fspath(own / "manifest"))
    holdings = manifest.holdings()
    assert (holdings.growing, holdings.files) == ({}, {})
    segments = list(manifest.sealed(holdings))
    on_disk = {os.fspath(path.relative_to(work / "segments")): path for path in (work / "segments").glob("camera=*/*")}
    assert set(on_disk) == {segment.path for segment in segments}, "orphans"
    assert [*(own / "journal").iterdir(), *(own / "sealing").iterdir(), *(own / "writing").iterdir()] == [], "orphans"
    small = [segment for segment in segments if on_disk[segment.path].stat().st_size < TARGET_BYTES / 2]
    assert {segment.reason for segment in small} <= {"shutdown"}
    assert max(Counter(segment.partition for segment in small).values(), default=0) <= 1, "the last of its partition"
    # How many each camera fills depends on how far sealing is behind the epochs, and on the first file: what becomes of
    # rows that cannot be compressed is not known before.
    assert len({segment.partition for segment in segments if segment.reason == "size"}) == paces.CAMERAS
    found = dataset.dataset(list(map(os.fspath, on_disk.values())), format="parquet")
    seen: list[int] = []
    for batch in found.to_batches(columns=["id", "digest", "data"]):
        for number, digest, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert digest == digests[number] == paces.digest_of(data)
            seen.append(number)
    assert sorted(seen) == list(numbers)
    assert verify(str(work / "stream")) == len(numbers)
