"""Expressions of the Arrow subset against Spark itself: values, types, names and errors on rows of edge values."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar, columnar_items
from holdfast.expressions.logic import Columnar
from holdfast.spark.private import arrow_schema

pytestmark = pytest.mark.spark

_SCHEMA = pa.schema(
    [
        ("t", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("j", pa.int32()),
        ("b", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("x", pa.string()),
        ("y", pa.string()),
        ("o", pa.bool_()),
        ("p", pa.bool_()),
        ("day", pa.date32()),
        ("day2", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("at2", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        pa.field("since", pa.timestamp("us", tz="UTC"), nullable=False),
        ("money", pa.decimal128(10, 2)),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("q", pa.float64(), nullable=False),
        pa.field("Name", pa.string(), nullable=False),
        pa.field("odd name", pa.int64()),
    ]
)
_DDL = (
    "t TINYINT, s SMALLINT, i INT, j INT, b BIGINT, f FLOAT, d DOUBLE, e DOUBLE, x STRING, y STRING, o BOOLEAN, "
    "p BOOLEAN, day DATE, day2 DATE, at TIMESTAMP, at2 TIMESTAMP, local TIMESTAMP_NTZ, "
    "since TIMESTAMP NOT NULL, money DECIMAL(10, 2), "
    "n INT NOT NULL, q DOUBLE NOT NULL, Name STRING NOT NULL, `odd name` BIGINT"
)

_SMALL = [-128, -127, -3, -1, 0, 1, 2, 7, 126, 127]
_FLOATS = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, 1.5, -2.5, 0.1, 16777216.0, 1e30, -1e30]
_TEXTS = ["", " ", "a", "A", "ab", "b", "ß", "İ", "é", "e\u0301", "日本", "😀", "\uffff", "a\nb", "it's", "Z"]
_VALUES: dict[str, list[Any]] = {
    "t": _SMALL,
    "s": [*_SMALL, -(2**15), 2**15 - 1],
    "i": [*_SMALL, -(2**31), 2**31 - 1, 16777217, 10, -11],
    "b": [*_SMALL, -(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1, 2**31, 10, -11],
    "f": _FLOATS,
    "d": [*_FLOATS, 9007199254740993.0, 1.7976931348623157e308, 5e-324, 1.8],
    "x": _TEXTS,
    "o": [True, False],
    "day": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "at": [dt.datetime(1960, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(2024, 3, 1)],
}
_LIKE = {
    "j": "i",
    "e": "d",
    "y": "x",
    "p": "o",
    "day2": "day",
    "at2": "at",
    "local": "at",
    "since": "at",
    "n": "i",
    "q": "d",
}
_LIKE |= {"Name": "x", "odd name": "b", "since": "at"}


def _rows(seed: int, count: int, *, tame: bool) -> pa.RecordBatch:
    """Edge values at random; tame ones are small and not zero, so that no row is an error."""
    chance = random.Random(seed)
    columns = []
    for field in _SCHEMA:
        kind = _LIKE.get(field.name, field.name)
        values: list[Any] = [1] if field.name == "money" else _VALUES[kind]
        if tame and kind in "tsib":
            values = [-3, -2, -1, 1, 2, 3]
        elif tame and kind in "fd":
            values = [value for value in values if value != 0]
        column = [None if field.nullable and chance.random() < 0.15 else chance.choice(values) for _ in range(count)]
        columns.append(pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


_COLUMNS = {
    "number": ["t", "s", "i", "j", "b", "f", "d", "e", "n", "q", "`odd name`", "I", "B", "`D`"],
    "text": ["x", "y", "name", "NAME", "`x`"],
    "truth": ["o", "p", "O"],
    "day": ["day", "day2"],
    "at": ["at", "at2"],
}
_NUMBERS = (
    "0 1 -1 2 10 -3 127 128 -128 40000 2147483647 -2147483648 2147483648 9223372036854775807 16777217 1.8 0.1 -0.0 "
    "0.0 1.50 1e3 2.5e-1 10L 5S 3Y 1.5D -9223372036854775808 9007199254740993"
)
_LITERALS = {
    "number": _NUMBERS.split(),
    "text": ["''", "'a'", "'A'", "'ß'", "'e\u0301'", "'😀'", '"b"', "'a b'", "'1'"],
    "truth": ["TRUE", "false"],
    "day": [],
    "at": [],
}
_COMPARISONS = ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"]


_OF_NUMBERS = (
    "{one} + {two};{one} - {two};{one} * {two};{one} / {two};{one} % {two};{one}+{two};- {one};-{one};"
    "({one}) * ({two});({one}) % ({two});({one}) + {two};CAST({one} AS BIGINT);cast({one} as double);"
    "CAST({one} AS INT);length({text});{one} % 7;{one} % -1;{one} / 4;{one} * 1.8 + 32;{one} - ({two})"
)
_OF_TRUTH = (
    "{one} {sign} {two};{one} {sign} {two};{one} {sign} {two};({one}) {sign} ({two});{one} IS NULL;"
    "({one}) is not null;{one} BETWEEN {two} AND {three};{one} not between {two} and {three};{one} IN ({list});"
    "{one} NOT IN ({list}, NULL);{left} AND {right};{left} OR {right};({left}) or ({right});NOT {left};not ({left});"
    "{left} = {right};{left} and {right} or not {left}"
)


class _Grammar:
    """Expressions at random, with and without parentheses; many are outside the subset, and some outside Spark's."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def any(self) -> str:
        return self._of(self._chance.choice(["number", "number", "truth", "truth", "truth", "text"]), 3)

    def _of(self, kind: str, depth: int) -> str:
        pick = self._chance.random()
        if depth == 0 or pick < 0.15:
            literal = self._chance.random() < 0.35 and _LITERALS[kind]
            return self._chance.choice(_LITERALS[kind] if literal else _COLUMNS[kind])
        if pick < 0.25:
            return f"({self._of(kind, depth - 1)})"
        if pick < 0.35:
            return self._chosen(kind, depth - 1)
        return getattr(self, f"_{kind}")(depth - 1)

    def _chosen(self, kind: str, depth: int) -> str:
        one, two = self._of(kind, depth), self._of(kind, depth)
        form = self._chance.choice(
            [
                "coalesce({one}, {two})",
                "if({test}, {one}, {two})",
                "CASE WHEN {test} THEN {one} ELSE {two} END",
                "case when {test} then {one} end",
                "CASE WHEN {test} THEN {one} WHEN {more} THEN NULL ELSE {two} END",
            ]
        )
        return form.format(one=one, two=two, test=self._of("truth", depth), more=self._of("truth", 0))

    def _number(self, depth: int) -> str:
        one, two = self._of("number", depth), self._of("number", depth)
        form = self._chance.choice(_OF_NUMBERS.split(";"))
        return form.format(one=one, two=two, text=self._of("text", depth))

    def _text(self, depth: int) -> str:
        return f"concat({self._of('text', depth)}, {self._of('text', depth)})"

    def _truth(self, depth: int) -> str:
        kind = self._chance.choice(["number", "number", "number", "text", "truth", "day", "at"])
        if kind in {"day", "at"}:
            depth = 0
        one, two, three = (self._of(kind, depth) for _ in range(3))
        sign = self._chance.choice(_COMPARISONS)
        form = self._chance.choice(_OF_TRUTH.split(";"))
        listed = ", ".join(self._chance.choices(_LITERALS[kind] or _COLUMNS[kind], k=self._chance.choice([1, 2, 12])))
        left, right = self._of("truth", depth), self._of("truth", depth)
        return form.format(one=one, two=two, three=three, sign=sign, list=listed, left=left, right=right)


