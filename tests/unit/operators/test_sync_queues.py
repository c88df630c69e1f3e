"""The queues of ``fixed_size`` for all keys at once, against the same rules row by row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from holdfast.operators.sync import policy as policies
from holdfast.operators.sync import queues
from holdfast.operators.sync.epoch import Epoch
from holdfast.operators.sync.intake import gather
from holdfast.operators.sync.queues_by_row import by_row
from holdfast.state import tables
from holdfast.state.step import StepTime
from holdfast.state.timeline import CLOSED, UNBOUNDED
from tests.unit.operators.sync_driver import Drive, Event, arrivals_of, step_of

SIZES = [(2, 1), (1, 1), (3, 1), (4, 2), (3, 3), (7, 2)]
NAMES = ("a", "b", "c")


def events_of(chance: random.Random, count: int, keys: str, clock: dict[tuple[str, str], int]) -> list[Event]:
    """Return events of strict inputs, some of them much faster than others, with bounds between."""
    found: list[Event] = []
    weights = [chance.choice((1, 1, 6)) for _ in NAMES]
    for _ in range(count):
        name, key = chance.choices(NAMES, weights)[0], chance.choice(keys)
        clock[name, key] = clock.get((name, key), chance.randint(0, 5)) + chance.choice((1, 1, 1, 2, 7))
        match chance.random():
            case pick if pick < 0.85:
                found.append((name, "row", key, clock[name, key], clock[name, key]))
            case pick if pick < 0.95:
                found.append((name, "bound", key, clock[name, key]))
            case _:
                found.append((name, "bound", None, min(clock[name, k] for n, k in clock if n == name)))
    return found


def compare(policy: Any, epoch: Epoch, seen: list[int]) -> None:
    fates, kept = queues.fixed_size(policy, epoch)
    wanted = [np.zeros(len(pool.key), np.int8) for pool in epoch.pools]
    wanted_kept = epoch.column("kept", UNBOUNDED)
    by_row(policy, epoch, np.ones(epoch.keys.num_rows, bool), wanted, wanted_kept)
    assert [fate.tolist() for fate in fates] == [fate.tolist() for fate in wanted]
    assert kept.tolist() == wanted_kept.tolist()
    for fate in wanted:
        for number in (0, 1, 2):
            seen[number] += int((fate == number).sum())


@pytest.mark.slow
@pytest.mark.parametrize("min_size", [False, True])
@pytest.mark.parametrize(("trigger", "target"), SIZES)
def test_all_keys_at_once_are_decided_as_row_by_row(
    trigger: int, target: int, min_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policies.fixed_size(trigger, target, min_size)
    chance = random.Random(f"{trigger} {target} {min_size}")
    seen = [0, 0, 0]
    for _ in range(10):
        step = step_of(NAMES, policy)
        drive, clock = Drive(step), {}
        for _ in range(4):
            events = events_of(chance, chance.randint(1, 60), chance.choice(("x", "xyz")), clock)
            if chance.random() < 0.1:
                events.append((chance.choice(NAMES), "bound", None, CLOSED))
            epoch = gather(step, drive.state, arrivals_of(step, events), StepTime(drive.epoch, 0))
            for rounds in (32, 1):  # with one round most keys that are cut are left to the rows
                monkeypatch.setattr(queues, "_ROUNDS", rounds)
                compare(policy, epoch, seen)
            drive.epoch_of(events)
    assert all(count > 20 for count in seen), f"rows that wait, leave and are dropped: {seen}"


@pytest.mark.slow
def test_a_key_with_many_rows_needs_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast input beside one that says nothing, and beside one that keeps up: nothing is left to the rows."""

    def refuse(*_: Any) -> None:
        raise AssertionError("keys are left to be decided row by row")

    monkeypatch.setattr(queues, "by_row", refuse)
    step = step_of(("a", "b"), policies.fixed_size(2, 1))
    fast: Sequence[Event] = [("a", "row", "x", t, t) for t in range(5000)]
    both = [(name, "row", "x", t, t) for t in range(5000) for name in "ab"]
    for events, dropped in ((fast, 4999), (both, 4998)):
        drive = Drive(step)
        drive.epoch_of(events)
        assert len(drive.late) in (dropped, 2 * dropped), len(drive.late)
        assert tables.empty_state(step).keys() == drive.state.keys()
