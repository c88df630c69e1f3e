"""Another number of shards with the real engine: each row once, in a table and in a segments store (design/0048, 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.config import Settings
from holdfast.controller.layouts.directory import SparkDirectory, connect_shard
from holdfast.controller.layouts.graph import dealt
from holdfast.controller.layouts.moving import Moving, StandingShard
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.store.local import LocalStore
from tests.spark.running import eventually
from tests.spark.test_shards import DIRECTORIES, Place

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as ending:
        found = Place(tmp_path)
        ending.callback(lambda: [run.stop() for run in found.runs.values()])
        yield found


def move(place: Place, shard_count: int) -> ShardLayout:
    """Let another number of shards have the segments; none runs."""
    graphs, store = place.graphs(), LocalStore(str(place.checkpoint))
    parts = graphs.first(shard_count, "").parts

    with ExitStack() as closing:

        def connect(number: int) -> StandingShard:
            where = Path(shard_checkpoint(str(place.checkpoint), number))
            graph = graphs.of(ShardLayout(Assignment(number + 1), parts), number)
            directory = SparkDirectory(graph, LocalStore(str(where)), where, place.checkpoint)
            return connect_shard(directory, [store], Settings(), closing)

        def unit_of(layout: ShardLayout, source: str, name: str) -> str | None:
            known = layout.assignment.shards
            unit = graphs.unit(layout, source, name) if not name.startswith("@") else None
            return unit if unit is None or unit in known or unit in graphs.units(layout, source).values() else ""

        moving = Moving("rides", store, connect, lambda layout: lambda source, name: unit_of(layout, source, name))
        layout = moving.settle() or ShardLayout(Assignment(), parts)
        return moving.change(layout, shard_count, lambda each: dealt(each, graphs.all_units(each)))


def run(place: Place, layout: ShardLayout) -> None:
    """Run the shards of a layout until each row is there."""
    for shard in range(layout.shard_count):
        place.start(layout, shard)
    eventually(lambda: place.table() == place.ids, what=f"rows of {layout.shard_count} shards")
    for each in place.runs.values():
        each.stop()
        each.wait()
    place.runs.clear()


def test_one_shard_becomes_two_and_three_and_one_again_and_each_row_is_there_once(place: Place) -> None:
    place.arrive(*DIRECTORIES)
    run(place, place.graphs().first(1, ""))
    for shard_count in (2, 3, 1):
        layout = move(place, shard_count)
        assert newest_layout(LocalStore(str(place.checkpoint))) == layout
        place.arrive(*DIRECTORIES, f"new{shard_count}")
        run(place, layout)
    assert place.store() == place.ids == place.table()
    assert set(place.ledgers()) == {"rides", "rides-1", "rides-2"}


def test_a_run_without_shards_becomes_two_that_go_on_where_it_stopped(place: Place) -> None:
    """Its source was not divided: its position is that of each segment."""
    place.arrive(*DIRECTORIES)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=hf.available_now())
    assert place.table() == place.ids
    layout = move(place, 2)
    place.arrive(*DIRECTORIES)
    run(place, layout)
    assert place.store() == place.ids == place.table()
