"""Parquet: row groups are cut, columns must fit, and a damaged file is one error or one rejected row."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.formats import parquet
from holdfast.connectors.formats.access import FilePart, opened
from holdfast.errors import BadRow, Unavailable
from holdfast.types.schema import to_arrow
from tests.unit.sources.reading import everything, good, rejected, source_over


def given(tmp_path: Path, table: pa.Table, **options: Any) -> Path:
    directory = tmp_path / "in"
    directory.mkdir(exist_ok=True, parents=True)
    pq.write_table(table, directory / "file.parquet", **options)
    return directory


def read_from(tmp_path: Path, directory: Path, schema: str, **options: Any) -> list[dict[str, Any]]:
    return everything(source_over(directory, tmp_path / "workspace", schema, format="parquet", **options))


@pytest.mark.slow
def test_a_bound_is_behind_the_rows_of_the_last_span_and_alone_where_there_are_none(tmp_path: Path) -> None:
    """A task for one row would cost as much as one for many."""
    directory = given(tmp_path, pa.table({"id": range(100)}), row_group_size=30)
    options: dict[str, Any] = {"block_size": "100 B", "timestamp": "id", "disorder": 10, "format": "parquet"}
    source: Any = source_over(directory, tmp_path / "workspace", "id BIGINT", **options)
    end = source.latest(source.initial(), bounded=False)
    assert end["@bound"] == 89
    spans = source.spans(source.initial(), end, parallelism=2)
    assert sum(span.row_count for span in spans) == 101
    assert len(spans) == len(source.source.source.spans({"log": 0}, {"log": end["log"]}, parallelism=2))
    assert [row["id"] for span in spans for batch in source.read(span) for row in batch.to_pylist()] == [*range(100)]
    *rows, bound = [row for span in spans for batch in source.read_marked(span) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [*range(100)]
    assert bound["id"] == 89
    (alone,) = source.spans(end, {**end, "@bound": 95}, parallelism=2)
    assert alone.row_count == 1
    assert [row["id"] for batch in source.read_marked(alone) for row in batch.to_pylist()] == [95]


@pytest.mark.parametrize(
    "options", [{}, {"block_size": "100 B"}, {"max_rows_per_epoch": 3}, {"max_rows_per_epoch": 64}]
)
def test_rows_come_whole_and_in_order_however_they_are_cut(tmp_path: Path, options: dict[str, Any]) -> None:
    directory = given(tmp_path, pa.table({"id": range(100)}), row_group_size=30)
    rows = read_from(tmp_path, directory, "id BIGINT", **options)
    assert [row["id"] for row in rows] == list(range(100))


def test_counts_are_known_when_rows_are_limited(tmp_path: Path) -> None:
    directory = given(tmp_path, pa.table({"id": range(100)}), row_group_size=30)
    source = source_over(directory, tmp_path / "workspace", "id BIGINT", format="parquet", max_rows_per_epoch=40)
    end = source.latest({"log": 0}, bounded=False)
    assert 30 <= (source.rows_between({"log": 0}, end) or 0) <= 40


@pytest.mark.parametrize(
    ("held", "declared", "value"),
    [
        (pa.array([1], pa.int32()), "BIGINT", 1),
        (pa.array([1], pa.int64()), "INT", 1),
        (pa.array([1], pa.int64()), "DOUBLE", 1.0),
        (pa.array(["x"]).dictionary_encode(), "STRING", "x"),
        (pa.array(["x"], pa.large_string()), "STRING", "x"),
        (pa.array([1_500], pa.timestamp("ns")), "TIMESTAMP", datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        (pa.array([2], pa.timestamp("us", tz="Europe/Paris")), "TIMESTAMP_NTZ", datetime(1970, 1, 1, 0, 0, 0, 2)),
        (pa.array([{"a": 1, "b": 2}]), "STRUCT<b: INT>", {"b": 2}),
        (pa.array([[1, 2]]), "ARRAY<BIGINT>", [1, 2]),
        (pa.nulls(1), "STRING", None),
    ],
)
def test_types_that_hold_the_values_are_brought_to_the_declared_one(
    tmp_path: Path, held: pa.Array, declared: str, value: Any
) -> None:
    directory = given(tmp_path, pa.table({"other": ["x"], "v": held}))
    assert read_from(tmp_path, directory, f"v {declared}") == [{"v": value}]


@pytest.mark.parametrize(
    ("held", "declared", "said"),
    [
        (pa.array(["1"]), "BIGINT", "column 'v' is declared int64 and is string in the file"),
        (pa.array([1.5]), "BIGINT", "column 'v' is declared int64 and is double in the file"),
        (pa.array([1]), "TIMESTAMP", "column 'v' is declared timestamp[us, tz=UTC] and is int64 in the file"),
        (pa.array([2**40]), "INT", "column 'v' is declared int32"),
        (pa.array([None, 1]), "BIGINT NOT NULL", "NOT NULL"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_both_types(
    tmp_path: Path, held: pa.Array, declared: str, said: str
) -> None:
    directory = given(tmp_path, pa.table({"v": held}))
    with pytest.raises(BadRow) as error:
        read_from(tmp_path, directory, f"v {declared}")
    assert said in str(error.value)
    assert "file.parquet" in str(error.value)


def test_a_missing_column_is_an_error_and_not_a_column_of_nulls(tmp_path: Path) -> None:
    directory = given(tmp_path, pa.table({"a": [1]}))
    with pytest.raises(BadRow, match="no column 'b'; it has 'a'"):
        read_from(tmp_path, directory, "b INT")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_rows_per_epoch": 10}, {"block_size": "10 B"}])
@pytest.mark.parametrize("damage", ["cut", "garbled", "no parquet"])
def test_a_damaged_file_stops_or_is_one_rejected_row(tmp_path: Path, damage: str, options: dict[str, Any]) -> None:
    directory = given(tmp_path, pa.table({"id": range(1000)}), use_dictionary=False, compression="snappy")
    file = directory / "file.parquet"
    data = file.read_bytes()
    file.write_bytes(
        {"cut": data[:-20], "garbled": data[:100] + b"\xff" * 300 + data[400:], "no parquet": b"hello"}[damage]
    )
    pq.write_table(pa.table({"id": [-1]}), directory / "other.parquet")
    with pytest.raises(BadRow, match=r"file\.parquet"):
        read_from(tmp_path, directory, "id BIGINT", **options)
    (tmp_path / "workspace").rename(tmp_path / "former")
    rows = read_from(tmp_path, directory, "id BIGINT", on_bad_row="reject", **options)
    assert -1 in [row["id"] for row in good(rows)]
    assert {one["position"].partition(":")[0] for one in rejected(rows)} == {"file.parquet"}
    if not options or damage != "garbled":
        assert [row["id"] for row in good(rows)] == [-1]


@pytest.mark.slow
def test_what_a_well_packed_block_holds_is_not_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rejects all of it is decoded before a row is yielded: 292 kB of one value may be gigabytes of rows."""
    monkeypatch.setattr(parquet, "_HELD", 1_000_000)
    table = pa.table({"id": pa.array(range(1_000_000), pa.int64())})
    directory = given(tmp_path, table, row_group_size=50_000)
    source = source_over(directory, tmp_path / "workspace", "id BIGINT", format="parquet", on_bad_row="reject")
    end = source.latest(source.initial(), bounded=False)
    (span,) = source.spans(source.initial(), end, parallelism=1)
    count, held = 0, []
    del table
    before = pa.total_allocated_bytes()
    for batch in source.read(span):
        assert batch.column("id")[0].as_py() == count
        count += batch.num_rows
        held.append(pa.total_allocated_bytes() - before)
    assert count == 1_000_000
    assert max(held) < 5_000_000


