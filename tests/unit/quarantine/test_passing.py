"""Rows that are left out behind an operator with state."""

import pyarrow as pa

from holdfast.quarantine.mask import Passing, digest_of, one_row

ROWS = pa.table({"k": ["a", "b"], "x": [1, 2], "part": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]})


def test_a_dead_letter_is_left_out_where_the_graph_names_its_columns_in_another_order() -> None:
    letter = one_row(ROWS.to_batches()[0], 1)
    turned = pa.table({"part": [{"b": 2, "a": 1}, {"b": 4, "a": 3}], "x": [1, 2], "k": ["a", "b"]})
    passing = Passing({"op/out-rows-0": {1: digest_of(letter)}})
    for rows in (ROWS, turned):
        assert passing.of(0, "op/out-rows-0", rows).column("k").to_pylist() == ["a"]
    other = ROWS.set_column(1, "x", pa.array([1, 3]))
    assert passing.of(0, "op/out-rows-0", other).num_rows == 2
