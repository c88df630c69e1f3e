"""Decimals that Arrow evaluates against Spark itself: digits, scales, halves, what does not fit, and what raises."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar
from holdfast.expressions.derive import derived
from holdfast.expressions.logic import Columnar
from holdfast.spark.private import arrow_schema

pytestmark = pytest.mark.spark

_SCHEMA = pa.schema(
    [
        ("b", pa.int64()),
        ("i", pa.int32()),
        ("t", pa.int8()),
        ("m", pa.decimal128(10, 2)),
        ("u", pa.decimal128(3, 3)),
        ("v", pa.decimal128(18, 0)),
        ("w", pa.decimal128(38, 10)),
        pa.field("n", pa.decimal128(5, 1), nullable=False),
        pa.field("j", pa.int32(), nullable=False),
        ("d", pa.float64()),
        ("o", pa.bool_()),
    ]
)
_DDL = (
    "b BIGINT, i INT, t TINYINT, m DECIMAL(10, 2), u DECIMAL(3, 3), v DECIMAL(18, 0), w DECIMAL(38, 10), "
    "n DECIMAL(5, 1) NOT NULL, j INT NOT NULL, d DOUBLE, o BOOLEAN"
)


def _edges(precision: int, scale: int) -> list[Decimal]:
    most = 10**precision - 1
    numbers = {
        0,
        1,
        -1,
        5,
        -5,
        15,
        -15,
        25,
        49,
        50,
        51,
        -49,
        -50,
        -51,
        125,
        450,
        most,
        -most,
        most // 2,
        most - 4,
        4 - most,
    }
    return [Decimal(f"{number}E-{scale}") for number in sorted(numbers) if abs(number) <= most]


def _batch() -> pa.RecordBatch:
    values: list[list[Any]] = []
    for field in _SCHEMA:
        if pa.types.is_decimal(field.type):
            ours: list[Any] = _edges(field.type.precision, field.type.scale)
        elif pa.types.is_integer(field.type):
            bits = field.type.bit_width - 1
            ours = [0, 1, -1, 9, 10, 99, 100, -100, 2**bits - 1, -(2**bits), 2 ** (bits - 1) + 1]
        else:
            ours = [1.5, -0.35, 0.0] if field.name == "d" else [True, False]
        values.append([*ours, None] if field.nullable else ours)
    count = 45
    columns = [
        [ours[(row * (place + 3) + row // len(ours) + place) % len(ours)] for row in range(count)]
        for place, ours in enumerate(values)
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


_NAMES = tuple("bitmuvwnj")
_LITERALS = ["0", "1", "-1", "10", "1000000", "2147483648", "0.908", "1.50", "-0.05", "0.0", "12345.678901", "-7"]
_WRITTEN = """
price * 0|m * m * m|m + m + m|m - m - m|1.5 * 2.0 * m|(m + 1) * (n - 0.5)|m * n + u|m + 1 + (-1)|1.5 + 2
1.5 * 2 * i|0.908 * b > 1000000 AND 0.908 * b < 50000000|if(o, m, m + 0)|if(o, m, NULL)|coalesce(m, m)
coalesce(u, 0.000)|(1 + 1) * m
CASE WHEN 0.908 * b > 1000000 AND 0.908 * b < 50000000 THEN 'euro' WHEN m > 0 THEN 'some' ELSE 'none' END|m * 2L
m * 2S|CAST(b * 0.908 AS DECIMAL(23, 3))|CAST(b * 0.908 AS DECIMAL(19, 3))|CAST(b * 0.908 AS DECIMAL(30, 3))
CAST(1.25 AS DECIMAL(3, 1)) * i|CAST(CAST(m AS DECIMAL(9, 1)) AS DECIMAL(12, 4))|CAST(m * n AS DECIMAL(10, 1)) + 1
CAST(m AS DECIMAL(8, 1)) > 5|CAST(i AS DECIMAL(5, 1)) = n|CAST(b AS DECIMAL(10, 0)) > m
n > CAST(m AS DECIMAL(4, 1))|NOT CAST(i AS DECIMAL(3, 0)) = j|CAST(5 AS DECIMAL(4, 2)) + m|CAST(m AS DEC(11, 1))
m BETWEEN 1 AND 2|m BETWEEN -0.5 AND 1.5|i BETWEEN 0.5 AND 1.5|m BETWEEN n AND v|CAST(m AS DECIMAL(7)) + 1|d * 1.5
d > 0.35|d = 1.5|m IS NULL|CAST(d AS DECIMAL(10, 2))|m * d|m > d|CAST(m AS DOUBLE)|-m|m / 2|m % 2|CAST(m AS INT)
CAST(m AS STRING)|CAST('1' AS DECIMAL(3, 1))|m IN (1.25)|m IN (1)|DECIMAL(i)|CAST(i AS DECIMAL)|w * w|w + w
w * 1.5|CAST(w AS DECIMAL(38, 2))|CAST(w AS DECIMAL(38, 20))|1.50|CAST(2 AS BIGINT) * m|CAST(u AS DECIMAL(1, 0))
CAST(u AS DECIMAL(2, 2))|CAST(v AS DECIMAL(38, 20))|CAST(v AS DECIMAL(38, 21))|CAST(w * 1 AS DECIMAL(5, 2))
"""


def _texts() -> list[str]:
    texts = [text.replace("price", "b") for line in _WRITTEN.strip().splitlines() for text in line.split("|")]
    texts += [f"{one} {sign} {other}" for one, other in product(_NAMES, [*_NAMES, *_LITERALS]) for sign in "+-*"]
    texts += [f"{literal} {sign} {one}" for one, literal in product(_NAMES, _LITERALS) for sign in ("*", "-", ">")]
    signs = ("=", "<>", "<", "<=", ">", ">=", "<=>")
    pairs = list(product(_NAMES, [*_NAMES, *_LITERALS]))
    texts += [f"{one} {signs[index % len(signs)]} {other}" for index, (one, other) in enumerate(pairs)]
    kinds = [
        "(1, 0)",
        "(3, 1)",
        "(5, 2)",
        "(10, 0)",
        "(10, 2)",
        "(12, 3)",
        "(19, 0)",
        "(20, 1)",
        "(38, 0)",
        "(38, 10)",
        "(38, 18)",
    ]
    return [*texts, *(f"CAST({one} AS DECIMAL{kind})" for one, kind in product(_NAMES, kinds))]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    spark.sparkContext.setLogLevel("OFF")
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def _known(schema: pa.Schema) -> dict[str, Columnar]:
    known = {text: columnar(text, schema) for text in _texts()}
    return {text: found for text, found in known.items() if found is not None and _is_of_decimals(text)}


def _is_of_decimals(text: str) -> bool:
    return "." in text or "DEC" in text or any(name in text.split(" ") for name in "muvwn")


def _frame(session: SparkSession, batch: pa.RecordBatch) -> DataFrame:
    return session.createDataFrame(pa.Table.from_batches([batch]), schema=_DDL)


def _differences(session: SparkSession, batch: pa.RecordBatch) -> list[Any]:
    """Return what differs in values, types and nullability, of expressions that cannot raise."""
    known = {text: found for text, found in _known(batch.schema).items() if not found.can_raise}
    chosen = _frame(session, batch).select(*[F.expr(text).alias(f"c{index}") for index, text in enumerate(known)])
    theirs = arrow_schema(chosen.schema)
    wrong: list[Any] = []
    for (text, found), field, column in zip(known.items(), theirs, chosen.toArrow().columns, strict=True):
        ours = found.evaluate(batch)
        if (ours.type, found.type, found.nullable) != (field.type, field.type, field.nullable):
            wrong.append((text, ours.type, found.type, found.nullable, field))
        before = derived(text, batch.schema)
        if before is not None and (before.type != field.type or before.nullable not in (None, field.nullable)):
            wrong.append((text, before, field))
        rows = zip(batch.to_pylist(), ours.to_pylist(), column.to_pylist(), strict=True)
        wrong += [(text, one, other, row) for row, one, other in rows if one != other][:2]
    return [*wrong, *([] if len(known) > 500 else [len(known)])]


def _faults(session: SparkSession, batch: pa.RecordBatch) -> list[Any]:
    """Return what differs of expressions that can raise: which rows do, in a projection and in a filter."""
    wrong: list[Any] = []
    raising = {text: found for text, found in _known(batch.schema).items() if found.can_raise}
    for text, found in raising.items():
        outcomes = [_outcome(found, batch.slice(row, 1)) for row in range(batch.num_rows)]
        calm = batch.filter(pa.array([outcome is None for outcome in outcomes]))
        bad = next((row for row, outcome in enumerate(outcomes) if outcome is not None), None)
        frame = _frame(session, calm)
        chosen = frame.select(F.expr(text).alias("c"))
        ours = found.evaluate(calm)
        field = arrow_schema(chosen.schema).field(0)
        if (field.type, field.nullable) != (found.type, found.nullable) or chosen.toArrow()[
            "c"
        ].to_pylist() != ours.to_pylist():
            wrong.append((text, field, found.type, found.nullable))
        is_condition = pa.types.is_boolean(found.type)
        if is_condition and frame.where(text).toArrow().num_rows != ours.to_pylist().count(True):
            wrong.append((text, "filters otherwise"))
        if bad is not None:
            one = _frame(session, batch.slice(bad, 1))
            theirs = _condition(one.where(text) if is_condition else one.selectExpr(text))
            if theirs != outcomes[bad]:
                wrong.append((text, outcomes[bad], theirs, batch.slice(bad, 1).to_pylist()))
    return [*wrong, *([] if len(raising) > 40 else [len(raising)])]


def _outcome(found: Columnar, batch: pa.RecordBatch) -> str | None:
    try:
        found.evaluate(batch)
    except BadRow as error:
        return error.what.rpartition(": ")[2].rstrip(".")
    return None


def _condition(frame: DataFrame) -> str | None:
    try:
        frame.toArrow()
    except PySparkException as error:
        return error.getCondition()
    return None


def test_decimals_are_those_of_spark(session: SparkSession) -> None:
    assert "\n".join(map(str, _differences(session, _batch()))) == ""


def test_decimals_that_do_not_fit_are_errors_where_spark_has_them(session: SparkSession) -> None:
    assert "\n".join(map(str, _faults(session, _batch()))) == ""


@pytest.mark.parametrize(
    "text",
    [
        "m * d",
        "m > d",
        "CAST(m AS DOUBLE)",
        "-m",
        "m / 2",
        "m % 2",
        "CAST(d AS DECIMAL(10, 2))",
        "w * w",
        "w + w",
        "CAST(w AS DECIMAL(38, 2))",
        "(1 + 1) * m",
        "CAST(2 AS BIGINT) * m",
        "1.50",
        "m IN (1.25)",
        "DECIMAL(i)",
        "coalesce(m, 0)",
        "if(o, m, n)",
        "CAST(m AS INT)",
        "CAST(m AS STRING)",
        "CAST('1' AS DECIMAL(3, 1))",
        "CAST(m AS DECIMAL(39, 2))",
        "CAST(m AS DECIMAL(3, 4))",
        "CAST(m AS DECIMAL(5, 1)) > 1 AND o",
    ],
)
def test_what_spark_rounds_otherwise_is_left_to_it(text: str) -> None:
    assert columnar(text, _SCHEMA) is None
