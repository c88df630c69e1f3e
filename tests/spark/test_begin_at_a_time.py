"""Pipelines that begin at a time: no row before it reaches a sink, whatever is started again (design/0012)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from tests.spark.counting import counting
from tests.spark.running import arrive, numbered, sqlite_rows

pytestmark = pytest.mark.spark

AT = "2026-01-01T00:00:15Z"


@pytest.mark.parametrize("way", ["arrow", "spark", "state"])
def test_rows_before_the_time_are_never_delivered(spark: SparkSession, tmp_path: Path, way: str) -> None:
    rows = hf.read.files(
        str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", timestamp="at", max_files_per_epoch=1, name="rows"
    )
    if way == "state":
        rows = counting(rows | hf.select(k="cast(id as string)", v="id", name="keyed"), name="counts")
    pipeline = hf.Pipeline("begun", rows | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))
    settings = Settings(columnar=way != "spark", buckets=2)

    def run(**options: Any) -> list[int]:
        pipeline.run(
            checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings, **options
        )
        column = "CAST(k AS INTEGER)" if way == "state" else "id"
        return sqlite_rows(tmp_path / "t.db", f"SELECT {column} FROM rows")

    arrive(tmp_path / "in", "0.json", numbered(0, 10))
    arrive(tmp_path / "in", "1.json", numbered(10, 20))
    assert run(at=AT) == list(range(15, 20))
    arrive(tmp_path / "in", "2.json", [*numbered(12, 14), *numbered(20, 22)])
    assert run() == list(range(15, 22)), "the time is part of what the checkpoint remembers"
    if way == "arrow":
        shutil.rmtree(tmp_path / "ckpt" / "spark")
        arrive(tmp_path / "in", "3.json", [*numbered(3, 4), *numbered(22, 23)])
        assert run(at=AT) == list(range(15, 23))
        with pytest.raises(InvalidPipeline, match="it has begun already"):
            run(at="2026-01-01")
        timeless = hf.read.files(str(tmp_path / "in"), schema="id BIGINT", name="timeless")
        other = hf.Pipeline("other", timeless | hf.write.sqlite(tmp_path / "o.db", table="rows", name="table"))
        with pytest.raises(InvalidPipeline, match="source 'timeless' cannot begin at a time"):
            other.start(checkpoint=str(tmp_path / "o"), session=spark, at=AT)
