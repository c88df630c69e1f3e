"""State that people give: read, and compared with what an operator keeps, column by column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint.given_state import GivenState, given_states
from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import InvalidPipeline
from holdfast.state.step import StateTable

KEY = pa.schema([("k", pa.string())])
COUNTS = StateTable(pa.schema([*KEY, ("n", pa.int64()), pa.field("sure", pa.bool_(), nullable=False)]), ("k",))
SEEN = StateTable(pa.schema([*KEY, ("at", pa.timestamp("us", "UTC"))]), ("k",))
ONE = StateSchema("stateful", "{}", KEY, {"counts": COUNTS})
TWO = StateSchema("stateful", "{}", KEY, {"counts": COUNTS, "seen": SEEN})
KINDS = (pa.string(), pa.struct([pa.field("at", pa.int64(), nullable=False)]))
ROWS = {"k": ["a", "b"], "n": [1, 2], "sure": [True, False]}


def given(state: Any) -> GivenState:
    (found,) = given_states({"counted": state})
    return found


@pytest.mark.parametrize("way", ["table", "frame", "frame of pandas", "file", "directory", "by table"])
def test_a_table_is_given_in_any_of_these_ways(way: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "counts.parquet")
    ways: dict[str, Any] = {
        "table": pa.table(ROWS).select(["sure", "k", "n"]),
        "frame": pl.DataFrame(ROWS),
        "frame of pandas": pd.DataFrame(ROWS),
        "file": str(tmp_path / "counts.parquet"),
        "directory": tmp_path,
        "by table": {"counts": tmp_path / "counts.parquet"},
    }
    found = given(ways[way]).tables(ONE)
    assert found["counts"].schema.equals(COUNTS.schema)
    assert found["counts"].to_pydict() == ROWS
    if way in ("directory", "by table"):
        two = given(ways[way]).tables(TWO)
        assert (two["counts"].num_rows, two["seen"].num_rows) == (2, 0), "what is not given is empty"


def test_a_directory_of_parts_is_one_table(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table(ROWS).slice(number, 1), tmp_path / f"part-{number}.parquet")
    assert given(tmp_path).tables(ONE)["counts"].to_pydict() == ROWS


def test_parts_may_differ_in_what_is_not_null_and_in_the_order_of_columns(tmp_path: Path) -> None:
    strict = pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip("kn", KINDS, strict=True)])
    nested = StateTable(pa.schema([*KEY, ("n", pa.struct([pa.field("at", pa.int64(), nullable=False)]))]), ("k",))
    one = StateSchema("stateful", "{}", KEY, {"counts": nested})
    held = pa.table({"k": ["a"], "n": pa.array([{"at": 1}], KINDS[1])}, schema=strict)
    other = pa.table({"n": pa.array([{"at": 2}, None]), "k": ["b", "c"]})
    for directory, parts in (("first", [held, other]), ("last", [other, held])):
        (tmp_path / directory).mkdir()
        for number, part in enumerate(parts):
            pq.write_table(part, tmp_path / directory / f"part-{number}.parquet")
        found = given(tmp_path / directory).tables(one)["counts"]
        assert found.schema.equals(nested.schema)
        assert found.sort_by("k").to_pylist() == [
            {"k": "a", "n": {"at": 1}},
            {"k": "b", "n": {"at": 2}},
            {"k": "c", "n": None},
        ]


def test_a_null_in_what_a_column_holds_is_refused_where_it_never_is() -> None:
    kept = StateTable(pa.schema([*KEY, ("n", pa.list_(KINDS[1]))]), ("k",))
    one = StateSchema("stateful", "{}", KEY, {"counts": kept})
    good = pa.table({"k": ["a", "b"], "n": [[{"at": 1}, None], None]})
    assert given(good).tables(one)["counts"].to_pydict() == good.to_pydict()
    with pytest.raises(InvalidPipeline, match=r"column 'n\[\].at' has nulls"):
        given(pa.table({"k": ["a"], "n": pa.array([[{"at": 1}, {"at": None}]], good.schema.types[1])})).tables(one)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([ROWS, {"k": ["c"], "n": [3]}], "part-1.parquet has the columns k, n, and part-0.parquet k, n, sure"),
        ([ROWS, ROWS | {"k": ["c", "d"], "n": ["1", "2"]}], "column 'n' is string, and the state has int64"),
        ([ROWS, ROWS | {"k": ["c", "d"], "sure": [True, None]}], "column 'sure' has nulls"),
        ([ROWS, ROWS], "4 rows, and 2 keys"),
    ],
)
def test_parts_that_do_not_fit_are_refused_as_one_table_is(parts: Any, why: str, tmp_path: Path) -> None:
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part), tmp_path / f"part-{number}.parquet")
    with pytest.raises(InvalidPipeline, match=why):
        given(tmp_path).tables(ONE)


def test_a_time_of_int96_beyond_the_microseconds_is_refused_and_not_another_one(tmp_path: Path) -> None:
    far = pa.array([2**64 // 1_000_000 + 1_700_000_000], pa.timestamp("s"))
    pq.write_table(pa.table({"k": ["a"], "at": far}), tmp_path / "seen.parquet", use_deprecated_int96_timestamps=True)
    seen = StateTable(pa.schema([*KEY, ("at", pa.timestamp("us"))]), ("k",))
    with pytest.raises(InvalidPipeline, match="column 'at': a value is outside of the years"):
        given(tmp_path / "seen.parquet").tables(StateSchema("stateful", "{}", KEY, {"seen": seen}))


def test_columns_that_are_left_out_are_asked_of_the_operator() -> None:
    def fill(table: str, part: pa.Table) -> pa.Table:
        assert (table, part.schema.names) == ("counts", ["k", "n"])
        return part.append_column(COUNTS.schema.field("sure"), pa.array([True] * part.num_rows)).cast(COUNTS.schema)

    rows = pa.table({"k": ["a"], "n": [1]})
    assert given(rows).tables(ONE, fill)["counts"].to_pydict() == {"k": ["a"], "n": [1], "sure": [True]}
    with pytest.raises(InvalidPipeline, match=r"table 'counts': not given: sure bool.*It keeps: k string, n int64"):
        given(rows).tables(ONE)
    with pytest.raises(InvalidPipeline, match="not given: k string"):
        given(pa.table({"n": [1], "sure": [True]})).tables(ONE, fill)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (ROWS | {"n": ["1", "2"]}, "column 'n' is string, and the state has int64"),
        (ROWS | {"m": [1, 2]}, "column 'm' is none of it"),
        (ROWS | {"k": ["a", "a"]}, "2 rows, and 1 keys; its key is k"),
        (ROWS | {"sure": [True, None]}, "column 'sure' has nulls"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_column(rows: Any, why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why) as caught:
        given(pa.table(rows)).tables(ONE)
    assert "is no state of operator 'counted'" in caught.value.what


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(InvalidPipeline, match="state= is a str"):
        given_states("counts.parquet")
    with pytest.raises(InvalidPipeline, match="given as a list"):
        given([ROWS])
    for path in ("text.parquet", "absent.parquet"):
        with pytest.raises(InvalidPipeline, match=f"cannot be read from .*{path}"):
            given(tmp_path / path).tables(ONE)
    with pytest.raises(InvalidPipeline, match="it keeps 2 state tables: counts, seen"):
        given(pa.table(ROWS)).tables(TWO)
    with pytest.raises(InvalidPipeline, match="no state table 'count'; it has counts"):
        given({"count": pa.table(ROWS)}).tables(ONE)


def test_what_was_given_has_one_name_as_long_as_it_is_the_same() -> None:
    assert given("counts.parquet") == given("counts.parquet") != given("other.parquet")
    assert given(pa.table(ROWS)).shown == given(pa.table(ROWS)).shown != given(pa.table(ROWS | {"n": [1, 3]})).shown
    rows = pa.table(ROWS | {"n": pa.array([1, None]), "held": [[2], [1]]})
    assert given(rows).shown == given(rows.take([1, 0])).shown, "a query gives its rows in any order"
    assert given(rows).shown != given(rows.set_column(3, "held", [[[1], [2]]])).shown
