"""Candidates for keys among the rows of a large table: all that are among them, and of chunks that are apart none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.state import key_filter, tables
from holdfast.state.step import Change, StateTable

ROWS = 1 << 15
TABLE = pa.concat_tables([
    pa.table({"k": np.arange(start, start + ROWS // 4) % 1000, "n": np.arange(start, start + ROWS // 4)})
    for start in range(0, ROWS, ROWS // 4)
])  # fmt: skip


@pytest.mark.parametrize("columns", [["n"], ["k", "n"]])
@pytest.mark.parametrize("numbers", [[0, 5, ROWS - 1], [ROWS, ROWS + 9], [-1], [3000]])
def test_every_row_of_the_keys_is_a_candidate(columns: list[str], numbers: list[int]) -> None:
    keys = pa.table({"k": np.array(numbers) % 1000, "n": np.array(numbers)}).select(columns)
    found = key_filter.candidates(TABLE.select(columns), keys)
    assert found is not None
    assert {number for number in numbers if 0 <= number < ROWS} <= set(found.tolist())
    if min(numbers) >= ROWS or max(numbers) < 0:
        assert not len(found), "chunks whose numbers are apart from the keys' are not looked at"


def test_a_null_among_the_keys_or_rows_is_no_reason_to_leave_out_a_chunk() -> None:
    table = pa.concat_tables([TABLE, pa.table({"k": pa.array([1], pa.int64()), "n": pa.array([None], pa.int64())})])
    keys = pa.table({"k": pa.array([1], pa.int64()), "n": pa.array([None], pa.int64())})
    found = key_filter.candidates(table, keys)
    assert found is not None
    assert ROWS in found.tolist()


def test_of_large_chunks_those_apart_are_left_out_and_small_ones_are_not_asked() -> None:
    """Where an epoch adds a thousand rows, to ask each chunk took longer than to look at its rows."""
    keys = pa.table({"n": [3]})
    columns = TABLE.select(["n"])
    near = key_filter.near(columns, keys)
    assert near is not None
    assert near.tolist() == list(range(ROWS // 4))
    small = pa.concat_tables([pa.table({"n": np.arange(at, at + 100)}) for at in range(0, ROWS, 100)])
    assert key_filter.near(small, keys) is None
    few = key_filter.near(pa.concat_tables([columns, pa.table({"n": [3]})]), keys)
    assert few is not None
    assert few.tolist() == [*range(ROWS // 4), ROWS]


def test_times_are_told_apart_as_numbers_are() -> None:
    stamps = TABLE.set_column(1, "n", TABLE.column("n").cast(pa.timestamp("us")))
    declared = StateTable(stamps.schema, ("k", "n"))
    one = stamps.slice(7, 1)
    change = Change(one, one.slice(0, 0))
    assert tables.apply_change(stamps, declared, change).num_rows == ROWS
