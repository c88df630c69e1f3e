"""``commit_every`` and ``start_all``: fewer, larger transactions, and pipelines that do not know of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from tests.spark.running import MODES, arrive, numbered, parquet_rows, reach, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, at TIMESTAMP"


def rows_ten_seconds_apart(count: int) -> list[list[dict[str, Any]]]:
    """One row an epoch, each ten seconds of event time after the one before."""
    from datetime import UTC, datetime, timedelta

    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [[{"id": i, "at": start + timedelta(seconds=10 * i)}] for i in range(count)]


@pytest.mark.postgres
@pytest.mark.parametrize("mode", MODES)
def test_commit_every_publishes_several_epochs_in_one_transaction(
    mode: str, spark: SparkSession, tmp_path: Path, postgres_prepared: str
) -> None:
    """Rows that were written by one transaction have one xmin, unless each task prepared a transaction of its own."""
    rows = hf.read.rows(rows_ten_seconds_apart(10), schema=SCHEMA, timestamp="at", name="rows")
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.postgres(postgres_prepared, table="rows", name="table"),
        rows | hf.write.files(tmp_path / "files", name="files"),
    )
    run = pipeline.run(
        checkpoint=str(tmp_path / "c"),
        trigger=hf.available_now(),
        commit_every="30 s",
        session=spark,
        settings=MODES[mode],
    )
    with psycopg.connect(postgres_prepared) as connection:
        found = connection.execute("SELECT array_agg(id ORDER BY id) FROM rows GROUP BY xmin::text").fetchall()
    # The first epoch starts the measure; a group is due once 30 s have passed; the rest is published at the end.
    assert sorted(ids for (ids,) in found) == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert parquet_rows(tmp_path / "files") == list(range(10))
    assert (run.status().epoch, run.status().queue) == (10, 0)


def test_what_a_group_had_not_published_is_published_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    """The second file fails: the epochs before it are decided, and belong to a group that was never due."""
    for number in range(3):
        arrive(tmp_path / "in", f"{number}.json", numbered(number * 10, number * 10 + 10))
    arrive(tmp_path / "in", "3.json", [*numbered(30, 39), "{broken"])
    rows = hf.read.files(str(tmp_path / "in"), schema=SCHEMA, timestamp="at", max_files_per_epoch=1, name="source")
    pipeline = hf.Pipeline("p", rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
    options: dict[str, Any] = {"trigger": hf.available_now(), "commit_every": "1 h", "session": spark}
    with pytest.raises(BadRow):
        pipeline.run(checkpoint=str(tmp_path / "c"), **options)
    held_after_failure = len(sqlite_rows(tmp_path / "out.db"))
    assert held_after_failure in (10, 30), "whole epochs, whether the failed run published its group or not"
    with pytest.raises(BadRow):
        pipeline.run(checkpoint=str(tmp_path / "c"), **options)
    assert sqlite_rows(tmp_path / "out.db") == list(range(30))


def test_commit_every_refuses_a_source_without_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    timed = hf.read.rows([{"id": 1, "at": None}], schema=SCHEMA, timestamp="at", name="timed")
    untimed = hf.read.rows([{"id": 1, "at": None}], schema=SCHEMA, name="untimed")
    both = hf.union(timed, untimed, name="both")
    pipeline = hf.Pipeline("p", both | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
    with pytest.raises(InvalidPipeline, match="'untimed' declares none") as raised:
        pipeline.start(checkpoint=str(tmp_path / "c"), commit_every="1 s", session=spark)
    assert "timestamp=" in raised.value.do
    assert not (tmp_path / "c").exists(), "nothing has begun"


def test_two_pipelines_in_one_process_have_epochs_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "a", "0.json", numbered(0, 10))
    arrive(tmp_path / "b", "0.json", numbered(0, 10))
    pipelines = [
        hf.Pipeline(
            name,
            hf.read.files(str(tmp_path / name), schema=SCHEMA, timestamp="at", max_files_per_epoch=1, name="source")
            | hf.write.sqlite(tmp_path / f"{name}.db", table="rows", name="table"),
        )
        for name in ("a", "b")
    ]
    first, second = hf.start_all(pipelines, checkpoint=tmp_path / "c", trigger=hf.every("50 ms"), session=spark)
    for number in range(1, 3):
        arrive(tmp_path / "b", f"{number}.json", numbered(number * 10, number * 10 + 10))
        reach(second, number + 1)
    reach(first, 1)
    arrive(tmp_path / "a", "1.json", ["{broken"])
    with pytest.raises(BadRow):
        first.wait(60)
    arrive(tmp_path / "b", "3.json", numbered(30, 40))
    reach(second, 4)
    assert second.is_active, "one that fails does not stop the other"
    assert second.stop()
    assert (first.status().epoch, second.status().epoch) == (1, 4)
    assert sqlite_rows(tmp_path / "a.db") == list(range(10))
    assert sqlite_rows(tmp_path / "b.db") == list(range(40))


def test_pipelines_of_one_name_are_not_started_together(spark: SparkSession, tmp_path: Path) -> None:
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    twice = [hf.Pipeline("p", rows | hf.write.memory("a")), hf.Pipeline("p", rows | hf.write.memory("b"))]
    with pytest.raises(InvalidPipeline, match="one name"):
        hf.start_all(twice, checkpoint=str(tmp_path / "c"), session=spark)


def test_when_one_pipeline_cannot_start_those_already_started_are_stopped(spark: SparkSession, tmp_path: Path) -> None:
    good = hf.read.rate(100, name="ticks") | hf.write.sqlite(tmp_path / "good.db", table="rows", name="table")
    bad = hf.read.rate(100, name="ticks") | hf.map(lambda frame: frame.select("nothing"), name="wrong")
    bad_sink = bad | hf.write.sqlite(tmp_path / "bad.db", table="rows", name="table")
    with pytest.raises(InvalidPipeline, match="'wrong'"):
        hf.start_all(
            [hf.Pipeline("good", good), hf.Pipeline("bad", bad_sink)], checkpoint=str(tmp_path / "c"), session=spark
        )
    assert not [query for query in spark.streams.active if query.name and "good" in query.name]
