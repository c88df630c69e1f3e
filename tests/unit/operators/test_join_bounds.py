"""The bounds of a join's output hold: no row of it is below one that was given before (design/0029, invariant 5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.operators.join.spec import HOWS, join
from holdfast.testing.drive import drive
from holdfast.testing.given import bound, close
from tests.everyday import examples

FAR = 10**6


def behind(how, within, **options):
    """Return the rows of a join's output that are below a bound of it, as the next operator sees them."""
    left = hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="l")
    right = hf.read.rows([], schema="k STRING, at BIGINT, w BIGINT", timestamp="at", name="r")
    paired = join(left, right, on="k", within=within, how=how, name="joined", **options)
    return (paired | hf.distinct(by="k", horizon=1, disorder=FAR, name="next")).late


def test_a_left_row_of_semi_whose_partner_settles_after_right_has_passed_it_is_not_late_downstream():
    lefts: list[Any] = [[{"k": "a", "t": 12, "v": 0}, bound(19)], [close()]]
    rights: list[Any] = [[{"k": "a", "at": 19, "w": 0}, bound(30)], [close()]]
    assert drive(behind("semi", (-2, 7)), {"l": lefts, "r": rights}) == [[], []]


EVENTS = st.lists(st.tuples(st.sampled_from("lr"), st.sampled_from("ab"), st.integers(0, 4)), max_size=24)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    how=st.sampled_from(HOWS), events=EVENTS, low=st.integers(-6, 4), width=st.integers(0, 8), size=st.integers(1, 5)
)
def test_no_row_is_below_a_bound_whatever_the_pace_of_the_inputs(how, events, low, width, size):
    at = {"l": 0, "r": 0}
    epochs = {name: [[] for _ in range(0, len(events) + size, size)] for name in "lr"}
    for number, (name, key, step) in enumerate(events):
        at[name] += step
        row = {"k": key, "t" if name == "l" else "at": at[name], "v" if name == "l" else "w": number}
        epochs[name][number // size].append(row)
    for name in "lr":
        epochs[name][-1].append(close())
    assert not any(drive(behind(how, (low, low + width)), epochs))
