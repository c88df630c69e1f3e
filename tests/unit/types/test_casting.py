"""Rows brought to a schema keep their values and their nulls, however deep."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.types.casting import fitted, fitted_column, fitted_table, same_in


def _nested(*, nullable: bool) -> pa.DataType:
    leaf = pa.struct([pa.field("z", pa.string(), nullable=nullable)])
    inner = pa.struct([pa.field("q", pa.int32(), nullable=nullable), pa.field("many", pa.list_(leaf))])
    return pa.struct([pa.field("one", inner), pa.field("named", pa.map_(pa.string(), pa.field("value", inner)))])


def _value(chance: random.Random) -> Any:
    def inner() -> Any:
        if chance.random() < 0.3:
            return None
        leaves = [None if chance.random() < 0.3 else {"z": "a"} for _ in range(chance.randint(0, 3))]
        return {"q": chance.randint(0, 9), "many": None if chance.random() < 0.3 else leaves}

    if chance.random() < 0.3:
        return None
    pairs = [(str(index), inner()) for index in range(chance.randint(0, 3))]
    return {"one": inner(), "named": None if chance.random() < 0.3 else pairs}


@pytest.mark.parametrize("seed", range(20))
def test_nested_nulls_survive_a_change_of_what_may_be_null(seed: int) -> None:
    chance = random.Random(seed)
    values = [_value(chance) for _ in range(9)]
    for from_nullable in (True, False):
        column = pa.array(values, _nested(nullable=from_nullable)).slice(chance.randint(0, 4), chance.randint(0, 5))
        result = fitted_column(column, _nested(nullable=not from_nullable))
        result.validate(full=True)
        assert result.type == _nested(nullable=not from_nullable)
        assert result.to_pylist() == column.to_pylist()


def test_a_batch_of_the_schema_is_not_touched() -> None:
    batch = pa.record_batch({"a": [1]})
    assert fitted(batch, batch.schema) is batch


def test_a_null_struct_with_a_member_that_may_not_be_null_passes_through_every_sink_s_door() -> None:
    exact = pa.schema([("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
    loose = pa.schema([("s", pa.struct([pa.field("a", pa.int64())]))])
    table = pa.Table.from_pylist([{"s": None}, {"s": {"a": 1}}], schema=loose)
    assert fitted_table(table, exact).schema == exact
    assert fitted_table(table, exact).to_pylist() == table.to_pylist()


_DEEP = pa.struct([("a", pa.int64()), ("many", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])))])
_DEEPER = pa.struct([("many", pa.list_(pa.struct([("y", pa.string()), ("x", pa.int64()), ("z", pa.bool_())])))])


@pytest.mark.parametrize(
    ("values", "was", "now", "expected"),
    [
        ([13, None], pa.int64(), pa.int16(), [13, None]),
        ([13, None], pa.int64(), pa.float64(), [13.0, None]),
        ([13], pa.int64(), pa.string(), ["13"]),
        (["13"], pa.string(), pa.int64(), [13]),
        ([None], pa.int64(), _DEEP, [None]),
        ([{"a": 1, "many": [{"x": 2, "y": "b"}]}], _DEEP, _DEEPER, [{"many": [{"y": "b", "x": 2, "z": None}]}]),
        ([None, {"a": 1, "many": None}], _DEEP, _DEEPER, [None, {"many": None}]),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
    ],
)  # fmt: skip
def test_values_go_into_another_type_where_they_stay_the_same(values: Any, was: Any, now: Any, expected: Any) -> None:
    found = same_in(pa.array(values, was), now)
    assert found.type == now
    assert found.to_pylist() == expected


def test_what_is_no_number_is_still_none_in_a_wider_type() -> None:
    assert repr(same_in(pa.array([float("nan")], pa.float32()), pa.float64()).to_pylist()) == "[nan]"


@pytest.mark.parametrize(
    ("value", "was", "now"),
    [
        (70_000, pa.int64(), pa.int16()),
        (1.5, pa.float64(), pa.int64()),
        (2**53 + 1, pa.int64(), pa.float64()),
        (0.1, pa.float64(), pa.float32()),
        ("007", pa.string(), pa.int64()),
        ("seven", pa.string(), pa.int64()),
        (7, pa.int64(), pa.bool_()),
        (1_500_000, pa.timestamp("us", "UTC"), pa.date32()),
        ({"a": 1}, pa.struct([("a", pa.int64())]), pa.int64()),
        ([1], pa.list_(pa.int64()), pa.string()),
    ],
)  # fmt: skip
def test_a_value_that_would_be_another_one_in_a_type_is_refused(value: Any, was: Any, now: Any) -> None:
    with pytest.raises(ValueError, match="its value"):
        same_in(pa.array([value], was), now)
