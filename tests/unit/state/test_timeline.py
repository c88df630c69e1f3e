"""Bounds: what rows and explicit bounds make of them, what is settled, what is late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state import step, timeline
from holdfast.state.timeline import CLOSED, UNBOUNDED, Promise


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_the_ends_of_time_are_those_of_the_steps() -> None:
    assert (timeline.CLOSED, timeline.UNBOUNDED) == (step.CLOSED, step.UNBOUNDED)


@pytest.mark.parametrize(
    ("promise", "bound"), [(Promise(True), 11), (Promise(False), 10), (Promise(True, 4), 6), (Promise(False, 0), 10)]
)
def test_a_row_raises_the_bound_as_its_input_promises(promise: Promise, bound: int) -> None:
    assert promise.bounds_after(ints(10)).tolist() == [bound]


def test_the_last_timestamps_do_not_overflow() -> None:
    assert timeline.shifted(ints(CLOSED - 1), 7).tolist() == [CLOSED - 1]
    assert timeline.shifted(ints(UNBOUNDED + 1), -7).tolist() == [UNBOUNDED + 1]
    assert timeline.shifted(ints(CLOSED, UNBOUNDED), -7).tolist() == [CLOSED, UNBOUNDED]


def test_nothing_settles_without_inputs() -> None:
    with pytest.raises(ValueError, match="no input"):
        timeline.settled_before(np.empty((3, 0), np.int64))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), max_size=30), st.integers(-9, 9))
def test_the_bound_before_an_event_is_the_highest_before_it(events: list[tuple[int, int]], start: int) -> None:
    events = sorted(events, key=lambda event: event[0])
    groups, values = ints(*(group for group, _ in events)), ints(*(value for _, value in events))
    naive = [
        max([start, *(value for other, value in events[:place] if other == group)])
        for place, (group, _) in enumerate(events)
    ]
    assert timeline.bounds_before(groups, values, np.full(len(events), start, np.int64)).tolist() == naive
    after = timeline.raised_by(np.full(4, start, np.int64), groups, values).tolist()
    assert after == [max([start, *(value for other, value in events if other == group)]) for group in range(4)]


def test_a_bound_for_all_keys_counts_from_its_place_on() -> None:
    assert timeline.bound_at(ints(4, 5, 6), ints(5), ints(30), 1).tolist() == [1, 1, 30]


def test_when_all_are_idle_the_time_given_is_reached() -> None:
    raised = timeline.idle_raised(np.array([[50, 3]]), np.array([[True, True]]), ints(20))
    assert raised.tolist() == [[50, 20]]
