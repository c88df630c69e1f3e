"""Shards whose checkpoint is lost are those that the sinks know, each with the segments that it had begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller.found_shards import ask_shards, check_not_lost, recovered_layout, shards_with_rows
from holdfast.controller.graph import PARTS, ShardGraphs
from holdfast.errors import Diverged, InvalidPipeline, Unavailable
from holdfast.ports import EpochRecord, Held, Publication, RunIdentity, SinkLedger
from holdfast.positions import Positions
from holdfast.shards.layout import ShardLayout
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
    layout = recovered_layout(graphs(tmp_path), found)
    assert (layout.shard_count, layout.number) == (2, 0)
    assert of(layout, "0/60", "1/60", "2/60") == [0, 1, 0]


@pytest.mark.parametrize("shard", range(5))
def test_rows_of_any_of_the_first_shards_are_found_though_the_others_have_none(tmp_path: Path, shard: int) -> None:
    """A start with a new checkpoint would read them again; as one run it goes on with those of shard 0 alone."""
    rides = hf.read.files(str(tmp_path / "in"), schema="id INT", name="rides")
    path = str(tmp_path / "out.db")
    pipeline = hf.Pipeline("trips", rides | hf.write.sqlite(path, table="rows", name="out"))
    check_not_lost(pipeline, str(tmp_path / "checkpoint"))
    assert shards_with_rows(pipeline) == []
    name = shard_name("trips", shard)
    sink = sqlite_spec(path, "rows").connect("out", name, pa.schema([("id", pa.int32())]))
    sink.open(RunIdentity(name, 1))
    sink.publish([Publication(EpochRecord(name, 1, 1, {"rides": {"0/60": 3}}), ())], Held())
    sink.close()
    assert shards_with_rows(pipeline) == [shard]
    if not shard:
        check_not_lost(pipeline, str(tmp_path / "checkpoint"))
        return
    with pytest.raises(InvalidPipeline, match=f"rows of shard {shard}"):
        check_not_lost(pipeline, str(tmp_path / "checkpoint"))
    store = LocalStore(str(tmp_path / "checkpoint"))
    store.prepare()
    store.put("identity.json", b"{}")
    check_not_lost(pipeline, str(tmp_path / "checkpoint"))


def test_segments_that_nobody_has_begun_are_dealt(tmp_path: Path) -> None:
    layout = recovered_layout(graphs(tmp_path), said({"a": {"rides": {"0/60": 1}}}, {"a": {"rides": {"1/60": 1}}}))
    assert of(layout, "0/60", "1/60") == [0, 1]
    assert layout.assignment.shards.keys() >= {"rides:59/60", "ticks:59/60"}


def test_a_segment_that_moves_is_the_lower_shards(tmp_path: Path) -> None:
    """A crash between the two hand-overs of a change of their number: it is in two ledgers, at one position."""
    found = said({"a": {"rides": {"0/60": 7, "1/60": 4}}}, {"a": {"rides": {"1/60": 4, "2/60": 2}}})
    assert of(recovered_layout(graphs(tmp_path), found), "0/60", "1/60", "2/60") == [0, 0, 1]


def test_of_several_sinks_the_one_that_is_furthest_counts(tmp_path: Path) -> None:
    behind = {"a": {"rides": {"0/60": 2}}, "b": {"rides": {"0/60": 9}}}
    found = said(behind, {"a": {"rides": {"0/60": 9, "1/60": 1}}})
    assert of(recovered_layout(graphs(tmp_path), found), "0/60", "1/60") == [0, 1]


def test_ledgers_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    found = said({"a": {"rides": {"0/60": 7}}}, {"a": {"rides": {"0/60": 8}}})
    with pytest.raises(Diverged, match="in shards 0 and 1"):
        recovered_layout(graphs(tmp_path), found)


def test_parts_by_hash_are_as_many_as_there_were(tmp_path: Path) -> None:
    found = said({"b": {"ticks": {"0/120": 5, "@bound": 3}}}, {"b": {"ticks": {"1/120": 5}}})
    layout = recovered_layout(graphs(tmp_path), found)
    assert layout.parts == {"rides": PARTS, "ticks": 120}
    assert layout.assignment.shards["ticks:1/120"] == 1
    undivided = recovered_layout(graphs(tmp_path), said({"b": {"ticks": {"rows": 50}}}))
    assert (undivided.shard_count, undivided.parts) == (1, {"rides": PARTS, "ticks": PARTS})


def test_a_shard_that_was_given_up_is_none(tmp_path: Path) -> None:
    """After a change to fewer shards the ledgers of those that are gone have empty positions."""
    found = said({"a": {"rides": {"0/60": 1, "1/60": 1}}}, {"a": {"rides": {}}}, {"a": {}})
    assert recovered_layout(graphs(tmp_path), found).shard_count == 1
    assert recovered_layout(graphs(tmp_path), []).shard_count == 1


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
