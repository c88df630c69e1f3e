"""Rows of a table by their numbers, out of its chunks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.state.rows import rows_at

CHUNKS = [["a", "b"], [], ["c"], ["d", "e", "f"]]
TABLE = pa.concat_tables([
    pa.table({"k": pa.array(chunk, pa.string()), "n": pa.array(range(len(chunk)), pa.int64())}) for chunk in CHUNKS
])  # fmt: skip


@pytest.mark.parametrize("table", [TABLE, TABLE.combine_chunks(), TABLE.slice(1)])
@pytest.mark.parametrize("rows", [[], [0], [4, 0, 2], [1, 1, 3, 3], [0, 1, 2, 3, 4], [3, 3, 0], [2, 3]])
def test_it_is_what_take_returns(table: pa.Table, rows: list[int]) -> None:
    found = rows_at(table, np.array(rows, np.int64))
    assert found.schema == table.schema
    assert found.to_pydict() == table.take(pa.array(rows, pa.int64())).to_pydict()


def test_the_rest_of_the_table_is_not_copied() -> None:
    chunk = pa.table({"k": ["x" * 1000] * 1000})
    table = pa.concat_tables([chunk] * 8)
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        assert rows_at(table, np.array([7000, 5])).num_rows == 2
    finally:
        pa.set_memory_pool(before)
    assert 0 < counted.max_memory() < 100_000
