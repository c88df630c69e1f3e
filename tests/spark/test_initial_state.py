"""A real run that begins with given state: each key goes on from there, once (design/0012)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from tests.spark.counting import counting
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

SETTINGS = Settings(buckets=3, checkpoint_freq=0)


def give(work: Path, number: int, letters: str) -> None:
    arrive(work / "in", f"{number}.json", [{"k": letter, "v": 1} for letter in letters])


def run(work: Path, spark: SparkSession, name: str = "trips", **options: Any) -> list[Any]:
    given = hf.read.files(str(work / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    counts = counting(given, name="counts")
    database, checkpoint = work / f"{name}.db", work / ("ckpt" if name == "trips" else name)
    pipeline = hf.Pipeline(name, counts | hf.write.sqlite(database, table="rows", name="table"))
    pipeline.run(checkpoint=str(checkpoint), trigger=hf.available_now(), settings=SETTINGS, session=spark, **options)
    return sqlite_rows(database, "SELECT epoch, k, n FROM rows")


def holdfast(*arguments: object) -> Any:
    answer = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_each_key_goes_on_from_the_state_that_was_given_once(spark: SparkSession, tmp_path: Path) -> None:
    state = {"counts": {"counts": tmp_path / "counts.parquet"}}
    pq.write_table(pa.table({"k": ["a", "b", "z"], "n": [10, 20, 30]}), tmp_path / "counts.parquet")
    give(tmp_path, 0, "aac")
    first = [(2, "a", 12), (2, "c", 1)]
    assert run(tmp_path, spark, state=state) == first
    give(tmp_path, 1, "ab")
    second = [*first, (3, "a", 13), (3, "b", 21)]
    (tmp_path / "counts.parquet").unlink()
    assert run(tmp_path, spark, state=state) == second, "a restart of the same program reads it no more"
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    give(tmp_path, 2, "za")
    third = [*second, (4, "a", 14), (4, "z", 31)]
    assert [row[1:] for row in run(tmp_path, spark)] == [row[1:] for row in third], "what was given is a snapshot"
    with pytest.raises(InvalidPipeline, match="it has begun already"):
        run(tmp_path, spark, state={"counts": {"counts": pa.table({"k": ["a"], "n": [1]})}})
    (of,) = holdfast("inspect", "--checkpoint", tmp_path / "ckpt")["schemas"]
    assert of["operator"] == "counts"
    assert {"name": "counts", "columns": "k string, n int64", "key": ["k"]} in of["tables"]


def test_a_frame_or_a_table_of_spark_is_state_whatever_the_order_of_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [("a", 10), ("b", 20), ("z", 30)]
    spark.createDataFrame(rows, "k STRING, n BIGINT").createOrReplaceTempView("totals")
    give(tmp_path, 0, "aac")
    first = [(2, "a", 12), (2, "c", 1)]
    assert run(tmp_path, spark, state={"counts": {"counts": spark.table("totals")}}) == first
    give(tmp_path, 1, "b")
    again = spark.createDataFrame(rows[::-1], "k STRING, n BIGINT").repartition(2)
    assert run(tmp_path, spark, state={"counts": {"counts": again}}) == [*first, (3, "b", 21)]
    other = spark.createDataFrame(rows[1:], "k STRING, n BIGINT")
    with pytest.raises(InvalidPipeline, match="it has begun already"):
        run(tmp_path, spark, state={"counts": {"counts": other}})


def test_a_fork_of_an_edited_checkpoint_goes_on_from_the_state_that_was_put_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    give(tmp_path, 0, "aabz")
    assert run(tmp_path, spark) == [(1, "a", 2), (1, "b", 1), (1, "z", 1)]
    checkpoint = ("--checkpoint", tmp_path / "ckpt")
    holdfast("checkpoint", "create", "before", *checkpoint, "--force")
    holdfast("checkpoint", "export", "before", tmp_path / "state", "--operator", "counts", *checkpoint)
    written = pq.read_table(tmp_path / "state" / "counts.parquet")
    assert sorted(written.to_pylist(), key=str) == [{"k": "a", "n": 2}, {"k": "b", "n": 1}, {"k": "z", "n": 1}]
    patched = pa.table({"k": ["a", "b", "c"], "n": [200, 1, 300]})
    pq.write_table(patched, tmp_path / "state" / "counts.parquet")
    edit = ("edit", "before", "--operator", "counts", "--with", tmp_path / "state", "--as", "patched")
    assert holdfast("checkpoint", *edit, *checkpoint)["rows"] == 3
    give(tmp_path, 1, "abcz")
    where = str(tmp_path / "ckpt" / "patched")
    found = run(tmp_path, spark, "forked", from_checkpoint=where)
    assert found == [(2, "a", 201), (2, "b", 2), (2, "c", 301), (2, "z", 1)]
    untouched = run(tmp_path, spark, "beside", from_checkpoint=str(tmp_path / "ckpt" / "before"))
    assert untouched == [(2, "a", 3), (2, "b", 2), (2, "c", 1), (2, "z", 2)], "the old one stays as it is"
