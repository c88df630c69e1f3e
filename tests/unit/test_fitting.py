"""Rows brought to a schema keep their values and their nulls, however deep."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.fitting import fitted, fitted_column, fitted_table


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
