"""Shards whose checkpoint is lost are those that the sinks know, each with the segments that it had begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller.layouts.found_shards import ask_shards, known_layout, recovered_layout
from holdfast.controller.layouts.graph import PARTS, ShardGraphs
from holdfast.controller.layouts.moving import Ledgers
from holdfast.errors import Diverged, Unavailable
from holdfast.ports import EpochRecord, Held, Publication, RunIdentity, SinkLedger
from holdfast.positions import Positions
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.shards.naming import shard_name
from holdfast.store.local import LocalStore
from tests.specs import sqlite_spec


def graphs(directory: Path) -> ShardGraphs:
    rides = hf.read.files(str(directory / "in"), schema="id INT", name="rides")
    ticks = hf.read.rate(rows_per_second=10, name="ticks")
    sinks = (rides | hf.write.memory(name="a"), ticks | hf.write.memory(name="b"))
    return ShardGraphs(hf.Pipeline("trips", *sinks), directory / "checkpoint")


def said(*shards: Mapping[str, Positions]) -> list[dict[str, SinkLedger]]:
    """Return ledgers: for each shard sink -> positions."""
    return [{sink: SinkLedger(Held(5, 1, at)) for sink, at in sinks.items()} for sinks in shards]


def layout_of(directory: Path, found: Sequence[Ledgers]) -> ShardLayout:
    return recovered_layout(graphs(directory), found)[0]


def of(layout: ShardLayout, *segments: str) -> list[int]:
    return [layout.assignment.shards[f"rides:{name}"] for name in segments]


def test_what_was_published_comes_back_as_shards(tmp_path: Path) -> None:
    """Through a real sink: ledgers of two shards, and one of a shard that has opened it and published nothing."""
    spec = sqlite_spec(str(tmp_path / "out.db"), "rows")
    for shard, positions in ((0, {"rides": {"0/60": 3, "2/60": 1}}), (1, {"rides": {"1/60": 2}}), (2, None)):
        name = shard_name("trips", shard)
        sink = spec.connect("out", name, pa.schema([("id", pa.int32())]))
        sink.open(RunIdentity(name, 1))
        if positions is not None:
            sink.publish([Publication(EpochRecord(name, 1, 1, positions), ())], Held())
        sink.close()
    found = ask_shards({"out": spec}, "trips")
    assert len(found) == 3
    layout = layout_of(tmp_path, found)
    assert (layout.shard_count, layout.number) == (2, 0)
    assert of(layout, "0/60", "1/60", "2/60") == [0, 1, 0]


def test_a_layout_is_known_from_the_checkpoint_or_where_that_has_not_begun_from_the_sinks(tmp_path: Path) -> None:
    """One run would go on from what shard 0 has read, and read the segments of the others again."""
    rides = hf.read.files(str(tmp_path / "in"), schema="id INT", name="rides")
    (tmp_path / "in").mkdir()
    path, checkpoint = str(tmp_path / "out.db"), tmp_path / "checkpoint"
    pipeline = hf.Pipeline("trips", rides | hf.write.sqlite(path, table="rows", name="out"))
    assert known_layout(pipeline, checkpoint) is None
    for shard, positions in ((0, {"rides": {"log": 3}}), (1, None), (2, {"rides": {"0/60": 3}})):
        name = shard_name("trips", shard)
        sink = sqlite_spec(path, "rows").connect("out", name, pa.schema([("id", pa.int32())]))
        sink.open(RunIdentity(name, 1))
        if positions is not None:
            sink.publish([Publication(EpochRecord(name, 1, 1, positions), ())], Held())
        sink.close()
        found = known_layout(pipeline, checkpoint)
        assert (None if found is None else found.shard_count) == (3 if shard == 2 else None)
    store = LocalStore(str(checkpoint))
    store.prepare()
    store.put("identity.json", b"{}")  # a start that died when it had taken shard 0 over
    assert known_layout(pipeline, checkpoint) is not None
    store.put("spark/1/origin.json", b"{}")
    assert known_layout(pipeline, checkpoint) is None
    recorded = record_layout(store, ShardLayout(Assignment(4)))
    assert known_layout(pipeline, checkpoint) == recorded


def test_segments_that_nobody_has_begun_are_dealt(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, said({"a": {"rides": {"0/60": 1}}}, {"a": {"rides": {"1/60": 1}}}))
    assert of(layout, "0/60", "1/60") == [0, 1]
    assert layout.assignment.shards.keys() >= {"rides:59/60", "ticks:59/60"}


def test_what_was_read_before_it_was_divided_is_shard_0s_alone_where_nobody_has_begun_it(tmp_path: Path) -> None:
    """The position of the whole source is in its ledgers: another shard would read it from its beginning."""
    found = said({"a": {"rides": {"log": 9, "0/60": 12}}}, {"a": {"rides": {"1/60": 10}}, "b": {"ticks": {"0/60": 1}}})
    layout = layout_of(tmp_path, found)
    assert [shard for unit, shard in layout.assignment.shards.items() if unit.startswith("rides:")].count(1) == 1
    assert 20 < list(layout.assignment.shards.values()).count(1) < 70


def test_a_segment_that_moves_is_the_lower_shards(tmp_path: Path) -> None:
    """A crash between the two hand-overs of a change of their number: it is in two ledgers, at one position."""
    found = said({"a": {"rides": {"0/60": 7, "1/60": 4}}}, {"a": {"rides": {"1/60": 4, "2/60": 2}}})
    assert of(layout_of(tmp_path, found), "0/60", "1/60", "2/60") == [0, 0, 1]


def test_ledgers_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    found = said({"a": {"rides": {"0/60": 7}}}, {"a": {"rides": {"0/60": 8}}})
    with pytest.raises(Diverged, match="of shards 0 and 1"):
        layout_of(tmp_path, found)


def test_parts_by_hash_are_as_many_as_there_were(tmp_path: Path) -> None:
    found = said({"b": {"ticks": {"0/120": 5, "@bound": 3}}}, {"b": {"ticks": {"1/120": 5}}})
    layout = layout_of(tmp_path, found)
    assert layout.parts == {"rides": PARTS, "ticks": 120}
    assert layout.assignment.shards["ticks:1/120"] == 1
    undivided = layout_of(tmp_path, said({"b": {"ticks": {"rows": 50}}}))
    assert (undivided.shard_count, undivided.parts) == (1, {"rides": PARTS, "ticks": PARTS})


def test_a_shard_that_was_given_up_is_none(tmp_path: Path) -> None:
    """After a change to fewer shards the ledgers of those that are gone have empty positions."""
    found = said({"a": {"rides": {"0/60": 1, "1/60": 1}}}, {"a": {"rides": {}}}, {"a": {}})
    assert layout_of(tmp_path, found).shard_count == 1
    assert layout_of(tmp_path, []).shard_count == 1


def test_a_sink_that_does_not_answer_is_no_sink_that_knows_nothing(tmp_path: Path) -> None:
    class Silent:
        kind = "silent"

        def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
            if pipeline == "trips":
                return SinkLedger(Held(1, 1, {}))
            raise Unavailable("it does not answer", why="a test.", do="wait.")

    with pytest.raises(Unavailable):
        ask_shards({"out": Silent()}, "trips")


def test_sinks_without_a_ledger_are_not_asked() -> None:
    memory, http = hf.write.memory(name="a").spec, hf.write.http("http://127.0.0.1:9/", id="id", name="h").spec
    assert ask_shards({"a": memory, "h": http}, "trips") == []
