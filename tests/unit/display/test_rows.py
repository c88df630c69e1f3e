"""Rows for people: nothing secret, nothing long, nothing that JSON or a terminal does not take (design/0049, 5)."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.display.rows import ITEMS_MAX, TEXT_MAX, row_line, rows_of


def shown(values: list[Any], kind: pa.DataType | None = None) -> list[Any]:
    """Return values of a column as they are shown."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["v"])
    rows = rows_of(batch, len(values))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows, "JSON without extensions has it"
    return [row["v"] for row in rows]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view()], ids=["plain", "large", "fixed", "view"]
)
def test_a_binary_value_is_its_size(kind: pa.DataType) -> None:
    assert shown([b"1234", None], kind) == ["<4 bytes>", None]


def test_binary_values_within_others_are_their_sizes() -> None:
    assert shown([{"image": b"x" * 5000, "at": [b"", b"1"]}]) == [
        {"image": "<5,000 bytes>", "at": ["<0 bytes>", "<1 bytes>"]}
    ]


def test_secrets_are_masked_by_their_form_and_by_the_names_of_columns_members_and_keys() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["postgresql://app:hunter2@db/trips password=hunter2"]),
            pa.array(["hunter2"]),
            pa.array([{"api_key": "hunter2", "at": "hunter1"}]),
            pa.array([[("secret", "hunter2"), ("plain", "x")]], pa.map_(pa.string(), pa.string())),
            pa.array([b"hunter2"]),
        ],
        names=["dsn", "access_token", "inner", "entries", "password"],
    )
    (row,) = rows_of(batch, 1)
    assert "hunter2" not in json.dumps(row)
    assert row == {
        "dsn": "postgresql://app:***@db/trips password=***",
        "access_token": "***",
        "inner": {"api_key": "***", "at": "hunter1"},
        "entries": {"secret": "***", "plain": "x"},
        "password": "***",
    }


def test_a_secret_that_begins_before_the_cut_and_ends_behind_it_is_masked() -> None:
    long = "x" * (TEXT_MAX - 20) + " https://app:" + "hunter2" * 40 + "@host/"
    (found,) = shown([long])
    assert "hunter" not in found


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_long_text_is_cut_also_within_a_character(kind: pa.DataType) -> None:
    found = shown(["ü" * 100_000, "ü" * TEXT_MAX], kind)
    assert found == ["ü" * TEXT_MAX + "...", "ü" * TEXT_MAX]


def test_long_lists_and_maps_are_cut() -> None:
    assert shown([list(range(1000))]) == [[*range(ITEMS_MAX), "<980 more>"]]
    maps = pa.array([[(f"k{n}", n) for n in range(25)]], pa.map_(pa.string(), pa.int64()))
    assert shown(maps.to_pylist(), maps.type) == [{**{f"k{n}": n for n in range(ITEMS_MAX)}, "...": "<5 more>"}]
    assert shown([[(1, "a")]], pa.map_(pa.int64(), pa.string())) == [[{"key": 1, "value": "a"}]]


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (True, None, True),
        (float("nan"), None, "nan"),
        (float("-inf"), None, "-inf"),
        (Decimal("1.50"), None, "1.50"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), None, "2026-01-02T03:04:05"),
        (datetime.date(2026, 1, 2), None, "2026-01-02"),
        (datetime.timedelta(seconds=90), None, "0:01:30"),
        (2**62, pa.timestamp("us"), f"timestamp[us] {2**62}"),
        (2**31 - 1, pa.date32(), f"date32[day] {2**31 - 1}"),
        ("x", pa.dictionary(pa.int8(), pa.string()), "x"),
        (None, pa.null(), None),
    ],
)
def test_other_values_are_as_json_has_them(value: Any, kind: pa.DataType | None, wanted: Any) -> None:
    assert shown([value], kind) == [wanted]


def test_a_line_has_nothing_that_a_terminal_obeys() -> None:
    line = row_line({"a\nb": "x\r\n\x9b2J", "c": ["é", {"d": None}]})
    assert line == 'a\\nb="x\\r\\n\\x9b2J", c=["é", {"d": null}]'
