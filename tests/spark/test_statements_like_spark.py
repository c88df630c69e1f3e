"""Statements behind state, in Arrow and through Spark's plan: rows, types, errors and what is left unchanged."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import holdfast as hf
from holdfast.errors import BadRow
from holdfast.graph.nodes import Node, Stream
from holdfast.plan.program import Program
from holdfast.plan.program_build import Builder
from holdfast.plan.routes import Routes
from holdfast.plan.stages import End, SparkPart
from holdfast.spark.compile import as_spark_has_it, compile_pipeline
from holdfast.spark.launch.session import run_session
from holdfast.spark.state.subplan import CompiledSubplan
from tests.graphs import paper as to
from tests.graphs import source

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("t", pa.int8()),
        pa.field("i", pa.int32()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64()),
        pa.field("e", pa.float64()),
        pa.field("x", pa.string()),
        pa.field("o", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("money", pa.decimal128(10, 2)),
        pa.field("raw", pa.binary()),
        pa.field("Odd `na.me", pa.int64()),
        pa.field("st", pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])),
        pa.field("tags", pa.list_(pa.field("element", pa.float64(), nullable=False))),
    ]
)
TIMES = [None, dt.datetime(1, 1, 1), dt.datetime(1960, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 3, 31, 2, 30)]
FLOATS = [None, 0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 1.5, 16777216.0]
VALUES: dict[str, list[Any]] = {
    "k": ["", "a", "b", "é", "\U0001f600"],
    "t": [None, -128, -1, 0, 1, 127],
    "i": [None, -(2**31), -3, -1, 0, 1, 7, 2**31 - 1],
    "n": [-(2**31), -1, 0, 1, 2, 2**31 - 1],
    "v": [None, -(2**63), -7, -1, 0, 1, 1000, 2**53 + 1, 2**63 - 1],
    "f": FLOATS,
    "d": [*FLOATS, 5e-324, 1.7976931348623157e308],
    "e": FLOATS,
    "x": [None, "", "a", "A", "a b", "it's", "ß", "e\u0301", "\uffff", "\U0001f600"],
    "o": [None, True, False],
    "at": TIMES,
    "local": TIMES,
    "day": [None, dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "money": [None, Decimal("-0.01"), Decimal("99999999.99")],
    "raw": [None, b"", b"\x00\xff"],
    "Odd `na.me": [None, 1, 2],
    "st": [None, {"a": 1, "b": None}, {"a": -1, "b": "x"}],
    "tags": [None, [], [math.nan, -0.0]],
}
TAME: dict[str, list[Any]] = {
    "t": [None, -3, 2],
    "i": [None, -3, 2],
    "n": [-1, 2, 3],
    "v": [None, -7, 1000],
    "e": [None, 0.5, math.nan],
}
FAULTS = ("REMAINDER_BY_ZERO", "DIVIDE_BY_ZERO", "ARITHMETIC_OVERFLOW")

STATEMENTS = [
    "select * from input",
    "select * from input where o",
    "SELECT K, At FROM Input WHERE NOT O",
    "select * except (v, st), coalesce(v, 0) as v, st.a as a from input where st.a > 0 or st.b is null",
    "select k, `odd ``na.me` as `a.b`, x as `from`, day as `sele``ct` from input where `Odd ``na.me` > 1",
    "select tags, st, raw, money from input where money is not null",
    "select at as one, at as other, local, day from input where at <= at and day is not null",
    "select k from input where d > e or d <=> e",
    "select k, d < e as a, d = e as b, d <=> e as c, d >= 0.0 as g, f = 0.1 as h, f > d as l from input",
    "select d / 4 as q, f + 1.5 as r, d * 2 - e as s, -f as w from input where e <> 0",
    "select d > 1.5 as a, v = i as b, t < v as c, x >= 'a' as g, o > false as h, at < at as l from input",
    "select i in (1, NULL, 7) as a, x not in ('', 'ß') as b, i between -3 and n as c from input where i is not null",
    "select case when o then i when x = 'a' then n end as a, if(o, x, 'none') as b, coalesce(i, v) as c from input",
    "select length(x) as l, concat(k, x, 'its') as c, concat(k, '') = k as s from input where length(x) % 2 = 1",
    "select n, n as `N 2`, 1 as one, 'a' as a, 1.5D as d, 10L as b, true as o from input where 1 = 1",
    "select cast(i as bigint) + 1 as a, cast(t as double) as b, cast(i as bigint) * cast(n as bigint) as c from input",
    "select k, v, x as k2 from input where x = 'from input where' or k = 'b'",
    "select i, i as j, (i > 0) = (n > 0) as same from input where (i > 0) = (n > 0)",
]
"""None of them raises."""

RAISING = {
    "select k, v * 2 + n % 1000 as v from input": "ARITHMETIC_OVERFLOW",
    "select v % n as r from input": "REMAINDER_BY_ZERO",
    "select v % n as r from input where n <> 0": "",
    "select v % n as r from input where v % n = 1": "REMAINDER_BY_ZERO",
    "select i / n as q from input": "DIVIDE_BY_ZERO",
    "select d / e as q from input": "DIVIDE_BY_ZERO",
    "select -i as m from input": "ARITHMETIC_OVERFLOW",
    "select t + t as m, x from input": "ARITHMETIC_OVERFLOW",
    "select k from input where v - 1 > 0": "ARITHMETIC_OVERFLOW",
}
"""Rows of every kind have this error; without them, all is well."""


def rows(seed: int, count: int, *, is_tame: bool) -> pa.Table:
    chance = random.Random(seed)
    values = VALUES | TAME if is_tame else VALUES
    given = [{name: chance.choice(values[name]) for name in SCHEMA.names} for _ in range(count)]
    return pa.Table.from_pylist(given, SCHEMA)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = run_session(spark, 2)
    # Rows that are there when the plan is made would be computed by the optimiser, unlike those of a stream.
    local = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    session.conf.set("spark.sql.optimizer.excludedRules", local)
    spark.sparkContext.setLogLevel("OFF")  # wanted failures
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def graph(queries: Sequence[str]) -> tuple[Node, list[Stream]]:
    """Return the rows, and every statement over them: each a branch."""
    head = source("rows", schema=SCHEMA, timestamp="at")
    return head.node, [head | hf.sql(query, name=f"s{number}") for number, query in enumerate(queries)]


Found = dict[str, list[str]] | str


def in_arrow(queries: Sequence[str], given: pa.Table) -> tuple[Builder, Routes, Found]:
    head, statements = graph(queries)
    builder = Builder(as_spark_has_it, "", is_behind_state=True)
    builder.head(head, SCHEMA)
    left = [query for query, stream in zip(queries, statements, strict=True) if not builder.add(stream.node)]
    assert not left, "they are left to Spark: there is nothing to compare"
    ends = tuple(builder.number_of(stream.node) for stream in statements)
    routes = Routes(tuple(stream.node.name for stream in statements), tuple(builder.steps[end].schema for end in ends))
    program = Program({"rows": SCHEMA}, tuple(builder.steps), ends, routes, False)
    try:
        batches = given.to_batches(max_chunksize=37)
        made = routes.gathered((part for batch in batches for part in program.run("rows", batch)), routes.sinks)
    except BadRow as error:
        return builder, routes, fault_in(error.what)
    return builder, routes, {name: shown(table) for name, table in made.items()}


def through_spark(session: SparkSession, queries: Sequence[str], given: pa.Table) -> Found:
    _, statements = graph(queries)

    def read(node: Node) -> DataFrame:
        return session.createDataFrame(given, from_arrow_schema(SCHEMA)).coalesce(1)

    pipeline = hf.Pipeline("p", *(stream | to(f"to_{stream.node.name}") for stream in statements))
    compiled = compile_pipeline(pipeline, read, uuid.uuid4().hex)
    try:
        table = compiled.frame.toArrow()
    except PySparkException as error:
        return fault_in(str(error))
    return {name.removeprefix("to_"): shown(part) for name, part in compiled.routes.split_table(table).items()}


def subplan(session: SparkSession, queries: Sequence[str]) -> CompiledSubplan:
    """Return what the statements would be behind state if they were left to Spark."""
    head, statements = graph(queries)
    nodes = [stream.node for stream in statements]
    part = SparkPart(tuple(nodes), tuple(End(node.name, node) for node in nodes), {head: SCHEMA})
    return CompiledSubplan.of(part, session, uuid.uuid4().hex)


def fault_in(text: str) -> str:
    return next(fault for fault in FAULTS if fault in text)


def shown(table: pa.Table) -> list[str]:
    """Return rows as texts: NaN is itself, and -0.0 is not 0.0."""
    return [repr(row) for row in table.to_pylist()]


def compared(session: SparkSession, queries: Sequence[str], given: pa.Table) -> Found:
    _, _, found = in_arrow(queries, given)
    found_by_spark = through_spark(session, queries, given)
    if isinstance(found, dict) and isinstance(found_by_spark, dict):
        for query, mine, of_spark in zip(queries, found.values(), found_by_spark.values(), strict=True):
            assert mine == of_spark, query
    assert found == found_by_spark, queries
    return found


@pytest.mark.parametrize("start", range(0, len(STATEMENTS), 3))
def test_statements_give_the_rows_that_sparks_plan_gives(session: SparkSession, start: int) -> None:
    found = compared(session, STATEMENTS[start : start + 3], rows(1, 300, is_tame=False))
    assert isinstance(found, dict)
    assert all(found.values()), "some statement keeps no row: nothing is compared"


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_their_types_and_what_they_leave_unchanged_are_those_of_a_subplan(
    session: SparkSession, everything: bool
) -> None:
    """The state of operators downstream has these types, and bounds pass by what is unchanged."""
    for query in [*STATEMENTS, *RAISING][:: 1 if everything else 3]:
        builder, routes, _ = in_arrow([query], SCHEMA.empty_table())
        compiled = subplan(session, [query])
        assert routes.schemas[0].equals(compiled.schemas[0], check_metadata=True), query
        assert builder.unchanged == compiled.analysis, query


@pytest.mark.parametrize("query", RAISING)
def test_a_row_without_a_value_is_the_error_that_it_is_to_sparks_plan(session: SparkSession, query: str) -> None:
    found = compared(session, [query], rows(2, 200, is_tame=False))
    assert found == RAISING[query] or (not RAISING[query] and isinstance(found, dict))


def test_where_no_row_is_an_error_they_give_the_same_rows(session: SparkSession) -> None:
    found = compared(session, list(RAISING), rows(3, 200, is_tame=True))
    assert isinstance(found, dict)
    assert all(found.values())
