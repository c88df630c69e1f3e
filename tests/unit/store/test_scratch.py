"""A checkpoint in an object store: what is an object, what is in the scratch, and when a scratch is expected."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from holdfast.commit.ledger import Ledger
from holdfast.commit.records import Decided, Done
from holdfast.errors import Fenced, InDoubt
from holdfast.ports import EpochRecord
from holdfast.store import scratch, sealed
from holdfast.store.scratch import ScratchedStore, scratch_of
from holdfast.testing.store import SimulatedStore

ADDRESS = "s3://bucket/trips"


class CountingStore(SimulatedStore):
    """Counts requests by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def get(self, key: str) -> bytes | None:
        self.requests["get"] += 1
        return super().get(key)

    def put(self, key: str, data: bytes) -> None:
        self.requests["put"] += 1
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.requests["put_if_absent"] += 1
        if key in self.objects:
            return False
        super().put(key, data)
        return True

    def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        super().delete(key)

    def keys(self, prefix: str) -> list[str]:
        self.requests["list"] += 1
        return super().keys(prefix)


class LaggingStore(CountingStore):
    """Lists what was there at some time before."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] | None = None

    def keys(self, prefix: str) -> list[str]:
        return super().keys(prefix) if self.listed is None else [key for key in self.listed if key.startswith(prefix)]


class LosingStore(SimulatedStore):
    """Loses the reply to one put, and tells who put it when it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = False
        self._mine = ""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key == self._mine:
            return True
        won = super().put_if_absent(key, data)
        if won and self.loses:
            self.loses, self._mine = False, key
            raise InDoubt("writing failed.", why="its reply was lost.", do="ask again.")
        return won


def _machine(objects: SimulatedStore, base: Path) -> ScratchedStore:
    """Return the store as a start on a machine opens it."""
    store = ScratchedStore(objects, scratch_of(ADDRESS, str(base)))
    store.prepare()
    return store


def _taken(store: ScratchedStore) -> int:
    """Take the pipeline over."""
    ledger = Ledger(store, "trips")
    generation = ledger.take_generation(0, 0)
    ledger.fence()
    return generation


def test_records_are_objects_and_what_is_sparks_is_a_file(tmp_path: Path) -> None:
    objects = SimulatedStore()
    store = _machine(objects, tmp_path)
    store.put("identity.json", b"1")
    store.put("spark/1/origin.json", b"2")
    store.put("held/floor.json", b"3")
    assert objects.objects == {"identity.json": b"1", "held/floor.json": b"3"}
    assert Path(store.directory, "spark/1/origin.json").read_bytes() == b"2"
    assert Path(store.directory, "held/floor.json").read_bytes() == b"3"  # Spark's processes read it by path
    assert store.keys("") == ["held/floor.json", "identity.json", "spark/1/origin.json"]


def test_a_scratch_knows_its_checkpoint_and_lies_where_it_is_wanted(tmp_path: Path) -> None:
    first, other = scratch_of(ADDRESS, str(tmp_path)), scratch_of(f"{ADDRESS}2", str(tmp_path))
    assert first.parent == tmp_path
    assert first != other
    assert scratch_of(f"{ADDRESS}/", str(tmp_path)) == first
    assert scratch.address_in(first) == ADDRESS
    assert scratch.address_in(tmp_path) is None