_WRITTEN = """
i + 1 + (-1)|i + j + 1|1 + i + 2|2 * i * 2|i + (j + 1) + 1|t + t|t * s|s - s|-t|-s|-b|-n|i % j|b % i|t % t|i / j|d / e
f / f|f / e|d % e|i % 0|i / 0|1 / 0|d / 0.0|i % -1|b % -1|-i % 3|i % -7|b + i|i * b|f + i|f + f|f * d|f + 1.8|f * 1.5
d * 1.8 + 32|i * 1.8|f = 1.1|f = d|d = e|d <=> e|d < e|d > e|d >= e|d <= e|d <> e|d != 1.5|d > 1|d >= 1e3|1 < d|1 >= d
f > i|b = d|b > d|b <=> f|q = q|0.0 = d|-0.0 = d|d = -0.0|i > 1.5|i in (1, 2)|i in (1, NULL)|i not in (1, NULL)
i in (2147483648, 1)|t in (1000, 1)|d in (1.0, 1.5)|x in ('a', 'ß')|x in ('a', NULL)|o in (true)|x = 'a'|x < y
x >= '日本'|x <=> y|x > 1|x = i|o = p|o < p|o > FALSE|o <=> p|day < day2|day = at|at >= at2|local > at|local = local
money > 1|money|money IS NULL|o AND p|o OR p|NOT o|NOT o = p|NOT i = 1|NOT i IS NULL|o AND p OR o|o = p = o|i = j = o
i = j < o|o = i < j|i = 1 IS NULL|i IS NULL = o|o = i in (1, 2)|i between 1 and 2 = true|i between j and b
i between 1 and 1.5|d between 0 and 1.5|d between i and e|not i between 1 and 2|x between 'a' and 'z'
i <> 0 AND 10 / i > 1|10 / i > 1 AND i <> 0|i = 0 OR 10 / i > 1|case when i <> 0 then 10 / i else 0 end
if(i <> 0, 10 % i, 0)|i % 10 <> 0 and o|coalesce(i, 0)|coalesce(i, b)|coalesce(i, d)|coalesce(f, i)|coalesce(f, 1.5)
coalesce(f, d, 1.5)|coalesce(x, 'none')|coalesce(NULL, i)|coalesce(i, NULL, n)|coalesce(i, x)|coalesce(day, day2)
coalesce(t, s, 1)|coalesce(n, i)|coalesce(d, 0)|coalesce(d, 0.0)|nvl(i, 0)|ifnull(i, 0)|if(o, i, b)|if(o, i, NULL)
if(o, f, d)|if(o, f, 1)|if(o, x, 'n')|if(o, day, day2)|if(o, i)|case when o then 1 when p then 2 end
case i when 1 then 2 end|case when o then 'a' else x end|case when i > 1 then d else 0.0 end|cast(i as bigint)
cast(i as double)|cast(b as double)|cast(f as double)|cast(d as float)|cast(i as smallint)|cast(d as int)
cast(o as int)|cast(x as int)|cast(5 as tinyint)|cast(300 as tinyint)|300Y|i::bigint|bigint(i)|cast(i as string)
cast(i as int8)|length(x)|len(x)|char_length(x)|character_length(y)|length(i)|length(x, y)|upper(x)|lower(x)
concat(x, y)|concat(x, 'a')|concat(x, i)|concat(x)|concat(x, 'a' 'b')|x = 'a''b'|'a' 'b'|r'a'|'a'|1|-1|- 1|1.8|1e3
2147483648|-2147483648|-(2147483648)|9223372036854775808|-9223372036854775808|10L|5S|1.5D|1.5F|true|NULL|i = NULL
i <=> NULL|NULL IS NULL|60 * 60 * 24 * i|60 * 60 * b|2147483647 + 1|1 + 1|1 % 2|1 / 2|n IS NULL|n IS NOT NULL
n + 1 > i|(i + 1) IS NULL|(n + 1) IS NULL|(i + 1) <=> (i + 1)|(t + t) > 1000|(i + j) * 0|(i + j) = (j + i)|(t + t) < t
not (i + 1 > 5)|cast(i as bigint) + 1 > 5|I|`I`|NAME|name = 'a'|`odd name`|odd name|unknown|i.x|i[0]|i is true
i is distinct from j|i ! = j|!o|~i|i & 1|i mod 2|mod(i, 2)|i div 2|i + b % 3|i * b % 3|i % 3 * 2|i % 3 % 2|i - j - b
i - (j - b)|- i * 2|- (i) % 3|-d|- f|+i|i = +1|i = - 1|i=-1|i<-1|day is null|at is not null|money + 1|count(i)
i = j -- c|i /* c */|rand() > 0.5|current_date|year(day)|hour(at)|day > '2020-01-01'|day = DATE'2024-02-29'|exists(i)
sum(i) over ()|abs(i)|i in (j, 1)|o in (i = j)|d + i|d - f|e * e|t / t|b / 2|b / 2.5|d / i|d / 2|f / 2|b * 1.0|q + n
q > 1.0|i = 1 and not o|length(concat(x, y)) % 2
date_trunc('hour', at)|date_trunc('HOUR', since)|date_trunc('day', at)|date_trunc('dd', at)|date_trunc('week', at)
date_trunc('month', at)|date_trunc('mon', since)|date_trunc('MM', at)|date_trunc('quarter', at)|date_trunc('year', at)
date_trunc('yyyy', at)|date_trunc('minute', at)|date_trunc('second', at)|date_trunc('millisecond', at)
date_trunc('microsecond', at)|date_trunc('century', at)|date_trunc('hour', local)|date_trunc('hour', day)
date_trunc(x, at)|date_trunc(`x`, at)|date_trunc("hour", at)|date_trunc('hour', at) = at2|date_trunc(x, at) = 'a'
hour(since)|hour(local)|hour(day)|minute(at)|second(at)|second(local)|year(at)|year(local)|year(since)|month(day)
month(at)|day(at)|day(day)|dayofmonth(at)|quarter(at)|quarter(day)|year(x)|year('2024-01-01')|hour(at) = 3|dayofweek(at)
hour(at) * 60 + minute(at)|cast(at as date)|cast(since as date)|cast(local as date)|cast(day as date)|date(at)
cast(at as bigint)|cast(since as bigint)|cast(local as bigint)|cast(at as int)|cast(at as double)|cast(x as date)
cast(at as bigint) % 60|cast(at as date) = day|if(hour(at) > 3, 'late', 'soon')|coalesce(date_trunc('hour', at), at2)
"""


