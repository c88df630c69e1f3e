"""What holds of every run of ``sync``: epochs, arrival order, conservation, and bounds that keep their word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.sync import policy as policies
from holdfast.state.step import CLOSED
from tests.everyday import examples
from tests.unit.operators.sync_driver import Drive, Event, by_key, close, run, step_of

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
KEYS = ("x", "y")
BY_TIMESTAMP = {
    "settled": policies.settled(),
    "early_close": policies.early_close(),
    "within": policies.within(3),
    "within_exact": policies.within(0),
    "mux": policies.mux("c"),
}
EVERY = {
    **BY_TIMESTAMP,
    "sync_sets": policies.sync_sets([["b"], ["a", "c"]]),
    "barrier": policies.barrier(),
    "immediate": policies.immediate(),
    "fixed_size": policies.fixed_size(3, 2),
    "timestamp_align": policies.timestamp_align("b"),
}


@st.composite
def one_input(draw: st.DrawFn, name: str, *, bounds: bool, step: int = 1) -> list[Event]:
    """Rows and bounds of one input; a few rows are late."""
    events: list[Event] = []
    at = dict.fromkeys(KEYS, 0)
    for place in range(draw(st.integers(0, 12))):
        key = draw(st.sampled_from(KEYS))
        if bounds and draw(st.integers(0, 4)) == 0:
            events.append((name, "bound", draw(st.sampled_from([key, None])), at[key] + draw(st.integers(-2, 5))))
            continue
        at[key] += draw(st.integers(step - 1 if draw(st.integers(0, 9)) == 0 else step, 3))
        choice = draw(st.integers(0, 1))
        events.append((name, "row", key, at[key], choice if name == "c" else 100 * place + NAMES.index(name)))
    if draw(st.booleans()):
        events.append(close(name))
    return events


@st.composite
def merged(draw: st.DrawFn, inputs: Sequence[Sequence[Event]]) -> list[Event]:
    """One order of arrival: each input keeps its own."""
    left = [list(events) for events in inputs]
    found: list[Event] = []
    while any(left):
        found.append(draw(st.sampled_from([events for events in left if events])).pop(0))
    return found


@st.composite
def cut(draw: st.DrawFn, events: Sequence[Event]) -> list[list[Event]]:
    """The same events in epochs, some of them empty."""
    epochs: list[list[Event]] = [[]]
    for event in events:
        epochs[-1].append(event)
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            epochs.append([])
    return epochs


@st.composite
def inputs_of(draw: st.DrawFn, *, bounds: bool = True) -> list[list[Event]]:
    return [draw(one_input(name, bounds=bounds)) for name in NAMES]


def sets_of(drive: Drive) -> dict[Any, list[Any]]:
    return by_key(drive.rows)


def late_of(drive: Drive) -> Counter[str]:
    return Counter(repr(row) for row in drive.late)


@pytest.mark.parametrize("name", [*BY_TIMESTAMP, "barrier"])
@settings(max_examples=examples(20))
@given(data=st.data())
def test_however_rows_are_cut_into_epochs_the_total_output_is_the_same(name: str, data: st.DataObject) -> None:
    # early_close: a bound beyond the rows of its input releases nothing in the epoch in which that input ends.
    events = data.draw(inputs_of(bounds=name != "early_close").flatmap(merged))
    step = step_of(NAMES, EVERY[name])
    one_by_one, otherwise = run(step, [[event] for event in events]), run(step, data.draw(cut(events)))
    assert sets_of(otherwise) == sets_of(one_by_one)
    assert late_of(otherwise) == late_of(one_by_one)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_however_rows_are_cut_each_group_of_sync_sets_gives_the_same(data: st.DataObject) -> None:
    events = data.draw(inputs_of().flatmap(merged))
    step = step_of(NAMES, EVERY["sync_sets"])
    drives = [run(step, [[event] for event in events]), run(step, data.draw(cut(events)))]
    of_group = [
        [[row for row in drive.rows if row["k"] == key and (row["b"] is None) == alone] for drive in drives]
        for key in KEYS
        for alone in (True, False)
    ]
    assert all(one == other for one, other in of_group)


@pytest.mark.parametrize("name", list(BY_TIMESTAMP))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_the_order_of_arrival_across_inputs_changes_nothing(name: str, data: st.DataObject) -> None:
    # early_close: only what was settled when an input ended counts, and bounds beyond the rows settle more.
    inputs = data.draw(inputs_of(bounds=name != "early_close"))
    step = step_of(NAMES, EVERY[name])
    drives = [run(step, data.draw(merged(inputs).flatmap(cut))) for _ in range(2)]
    assert sets_of(drives[0]) == sets_of(drives[1])
    below = [Counter(repr(row) for row in drive.late if "below the bound" in row["reason"]) for drive in drives]
    assert below[0] == below[1]


@settings(max_examples=examples(20))
@given(data=st.data())
def test_once_aligned_the_order_of_arrival_across_inputs_changes_nothing(data: st.DataObject) -> None:
    meeting: list[Event] = [
        (name, "row", key, at, place)
        for key in KEYS
        for place, (name, at) in enumerate([("a", 50), ("c", -7), ("b", 100)])
    ]
    ahead = {"a": 60, "b": 110, "c": 0}
    inputs = [
        [(of, what, key, at + ahead[of] if at < CLOSED else at, *rest) for of, what, key, at, *rest in events]
        for events in data.draw(inputs_of())
    ]
    step = step_of(NAMES, EVERY["timestamp_align"])
    drives = [run(step, [meeting, *data.draw(merged(inputs).flatmap(cut))]) for _ in range(2)]
    assert sets_of(drives[0]) == sets_of(drives[1])


@pytest.mark.parametrize("name", list(EVERY))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_every_row_is_in_a_set_or_waits_or_is_late(name: str, data: st.DataObject) -> None:
    events = data.draw(inputs_of().flatmap(merged))
    drive = run(step_of(NAMES, EVERY[name]), data.draw(cut(events)))
    used = sum(row[of] is not None for row in drive.rows for of in NAMES)
    assert used + len(drive.late) + drive.counts.get("waiting_rows", 0) == sum(event[1] == "row" for event in events)
    assert drive.counts.get("late", 0) + drive.counts.get("dropped", 0) == len(drive.late)


@pytest.mark.parametrize("name", list(EVERY))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_no_set_comes_below_a_bound_that_was_given_before(name: str, data: st.DataObject) -> None:
    epochs = data.draw(inputs_of().flatmap(merged).flatmap(cut))
    drive = Drive(step_of(NAMES, EVERY[name]))
    given_bounds: list[dict[str, Any]] = []
    for events in epochs:
        for row in drive.epoch_of(events):
            for bound in given_bounds:
                if bound["__all_keys__"] or bound["k"] == row["k"]:
                    assert row["timestamp"] >= bound["__bound__"]
        given_bounds = drive.bounds.copy()


@pytest.mark.parametrize("name", ["settled", "early_close", "mux", "within", "timestamp_align"])
@settings(max_examples=examples(20))
@given(data=st.data())
def test_sets_of_a_key_ascend(name: str, data: st.DataObject) -> None:
    drive = run(step_of(NAMES, EVERY[name]), data.draw(inputs_of().flatmap(merged).flatmap(cut)))
    for rows in sets_of(drive).values():
        at = [row["timestamp"] for row in rows]
        assert at == sorted(at)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_when_all_inputs_have_ended_nothing_waits(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in EVERY if name not in ("timestamp_align",)]))
    inputs = [[*events, close(of)] for of, events in zip(NAMES, data.draw(inputs_of()), strict=True)]
    drive = run(step_of(NAMES, EVERY[name]), data.draw(merged(inputs).flatmap(cut)))
    assert drive.counts["waiting_rows"] == 0


@settings(max_examples=examples(20))
@given(data=st.data())
def test_disorder_within_its_limit_changes_nothing(data: st.DataObject) -> None:
    inputs = [[*events, close(of)] for of, events in zip(NAMES, data.draw(inputs_of(bounds=False)), strict=True)]
    rows = [[event for event in events if event[1] == "row"] for events in inputs]
    step = step_of(NAMES, disorder=(40,) * 3)
    shuffled = [[*data.draw(st.permutations(of)), close(name)] for name, of in zip(NAMES, rows, strict=True)]
    ordered = [[*sorted(of, key=lambda event: event[3]), close(name)] for name, of in zip(NAMES, rows, strict=True)]
    found = run(step, data.draw(merged(shuffled).flatmap(cut)))
    expected = run(step, data.draw(merged(ordered).flatmap(cut)))
    at = [[(row["k"], row["timestamp"], [row[of] is not None for of in NAMES]) for row in drive.rows]
          for drive in (found, expected)]  # fmt: skip
    assert sorted(at[0]) == sorted(at[1])
    assert len(found.late) == len(expected.late)


def matched_by_definition(base: list[int], other: list[int], tolerance: int) -> set[tuple[int, int]]:
    """The definition of ``within`` (design/0007, section 6), read off word by word."""
    pairs = set()
    for r in base:
        if not other:
            break
        nearest = min(other, key=lambda c: (abs(c - r), -c))
        back = min(base, key=lambda b: (abs(b - nearest), b))
        if back == r and abs(nearest - r) <= tolerance:
            pairs.add((r, nearest))
    return pairs


@settings(max_examples=examples(60))
@given(data=st.data())
def test_within_matches_rows_that_are_each_others_nearest(data: st.DataObject) -> None:
    times = st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted)
    base, other, tolerance = data.draw(times), data.draw(times), data.draw(st.integers(0, 6))
    inputs = [
        [*((name, "row", "x", at, at) for at in stamps), close(name)] for name, stamps in (("a", base), ("b", other))
    ]
    drive = run(step_of(("a", "b"), policies.within(tolerance)), data.draw(merged(inputs).flatmap(cut)))
    pairs = {(row["a"]["v"], row["b"]["v"]) for row in drive.rows if row["a"] and row["b"]}
    assert pairs == matched_by_definition(base, other, tolerance)
    ordered = sorted(pairs)
    assert [late for _, late in ordered] == sorted(late for _, late in ordered), "sets cross"
    assert sorted(row["a"]["v"] for row in drive.rows if row["a"]) == base
    assert sorted(row["b"]["v"] for row in drive.rows if row["b"]) == other
