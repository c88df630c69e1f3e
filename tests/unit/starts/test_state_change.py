"""Which directory a run uses, and where the change point lies when the graph has changed (design/0011, 4 to 6)."""

from __future__ import annotations

import json
import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory, read_origin, remove_older
from holdfast.checkpoint.graph_record import GraphRecord, Role
from holdfast.checkpoint.manifest import SnapshotKey
from holdfast.checkpoint.snapshot import checked, commit
from holdfast.errors import STATE, Corrupt, Diverged, crossing, from_text
from holdfast.ports import Held
from holdfast.shards.ends import is_final
from holdfast.spark.state.shape import Division, StateShape, noted_shape, settle_shape
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.directory import Directory, find_directory, give_up, log_change
from holdfast.starts.graph_diff import GraphChange, NodeChange, NodeVerdict, Replay
from holdfast.starts.restore import restoration, steps_of
from holdfast.starts.rewind_target import note_rewind
from holdfast.starts.state_change import StateChange, is_backfill, left_to_replay
from holdfast.starts.table import Spark
from holdfast.store import sealed
from holdfast.store.local import LocalStore
from holdfast.testing.clock import SimulatedClock
from tests.starts import inputs_of
from tests.unit.checkpoint.snapshots import KEEPS, snapshot


class Checkpoint:
    """A checkpoint in which Spark has run so far."""

    def __init__(self, directory: Path, origin: DirectoryHeader, number: int = 1) -> None:
        self.directory = directory
        self.store = LocalStore(str(directory))
        self.below = f"spark/{number}"
        self.store.put(f"{self.below}/origin.json", origin.to_json())

    def planned(self, batch_id: int, position: int, *, is_committed: bool = True) -> None:
        offset = {"positions": {"log": position}, "size_bytes": 0, "row_count": 0}
        lines = ["v2", json.dumps({"batchTimestampMs": batch_id + 1}), f"given:{json.dumps(offset)}", "gone:-"]
        self.store.put(f"{self.below}/metadata", b'{"id":"x"}')
        self.store.put(f"{self.below}/offsets/{batch_id}", "\n".join(lines).encode())
        if is_committed:
            self.store.put(f"{self.below}/commits/{batch_id}", b'v1\n{"nextBatchWatermarkMs":0}')

    def changed(self, held: dict[str, int], restored: tuple[str, ...] = (), **given: Held) -> DirectoryHeader:
        """Return what a changed graph begins with; no state is to be read."""
        nodes = tuple(NodeChange(name, Role.STATEFUL, NodeVerdict.KEPT, "") for name in restored)
        schemas = dict.fromkeys(restored, KEEPS)
        transfer = Transfer(self.store, "counts", "new", schemas, {}, 2, 2, SimulatedClock())
        inputs = inputs_of(self.store, self.directory, "spark/9", "counts", previous=self.below, spark=Spark.OTHER)
        session: Any = None  # state is read only where an operator is restored and has no snapshot
        change = StateChange(inputs, transfer, GraphChange(nodes), GraphRecord("", {}, {}), session)
        sinks = {name: Held(6, 1, at(position), None) for name, position in held.items()} | given
        return change.begin(DirectoryHeader(100, graph="new"), sinks)


def at(position: int) -> dict[str, Any]:
    return {"given": {"log": position}}


def test_the_change_point_is_the_last_epoch_that_spark_committed_or_a_sink_holds(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1))
    checkpoint.planned(0, 3)
    checkpoint.planned(1, 5)
    checkpoint.planned(2, 8, is_committed=False)
    assert checkpoint.changed({"table": 5}).seek == (at(5),), "planned, in no sink: given up"
    assert checkpoint.changed({"table": 8}).seek == (at(8),), "published, and Spark does not know"
    assert checkpoint.changed({"table": 8, "older": 5}).seek == (at(8),)
    assert checkpoint.changed({}).seek == (at(5),), "nobody to ask: Spark's word"
    origin = checkpoint.changed({"table": 5})
    assert (origin.base, origin.graph, origin.seed, origin.kept) == (100, "new", "", ())


