"""Aggregates with a condition, by an order, and first rows, over several runs and a changed graph (design/0058)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, id BIGINT, v BIGINT, w STRING"
CONDITIONS = {"arrow": "v < 40", "raises": "v % 3 = 0", "nulls": "v > 10 or w is null", "spark": "w rlike '^[a-c]'"}


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "k": "xyz"[n % 3],
            "id": n,
            "v": None if n % 11 == 0 else n * 37 % 100,
            "w": None if n % 7 == 0 else "abcdef"[n % 6],
        }
        for n in range(first, last)
    ]


def pipeline(tmp_path: Path, dear: int) -> hf.Pipeline:
    bids = hf.read.files(str(tmp_path / "in"), format="json", schema=SCHEMA, name="bids")
    computed: dict[str, Any] = {name: hf.count(where=condition) for name, condition in CONDITIONS.items()}
    kinds: dict[str, Any] = {
        f"{name}_kinds": hf.distinct_count("w", where=condition) for name, condition in CONDITIONS.items()
    }
    reduced = bids | hf.reduce(
        by="k", **computed, **kinds, total=hf.sum("v", where="w rlike '^[a-c]'"), w_of_most=hf.max_by("w", "v"),
        w_of_least=hf.min_by("w", "v"), dear=hf.count(where=f"v > {dear}"), name="reduced",
    )  # fmt: skip
    best = hf.top(bids, 4, by="k", order="v desc, w", name="best")
    db = tmp_path / "out.db"
    return hf.Pipeline(
        "p",
        reduced | hf.write.sqlite(db, table="reduced", mode="upsert", key="k", name="reduced_out"),
        best | hf.write.sqlite(db, table="best", mode="upsert", key=["k", "rank"], name="best_out"),
    )


def test_they_are_what_spark_computes_and_another_condition_begins_as_over_no_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, (first, last, dear) in enumerate([(0, 40, 50), (40, 80, 50), (80, 130, 90)]):
        arrive(tmp_path / "in", f"{number}.json", rows(first, last))
        pipeline(tmp_path, dear).run(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark)
    db = tmp_path / "out.db"
    spark.createDataFrame([tuple(row.values()) for row in rows(0, 130)], SCHEMA).createOrReplaceTempView("bids")
    try:
        counts = ", ".join(f"count_if({condition})" for condition in CONDITIONS.values())
        kinds = ", ".join(f"count(distinct w) filter (where {condition})" for condition in CONDITIONS.values())
        wanted = spark.sql(
            f"select k, {counts}, {kinds}, sum(v) filter (where w rlike '^[a-c]'), "
            "min_by(w, struct(-v, id)) filter (where v is not null), "
            "min_by(w, struct(v, id)) filter (where v is not null), count_if(v > 90 and id >= 80) from bids "
            "group by k order by k"
        ).collect()
        ranks = spark.sql(
            "select k, rank, id from (select k, id, row_number() over (partition by k order by v desc, w, id) as rank "
            "from bids) where rank <= 4 order by k, rank"
        ).collect()
    finally:
        spark.catalog.dropTempView("bids")
    names = [*CONDITIONS, *(f"{name}_kinds" for name in CONDITIONS), "total", "w_of_most", "w_of_least", "dear"]
    assert sqlite_rows(db, f"SELECT k, {', '.join(names)} FROM reduced") == [tuple(row) for row in wanted]
    assert sqlite_rows(db, "SELECT k, rank, id FROM best") == [tuple(row) for row in ranks]
