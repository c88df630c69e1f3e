"""JSON lines from Arrow columns, compared with Python's own reader, value by value."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kit import json_lines
from holdfast.errors import BadRow


def _read(data: bytes) -> list[Any]:
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def _written(kind: pa.DataType, *values: Any) -> list[Any]:
    return [line["x"] for line in _read(json_lines.encode(pa.table({"x": pa.array(values, kind)})))]


_UTC = datetime.UTC
_STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.bool_(), True, True),
        (pa.int64(), -(2**63), -(2**63)),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float64(), 1.0, 1.0),
        (pa.float64(), 1e300, 1e300),
        (pa.float64(), float("nan"), None),
        (pa.float64(), float("-inf"), None),
        (pa.float32(), 0.5, 0.5),
        (pa.string(), 'q"\\\n\t\x00\x1f\x7fü€😀', 'q"\\\n\t\x00\x1f\x7fü€😀'),
        (pa.large_string(), "x", "x"),
        (pa.string(), "", ""),
        (pa.date32(), datetime.date(2026, 2, 28), "2026-02-28"),
        (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 2, 3, 4, 5, 600, _UTC), "2026-01-02T03:04:05.000600Z"),
        (pa.timestamp("us"), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), "1969-12-31T23:59:59.999999"),
        (pa.timestamp("s"), datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"),
        (pa.decimal128(10, 2), Decimal("-12.50"), -12.5),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.list_(pa.int64()), [1, None, 3], [1, None, 3]),
        (pa.list_(pa.float64()), [float("nan"), 1.5], [None, 1.5]),
        (_STRUCT, {"a": 1, "b": 'x"y'}, {"a": 1, "b": 'x"y'}),
        (pa.list_(_STRUCT), [{"a": 1, "b": None}], [{"a": 1, "b": None}]),
        (pa.map_(pa.string(), pa.int64()), [("k", 1)], {"k": 1}),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            [datetime.datetime(2026, 1, 2, tzinfo=_UTC)],
            ["2026-01-02T00:00:00.000000Z"],
        ),
        (pa.struct([]), {}, {}),
        (pa.dictionary(pa.int8(), pa.string()), "word", "word"),
        (pa.null(), None, None),
    ],
)
def test_each_type_is_written_as_json_and_null_as_null(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert _written(kind, value, None) == [expected, None]


def test_a_whole_float_keeps_its_point_so_that_readers_do_not_guess_an_integer() -> None:
    assert json_lines.encode(pa.table({"x": [1.0, 2.5]})) == b'{"x":1.0}\n{"x":2.5}\n'


def test_column_names_are_escaped() -> None:
    assert _read(json_lines.encode(pa.table({'a"b\\ü': [1]}))) == [{'a"b\\ü': 1}]


def test_slices_and_empty_tables_are_written_as_what_they_are() -> None:
    rows = pa.table({"x": ["a", None, 'c"', "d"]})
    assert _read(json_lines.encode(rows.slice(1, 2))) == [{"x": None}, {"x": 'c"'}]
    assert _read(json_lines.encode(rows.slice(2, 1).to_batches()[0])) == [{"x": 'c"'}]
    assert json_lines.encode(rows.slice(0, 0)) == b""


@pytest.mark.slow
def test_every_chunk_is_written() -> None:
    chunked = pa.concat_tables([pa.table({"x": [number]}) for number in range(5)])
    assert _read(json_lines.encode(chunked)) == [{"x": number} for number in range(5)]
    long = pa.table({"x": range(200_000)})
    assert json_lines.encode(long).count(b"\n") == 200_000


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "i": st.none() | st.integers(-(2**63), 2**63 - 1),
                "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "s": st.none() | st.text(),
                "l": st.none() | st.lists(st.text(), max_size=3),
                "r": st.none() | st.fixed_dictionaries({"t": st.none() | st.text()}),
            }
        ),
        max_size=20,
    )
)
def test_any_rows_come_back_equal(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("l", pa.list_(pa.string())),
            ("r", pa.struct([("t", pa.string())])),
        ]
    )
    assert _read(json_lines.encode(pa.Table.from_pylist(rows, schema=schema))) == rows


def _rows(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"x": pa.array(values, kind)})


_DECIMAL = pa.decimal128(38, 18)
_DIGITS = [Decimal("12345678901234567890.12"), Decimal("-0.000000000000000001"), Decimal(0)]
_MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(_DECIMAL), [_DIGITS, [None], [], None]),
        (pa.list_(pa.decimal128(20, 2)), [[Decimal("123456789012345678.91"), None]]),
        (pa.map_(pa.string(), pa.list_(_DECIMAL)), [[('a"b', _DIGITS), ("", None)], [], None]),
        (pa.map_(_DECIMAL, pa.int64()), [[(digits, 1) for digits in _DIGITS]]),
        (pa.map_(pa.timestamp("us"), pa.bool_()), [[(_MOMENT, True)]]),
        (pa.map_(pa.date32(), pa.float64()), [[(datetime.date(1, 1, 1), 0.1), (datetime.date(9999, 12, 31), 1.0)]]),
        (pa.map_(pa.bool_(), pa.binary()), [[(True, b"\xff"), (False, None)]]),
        (pa.map_(pa.float64(), pa.string()), [[(1e300, "x"), (0.1, None)]]),
        (pa.struct([("l", pa.list_(_STRUCT))]), [{"l": [{"a": 1, "b": "\n"}, None]}, {"l": None}, None]),
        (pa.duration("us"), [datetime.timedelta(days=106_751_990, microseconds=1), None]),
    ],
)
def test_nested_values_come_back_as_they_were(kind: pa.DataType, values: list[Any]) -> None:
    rows = _rows(kind, [None, *values, *values])
    for part in (rows, rows.slice(1, len(values))):
        json_lines.check(part.to_batches()[0])
        assert json_lines.decode(json_lines.encode(part), part.schema).equals(part)


_BEYOND = [
    (pa.date32(), 2_147_483_647),
    (pa.date32(), -800_000),  # -0221-08-31
    (pa.timestamp("us"), 253_402_300_800_000_000),  # 10000-01-01
    (pa.timestamp("us", "UTC"), -62_135_596_800_000_001),
    (pa.timestamp("ms"), 2**62),
]


@pytest.mark.parametrize(("kind", "value"), _BEYOND)
@pytest.mark.parametrize("nested", [False, True])
def test_a_time_outside_of_the_years_1_to_9999_is_a_bad_row(kind: pa.DataType, value: int, nested: bool) -> None:
    values = pa.array([value], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    if nested:
        values = pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.ListArray.from_arrays([0, 1], values))
    with pytest.raises(BadRow, match=r"column 'x' holds a value that cannot be written as JSON.*\n.*years 1 to 9999"):
        json_lines.check(pa.record_batch({"x": values}))


@pytest.mark.parametrize("key", [pa.binary(), pa.struct([("a", pa.int64())])])
def test_keys_of_maps_that_json_has_no_text_for_are_bad_rows(key: pa.DataType) -> None:
    kind = pa.struct([("m", pa.list_(pa.map_(key, pa.int64())))])
    held = b"\xff" if key == pa.binary() else {"a": 1}
    with pytest.raises(BadRow, match="key"):
        json_lines.check(_rows(kind, [{"m": [[(held, 1)]]}]).to_batches()[0])
    json_lines.check(_rows(kind, [None]).to_batches()[0])
