"""Another number of shards between two runs: segments move, and every row has its effect once (design/0048, 6)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer

import holdfast as hf
from holdfast import faults
from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.cli.frame import plan_shards
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.connectors.files.source.division import SEGMENT as OF_FILES
from holdfast.connectors.rate import SEGMENT as OF_RATE
from holdfast.connectors.segments.source import SEGMENT as OF_SEGMENTS
from holdfast.controller.layouts.directory import SparkDirectory
from holdfast.controller.layouts.graph import UNDIVIDED
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.graph.trigger import available_now
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.starts.context import StartOptions
from holdfast.starts.named_checkpoint import create
from holdfast.starts.rewind import Rewinding
from holdfast.starts.starting import Starting
from holdfast.store.local import LocalStore
from tests.spark.running import die_at
from tests.spark.test_shards import DIRECTORIES, Place

pytestmark = pytest.mark.spark


@dataclass
class Movable(Place):
    """The same, with runs that end when everything is read."""

    @property
    def rearranging(self) -> Rearranging:
        return Rearranging(self.pipeline(), self.checkpoint, Settings())

    def run(self, layout: ShardLayout, shards: Sequence[int] | None = None) -> None:
        for shard in range(layout.shard_count) if shards is None else shards:
            self.run_shard(self.graphs().of(layout, shard), shard)

    def run_shard(self, graph: Graph, shard: int) -> None:
        asked = StartOptions(
            graph,
            shard_checkpoint(str(self.checkpoint), shard),
            available_now(),
            commit_every_ticks=None,
            commit_thread=True,
            session=None,
            settings=Settings(),
        )
        self.runs[shard] = Starting(asked, Lifecycle(NONE, graph.name)).run()
        self.runs[shard].wait()

    def directories(self, shard: int) -> SparkDirectory:
        directory = Path(shard_checkpoint(str(self.checkpoint), shard))
        graph = self.pipeline().with_sources(shard_name("rides", shard), {})
        return SparkDirectory(graph, LocalStore(str(directory)), directory, self.checkpoint)

    def spark(self, shard: int = 0) -> Path:
        directory = self.directories(shard).checkpoint
        return directory / "spark" / str(newest_directory(LocalStore(str(directory))))

    def check_rows(self) -> None:
        assert self.table() == self.store() == self.ids

    def run_as_one(self) -> None:
        self.pipeline().run(checkpoint=self.checkpoint, trigger=available_now())


@pytest.fixture
def place(tmp_path: Path) -> Movable:
    return Movable(tmp_path)


def test_the_directories_of_a_run_say_what_it_planned_and_finished(place: Movable) -> None:
    assert (place.directories(0).layout, place.directories(0).last_epoch()) == (0, 0)
    assert (place.directories(0).planned_end(), place.directories(0).finished_end()) == ({}, {})
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    found, log = place.directories(0), place.spark()
    assert found.last_epoch() == last_logged(log, "offsets") + read_origin(log / FILE_NAME).base
    assert found.planned_end() == found.finished_end() == read_offsets(log, last_logged(log, "offsets")).positions
    shutil.rmtree(log / "commits")  # planned, and not finished
    assert found.planned_end() != found.finished_end() == {}


def test_a_directory_begins_under_a_layout_and_once(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    before, log = place.directories(0), place.spark()
    last, at = before.last_epoch(), before.finished_end()
    layout = place.rearranging.change(2)
    for shard, found in ((0, place.directories(0)), (1, place.directories(1))):
        epoch, positions = layout.moves[shard].end
        header = read_origin(place.spark(shard) / FILE_NAME)
        assert (header.base, header.layout, header.moved, header.start) == (epoch + 1, 1, epoch * shard, positions)
        assert (found.layout, found.last_epoch(), found.planned_end(), found.finished_end()) == (
            1,
            epoch,
            positions,
            positions,
        )
        found.begin(1, epoch + 7, {"rides": {"log": 9}})
        assert found.last_epoch() == epoch
    assert place.spark(0) != log
    assert layout.moves[0].end[0] == last
    assert {name: at for name, at in layout.moves[1].end[1]["rides"].items() if name == "log"} == {
        "log": at["rides"]["log"]
    }


def test_sinks_that_know_the_whole_log_get_no_more_of_it(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    every = place.directories(0).explanations({"table": {}})
    assert every
    assert place.directories(1).explanations({"table": {}}) == every, "one workspace for all shards"
    assert place.directories(0).explanations({"table": {"rides": every[-1].number}}) == ()
    assert place.directories(0).explanations({}) == ()


def test_more_shards_and_fewer_and_more_again(place: Movable) -> None:
    """Acceptance 3: N to M to N, and each row has its effect once; who had a segment before has it again."""
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    layouts = []
    for count in (4, 2, 4):
        layouts.append(place.rearranging.change(count))
        place.arrive(*DIRECTORIES)
        place.run(layouts[-1])
        place.check_rows()
    four, two, again = (each.assignment for each in layouts)
    assert four.shards == again.shards != two.shards
    assert set(place.ledgers()) == {"rides", "rides-1", "rides-2", "rides-3"}


def test_no_rewind_goes_behind_a_hand_over(place: Movable) -> None:
    """Section 9: sinks know no end of before with the same segments."""
    place.arrive(*DIRECTORIES)
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    table = hf.write.sqlite(str(place.directory / "rides.db"), table="rows", rewindable=True, name="table")
    pipeline, store = hf.Pipeline("rides", rides | table), LocalStore(str(place.checkpoint))
    pipeline.run(checkpoint=place.checkpoint, trigger=available_now())
    create(store, place.checkpoint, "before", pipeline="rides", generation=1, settings=Settings(), clock=SystemClock())
    origin = place.spark() / FILE_NAME
    origin.write_bytes(replace(read_origin(origin), base=10, moved=9).to_json())
    with pytest.raises(InvalidPipeline, match="segments have moved"):
        Rewinding(pipeline, store, place.checkpoint, Settings()).plan("before")


def test_there_and_back_without_a_run_between_is_as_it_was(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    four = place.rearranging.change(4)
    place.run(four)
    before = {shard: place.directories(shard).finished_end() for shard in range(4)}
    place.rearranging.change(2)
    again = place.rearranging.change(4)
    segments = {shard: _segments(place.directories(shard).finished_end()) for shard in range(4)}
    assert segments == {shard: _segments(of) for shard, of in before.items()}
    place.arrive(*DIRECTORIES)
    place.run(again)
    place.check_rows()


def _segments(positions: object) -> dict[str, int]:
    assert isinstance(positions, dict)
    return {name: at for name, at in positions.get("rides", {}).items() if "/" in name}


def test_the_same_number_moves_nothing(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    two = place.rearranging.change(2)
    place.run(two)
    assert place.rearranging.change(2) == two == newest_layout(LocalStore(str(place.checkpoint)))
    assert not place.rearranging.is_unfinished


def test_what_was_planned_and_not_finished_is_read_by_whoever_has_the_segment_then(place: Movable) -> None:
    """Section 6, step 1: what Spark has planned beyond what sinks hold is dropped."""
    place.arrive(*DIRECTORIES)
    die_at("before-stage", 1)
    with pytest.raises(Exception, match="before-stage"):
        place.run_as_one()
    faults.install(None)
    place.run(place.rearranging.change(3))
    place.check_rows()


def test_a_shard_of_which_a_sink_is_away_refuses_the_start_and_nothing_has_changed(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    two = place.rearranging.change(2)
    place.run(two)
    table = place.directory / "rides.db"
    table.rename(place.directory / "away.db")
    with pytest.raises(Diverged):
        place.rearranging.change(4)
    assert newest_layout(LocalStore(str(place.checkpoint))) == two
    table.unlink()
    (place.directory / "away.db").rename(table)
    place.run(place.rearranging.change(4))
    place.check_rows()


def test_a_changed_graph_does_not_change_its_number_of_shards(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    table = rides | hf.write.sqlite(str(place.directory / "rides.db"), table="others", name="others")
    with pytest.raises(InvalidPipeline, match="has changed"):
        Rearranging(hf.Pipeline("rides", table), place.checkpoint, Settings()).change(2)
    assert newest_layout(LocalStore(str(place.checkpoint))) is None


def test_a_plan_says_what_moves_and_changes_nothing(place: Movable, capsys: pytest.CaptureFixture[str]) -> None:
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    store = LocalStore(str(place.checkpoint))
    before = {key: store.get(key) for key in store.keys("")}
    planned = place.rearranging.plan(4)
    assert {key: store.get(key) for key in store.keys("")} == before
    assert (planned.before, planned.after, planned.unit_count, len(planned.moves)) == (1, 4, 60, 45)
    assert planned.refusal is None
    layout = place.rearranging.change(4)
    assert {unit: shard for unit, shard in layout.assignment.shards.items() if shard} == {
        unit: receiver for unit, (_, receiver) in planned.moves.items()
    }
    lines = list(place.rearranging.plan(2).lines())
    assert lines[0] == "shards: 4 become 2; 30 of 60 units move"
    assert len([line for line in lines if "gives" in line]) > 1
    with pytest.raises(typer.Exit) as ended:
        plan_shards(place.pipeline(), place.checkpoint, Settings(), 2, as_json=True)
    assert ended.value.exit_code == 10
    assert len(json.loads(capsys.readouterr().out)["moves"]) == 30
    plan_shards(place.pipeline(), place.checkpoint, Settings(), 4, as_json=False)
    assert capsys.readouterr().out == "shards: 4 become 4; 0 of 60 units move\n"
    with pytest.raises(InvalidPipeline, match="cannot take segments over"):
        list(in_memory(place).change(2).assignment.shards)
    refusal = in_memory(place).plan(2).refusal
    assert refusal is not None
    assert "cannot take segments over" in refusal.what


def test_a_number_that_would_move_a_stream_is_refused(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    messages = rides | hf.select("id as at", "cast(id as string) as data", "'road' as camera")
    stream = messages | hf.write.byte_stream(place.directory / "stream", timestamp="at", stream="camera", name="stream")
    pipeline = hf.Pipeline("rides", stream)
    pipeline.run(checkpoint=place.checkpoint, trigger=available_now())
    rearranging = Rearranging(pipeline, place.checkpoint, Settings())
    refusal = rearranging.plan(2).refusal
    assert refusal is not None
    assert "stream 'road' of shard 0 would go on in another shard" in refusal.what
    with pytest.raises(InvalidPipeline, match="would go on in another shard"):
        rearranging.change(2)
    assert newest_layout(LocalStore(str(place.checkpoint))) is None


def in_memory(place: Movable) -> Rearranging:
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    return Rearranging(hf.Pipeline("rides", rides | hf.write.memory(name="out")), place.checkpoint, Settings())


def test_a_start_arranges_what_is_asked_for_and_what_was_begun(place: Movable) -> None:
    place.arrive(*DIRECTORIES)
    store = LocalStore(str(place.checkpoint))
    place.rearranging.arrange(4)
    assert newest_layout(store) is None, "it has not begun: the first layout is a start's"
    place.run_as_one()
    place.rearranging.arrange(0)
    assert newest_layout(store) is None
    place.rearranging.arrange(2)
    two = newest_layout(store)
    assert two is not None
    place.rearranging.check_finished()
    shutil.rmtree(place.directories(1).checkpoint / "spark")  # as a start leaves it that dies before shard 1 begins
    with pytest.raises(InvalidPipeline, match="were moving"):
        place.rearranging.check_finished()
    place.rearranging.arrange(0)
    place.rearranging.check_finished()
    place.run(two)
    place.check_rows()


def test_state_does_not_move_where_nobody_noted_which_segment_has_a_key(tmp_path: Path) -> None:
    ticks = hf.read.rate(rows_per_second=1000, name="ticks")
    counts = ticks | hf.accumulate(by="value", n=hf.count(), name="counts")
    pipeline = hf.Pipeline("counted", counts | hf.write.sqlite(str(tmp_path / "t.db"), table="rows", name="out"))
    with pytest.raises(InvalidPipeline, match="keeps state"):
        Rearranging(pipeline, tmp_path / "checkpoint", Settings()).change(2)


def test_the_segment_of_a_source_before_it_is_divided_is_known() -> None:
    assert UNDIVIDED == {"files": OF_FILES, "rate": OF_RATE, "segments": OF_SEGMENTS}


def test_a_sink_of_before_a_hand_over_is_refused(place: Movable) -> None:
    """It would be given rows again that another shard has, or none of the segments that the shard got."""
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    table, copies = place.directory / "rides.db", [place.directory / "1.db", place.directory / "2.db"]
    shutil.copy(table, copies[0])
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    two = place.rearranging.change(2)  # without a hand-over of shard 0: its position is of no segment
    shutil.copy(table, copies[1])
    shutil.copy(copies[0], table)
    with pytest.raises(Diverged, match="moved"):
        place.run(two, [0])
    shutil.copy(copies[1], table)
    place.arrive(*DIRECTORIES)
    place.run(two)
    shutil.copy(table, copies[1])
    one = place.rearranging.change(1)
    shutil.copy(copies[1], table)
    with pytest.raises(Diverged, match="moved"):
        place.run(one)


def test_what_a_fenced_run_has_planned_of_another_shard_is_planned_anew(place: Movable) -> None:
    """It was to read a new segment, which has been dealt to another shard since."""
    place.arrive(*DIRECTORIES)
    place.run_as_one()
    layout = place.rearranging.change(2)
    place.arrive(*DIRECTORIES)
    place.run(layout)
    theirs = next(iter(set(place.directories(1).finished_end()["rides"]) - {"log"}))
    log = place.spark(0) / "offsets"
    last = last_logged(place.spark(0), "offsets")
    *before, planned = (log / str(last)).read_text().splitlines()
    said = planned[planned.index("{") :]
    end = json.loads(said)
    assert theirs not in end["positions"]
    end["positions"][theirs] = 1
    (log / str(last + 1)).write_text("\n".join([*before, planned.replace(said, json.dumps(end))]))
    assert theirs in place.directories(0).planned_end()["rides"]
    place.arrive(*DIRECTORIES)
    place.rearranging.arrange(0)
    anew = newest_layout(LocalStore(str(place.checkpoint)))
    assert anew is not None
    assert (anew.number, anew.assignment.shards) == (layout.number + 1, layout.assignment.shards)
    place.run(anew)
    place.check_rows()
    place.rearranging.arrange(2)
    assert newest_layout(LocalStore(str(place.checkpoint))) == anew, "nothing is left to do"
