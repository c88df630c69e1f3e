"""Ids in Spark's plan are those that Arrow computes, and rows take theirs through it (design/0022)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import memory
from holdfast.testing import drive
from tests.spark.running import STAGED

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [
    {"n": n if n % 5 else None, "k": "ab"[n % 2] * n, "x": n / 3, "at": START + timedelta(seconds=n)} for n in range(9)
]
EPOCHS = [ROWS[:4], ROWS[4:]]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[str]:
    yield tmp_path.name
    for name in ("_plan", "_ids"):
        memory.clear(f"{tmp_path.name}{name}")


def source() -> Any:
    return hf.read.rows(EPOCHS, schema="n BIGINT, k STRING, x DOUBLE, at TIMESTAMP", timestamp="at", name="in")


def test_ids_are_the_same_in_sparks_plan_and_in_arrow(spark: SparkSession, tmp_path: Path, table: str) -> None:
    rows = source() | hf.row_id()
    of_source = rows.node.source_spec.open("in", str(tmp_path / "aside"))
    spans = of_source.spans({"rows": 0}, {"rows": 2}, parallelism=1)
    positions = {row["k"]: row["row_id"] for span in spans for each in of_source.read(span) for row in each.to_pylist()}
    alone = source() | hf.row_id("n", "k", "x", into="id")
    (first, second) = drive(alone, {"in": EPOCHS})
    contents = {row["k"]: row["id"] for row in [*first, *second]}
    assert len(set(positions.values())) == len(set(contents.values())) == len(ROWS)

    # One branch is Spark's to evaluate, so all of the plan is; both share the source.
    planned = rows | hf.map(lambda df: df, timestamp="at", name="same") | hf.row_id("n", "k", "x", into="id")
    beside = rows | hf.filter("k is not null") | hf.row_id("n", "k", "x", into="id")
    sinks = [planned | hf.write.memory(f"{table}_plan"), beside | hf.write.memory(f"{table}_ids")]
    hf.Pipeline("p", *sinks).run(
        checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark, settings=STAGED
    )
    for name in ("_plan", "_ids"):
        found = memory.rows(f"{table}{name}").to_pylist()
        assert {row["k"]: row["row_id"] for row in found} == positions
        assert {row["k"]: row["id"] for row in found} == contents
