"""What a run was told: entries that outlive a death at each write, two that are put at once, rates (design/0049, 5)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from holdfast.errors import Corrupt
from holdfast.limits import ReadLimit
from holdfast.ports import Source
from holdfast.positions import SourcePositions
from holdfast.steer.controls import SOURCES, Controls
from holdfast.steer.entries import KEPT, PREFIX, ControlEntry, ControlLog, in_force
from holdfast.steer.holding import UNLIMITED_BYTES, SourceHolding, write_controls
from holdfast.store.local import LocalStore


def entry(of: str) -> ControlEntry:
    return ControlEntry(of, "pause", {"sources": [of]}, 3, 7, Controls())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = LocalStore(str(tmp_path / "checkpoint"))
    found.prepare()
    return found


def test_the_newest_entry_says_everything_and_a_command_is_found_by_its_id(store: LocalStore) -> None:
    log = ControlLog(store)
    assert in_force(store) == Controls()
    assert log.newest() is None
    log.put(entry("a"), lambda controls: controls.pause(["a"]))
    log.put(entry("b"), lambda controls: controls.limit("b", 2.5))
    log.put(entry("c"), lambda controls: controls.end_at({"a": {"log": 3}}))
    assert in_force(store) == Controls(("a",), {"b": 2.5}, {"a": {"log": 3}})
    found = log.find("b")
    assert found is not None
    assert found.controls == Controls(("a",), {"b": 2.5})
    assert log.find("d") is None


def test_of_two_that_are_put_at_once_none_is_lost(store: LocalStore) -> None:
    names = [f"source_{number}" for number in range(24)]
    threads = [
        threading.Thread(target=ControlLog(store).put, args=(entry(name), lambda told, name=name: told.pause([name])))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_force(store).paused == tuple(sorted(names))


def test_old_entries_go_and_the_last_hundred_stay(store: LocalStore) -> None:
    log = ControlLog(store)
    for number in range(KEPT + 20):
        log.put(entry(str(number)), lambda controls: controls.pause([]))
    assert len(store.keys(PREFIX)) == KEPT + 1
    assert log.find("0") is None
    assert log.find(str(KEPT)) is not None


def test_a_damaged_entry_is_said_with_its_cure(store: LocalStore) -> None:
    ControlLog(store).put(entry("a"), lambda controls: controls.pause(["a"]))
    key = next(iter(store.keys(PREFIX)))
    store.put(key, b"{}")
    with pytest.raises(Corrupt, match="or delete it"):
        in_force(store)
    store.delete(key)
    assert in_force(store) == Controls()


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Pile:
    """A source that has all rows already, of 40 bytes each; the smallest part that it gives is ``part`` rows."""

    part: int = 1
    are_rows_known: bool = True

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        del bounded
        if limit is None:
            return {"pile": int(start["pile"]) + 1_000_000}
        rows = min(limit.rows if self.are_rows_known else 1_000_000, limit.size_bytes // 40)
        return {"pile": int(start["pile"]) + max(self.part, rows)}

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        return int(end["pile"]) - int(start["pile"]) if self.are_rows_known else None

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        return 40 * (int(end["pile"]) - int(start["pile"]))


def delivered(holding: SourceHolding, clock: Clock, pile: Pile, *, seconds: int) -> int:
    """Return how many rows a source delivers in some seconds that is looked at twenty times a second."""
    source, at = cast("Source", pile), 0
    for _ in range(20 * seconds):
        clock.now_s += 0.05
        if holding.lets_pass(is_bounded=False):
            until = holding.latest(source, {"pile": at}, None, is_bounded=False)
            holding.took(source, {"pile": at}, until)
            at = int(until["pile"])
    return at


@pytest.mark.parametrize(("pile", "rate"), [(Pile(), 10), (Pile(part=30), 10), (Pile(are_rows_known=False), 20)])
def test_a_source_delivers_its_rate_over_time_and_one_second_of_it_at_once(
    tmp_path: Path, pile: Pile, rate: int
) -> None:
    """Where rows are not known, 80 bytes count for one, and here they have 40."""
    clock, stop_file = Clock(), str(tmp_path / "stop")
    holding = SourceHolding(stop_file, "rides", clock)
    assert delivered(holding, clock, pile, seconds=1) == 20 * 1_000_000
    write_controls(stop_file, Controls(limits={"rides": 10.0}))
    assert 49 * rate <= delivered(holding, clock, pile, seconds=50) <= 51 * rate + pile.part
    clock.now_s += 3600
    assert holding.lets_pass(is_bounded=False)
    assert holding.limit(None) == ReadLimit(10, UNLIMITED_BYTES)
    assert holding.limit(ReadLimit(4, 100)) == ReadLimit(4, 100)


@pytest.mark.parametrize("rate", [10.0, 2.0])
def test_shards_deliver_the_rate_of_a_source_together(tmp_path: Path, rate: float) -> None:
    """Also where the share of each is less than a row a second."""
    rows = 0
    for shard in range(4):
        clock, stop_file = Clock(), str(tmp_path / f"{shard}.stop" / "stop")
        (tmp_path / f"{shard}.stop").mkdir()
        write_controls(stop_file, Controls(limits={"rides": rate}).shared_by(4))
        rows += delivered(SourceHolding(stop_file, "rides", clock), clock, Pile(), seconds=100)
    assert 98 * rate <= rows <= 102 * rate + 4, "of each shard one second of its share at once, and the smallest part"


def test_a_source_that_is_paused_delivers_nothing_also_where_the_run_ends_by_itself(tmp_path: Path) -> None:
    stop_file = str(tmp_path / "stop")
    holding = SourceHolding(stop_file, "rides", Clock())
    write_controls(stop_file, Controls(paused=("rides",), limits={"rides": 1.0}))
    assert not holding.lets_pass(is_bounded=True)
    write_controls(stop_file, Controls(paused=(SOURCES,)))
    assert not holding.lets_pass(is_bounded=True)
    write_controls(stop_file, Controls(paused=("trips",)))
    assert holding.lets_pass(is_bounded=True)


def test_where_a_run_is_drained_a_source_ends_there(tmp_path: Path) -> None:
    stop_file, source = str(tmp_path / "stop"), cast("Source", Pile())
    holding = SourceHolding(stop_file, "rides", Clock())
    write_controls(stop_file, Controls(ends={"rides": {"pile": 700}}))
    assert holding.lets_pass(is_bounded=False)
    assert holding.latest(source, {"pile": 5}, None, is_bounded=False) == {"pile": 700}
    assert holding.latest(source, {"pile": 700}, None, is_bounded=False) == {"pile": 700}
