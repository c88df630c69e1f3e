"""Another number of shards for a pipeline that keeps state: each key's state goes with its rows (design/0048, 7)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.snapshot import from_parquet
from holdfast.connectors.files.source.division import FileDivision
from holdfast.controller.layouts.directory import SparkDirectory
from holdfast.controller.layouts.graph import PARTS
from holdfast.errors import Diverged, Fenced, InvalidPipeline
from holdfast.graph.trigger import available_now
from holdfast.pipeline import Pipeline
from holdfast.plan.levels.edited import division_of
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.shards.moves import Move
from holdfast.state import tables
from holdfast.store.local import LocalStore
from tests.crash.moving_process import keyed_pipeline
from tests.spark.running import arrive, sqlite_rows
from tests.spark.test_rearranging import Movable

pytestmark = pytest.mark.spark

DEVICES = [f"device{number}" for number in range(9)]
TABLES = ("counts", "windows", "once", "pairs")


@dataclass
class Keyed(Movable):
    """Files of devices, each device in one segment, and operators that keep state of each."""

    sources: Path | None = None
    rounds: int = 0
    file_count: int = 0
    segments: dict[str, str] = field(default_factory=dict)

    @property
    def input(self) -> Path:
        return self.sources or self.directory / "in"

    def pipeline(self) -> Pipeline:
        return keyed_pipeline(self.directory, self.input)

    def state(self, shard_count: int) -> list[tuple[int, str, str, str]]:
        """Return the rows of keys that shards keep: shard, operator, table and row."""
        found = []
        for shard in range(shard_count):
            of = self.directories(shard)
            held = of.state_at(of.finished_end(), {})
            for name, operator in ({} if held is None else held.operators).items():
                division = division_of(name, operator.schema, "rides")
                for table, declared in operator.schema.tables.items():
                    files = [each.files[table] for each in operator.buckets.values() if table in each.files]
                    parts = [from_parquet(of.store.get(each.key) or b"", declared.schema, each.key) for each in files]
                    rows = tables.united([declared.schema.empty_table(), *parts])
                    own = rows.filter(pa.array(~division.is_shared(table, rows))).to_pylist()
                    found += [(shard, name, row["device"], f"{table}: {row}") for row in own]
        return sorted(found)

    def arrive_rows(self) -> None:
        """Let files of all devices come, one of each device and source; what is paired comes a round later."""
        for device in DEVICES:
            at = 10 * self.rounds
            rides = [{"device": device, "t": at + each, "v": each % 3} for each in range(4)]
            fixes = [{"device": device, "t": at - 9, "v": self.rounds}]
            for source, rows in (("rides", rides), ("fixes", fixes)):
                arrive(self.input / source, self.name_for(device), rows)
        self.rounds += 1

    def name_for(self, device: str) -> str:
        """Return the name of a file that is of the device's segment."""
        division = FileDivision(PARTS)
        while True:
            self.file_count += 1
            name = f"{self.file_count:07}.json"
            if self.segments.setdefault(device, division.segment_of(name)) == division.segment_of(name):
                return name

    def begin(self, count: int) -> ShardLayout:
        self.arrive_rows()
        layout = record_layout(LocalStore(str(self.checkpoint)), self.graphs().first(count, "device"))
        assert layout is not None
        self.run(layout)
        return layout

    def written(self) -> dict[str, list[tuple[object, ...]]]:
        return {name: sorted(sqlite_rows(self.directory / "out.db", f"SELECT * FROM {name}")) for name in TABLES}

    def check(self, directory: Path, names: Sequence[str] = TABLES) -> None:
        """Compare with one run without shards over the same files."""
        alone = Keyed(directory, sources=self.input)
        alone.pipeline().run(checkpoint=alone.checkpoint, trigger=available_now())
        found, expected = self.written(), alone.written()
        for name in names:
            assert found[name] == expected[name], name
            assert found[name], name


@pytest.fixture
def place(tmp_path: Path) -> Keyed:
    for name in ("rides", "fixes"):
        (tmp_path / "work" / "in" / name).mkdir(parents=True)
    return Keyed(tmp_path / "work")


def test_state_goes_with_its_keys_to_more_shards_and_back(place: Keyed, tmp_path: Path) -> None:
    place.begin(1)
    for count in (3, 2):
        place.arrive_rows()
        layout = place.rearranging.change(count, "device")
        assert layout.shard_count == count
        if count == 2:  # what moved is not in Spark's directory alone
            shutil.rmtree(place.spark(1))
            place.rearranging.arrange(0)
            assert not place.rearranging.is_unfinished
        place.run(layout)
    place.check(tmp_path / "alone")


