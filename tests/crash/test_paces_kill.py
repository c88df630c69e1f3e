"""Sinks of different pace under SIGKILL: each has every row once, also when the checkpoint is lost at each kill."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

import holdfast as hf
from tests.byte_store import verify
from tests.crash import paces_pipeline as paces
from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

NUMBERS = range(paces.FILES * paces.ROWS)
TARGET_BYTES = 64_000


def committed(work: Path) -> int:
    """Return how many rows the table has: the sinks are asked, for Spark's logs go with the checkpoint."""
    return sum(sqlite_rows(work / "out.db", "SELECT count(*) FROM rows"))


def check_tables(work: Path) -> None:
    """Compare the tables that commit less often than each epoch."""
    assert sqlite_rows(work / "slow.db", "SELECT id FROM rows") == list(NUMBERS)
    newest = [(f"c{number % 3}", number) for number in sorted(NUMBERS[-3:], key=lambda number: number % 3)]
    assert sqlite_rows(work / "newest.db", "SELECT camera, id FROM rows ORDER BY camera") == newest


def check_commands(work: Path) -> None:
    """Compare the sinks that carry out commands: each took effect at its place."""
    wanted = [
        (number, f"c{number % 3}", number + 0.5 if number >= paces.HAS_GUST else None)
        for number in NUMBERS
        if number % 3 != 1 or number >= paces.DROPPED
    ]
    assert sqlite_rows(work / "controlled.db", "SELECT id, camera, gust FROM rows ORDER BY id") == wanted
    noted = sqlite_rows(work / "controlled.db", "SELECT number, command FROM holdfast_control")
    assert noted == list(enumerate(paces.COMMANDS.values(), start=1))
    held = hf.segments.open(work / "controlled").to_arrow().sort_by("id")
    assert [tuple(row.values()) for row in held.select(["id", "camera", "gust"]).to_pylist()] == wanted
    assert str(held.schema.field("gust").type) == "double"


def die(lives: Lives, after_epochs: int) -> None:
    """Kill a moment after so many epochs more."""
    goal = committed(lives.work) + after_epochs * paces.ROWS
    lives.die_when(lambda: committed(lives.work) >= goal, f"{goal} rows", pause_s=lives.chance.uniform(0, 0.4))


def check(lives: Lives) -> None:
    """Run to a good end; compare each sink with the input."""
    assert lives.end() == 0, lives.said()
    work = lives.work
    wanted = [(number, f"c{number % 3}", paces.data_of(number)) for number in NUMBERS]
    assert sqlite_rows(work / "out.db", "SELECT id, camera, data FROM rows ORDER BY id") == wanted
    check_tables(work)
    check_commands(work)
    found = dataset.dataset(work / "segments", format="parquet", partitioning="hive").to_table().sort_by("id")
    assert list(zip(*(found[name].to_pylist() for name in ("id", "camera", "data")), strict=True)) == wanted
    held = hf.segments.open(work / "segments").to_arrow()
    assert sorted(held["id"].to_pylist()) == list(NUMBERS)
    sizes = [path.stat().st_size for path in (work / "segments").rglob("*.parquet") if "_holdfast" not in path.parts]
    small = [size for size in sizes if size < TARGET_BYTES / 2]
    assert len(small) <= 3, f"a file below half of the target is the last one of its partition: {sorted(sizes)}"
    assert not list((work / "segments").rglob("*.staged")), "orphans"
    assert verify(str(work / "stream")) == len(NUMBERS)


@pytest.mark.parametrize("wipes", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["kept", "wiped"])
def test_sinks_of_different_pace_have_every_row_once_after_kills(tmp_path: Path, wipes: bool) -> None:
    lives = begun(tmp_path)
    for mode in ("carried", "staged"):
        lives.environment |= MODES[mode]
        die(lives, 6)
        if mode == "carried":
            assert sqlite_rows(tmp_path / "slow.db", "SELECT count(*) FROM rows") == [paces.ROWS], "the rest waits"
        lose(lives, wipes=wipes)
    check(lives)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wipes", [False, True], ids=["kept", "wiped"])
@pytest.mark.parametrize("mode", MODES)
def test_sinks_of_different_pace_have_every_row_once_after_twenty_kills(tmp_path: Path, mode: str, wipes: bool) -> None:
    lives = begun(tmp_path)
    lives.environment |= MODES[mode]
    for _ in range(20):
        die(lives, lives.chance.randint(1, 2))
        lose(lives, wipes=wipes)
    check(lives)


@pytest.mark.nightly
def test_one_of_them_restored_from_a_backup_gets_what_it_lacks(tmp_path: Path) -> None:
    lives = begun(tmp_path)
    die(lives, 5)
    lives.wait_for_survivors()
    with closing(sqlite3.connect(tmp_path / "out.db")) as table, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        table.backup(copy)
    die(lives, 8)
    lives.wait_for_survivors()
    for path in tmp_path.glob("out.db*"):
        if path.is_file():
            path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "out.db")
    check(lives)


def begun(work: Path) -> Lives:
    """Return the lives of the pipeline, its input written."""
    paces.write_input(work)
    return Lives(work, "paces_pipeline", {})


def lose(lives: Lives, *, wipes: bool) -> None:
    """Remove the checkpoint, once nothing of the last life is left."""
    if wipes:
        lives.wait_for_survivors()
        shutil.rmtree(lives.work / "checkpoint")
