"""Which epoch a rewind goes back to, where the ends of some are not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.checkpoint import named, progress
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.starts.rewind_target import note_rewind, take_back, target
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import ended, snapshot

KNOWN = [EpochSpan(ended(epoch - 1).positions, ended(epoch)) for epoch in (1, 2, 4, 5)]
"""Epoch n was planned n milliseconds after the beginning of 1970."""


def epoch_at(to: str) -> int:
    return target(SimulatedStore(), "counts", to, KNOWN, has_state=False).ended.epoch


@pytest.mark.parametrize(("to", "epoch"), [("1", 1), ("4", 4), (".001", 1), (".0045", 4), (".005", 5), (".9", 5)])
def test_what_is_known_is_found_by_number_and_by_time(to: str, epoch: int) -> None:
    assert epoch_at(f"1970-01-01T00:00:00{to}Z" if to.startswith(".") else to) == epoch


@pytest.mark.parametrize("to", ["3", "0", "6", "1970-01-01T00:00:00.002Z", "1970-01-01T00:00:00.0035Z", "1969-12-31"])
def test_what_is_not_known_is_refused_with_what_is(to: str) -> None:
    """Of the time behind epoch 2 nobody knows whether epoch 3 was planned by then."""
    with pytest.raises(InvalidPipeline, match="cannot go back") as refused:
        epoch_at(to)
    assert "it can go back to epoch 1 to 2, 4 to 5:" in refused.value.why


def test_a_source_that_came_or_went_between_two_epochs_leaves_no_gap() -> None:
    before, after = ended(1), ended(2)
    steps = [
        EpochSpan({}, before),
        EpochSpan({**before.positions, "new": {"log": 0}}, after),
        EpochSpan({"other": {"log": 0}}, ended(3)),
    ]
    for to, epoch in ((".001", 1), (".002", 2)):
        found = target(SimulatedStore(), "counts", f"1970-01-01T00:00:00{to}Z", steps, has_state=False)
        assert found.ended.epoch == epoch


def test_a_name_of_what_an_earlier_rewind_took_back_is_refused() -> None:
    """Its state is that of rows which no sink holds any more, also where others have come to the same positions."""
    store = SimulatedStore()
    for name, epoch in (("good", 2), ("bad", 4), ("after", 9)):
        named.put_named(store, name, snapshot(store, epoch))
    note_rewind(store, 6, ended(3).positions)
    note_rewind(store, 6, ended(3).positions)  # carried through by the next start
    for name in ("good", "after"):
        assert target(store, "counts", name, (), has_state=True).named is not None
    with pytest.raises(InvalidPipeline, match="stands for what was taken back") as refused:
        target(store, "counts", "bad", (), has_state=True)
    assert "epoch 6, a rewind" in refused.value.why
    (key,) = store.keys("rewinds")
    store.put(key, b"{")
    with pytest.raises(Corrupt, match=r"rewinds\.json"):
        target(store, "counts", "good", (), has_state=True)


def test_what_stays_behind_a_rewind_is_told_by_positions_with_those_of_sources_that_had_left() -> None:
    store = SimulatedStore()
    with_another = replace(ended(1), positions={**ended(1).positions, "left": {"log": 3}})
    progress.write(store, [EpochSpan({}, with_another), EpochSpan(with_another.positions, ended(2))], 1)
    progress.write(store, [EpochSpan(ended(2).positions, ended(3))], 1)
    for epoch in (2, 3):
        snapshot(store, epoch)
    take_back(store, {**ended(2).positions, "left": {"log": 3}}, 2, [])
    assert [step.ended.epoch for step in progress.read(store)] == [1, 2]
    assert [key.epoch for key in snapshot_keys(store)] == [2]