def test_a_torn_entry_that_nobody_acted_on_is_no_epoch(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1))
    checkpoint.planned(0, 3)
    checkpoint.store.put("spark/1/offsets/1", b"v2\n{")
    assert checkpoint.changed({"table": 3}).seek == (at(3),)
    checkpoint.store.put("spark/1/commits/1", b"v1\n{}")
    with pytest.raises(Corrupt):
        checkpoint.changed({"table": 3})


def test_a_directory_that_has_finished_nothing_hands_on_where_it_began(tmp_path: Path) -> None:
    made = snapshot(LocalStore(str(tmp_path)), 4)
    began = DirectoryHeader(7, (at(4),), made.key.path, (), ("counted", "second"))
    checkpoint = Checkpoint(tmp_path, began, number=2)
    checkpoint.planned(0, 6, is_committed=False)
    origin = checkpoint.changed({"table": 4}, restored=("counted", "third"))
    assert (origin.seek, origin.seed, origin.kept) == ((at(4),), made.key.path, ("counted",))


def test_what_the_old_graph_had_still_to_replay_the_new_one_replays(tmp_path: Path) -> None:
    """As behind a rewind: whether it may is asked before."""
    made = snapshot(LocalStore(str(tmp_path)), 4)
    began = DirectoryHeader(7, (at(4), at(5), at(6)), made.key.path, ((3, 30), (4, 40)), graph="0123")
    checkpoint = Checkpoint(tmp_path, began, number=2)
    left = checkpoint.changed({"table": 6}, restored=("counted",))
    assert (left.base, left.seek, left.replayed) == (100, began.seek, began.replayed)
    assert (left.seed, left.kept, left.graph) == (made.key.path, ("counted",), "new")
    checkpoint.planned(0, 5, is_committed=False)
    assert checkpoint.changed({"table": 6}).seek == began.seek, "the sink held it before it ran"
    checkpoint.planned(0, 5)
    checkpoint.planned(1, 6, is_committed=False)
    left = checkpoint.changed({"table": 6})
    assert (left.seek, left.replayed) == ((at(5), at(6)), ((4, 40),))
    checkpoint.planned(1, 6)
    assert checkpoint.changed({"table": 6}).seek == (at(6),)
    checkpoint.planned(2, 7)
    left = checkpoint.changed({"table": 7})
    assert (left.seek, left.replayed) == ((at(7),), ())


def test_a_backfill_goes_on_with_the_new_graph_behind_what_the_new_sink_was_given(tmp_path: Path) -> None:
    for began in (
        DirectoryHeader(7, (at(0), at(2), at(4), at(6)), kept=()),
        DirectoryHeader(7, (at(0), at(2), at(4), at(6))),
    ):
        origin = began if began.kept == () else replace(began, backfilled=("filled",))  # of before, of now
        checkpoint = Checkpoint(tmp_path, origin, number=2)
        checkpoint.planned(0, 2)
        checkpoint.planned(1, 4, is_committed=False)
        left = checkpoint.changed({"table": 6})
        assert left.seek == (at(2), at(4), at(6)), "the others held it before it ran"
        filled = Held(8, 1, at(4), None)
        left = checkpoint.changed({"table": 6}, filled=filled)
        assert left.seek == (at(4), at(6)), "it was given it: Spark alone does not know"
        assert is_backfill(left) == is_backfill(origin)


def test_the_epochs_of_a_replay_belong_to_one_graph(tmp_path: Path) -> None:
    """Those of a backfill to the graph of now; after a damage or an interrupted rewind to the old one (0011, 4)."""
    restored = DirectoryHeader(7, (at(4), at(5), at(6)), replayed=((3, 30), (4, 40)), graph="old")
    checkpoint = Checkpoint(tmp_path, restored)

    def left(graph: str = "new") -> Replay | None:
        return left_to_replay(tmp_path, "spark/1", graph)

    assert left() == Replay(2, is_of_old_graph=True)
    assert left("old") == Replay(2)
    note_rewind(checkpoint.store, 6, at(6))
    assert left() == Replay(2, is_of_old_graph=True), "the state at the target is that of the rows which stay"
    checkpoint.planned(0, 5)
    assert left() == Replay(1, is_of_old_graph=True)
    checkpoint.planned(1, 6)
    assert left() is None
    Checkpoint(tmp_path / "filling", replace(restored, backfilled=("filled",)))
    assert left_to_replay(tmp_path / "filling", "spark/1", "new") == Replay(2)


