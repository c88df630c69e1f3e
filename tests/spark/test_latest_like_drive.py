"""``combine`` in a run: a union that fills columns, in Arrow, in Spark's plan, and among branches that share one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

NAMES = [{"id": "a", "t": 1, "name": "Ann"}]
SCORES = [{"id": "a", "t": 2, "score": 7}, {"id": "b", "t": 3, "score": 8}]


def streams_of(way: str) -> list[hf.Stream]:
    names = hf.read.rows([NAMES], schema="id STRING, t BIGINT, name STRING", timestamp="t", name="names")
    scores = hf.read.rows([SCORES], schema="score BIGINT, id STRING, t BIGINT", timestamp="t", name="scores")
    if way == "arrow":
        return [hf.combine(names, scores, by="id", name="both")]
    mapped = scores | hf.map(lambda frame: frame.select("*"), name="mapped")
    united = hf.union(names, mapped | hf.select("score", "id", "t"), missing="null", name="both")
    return [united] if way == "plan" else [united, mapped | hf.filter("t < 0", name="none")]


@pytest.mark.parametrize("way", ["arrow", "plan", "shared"])
def test_every_way_fills_the_columns_that_a_stream_lacks(spark: SparkSession, tmp_path: Path, way: str) -> None:
    sinks = [
        stream | hf.write.sqlite(tmp_path / "out.db", table=f"out{at}", name=f"out{at}")
        for at, stream in enumerate(streams_of(way))
    ]
    pipeline = hf.Pipeline(way, *sinks)
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    found = sqlite_rows(tmp_path / "out.db", "SELECT id, t, name, score FROM out0 ORDER BY t")
    united = [("a", 1, "Ann", None), ("a", 2, None, 7), ("b", 3, None, 8)]
    assert found[-2:] == ([("a", 2, "Ann", 7), ("b", 3, None, 8)] if way == "arrow" else united[-2:])
    assert way == "arrow" or found == united
