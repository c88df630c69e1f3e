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


def run(work: Path, spark: SparkSession, **options: Any) -> list[Any]:
    given = hf.read.files(str(work / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    counts = counting(given, name="counts")
    pipeline = hf.Pipeline("trips", counts | hf.write.sqlite(work / "t.db", table="rows", name="table"))
    pipeline.run(checkpoint=str(work / "ckpt"), trigger=hf.available_now(), settings=SETTINGS, session=spark, **options)
    return sqlite_rows(work / "t.db", "SELECT epoch, k, n FROM rows")


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
    answer = CliRunner().invoke(app, ["inspect", "--checkpoint", str(tmp_path / "ckpt"), "--json"])
    (of,) = json.loads(answer.stdout)["schemas"]
    assert of["operator"] == "counts"
    assert {"name": "counts", "columns": "k string, n int64", "key": ["k"]} in of["tables"]
