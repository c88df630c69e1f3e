"""What is wrong inside a step on Spark reaches the user as it does without (``tests/spec/test_state_bad_input.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline
from holdfast.operators.stateful.spec import stateful
from holdfast.operators.sync.spec import sync

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def given(name: str, *epochs: list[dict[str, Any]]) -> hf.Stream:
    return hf.read.rows(list(epochs), schema=SCHEMA, timestamp="t", name=name)


def failure(stream: hf.Stream, tmp_path: Path, spark: SparkSession, kind: type[HoldfastError]) -> HoldfastError:
    pipeline = hf.Pipeline("wrong", stream | hf.write.files(tmp_path / "out", name="out"))
    with pytest.raises(kind) as caught:
        pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)
    return caught.value


def test_a_row_without_a_key_is_a_bad_row_also_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    good = [{"k": "x", "t": 1, "v": 100}]
    inputs = {"a": given("first", good, [{"k": None, "t": 2, "v": 101}]), "b": given("second", good)}
    error = failure(sync(inputs, by="k", name="aligned"), tmp_path, spark, BadRow)
    for word in ("'aligned'", "bucket ", "epoch 2", "'a'", "k=None", "v=101"):
        assert word in error.message, error.message
    assert error.do


def test_a_step_that_returns_another_schema_is_named_with_both_also_on_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        return None, rows.select(["k", "v"]).rename_columns(["k", "m"])

    stream = given("first", [{"k": "x", "t": 1, "v": 100}]) | stateful(
        step, "k", schema="k STRING, n BIGINT", state={"counts": "k STRING, n BIGINT"}, name="mine"
    )
    error = failure(stream, tmp_path, spark, InvalidPipeline)
    for word in ("'mine'", "n int64", "m int64"):
        assert word in error.message, error.message
    assert error.do
