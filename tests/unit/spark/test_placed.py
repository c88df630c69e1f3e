"""Sources under a Spark that logs positions by place and only asks where an epoch ends, as 4.1 (design/0052).

Spark is played here: what it calls, in which order, and what of it is in its log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.errors import Corrupt
from holdfast.spark import datasource
from holdfast.spark.datasource import _Reader
from holdfast.spark.reading import Reading
from holdfast.spark.spark_versions import VERSIONS
from tests.spark.running import arrive

FIRST, SECOND = {"log": 1}, {"log": 2}


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource, "running", lambda: VERSIONS["4.1"])


def reader(tmp_path: Path, name: str = "source", *, freezes: bool = False, header: Any = None) -> _Reader:
    """Return the planning process of a source of files, one file an epoch, of a query that begins."""
    spec: Any = hf.read.files(str(tmp_path / "in"), schema="id BIGINT", max_rows_per_epoch=1, name=name).node.spec
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "origin.json").write_bytes((header or DirectoryHeader(1)).to_json())
    reading = Reading(
        spec, name, str(tmp_path / "work"), 1, 0, str(tmp_path / "stop"), str(tmp_path / "origin.json"),
        has_rows=False, freezes=freezes,
    )  # fmt: skip
    return _Reader(reading, StructType())


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as it comes out of Spark's log."""
    return json.loads(json.dumps(offset))


def files(tmp_path: Path, *names: str) -> None:
    for name in names:
        arrive(tmp_path / "in", name, [{"id": 1}])


def test_each_epoch_begins_where_the_one_before_has_ended(tmp_path: Path) -> None:
    files(tmp_path, "0.json", "1.json")
    source = reader(tmp_path)
    ends = [source.latestOffset() for _ in range(3)]
    assert [end["positions"] for end in ends] == [FIRST, SECOND, SECOND]
    assert json.dumps(ends[1]) == json.dumps(ends[2]), "Spark compares texts: another one would be an epoch"
    assert all(end["source"] == "source" for end in ends)


def test_a_query_goes_on_after_the_newest_entry_of_the_log(tmp_path: Path) -> None:
    """Spark calls ``partitions`` with it before it asks for an end, whether its epoch is finished or not."""
    files(tmp_path, "0.json", "1.json")
    first = logged(reader(tmp_path).latestOffset())
    finished = reader(tmp_path)
    finished.partitions(first, first)
    assert finished.latestOffset()["positions"] == SECOND
    replayed = reader(tmp_path)
    replayed.partitions(first, first)
    replayed.partitions(logged(replayed.initialOffset()), first)
    assert replayed.latestOffset()["positions"] == SECOND
    idle = reader(tmp_path)
    last = logged(finished.latestOffset())
    idle.partitions(last, last)
    assert json.dumps(idle.latestOffset()) == json.dumps(last)


def test_what_comes_after_the_first_question_is_left_to_the_next_run(tmp_path: Path) -> None:
    files(tmp_path, "0.json")
    source = reader(tmp_path, freezes=True)
    assert source.latestOffset()["positions"] == FIRST
    files(tmp_path, "1.json")
    assert source.latestOffset()["positions"] == FIRST
    assert reader(tmp_path).latestOffset()["positions"] == FIRST


def test_ends_that_are_to_be_met_are_met_one_by_one(tmp_path: Path) -> None:
    files(tmp_path, "0.json", "1.json")
    before = reader(tmp_path)
    assert [before.latestOffset()["positions"] for _ in range(2)] == [FIRST, SECOND]
    header = DirectoryHeader(9, seek=({}, {"source": FIRST}, {"source": SECOND}))
    source = reader(tmp_path, header=header)
    assert source.latestOffset()["positions"] == FIRST
    assert source.latestOffset()["positions"] == SECOND


@pytest.mark.parametrize("whose", ["other", None])
def test_an_offset_of_another_source_is_refused(tmp_path: Path, whose: str | None) -> None:
    """A plan whose sources changed places: Spark would give each the positions of the other."""
    files(tmp_path, "0.json")
    source = reader(tmp_path)
    foreign = {**logged(source.latestOffset()), "source": whose}
    with pytest.raises(Corrupt, match=f"position of {whose!r} where source 'source' is read") as refused:
        source.partitions(foreign, foreign)
    assert "continues where the sinks are" in refused.value.do


def test_where_spark_names_sources_an_offset_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, "0.json")
    monkeypatch.setattr(datasource, "running", lambda: VERSIONS["4.3"])
    named = reader(tmp_path)
    assert "source" not in named.latestOffset(named.initialOffset(), None)
