"""Back-pressure through Spark: a fast source waits for a slow one, and a run whose slow source is silent goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.spark_log import read_offsets
from tests.spark.running import batches_of_log, sqlite_rows

pytestmark = pytest.mark.spark

LIMIT, EACH = 15, 10


def ticks(name: str, count: int, each: int) -> hf.Stream:
    lists = [[{"k": "a", "t": t} for t in range(at, at + each)] for at in range(0, count, each)]
    return hf.read.rows(lists, schema="k STRING, t BIGINT", timestamp="t", bounded=count > 0, name=name)


def run(tmp_path: Path, spark: SparkSession, slow_count: int) -> tuple[Any, list[Any]]:
    inputs = {"x": ticks("fast", 40, EACH), "y": ticks("slow", slow_count, 4)}
    both = hf.sync(inputs, by="k", max_waiting_rows=LIMIT, name="both") | hf.select("k", "timestamp", name="times")
    pipeline = hf.Pipeline("pressure", both | hf.write.sqlite(tmp_path / "out.db", table="sets", name="out"))
    ended = pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    return ended.status(), sqlite_rows(tmp_path / "out.db", "SELECT timestamp FROM sets")


def test_what_waits_stays_near_the_limit_and_every_set_comes(spark: SparkSession, tmp_path: Path) -> None:
    status, sets = run(tmp_path, spark, 40)
    assert sets == list(range(40))
    directory = tmp_path / "ckpt" / "spark" / "1"
    logged = [read_offsets(directory, batch).rows for batch in batches_of_log(directory / "offsets")]
    ahead = [(rows["fast"] or 0) - (rows["slow"] or 0) for rows in logged]
    assert LIMIT <= max(ahead) < LIMIT + EACH  # the epoch that reaches the limit is there whole
    assert [operator.counts.get("limit_relaxed", 0) for operator in status.operators] == [0]


def test_the_limit_is_relaxed_where_who_lags_says_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.run"):
        status, sets = run(tmp_path, spark, 0)
    assert sets == []
    assert {source.name: source.rows for source in status.sources} == {"fast": 40, "slow": 0}
    assert [operator.waiting_rows for operator in status.operators] == [40]
    assert all(operator.counts["limit_relaxed"] > 0 for operator in status.operators)
    assert ["max_waiting_rows" in record.getMessage() for record in caplog.records].count(True) == 1
