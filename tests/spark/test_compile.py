"""Several sinks, one plan (design/0001, section 7): what is shared is computed once, and rows go where they belong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Node, Stream
from holdfast.ports import REJECT_COLUMN
from holdfast.spark.apply import queried, transformed, unchanged
from holdfast.spark.compile import compile_pipeline
from tests.graphs import paper as to
from tests.graphs import source

pytestmark = pytest.mark.spark

WAYS: dict[str, Any] = {"map": transformed, "sql": queried}
NUMBERS = pa.schema([("n", pa.int64()), ("word", pa.string())])


def given(name: str, rejects: bool = False) -> Stream:
    return source(name, schema=NUMBERS, rejects=rejects)


def rows_of(spark: SparkSession, pipeline: hf.Pipeline, **data: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Compile over batch frames and return each sink's rows, sorted."""

    def read(node: Node) -> DataFrame:
        schema = "n long, word string"
        if node.spec.rejects:
            schema += f", {REJECT_COLUMN} struct<reason: string, raw: string, position: string>"
        return spark.createDataFrame(data[node.name], schema)

    compiled = compile_pipeline(pipeline, read, "test")
    tables = compiled.routes.split_table(compiled.frame.toArrow())
    return {
        name: sorted(map(tuple, (row.values() for row in table.to_pylist())), key=repr)
        for name, table in tables.items()
    }


TEN = [(n, f"w{n}") for n in range(10)]


def test_one_branch_is_compiled_plainly(spark: SparkSession) -> None:
    pipeline = hf.Pipeline("p", given("a") | hf.filter("n > 7") | hf.select("n", twice="n * 2") | to("out"))
    assert rows_of(spark, pipeline, a=TEN) == {"out": [(8, 16), (9, 18)]}


def test_two_sources_and_two_sinks_share_one_frame(spark: SparkSession) -> None:
    pipeline = hf.Pipeline("p", given("a") | to("x"), given("b") | hf.select("word") | to("y"))
    assert rows_of(spark, pipeline, a=TEN[:2], b=TEN[:1]) == {"x": [(0, "w0"), (1, "w1")], "y": [("w0",)]}


def test_every_branch_of_a_fan_out_gets_its_rows(spark: SparkSession) -> None:
    a = given("a") | hf.select("n", "word", half="n / 2")
    low = a | hf.filter("n < 3") | hf.map(lambda df: df.withColumn("m", F.col("n") + 1).filter("m > 1").select("m"))
    pipeline = hf.Pipeline(
        "p",
        a | hf.filter("n > 7") | hf.select("n") | to("high"),
        low | to("low"),
        a | hf.sql("select word as w, half from input where n = 4") | to("four"),
    )
    assert rows_of(spark, pipeline, a=TEN) == {"high": [(8,), (9,)], "low": [(2,), (3,)], "four": [("w4", 2.0)]}


def test_a_branch_is_not_evaluated_on_the_rows_of_another(spark: SparkSession) -> None:
    a = given("a")
    inverse = a | hf.filter("n <> 0") | hf.select(inverse="1 / n")  # ANSI: 1/0 would fail
    pipeline = hf.Pipeline("p", inverse | to("inverse"), a | hf.filter("n = 0") | to("zero"))
    assert rows_of(spark, pipeline, a=TEN[:3]) == {"inverse": [(0.5,), (1.0,)], "zero": [(0, "w0")]}


def test_fan_outs_nest_and_unions_bring_branches_together(spark: SparkSession) -> None:
    a, b = given("a"), given("b")
    parts = a | hf.split(low="n < 3", otherwise="high")
    middle = parts.high | hf.select("n", word="upper(word)")
    both = hf.union(parts.low, middle, b, name="both")
    pipeline = hf.Pipeline(
        "p",
        both | hf.filter("n <> 1") | to("everything"),
        middle | hf.filter("n = 9") | to("nine"),
        both | hf.select(n="-n") | to("negative"),
    )
    assert rows_of(spark, pipeline, a=[TEN[1], TEN[2], TEN[8], TEN[9]], b=[(5, "five")]) == {
        "everything": sorted([(2, "w2"), (8, "W8"), (9, "W9"), (5, "five")], key=repr),
        "nine": [(9, "W9")],
        "negative": sorted([(-1,), (-2,), (-8,), (-9,), (-5,)], key=repr),
    }


def test_a_diamond_into_one_sink_keeps_every_row(spark: SparkSession) -> None:
    a = given("a")
    diamond = hf.union(a | hf.filter("n < 2"), a | hf.filter("n > 0"), name="diamond")
    pipeline = hf.Pipeline("p", diamond | to("out"))
    assert rows_of(spark, pipeline, a=TEN[:3]) == {"out": [(0, "w0"), (1, "w1"), (1, "w1"), (2, "w2")]}


