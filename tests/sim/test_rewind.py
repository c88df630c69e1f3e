"""Rewinds, without an engine: whatever write is the last one, the sinks are right in the end (design/0012)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import faults
from holdfast.checkpoint import progress
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, read_origin
from holdfast.checkpoint.graph_record import GraphRecord, described, read_graph, state_fingerprint, write_graph
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.participation import note_part
from holdfast.checkpoint.snapshot import commit, read_manifest, snapshot_keys
from holdfast.checkpoint.source_history import note_positions
from holdfast.config import Settings
from holdfast.errors import Diverged, Fenced, InvalidPipeline
from holdfast.plan.lookup_versions import VersionRecord
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.spark.state.shape import StateShape, noted_shape
from holdfast.starts import rewind, target_state
from holdfast.starts.graph_diff import Replay
from holdfast.starts.plan import plan
from holdfast.starts.restore import Restoration
from holdfast.starts.rewind_target import RewindTarget, check_finished
from holdfast.starts.state_change import left_to_replay
from holdfast.store import sealed
from holdfast.store.local import LocalStore
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore
from tests.sim.rewinding import MINUTE_US, SCHEMA, Flow, expected
from tests.starts import begun, inputs_of
from tests.unit.checkpoint.snapshots import KEEPS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("epoch", range(1, 11))
def test_after_a_rewind_to_any_epoch_the_sinks_are_those_of_a_run_that_never_went_wrong(
    tmp_path: Path, epoch: int
) -> None:
    flow = Flow(tmp_path)
    flow.run(10, version=1)
    done = flow.rewinding().do(str(epoch))
    assert flow.delivered() == (expected((epoch, 1)), expected((epoch, 1)))
    assert {name: (each.epoch_count, each.row_count) for name, each in done.sinks.items()} == {
        "table": (10 - epoch, 20 - 2 * epoch),
        "archive": (10 - epoch, 20 - 2 * epoch),
    }
    flow.run(12, version=2)
    whole = expected((epoch, 1), (12, 2))
    assert flow.delivered() == (whole, whole)
    used = flow.epochs_used()
    assert used == sorted(set(used)), "no number is used twice"
    assert used[-1] == 11 + 12 - epoch


def test_a_second_rewind_sees_only_what_still_stands(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(6, version=1)
    flow.rewinding().do("3")  # epoch 7
    flow.run(5, version=2)  # epochs 8 and 9: positions 4 and 5
    for gone in ("4", "5", "6", "7"):
        with pytest.raises(InvalidPipeline, match=f"cannot go back to {gone}") as refused:
            flow.rewinding().plan(gone)
        assert "it can go back to epoch 1 to 3, 8 to 9:" in refused.value.why
    flow.rewinding().do("8")
    flow.run(6, version=3)
    whole = expected((3, 1), (4, 2), (6, 3))
    assert flow.delivered() == (whole, whole)
    flow.rewinding().do("2")
    flow.run(6, version=4)
    whole = expected((2, 1), (6, 4))
    assert flow.delivered() == (whole, whole)


@pytest.mark.parametrize("second", [None, "3", "8"])
def test_what_a_rewind_has_withdrawn_does_not_come_back_where_it_died_before_it_had_removed_the_old_directory(
    tmp_path: Path, second: str | None
) -> None:
    """Spark's log of the old directory tells of these epochs still: as targets, and as ends for a replay."""
    flow = Flow(tmp_path)
    flow.run(6, version=1)
    process = Process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewind, "remove_older", lambda directory, below: process.die("remove_older"))
        with pytest.raises(SimulatedCrash):
            flow.rewinding().do("3")  # epoch 7
    assert {path.name for path in (tmp_path / "checkpoint" / "spark").iterdir()} == {"1", "2"}
    flow.run(5, version=2)  # epochs 8 and 9
    for gone in ("4", "5", "6", "7"):
        with pytest.raises(InvalidPipeline, match=f"cannot go back to {gone}"):
            flow.rewinding().plan(gone)
    if second is not None:
        flow.rewinding().do(second)
    stay = {None: {1, 2, 3, 8, 9}, "3": {1, 2, 3}, "8": {1, 2, 3, 8}}[second]
    assert {step.ended.epoch for step in progress.read(flow.store)} == stay