@pytest.mark.parametrize(
    ("declared", "form"),
    [
        ("v DECIMAL(38,18)", lambda one: one),
        ("v STRUCT<a: ARRAY<DECIMAL(38,18)>>", lambda one: {"a": [None, one]}),
        ("v MAP<INT, DECIMAL(38,18)>", lambda one: [(1, one)]),
    ],
)
def test_a_decimal_of_a_larger_scale_is_the_same_number_or_misfits(tmp_path: Path, declared: str, form: Any) -> None:
    """Arrow multiplies by the difference modulo 2**128: what comes out may be a value of the column."""
    (held,) = to_arrow(declared.replace("38,18", "38,0"))
    most, beyond = Decimal("9" * 20), Decimal("1" + "234567890" * 3)
    table = pa.table({"v": pa.array([form(most), form(-most), None], held.type)})
    rows = read_from(tmp_path, given(tmp_path, table), declared)
    assert [row["v"] for row in rows] == [form(most), form(-most), None]
    for one in (beyond, -beyond):
        directory = given(tmp_path / str(one), pa.table({"v": pa.array([form(one)], held.type)}))
        with pytest.raises(BadRow, match=r"does not fit in decimal128\(38, 18\)"):
            read_from(tmp_path / str(one), directory, declared)


def test_arrow_reads_a_local_file_into_memory_of_its_own(tmp_path: Path) -> None:
    """Objects of Python's, a column each, would be new memory in every file (design/0062)."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with opened(FilePart(str(path), 10, 0, -1)) as file, pa.PythonFile(file) as arrow:
        before = pa.total_allocated_bytes()
        held = arrow.read_buffer(4)
        assert held.to_pybytes() == b"0123"
        assert pa.total_allocated_bytes() > before
        assert arrow.read_buffer(100).to_pybytes() == b"456789", "there is no more"
        assert arrow.read_buffer(1).to_pybytes() == b""


def test_a_local_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file: Any
    with opened(FilePart(str(path), 10, 0, -1)) as file:
        os.close(file.fileno())
        with pytest.raises(Unavailable, match=str(path)):
            file.read_buffer(4)
        os.open(path, os.O_RDONLY)  # the number is free again, and is closed behind this block
