"""Which directory goes on where Spark logs positions by the place of a source, or did (design/0052, section 1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.spark.spark_versions import VERSIONS
from holdfast.spark.state.shape import Division
from holdfast.starts import directory
from holdfast.starts.directory import Directory, SourcesMisplaced, check_places, directory_of
from holdfast.starts.table import Spark
from holdfast.store.local import LocalStore

ENTRIES = {
    "v1": '{"positions": {"log": 3}, "size_bytes": 0, "row_count": 0, "source": "rows"}',
    "v2": 'rows:{"positions": {"log": 3}, "size_bytes": 0, "row_count": 0}',
}


def begun(place: Path, form: str) -> LocalStore:
    """Return a checkpoint in which an epoch was planned."""
    store = LocalStore(str(place))
    store.put("spark/1/origin.json", DirectoryHeader(1, graph="").to_json())
    entry = "\n".join([form, json.dumps({"batchTimestampMs": 1}), ENTRIES[form]])
    store.put("spark/1/offsets/0", entry.encode())
    return store


def chosen(place: Path, store: LocalStore, misplaced: str = "") -> Directory:
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    pipeline = hf.Pipeline("plain", rows | hf.write.memory(name="shown"))
    return directory_of(pipeline, store, place, Division(2, 2), misplaced)


@pytest.mark.parametrize(("version", "form"), [("4.1", "v1"), ("4.2", "v2"), ("4.3", "v2")])
def test_a_log_of_the_form_of_this_version_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, form: str
) -> None:
    monkeypatch.setattr(directory, "running", lambda: VERSIONS[version])
    assert chosen(tmp_path, begun(tmp_path, form)) == Directory("spark/1", Spark.GOOD)


@pytest.mark.parametrize(("version", "form"), [("4.1", "v2"), ("4.3", "v1")])
def test_a_log_of_another_version_s_form_is_left_behind_what_it_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, form: str
) -> None:
    """The next directory begins at the end of its last epoch: a checkpoint moves in both directions."""
    monkeypatch.setattr(directory, "running", lambda: VERSIONS[version])
    found = chosen(tmp_path, begun(tmp_path, form))
    assert (found.below, found.previous, found.spark) == ("spark/2", "spark/1", Spark.OTHER)
    assert f"its log of positions has the form {form}" in found.reasons[0]


def test_other_places_begin_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "running", lambda: VERSIONS["4.1"])
    store = begun(tmp_path, "v1")
    check_places(tmp_path / "spark/1", "spark/1", ["rows"])
    check_places(tmp_path / "spark/9", "spark/9", ["rows"])
    for streams in (["more"], ["rows", "more"], []):
        with pytest.raises(SourcesMisplaced) as misplaced:
            check_places(tmp_path / "spark/1", "spark/1", streams)
        assert misplaced.value.below == "spark/1"
    found = chosen(tmp_path, store, "spark/1")
    assert (found.below, found.spark) == ("spark/2", Spark.OTHER)
    assert "other places in Spark's plan" in found.reasons[0]


def test_a_log_with_names_has_no_places(tmp_path: Path) -> None:
    begun(tmp_path, "v2")
    check_places(tmp_path / "spark/1", "spark/1", [])
