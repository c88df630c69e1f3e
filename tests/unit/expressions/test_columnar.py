"""The Arrow subset without a JVM: types, nulls, NaN, errors, names, pickling, and what is left to Spark."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar, columnar_items
from holdfast.expressions.kernels import Constant, Reference
from holdfast.expressions.logic import CaseWhen, Comparison

_NAN = float("nan")
_SCHEMA = pa.schema(
    [
        ("t", pa.int8()),
        ("i", pa.int32()),
        ("b", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("x", pa.string()),
        ("o", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("s", pa.struct([("x", pa.int32())])),
        pa.field("n", pa.int32(), nullable=False),
    ]
)


def _batch(**columns: list[Any]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    filled = {"n": [1] * count} | columns
    return pa.record_batch([filled.get(name, [None] * count) for name in _SCHEMA.names], schema=_SCHEMA)


def _values(expression: str, **columns: list[Any]) -> list[Any]:
    known = columnar(expression, _SCHEMA)
    assert known is not None
    values = known.evaluate(_batch(**columns))
    assert isinstance(values, pa.Array)
    assert values.type == known.type
    return values.to_pylist()


@pytest.mark.parametrize(
    ("expression", "kind", "nullable"),
    [
        ("i", pa.int32(), True),
        ("n", pa.int32(), False),
        ("tags", pa.list_(pa.string()), True),
        ("t + t", pa.int8(), True),
        ("t + 1", pa.int32(), True),
        ("i * b", pa.int64(), True),
        ("n + 2147483648", pa.int64(), False),
        ("f + f", pa.float32(), True),
        ("f + i", pa.float64(), True),
        ("f * 1.8", pa.float64(), True),
        ("n / 2", pa.float64(), True),
        ("n % 2", pa.int32(), True),
        ("-t", pa.int8(), True),
        ("n > 1", pa.bool_(), False),
        ("i <=> 1", pa.bool_(), False),
        ("i IS NULL", pa.bool_(), False),
        ("coalesce(i, 0)", pa.int32(), False),
        ("if(o, f, d)", pa.float64(), True),
        ("case when o then n end", pa.int32(), True),
        ("length(x)", pa.int32(), True),
        ("b * 0.908", pa.decimal128(24, 3), True),
        ("n * 1.8", pa.decimal128(13, 1), False),
        ("i > 1.5", pa.bool_(), True),
        ("CAST(n AS DECIMAL(12, 2))", pa.decimal128(12, 2), False),
        ("CAST(n AS DECIMAL(11, 2))", pa.decimal128(11, 2), True),
        ("regexp_extract(x, 'a(b)')", pa.string(), True),
        ("split(x, ',')[0]", pa.string(), True),
        ("date_format(at, 'yyyy-MM-dd')", pa.string(), True),
        ("10L", pa.int64(), False),
        ("-2147483648", pa.int32(), False),
    ],
)
def test_types_are_those_of_spark(expression: str, kind: pa.DataType, nullable: bool) -> None:
    known = columnar(expression, _SCHEMA)
    assert known is not None
    assert (known.type, known.nullable) == (kind, nullable)
    assert known.evaluate(_batch(n=[])).type == kind


def test_a_null_operand_makes_a_null() -> None:
    assert _values("i + 1", i=[1, None]) == [2, None]
    assert _values("i / 2", i=[1, None]) == [0.5, None]
    assert _values("concat(x, 'b')", x=["a", None]) == ["ab", None]


def test_a_literal_is_there_for_every_row() -> None:
    assert _values("'a'", i=[1, 2, 3]) == ["a", "a", "a"]


def test_logic_is_three_valued() -> None:
    assert _values("o AND FALSE", o=[True, False, None]) == [False, False, False]
    assert _values("o OR i = 1", o=[None, None], i=[1, None]) == [True, None]
    assert _values("NOT o", o=[True, None]) == [False, None]
    assert _values("i IN (1, NULL)", i=[1, 2, None]) == [True, None, None]
    assert _values("i NOT IN (1)", i=[1, 2, None]) == [False, True, None]
    assert _values("b BETWEEN 1 AND i", b=[1, 0, 2], i=[None, None, 2]) == [None, False, True]
    assert _values("i <=> b", i=[1, None, 1], b=[1, None, None]) == [True, True, False]


def test_a_condition_that_is_null_chooses_the_other_branch() -> None:
    assert _values("if(o, 1, 2)", o=[True, False, None]) == [1, 2, 2]
    assert _values("CASE WHEN i = 1 THEN 'one' WHEN i = 2 THEN x END", i=[1, 2, None], x=["a"] * 3) == [
        "one",
        "a",
        None,
    ]


@dataclass(frozen=True)
class _Noted:
    """A text that is computed, and notes of which rows."""

    of: Reference
    seen: list[list[str | None]]
    type: pa.DataType
    nullable: bool = True
    can_raise: bool = False

    def compute(self, batch: pa.RecordBatch) -> pa.Array:
        texts = self.of.compute(batch)
        self.seen.append(texts.to_pylist())
        return pc.utf8_upper(texts)


def test_a_computed_text_is_computed_of_its_own_rows_alone() -> None:
    text = Reference("x", pa.string(), nullable=True)
    first: list[list[str | None]] = []
    last: list[list[str | None]] = []
    conditions = tuple(Comparison("=", Reference("i", pa.int32(), nullable=True), _number(i)) for i in (1, 2, 3))
    values = (Constant("one", pa.string()), _Noted(text, first, text.type), text, _Noted(text, last, text.type))
    batch = _batch(i=[1, 0, None, 2, 0, 3, 1], x=["a", "b", None, "c", "d", "e", "f"])
    chosen = CaseWhen(conditions, values).compute(batch)
    assert chosen.to_pylist() == ["one", "B", None, "C", "D", "e", "one"]
    assert (first, last) == ([["c"]], [["b", None, "d"]])


def _number(value: int) -> Constant:
    return Constant(value, pa.int32())


@pytest.mark.parametrize("i", [[], [1], [1, 1], [2, None]], ids=["no row", "one", "the first", "the last"])
def test_a_case_of_computed_texts_without_rows_of_a_kind(i: list[int | None]) -> None:
    text = "CASE WHEN i = 1 THEN replace(x, 'a', 'b') WHEN i = 7 THEN NULL ELSE trim(x) END"
    assert _values(text, i=i, x=[" a"] * len(i)) == [" b" if one == 1 else "a" for one in i]


def test_nan_equals_nan_and_is_greater_than_every_number() -> None:
    pairs = {"d": [_NAN, _NAN, 1.0, 1.0], "f": [_NAN, 1.0, _NAN, 1.0]}
    assert _values("d = f", **pairs) == [True, False, False, True]
    assert _values("d <> f", **pairs) == [False, True, True, False]
    assert _values("d < f", **pairs) == [False, False, True, False]
    assert _values("d <= f", **pairs) == [True, False, True, True]
    assert _values("d > f", **pairs) == [False, True, False, False]
    assert _values("d >= f", **pairs) == [True, True, False, True]
    assert _values("d <=> f", **pairs) == [True, False, False, True]
    assert _values("d > 1e9", d=[_NAN, float("inf"), None]) == [True, True, None]
    assert _values("1e9 < d", d=[_NAN, 0.0, None]) == [True, False, None]


def test_minus_zero_is_zero() -> None:
    assert _values("d = 0", d=[-0.0]) == [True]
    assert _values("d < 0.0", d=[-0.0]) == [False]


def test_the_remainder_has_the_sign_of_the_dividend() -> None:
    assert _values("i % 3", i=[-7, 7, -(2**31)]) == [-1, 1, -2]
    assert _values("i % b", i=[7, -7, 1, None], b=[-3, 3, None, 0]) == [1, -1, None, None]
    assert _values("b % -1", b=[-(2**63)]) == [0]


def test_text_is_counted_in_code_points() -> None:
    assert _values("length(x)", x=["", "日本", "😀", "e\u0301"]) == [0, 2, 1, 2]


@pytest.mark.parametrize(
    ("expression", "columns", "fault"),
    [
        ("i + 1", {"i": [2**31 - 1]}, "ARITHMETIC_OVERFLOW"),
        ("t * t", {"t": [100]}, "BINARY_ARITHMETIC_OVERFLOW"),
        ("-b", {"b": [-(2**63)]}, "ARITHMETIC_OVERFLOW"),
        ("i / b", {"i": [1], "b": [0]}, "DIVIDE_BY_ZERO"),
        ("d / f", {"d": [1.0], "f": [-0.0]}, "DIVIDE_BY_ZERO"),
        ("i % b", {"i": [1], "b": [0]}, "REMAINDER_BY_ZERO"),
        ("split(x, ',')[1]", {"x": ["a"]}, "INVALID_ARRAY_INDEX"),
        ("CAST(i AS DECIMAL(3, 1))", {"i": [100]}, "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION"),
        ("not (i + 1 > 5)", {"i": [2**31 - 1]}, "ARITHMETIC_OVERFLOW"),
    ],
)
def test_a_row_without_a_value_is_a_bad_row(expression: str, columns: dict[str, list[Any]], fault: str) -> None:
    known = columnar(expression, _SCHEMA)
    assert known is not None
    assert known.can_raise
    with pytest.raises(BadRow) as caught:
        known.evaluate(_batch(**columns))
    assert repr(expression) in caught.value.what
    assert caught.value.what.endswith(f": {fault}.")
    assert caught.value.do


def test_halves_of_a_decimal_are_rounded_away_from_zero() -> None:
    assert _values("CAST(i * 0.5 AS DECIMAL(9, 0))", i=[1, -1, 3, None]) == [1, -1, 2, None]


def test_years_of_more_than_four_digits_have_a_sign() -> None:
    assert _values("date_format(at, 'yyyy/MM')", at=[0, 253402300800000000, None]) == ["1970/01", "+10000/01", None]


@pytest.mark.parametrize("pattern", ["yyyy-MM-dd", "HH", "yyyy HH:mm", "ss", "mm:ss.SSS", "dd-dd"])
@pytest.mark.parametrize("step", [1, 999, 1_000_001, 3_600_000_000])
def test_times_that_look_the_same_are_formatted_as_each_is_alone(pattern: str, step: int) -> None:
    known = columnar(f"date_format(at, '{pattern}')", _SCHEMA)
    assert known is not None
    times = [None if place % 7 == 0 else place * step for place in range(-200, 200)]
    alone = [known.evaluate(_batch(at=[time])).to_pylist()[0] for time in times]
    assert known.evaluate(_batch(at=times)).to_pylist() == alone
    assert known.evaluate(_batch(at=[-(2**63), *times])).to_pylist()[1:] == alone


def test_a_zero_below_a_null_is_no_error() -> None:
    assert _values("i / b", i=[None, 1], b=[0, None]) == [None, None]


def test_a_slice_of_a_batch_gives_its_own_rows() -> None:
    known = columnar("i % 3 = 1", _SCHEMA)
    assert known is not None
    assert known.evaluate(_batch(i=[0, 1, None, 4]).slice(1, 3)).to_pylist() == [True, None, True]


def test_a_field_of_a_struct_is_null_where_the_struct_is() -> None:
    assert _values("s.x", s=[{"x": 1}, None, {"x": None}]) == [1, None, None]
    assert _values("S.X + 1 > 1", s=[{"x": 1}, None, {"x": 0}]) == [True, None, False]
    sliced = _batch(s=[{"x": 1}, None, {"x": 3}]).slice(1)
    known = columnar("s.x", _SCHEMA)
    assert known is not None
    assert known.evaluate(sliced).to_pylist() == [None, 3]
    assert known.reads == {"s"}


def test_a_column_of_any_type_can_be_asked_whether_it_is_null() -> None:
    assert _values("s IS NULL", s=[{"x": None}, None]) == [False, True]
    assert _values("tags IS NOT NULL", tags=[[], None]) == [True, False]
    sliced = _batch(s=[None, {"x": 1}, None]).slice(1)
    known = columnar("s IS NULL", _SCHEMA)
    assert known is not None
    assert known.evaluate(sliced).to_pylist() == [False, True]
    assert columnar("s = s", _SCHEMA) is None


def test_a_field_of_a_struct_has_the_name_that_is_written() -> None:
    found = columnar_items(["s.X", "s.x AS y"], _SCHEMA)
    assert found is not None
    assert [name for name, _ in found] == ["X", "y"]


def test_it_survives_pickling() -> None:
    known = columnar("case when i in (1, 2) then coalesce(d, 0) * 1.8 + 32 else length(x) end", _SCHEMA)
    again = pickle.loads(pickle.dumps(known))
    assert again == known
    assert again.evaluate(_batch(i=[1, 3], x=["", "abc"])).to_pylist() == [32.0, 3.0]


def test_columns_are_found_without_regard_to_case() -> None:
    assert _values("I + `I`", i=[1]) == [2]
    assert columnar("a", pa.schema([("a", pa.int32()), ("A", pa.int32())])) is None
    assert columnar("É", pa.schema([("é", pa.int32())])) is None


def test_items_have_the_names_that_spark_gives_them() -> None:
    schema = pa.schema([("a", pa.int32()), ("b c", pa.string())])
    found = columnar_items(["*", "A + 1 AS next", "a AS `x y`"], schema)
    assert found is not None
    assert [name for name, _ in found] == ["a", "b c", "next", "x y"]
    batch = pa.record_batch([[1], ["t"]], schema=schema)
    assert [known.evaluate(batch).to_pylist() for _, known in found] == [[1], ["t"], [2], [1]]
    excepted = columnar_items(["* EXCEPT (`B C`)", "a + 1\n AS `b c`"], schema)
    assert excepted is not None
    assert [name for name, _ in excepted] == ["a", "b c"]
    written = columnar_items(["A"], schema)
    assert written is not None
    assert written[0][0] == "A"


@pytest.mark.parametrize(
    "items",
    [
        ["i + 1"],
        ["(i)"],
        ["all i"],
        ["i", "I"],
        ["*", "b AS i"],
        ["i AS k", "k + 1 AS l"],
        ["* EXCEPT (unknown)"],
        ["s.*"],
    ],
)
def test_items_whose_names_are_not_sure_are_left_to_spark(items: list[str]) -> None:
    assert columnar_items(items, _SCHEMA) is None


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "unknown",
        "s.unknown",
        "s.x.y",
        "t.i",
        "tags[0]",
        "i AS k",
        "*",
        "NULL",
        "1.8",
        "i / 1.8",
        "i % 1.5",
        "CAST(d AS DECIMAL(9, 2))",
        "x > 1",
        "i = x",
        "d % 2",
        "d IN (1.5)",
        "i / 0",
        "i % 0",
        "1 / 0",
        "2147483647 + 1",
        "9223372036854775808",
        "i <> 0 AND 10 / i > 1",
        "10 / i > 1 OR o",
        "CASE WHEN i <> 0 THEN 10 / i ELSE 0 END",
        "if(true, n, i)",
        "coalesce(i, b + 1)",
        "(i + 1) IS NULL",
        "(i + 1) <=> 1",
        "i + 1 IN (1)",
        "i + 1 + (-1)",
        "i + (b + 1)",
        "i + 1 > b",
        "(t + t) > 1000",
        "CAST(d AS INT)",
        "CAST(b AS INT)",
        "CAST(i AS STRING)",
        "TRY_CAST(i AS BIGINT)",
        "CAST(300 AS TINYINT)",
        "i::bigint",
        "upper(x)",
        "nvl(i, 0)",
        "x || 'a'",
        "'a' 'b'",
        "x = 'it''s'",
        r"x = 'a\nb'",
        "x = '${y}'",
        "!o",
        "i -- all",
        "i = b < d",
        "o = i IS NULL",
        "i IS NULL = o",
        "(i = b IN (1))",
        "o BETWEEN (o) OR (o)",
        "i BETWEEN 1 AND 2 = o",
        "i IN (1,)",
        "coalesce(i, b,)",
        "i IN (b)",
        "i IN (SELECT 1)",
        "i DIV 2",
        "i & 1",
        "rand() > 0.5",
        "count(i)",
        "sum(i) OVER ()",
        "at > '2013-01-01'",
        "dayofweek(at)",
        "current_date",
        "exists(tags, tag -> tag = 'a')",
        "i, b",
        "i FROM t",
        "DISTINCT i",
        "i +",
        "i = 1; i = 2",
        "(" * 100 + "i" + ")" * 100,
    ],
)
def test_what_is_not_surely_the_same_is_left_to_spark(expression: str) -> None:
    assert columnar(expression, _SCHEMA) is None
