"""over beside Spark's own window function, over several runs and a changed graph (design/0061)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, id BIGINT, v BIGINT, x DOUBLE, d DECIMAL(12, 3), w STRING"
NAMES = ("n", "values", "total", "mean", "sum_d", "least", "most", "first", "last", "some")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "k": "xyz"[n * 7 % 3],
            "t": (n ^ 3) // 2,
            "id": n,
            "v": None if n % 11 == 0 else n * 37 % 100 - 50,
            "x": n * 0.1,
            "d": None if n % 5 == 0 else n * 1.125,
            "w": None if n % 7 == 0 else "abcdef"[n % 6],
        }
        for n in range(first, last)
    ]


def pipeline(tmp_path: Path, size: int) -> hf.Pipeline:
    given = hf.read.files(str(tmp_path / "in"), format="json", schema=SCHEMA, timestamp="t", name="given")
    last = given | hf.over(
        rows=size, by="k", order="id", disorder=4, n=hf.count(), values=hf.count("v"), total=hf.sum("v"),
        mean=hf.mean("v"), sum_d=hf.sum("d"), least=hf.min("w"), most=hf.max("x"), first=hf.first("v"),
        last=hf.last("w"), some=hf.count(where="v > 0 and w rlike '^[a-c]'"), name="last_rows",
    )  # fmt: skip
    shown = last | hf.select("id", *NAMES[:4], "cast(sum_d as STRING) AS sum_d", *NAMES[5:], name="shown")
    return hf.Pipeline("p", shown | hf.write.sqlite(tmp_path / "out.db", table="last", name="out"))


def spark_rows(spark: SparkSession, size: int, count: int) -> dict[int, Any]:
    frame = ", ".join(
        f"{text} over w as {name}"
        for name, text in zip(
            NAMES,
            (
                "count(*)", "count(v)", "sum(v)", "avg(v)", "sum(d)", "min(w)", "max(x)", "first(v)", "last(w)",
                "count_if(v > 0 and w rlike '^[a-c]')",
            ),
            strict=True,
        )
    )  # fmt: skip
    frame = frame.replace("sum(d) over w as sum_d", "cast(sum(d) over w as string) as sum_d")
    found = spark.sql(
        f"select id, {frame} from given "
        f"window w as (partition by k order by t, id rows between {size - 1} preceding and current row)"
    ).collect()
    return {row["id"]: tuple(row)[1:] for row in found}


def test_rows_are_those_of_sparks_window_function_and_another_number_of_rows_fills_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, (first, last, size) in enumerate([(0, 40, 4), (40, 90, 4), (90, 130, 3), (130, 200, 6)]):
        arrive(tmp_path / "in", f"{number}.json", rows(first, last))
        pipeline(tmp_path, size).run(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark)
    found = {row[0]: row[1:] for row in sqlite_rows(tmp_path / "out.db", "SELECT * FROM last")}
    spark.read.schema(SCHEMA).json(str(tmp_path / "in")).createOrReplaceTempView("given")
    try:
        wanted = {size: spark_rows(spark, size, 200) for size in (3, 4, 6)}
    finally:
        spark.catalog.dropTempView("given")
    assert len(found) == len(sqlite_rows(tmp_path / "out.db", "SELECT * FROM last")) >= 180
    # Rows that wait at the end of a run leave in the next one, with its number of rows.
    for size, (first, last) in {4: (0, 80), 3: (98, 120), 6: (160, 180)}.items():
        assert {n: found[n] for n in range(first, last)} == {n: wanted[size][n] for n in range(first, last)}
    counts = [found[n][0] for n in range(124, 180)]
    assert (min(counts), max(counts)) == (3, 6)