def test_a_start_in_another_number_of_shards_moves_state(place: Keyed, tmp_path: Path) -> None:
    for count in (2, 3):
        place.arrive_rows()
        place.pipeline().start(checkpoint=place.checkpoint, shards=count, trigger=available_now()).wait()
    place.arrive_rows()
    place.pipeline().start(checkpoint=place.checkpoint, trigger=available_now()).wait()
    place.check(tmp_path / "alone")


def test_a_change_that_is_slower_than_another_one_takes_none_of_its_state_away(place: Keyed, tmp_path: Path) -> None:
    """It has been fenced while it moved state; the other one has decided, and died before its directories begin."""
    place.begin(2)
    place.arrive_rows()
    with place.rearranging.moving() as slow:
        move_state = slow.seeds
        assert move_state is not None

        def move_late(before: ShardLayout, after: Assignment, moves: Mapping[int, Move]) -> Mapping[int, str]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SparkDirectory, "begin", lambda *told: sys.exit())
                with pytest.raises(SystemExit):
                    place.rearranging.change(3, "device")
            return move_state(before, after, moves)

        slow.seeds = move_late
        layout = slow.settle()
        assert layout is not None
        with pytest.raises(Fenced):
            slow.change(layout, 3, lambda dealt: dealt)
    three = place.rearranging.settle()
    assert three is not None
    place.run(three)
    place.arrive_rows()
    place.run(three)
    place.check(tmp_path / "alone")


@pytest.mark.parametrize("is_one_lost", [True, False])
def test_state_that_is_lost_is_rebuilt_from_the_beginning_of_a_shards_segments(
    place: Keyed, tmp_path: Path, is_one_lost: bool
) -> None:
    """Also of one shard whose segments have just moved: the state that the layout names is gone with its checkpoint."""
    layout = place.begin(2)
    place.arrive_rows()
    place.run(layout)
    if is_one_lost:
        place.rearranging.change(3, "device")
    shutil.rmtree(place.checkpoint / "shards/1" if is_one_lost else place.checkpoint)
    with pytest.raises(Diverged, match="no snapshot serves"):
        place.pipeline().start(checkpoint=place.checkpoint, trigger=available_now())
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), rebuild_state=True)
    place.arrive_rows()
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    place.check(tmp_path / "alone", ("counts", "windows", "once"))  # a join rejects what one epoch brings together


class Bounding(Keyed):
    """A source that gives bounds by itself, which hold for all keys of a shard."""

    def pipeline(self) -> Pipeline:
        schema = "device STRING, t BIGINT, v BIGINT"
        rides = hf.read.files(str(self.input / "rides"), schema=schema, timestamp="t", disorder=5, name="rides")
        windows = rides | hf.aggregate(by="device", window=hf.tumbling(10), n=hf.count(), name="window")
        table = windows | hf.write.sqlite(str(self.directory / "out.db"), table="windows", name="windows")
        return hf.Pipeline("rides", table, shard_by="device")

    def rows(self) -> list[tuple[object, ...]]:
        return sorted(sqlite_rows(self.directory / "out.db", "SELECT * FROM windows"))


def test_shards_with_unlike_bounds_keep_their_number_until_these_are_the_same(place: Keyed, tmp_path: Path) -> None:
    """Section 7: else a row between the two bounds would be judged by the wrong one."""
    place = Bounding(place.directory)
    arrive(place.input / "rides", place.name_for(DEVICES[0]), [{"device": DEVICES[0], "t": 7, "v": 1}])
    two = place.begin(2)
    with pytest.raises(InvalidPipeline, match="unlike bounds of source 'rides'"):
        place.rearranging.change(3, "device")
    assert newest_layout(LocalStore(str(place.checkpoint))) == two
    assert "unlike bounds" in str(place.rearranging.plan(3).refusal)
    place.arrive_rows()
    place.run(two)
    planned = place.rearranging.plan(3)
    assert planned.refusal is None
    assert planned.keys is not None
    moving = [device for device in DEVICES if place.segments[device].partition("/")[0] in planned.moves]
    assert sum(planned.keys.values()) == len(moving) > 0
    assert sum(" keys" in line for line in planned.lines()) == len({*planned.moves.values()})
    three = place.rearranging.change(3, "device")
    place.arrive_rows()
    place.run(three)
    alone = Bounding(tmp_path / "alone", sources=place.input)
    alone.pipeline().run(checkpoint=alone.checkpoint, trigger=available_now())
    assert place.rows() == alone.rows() != []