def test_a_time_means_the_last_epoch_that_was_planned_up_to_then(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(5, version=1)
    assert flow.rewinding().plan("1970-01-01T00:03:59Z").to == 3
    assert flow.rewinding().plan("1970-01-01T00:04").to == 4
    with pytest.raises(InvalidPipeline, match="cannot go back"):
        flow.rewinding().plan("1970-01-01")


def test_a_plan_changes_nothing_and_fences_nobody(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(4, version=1)
    generations = flow.generations()
    planned = flow.rewinding().plan("2")
    assert (planned.epoch, planned.to, planned.positions) == (0, 2, {"rows": {"log": 2}})
    assert {each.row_count for each in planned.sinks.values()} == {4}
    assert flow.delivered()[0] == expected((4, 1))
    assert flow.generations() == generations
    with pytest.raises(InvalidPipeline):
        flow.rewinding().do("99")
    assert flow.generations() == generations, "nobody is fenced for what cannot be done"


def test_snapshots_behind_the_target_do_not_count_any_more(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(5, version=1)
    for epoch in (2, 4):
        ended = EpochEnd(epoch, epoch, {"rows": {"log": epoch}}, epoch)
        commit(flow.store, Manifest("flow", 1, epoch, "", ended, 0))
    flow.rewinding().do("3")
    assert [key.epoch for key in snapshot_keys(flow.store)] == [2]


def test_a_sink_that_cannot_take_rows_back_refuses_the_whole_rewind(tmp_path: Path) -> None:
    flow = Flow(tmp_path, rewindable=False)
    flow.run(3, version=1)
    with pytest.raises(InvalidPipeline, match="sink 'table' cannot") as refused:
        flow.rewinding().do("2")
    assert "not declared rewindable=True" in refused.value.why
    assert "--except table" in refused.value.do
    assert flow.delivered()[1] == expected((3, 1))


def test_all_sinks_that_never_can_go_back_are_named_before_one_is_asked_or_a_row_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = hf.read.rows([[{"k": 1, "v": 2}]], schema="k BIGINT, v BIGINT", name="rows")
    sinks = [
        hf.write.sqlite(tmp_path / "a.db", table="t", mode="upsert", key="k", name="latest"),
        hf.write.sqlite(tmp_path / "b.db", table="t", rewindable=True, name="table"),
        hf.write.sqlite(tmp_path / "c.db", table="t", name="added"),
        hf.write.segments(tmp_path / "segments", name="segments"),
        hf.write.kafka("localhost:1", topic="alerts", name="alerts"),
        hf.write.memory("kept"),
    ]
    pipeline = hf.Pipeline("flow", *(rows | sink for sink in sinks))
    rewinding = rewind.Rewinding(pipeline, LocalStore(str(tmp_path)), tmp_path, Settings())
    monkeypatch.setattr(rewind, "connected_sinks", None)
    with pytest.raises(InvalidPipeline, match="sinks 'added', 'segments', 'alerts', 'kept' cannot") as refused:
        rewinding.plan("2")
    for why in ("kind 'segments' cannot withdraw rows", "kind 'kafka' cannot", "process of the run", "rewindable=True"):
        assert why in refused.value.why
    cure = "--except added --except segments --except alerts --except kept"
    assert cure in refused.value.do
    assert "another epoch" not in refused.value.do, "none would help"
    left_out = cure.replace("--except ", "").split()
    with pytest.raises(TypeError):  # now the sinks would be asked
        rewinding.plan("2", left_out)
    with pytest.raises(InvalidPipeline, match="no sink has that name"):
        rewinding.plan("2", ["other"])
    with pytest.raises(InvalidPipeline, match="no sink would go back"):
        rewinding.plan("2", [sink.name for sink in sinks])


def test_rows_that_were_looked_up_are_not_computed_again_in_the_table_of_now(tmp_path: Path) -> None:
    """What an upserted table held is computed from the sources; rows that stay would change."""
    rows = hf.read.rows([[{"x": 1}]], schema="x BIGINT", name="rows")
    table = pa.table({"x": [1], "price": [5]})
    pipeline = hf.Pipeline(
        "flow",
        hf.lookup(rows, table, on="x", name="priced")
        | hf.write.sqlite(tmp_path / "a.db", table="t", mode="upsert", key="x", name="looked_up"),
        rows | hf.write.sqlite(tmp_path / "b.db", table="t", mode="upsert", key="x", name="plain"),
    )
    rewinding = rewind.Rewinding(pipeline, LocalStore(str(tmp_path)), tmp_path, Settings())
    with pytest.raises(InvalidPipeline, match="sink 'looked_up' cannot") as refused:
        rewinding.plan("2")
    assert "computed anew, in tables as they are now: by lookup priced" in refused.value.why
    assert "--except looked_up" in refused.value.do


def test_a_sink_that_is_left_out_keeps_its_rows_and_is_new_to_the_next_graph_once_it_is_emptied(tmp_path: Path) -> None:
    for number, crash in enumerate([None, *places(tmp_path)[::4]]):
        flow = Flow(tmp_path / str(number), has_extra=True)
        flow.run(5, version=1)
        write_graph(flow.store, "spark/1", described(flow.pipeline, {}))
        process = Process(crash)
        try:
            with process.counting_points():
                done = flow.rewinding(FaultyStore(flow.store, process)).do("3", ["extra"])
                assert (done.left_out, [*done.sinks]) == (("extra",), ["table", "archive"])
        except SimulatedCrash:
            flow.rewinding().carry_through()
        if flow.delivered()[0] == expected((5, 1)):
            assert crash is not None, "nothing has happened"
            continue
        whole = expected((3, 1))
        assert (flow.delivered(), flow.rows_in("extra")) == ((whole, whole), expected((5, 1))), crash
        graph = read_graph(flow.store, "spark/2")
        assert ("extra" in graph.nodes, [*graph.left_out]) == (False, ["extra"]), crash
        with pytest.raises(Diverged, match="sink 'extra' holds epoch 5") as refused:
            flow.run(6, version=2)
        assert "let backfill=True fill it" in refused.value.do
        if crash is None:  # its kind can go back: the next rewind may take it along
            shutil.copytree(flow.work, tmp_path / "again")
            again = Flow(tmp_path / "again", has_extra=True)
            again.rewinding().do("3")
            assert "extra" in read_graph(again.store, "spark/3").nodes
            again.run(6, version=2)
            assert again.rows_in("extra") == expected((3, 1), (6, 2))
        shutil.rmtree(flow.work / "extra")
        flow.run(6, version=2)
        assert flow.delivered()[0] == expected((3, 1), (6, 2)), crash


def test_no_snapshot_is_called_beyond_a_sink_because_it_is_beyond_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither was a run fenced nor a sink restored: it is what a rewind is for."""
    flow = Flow(tmp_path)
    with_state(flow, "0123", "0123", "counted")
    evaluated_by(monkeypatch, "0123")
    later = replace(
        read_manifest(flow.store, *snapshot_keys(flow.store)), ended=EpochEnd(5, 5, {"rows": {"log": 5}}, 5)
    )
    commit(flow.store, later)
    flow.rewinding().do("4")
    assert "passed over" not in caplog.text


def test_a_sink_that_was_never_opened_stands_in_nobodys_way(tmp_path: Path) -> None:
    Flow(tmp_path).run(3, version=1)
    flow = Flow(tmp_path, has_extra=True)
    assert flow.rewinding().do("2").sinks["extra"].row_count == 0
    assert flow.delivered()[0] == expected((2, 1))


def test_a_run_that_is_alive_is_fenced_before_anything_is_withdrawn(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(3, version=1)
    (node, _) = flow.pipeline.sinks
    alive = node.spec.connect(node.name, "flow", SCHEMA)
    alive.open(RunIdentity("flow", 50))
    flow.rewinding().do("2")
    with pytest.raises(Fenced):
        alive.publish(
            [Publication(EpochRecord("flow", 4, 50, {"rows": {"log": 4}}), (Carried(SCHEMA.empty_table()),))], Held()
        )
    alive.close()
    assert flow.delivered()[0] == expected((2, 1))


def test_a_directory_that_is_lost_behind_a_finished_rewind_takes_nothing_back_again(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(4, version=1)
    flow.rewinding().do("2")
    flow.run(5, version=2)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    assert flow.rewinding().carry_through() is None
    flow.run(6, version=3)
    whole = expected((2, 1), (5, 2), (6, 3))
    assert flow.delivered() == (whole, whole)


def test_a_rewind_that_slept_until_another_run_had_finished_it_touches_nothing_of_that_run(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(4, version=1)

    def sleep(point: str, epoch: int) -> None:
        if point == "after-forget":
            faults.install(None)
            flow.run(5, version=2)

    faults.install(sleep)
    try:
        with pytest.raises(Fenced):
            flow.rewinding().do("2")
    finally:
        faults.install(None)
    assert [path.name for path in (tmp_path / "checkpoint" / "spark").iterdir()] == ["2"]
    flow.run(6, version=3)
    whole = expected((2, 1), (5, 2), (6, 3))
    assert flow.delivered() == (whole, whole)


def places(tmp_path: Path) -> list[CrashAt]:
    flow = filled(tmp_path / "survivor")
    process = Process()
    with process.counting_points():
        flow.rewinding(FaultyStore(flow.store, process)).do("3")
    return [CrashAt(n, when) for n in range(1, process.write_count + 1) for when in ("before", "after")]


def filled(work: Path) -> Flow:
    work.mkdir()
    flow = Flow(work)
    flow.run(5, version=1)
    return flow


@pytest.mark.parametrize("again", ["the next start", "the same command"])
def test_whatever_write_is_the_last_one_a_rewind_is_not_begun_or_is_carried_through(tmp_path: Path, again: str) -> None:
    crashes = places(tmp_path)
    assert len(crashes) > 20
    untouched = carried = 0
    for number, crash in enumerate(crashes):
        flow = filled(tmp_path / str(number))
        process = Process(crash)
        with process.counting_points(), pytest.raises(SimulatedCrash):
            flow.rewinding(FaultyStore(flow.store, process)).do("3")
        if again == "the same command":
            flow.rewinding().carry_through()
            flow.rewinding().do("3")
        flow.run(7, version=2)
        table, archive = flow.delivered()
        assert table == archive, crash
        if table == expected((5, 1), (7, 2)):
            untouched += 1
            assert again == "the next start", crash
            assert carried == 0, "no place after the decision leaves a rewind undone"
        else:
            assert table == expected((3, 1), (7, 2)), crash
            carried += 1
        used = flow.epochs_used()
        assert used == sorted(set(used)), crash
    assert carried > 10
    assert untouched > 4 or again == "the same command"


def test_a_rewind_is_carried_through_after_any_second_crash_too(tmp_path: Path) -> None:
    crashes = places(tmp_path)
    for number, first in enumerate(crashes[len(crashes) // 3 :: 7]):
        for second in range(1, 40, 5):
            flow = filled(tmp_path / f"{number}-{second}")
            process = Process(first)
            with process.counting_points(), pytest.raises(SimulatedCrash):
                flow.rewinding(FaultyStore(flow.store, process)).do("3")
            process = Process(CrashAt(second, "after"))
            try:
                with process.counting_points():
                    flow.rewinding(FaultyStore(flow.store, process)).carry_through()
            except SimulatedCrash:
                pass
            flow.run(7, version=2)
            assert flow.delivered()[0] in (expected((3, 1), (7, 2)), expected((5, 1), (7, 2))), (first, second)
            assert flow.delivered()[0] == flow.delivered()[1], (first, second)


def test_what_becomes_of_a_graph_is_not_said_while_a_rewind_is_unfinished(tmp_path: Path) -> None:
    """A start would finish it first, and compare with what is there then."""
    flow = filled(tmp_path / "flow")
    check_finished(flow.store, tmp_path / "flow" / "checkpoint", "flow", "nothing")
    process = Process()
    process.on_write = lambda label: process.die(label) if "/origin.json" in label else None
    with process.counting_points(), pytest.raises(SimulatedCrash):
        flow.rewinding(FaultyStore(flow.store, process)).do("3")
    with pytest.raises(InvalidPipeline, match="rewind to epoch 3 was interrupted") as refused:
        plan(flow.pipeline, flow.store, tmp_path / "flow" / "checkpoint", Settings())
    assert "holdfast rewind --to 3" in refused.value.do
    flow.rewinding().carry_through()
    plan(flow.pipeline, flow.store, tmp_path / "flow" / "checkpoint", Settings())


def test_sinks_go_back_to_a_checkpoint_that_was_restored_from_an_older_copy(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(2, version=1)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    flow.run(5, version=1)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    with pytest.raises(Diverged, match="knows of 2") as refused:
        flow.run(2, version=2)
    assert "holdfast rewind --to" in refused.value.do
    flow.rewinding().do("2")
    assert flow.delivered() == (expected((2, 1)), expected((2, 1)))
    flow.run(6, version=2)
    whole = expected((2, 1), (6, 2))
    assert flow.delivered() == (whole, whole)


@pytest.mark.parametrize("later", [3, 5])
def test_a_sink_that_was_restored_to_before_a_rewind_is_not_taken_for_one_that_holds_its_rows(
    tmp_path: Path, later: int
) -> None:
    """It has the rows that were withdrawn, under the positions of those that came instead."""
    flow = Flow(tmp_path)
    flow.run(6, version=1)
    shutil.copy(tmp_path / "t.db", tmp_path / "copy.db")
    flow.rewinding().do("3")
    flow.run(later, version=2)
    for path in tmp_path.glob("t.db*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "t.db")
    with pytest.raises(Diverged, match="sink 'table' holds epoch 6, which epoch 7, a rewind, has withdrawn") as refused:
        flow.run(8, version=2)
    assert "holdfast rewind" in refused.value.do
    flow.rewinding().do("3")
    flow.run(8, version=2)
    whole = expected((3, 1), (8, 2))
    assert flow.delivered() == (whole, whole)


def test_a_sink_that_was_not_in_the_graph_when_it_was_rewound_is_not_taken_for_one_that_holds_its_rows(
    tmp_path: Path,
) -> None:
    """By its positions it would be left out of all that comes instead of what was withdrawn in the others."""
    Flow(tmp_path, has_extra=True).run(6, version=1)
    without = Flow(tmp_path)
    assert without.rewinding().do("3").absent == ("extra",)
    without.run(5, version=2)
    flow = Flow(tmp_path, has_extra=True)
    with pytest.raises(Diverged, match="sink 'extra' holds epoch 6, which epoch 7, a rewind, has withdrawn") as refused:
        flow.run(8, version=2)
    assert "it was not in the graph when that was rewound" in refused.value.why
    assert "give it another name: it then begins at the present" in refused.value.do
    flow.rewinding().do("3")
    flow.run(8, version=2)
    whole = expected((3, 1), (8, 2))
    assert flow.delivered() == (whole, whole)
    assert flow.rows_in("extra") == whole


def test_a_sink_that_left_the_graph_before_the_target_of_a_rewind_has_nothing_that_was_withdrawn(
    tmp_path: Path,
) -> None:
    Flow(tmp_path, has_extra=True).run(3, version=1)
    without = Flow(tmp_path)
    without.run(6, version=1)
    without.rewinding().do("3")
    flow = Flow(tmp_path, has_extra=True)
    flow.run(8, version=2)
    assert flow.rows_in("extra") == expected((3, 1), (8, 2))


def test_a_sink_that_was_restored_to_the_target_of_a_rewind_has_nothing_that_was_withdrawn(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(3, version=1)
    shutil.copy(tmp_path / "t.db", tmp_path / "copy.db")
    flow.run(6, version=1)
    flow.rewinding().do("3")
    for path in tmp_path.glob("t.db*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "t.db")
    flow.run(8, version=2)
    whole = expected((3, 1), (8, 2))
    assert flow.delivered() == (whole, whole)


def test_where_sources_stood_that_are_gone_is_remembered_behind_a_rewind_too(tmp_path: Path) -> None:
    """Else one that comes back would be read from its beginning, and its rows be published twice."""
    flow = Flow(tmp_path)
    flow.run(4, version=1)
    left_before = {"gone": {"log": 7}, "elsewhere": {"log": 3}}
    note_positions(flow.store, 2, left_before, else_known={})
    note_positions(flow.store, 3, {"elsewhere": {"log": 4}, "withdrawn": {"log": 1}}, else_known={})
    flow.rewinding().do("2")
    retired = read_origin(tmp_path / "checkpoint" / "spark" / "2" / FILE_NAME).retired
    assert retired == {**left_before, "rows": {"log": 2}}, "as it was then"


def test_what_an_older_version_knew_of_sources_that_are_gone_is_remembered(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(4, version=1)
    record = tmp_path / "checkpoint" / "spark" / "1" / FILE_NAME
    record.write_bytes(replace(read_origin(record), retired={"gone": {"log": 7}}).to_json())
    flow.rewinding().do("2")
    retired = read_origin(tmp_path / "checkpoint" / "spark" / "2" / FILE_NAME).retired
    assert retired == {"gone": {"log": 7}, "rows": {"log": 2}}


def with_state(flow: Flow, graph: str, of_snapshot: str, *operators: str, since: int = 1) -> None:
    """Let five epochs be those of a graph with state, and the second have a snapshot."""
    flow.run(5, version=1)
    first = flow.work / "checkpoint" / "spark" / "1" / FILE_NAME
    first.write_bytes(replace(read_origin(first), graph=graph, graph_since=since).to_json())
    write_graph(flow.store, "spark/1", GraphRecord("", {}, {"counted": KEEPS}, 2))
    ended = EpochEnd(2, 2, {"rows": {"log": 2}}, 2 * MINUTE_US)
    states = {name: OperatorState(KEEPS, {}) for name in operators}
    commit(flow.store, Manifest("flow", 1, 0, of_snapshot, ended, 2, states))


def evaluated_by(monkeypatch: pytest.MonkeyPatch, graph: str) -> list[tuple[int, ...]]:
    """Let the pipeline be of a graph with state; return which epochs are evaluated again, without an engine."""
    evaluated: list[tuple[int, ...]] = []
    monkeypatch.setattr(target_state, "state_fingerprint", lambda pipeline: graph)
    monkeypatch.setattr(target_state, "require_java", lambda: None)
    monkeypatch.setattr(
        target_state.TargetState,
        "evaluate",
        lambda self, to, replayed, left_out: evaluated.append(tuple(each.epoch for each in replayed)),
    )
    return evaluated


def test_what_follows_the_snapshot_is_evaluated_by_the_graph_that_published_it_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, directory = Flow(tmp_path), tmp_path / "checkpoint"
    with_state(flow, "0123", "0123", "counted")
    evaluated = evaluated_by(monkeypatch, "0123")
    done = flow.rewinding().do("4")
    assert (done.snapshot, done.replayed, evaluated) == (2, 2, [(3, 4)])
    origin = read_origin(directory / "spark" / "2" / FILE_NAME)
    assert [stop["rows"]["log"] for stop in origin.seek] == [2, 3, 4]
    assert (len(origin.replayed), origin.graph) == (2, "0123")
    # Dead before they are evaluated.
    assert left_to_replay(directory, "spark/2", "0123") == Replay(2)
    assert left_to_replay(directory, "spark/2", "89ab") == Replay(2, is_of_old_graph=True)
    # And when Spark's part is lost before that graph has come so far.
    shutil.rmtree(directory / "spark")
    held = {"table": Held(done.epoch, 1, done.positions)}
    mended = inputs_of(flow.store, directory, "spark/1", "flow", (), {"counted": KEEPS}, "89ab")
    with pytest.raises(Diverged, match="the graph has changed"):
        begun(mended, held, done.epoch)
    again = begun(replace(mended, graph="0123"), held, done.epoch)
    assert (again.seek, again.replayed, again.seed) == (origin.seek, origin.replayed, origin.seed)


def test_a_rewind_that_has_to_evaluate_by_another_graph_is_refused_and_nothing_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    with_state(flow, "0123", "0123", "counted")
    generations = flow.generations()
    evaluated_by(monkeypatch, "89ab")
    with pytest.raises(InvalidPipeline, match="cannot go back to 4: its state of then") as refused:
        flow.rewinding().do("4")
    assert "2 epochs after that of epoch 2 have to be evaluated again" in refused.value.why
    assert "rewind with the graph that ran last" in refused.value.do
    assert "go back to epoch 2, where nothing is evaluated" in refused.value.do
    assert flow.generations() == generations
    assert flow.rewinding().do("2").replayed == 0, "nothing is evaluated there"


def test_epochs_of_a_graph_before_the_last_change_are_evaluated_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph that ran last is given, and would make other state of them."""
    flow = Flow(tmp_path)
    with_state(flow, "0123", "4567", "counted", since=5)
    evaluated_by(monkeypatch, "0123")
    with pytest.raises(InvalidPipeline, match="cannot go back to 4: its state of then") as refused:
        flow.rewinding().plan("4")
    assert "the graph that ran last has published none before epoch 5" in refused.value.why
    assert "choose a later epoch than 4" in refused.value.do
    first = tmp_path / "checkpoint" / "spark" / "1" / FILE_NAME
    first.write_bytes(replace(read_origin(first), graph_since=3).to_json())
    assert flow.rewinding().do("4").replayed == 2, "the snapshot is of the change point"
    assert read_origin(tmp_path / "checkpoint" / "spark" / "2" / FILE_NAME).graph_since == 3, "it is known further on"


def priced(rows: hf.Stream) -> hf.Stream:
    table = pa.table({"x": [1], "price": [5]})
    return hf.lookup(rows, table, on="x", name="priced") | hf.accumulate(by="x", total=hf.sum("price"), name="counted")


@pytest.mark.parametrize("recorded", [None, 4, 3])
def test_epochs_of_which_it_is_not_known_what_they_saw_in_a_table_are_not_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: int | None
) -> None:
    """They saw it as it was; the run of the rewind would look up in the table of now, and say nothing."""
    flow = Flow(tmp_path, behind=priced)
    with_state(flow, "0123", "0123", "counted")
    evaluated = evaluated_by(monkeypatch, "0123")
    if recorded is not None:
        flow.store.put(VersionRecord(1, recorded, "of some bytes").key("priced"), sealed.dump({"version": "ab"}))
    generations = flow.generations()
    if recorded == 3:
        assert flow.rewinding().do("4").replayed == 2
        assert evaluated == [(3, 4)]
        return
    for attempt in (flow.rewinding().plan, flow.rewinding().do):
        with pytest.raises(InvalidPipeline, match="cannot go back to 4: its state of then cannot be computed") as told:
            attempt("4")
        assert (
            "The state of counted depends on the time at which epochs were planned, or on what a table"
            in told.value.why
        )
        assert "lookups/ from a copy; or go back to epoch 2, where nothing is evaluated" in told.value.do
    assert (evaluated, flow.generations()) == ([], generations)
    assert flow.rewinding().do("2").replayed == 0


@pytest.mark.parametrize("has_look_up", [True, False])
def test_epochs_that_are_known_only_joined_are_evaluated_again_where_state_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_look_up: bool
) -> None:
    """One epoch sees one version of a table, and has one time; a sum does not ask."""
    monkeypatch.setattr(target_state, "require_java", lambda: None)
    flow = Flow(tmp_path, behind=priced if has_look_up else lambda rows: rows)
    flow.store.put(VersionRecord(1, 1, "of some bytes").key("priced"), sealed.dump({"version": "ab"}))
    ended = EpochEnd(4, 4, {"rows": {"log": 4}}, 4 * MINUTE_US)
    manifest = Manifest("flow", 1, 0, "", EpochEnd(2, 2, {"rows": {"log": 2}}, 2 * MINUTE_US), 2)
    state = target_state.TargetState(flow.pipeline, flow.store, tmp_path / "checkpoint", Settings(), None)
    header = DirectoryHeader(base=1, graph=state_fingerprint(flow.pipeline), graph_since=1)
    state.check_evaluable("4", RewindTarget(ended, Restoration(manifest, (ended,), ())), header)
    joined = RewindTarget(ended, Restoration(manifest, (ended,), (), joined_count=1))
    if has_look_up:
        with pytest.raises(InvalidPipeline, match="its state of then cannot be computed"):
            state.check_evaluable("4", joined, header)
    else:
        state.check_evaluable("4", joined, header)


def test_a_rewind_behind_a_change_that_the_state_of_then_does_not_fit_is_refused(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    with_state(flow, "0123", "4567", "counted", "gone")
    with pytest.raises(InvalidPipeline, match="its graph has changed since") as refused:
        flow.rewinding().do("4")
    assert "an operator that the graph has no more" in refused.value.why


def test_state_of_another_number_of_buckets_goes_on_in_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are found where the hash of so many buckets has put them: the next start divides them anew, if asked to."""
    flow = Flow(tmp_path)
    evaluated_by(monkeypatch, "0123")
    flow.run(5, version=1)
    spark = tmp_path / "checkpoint" / "spark"
    first = spark / "1" / FILE_NAME
    first.write_bytes(replace(read_origin(first), graph="0123").to_json())
    flow.store.put("spark/1/state.json", b'{"buckets": 4, "partitions": 3}')
    write_graph(flow.store, "spark/1", GraphRecord("", {}, {"counted": KEEPS}, 4))
    ended = EpochEnd(2, 2, {"rows": {"log": 2}}, 2 * MINUTE_US)
    commit(flow.store, Manifest("flow", 1, 0, "0123", ended, 2, {"counted": OperatorState(KEEPS, {})}))
    flow.rewinding().do("3")
    origin = read_origin(spark / "2" / FILE_NAME)
    assert read_manifest(flow.store, *snapshot_keys(flow.store)).key.path == origin.seed
    assert noted_shape(flow.store, "spark/2") == StateShape(buckets=2, partitions=2)
    assert read_graph(flow.store, "spark/2").buckets == 2


@pytest.mark.parametrize("emptied", [("table",), ("table", "archive")])
def test_wherever_a_rewind_and_then_a_reset_of_all_sinks_died_no_start_takes_an_emptied_sink_for_a_full_one(
    tmp_path: Path, emptied: tuple[str, ...]
) -> None:
    """Of design/0042, "What a crash leaves"; the checkpoint is set aside last."""
    for number, crash in enumerate(places(tmp_path)[1::2]):
        flow = filled(tmp_path / str(number))
        process = Process(crash)
        with process.counting_points(), pytest.raises(SimulatedCrash):
            flow.rewinding(FaultyStore(flow.store, process)).do("3")
        for node in flow.pipeline.sinks:
            note_part(flow.store, node.name)
            if node.name in emptied:
                spec: Any = node.spec
                spec.reset(node.name, "flow", rows=True, is_dry_run=False)
        with pytest.raises(Diverged, match=r"holds nothing, and has taken part|cannot go back to the end of epoch 3"):
            flow.run(7, version=2)
        for node in flow.pipeline.sinks:
            others: Any = node.spec
            others.reset(node.name, "flow", rows=True, is_dry_run=False)
        shutil.move(flow.work / "checkpoint", flow.work / "aside")
        flow = Flow(flow.work)
        flow.run(7, version=3)
        assert flow.delivered() == (expected((7, 3)), expected((7, 3))), crash
