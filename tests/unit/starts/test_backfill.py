"""A sink that gets everything: where reading begins, where epochs end, and who cannot go back (design/0011, 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.graph_record import Role, described
from holdfast.connectors.files.source.log import FileLog, whole
from holdfast.errors import InvalidPipeline
from holdfast.ports import Held
from holdfast.starts.backfill import STOPS_MAX, Backfill
from holdfast.starts.directory import backfilled
from holdfast.starts.graph_diff import GraphChange, NodeVerdict, compare
from holdfast.store.local import LocalStore
from tests.starts import begun, inputs_of


def rows(epochs: int, name: str = "given") -> hf.Stream:
    return hf.read.rows([[{"k": number}] for number in range(epochs)], schema="k BIGINT", name=name)


def pipeline(*streams: hf.Stream, **sinks: bool) -> hf.Pipeline:
    stream = streams[0] if len(streams) == 1 else hf.union(*streams, name="both")
    return hf.Pipeline(
        "p", *(stream | hf.write.sqlite(f"{name}.db", table="t", name=name, backfill=of) for name, of in sinks.items())
    )


def at(**positions: int) -> dict[str, Any]:
    return {name: {"rows": position} for name, position in positions.items()}


def held(**positions: int) -> Held:
    return Held(9, 1, at(**positions), None)


def test_reading_begins_at_the_beginning_and_epochs_end_where_the_source_ends_them(tmp_path: Path) -> None:
    filled = Backfill(pipeline(rows(5), old=False, new=True), tmp_path, has_state=False)
    assert filled.seek(at(given=3), {"old": held(given=3)}) == tuple(at(given=number) for number in range(4))


def test_an_epoch_ends_where_a_sink_stands_and_sources_of_any_length_arrive_together(tmp_path: Path) -> None:
    graph = pipeline(rows(9), rows(9, "more"), old=False, other=False, new=True)
    filled = Backfill(graph, tmp_path, has_state=True)
    standing = {"old": held(given=4, more=2), "other": held(given=3, more=2)}
    stops = filled.seek(at(given=4, more=2), standing)
    assert stops[0] == at(given=0, more=0)
    assert stops[-1] == at(given=4, more=2)
    assert at(given=3, more=2) in stops
    assert list(stops) == sorted(stops, key=lambda stop: (stop["given"]["rows"], stop["more"]["rows"]))


@pytest.mark.slow
def test_there_are_not_too_many_epochs(tmp_path: Path) -> None:
    count = 2 * STOPS_MAX + 7
    filled = Backfill(pipeline(rows(count), old=False, new=True), tmp_path, has_state=False)
    stops = filled.seek(at(given=count), {"old": held(given=count)})
    assert len(stops) <= STOPS_MAX + 2
    assert (stops[0], stops[-1]) == (at(given=0), at(given=count))


def test_who_cannot_go_back_is_named(tmp_path: Path) -> None:
    foreign = hf.read.spark("kafka", {}, schema="k BIGINT", name="foreign")
    with pytest.raises(InvalidPipeline) as refused:
        Backfill(pipeline(foreign, new=True), tmp_path, has_state=False).seek(at(foreign=1), {})
    assert "source 'foreign' cannot go back: positions of read.spark" in refused.value.why
    files = hf.read.files(str(tmp_path / "in"), schema="k BIGINT", name="files")
    with pytest.raises(InvalidPipeline) as refused:
        Backfill(pipeline(files, new=True), tmp_path, has_state=True).seek(at(files=1), {})
    assert "source 'files' cannot go back: its log of what was read is not in this checkpoint" in refused.value.why
    with pytest.raises(InvalidPipeline) as refused:
        Backfill(pipeline(rows(3), rows(3, "more"), new=True), tmp_path, has_state=False).seek(at(given=1), {})
    assert "source 'more' comes or goes at the same time" in refused.value.why


@pytest.mark.parametrize("has_state", [True, False])
def test_a_source_of_which_files_are_gone_is_named_with_them_before_the_new_directory_is_begun(
    tmp_path: Path, has_state: bool
) -> None:
    """It was refused as a checkpoint that is another one; and what was to be done was to start over."""
    (tmp_path / "in").mkdir()
    log = FileLog(str(tmp_path / "sources" / "files" / "log"))
    for number in range(3):
        (tmp_path / "in" / f"{number}.json").write_text('{"k": 1}\n')
        log.append([whole(f"{number}.json", 9)])
    files = hf.read.files(str(tmp_path / "in"), schema="k BIGINT", name="files")
    filled = Backfill(pipeline(files, old=False, new=True), tmp_path, has_state)
    end = {"files": {"log": 3}}
    assert filled.seek(end, {})[-1] == end
    (tmp_path / "in" / "1.json").unlink()
    with pytest.raises(InvalidPipeline, match="a sink is to get everything from the beginning") as refused:
        filled.seek(end, {})
    assert "1 of its 3 files are gone" in refused.value.why
    assert "leave backfill=True out" in refused.value.do
    assert filled.seek({"files": {"log": 1}}, {})[-1] == {"files": {"log": 1}}, "what is not needed may be gone"


def test_a_sink_is_filled_when_it_is_new_and_then_no_more(tmp_path: Path) -> None:
    before, after = pipeline(rows(3), old=False), pipeline(rows(3), old=False, new=True)
    known = described(before, {})
    assert backfilled(after.sinks, known) == ("new",)
    assert backfilled(after.sinks, described(after, {})) == ()
    change = compare(known, described(after, {}), backfilled=("new",))
    assert {node.name: (node.verdict, node.effect) for node in change.nodes} == {
        "given": (NodeVerdict.KEPT, "is read again from its beginning"),
        "old": (NodeVerdict.KEPT, ""),
        "new": (NodeVerdict.NEW, "gets everything from the beginning"),
    }
    Backfill(after, tmp_path, has_state=False).check(change)
    moved = GraphChange((*change.nodes, *compare(described(pipeline(rows(3, "more"), old=False), {}), known).nodes))
    assert [node.name for node in moved.nodes if node.role is Role.SOURCE and node.verdict is NodeVerdict.GONE] == [
        "more"
    ]
    with pytest.raises(InvalidPipeline, match="backfill=True"):
        Backfill(after, tmp_path, has_state=False).check(moved)


def test_a_sink_that_gets_everything_does_not_begin_where_only_the_other_sinks_say_where_reading_begins(
    tmp_path: Path,
) -> None:
    """It would begin there too, and be known from then on: nobody would fill it any more."""
    store = LocalStore(str(tmp_path))
    beginning = inputs_of(store, tmp_path, "spark/1", "p", backfilled=["new"])
    sinks = {"old": held(given=3), "new": Held(0, 0, {}, None)}
    with pytest.raises(InvalidPipeline, match="Spark's part of the checkpoint is lost"):
        begun(beginning, sinks, 9)
    without = inputs_of(store, tmp_path, "spark/1", "p")  # the cure that it names
    assert begun(without, {"old": sinks["old"]}, 9).seek == (at(given=3),)
