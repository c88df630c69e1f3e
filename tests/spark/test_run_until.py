"""Runs that end at a time by themselves: what is below it is there, the rest comes with a later run (design/0021)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from tests.spark.running import arrive, numbered, sqlite_rows

pytestmark = pytest.mark.spark

UNTIL = "2026-01-01T00:00:15Z"


@pytest.mark.parametrize("way", ["arrow", pytest.param("spark", marks=pytest.mark.nightly)])
def test_a_run_ends_by_itself_when_the_slower_source_has_passed_the_time(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    def source(name: str) -> hf.Stream:
        return hf.read.files(str(tmp_path / name), schema="id BIGINT, at TIMESTAMP", timestamp="at", name=name)

    united = hf.union(source("fast"), source("slow"), name="both")
    pipeline = hf.Pipeline("ending", united | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))

    def start(**options: Any) -> Any:
        return pipeline.start(
            checkpoint=str(tmp_path / "ckpt"),
            trigger=options.pop("trigger", hf.every("20 ms")),
            session=spark,
            settings=Settings(columnar=way != "spark"),
            **options,
        )

    def rows() -> list[int]:
        return sqlite_rows(tmp_path / "t.db", "SELECT id FROM rows")

    arrive(tmp_path / "fast", "0.json", [*numbered(10, 14), *numbered(16, 20)])
    arrive(tmp_path / "slow", "0.json", numbered(0, 4))
    run = start(until=UNTIL)
    assert not run.wait(0.5), "the slow one may still have rows below the time"
    arrive(tmp_path / "slow", "1.json", [*numbered(21, 23), *numbered(4, 6)])
    assert run.wait(60)
    assert sorted(rows()) == [*range(6), *range(10, 14)]
    if way == "arrow":
        assert start(until=UNTIL).wait(60), "again: nothing is left to do"
        shutil.rmtree(tmp_path / "ckpt" / "sources")
        shutil.rmtree(tmp_path / "ckpt" / "spark")
    assert start(trigger=hf.available_now()).wait(60)
    assert sorted(rows()) == [*range(6), *range(10, 14), *range(16, 20), *range(21, 23)]
    if way == "arrow":
        with pytest.raises(InvalidPipeline, match="is not after the time"):
            start(at=UNTIL, until=UNTIL)
        timeless = hf.read.rows([{"id": 1}], schema="id BIGINT", name="timeless")
        other = hf.Pipeline("other", timeless | hf.write.sqlite(tmp_path / "o.db", table="rows", name="table"))
        with pytest.raises(InvalidPipeline, match="source 'timeless' cannot be read up to a time"):
            other.start(checkpoint=str(tmp_path / "o"), session=spark, until=UNTIL)


def test_a_run_ends_by_itself_when_every_list_is_at_or_above_the_time(spark: SparkSession, tmp_path: Path) -> None:
    lists = [[{"id": 1, "t": 20}], [{"id": 2, "t": 10}]]
    stream = hf.read.rows(lists, schema="id BIGINT, t BIGINT", timestamp="t", name="lists")
    pipeline = hf.Pipeline("above", stream | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))

    def start(trigger: Any, **options: Any) -> Any:
        return pipeline.start(checkpoint=str(tmp_path / "ckpt"), trigger=trigger, session=spark, **options)

    assert start(hf.every("20 ms"), until=10).wait(60)
    assert sqlite_rows(tmp_path / "t.db", "SELECT id FROM rows") == []
    assert start(hf.available_now()).wait(60)
    assert sorted(sqlite_rows(tmp_path / "t.db", "SELECT id FROM rows")) == [1, 2]


@pytest.mark.parametrize("shards", [2, pytest.param(None, marks=pytest.mark.nightly)])
def test_a_segments_store_is_read_day_by_day(spark: SparkSession, tmp_path: Path, shards: int | None) -> None:
    """As one run, and in two shards that share what is owed (design/0021, section 3)."""
    arrive(tmp_path / "in", "0.json", [*numbered(0, 9), *numbered(20, 25)])
    arrive(tmp_path / "in", "1.json", numbered(9, 20))
    given = hf.read.files(
        str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", max_files_per_epoch=1, timestamp="at", name="given"
    )
    place = given | hf.select("id", "at", place="id % 3", name="placed")
    store = place | hf.write.segments(tmp_path / "store", partition_by=["place"], name="store")
    hf.Pipeline("storing", store).run(checkpoint=tmp_path / "storing", trigger=hf.available_now(), session=spark)

    def run(until: str | None, trigger: hf.Trigger) -> list[int]:
        stored = hf.read.segments(tmp_path / "store", timestamp="at", name="stored")
        pipeline = hf.Pipeline("reading", stored | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))
        pipeline.run(checkpoint=tmp_path / "ckpt", trigger=trigger, until=until, shards=shards)
        return sorted(sqlite_rows(tmp_path / "t.db", "SELECT id FROM rows"))

    assert run("2026-01-01T00:00:05Z", hf.every("20 ms")) == [*range(5)]
    assert run("2026-01-01T00:00:12Z", hf.available_now()) == [*range(12)]
    assert run("2026-01-01T00:00:12Z", hf.every("20 ms")) == [*range(12)], "again: nothing is left to do"
    assert run(None, hf.available_now()) == [*range(25)]
