"""``holdfast plan`` says what the newest rows of a source have otherwise than its schema (design/0055)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.observe.drift import drift_lines, drifts
from holdfast.ports import SourceDrift

SCHEMA = "id BIGINT, km DOUBLE, place STRUCT<x: DOUBLE>"


def found(path: Path, schema: str = SCHEMA, **arguments: Any) -> list[SourceDrift]:
    rides = hf.read.files(str(path), schema=schema, name="rides", **arguments)
    return drifts(hf.Pipeline("p", rides | hf.write.memory("drift")))


def write(directory: Path, text: str | bytes, name: str = "1.json", at: int = 1) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(directory / name, (at, at))


def test_members_that_are_no_column_are_named_with_the_column_to_add(tmp_path: Path) -> None:
    rows = """\
{"id": 1, "km": 1.5, "tip": null, "Km": 3}
{"id": 2, "km": 1.5, "tip": 3, "place": {"x": 1, "y": 2}, "of day": [{"a": true}]}
{"id": 3, "km": 1.5, "tip": 2.5}
"""
    write(tmp_path / "in", rows)
    assert list(drift_lines(found(tmp_path / "in"))) == [
        "~ source rides: 3 of 3 rows of 1.json have the member 'tip', which is no column (left out); add: tip DOUBLE",
        "~ source rides: 1 of 3 rows of 1.json have the member 'Km', which is no column (left out); "
        "correct the name, or add it to its STRUCT",
        "~ source rides: 1 of 3 rows of 1.json have the member 'place.*', which is no column (left out); "
        "correct the name, or add it to its STRUCT",
        "~ source rides: 1 of 3 rows of 1.json have the member 'of day', which is no column (left out); "
        "add: `of day` ARRAY<STRUCT<a: BOOLEAN>>",
    ]


def test_columns_that_no_row_has_and_rows_that_would_be_bad_are_named(tmp_path: Path) -> None:
    write(tmp_path / "in", '{"id": "x", "place": null}\n{"id": 1}\n{"id"\n')
    (drift,) = found(tmp_path / "in")
    assert drift.absent == ("km",)
    assert drift.bad == {
        "column 'id' is declared int64": 1,
        "the object is not complete on its line, or something follows it": 1,
    }
    assert "would stop the run" in list(drift_lines([drift]))[-1]
    (drift,) = found(tmp_path / "in", on_bad_row="reject")
    assert "would be rejected" in list(drift_lines([drift]))[-1]


def test_nothing_is_said_where_rows_are_as_declared_or_there_are_none(tmp_path: Path) -> None:
    assert found(tmp_path / "absent") == []
    write(tmp_path / "in", "")
    assert found(tmp_path / "in") == []
    write(tmp_path / "in", '{"id": 1, "km": 2, "place": {"x": 1}}\n')
    assert found(tmp_path / "in") == []
    assert found(tmp_path / "in", on_new_column="rescue") == [], "the column of what is rescued is none of the rows'"


def test_the_newest_file_counts_compressed_or_partitioned_and_only_its_beginning(tmp_path: Path) -> None:
    write(tmp_path / "in", '{"old": 1}\n', "9.json", at=1)
    lines = b'{"id": 1, "km": 2, "place": null, "tip": 1}\n' * 30_000
    write(tmp_path / "in", gzip.compress(lines), "2.json.gz", at=2)
    (drift,) = found(tmp_path / "in")
    assert (drift.place, drift.rows, drift.members) == ("2.json.gz", 1000, {"tip": 1000})
    write(tmp_path / "in", lines, "3.json", at=3)
    (drift,) = found(tmp_path / "in", max_rows_per_epoch=5)
    assert (drift.place, drift.rows, drift.types) == ("3.json", 1000, {"tip": "tip BIGINT"})
    assert not (tmp_path / "checkpoint").exists()


def test_what_is_in_the_names_of_directories_is_no_column_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "day=3", '{"id": 1}\n')
    assert found(tmp_path / "in", "id BIGINT, day INT", partition_by="day") == []


def test_a_source_within_another_is_looked_at_and_what_cannot_be_read_ends_no_plan(tmp_path: Path) -> None:
    write(tmp_path / "in", '{"id": 1, "is_bound": false, "tip": 1}\n')
    schema = "id BIGINT, is_bound BOOLEAN"
    (drift,) = found(tmp_path / "in", schema, bounds="is_bound", timestamp="id")
    assert drift.members == {"tip": 1}
    write(tmp_path / "in", b"no gzip", "2.json.gz", at=2)
    (drift,) = found(tmp_path / "in")
    assert drift.problem
    assert next(drift_lines([drift])).startswith("  source rides: no sample of its rows: ")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_other_formats_are_not_looked_at(tmp_path: Path, format: Any) -> None:
    write(tmp_path / "in", "no,such,thing\n")
    assert found(tmp_path / "in", "id BIGINT", format=format) == []
