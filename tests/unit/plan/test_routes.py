"""Rows of one epoch told apart and brought to the schemas of their sinks; no JVM."""

from __future__ import annotations

import pyarrow as pa

from holdfast.plan.routes import TAG, Routes


def test_every_row_goes_to_the_sink_of_its_tag() -> None:
    one, two = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])
    batch = pa.record_batch(
        {
            TAG: pa.array([1, 0, 1], pa.int32()),
            "sink_0": pa.array([None, {"a": 5}, None], pa.struct(list(one))),
            "sink_1": pa.array([{"b": "x"}, None, {"b": None}], pa.struct(list(two))),
        }
    )
    tables = Routes(("first", "second"), (one, two)).split_table(pa.Table.from_batches([batch]))
    assert {name: table.to_pylist() for name, table in tables.items()} == {
        "first": [{"a": 5}],
        "second": [{"b": "x"}, {"b": None}],
    }
