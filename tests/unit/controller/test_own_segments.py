"""What a shard is asked for once it is taken over: what its sinks hold is of its own segments, and all of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller.layouts.directory import DirectoryEnds, SparkDirectory
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.own_segments import OwnSegments
from holdfast.errors import Diverged, Fenced
from holdfast.ports import EpochRecord, Held, Publication, RunIdentity
from holdfast.positions import Positions
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.store.local import LocalStore
from tests.specs import sqlite_spec


@pytest.fixture
def graphs(tmp_path: Path) -> ShardGraphs:
    (tmp_path / "in").mkdir()
    rides = hf.read.files(str(tmp_path / "in"), schema="id INT", name="rides")
    table = rides | hf.write.sqlite(str(tmp_path / "out.db"), table="rows", name="out")
    LocalStore(str(tmp_path / "checkpoint")).prepare()
    return ShardGraphs(hf.Pipeline("trips", table), tmp_path / "checkpoint")


def publish(graphs: ShardGraphs, name: str, positions: Positions) -> None:
    spec = sqlite_spec(str(graphs.checkpoint.parent / "out.db"), "rows")
    sink = spec.connect("out", name, pa.schema([("id", pa.int32())]))
    sink.open(RunIdentity(name, 1))
    sink.publish([Publication(EpochRecord(name, 1, 1, positions), ())], Held())
    sink.close()


def a_layout(graphs: ShardGraphs) -> ShardLayout:
    assignment = Assignment(2, {"rides:0/60": 0, "rides:1/60": 1, "rides:2/60": 0})
    found = record_layout(LocalStore(str(graphs.checkpoint)), ShardLayout(assignment, {"rides": 60}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("segment", "owners"), [("0/60", [0]), ("1/60", [1]), ("9/60", [1]), ("log", [0, 1]), ("@bound", [0, 1])]
)
def test_a_sink_holds_segments_of_its_shard_and_new_ones_if_that_has_the_rest(
    graphs: ShardGraphs, segment: str, owners: list[int]
) -> None:
    layout, held = a_layout(graphs), {"out": Held(3, 1, {"rides": {segment: 4}})}
    for shard in range(2):
        own = OwnSegments(graphs, layout, shard)
        if shard in owners:
            own.check(held)
        else:
            with pytest.raises(Diverged, match="not one of 'trips"):
                own.check(held)


def test_what_a_fenced_run_has_planned_is_of_its_shard(graphs: ShardGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had the rest, and planned a segment that was dealt to another shard when it had been fenced."""
    layout = a_layout(graphs)
    ends = DirectoryEnds(1, {"rides": {"0/60": 3, "2/60": 1}}, 0, {})
    monkeypatch.setattr(SparkDirectory, "ends", lambda of: ends)
    OwnSegments(graphs, layout, 0).check({})
    with pytest.raises(Diverged, match="'trips-1' is to read segment '0/60'"):
        OwnSegments(graphs, layout, 1).check({})


def test_one_run_has_one_position_of_what_is_divided_by_hash(graphs: ShardGraphs) -> None:
    OwnSegments(graphs).check({"out": Held(3, 1, {"rides": {"log": 4}})})
    with pytest.raises(Diverged, match="'0/60' of source 'rides'"):
        OwnSegments(graphs).check({"out": Held(3, 1, {"rides": {"log": 4, "0/60": 7}})})
    a_layout(graphs)
    with pytest.raises(Fenced, match="this one runs layout 0, and 1 holds now"):
        OwnSegments(graphs).check({})


def test_sinks_that_have_refused_a_generation_are_asked_for_more_shards(graphs: ShardGraphs) -> None:
    """The checkpoint is older than they are; shard 0 may have read nothing since there are two."""
    publish(graphs, "trips-1", {"rides": {"1/60": 4}})
    store = LocalStore(str(graphs.checkpoint))
    held = {"out": Held(3, 1, {"rides": {"log": 4}})}
    for generation in (1, 2):
        store.put(f"generations/{generation:08d}.json", b"{}")
    OwnSegments(graphs).check(held)
    store.put("generations/00000007.json", b"{}")
    with pytest.raises(Diverged, match="holds rows of shard 1, which the checkpoint does not know"):
        OwnSegments(graphs).check(held)
