"""Types that are derived without Spark are those that Spark gives (design/0031, invariant 1)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.expressions.derive import _FUNCTIONS, derived
from holdfast.expressions.statement import FUNCTIONS
from holdfast.graph.nodes import Stream
from holdfast.plan.derived_part import stages_without_spark
from holdfast.spark import private
from holdfast.spark.compile import as_spark_has_it
from holdfast.spark.launch.session import run_session
from holdfast.spark.physical_plan import compiled_stages
from holdfast.spark.state.plan import state_schemas_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([
    ("a", pa.string()), ("i", pa.int32()), ("l", pa.int64()), ("n", pa.int16()), ("x", pa.float64()),
    ("f", pa.float32()), ("m", pa.decimal128(12, 2)), ("w", pa.decimal128(38, 18)), ("d", pa.date32()),
    ("t", pa.timestamp("us", tz="UTC")), pa.field("key", pa.int64(), nullable=False),
    ("s", pa.struct([("p", pa.int32())])), ("day", pa.string()), ("hour", pa.int32()),
])  # fmt: skip

CALLS = {
    "replace": "replace(a, 'x', 'y')", "regexp_replace": "regexp_replace(a, 'x', 'y')", "substr": "substr(a, 1, 2)",
    "substring": "substring(a, 1, 2)", "lpad": "lpad(a, 3, '0')", "rpad": "rpad(a, 3, '0')",
    "regexp_extract": "regexp_extract(a, 'x', 0)", "split_part": "split_part(a, '-', 1)", "concat": "concat(a, '-', a)",
    "translate": "translate(a, 'x', 'y')", "repeat": "repeat(a, 2)", "left": "left(a, 2)", "right": "right(a, 2)",
    "sha2": "sha2(a, 256)", "date_format": "date_format(t, 'yyyy')", "hex": "hex(l)", "instr": "instr(a, 'x')",
    "base64": "base64(cast(a as binary))", "get_json_object": "get_json_object(a, '$.x')", "locate": "locate('x', a)",
    "datediff": "datediff(d, d)", "date_diff": "date_diff(d, d)", "unix_seconds": "unix_seconds(t)",
    "unix_millis": "unix_millis(t)", "unix_micros": "unix_micros(t)", "date_add": "date_add(d, 1)",
    "date_sub": "date_sub(d, 1)", "next_day": "next_day(d, 'MON')", "trunc": "trunc(d, 'MM')",
    "date_trunc": "date_trunc('hour', t)", "timestamp_seconds": "timestamp_seconds(l)", "pow": "pow(x, 2)",
    "timestamp_millis": "timestamp_millis(l)", "timestamp_micros": "timestamp_micros(l)", "power": "power(x, 2)",
    "startswith": "startswith(a, 'x')", "endswith": "endswith(a, 'x')", "contains": "contains(a, 'x')",
    "abs": "abs(m)", "round": "round(m, 1)", "bround": "bround(w, 3)", "floor": "floor(x)",
    "ceil": "ceil(x)", "ceiling": "ceiling(l)", "nullif": "nullif(i, 0)", "unix_timestamp": "unix_timestamp(t)",
}  # fmt: skip
ON_TIMES = frozenset({
    "year", "month", "day", "dayofmonth", "hour", "minute", "second", "quarter", "weekofyear", "dayofweek",
    "dayofyear", "last_day",
})  # fmt: skip
ON_NUMBERS = frozenset({
    "sqrt", "exp", "ln", "log10", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians",
})  # fmt: skip
NUMBERS = ("i", "l", "n", "x", "f", "m", "w")

EXPRESSIONS = [
    *(f"{one} {sign} {other}" for one in NUMBERS for other in (*NUMBERS, "2") for sign in "+-*/%"),
    "m * 1.19", "m * 0.5", "i / 1.5", "-m", "(i + 1) * m", "a || '-'", "cast(a as decimal(9,3))", "cast(a as date)",
    "cast(a as timestamp)", "try_cast(a as int)", "cast(null as double)", "cast(i as string)", "a like 'x%'",
    "a rlike 'x'", "a in ('x', 'y')", "i between 1 and 2", "not i > 1", "i > 1 and a = 'x'", "a is null",
    "case when i > 1 then m end", "if(i > 1, a, 'x')", "coalesce(a, 'x')", "coalesce(i, l)", "nvl(x, x)", "isnull(a)",
    "round(x)", "round(m)", "round(i)", "round(cast(a as double), 2)", "upper(trim(a))", "1e3", "1.50", "0.05", "'x'",
    "round(m, -1)", "bround(m, -1)", "round(i, -1)", "m * -2", "m / -3", "m * -(2)", "m % -(3)", "-2147483648",
    "-2147483649", "m * 2L", "m * 2S", "m * cast(2 as bigint)", "date_add(day, 1, t)", "datediff(day, t, t)",
    "date_diff(hour, t, t)", "true", "s.p", "s.p + 1", "key", "case a when 'x' then 1 when 'y' then 2 else 3 end",
]  # fmt: skip


def calls() -> list[str]:
    """Return a call of every function that a type is derived for."""
    found = []
    for name in _FUNCTIONS:
        argument = "t" if name in ON_TIMES else "x" if name in ON_NUMBERS else "a"
        found.append(CALLS.get(name, f"{name}({argument})"))
    return found


@pytest.mark.slow
def test_every_derived_type_is_sparks(spark: SparkSession) -> None:
    """One analysis of all: each expression has the type and, where it is known here, the nullability that Spark has."""
    known = {text: one for text in [*EXPRESSIONS, *calls()] if (one := derived(text, SCHEMA)) is not None}
    assert set(calls()) <= known.keys()
    assert len(known) > len(EXPRESSIONS) * 0.9 + len(_FUNCTIONS)
    session = spark.newSession()
    frame = session.createDataFrame([], private.spark_schema(SCHEMA)).selectExpr(
        *(f"{text} as c{number}" for number, text in enumerate(known))
    )
    wrong = {}
    for field, (text, one) in zip(private.arrow_schema(frame.schema), known.items(), strict=True):
        if field.type != one.type or one.nullable not in (None, field.nullable):
            wrong[text] = (one.type, one.nullable, field.type, field.nullable)
    assert wrong == {}


@pytest.mark.slow
def test_every_function_of_sparks_registry_is_known(spark: SparkSession) -> None:
    """A hint never calls a function unknown that Spark has."""
    jvm: Any = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    names = {name for name in re.split(r"[^a-z_0-9]+", registry.listFunction().mkString(" ")) if name}
    assert names - FUNCTIONS <= {"system", "builtin", "session", "unction", "dentifier", "one"}


ROWS = "order_id BIGINT, customer STRING, amount STRING, at TIMESTAMP"


def counted(stream: Stream, name: str) -> Stream:
    return stream | hf.aggregate(
        by="customer", window=hf.tumbling("1 h"), disorder="1 min", n=hf.count(), most=hf.max("amount"), name=name
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one", "shared", "statement"])
def test_the_state_of_a_graph_is_derived_as_spark_plans_it(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """What an operator keeps, and where bounds end, does not depend on who was asked."""
    orders = hf.read.files(str(tmp_path), schema=ROWS, timestamp="at", name="orders")
    if way == "statement":
        priced = orders | hf.sql("select customer, at, cast(amount as decimal(9,2)) as amount from input where at is "
                                 "not null", name="priced")  # fmt: skip
    else:
        priced = orders | hf.select("customer", "at", amount="round(cast(amount as double), 2)", name="priced")
    sinks = [counted(priced, "revenue") | hf.write.console(name="out")]
    if way == "shared":
        sinks.append(orders | hf.write.console(name="raw"))
    pipeline = hf.Pipeline("shop", *sinks)
    ours = stages_without_spark(pipeline, as_spark_has_it, "plan", is_columnar=True)
    theirs = compiled_stages(pipeline, run_session(spark, 1), is_columnar=True)
    assert ours is not None
    assert theirs is not None
    assert state_schemas_of(pipeline, ours) == state_schemas_of(pipeline, theirs)
    assert ours.bounds_end == theirs.bounds_end
    assert ours.routes == theirs.routes
