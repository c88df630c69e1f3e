"""A projection of rows led over arrays of rows (design/0010, section 1): the same values and types, or it is left."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.spark import private
from holdfast.spark.plans import catalyst
from holdfast.spark.plans.traced import over_arrays

pytestmark = pytest.mark.spark

TYPES: dict[str, tuple[str, list[Any]]] = {
    "b": ("boolean", [True, None, False]),
    "i": ("int", [7, -3, None]),
    "n": ("bigint", [None, 2**53 + 1, -5]),
    "x": ("double", [0.5, float("nan"), None]),
    "f": ("float", [None, 0.25, -1.5]),
    "m": ("decimal(20,2)", [Decimal("1.25"), None, Decimal("-99999999999999999.99")]),
    "d": ("date", [dt.date(2026, 1, 31), None, dt.date(1969, 12, 31)]),
    "t": ("timestamp", [dt.datetime(2026, 3, 29, 1, 30), dt.datetime(1960, 1, 1), None]),
}
SCHEMA = ", ".join(["apart binary", *(f"{name} {kind}" for name, (kind, _) in TYPES.items()), "s string"])
EXPRESSIONS = [
    "case when apart is null then bround(n % 1000, 0) + i end",
    "coalesce(n, i, 0) * 2",
    "x + f / 4",
    "case when b then i when i < 0 then 10 div i else n end",
    "m * m",
    "cast(m as decimal(38, 4)) + 1",
    "date_add(d, 40)",
    "t + interval 1 month",
    "year(t) * 10000 + dayofyear(d)",
    "length(repeat(cast(i as string), 3))",
    "n is null and not b",
    "hash(i, n, x, d, t)",
    "float(x)",
    "7",
]
LEFT = ["rand() + x", "concat(s, s)", "upper(cast(i as string))", "length(s)", "size(transform(array(i), e -> e + 1))",
        "(select max(id) from range(3)) + i", "called(i)", "monotonically_increasing_id()"]  # fmt: skip


def made(spark: SparkSession, rows: DataFrame, expressions: list[str]) -> DataFrame:
    columns = [F.expr(expression).alias(f"o{number}") for number, expression in enumerate(expressions)]
    return catalyst.collapsed(rows.select("apart", *columns))


def in_arrays(spark: SparkSession, rows: DataFrame, frame: DataFrame) -> tuple[DataFrame, DataFrame | None]:
    """Return a frame of arrays, and what is computed of them."""
    base = {private.identity_of(each): each.name() for each in private.listed(private.analyzed(rows).output())}
    outputs = private.listed(private.analyzed(frame).projectList())
    read = {base[number] for each in outputs for number in catalyst.references_of(each)} - {"apart"}
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    columns = ["apart binary", *(f"{name} array<{kinds[name]}>" for name in rows.columns if name in read)]
    arrays = spark.createDataFrame([], ", ".join(columns))
    return arrays, over_arrays(frame, rows, arrays, "apart")


def test_values_and_types_are_those_of_rows(spark: SparkSession) -> None:
    """Of every type of few bytes, with nulls; in a row that stands apart there is nothing to compute."""
    of_types = [tuple(values[at] for _, values in TYPES.values()) for at in range(3)]
    rows = spark.createDataFrame([(None, *values, None) for values in of_types], SCHEMA)
    empty = spark.createDataFrame([], SCHEMA)
    arrays, computed = in_arrays(spark, empty, made(spark, empty, EXPRESSIONS))
    assert computed is not None
    columns = {name: [values[at] for values in of_types] for at, name in enumerate(TYPES)}
    given: list[Any] = [(b"head", *(None for _ in arrays.columns[1:]))]
    given += [(None, *(columns[name][span] for name in arrays.columns[1:])) for span in (slice(0, 2), slice(2, 3))]
    frame = catalyst.planted(computed, arrays, spark.createDataFrame(given, arrays.schema))
    plain = made(spark, rows, EXPRESSIONS)
    kinds = [field.dataType.simpleString() for field in plain.schema]
    assert [field.dataType.simpleString() for field in frame.schema] == ["binary", *(f"array<{k}>" for k in kinds[1:])]
    head, *found = frame.collect()
    assert tuple(head) == (bytearray(b"head"), *(None for _ in EXPRESSIONS))
    for number, expression in enumerate(EXPRESSIONS, 1):
        values = [value for row in found for value in row[number]]
        assert repr(values) == repr([row[number] for row in plain.collect()]), expression


def test_what_fails_for_a_value_fails_in_the_same_words(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], SCHEMA)
    arrays, computed = in_arrays(spark, empty, made(spark, empty, ["6 / (i - 7)"]))
    assert computed is not None
    errors = []
    for frame in (
        catalyst.planted(computed, arrays, spark.createDataFrame([(None, [3, 7])], arrays.schema)),
        made(spark, spark.createDataFrame([(None, None, 7)], "apart binary, s string, i int"), ["6 / (i - 7)"]),
    ):
        with pytest.raises(ArithmeticException) as caught:
            frame.collect()
        errors.append(str(caught.value).split("SQLSTATE")[0])
    assert errors[0] == errors[1]
    assert "DIVIDE_BY_ZERO" in errors[0]


def test_what_cannot_be_told_from_one_row_or_may_have_any_size_is_left_to_rows(spark: SparkSession) -> None:
    spark.udf.register("called", lambda i: i, "int")
    rows = spark.createDataFrame([], SCHEMA)
    for expression in LEFT:
        assert in_arrays(spark, rows, made(spark, rows, ["i + 1", expression]))[1] is None, expression
    twice = rows.select("apart", F.expr("i + rand()").alias("i")).select("apart", F.expr("i * i").alias("o0"))
    some = made(spark, rows.filter("i > 0"), ["i + 1"])
    for frame in (twice, some):
        assert over_arrays(frame, rows, spark.createDataFrame([], "apart binary, i array<int>"), "apart") is None
    assert over_arrays(made(spark, rows, ["7"]), rows, rows.select("apart"), "apart") is None, "no array to be led over"