def test_a_snapshot_of_the_change_point_serves_as_seed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1, graph="0123"))
    checkpoint.planned(0, 3)
    snapshot(checkpoint.store, 3)
    origin = checkpoint.changed({"table": 3}, restored=("counted",))
    assert (origin.seed, origin.kept) == (SnapshotKey(3, 1).path, ("counted",))
    with pytest.raises(Diverged, match=r"the state of the old one in spark/1 cannot be read") as refused:
        checkpoint.changed({"table": 3}, restored=("counted", "unknown"))
    assert "start the old graph once:" in refused.value.do
    checkpoint.store.put("spark/1/state.json", sealed.dump({"buckets": 2, "partitions": 2}))
    with pytest.raises(Diverged, match=r"the state in spark/1/state is incomplete") as refused:
        checkpoint.changed({"table": 3}, restored=("counted", "unknown"))
    assert "start the old graph once by the version of Holdfast that wrote it:" in refused.value.do


def test_the_ends_of_epochs_are_read_from_the_log_of_a_directory(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(7, (at(2), at(4)), replayed=((3, 30),)))
    for batch_id, position in enumerate((4, 6, 7)):
        checkpoint.planned(batch_id, position)
    found = [(s.start, s.ended.positions, s.ended.epoch, s.ended.step_epoch) for s in steps_of(tmp_path, "spark/1")]
    assert found == [(at(2), at(4), 7, 3), (at(4), at(6), 8, 8), (at(6), at(7), 9, 9)]
    assert [step.ended.batch_us for step in steps_of(tmp_path, "spark/1")] == [30, 2000, 3000]
    checkpoint.store.put("spark/1/offsets/1", b"")
    assert [step.ended.epoch for step in steps_of(tmp_path, "spark/1")] == [7]
    assert steps_of(tmp_path, "spark/5") == []


def test_an_origin_is_read_as_it_was_written(tmp_path: Path) -> None:
    for origin in (
        DirectoryHeader(1),
        DirectoryHeader(9, (at(1), at(2)), "s", ((4, 5),), ("a",), at(3), "f"),
        DirectoryHeader(2, kept=()),
    ):
        checkpoint = Checkpoint(tmp_path, origin)
        assert read_origin(tmp_path / checkpoint.below / "origin.json") == origin


