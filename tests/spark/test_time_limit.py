"""A limit cancels the jobs of its block, those that begin late too, and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from holdfast.errors import BadRow
from holdfast.spark.quarantine.trials import limited

pytestmark = pytest.mark.spark


def until(file: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not file.exists():
            threading.Event().wait(0.05)
        yield from batches

    return wait


def hang_twice(spark: SparkSession, file: Path) -> None:
    for _ in range(2):
        try:
            spark.range(0, 1, 1, 1).mapInArrow(until(file), "id BIGINT").collect()
        except Exception as failure:
            ended = failure
    raise ended


def test_every_job_of_the_block_is_cancelled_and_no_other_one_of_its_thread_or_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    context = spark.sparkContext
    found: list[int] = []

    def beside() -> None:
        found.append(len(spark.range(0, 1, 1, 1).mapInArrow(until(tmp_path / "go"), "id BIGINT").collect()))

    context.setJobGroup("mine", "jobs of a user")
    thread = InheritableThread(target=beside, session=spark)
    thread.start()
    try:
        with pytest.raises(BadRow, match="not done within 1 s"), limited(1, "a trial"):
            hang_twice(spark, tmp_path / "never")
        (tmp_path / "go").touch()
        thread.join()
        assert found == [1]
        assert (context.getLocalProperty("spark.jobGroup.id"), list(context.getJobTags())) == ("mine", [])
    finally:
        (tmp_path / "go").touch()
        (tmp_path / "never").touch()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)


def test_a_limit_leaves_no_trace_in_a_thread_without_a_group(spark: SparkSession) -> None:
    context = spark.sparkContext
    with limited(60, "a trial"):
        assert spark.range(3).count() == 3
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    assert [context.getLocalProperty(name) for name in names] == [None] * 3
    assert list(context.getJobTags()) == []
