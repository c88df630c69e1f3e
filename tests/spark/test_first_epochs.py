"""The first epoch after a start is small, and the next ones grow (design/0014, section 5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.checkpoint.spark_log import logged, read_offsets
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from tests.spark.running import arrive_in_order, sqlite_rows

pytestmark = pytest.mark.spark

FILES, ROWS_EACH = 12, 10
FILE_BYTES = 450
"""About: a limit of so much is one file."""


def ends_of(work: Path) -> list[int]:
    """Return where each epoch that was planned ends: after how many files."""
    log = work / "ckpt/spark/1"
    return [int(read_offsets(log, number).positions["source"]["log"]) for number in logged(log, "offsets")]


def run(work: Path, spark: SparkSession, first: str) -> None:
    """Run until there is nothing left."""
    rows = hf.read.files(str(work / "in"), schema="id BIGINT, at TIMESTAMP", name="source")
    pipeline = hf.Pipeline("p", rows | hf.write.sqlite(work / "out.db", table="rows", name="table"))
    settings = Settings(first_epoch_max=first)
    pipeline.start(
        checkpoint=str(work / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings
    ).wait()  # fmt: skip


def test_a_run_that_dies_after_the_first_epoch_of_each_start_gets_on(spark: SparkSession, tmp_path: Path) -> None:
    """Each life finishes one epoch, and dies when the next one is planned."""
    arrive_in_order(tmp_path / "in", FILES, ROWS_EACH)
    limit = f"{FILE_BYTES} B"
    held, begun = [0], [0]

    def hook(point: str, epoch: int) -> None:
        if point == "before-stage":
            begun[0] += 1
            if begun[0] == 2:
                raise RuntimeError("killed")

    faults.install(hook)
    planned: list[int] = []
    for _ in range(4):
        begun[0] = 0
        with pytest.raises(HoldfastError):
            run(tmp_path, spark, limit)
        held.append(len(sqlite_rows(tmp_path / "out.db")) // ROWS_EACH)
        assert ends_of(tmp_path)[: len(planned)] == planned, "what was planned is replayed as it was"
        planned = ends_of(tmp_path)
    faults.install(None)
    # First life: one file, and two are planned.  Each of the others finishes what was planned, and plans one file.
    assert planned == [1, 3, 4, 5, 6]
    assert held == [0, *planned[:4]]

    run(tmp_path, spark, limit)
    assert sqlite_rows(tmp_path / "out.db") == list(range(FILES * ROWS_EACH))
    _, first, second = ends_of(tmp_path)[4:7]
    assert first == planned[-1] + 1, "it begins with one file again"
    assert second > first + 1, "and grows"


def test_without_the_limit_the_first_epoch_takes_all_there_is(spark: SparkSession, tmp_path: Path) -> None:
    arrive_in_order(tmp_path / "in", FILES, ROWS_EACH)
    run(tmp_path, spark, "0 B")
    assert ends_of(tmp_path) == [FILES]
    assert sqlite_rows(tmp_path / "out.db") == list(range(FILES * ROWS_EACH))