def test_a_random_value_of_the_shared_prefix_is_the_same_for_every_sink(spark: SparkSession) -> None:
    def draw(frame: DataFrame) -> DataFrame:
        return frame.withColumn("r", F.udf(lambda: random.random(), "double")())

    shared = given("a") | hf.map(draw, name="draw")
    pipeline = hf.Pipeline(
        "p", shared | hf.select("n", "r") | to("x"), shared | hf.filter("n >= 0") | hf.select("n", "r") | to("y")
    )
    found = rows_of(spark, pipeline, a=TEN)
    assert found["x"] == found["y"]
    assert len({value for _, value in found["x"]}) == 10


def test_the_shared_prefix_stands_once_in_the_plan(spark: SparkSession) -> None:
    shared = given("a") | hf.map(lambda df: df.withColumn("r", F.rand()), name="draw")
    pipeline = hf.Pipeline("p", shared | to("x"), shared | hf.filter("n > 3") | to("y"))
    compiled = compile_pipeline(pipeline, lambda node: spark.createDataFrame(TEN, "n long, word string"), "test")
    plan = compiled.frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("rand(") == 1
    assert plan.count("LogicalRDD") + plan.count("LocalRelation") == 1


def test_columns_that_cannot_be_null_go_to_several_sinks(spark: SparkSession) -> None:
    """Where a row is another sink's, its struct is null: its fields must then be allowed to be."""
    a, b = given("a"), given("b")
    known = a | hf.select("n", known="n IS NOT NULL", nested="named_struct('inner', named_struct('one', 1))")
    pipeline = hf.Pipeline("p", known | to("x"), a | hf.select(one="1") | to("y"), b | hf.select(two="2") | to("z"))
    found = rows_of(spark, pipeline, a=TEN[:1], b=TEN[:1])
    assert found == {"x": [(0, True, {"inner": {"one": 1}})], "y": [(1,)], "z": [(2,)]}


def test_map_batches_behind_a_fan_out_touches_its_own_branch_only(spark: SparkSession) -> None:
    def shout(batch: pa.RecordBatch, mark: str) -> pa.Table:
        assert batch.schema.names == ["n", "word"]
        return pa.table({"loud": [word.upper() + mark for word in batch.column("word").to_pylist()] * 2})

    a = given("a")
    pipeline = hf.Pipeline(
        "p",
        a | hf.filter("n < 2") | hf.map_batches(shout, "loud string", setup=lambda: "!", name="shout") | to("loud"),
        a | to("all"),
    )
    found = rows_of(spark, pipeline, a=TEN[:3])
    assert found == {"loud": [("W0!",), ("W0!",), ("W1!",), ("W1!",)], "all": [(0, "w0"), (1, "w1"), (2, "w2")]}


def test_rejects_leave_the_main_stream_whether_they_are_used_or_not(spark: SparkSession) -> None:
    bad = (None, None, ("no number", "x", "f:2"))
    data = [(1, "w1", None), bad]
    a = given("a", rejects=True)
    assert rows_of(spark, hf.Pipeline("p", a | to("out")), a=data) == {"out": [(1, "w1")]}
    a = given("a", rejects=True)
    both = rows_of(spark, hf.Pipeline("p", a | to("out"), a.rejects | to("bad")), a=data)
    assert both == {"out": [(1, "w1")], "bad": [("no number", "x", "f:2")]}


def add_one(n):  # Spark looks at annotations
    if n is None:
        raise ValueError("a row of another branch")
    return n + 1


def tenfold(numbers: pd.Series) -> pd.Series:
    assert numbers.notnull().all()
    return numbers * 10


def hundredfold(numbers: pa.Array) -> pa.Array:
    assert numbers.null_count == 0
    return pc.multiply(numbers, 100)


