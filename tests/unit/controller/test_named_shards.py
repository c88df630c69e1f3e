"""Named checkpoints of all shards: whole or none, whatever dies (design/0048, section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.checkpoint import named
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.snapshot import verify
from holdfast.controller.named import ShardNames
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.ports import Store
from holdfast.shards.assignment import Assignment, assign
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore, SimulatedStore
from tests.unit.checkpoint.snapshots import snapshot


class Shards:
    """Three shards, of which the last one has finished nothing yet."""

    def __init__(self) -> None:
        self.kept = [SimulatedStore() for _ in range(3)]
        assignment = assign(Assignment(3), ["a", "b", "c"])
        layout = record_layout(self.kept[0], ShardLayout(assignment, {"rides": 60}, "device"))
        assert layout is not None
        self.layout = layout
        self.snapshots = [snapshot(store, 4 + shard) for shard, store in enumerate(self.kept[:2])]

    def names(self, process: Process | None = None) -> ShardNames:
        return ShardNames("trips", [FaultyStore(store, process or Process()) for store in self.kept])

    def put(self, names: ShardNames, name: str, shard: int) -> bool:
        if shard == 2:
            return False
        named.put_named(names.stores[shard], name, self.snapshots[shard])
        return True

    def make(self, process: Process | None = None, name: str = "before") -> None:
        names = self.names(process)
        names.make(name, self.layout, lambda shard: self.put(names, name, shard))

    def traces(self) -> list[str]:
        """Return what is there of any name, besides the layout and the snapshots."""
        return [key for store in self.kept for key in store.objects if "named/" in key]


def every_write(shards: Callable[[], Shards], act: Callable[[Shards, Process], object]) -> list[Shards]:
    """Die before and after each durable write of an act; return what each death left."""
    left = []
    for when in ("before", "after"):
        for number in range(1, 100):
            found = shards()
            try:
                act(found, Process(CrashAt(number, when)))
            except SimulatedCrash:
                left.append(found)
                continue
            break
    assert len(left) > 8
    return left


def named_already() -> Shards:
    shards = Shards()
    shards.make()
    return shards


def test_a_name_is_one_of_each_shard_and_of_the_layout() -> None:
    shards = named_already()
    names = shards.names()
    assert (names.names(), names.remains()) == (["before"], [])
    assert [key.ended.epoch for key in names.manifests("before").values()] == [4, 5]
    found = names.read("before")
    assert found.layout == shards.layout
    assert [bool(digest) for digest in found.parts.values()] == [True, True, False]
    for epoch in range(10, 14):
        for store in shards.kept[:2]:
            snapshot(store, epoch)
    for shard, manifest in names.manifests("before").items():
        verify(names.stores[shard], manifest)
    with pytest.raises(InvalidPipeline, match="already"):
        shards.make()
    names.delete("before")
    assert shards.traces() == []
    with pytest.raises(InvalidPipeline, match="no checkpoint of all shards named 'before'"):
        names.read("before")


def test_a_death_while_it_is_made_leaves_none_or_all_and_the_next_start_removes_the_rest() -> None:
    states = set()
    for shards in every_write(Shards, lambda shards, process: shards.make(process)):
        names = shards.names()
        if names.names():
            states.add("whole")
            names.read("before")
            names.sweep()
            assert names.names() == ["before"]
        else:
            states.add("parts" if names.remains() else "none")
            names.sweep()
            assert shards.traces() == []
            shards.make()
            assert [*names.manifests("before")] == [0, 1]
    assert states == {"none", "parts", "whole"}


def test_a_death_while_it_is_made_is_no_obstacle_to_the_next_one_of_that_name() -> None:
    for shards in every_write(Shards, lambda shards, process: shards.make(process)):
        if not shards.names().names():
            shards.make()
        assert shards.names().read("before").parts.keys() == {0, 1, 2}


def test_a_death_while_it_is_deleted_leaves_all_or_what_nobody_lists() -> None:
    for shards in every_write(named_already, lambda shards, process: shards.names(process).delete("before")):
        names = shards.names()
        if names.names():
            names.read("before")
        if names.names() or names.remains():
            names.delete("before")
        assert shards.traces() == []


def test_two_deaths_leave_nothing_that_stays() -> None:
    """The second one while the rest of the first is removed."""
    for number in range(3, 7):
        for second in range(1, 8):
            shards = Shards()
            with pytest.raises(SimulatedCrash):
                shards.make(Process(CrashAt(number)))
            try:
                shards.names(Process(CrashAt(second, "after"))).sweep()
            except SimulatedCrash:
                shards.names().sweep()
            assert shards.traces() == []
            shards.make()


def test_a_part_that_cannot_be_made_leaves_no_name() -> None:
    shards = Shards()
    names = shards.names()

    def put(shard: int) -> bool:
        if shard == 1:
            raise Unavailable("the disk is full.", why="for the test.", do="make room.")
        return shards.put(names, "before", shard)

    with pytest.raises(Unavailable, match="disk is full"):
        names.make("before", shards.layout, put)
    assert shards.traces() == []
    with pytest.raises(InvalidPipeline, match="no shard of pipeline 'trips' has finished an epoch"):
        names.make("before", shards.layout, lambda shard: False)
    assert shards.traces() == []


def test_whoever_is_slower_does_not_complete_what_another_has_removed() -> None:
    """A start sweeps while one is made; or the same name is made twice at once."""
    shards = Shards()
    names = shards.names()
    others: list[Callable[[], object]] = [shards.names().sweep, shards.make]
    for other in others:

        def put(shard: int, other: Callable[[], object] = other) -> bool:
            is_put = shards.put(names, "before", shard)
            if shard == 1:
                other()
            return is_put

        with pytest.raises(Unavailable, match="no checkpoint 'before' was made"):
            names.make("before", shards.layout, put)
    names.read("before")  # the other one's, and whole


def test_none_is_made_across_a_change_of_the_layout() -> None:
    shards = Shards()
    names = shards.names()

    def put(shard: int) -> bool:
        if shard == 1:
            holds = newest_layout(shards.kept[0])
            assert holds is not None
            assert record_layout(shards.kept[0], replace(holds, assignment=assign(holds.assignment, ["d"])))
        return shards.put(names, "before", shard)

    with pytest.raises(Unavailable, match="no checkpoint 'before' was made") as refused:
        names.make("before", shards.layout, put)
    assert "which shard has which segments" in refused.value.why
    assert shards.traces() == []


@pytest.mark.parametrize("damage", ["removed", "another", "record"])
def test_a_checkpoint_of_which_a_part_is_not_the_recorded_one_is_not_used(damage: str) -> None:
    shards = named_already()
    names = shards.names()
    store: Store = shards.kept[1]
    if damage == "record":
        shards.kept[0].damage("shards/named/before.json", flip=20)
    elif damage == "removed":
        store.delete(named.key_of("before"))
    else:
        store.delete(named.key_of("before"))
        named.put_named(store, "before", snapshot(store, 9))
    with pytest.raises(Corrupt):
        names.read("before")
    assert names.names() == ["before"]
    names.delete("before")
    assert shards.traces() == []


def test_names_of_before_there_were_shards_stay() -> None:
    shards = Shards()
    named.put_named(shards.kept[0], "single", shards.snapshots[0])
    shards.make()
    names = shards.names()
    assert (names.names(), names.of_one_run(), names.remains()) == (["before"], ["single"], [])
    with pytest.raises(InvalidPipeline, match="already"):
        shards.make(name="single")
    with pytest.raises(HoldfastError) as refused:
        names.read("single")
    assert "when it ran without shards" in refused.value.why
    names.sweep()
    names.delete("before")
    assert names.of_one_run() == ["single"]
    found: Manifest = named.read_named(shards.kept[0], "single")
    assert found.ended.epoch == 4
    names.delete("single")
    assert shards.traces() == []
