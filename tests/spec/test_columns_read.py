"""Columns that nothing uses are neither packed for an operator nor read of a file (design/0062)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.connectors.reading.wrapped import of_columns
from holdfast.errors import BadRow
from holdfast.plan.cutting import build_stages
from holdfast.plan.program_build import as_it_is
from holdfast.plan.stages import Stages
from holdfast.ports import REJECT_COLUMN
from holdfast.testing import drive

BIDS = "auction BIGINT, price BIGINT, url STRING, at TIMESTAMP"


def bids() -> hf.Stream:
    """Return a stream with columns of which most queries use some."""
    return hf.read.files("bids", format="parquet", schema=BIDS, timestamp="at", name="bids")


def stages_of(stream: hf.Stream) -> Stages:
    """Return the stages of a stream into a sink."""
    pipeline = hf.Pipeline("columns", stream | hf.write.memory(name="out"))
    return build_stages(pipeline, as_it_is, "t", buckets=2, partitions=1, prefix=lambda part: ())


def read_of(stages: Stages) -> frozenset[str]:
    """Return the columns of the source that are used."""
    program = stages.stages[0].program
    assert program is not None
    return program.reads("bids")


def counted(stream: hf.Stream) -> hf.Stream:
    """Return how many rows each key has in windows of time."""
    return stream | hf.aggregate(by="Auction", window=hf.tumbling("10 s"), n=hf.count(), name="counted")


def dear(stream: hf.Stream) -> hf.Stream:
    """Return aggregates of which some have a condition."""
    return stream | hf.reduce(by="auction", n=hf.count(where="price > 5"), top=hf.max("price"), name="dear")


@pytest.mark.parametrize(
    ("operator", "used"),
    [(counted, {"auction", "at"}), (dear, {"auction", "price", "at"})],
    ids=["windows", "conditions"],
)
def test_an_aggregate_takes_the_columns_of_its_key_time_and_values(
    operator: Callable[[hf.Stream], hf.Stream], used: set[str]
) -> None:
    stages = stages_of(operator(bids()))
    assert read_of(stages) == used
    (target,) = (each for each in stages.routing.targets if each.operator)
    assert "url" not in target.schema.names


def test_rows_that_are_given_as_late_have_all_columns() -> None:
    rows = counted(bids())
    late = rows.late | hf.select("rows.url AS url", name="urls")
    pipeline = hf.Pipeline("columns", rows | hf.write.memory(name="out"), late | hf.write.memory(name="late"))
    stages = build_stages(pipeline, as_it_is, "t", buckets=2, partitions=1, prefix=lambda part: ())
    assert read_of(stages) == {"auction", "price", "url", "at"}


AGGREGATES: dict[str, Any] = {
    "n": hf.count(),
    "total": hf.sum("price"),
    "last": hf.last("price", ignore_nulls=True),
    "kinds": hf.distinct_count("price", where="price > 5"),
    "all": hf.collect("price"),
    "at_highest": hf.max_by("auction", "price"),
}


@pytest.mark.parametrize("window", [hf.tumbling("10 s"), hf.sliding("10 s", every="2 s"), hf.session("3 s")])
def test_an_aggregate_has_the_same_state_and_gives_the_same_without_the_other_columns(window: Any) -> None:
    sums = bids() | hf.aggregate(by="auction", window=window, name="sums", **AGGREGATES)
    (operator,) = (each for each in hf.Pipeline("p", sums | hf.write.memory(name="o")).nodes if each.name == "sums")
    (before,) = operator.inputs
    assert before.columns is not None
    columns = [*before.columns]
    types = {"at": pa.timestamp("us", "UTC"), "url": pa.string()}
    whole = pa.schema([(name, types.get(name, pa.bool_() if "where" in name else pa.int64())) for name in columns])
    spec: Any = operator.spec
    used = spec.reads(())
    assert "url" in columns
    assert "url" not in used
    step = spec.step({"rows": whole})
    narrow = spec.step({"rows": pa.schema([field for field in whole if field.name in used])})
    assert narrow.tables == step.tables
    assert narrow.outputs["rows"] == step.outputs["rows"]


def test_rows_leave_as_they_do_where_all_columns_are_taken() -> None:
    rows = [{"auction": 1, "price": price, "url": "u", "at": price} for price in (4, 7, 12, 3)]
    schema = "auction BIGINT, price BIGINT, url STRING, at BIGINT"
    read = hf.read.rows([], schema=schema, timestamp="at", name="bids")
    sums = read | hf.aggregate(by="auction", window=hf.tumbling(5), disorder=0, name="sums", **AGGREGATES)
    given = {"bids": [rows[:2], rows[2:]]}
    both = sums.late | hf.select("rows.url AS url", name="urls")
    assert drive(both, given) == [[], [{"url": "u"}]]
    assert [row["total"] for epoch in drive(sums, given) for row in epoch] == [4, 7]


# --- reading --------------------------------------------------------------------------------------------------------


def written(directory: Path, urls: pa.Array | None = None) -> str:
    """Write a file of three bids, with its columns in another order."""
    directory.mkdir(parents=True)
    at = pa.array([1, 2, 3], pa.timestamp("us", "UTC"))
    columns = {"url": urls or pa.array(["a", "b", "c"]), "at": at, "price": [7, 8, 9], "auction": [1, 1, 2]}
    pq.write_table(pa.table(columns), directory / "0.parquet", row_group_size=2)
    return str(directory)


def read_with(stream: hf.Stream, columns: set[str], workspace: Path) -> pa.Table:
    """Return the rows of a source of which some columns are used."""
    source = of_columns(stream.node.source_spec, columns).open("bids", str(workspace))
    spans = source.spans(source.initial(), source.latest(source.initial(), bounded=True), parallelism=2)
    return pa.Table.from_batches([batch for span in spans for batch in source.read(span)])


def test_columns_of_parquet_that_nothing_uses_are_null_and_all_others_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "in")
    stream = hf.read.files(path, format="parquet", schema=BIDS, timestamp="at", name="bids")
    rows = read_with(stream, {"price"}, tmp_path / "work")
    assert rows.column_names == ["auction", "price", "url", "at"]
    assert rows.column("price").to_pylist() == [7, 8, 9]
    assert rows.column("at").null_count == 0, "the timestamp is counted in any case"
    assert rows.column("url").to_pylist() == rows.column("auction").to_pylist() == [None] * 3


def test_a_column_that_may_not_be_null_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "in")
    stream = hf.read.files(path, format="parquet", schema="auction BIGINT NOT NULL, price BIGINT", name="bids")
    rows = read_with(stream, {"price"}, tmp_path / "work")
    assert rows.column("auction").to_pylist() == [1, 1, 2]


def test_rows_are_counted_where_none_of_their_columns_is_used(tmp_path: Path) -> None:
    path = written(tmp_path / "in")
    stream = hf.read.files(path, format="parquet", schema="auction BIGINT, price BIGINT", name="bids")
    assert read_with(stream, set(), tmp_path / "work").num_rows == 3


def test_a_row_is_good_or_bad_whoever_uses_what_of_it(tmp_path: Path) -> None:
    """Rejected rows are those of any reading: also of one in which nobody uses the column with the bad value."""
    path = written(tmp_path / "in", urls=pa.array([b"a", b"\xff", b"c"]))
    stream = hf.read.files(path, format="parquet", schema=BIDS, timestamp="at", on_bad_row="reject", name="bids")
    rows = read_with(stream, {"price"}, tmp_path / "work")
    assert rows.column(REJECT_COLUMN).null_count == 0


def test_a_file_without_a_declared_column_is_refused_whoever_uses_it(tmp_path: Path) -> None:
    path = written(tmp_path / "in")
    stream = hf.read.files(path, format="parquet", schema=f"{BIDS}, bidder BIGINT", timestamp="at", name="bids")
    with pytest.raises(BadRow, match="it has no column 'bidder'"):
        read_with(stream, {"price"}, tmp_path / "work")


def test_wrappers_read_the_columns_that_they_need(tmp_path: Path) -> None:
    path = written(tmp_path / "in")
    stream = hf.read.files(path, format="parquet", schema=BIDS, timestamp="at", name="bids", disorder="1 s")
    rows = read_with(stream, {"price"}, tmp_path / "work")
    assert rows.column("url").null_count == 3
    assert rows.column("at").null_count == 0


def test_a_source_with_bound_rows_reads_all(tmp_path: Path) -> None:
    """What else stands in a bound row says for which keys it holds."""
    spec = hf.read.files("bids", format="parquet", schema=f"{BIDS}, b BOOLEAN", timestamp="at", bounds="b").node
    assert of_columns(spec.source_spec, {"price"}) == spec.source_spec
