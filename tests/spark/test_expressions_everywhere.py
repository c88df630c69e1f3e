"""Every expression of Spark in every place of a pipeline, and plain Spark gives the same rows (design/0034)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.spark.compile import compile_pipeline
from tests.graphs import paper as to
from tests.graphs import source
from tests.spark.counting import counting
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

# Each reads the columns k and n, and gives one column, v, of numbers or text.
SELECTS = {
    "explode": "explode(array(n, null, 7)) as v",
    "explode_none": "explode(if(n = 1, array(n), null)) as v",
    "explode_outer": "explode_outer(if(n = 1, array(n, 5), array())) as v",
    "stack": "stack(3, n, n + 1, null) as v",
    "json_tuple": "json_tuple(concat('{\"a\": ', n, '}'), 'a') as v",
    "higher_order": "aggregate(filter(array(n, 2, 3), x -> x > 1), 0L, (acc, x) -> acc + x) as v",
    "subquery": "(select max(id) from range(3)) + n as v",
    "regexp": "array_join(regexp_extract_all(concat(k, n), '([a-z0-9])', 1), '-') as v",
    "varying": "if(rand() < 2 and length(uuid()) > 0 and now() > timestamp'2020-01-01', 1, 0) as v",
}
STATEMENTS = {
    "posexplode_outer": "select i as v from input lateral view outer posexplode(if(n = 1, array(n), array())) as i, x",
    "inline_outer": "select p as v from input lateral view outer inline(if(n = 1, array(struct(n)), null)) as p",
    "uneven_stack": "select coalesce(q, -1) as v from input lateral view stack(2, n, n, n) as p, q",
    "two_views": "select x + y as v from input lateral view explode(array(n, 1)) as x"
                 " lateral view explode(array(x)) as y",
    "common_table": "with t as (select explode(array(n, 9)) as x from input) select x + 1 as v from t where x > 1",
    "pipe": "from input |> where n > 1 |> select n * 2 as v",
}  # fmt: skip
FILTERS = {
    "in_range": "n in (select id from range(2))",
    "exists": "exists(array(n), x -> x = 2)",
}
BEHIND_STATE = ("explode", "explode_outer", "stack", "json_tuple", "higher_order")
KEYS = [("a", 2), ("b", 1), ("c", 3)]


def branches(stream: hf.Stream) -> dict[str, hf.Stream]:
    """Return the rows of each expression: one column, v."""
    selects = {name: stream | hf.select(item, name=name) for name, item in SELECTS.items()}
    statements = {f"sql_{name}": stream | hf.sql(query, name=f"sql_{name}") for name, query in STATEMENTS.items()}
    filters = {
        f"filter_{name}": stream | hf.filter(condition, name=f"filter_{name}") | hf.select("n as v")
        for name, condition in FILTERS.items()
    }
    return {**selects, **statements, **filters}


def wanted(spark: SparkSession) -> dict[str, list[Any]]:
    """Return what plain Spark gives."""
    frame = spark.createDataFrame(KEYS, "k string, n long")
    frame.createOrReplaceTempView("input")
    try:
        frames = {
            **{name: frame.selectExpr(item) for name, item in SELECTS.items()},
            **{f"sql_{name}": spark.sql(query) for name, query in STATEMENTS.items()},
            **{f"filter_{name}": frame.filter(condition).selectExpr("n as v") for name, condition in FILTERS.items()},
        }
        return {name: sorted((row.v for row in frame.collect()), key=repr) for name, frame in frames.items()}
    finally:
        spark.catalog.dropTempView("input")


def test_behind_a_fan_out_and_between_operators_with_state_spark_s_expressions_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = wanted(spark)
    a = source("a", schema=pa.schema([("k", pa.string()), ("n", pa.int64())]))
    made = list(branches(a).items())
    found = {}
    for few in (made[place::4] for place in range(4)):  # the plan of all at once is large
        pipeline = hf.Pipeline("p", *[stream | to(f"{name}_out") for name, stream in few])
        compiled = compile_pipeline(pipeline, lambda node: spark.createDataFrame(KEYS, "k string, n long"), "test")
        tables = compiled.routes.split_table(compiled.frame.toArrow())
        found |= {name: sorted(tables[f"{name}_out"]["v"].to_pylist(), key=repr) for name, _ in few}
    assert found == expected

    rows = [{"k": k, "v": 1} for k, n in KEYS for _ in range(n)]
    first = counting(hf.read.rows([rows], schema="k STRING, v BIGINT", name="given"), name="first")
    db = tmp_path / "out.db"
    behind = {name: first | hf.select(SELECTS[name], name=name) for name in BEHIND_STATE}
    united = hf.union(
        *[rows | hf.select(f"'{name}' as name", "cast(v as string) as v") for name, rows in behind.items()]
    )
    keyed = first | hf.select("k", "explode(array(n, n)) as n", name="twice")
    again = counting(keyed, name="second") | hf.write.sqlite(db, table="second", name="second_out")
    pipeline = hf.Pipeline("q", united | hf.write.sqlite(db, table="united", name="united_out"), again)
    pipeline.run(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark)
    kept = sqlite_rows(db, "SELECT name, coalesce(v, 'null') FROM united")
    as_text = [(name, "null" if v is None else str(v)) for name in BEHIND_STATE for v in expected[name]]
    assert kept == sorted(as_text)
    assert sqlite_rows(db, "SELECT k, n FROM second") == [(k, 2) for k, _ in KEYS]


@pytest.mark.parametrize("item", ["sum(n) as v", "row_number() over (order by n) as v", "count(distinct n) as v"])
def test_what_needs_several_rows_is_refused_while_the_pipeline_is_built(item: str) -> None:
    a = source("a", schema=pa.schema([("k", pa.string()), ("n", pa.int64())]))
    for build in (lambda: a | hf.select(item), lambda: a | hf.sql(f"select {item} from input")):
        with pytest.raises(InvalidPipeline, match="several rows") as raised:
            build()
        assert "compute each row by itself" in raised.value.do
