"""Which sinks can be compared with what they should hold is known before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.reconcile.stand_ins import check_comparable, check_some_comparable, stand_in


def test_these_can(tmp_path: Path) -> None:
    for node in (
        hf.write.sqlite(tmp_path / "a.db", table="t", name="a"),
        hf.write.files(tmp_path / "b", partition_by="day", compact=True, name="b"),
        hf.write.segments(tmp_path / "c", name="c"),
    ):
        check_comparable(node, "p")


def test_small_files_of_a_shadow_that_goes_on_for_months_are_joined(tmp_path: Path) -> None:
    """A replica's shadow gets a file with each epoch of the main."""
    for node in (hf.write.files(tmp_path / "a", name="a"), hf.write.segments(tmp_path / "b", name="b")):
        spec = stand_in(node, str(tmp_path / "shadow")).spec
        assert isinstance(spec, FilesSinkSpec)
        assert spec.target_bytes is not None


def test_these_cannot(tmp_path: Path) -> None:
    for node, why in (
        (hf.write.files(tmp_path / "a", format="json", name="a"), "JSON"),
        (hf.write.segments(tmp_path / "b", retain="30 d", name="b"), "retain"),
        (hf.write.sqlite(tmp_path / "c.db", table="t", control="command", name="c"), "commands"),
        (hf.write.memory("d"), "rows it holds"),
    ):
        with pytest.raises(InvalidPipeline, match=why):
            check_comparable(node, "p")


def test_only_what_is_behind_an_operator_that_goes_by_the_clock_cannot(tmp_path: Path) -> None:
    rows = hf.read.rate(rows_per_second=10, name="rows")
    sums = rows | hf.aggregate(window=hf.tumbling("1 s"), n=hf.count(), idle_after="1 s", name="sums")
    table = rows | hf.write.sqlite(tmp_path / "a.db", table="t", name="table")
    behind = sums | hf.write.sqlite(tmp_path / "a.db", table="sums", name="behind")
    found = check_some_comparable(hf.Pipeline("p", table, behind))
    assert found.keys() == {"behind"}
    assert "sums decides by the time at which epochs were planned" in found["behind"]


def test_of_several_sinks_those_that_cannot_be_compared_are_named_with_the_reason(tmp_path: Path) -> None:
    rows = hf.read.rate(rows_per_second=10, name="rows")
    table = rows | hf.write.sqlite(tmp_path / "a.db", table="t", name="table")
    lines = rows | hf.write.files(tmp_path / "b", format="json", name="lines")
    both = hf.Pipeline("p", table, lines)
    assert {name: "JSON" in why for name, why in check_some_comparable(both).items()} == {"lines": True}
    assert check_some_comparable(both, ["table"]).keys() == {"lines"}
    with pytest.raises(InvalidPipeline, match=r"sink 'lines' .* cannot be compared"):
        check_some_comparable(both, ["table", "lines"])
    with pytest.raises(InvalidPipeline, match="no sink 'tables'"):
        check_some_comparable(both, ["tables"])
    with pytest.raises(InvalidPipeline, match="no sink of pipeline 'p' can be compared") as refused:
        check_some_comparable(hf.Pipeline("p", lines))
    assert "lines: lines of JSON" in refused.value.why