def _expressions() -> list[str]:
    written = [text for line in _WRITTEN.strip().splitlines() for text in line.split("|") if text.strip()]
    written += ["x || y"]  # "|" parts the list above
    grammar = _Grammar(20240229)
    return [*dict.fromkeys([*written, *(grammar.any() for _ in range(2500))])]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    spark.sparkContext.setLogLevel("OFF")  # hundreds of wanted failures
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def _frame(session: SparkSession, batch: pa.RecordBatch) -> DataFrame:
    """Rows that Spark computes in memory of the driver: a failed expression costs milliseconds, not four tasks."""
    return session.createDataFrame(pa.Table.from_batches([batch]), schema=_DDL)


def _answers(frame: DataFrame, texts: list[str]) -> dict[str, tuple[pa.Field, list[Any]] | PySparkException]:
    """Return Spark's column for each text, or its error; a job that fails is parted in two."""
    try:
        chosen = frame.select(*[F.expr(text).alias(f"c{index}") for index, text in enumerate(texts)])
        columns = [column.to_pylist() for column in chosen.toArrow().columns]
        return dict(zip(texts, zip(arrow_schema(chosen.schema), columns, strict=True), strict=True))
    except PySparkException as error:
        if len(texts) == 1:
            return {texts[0]: error}
    middle = len(texts) // 2
    return _answers(frame, texts[:middle]) | _answers(frame, texts[middle:])


