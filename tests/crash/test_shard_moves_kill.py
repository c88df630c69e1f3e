"""SIGKILL at each durable write of another number of shards, in real processes (design/0048, section 6).

Each life dies at one place; the next start, with the same number of shards or with another one, carries through what
was decided.  Then no segment is lost, none is in two shards, and every row has its effect once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.graph.trigger import available_now
from holdfast.positions import Position
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.store.local import LocalStore
from tests.crash.moving_process import moved_by_process, pipeline_in
from tests.everyday import everyday
from tests.spark.test_rearranging import Movable
from tests.spark.test_shards import DIRECTORIES

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(3600)]

STRIDE = 16
"""Of this many places one is a place to die, in every ``make test``."""
CHANGES = {"four to two": (4, 2), "two to four": (2, 4), "one to three": (0, 3)}


@dataclass
class Moved:
    """A pipeline whose shards have read everything, and what it was before a process died in it."""

    place: Movable
    template: Path
    segments: Mapping[str, Position]

    def restore(self) -> None:
        shutil.rmtree(self.place.directory)
        shutil.copytree(self.template, self.place.directory)

    def move(self, shard_count: int, place: int = 0) -> int | None:
        """Return how many places a process reached that was to move; None: it was killed."""
        return moved_by_process(self.place.directory, shard_count, place)

    def layout(self) -> ShardLayout:
        found = newest_layout(LocalStore(str(self.place.checkpoint)))
        assert found is not None
        return found

    def check(self, shard_count: int) -> None:
        """Each segment is in one shard, that of the layout, at the position that it had."""
        layout, found = self.layout(), dict[str, Position]()
        assert layout.shard_count == shard_count
        assert not self.place.rearranging.is_unfinished
        for shard in range(max(4, shard_count)):
            own = _segments(self.place.directories(shard).finished_end())
            assert not found.keys() & own.keys()
            assert all(layout.assignment.shards[f"rides:{name}"] == shard for name in own)
            found |= own
        assert found == self.segments


def _segments(positions: object) -> dict[str, Position]:
    assert isinstance(positions, dict)
    return {name: at for name, at in positions.get("rides", {}).items() if "/" in name}


@pytest.fixture(params=everyday(CHANGES, ["four to two"]))
def moved(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Moved, int]:
    before, after = CHANGES[request.param]
    place = Movable(tmp_path / "work")
    place.arrive(*DIRECTORIES)
    pipeline = pipeline_in(place.directory)
    pipeline.run(checkpoint=place.checkpoint, trigger=available_now())
    found: dict[str, Position] = {}
    if before:
        layout = place.rearranging.change(before)
        place.arrive(*DIRECTORIES)
        place.run(layout)
        for shard in range(before):
            found |= _segments(place.directories(shard).finished_end())
    shutil.copytree(place.directory, tmp_path / "template")
    return Moved(place, tmp_path / "template", found), after


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_process_that_dies_while_segments_move(
    moved: tuple[Moved, int], stride: int, capsys: pytest.CaptureFixture[str]
) -> None:
    case, count = moved
    places = case.move(count)
    assert places
    case.check(count)
    for place in range(1, places + 1, stride):
        case.restore()
        assert case.move(count, place) is None
        asked = count if place % 2 else 3
        assert case.move(asked)
        case.check(asked)
    case.place.arrive(*DIRECTORIES)
    case.place.run(case.layout())
    case.place.check_rows()
    with capsys.disabled():
        sys.stdout.write(f"\n{len(range(1, places + 1, stride))} of {places} places\n")


@pytest.mark.parametrize("stride", [3 * STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_process_that_dies_while_segments_move_and_its_checkpoint_is_lost(
    moved: tuple[Moved, int], stride: int
) -> None:
    """Section 8: sinks say which shard has what, also where a segment is in two ledgers."""
    case, count = moved
    places = case.move(count)
    assert places
    ids = [*case.place.ids]
    for place in range(1 + stride // 2, places + 1, stride):
        case.restore()
        case.place.ids[:] = ids
        assert case.move(count, place) is None
        shutil.rmtree(case.place.checkpoint)
        case.place.arrive(*DIRECTORIES)
        case.place.run_as_one()
        case.place.check_rows()
        assert not case.place.rearranging.is_unfinished