def test_whoever_looks_for_the_directory_says_nothing_and_a_start_logs_the_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``holdfast plan`` looks, too: it said that the pipeline had gone on elsewhere."""
    caplog.set_level(logging.INFO)
    store = LocalStore(str(tmp_path))
    Checkpoint(tmp_path, DirectoryHeader(1, graph="g"))
    found = find_directory(store, tmp_path, "h")
    assert caplog.messages == []
    log_change(found)
    assert caplog.messages == ["the pipeline has changed: it continues in spark/2, after the epochs in spark/1"]


def test_the_directory_is_that_of_the_graph_unless_it_is_damaged(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.NONE)
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1, graph="g"))
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.GOOD)
    assert find_directory(store, tmp_path, "h") == Directory("spark/2", Spark.OTHER, "spark/1")
    assert find_directory(store, tmp_path, "") == Directory("spark/2", Spark.OTHER, "spark/1")
    divided = find_directory(store, tmp_path, "g", lambda below: [f"{below} has 2 buckets"])
    assert divided == Directory("spark/2", Spark.OTHER, "spark/1", ("spark/1 has 2 buckets",))
    checkpoint.store.put("spark/1/offsets/0", b"v2")
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.GOOD), (
        "no snapshot serves: the start says why"
    )
    snapshot(store, 1)
    assert_left_as_damaged(find_directory(store, tmp_path, "g"))
    checkpoint.planned(0, 1)
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.GOOD)
    assert give_up(store, "spark/1", None, Corrupt("state is gone", participant=STATE))
    assert_left_as_damaged(find_directory(store, tmp_path, "g"))
    Checkpoint(tmp_path, DirectoryHeader(1, graph="g"), number=2)
    assert find_directory(store, tmp_path, "g") == Directory("spark/2", Spark.GOOD)
    assert newest_directory(store) == 2
    remove_older(tmp_path, "spark/2")
    assert [path.name for path in (tmp_path / "spark").iterdir()] == ["2"]


def assert_left_as_damaged(found: Directory) -> None:
    (reason,) = found.reasons
    assert reason.startswith("spark/1 is not used again: ")
    assert replace(found, reasons=()) == Directory("spark/2", Spark.DAMAGED, "spark/1")


def test_nothing_is_given_up_without_a_snapshot(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1, graph="g"))
    assert not give_up(checkpoint.store, "spark/1", None, Corrupt("state is gone", participant=STATE))
    assert find_directory(checkpoint.store, tmp_path, "g") == Directory("spark/1", Spark.GOOD)


def test_a_directory_whose_seed_is_damaged_gives_way_to_one_that_begins_with_another_snapshot(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1, graph="g"))
    seed = snapshot(checkpoint.store, 1)
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(2, graph="g", seed=seed.key.path))
    store = checkpoint.store
    snapshot(store, 2)
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.GOOD)
    assert not give_up(store, "spark/1", seed, Corrupt("another file is damaged"))
    store.put(seed.key.path, b"?")
    assert_left_as_damaged(find_directory(store, tmp_path, "g"))
    commit(store, seed)
    assert find_directory(store, tmp_path, "g") == Directory("spark/1", Spark.GOOD)
    file = next(iter(seed.files))
    with pytest.raises(Corrupt) as missing, crossing():
        checked(None, file)
    as_it_comes_from_a_worker = from_text("".join(traceback.format_exception(missing.value)))
    assert as_it_comes_from_a_worker is not None
    assert is_final(as_it_comes_from_a_worker)
    assert give_up(store, "spark/1", seed, as_it_comes_from_a_worker)
    assert not is_final(as_it_comes_from_a_worker), "a supervisor starts it again: that mends it"
    assert_left_as_damaged(find_directory(store, tmp_path, "g"))


@pytest.mark.parametrize(
    ("has_state", "graph", "is_changed"), [(True, "g", False), (False, "g", True), (True, "", True)]
)
def test_a_directory_whose_graph_nobody_noted_is_told_by_its_state(
    tmp_path: Path, has_state: bool, graph: str, is_changed: bool
) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1))
    if has_state:
        checkpoint.store.put("spark/1/state.json", b"{}")
    assert find_directory(checkpoint.store, tmp_path, graph).is_changed == is_changed


def test_how_state_is_divided_is_settled_with_the_origin_of_a_directory(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert settle_shape(store, "spark/1", 2, Division()) == StateShape(2, 2)
    assert settle_shape(store, "spark/1", 4, Division(6)) == StateShape(6, 4), "a start that died decided nothing"
    Checkpoint(tmp_path, DirectoryHeader(1, graph="g"))
    assert settle_shape(store, "spark/1", 2, Division(3, 3)) == StateShape(6, 4)
    assert noted_shape(store, "spark/1") == StateShape(6, 4)
    assert noted_shape(store, "spark/2") is None
    assert list(Division(6, 8).outgrown(StateShape(6, 6))) == [], "more tasks than buckets have nothing to do"
    assert list(Division(0, 5).outgrown(StateShape(2, 2))) == [
        "state is divided into 5 buckets, and no longer into 2",
        "5 tasks work on it at a time, and no longer 2",
    ]


def test_a_snapshot_that_a_dead_start_made_for_another_graph_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, DirectoryHeader(1, graph="0123"))
    checkpoint.planned(0, 3)
    mine = snapshot(checkpoint.store, 3)
    other = replace(mine, graph="of the graph to come", generation=2, operators={})
    commit(checkpoint.store, other)
    assert checkpoint.changed({"table": 3}, restored=("counted",)).seed == mine.key.path
    held = [Held(9, 1, at(3), None)]
    for graph, generation in (("0123", 1), ("of the graph to come", 2), ("of none of them", 2)):
        found = restoration(checkpoint.store, "counts", held, (), graph=graph)
        assert found is not None
        assert found.manifest.generation == generation
