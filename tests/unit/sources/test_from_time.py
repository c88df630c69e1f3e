"""Sources that begin at a time: from their random access point on, without what lies before (design/0012)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.rate import RateSpec
from holdfast.connectors.reading.from_time import from_time, obstacle
from holdfast.connectors.reading.until import is_from
from holdfast.ports import REJECT_COLUMN, Source
from holdfast.testing.clock import SimulatedClock

SECOND = 1_000_000


def spec_of(stream: hf.Stream) -> Any:
    return stream.node.spec


def rows_of(source: Source) -> list[dict[str, Any]]:
    start = source.initial()
    end = source.latest(start, bounded=False)
    spans = source.spans(start, end, parallelism=1)
    return [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]


def write(directory: Path, name: str, ids: range) -> None:
    directory.mkdir(exist_ok=True)
    lines = [json.dumps({"id": n, "at": f"1970-01-01T00:00:{n:02}Z"}) + "\n" for n in ids]
    (directory / name).write_text("".join(lines))
    os.utime(directory / name, (3, 3))


def test_files_are_clipped_whenever_they_were_changed(tmp_path: Path) -> None:
    """A time of change says when a file was written; which times are in it only its rows say (design/0021)."""
    write(tmp_path / "in", "a.json", range(3))
    write(tmp_path / "in", "b.json", range(3, 6))
    write(tmp_path / "in", "c.json", range(6, 9))
    stream = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", timestamp="at", name="rows")
    begun = from_time(spec_of(stream), 4 * SECOND)
    source = begun.open("rows", str(tmp_path / "work"))
    assert [row["id"] for row in rows_of(source)] == [4, 5, 6, 7, 8]
    again = begun.open("rows", str(tmp_path / "work"))
    assert [row["id"] for row in rows_of(again)] == [4, 5, 6, 7, 8]
    assert begun.arguments() == spec_of(stream).arguments(), "the graph is the same"


def test_ticks_are_never_held_against_the_time_of_change_of_a_file(tmp_path: Path) -> None:
    """Nobody knows what a tick is: nanoseconds lie behind every time of change, and all files were passed over."""
    (tmp_path / "in").mkdir()
    tick = 10**18
    lines = [json.dumps({"id": n, "at": tick + n}) + "\n" for n in range(-2, 3)]
    (tmp_path / "in" / "a.json").write_text("".join(lines))
    stream = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, at BIGINT", timestamp="at", name="rows")
    source = from_time(spec_of(stream), tick).open("rows", str(tmp_path / "work"))
    assert [row["id"] for row in rows_of(source)] == [0, 1, 2]


def test_a_rate_begins_with_the_last_row_at_or_before_the_time(tmp_path: Path) -> None:
    clock = SimulatedClock(10 * SECOND)
    spec = RateSpec(2, start_us=0, clock=clock)
    assert spec.from_time(4_200_000).open("ticks", str(tmp_path)).initial() == {"rows": 8}
    source = from_time(spec, 4_200_000).open("ticks", str(tmp_path))
    assert [row["value"] for row in rows_of(source)] == list(range(9, 20))


def test_rejects_have_no_time_and_stay(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "at": "1970-01-01T00:00:01Z"}\nnonsense\n{"id": 2}\n')
    stream = hf.read.files(
        str(tmp_path / "in"), schema="id BIGINT, at TIMESTAMP", timestamp="at", on_bad_row="reject", name="rows"
    )
    source = from_time(spec_of(stream), 5 * SECOND).open("rows", str(tmp_path / "work"))
    (row,) = rows_of(source)
    assert row["id"] is None
    assert row[REJECT_COLUMN] is not None


def test_bound_rows_are_told_from_rows_as_before(tmp_path: Path) -> None:
    rows = [{"id": n, "at": n * SECOND, "is_bound": n == 6} for n in range(3, 8)]
    stream = hf.read.rows(rows, schema="id BIGINT, at BIGINT, is_bound BOOLEAN", timestamp="at", bounds="is_bound")
    source = from_time(spec_of(stream), 5 * SECOND).open("rows", str(tmp_path))
    assert [row["id"] for row in rows_of(source)] == [5, 7]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.timestamp("ms"), pa.int64()])
def test_whatever_the_unit_exactly_the_time_is_the_first_that_stays(kind: pa.DataType) -> None:
    given = pa.array([3 * SECOND, 4 * SECOND, None], pa.int64())
    values = given if kind == pa.int64() else given.cast(pa.timestamp("us", kind.tz)).cast(kind)
    assert is_from(values, 4 * SECOND).to_pylist() == [False, True, None]


def test_what_has_no_time_says_why() -> None:
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    assert "declares no timestamp" in obstacle(spec_of(rows))
    timed = hf.read.rows([{"at": 1}], schema="at BIGINT", timestamp="at", name="timed")
    assert obstacle(spec_of(timed)) == ""
    spark = hf.read.spark("rate", name="ticks")
    assert "has no positions that belong to a time" in obstacle(spec_of(spark))
