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

from holdfast.sinks import json_lines


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
        (pa.list_(pa.timestamp("us", "UTC")), [datetime.datetime(2026, 1, 2, tzinfo=_UTC)], ["2026-01-02T00:00:00Z"]),
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
