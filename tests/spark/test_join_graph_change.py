"""A join and a table by a stream whose graph changes over a checkpoint: their rows stay, or the start is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import InvalidPipeline
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

LEFT = [[("a", 10), ("b", 10), ("c", 12)], [("a", 40), ("d", 60)]]
RIGHT = [[("a", 10), ("z", 12)], [("b", 25), ("z", 60)]]


def source(name: str, epochs: list[list[tuple[str, int]]]) -> hf.Stream:
    value = {"left": "v", "right": "w"}[name]
    rows = [[{"k": k, "t": t, value: t} for k, t in epoch] for epoch in epochs]
    return hf.read.rows(rows, schema=f"k STRING, t BIGINT, {value} BIGINT", timestamp="t", name=name)


def pipeline(work: Path, given: int, within: tuple[int, int], *, how: str, is_inserted: bool = False) -> hf.Pipeline:
    left, right = source("left", LEFT[:given]), source("right", RIGHT[:given])
    mine = left | hf.filter("v > 0", name="inserted") if is_inserted else left
    joined = hf.join(mine, right, on="k", within=within, how=how, disorder=0, name="joined")
    looked = hf.lookup(left, hf.table(right, key="k"), on="k", how="left", columns=["w"], name="looked")
    sinks = {"pairs": joined | hf.select("*", name="chosen"), "known": looked}
    return hf.Pipeline(
        "changing", *(rows | hf.write.sqlite(work / f"{name}.db", table=name) for name, rows in sinks.items())
    )


def test_rows_in_the_state_go_by_the_new_arguments_and_other_tables_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run(*given: Any, **options: Any) -> None:
        changed = pipeline(tmp_path, *given, **options)
        changed.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)

    run(1, (-2, 5), how="inner")
    assert sqlite_rows(tmp_path / "pairs.db", "SELECT k, v, w FROM pairs") == [("a", 10, 10)]
    with pytest.raises(InvalidPipeline, match="joined"):
        run(2, (-2, 20), how="semi")
    run(2, (-2, 20), how="left", is_inserted=True)
    found = sqlite_rows(tmp_path / "pairs.db", "SELECT k, v, w FROM pairs ORDER BY k")
    assert found == [("a", 10, 10), ("b", 10, 25), ("c", 12, None)], "b would have no partner within the old range"
    known = sqlite_rows(tmp_path / "known.db", "SELECT k, v, w FROM known WHERE k IN ('a', 'b') ORDER BY k, v")
    assert known == [("a", 10, 10), ("a", 40, 10), ("b", 10, None)], "what the table held before counts"
