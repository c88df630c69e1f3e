"""A fork of all shards: noted once what its sources share is there, whatever dies (design/0048, section 8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint import named
from holdfast.controller.beginning import BEGINNING, ShardsBeginning, place_of
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.named import ShardNames
from holdfast.controller.named_parts import shard_stores
from holdfast.errors import InvalidPipeline
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.starts.start_at import StartAt
from holdfast.store.local import LocalStore
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from tests.unit.checkpoint.snapshots import snapshot

LOGS = {f"sources/rides/log/{number}": b"[]" for number in range(3)} | {"shards/keys/1": b"keys"}


def graphs(directory: Path, name: str) -> ShardGraphs:
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides")
    sink = rides | hf.write.sqlite(directory / f"{name}.db", table="rows", name="table")
    return ShardGraphs(hf.Pipeline(name, sink, shards="independent"), directory / name)


@pytest.fixture
def origin(tmp_path: Path) -> ShardLayout:
    """Two shards with a checkpoint "before", of which the first one, which has the rest, has begun a new segment."""
    (tmp_path / "in").mkdir()
    store = LocalStore(str(tmp_path / "origin"))
    layout = record_layout(store, graphs(tmp_path, "origin").first(2, "independent"))
    assert layout is not None
    stores = shard_stores(tmp_path / "origin", layout)
    made = snapshot(stores[0], 4)
    ended = replace(made.ended, positions={"rides": {"77/60": 1}})
    names = ShardNames("origin", stores)

    def put(shard: int) -> bool:
        if shard == 0:
            named.put_named(stores[0], "before", replace(made, ended=ended))
        return shard == 0

    names.make("before", layout, put)
    for key, data in LOGS.items():
        store.put(key, data)
    return layout


def beginning(directory: Path, where: str | None = "before") -> ShardsBeginning:
    place = None if where is None else str(directory / "origin" / where)
    return ShardsBeginning(graphs(directory, "fork"), directory / "fork", StartAt(place))


def test_a_fork_has_the_layout_of_the_checkpoint_and_what_its_shards_had_begun(
    tmp_path: Path, origin: ShardLayout
) -> None:
    found = beginning(tmp_path).first_layout(2, "independent")
    assert found is not None
    assert (found.number, found.parts) == (0, origin.parts)
    assert found.assignment.shards == {**origin.assignment.shards, "rides:77/60": 0}
    asked = [beginning(tmp_path).of_shard(shard) for shard in (0, 1)]
    assert asked == [StartAt(str(tmp_path / "origin/before")), StartAt()], "the other one had finished nothing"
    assert asked[0].is_part
    assert place_of(str(tmp_path / "origin/before"), 1) == str(tmp_path / "origin/shards/1/before")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fork_that_dies_at_any_write_begins_with_all_its_sources_share(
    tmp_path: Path, origin: ShardLayout, monkeypatch: pytest.MonkeyPatch, when: Any
) -> None:
    process, deaths = Process(), 0
    for name in ("put", "put_if_absent"):
        write = getattr(LocalStore, name)

        def counted(self: LocalStore, key: str, data: bytes, write: Any = write) -> Any:
            return process.write(key, lambda: write(self, key, data))

        monkeypatch.setattr(LocalStore, name, counted)
    for number in range(1, 20):
        process = Process(CrashAt(number, when))
        try:
            beginning(tmp_path).first_layout(2, "independent")
        except SimulatedCrash:
            deaths += 1
        store, process = LocalStore(str(tmp_path / "fork")), Process()
        if store.get(BEGINNING) is not None:
            assert {key: store.get(key) for key in LOGS} == LOGS
            for other in (beginning(tmp_path, None), beginning(tmp_path, "other")):
                with pytest.raises(InvalidPipeline, match="some of its shards have not begun yet"):
                    other.first_layout(0, "independent")
            break
    assert deaths >= len(LOGS)
    assert beginning(tmp_path).first_layout(0, "independent") is not None, "once more the same"
    assert newest_layout(LocalStore(str(tmp_path / "fork"))) is None, "it is recorded by whoever deals"
    with pytest.raises(InvalidPipeline, match="not all shards"):
        beginning(tmp_path).check_noted()


def test_shards_of_another_number_or_key_do_not_begin_with_it(tmp_path: Path, origin: ShardLayout) -> None:
    with pytest.raises(InvalidPipeline, match="is of 2 shards"):
        beginning(tmp_path).first_layout(3, "independent")
    with pytest.raises(InvalidPipeline, match="keeps the state of its shards apart by 'device'"):
        beginning(tmp_path).first_layout(2, "device")
    assert LocalStore(str(tmp_path / "fork")).get(BEGINNING) is None