def over_series(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """Give everything at the end."""
    yield pd.concat([10 * batch for batch in batches])


def over_pairs(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.DataFrame]:
    for one, other in batches:
        yield pd.DataFrame({"n": one, "s": one + other})


def over_arrays(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield from (pc.multiply(batch.slice(row, 1), 100) for row in range(len(batch)))


def names(df: Any, key: str = "id") -> Any:
    """Return a table of names: one of 0, two of 1, none of 2."""
    rows = [(0, "id0"), (1, "id1"), (1, "id1 too")]
    return df.sparkSession.createDataFrame(rows, f"{key} long, name string")


BEHIND_A_FAN_OUT: dict[str, tuple[Any, list[Any]]] = {
    "udf": (lambda df: df.select((F.udf(add_one, "long")("n") * 2).alias("x")), [2, 4, 6]),
    "udf of udf": (lambda df: df.select(F.udf(add_one, "long")(F.udf(add_one, "long")("n"))), [2, 3, 4]),
    "udf in a filter": (lambda df: df.select("n").filter(F.udf(add_one, "long")("n") > 1), [1, 2]),
    "named": (lambda df: df.select(F.udf(lambda a, b: a - b, "long")(b=df.n, a=F.lit(5))), [5, 4, 3]),
    "row by row in Arrow": (lambda df: df.select(F.udf(add_one, "long", useArrow=True)("n")), [1, 2, 3]),
    "pandas": (lambda df: df.select(F.pandas_udf(tenfold, "long")("n")), [0, 10, 20]),
    "arrow": (lambda df: df.select(F.arrow_udf(hundredfold, "long")("n")), [0, 100, 200]),
    "pandas iterator": (lambda df: df.select(F.pandas_udf(over_series, "long")("n")), [0, 10, 20]),
    "pandas iterator of pairs": (lambda df: df.select(F.pandas_udf(over_pairs, "n long, s long")("n", "n").alias("p"))
                                 .select("p.s"), [0, 2, 4]),
    "arrow iterator": (lambda df: df.select(F.arrow_udf(over_arrays, "long")("n")), [0, 100, 200]),
    "explode": (lambda df: df.select(F.explode(F.sequence(F.lit(1), "n"))).filter("col > 0"), [1, 1, 1, 2]),
    "explode of none": (lambda df: df.select(F.explode(F.expr("if(n = 1, array(n, n), null)"))), [1, 1]),
    "explode outer": (lambda df: df.select(F.explode_outer(F.expr("if(n = 1, array(n, n), array())"))),
                      [None, 1, 1, None]),
    "posexplode": (lambda df: df.select("n", F.posexplode(F.array("n", "n"))).selectExpr("pos + col"),
                   [0, 1, 1, 2, 2, 3]),
    "a map": (lambda df: df.select(F.explode(F.create_map(F.lit("a"), "n"))).select("value"), [0, 1, 2]),
    "inline": (lambda df: df.selectExpr("inline(array(struct(n, n as m), struct(n, n + 1 as m)))").select("m"),
               [0, 1, 1, 2, 2, 3]),
    "inner join": (lambda df: df.join(names(df, "n"), "n").select("name"), ["id0", "id1", "id1 too"]),
    "left join": (lambda df: df.join(names(df), df.n == F.col("id"), "left").select("n", "name").select("name"),
                  ["id0", "id1", "id1 too", None]),
    "joined to a table": (lambda df: names(df).join(df, df.n == F.col("id"), "right").select("n"), [0, 1, 1, 2]),
    "anti join": (lambda df: df.join(names(df, "n"), "n", "left_anti").select("n"), [2]),
    "cross join": (lambda df: df.crossJoin(names(df).select("name")).filter("n = 2").select("name"),
                   ["id0", "id1", "id1 too"]),
    "joined twice": (lambda df: df.join(names(df, "n"), "n").join(names(df, "n").select("n"), "n").select("n"),
                     [0, 1, 1, 1, 1]),
    "udf of joined": (lambda df: df.join(names(df), F.udf(add_one, "long")("n") == F.col("id"))
                      .select(F.udf(add_one, "long")("id")), [2, 2]),
    "common table expression": (lambda df: df.sparkSession.sql("with w as (select n + 1 as m from {df}) "
                                                               "select m from w where m > 1", df=df), [2, 3]),
    "udf of exploded": (lambda df: df.select(F.explode(F.array("n", "n")).alias("e"))
                        .select(F.udf(add_one, "long")("e")), [1, 1, 2, 2, 3, 3]),
}  # fmt: skip
"""What stands in one branch of several -> what it gives of 0, 1 and 2."""


@pytest.mark.parametrize("name", BEHIND_A_FAN_OUT)
def test_functions_and_generators_behind_a_fan_out_touch_their_own_branch_only(spark: SparkSession, name: str) -> None:
    a = given("a")
    fn, wanted = BEHIND_A_FAN_OUT[name]
    pipeline = hf.Pipeline("p", a | hf.map(fn, name="one") | to("x"), a | to("y"))
    found = rows_of(spark, pipeline, a=TEN[:3])
    assert found["x"] == sorted([(value,) for value in wanted], key=repr)
    assert found["y"] == [tuple(row) for row in TEN[:3]]


def test_a_statement_with_a_common_table_expression_may_stand_behind_a_fan_out(spark: SparkSession) -> None:
    a = given("a")
    view = "lateral view explode(array(m, -m)) as e"
    query = f"with w as (select n + 1 as m from input where n > 0) select e from w {view}"
    pipeline = hf.Pipeline("p", a | hf.sql(query, name="one") | to("x"), a | to("y"))
    found = rows_of(spark, pipeline, a=TEN[:3])
    assert found == {"x": [(-2,), (-3,), (2,), (3,)], "y": [tuple(row) for row in TEN[:3]]}


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (lambda: hf.map(lambda df: df.mapInPandas(lambda given: given, df.schema), name="burst"), "MapInPandas"),
        (lambda: hf.map(lambda df: df.dropDuplicates(["n"]), name="once"), "Deduplicate"),
    ],
)
def test_an_operator_that_cannot_share_a_plan_is_refused_with_a_cure(
    spark: SparkSession, operator: Any, reason: str
) -> None:
    a = given("a")
    pipeline = hf.Pipeline("p", a | operator() | to("x"), a | to("y"))
    with pytest.raises(InvalidPipeline, match=reason) as raised:
        rows_of(spark, pipeline, a=TEN)
    assert "map_batches" in raised.value.do


