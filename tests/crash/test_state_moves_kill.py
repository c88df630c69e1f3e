"""SIGKILL at each durable write of another number of shards for a pipeline that keeps state (design/0048, 6 and 7).

Whatever dies, the next start carries through what was decided: each row of state is then in the shard that has the
segment of its key, as it was, and in no other; and what follows is what one run without shards would have given.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.controller.layouts.state_seeds import ASIDE
from holdfast.shards.layout import newest_layout
from holdfast.store.local import LocalStore
from tests.crash.moving_process import moved_by_process
from tests.everyday import everyday
from tests.spark.test_state_moves import Keyed

pytestmark = [pytest.mark.spark, pytest.mark.crash]

STRIDE = 64
"""Of this many places one is a place to die, in every ``make test``."""
CHANGES = {"three to two": (3, 2), "one to three": (1, 3), "two to three": (2, 3)}


@dataclass
class MovedState:
    """A pipeline whose shards have read everything, and what it was before a process died in it."""

    place: Keyed
    template: Path
    state: list[tuple[str, str, str]]

    def restore(self) -> None:
        shutil.rmtree(self.place.directory)
        shutil.copytree(self.template, self.place.directory)

    def move(self, shard_count: int, place: int = 0) -> int | None:
        """Return how many places a process reached that was to move; None: it was killed."""
        return moved_by_process(self.place.directory, shard_count, place, is_keyed=True)

    def check(self, shard_count: int) -> None:
        """Each row of state is in the shard of its key, as it was."""
        layout = newest_layout(LocalStore(str(self.place.checkpoint)))
        assert layout is not None
        assert layout.shard_count == shard_count
        assert not self.place.rearranging.is_unfinished
        found = self.place.state(max(3, shard_count))
        assert sorted(row[1:] for row in found) == self.state
        units = {device: segment.partition("/")[0] for device, segment in self.place.segments.items()}
        assert all(layout.assignment.shards[units[device]] == shard for shard, _, device, _ in found)
        for shard in range(shard_count):
            assert self.place.directories(shard).store.keys(ASIDE) == []


@pytest.fixture(params=everyday(CHANGES, ["three to two"]))
def moved(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[MovedState, int]:
    before, after = CHANGES[request.param]
    place = Keyed(tmp_path / "work")
    place.begin(before)
    state = sorted(row[1:] for row in place.state(before))
    assert {row[0] for row in state} == {"count", "window", "distinct", "join"}
    shutil.copytree(place.directory, tmp_path / "template")
    return MovedState(place, tmp_path / "template", state), after


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_process_that_dies_while_state_moves(moved: tuple[MovedState, int], stride: int, tmp_path: Path) -> None:
    case, count = moved
    places = case.move(count)
    assert places
    case.check(count)
    for place in range(places // 2 % stride + 1, places + 1, stride):
        case.restore()
        assert case.move(count, place) is None
        asked = count if place % 2 else 4
        assert case.move(asked)
        case.check(asked)
    layout = newest_layout(LocalStore(str(case.place.checkpoint)))
    assert layout is not None
    for _ in range(2):
        case.place.arrive_rows()
        case.place.run(layout)
    case.place.check(tmp_path / "alone")