@pytest.mark.parametrize(
    ("tame", "everything"),
    [
        pytest.param(True, True, marks=pytest.mark.nightly, id="small values"),
        pytest.param(False, True, marks=pytest.mark.nightly, id="edge values"),
        pytest.param(False, False, id="edge values, every third"),
    ],
)
def test_values_types_and_errors_are_those_of_spark(session: SparkSession, tame: bool, everything: bool) -> None:
    batch = _rows(7, 120 if tame else 300, tame=tame)
    frame = _frame(session, batch)
    known = {text: found for text in _expressions() if (found := columnar(text, _SCHEMA)) is not None}
    assert len(known) > 500
    known = {text: known[text] for text in list(known)[:: 1 if everything else 3]}
    ours = {text: _outcome(found, batch) for text, found in known.items()}
    calm = [text for text, outcome in ours.items() if not isinstance(outcome, str)]
    assert len(ours) - len(calm) > (0 if tame else 15)
    wrong = []
    for start in range(0, len(calm), 100):
        answers = _answers(frame, calm[start : start + 100])
        wrong += [(text, _difference(known[text], ours[text], theirs, batch)) for text, theirs in answers.items()]
    assert not [pair for pair in wrong if pair[1] is not None]


@pytest.mark.parametrize("most", [15, pytest.param(60, marks=pytest.mark.nightly)])
def test_rows_that_raise_are_those_of_spark(session: SparkSession, most: int) -> None:
    """Also in a filter, which leaves rows out earlier than a projection."""
    batch = _rows(11, 150, tame=False)
    known = {text: found for text in _expressions() if (found := columnar(text, _SCHEMA)) is not None}
    raising = [text for text, found in known.items() if found.can_raise]
    conditions = [text for text in raising if known[text].type == pa.bool_()][:most]
    values = [text for text in raising if known[text].type != pa.bool_()][:most]
    wrong: list[Any] = []
    for text in conditions + values:
        outcomes = [_outcome(known[text], batch.slice(row, 1)) for row in range(batch.num_rows)]
        calm = batch.filter(pa.array([not isinstance(outcome, str) for outcome in outcomes]))
        ours = known[text].evaluate(calm)
        frame = _frame(session, calm)
        if (found := _difference(known[text], ours, _answers(frame, [text])[text], calm)) is not None:
            wrong.append((text, found))
        if text in conditions and frame.where(text).toArrow().num_rows != ours.to_pylist().count(True):
            wrong.append((text, "filters otherwise"))
        bad = next((row for row, outcome in enumerate(outcomes) if isinstance(outcome, str)), None)
        if bad is not None:
            one = batch.slice(bad, 1)
            theirs = _fault(_frame(session, one), text, is_filter=text in conditions)
            if theirs != outcomes[bad]:
                wrong.append((text, outcomes[bad], theirs, one.to_pylist()))
    assert not wrong