TWICE = "with w as (select value as n from input) select n from w where n > 3 union all select n from w"


@pytest.mark.parametrize("operator", [hf.map(lambda df: df.union(df), name="twice"), hf.sql(TWICE, name="twice")])
def test_an_operator_that_reads_its_stream_twice_is_refused_with_a_cure(spark: SparkSession, operator: Any) -> None:
    """Spark would refuse the query, at the start, for two sources of one name."""
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidPipeline, match=r"(map|sql) 'twice', built at .*, reads its input more than once") as it:
        compile_pipeline(hf.Pipeline("p", given("a") | operator | to("x")), lambda node: stream, "test")
    assert "hf.union" in it.value.do


def test_an_expression_that_spark_cannot_resolve_names_node_and_line(spark: SparkSession) -> None:
    pipeline = hf.Pipeline("p", given("a") | hf.map(lambda df: df.select("nothing"), name="wrong") | to("x"))
    with pytest.raises(InvalidPipeline, match=r"map 'wrong', built at .*test_compile.py:\d+"):
        rows_of(spark, pipeline, a=TEN)


def test_two_columns_of_one_name_are_refused(spark: SparkSession) -> None:
    a = given("a")
    twice = a | hf.map(lambda df: df.select("n", (df.n + 1).alias("N")), name="twice")
    for pipeline in (hf.Pipeline("p", twice | to("x")), hf.Pipeline("q", twice | to("x"), a | to("y"))):
        with pytest.raises(InvalidPipeline, match="two columns of the name 'n'"):
            rows_of(spark, pipeline, a=TEN)


@pytest.mark.parametrize(
    ("through", "kept", "beyond"),
    [
        (hf.map(lambda df: df.filter("n > 1").withColumn("more", F.col("n") + 1)), {"n": "n", "word": "word"}, ""),
        (hf.map(lambda df: df.select(F.col("n").alias("m"), (F.col("n") + 0).alias("n"))), {"m": "n"}, ""),
        (hf.map(lambda df: df.select("n", F.explode(F.array("word")).alias("word"))), {"n": "n"}, ""),
        (hf.map(lambda df: df.withColumn("word", F.udf(str.upper)("word"))), {"n": "n"}, ""),
        (hf.sql("select m, upper(word) as word from (select n as m, word from input)"), {"m": "n"}, ""),
        (hf.sql("with w as (select n as m from input) select m from w"), {"m": "n"}, ""),
        (hf.sql("select n as m, word from input where n > 1"), {"m": "n", "word": "word"}, ""),
        (hf.map(lambda df: df.join(names(df, "n"), "n", "left")), {"n": "n", "word": "word"}, ""),
        (hf.map(lambda df: df.union(df.withColumn("n", F.col("n") - 1))), {}, "Union"),
    ],
)
def test_what_an_operator_leaves_as_it_was_is_read_from_its_plan(
    spark: SparkSession, through: Any, kept: dict[str, str], beyond: str
) -> None:
    """By identity: a union has the identities of its first branch."""
    operator = (given("a") | through).node
    frame = spark.createDataFrame([(1, "a")], "n long, word string")
    made = WAYS[operator.kind](operator.spec, frame)
    found = unchanged(frame, made)
    assert (dict(found.columns), found.beyond) == (kept, beyond)
    made.collect()  # and it is a plan that runs
