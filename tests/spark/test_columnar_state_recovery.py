"""What becomes of state when a run dies between two logs, or when its directory is lost (design/0010, section 5)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.errors import Corrupt, Diverged, HoldfastError
from tests.spark.counting import counting
from tests.spark.running import MODES, die_at, sqlite_rows

pytestmark = pytest.mark.spark

GIVEN = ("aab", "bc", "aB", "c")
"""One epoch for each, one row for each letter; a capital letter is too late."""

FIRST = [(1, "a", 2), (1, "b", 1), (2, "b", 2), (2, "c", 1), (3, "a", 3), (4, "c", 2)]
SECOND = [(1, "a", 1), (2, "b", 1), (3, "a", 2), (4, "c", 1)]
"""How often the first count of a key was above one."""


def run(work: Path, spark: SparkSession, mode: str = "carried", count: int = len(GIVEN)) -> None:
    rows = [[{"k": letter.lower(), "v": -1 if letter.isupper() else 1} for letter in text] for text in GIVEN[:count]]
    given = hf.read.rows(rows, schema="k STRING, v BIGINT", name="given")
    first = counting(given, name="first")
    second = counting(first | hf.filter("n > 1", name="many"), name="second")
    pipeline = hf.Pipeline(
        "counts",
        first | hf.write.sqlite(work / "first.db", table="rows", name="first_table"),
        second | hf.write.sqlite(work / "second.db", table="rows", name="second_table"),
        first.late | hf.write.sqlite(work / "first.db", table="late", name="late_table"),
    )
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=MODES[mode])


def check(work: Path) -> None:
    assert sqlite_rows(work / "first.db", "SELECT epoch, k, n FROM rows") == FIRST
    assert sqlite_rows(work / "second.db", "SELECT epoch, k, n FROM rows") == SECOND
    assert sqlite_rows(work / "first.db", "SELECT k FROM late") == ["b"]


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        ("carried", "after-forget"),
        ("staged", "after-decide"),
        pytest.param("staged", "after-stage", marks=pytest.mark.nightly),
    ],
)
def test_an_epoch_that_is_evaluated_twice_is_in_the_state_once(
    spark: SparkSession, tmp_path: Path, mode: str, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.spark")
    die_at(point, 2)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark, mode)
    faults.install(None)
    run(tmp_path, spark, mode)
    check(tmp_path)
    is_muted = "epoch 2 is held by every sink: evaluated for its state alone" in caplog.messages
    assert is_muted == (point != "after-stage")


def test_state_whose_directory_is_lost_is_not_begun_anew_beside_full_sinks(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, spark, count=2)
    before = sqlite_rows(tmp_path / "first.db", "SELECT epoch, k, n FROM rows")
    for lost in ("spark", "snapshots"):
        shutil.rmtree(tmp_path / "checkpoint" / lost)
    with pytest.raises(Diverged) as refused:
        run(tmp_path, spark)
    for word in ("'first_table'", "holds epoch 2", "first, second", "restore it, or its directory snapshots/"):
        assert word in refused.value.message
    assert refused.value.epoch == 2
    assert sqlite_rows(tmp_path / "first.db", "SELECT epoch, k, n FROM rows") == before


def test_a_lost_directory_costs_nothing_while_no_sink_holds_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    die_at("after-stage", 1)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark)
    faults.install(None)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    run(tmp_path, spark, count=2)
    assert sqlite_rows(tmp_path / "first.db", "SELECT epoch, k, n FROM rows") == [row for row in FIRST if row[0] <= 2]


def test_state_files_that_are_missing_are_no_fault_of_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(Corrupt) as caught:
            run(tmp_path, spark)
        assert "restore the checkpoint" in caught.value.do
        return caught.value.message

    run(tmp_path, spark, count=2)
    shutil.rmtree(tmp_path / "checkpoint" / "snapshots")
    journal = tmp_path / "checkpoint" / "spark" / "1" / "journal"
    journal.rename(tmp_path / "elsewhere")
    assert "journal/000000000001 in the checkpoint cannot be read" in refused()
    (tmp_path / "elsewhere").rename(journal)
    (entry,) = journal.glob("000000000000-*.entry")
    entry.unlink()
    assert f"{entry.name} in the checkpoint cannot be read" in refused()
    assert sqlite_rows(tmp_path / "first.db", "SELECT epoch, k, n FROM rows") == [row for row in FIRST if row[0] <= 2]
