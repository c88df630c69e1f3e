"""State in Spark (design/0010): what a stateful operator of any kind is promised by its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.counting import counting
from tests.spark.running import MODES, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, v BIGINT"


def epochs(*given: str) -> list[list[dict[str, Any]]]:
    """Return rows: one epoch for each text, one row for each letter; a capital letter is too late."""
    return [[{"k": letter.lower(), "v": -1 if letter.isupper() else 1} for letter in text] for text in given]


def run(pipeline: hf.Pipeline, tmp_path: Path, spark: SparkSession, settings: Any = None) -> Any:
    return pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings)


@pytest.mark.parametrize("mode", MODES)
def test_state_lives_from_epoch_to_epoch(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    stream = hf.read.rows(epochs("aab", "bc", "a"), schema=SCHEMA, name="given")
    counted = counting(stream)
    pipeline = hf.Pipeline("counts", counted | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out"))
    run(pipeline, tmp_path, spark, MODES[mode])
    found = sqlite_rows(tmp_path / "out.db", "SELECT epoch, k, n FROM rows")
    assert found == [(1, "a", 2), (1, "b", 1), (2, "b", 2), (2, "c", 1), (3, "a", 3)]
