"""Whole pipelines as an Arrow program against Spark's own plan: rows, schemas and errors, behind splits and unions."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import BadRow
from holdfast.graph.nodes import Node, Stream
from holdfast.plan.program_build import build_program
from holdfast.spark.compile import as_spark_has_it, compile_pipeline
from holdfast.spark.launch.session import run_session
from holdfast.spark.private import spark_schema
from tests.graphs import paper as to
from tests.graphs import source

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("i", pa.int32()),
        pa.field("j", pa.int32()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("b", pa.int64()),
        pa.field("d", pa.float64()),
        pa.field("x", pa.string()),
        pa.field("o", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("Odd `na.me", pa.int64()),
        pa.field("st", pa.struct([pa.field("a", pa.int32(), nullable=False)]), nullable=False),
        pa.field("tags", pa.list_(pa.field("element", pa.float64(), nullable=False))),
    ]
)
VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 7, 2**31 - 1, -(2**31)],
    "j": [None, 0, 2, -3],
    "n": [0, 1, 2, -1],
    "b": [None, 0, 1, 2**63 - 1, -(2**63)],
    "d": [None, 0.0, -0.0, math.nan, math.inf, 1.5],
    "x": [None, "", "a", "b", "é", "\U0001f600"],
    "o": [None, True, False],
    "at": [None, dt.datetime(1960, 1, 1), dt.datetime(2024, 6, 1), dt.datetime(2024, 3, 31, 2, 30, 0, 1)],
    "local": [None, dt.datetime(1960, 1, 1), dt.datetime(2024, 6, 1), dt.datetime(2024, 3, 31, 2, 30, 0, 1)],
    "Odd `na.me": [None, 1, 2],
    "st": [{"a": 1}, {"a": 2}],
    "tags": [None, [], [math.nan, -0.0]],
}
FAULTS = ("REMAINDER_BY_ZERO", "DIVIDE_BY_ZERO", "ARITHMETIC_OVERFLOW")


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = run_session(spark, 2)
    # Rows that are there when the plan is made would be computed by the optimiser, unlike those of a stream.
    local = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    session.conf.set("spark.sql.optimizer.excludedRules", local)
    spark.sparkContext.setLogLevel("OFF")  # wanted failures
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def batch(seed: int, count: int) -> pa.RecordBatch:
    chance = random.Random(seed)
    rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(count)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


Found = dict[str, tuple[pa.Schema, list[str]]] | str


def in_arrow(pipeline: hf.Pipeline, *batches: pa.RecordBatch) -> Found:
    program = build_program(pipeline, as_spark_has_it, uuid.uuid4().hex)
    assert program is not None, "it is left to Spark: there is nothing to compare"
    parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in program.routes.sinks}
    try:
        for rows in batches:
            for name, part in program.run("rows", rows):
                parts[name].append(part)
    except BadRow as error:
        return next(fault for fault in FAULTS if fault in error.what)
    schemas = dict(zip(program.routes.sinks, program.routes.schemas, strict=True))
    return {name: _shown(pa.Table.from_batches(parts[name], schemas[name])) for name in parts}


def through_spark(session: SparkSession, pipeline: hf.Pipeline, rows: pa.RecordBatch) -> Found:
    def read(node: Node) -> DataFrame:
        return session.createDataFrame(pa.Table.from_batches([rows]), schema=spark_schema(SCHEMA))

    compiled = compile_pipeline(pipeline, read, uuid.uuid4().hex)
    try:
        table = compiled.frame.toArrow()
    except PySparkException as error:
        return next(fault for fault in FAULTS if fault in str(error))
    return {name: _shown(part) for name, part in compiled.routes.split_table(table).items()}


def _shown(table: pa.Table) -> tuple[pa.Schema, list[str]]:
    table.validate(full=True)
    return table.schema, sorted(map(repr, table.to_pylist()))


def backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(["n", "i"])


def _parts(stream: Stream, **predicates: str) -> list[Any]:
    parts = stream | hf.split(**predicates, otherwise="rest", name="parts")
    return [parts[part] | to(part) for part in (*predicates, "rest")]


def _diamond(stream: Stream) -> Stream:
    low, rest = stream | hf.filter("n <= 0", name="low"), stream | hf.filter("n > 0", name="rest")
    return hf.union(low, rest, name="both")


PIPELINES: dict[str, Callable[[Stream], Any]] = {
    "as it is": lambda g: g | to("a"),
    "to two sinks": lambda g: [g | to("a"), g | hf.filter("o") | to("b")],
    "filter, then compute": lambda g: g | hf.filter("n <> 0") | hf.select("*", r="i % n", q="b / n") | to("a"),
    "compute": lambda g: g | hf.select(r="i % n") | to("a"),
    "filter that raises": lambda g: g | hf.filter("i % n = 1") | to("a"),
    "filter that raises, in a branch": lambda g: [
        g | hf.filter("i % n = 1") | to("a"),
        g | hf.filter("o") | to("b"),
    ],
    "compute in a branch": lambda g: [
        g | hf.filter("n <> 0", name="f") | hf.select(r="i % n") | to("a"),
        g | hf.filter("o") | to("b"),
    ],
    "compute, then a function, then filter": lambda g: (
        g | hf.select("i", "n", r="i % n") | hf.map_batches(backwards, "i INT, n INT") | hf.filter("n <> 0") | to("a")
    ),
    "a function in a branch": lambda g: [
        g | hf.map_batches(backwards, "i INT, n INT NOT NULL") | to("a"),
        g | to("b"),
    ],
    "clips": lambda g: [
        g | hf.clip("1970-01-01", "2024-03-31T02:30:00.000001", name="c1") | to("a"),
        g | hf.clip("2024-03-31T02:30", timestamp="local", name="c2") | to("b"),
    ],
    "clip by number": lambda g: g | hf.clip(-5, 2**63 - 1, timestamp="b") | to("a"),
    "union in another order": lambda g: (
        hf.union(g | hf.select("n", "x", "st", name="one"), g | hf.select("st", x="x", n="i", name="two")) | to("a")
    ),
    "diamond": lambda g: _diamond(g) | hf.select("*", k="coalesce(j, n)") | to("a"),
    "names": lambda g: (
        g | hf.filter("`odd ``na.me` > 1") | hf.select("`Odd ``na.me`", "I", "`X` AS `a.b`", **{"c`d e": "J"}) | to("a")
    ),
    "split of integers": lambda g: _parts(g, a="i > j", b="i <=> n OR j IN (0, NULL)"),
    "split of doubles": lambda g: _parts(g, a="d > 1", b="d <= 0", c="NOT d = d"),
    "split of texts and truths": lambda g: _parts(g, a="o", b="NOT o AND x >= 'b'", c="x IS NULL", e="length(x) = 1"),
    "split with a choice": lambda g: _parts(g, a="CASE WHEN o THEN i > 0 WHEN x = 'a' THEN NULL ELSE b < 0 END"),
    "split of times": lambda g: _parts(g, a="at BETWEEN at AND at", b="local IS NOT NULL"),
    "split of a computed column": lambda g: _parts(
        g | hf.select("n", k="if(o, i, NULL)", name="before"), a="k > 0", b="k = n"
    ),
    "one part of a split": lambda g: (
        (g | hf.filter("n > 0") | hf.split(a="i > 1", b="j > 1", otherwise="c", name="p")).c | to("c")
    ),
    "split behind a split": lambda g: _parts(
        (g | hf.split(a="i > 0", otherwise="b", name="first")).b, c="d > 0", e="o IS NULL"
    ),
}


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_a_pipeline_gives_the_rows_schemas_and_errors_that_spark_gives(
    session: SparkSession, build: Callable[[Stream], Any]
) -> None:
    sinks = build(source("rows", schema=SCHEMA, timestamp="at"))
    pipeline = hf.Pipeline("p", *(sinks if isinstance(sinks, list) else [sinks]))
    many, one, none = batch(1, 200), batch(2, 1), batch(3, 0)
    found = in_arrow(pipeline, none, one, many)
    assert found == through_spark(session, pipeline, pa.concat_batches([none, one, many]))
    if isinstance(found, str):  # the values are those of a batch that raises nothing
        assert in_arrow(pipeline, one) == through_spark(session, pipeline, one)