def _fault(frame: DataFrame, text: str, *, is_filter: bool) -> str | None:
    try:
        (frame.where(text) if is_filter else frame.selectExpr(text)).toArrow()
    except PySparkException as error:
        return error.getCondition()
    return None


def _outcome(known: Columnar, batch: pa.RecordBatch) -> pa.Array | str:
    """Return the values, or the name of the fault."""
    try:
        return known.evaluate(batch)
    except BadRow as error:
        return error.what.rpartition(": ")[2].rstrip(".")


def _difference(known: Columnar, ours: pa.Array | str, theirs: Any, batch: pa.RecordBatch) -> Any:
    if isinstance(theirs, PySparkException) or isinstance(ours, str):
        condition = theirs.getCondition() if isinstance(theirs, PySparkException) else "values"
        return None if condition == ours else (ours if isinstance(ours, str) else "values", condition)
    field, values = theirs
    if {(known.type, known.nullable), (ours.type, known.nullable)} != {(field.type, field.nullable)}:
        return known.type, known.nullable, ours.type, field
    if not known.nullable and ours.null_count:
        return "nulls"
    for row, one, other in zip(batch.to_pylist(), ours.to_pylist(), values, strict=True):
        if _exact(one) != _exact(other):
            return one, other, row
    return None


def _exact(value: Any) -> Any:
    """Tell -0.0 from 0.0 and take NaN for equal to itself."""
    return (repr(value),) if isinstance(value, float) else value


def test_names_are_those_of_spark(session: SparkSession) -> None:
    frame = _frame(session, _rows(7, 3, tame=True))
    selections = [
        ["*"],
        ["* except (I, `odd name`)", "i + 1 AS i"],
        ["NAME", "I", "`X` AS `a b`", "d*1.8+32 as Warm"],
        ["`odd name`", "i as x", "x as i"],
        ["i + 1 total"],
        ["(i)"],
        ["i", "I"],
        ["i as k", "k + 1 as l"],
    ]
    known = 0
    for items in selections:
        found = columnar_items(items, _SCHEMA)
        if found is not None:
            known += 1
            theirs = arrow_schema(frame.selectExpr(*items).schema)
            assert [name for name, _ in found] == theirs.names
            assert [(one.type, one.nullable) for _, one in found] == [(field.type, field.nullable) for field in theirs]
    assert known == 4


def test_fields_of_a_struct_are_those_of_spark(session: SparkSession) -> None:
    schema = pa.schema([("s", pa.struct([pa.field("x", pa.int32(), nullable=False), ("Text", pa.string())]))])
    batch = pa.record_batch([[{"x": 1, "Text": "a"}, None, {"x": 3, "Text": None}]], schema=schema)
    items = ["s.x", "S.TEXT", "s.x + 1 AS more", "length(s.Text) AS n", "s.x IS NULL AS is_gone"]
    items += ["s IS NULL AS is_missing", "s IS NOT NULL AND s.x > 1 AS is_there"]
    frame = session.createDataFrame(batch.to_pylist(), "s STRUCT<x: INT NOT NULL, Text: STRING>").selectExpr(*items)
    found = columnar_items(items, schema)
    assert found is not None
    assert [name for name, _ in found] == frame.columns
    values = [known.evaluate(batch).to_pylist() for _, known in found]
    assert sorted(zip(*values, strict=True), key=str) == sorted(map(tuple, frame.collect()), key=str)
    assert [field.nullable for field in frame.schema] == [known.nullable for _, known in found]


def test_columns_of_any_type_are_null_where_they_are_for_spark(session: SparkSession) -> None:
    kinds = {"l": "ARRAY<INT>", "m": "MAP<STRING, INT>", "c": "DECIMAL(9, 2)", "r": "BINARY"}
    values: dict[str, list[Any]] = {"l": [[], [None], None], "m": [{}, {"a": None}, None], "r": [b"", b"a", None]}
    values["c"] = [Decimal(0), Decimal("1.25"), None]
    items = [f"{name} IS {sign} AS {name}{len(sign)}" for name in kinds for sign in ("NULL", "NOT NULL")]
    rows = [dict(zip(kinds, row, strict=True)) for row in zip(*(values[name] for name in kinds), strict=True)]
    frame = session.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    batch = frame.toArrow().combine_chunks().to_batches()[0]
    found = columnar_items(items, batch.schema)
    assert found is not None
    ours = zip(*(known.evaluate(batch).to_pylist() for _, known in found), strict=True)
    assert sorted(ours) == sorted(map(tuple, frame.selectExpr(*items).collect()))
