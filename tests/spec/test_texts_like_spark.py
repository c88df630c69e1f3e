"""A text that others have written is never another value than Spark's cast makes of it: that value, or none.

Names of directories, extra values of control rows, tables that are pushed, what a function returns for a column of
another type: none of these is cast by Arrow, which takes hexadecimal digits, a year 0, or infinity for what is beyond.
Expressions that cast texts are Spark's in both ways of evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.expressions.compile import columnar
from holdfast.plan.batches import BatchFunction
from holdfast.types.casting import fitted_column
from holdfast.types.from_text import from_text
from holdfast.types.partition import partition_values

TEXTS = [
    "0", "-0", "+0", "7", "+7", "-7", "007", "-007", " 7", "7 ", "\t7", "7\n", "", " ", "7.0", "7.", ".7", "-.7", "7e0",
    "1e2", "1E+2", "1e-2", "1e999", "-1e999", "1e-999", "0x10", "0X1F", "0x1p3", "1_000", "1,000", "1 000", "7d", "7f",
    "7L", "7D", "\u0663", "\uff19", "\u22127", "--7", "+-7", "inf", "+inf", "-inf", "Infinity", "-INFINITY", "nan",
    "NaN", "-nan", "+nan", "nan(1)", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "99999999999999999999999999999999999999",
    "123456789012345678901234567890123456789", "0000000000000000000000000000000000000000000000000007", "999.99",
    "999.994", "999.995", "1000", "0.001", "3.4028235e38", "3.5e38", "1.7976931348623157e308", "1.8e308", "5e-324",
    "1e-400", "2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "2024-1-1",
    "2024-01", "2024", "20240101", "2024-01-01 ", "2024-01-01T", "2024-01-01T00:00:00Z", "2024-01-01 10:11:12.123456",
    "2024-01-01T10:11:12+02:00", "2024-01-01T24:00:00", "true", "TRUE", "t", "yes", "1", "false", "f", "no", "0",
    "null",
]  # fmt: skip
KINDS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(5,2)": pa.decimal128(5, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "boolean": pa.bool_(),
}


def ours(text: str, kind: pa.DataType) -> Any:
    """Return the value, or the class where there is none."""
    try:
        return from_text(pa.array([text]), kind)[0].as_py()
    except pa.ArrowInvalid:
        return pa.ArrowInvalid


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one + other))


@pytest.mark.spark
def test_every_text_is_what_the_cast_of_spark_makes_of_it_or_is_refused(spark: Any) -> None:
    frame = spark.createDataFrame([(at, text) for at, text in enumerate(TEXTS)], "at INT, text STRING")
    casts = [f"try_cast(text AS {name}) AS `{name}`" for name in KINDS]
    table = frame.selectExpr("at", *casts).orderBy("at").toArrow()
    taken = 0
    for at, text in enumerate(TEXTS):
        for name, kind in KINDS.items():
            value = ours(text, kind)
            if value is not pa.ArrowInvalid:
                taken += 1
                assert same(value, table.column(name)[at].as_py()), (text, name)
    assert taken > 250, "nearly all that Spark takes"


def integers(text: str, kind: pa.DataType) -> Any:
    limit = 2 ** (kind.bit_width - 1)
    is_one = re.fullmatch(r"-?[0-9]+", text) is not None
    return int(text) if is_one and -limit <= int(text) < limit else pa.ArrowInvalid


def decimals(text: str, kind: pa.DataType) -> Any:
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", text) is None:
        return pa.ArrowInvalid
    value = Decimal(text)
    try:
        there = value.quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=76))
    except InvalidOperation:
        return pa.ArrowInvalid
    fits = there == value and abs(there) < 10 ** (kind.precision - kind.scale)
    return there if fits else pa.ArrowInvalid


def days(text: str, kind: pa.DataType) -> Any:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) else pa.ArrowInvalid
    except ValueError:
        return pa.ArrowInvalid


INDEPENDENT: dict[str, Callable[[str, pa.DataType], Any]] = {
    "tinyint": integers,
    "bigint": integers,
    "decimal(5,2)": decimals,
    "decimal(38,10)": decimals,
    "date": days,
}
NEARLY = st.one_of(
    st.text("0123456789+-.xXabefE _,", max_size=12),
    st.integers(-(2**66), 2**66).map(str),
    st.integers(-300, 300).map(hex),
    st.decimals(-1000, 1000, places=3).map(str),
    st.dates().map(str),
    st.sampled_from(TEXTS),
)


@pytest.mark.slow
@settings(deadline=None)
@given(NEARLY, st.sampled_from(sorted(INDEPENDENT)))
@example("1000000000000000000", "decimal(38,10)")
def test_whole_numbers_decimals_and_days_are_what_python_reads_or_none(text: str, name: str) -> None:
    kind = KINDS[name]
    if kind not in (pa.decimal128(5, 2), pa.decimal128(38, 10)) or "e" not in text.lower():
        assert ours(text, kind) == INDEPENDENT[name](text, kind)


def by_directory(text: str, work: Path) -> Any:
    return partition_values(f"k={text}", pa.schema([("k", pa.int64())]))["k"].as_py()


def by_push(text: str, work: Path) -> Any:
    feed = hf.read.CallbackFeed(work / "feed", schema="k BIGINT")
    feed.push(pa.table({"k": [text]}))


def by_function(text: str, work: Path) -> Any:
    schema = pa.schema([("k", pa.int64())])
    function = BatchFunction(lambda batch: pa.record_batch({"k": [text]}), None, schema, "f", "t")
    (part,) = function.apply(pa.record_batch({"k": [1]}))
    return part.column(0)[0].as_py()


def by_column(text: str, work: Path) -> Any:
    return fitted_column(pa.array([[text]]), pa.list_(pa.int64()))[0].as_py()[0]


WAYS = [by_directory, by_push, by_function, by_column]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["0x10", "0xFFFFFFFFFFFFFFFF", "1_000", " 7", "7.0", "\u0663", "9223372036854775808"])
def test_no_way_takes_a_text_for_a_number_that_it_is_not(
    way: Callable[[str, Path], Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises((pa.ArrowInvalid, BadRow, InvalidPipeline)):
        way(text, tmp_path)
    assert way("007", tmp_path) in (7, None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_expression_that_casts_a_text_is_left_to_spark(kind: str) -> None:
    schema = pa.schema([("text", pa.string()), ("number", pa.int8())])
    assert columnar(f"cast(text as {kind})", schema) is None
    assert columnar(f"try_cast(text as {kind})", schema) is None
    assert columnar("cast(number as bigint)", schema) is not None
