"""The time index of files: what lies before the time is never read, and no row at or after it is missing (0021)."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.files.source.log import FileLog
from holdfast.connectors.files.source.spec import FilesSource
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.texts import of_blocks
from holdfast.connectors.reading.from_time import from_time
from holdfast.store.time_ranges import TimeRange
from tests.everyday import examples
from tests.unit.sources.reading import everything

INDEXED = {
    "us": pa.timestamp("us", "UTC"),
    "ms": pa.timestamp("ms"),
    "ns": pa.timestamp("ns", "UTC"),
    "s": pa.timestamp("s"),
    "ticks": pa.int64(),
    "few ticks": pa.int32(),
}
TICKS = ("ticks", "few ticks")
HOUR = 3_600_000_000

names = itertools.count()
kinds = st.sampled_from([*INDEXED, "no statistics", "INT96"])
times = st.lists(st.none() | st.integers(-5, 30), max_size=12)


def parquet(path: Path, seconds: list[int | None], kind: str, group: int) -> None:
    """Write a file with a row for each time, in groups of so many rows."""
    column = INDEXED.get(kind, pa.timestamp("ns" if kind == "INT96" else "us"))
    scale = {"s": 1, "ms": 1000, "ns": 10**9}.get(getattr(column, "unit", "s"), 10**6)
    values = pa.array([None if at is None else at * scale for at in seconds], pa.int64()).cast(column)
    table = pa.table({"id": pa.array([f"{path.name}:{n}" for n in range(len(seconds))]), "t": values})
    pq.write_table(
        table,
        path,
        row_group_size=group,
        write_statistics=kind != "no statistics",
        use_deprecated_int96_timestamps=kind == "INT96",
    )


def opened(directory: Path, at: int | None, *, ticks: bool, fmt: Any = "parquet", **options: Any) -> FilesSource:
    schema = f"id STRING, t {'BIGINT' if ticks else 'TIMESTAMP'}"
    stream = hf.read.files(str(directory), format=fmt, schema=schema, timestamp="t", name="rows", **options)
    source: FilesSource = from_time(stream.node.source_spec, at).open("rows", f"{directory}-work")  # type: ignore[assignment]
    return source


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(times, kinds, st.integers(1, 5)), max_size=4),
    st.integers(-6, 31),
    st.booleans(),
    st.sampled_from([{}, {"max_rows_per_epoch": 4}, {"max_files_per_epoch": 1}]),
)
def test_exactly_the_rows_from_the_time_on_are_read_whatever_the_files_say(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[list[int | None], str, int]],
    at: int,
    ticks: bool,
    options: dict[str, Any],
) -> None:
    directory = tmp_path_factory.getbasetemp() / f"index{next(names)}"
    directory.mkdir()
    wanted = []
    for number, (seconds, kind, group) in enumerate(files):
        if (kind in TICKS) != ticks:
            kind = "ticks" if ticks else "us"
        parquet(directory / f"{number}.parquet", seconds, kind, group)
        wanted += [f"{number}.parquet:{n}" for n, t in enumerate(seconds) if t is not None and t >= at]
    source = opened(directory, at if ticks else at * 1_000_000, ticks=ticks, **options)
    assert sorted(row["id"] for row in everything(source)) == sorted(wanted)
    again = opened(directory, at if ticks else at * 1_000_000, ticks=ticks, **options)
    assert sorted(row["id"] for row in everything(again)) == sorted(wanted), "by the log alone"
    for block in FileLog(f"{directory}-work/log", is_read_only=True).blocks:
        seconds, kind, _ = files[int(block.name.partition(".")[0])]
        inside = [t for t in seconds[block.start : None if block.end < 0 else block.end] if t is not None]
        if block.times is not None and inside:
            factor = 1 if ticks else 1_000_000
            assert block.times.low <= min(inside) * factor
            assert max(inside) * factor <= block.times.high
            assert block.times.high >= at * factor, "it was to be passed over"


@pytest.mark.parametrize("kind", INDEXED)
def test_a_file_before_the_time_is_never_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        parquet(tmp_path / "in" / f"{number}.parquet", [3 * number + 2, None, 3 * number], kind, 10)
    ticks = kind in TICKS
    source = opened(tmp_path / "in", 4 if ticks else 4_000_000, ticks=ticks)
    assert sorted(row["id"] for row in everything(source)) == ["1.parquet:0", "2.parquet:0", "2.parquet:2"]
    log = FileLog(f"{tmp_path / 'in'}-work/log", is_read_only=True)
    assert [block.name for block in log.blocks] == ["1.parquet", "2.parquet"]
    assert log.passed_over == (1, 1)
    (tmp_path / "in" / "0.parquet").unlink()
    assert log.names == {"0.parquet", "1.parquet", "2.parquet"}, "it is known, and not looked at again"


def test_digits_behind_the_microseconds_never_pass_a_row_over(tmp_path: Path) -> None:
    """A range reaches outwards: -1500 ns are in it as -2 us, as which they are read, and as -1 us."""
    (tmp_path / "in").mkdir()
    values = pa.array([-500, -2500], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": ["a", "b"], "t": values}), tmp_path / "in" / "0.parquet")
    part = FilePart(str(tmp_path / "in" / "0.parquet"), (tmp_path / "in" / "0.parquet").stat().st_size, 0, -1)
    assert of_blocks(part, pa.field("t", pa.timestamp("us", "UTC")), [(0, -1)]) == [TimeRange(-3, 0)]
    without = everything(opened(tmp_path / "in", None, ticks=False))
    (kept,) = [row["id"] for row in without if row["t"] >= datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]
    tmp_path = (tmp_path / "in").rename(tmp_path / "other")
    assert [row["id"] for row in everything(opened(tmp_path, -1, ticks=False))] == [kept]


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pa.array(["1970-01-01T00:00:01Z", "z"]), pa.timestamp("us", "UTC")),  # texts are cut off in statistics
        (pa.array([1.5, float("nan")]), pa.timestamp("us", "UTC")),
        (pa.array([1, 2], pa.uint64()), pa.int64()),
        (pa.array([1, 2], pa.int64()), pa.timestamp("us", "UTC")),
        (pa.array([1, 2], pa.timestamp("us")), pa.int64()),
        (pa.array([1, 2], pa.date32()), pa.int64()),
        (pa.array([{"u": 1}, {"u": 2}]), pa.int64()),
        (pa.array([[1], [2]]), pa.int64()),
        (pa.array([None, None], pa.int64()), pa.int64()),
    ],
)
def test_what_has_no_order_of_time_has_no_range(tmp_path: Path, column: pa.Array, declared: pa.DataType) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"t": column}), path)
    part = FilePart(str(path), path.stat().st_size, 0, -1)
    assert of_blocks(part, pa.field("t", declared), [(0, -1)]) == [None]


def test_a_block_of_rows_has_the_range_of_the_row_groups_that_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"t": pa.array([5, 1, 9, 7, None, 3])}), path, row_group_size=2)
    part = FilePart(str(path), path.stat().st_size, 0, -1)
    cuts = [(0, 2), (2, 4), (1, 3), (4, 6), (0, -1), (4, -1)]
    assert of_blocks(part, pa.field("t", pa.int64()), cuts) == [(1, 5), (7, 9), (1, 9), (3, 3), (1, 9), (3, 3)]


def test_nanoseconds_as_ticks_keep_their_precision(tmp_path: Path) -> None:
    """Neighbours that no double tells apart."""
    first = 1_767_225_600_000_000_000
    (tmp_path / "in").mkdir()
    for number in range(3):
        table = pa.table({"id": [str(number)], "t": pa.array([first + number], pa.int64())})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    source = opened(tmp_path / "in", first + 1, ticks=True)
    assert [row["id"] for row in everything(source)] == ["1", "2"]
    assert source.blocks({"log": 0}, {"log": 2})[0].times == (first + 1, first + 1)
    assert FileLog(f"{tmp_path / 'in'}-work/log", is_read_only=True).passed_over.files == 1


def test_a_file_that_was_replaced_behind_the_look_is_not_indexed_as_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    parquet(tmp_path / "in" / "0.parquet", [1, 2], "us", 9)
    source = opened(tmp_path / "in", 4_000_000, ticks=False)
    planner = source._plan
    planner.freeze()
    parquet(tmp_path / "in" / "0.parquet", [8, 9], "us", 9)
    assert source.latest(source.initial(), bounded=True) == {"log": 0}
    assert [row["id"] for row in everything(opened(tmp_path / "in", 4_000_000, ticks=False))] == [
        "0.parquet:0",
        "0.parquet:1",
    ]


def test_files_of_other_formats_are_read_and_the_rows_before_the_time_left_out(tmp_path: Path) -> None:
    """However old the file is: a time of change says when it was written, not what is in it."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": str(n), "t": str(datetime(1970, 1, 1) + timedelta(seconds=n))}) + "\n" for n in range(6)]
    (tmp_path / "in" / "0.json").write_text("".join(lines))
    source = opened(tmp_path / "in", 4_000_000, ticks=False, fmt="json")
    assert [row["id"] for row in everything(source)] == ["4", "5"]


def test_a_thousand_files_before_the_time_are_one_entry_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        parquet(tmp_path / "in" / f"{number:02}.parquet", [number], "us", 9)
    source = opened(tmp_path / "in", 39_000_000, ticks=False, max_files_per_epoch=1)
    assert source.latest(source.initial(), bounded=False) == {"log": 1}
    log = FileLog(f"{tmp_path / 'in'}-work/log", is_read_only=True)
    assert (log.passed_over.files, log._increments.next) == (39, 2)


def test_a_log_from_before_there_was_an_index_is_read(tmp_path: Path) -> None:
    log = FileLog(str(tmp_path))
    log._increments.put(b'{"first":0,"files":[["a",9,[[0,-1,null,9]],null],["b",3,[]]],"complete":false}')
    log._increments.next = 1
    log.refresh()
    assert [(block.name, block.times) for block in log.blocks] == [("a", None)]
    assert log.passed_over == (0, 0)