def test_whether_somebody_chose_where_a_scratch_lies_is_seen_by_the_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line opens the scratch, and a start is given its path."""
    monkeypatch.delenv("HOLDFAST_SPARK_CHECKPOINT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not scratch.is_where_chosen(scratch_of(ADDRESS))
    assert scratch.is_where_chosen(scratch_of(ADDRESS, str(tmp_path / "shared")))
    monkeypatch.setenv("HOLDFAST_SPARK_CHECKPOINT", str(tmp_path / "cache" / "holdfast" / "checkpoints"))
    assert scratch.is_where_chosen(scratch_of(ADDRESS))


def test_a_scratch_is_believed_after_a_crash(tmp_path: Path) -> None:
    objects = SimulatedStore()
    store = _machine(objects, tmp_path)
    _taken(store)
    store.put("spark/1/origin.json", b"2")
    assert _machine(objects, tmp_path).get("spark/1/origin.json") == b"2"


def test_a_scratch_is_not_believed_after_another_machine_has_gone_on(tmp_path: Path) -> None:
    objects = SimulatedStore()
    here = _machine(objects, tmp_path / "a")
    _taken(here)
    here.put("spark/1/origin.json", b"of a")
    there = _machine(objects, tmp_path / "b")
    assert there.get("spark/1/origin.json") is None
    _taken(there)
    there.put("named/floor.json", b"of b")
    again = _machine(objects, tmp_path / "a")
    assert again.get("spark/1/origin.json") is None
    assert Path(again.directory, "named/floor.json").read_bytes() == b"of b"
    _taken(again)
    again.put("spark/1/origin.json", b"of a again")
    assert _machine(objects, tmp_path / "a").get("spark/1/origin.json") == b"of a again"


def test_a_death_between_the_generation_and_its_note_costs_the_scratch(tmp_path: Path) -> None:
    objects = SimulatedStore()
    here = _machine(objects, tmp_path)
    _taken(here)
    here.put("spark/1/origin.json", b"2")
    objects.put("generations/00000002.json", b"{}")
    assert _machine(objects, tmp_path).get("spark/1/origin.json") is None


def test_who_lost_the_scratch_while_it_was_starting_is_fenced(tmp_path: Path) -> None:
    objects = SimulatedStore()
    here, there = _machine(objects, tmp_path / "a"), _machine(objects, tmp_path / "b")
    _taken(there)
    with pytest.raises(Fenced, match="another run has taken generation 1"):
        Ledger(here, "trips").take_generation(0, 0)


def test_a_command_elsewhere_leaves_a_scratch_that_is_not_believed(tmp_path: Path) -> None:
    objects = SimulatedStore()
    here = _machine(objects, tmp_path / "a")
    _taken(here)
    command = ScratchedStore(objects, scratch_of(ADDRESS, str(tmp_path / "b")))
    _taken(command)
    assert not ScratchedStore(objects, Path(command.directory)).is_believed()
    assert not ScratchedStore(objects, Path(here.directory)).is_believed()


def test_no_number_stays_free_below_a_generation(tmp_path: Path) -> None:
    """A run finds who took over by the number after its own: a sink may have known a much higher one."""
    objects = SimulatedStore()
    first = _machine(objects, tmp_path / "a")
    ledger = Ledger(first, "trips")
    ledger.take_generation(0, 0)
    ledger.fence()
    assert Ledger(_machine(objects, tmp_path / "b"), "trips").take_generation(7, 0) == 8
    assert len(objects.keys("generations/")) == 8
    with pytest.raises(Fenced):
        ledger.check_fenced()


def test_a_generation_is_seen_though_listings_lag(tmp_path: Path) -> None:
    objects = LaggingStore()
    first = _machine(objects, tmp_path / "a")
    assert _taken(first) == 1
    objects.listed = []
    second = _machine(objects, tmp_path / "b")
    assert second.keys("generations/") == ["generations/00000001.json"]
    objects.listed = objects.keys("")
    assert Ledger(second, "trips").take_generation(0, 0) == 2
    with pytest.raises(Fenced):
        Ledger(first, "trips").check_fenced()


def test_a_fence_is_seen_though_listings_lag(tmp_path: Path) -> None:
    """By the newest fence decisions count, or are void: an older one in its place would void what is decided."""
    objects = LaggingStore()
    first = _machine(objects, tmp_path / "a")
    _taken(first)
    objects.listed = objects.keys("")
    second = _machine(objects, tmp_path / "b")
    ledger = Ledger(second, "trips")
    generation = ledger.take_generation(0, 0)
    ledger.fence()
    key = ledger.decide(Decided(EpochRecord("trips", 1, generation, {"a": {"0": 1}}, None), {"one": ()}))
    objects.listed += ["ledger/000000000001-00000002"]  # it may be listed before the fence that was written before it
    third = Ledger(_machine(objects, tmp_path / "c"), "trips")
    third.take_generation(0, 0)
    assert third.fence().open == (key,)


def test_a_generation_whose_reply_was_lost_for_long_is_taken_by_who_put_it(tmp_path: Path) -> None:
    """The store could not tell whether it was done; asked again, it says that this one has won."""
    objects = LosingStore()
    store = _machine(objects, tmp_path)
    objects.loses = True
    with pytest.raises(InDoubt):
        Ledger(store, "trips").take_generation(0, 0)
    assert store.put_if_absent("generations/00000001.json", objects.objects["generations/00000001.json"])
    assert ScratchedStore(objects, Path(store.directory)).is_believed()


def test_three_requests_for_an_epoch_of_several_sinks_and_no_listing(tmp_path: Path) -> None:
    objects = CountingStore()
    ledger = Ledger(_machine(objects, tmp_path), "trips", keep=10)
    ledger.take_generation(0, 0)
    ledger.fence()
    for epoch in range(1, 300):
        if epoch == 200:
            objects.requests.clear()
        ledger.check_since_decision()
        record = EpochRecord("trips", epoch, 1, {"a": {"0": epoch}}, None)
        key = ledger.decide(Decided(record, {"one": (), "two": ()}))
        ledger.forget(key, Done(record, {"one": 0, "two": 0}))
    assert objects.requests["list"] == 0
    assert objects.requests["get"] <= 100
    assert objects.requests["put"] + objects.requests["put_if_absent"] == 200
    assert len(objects.keys("ledger/")) <= 10 + 100


def test_what_was_deleted_is_gone_before_the_request_is_made(tmp_path: Path) -> None:
    objects = SimulatedStore()
    store = _machine(objects, tmp_path)
    store.put("ledger/1", b"1")
    store.delete("ledger/1")
    assert store.get("ledger/1") is None
    assert store.keys("ledger/") == []
    assert store.put_if_absent("ledger/1", b"2")
    assert objects.get("ledger/1") == b"2"


def test_what_a_source_notes_is_an_object_and_what_sinks_know_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = SimulatedStore()
    monkeypatch.setattr(scratch, "objects_of", lambda address: objects)
    store = _machine(objects, tmp_path / "a")
    place = os.path.join(store.directory, "sources", "rows")
    sealed.prepare(place)
    assert sealed.put_if_absent(os.path.join(place, "start"), b"here")
    assert sealed.put_if_absent(os.path.join(place, "000000000001.json"), b"{}", is_told=True)
    beside = os.path.join(store.directory, "shadow", "checkpoint", "sources", "rows")
    sealed.prepare(beside)
    assert sealed.put_if_absent(os.path.join(beside, "start"), b"of a shadow")
    assert objects.keys("") == ["sources/rows/start"]
    _taken(store)
    elsewhere = _machine(objects, tmp_path / "b")
    path = os.path.join(elsewhere.directory, "sources", "rows", "start")
    assert sealed.read_sealed(path) == b"here"
    assert not sealed.put_if_absent(path, b"there")


def test_of_two_machines_one_notes_where_a_source_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = SimulatedStore()
    monkeypatch.setattr(scratch, "objects_of", lambda address: objects)
    paths = [os.path.join(_machine(objects, tmp_path / name).directory, "sources", "rows", "start") for name in "ab"]
    for path in paths:
        sealed.prepare(os.path.dirname(path))
    assert [sealed.put_if_absent(path, name) for path, name in zip(paths, (b"a", b"b"), strict=True)] == [True, False]
    assert [sealed.read_sealed(path) for path in paths] == [b"a", b"a"]


def test_a_log_that_is_in_the_scratch_alone_is_seen_as_an_object(tmp_path: Path) -> None:
    """A named checkpoint copies what sources keep through the store."""
    store = _machine(SimulatedStore(), tmp_path)
    place = os.path.join(store.directory, "sources", "rows", "log")
    sealed.prepare(place)
    sealed.put_if_absent(os.path.join(place, "000000000001.json"), b"{}", is_told=True)
    assert store.keys("sources/") == ["sources/rows/log/000000000001.json"]
    assert store.get("sources/rows/log/000000000001.json") == sealed.seal(b"{}")
