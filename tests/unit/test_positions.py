"""The arithmetic of positions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.positions import ascending, covers, covers_all

SEVERAL = st.lists(st.fixed_dictionaries({"log": st.integers(0, 9), "other": st.integers(0, 9)}), max_size=4)
SEGMENTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


def test_a_segment_that_was_never_read_is_not_covered():
    assert not covers({}, {"a": 0})
    assert covers({"a": 3}, {})


def test_opaque_positions_are_compared_for_equality_only():
    assert covers({"": '{"o": 1}'}, {"": '{"o": 1}'})
    assert not covers({"": '{"o": 2}'}, {"": '{"o": 1}'})
    assert not covers({"": 7}, {"": "7"})


@pytest.mark.slow
@given(SEGMENTS)
def test_positions_cover_themselves(positions):
    assert covers(positions, positions)


@pytest.mark.slow
@given(SEGMENTS, SEGMENTS, SEGMENTS)
def test_covering_is_transitive(first, second, third):
    if covers(first, second) and covers(second, third):
        assert covers(first, third)


@pytest.mark.slow
@given(
    st.lists(st.fixed_dictionaries({"log": st.integers(0, 9), "other": st.integers(0, 9)}), max_size=4), st.randoms()
)
def test_ascending_positions_cover_each_other_in_order_whatever_order_they_came_in(several, random_):
    positions = [{"source": each} for each in several]
    ordered = ascending(positions)
    shuffled = list(positions)
    random_.shuffle(shuffled)
    assert ascending(shuffled) == ordered
    if ordered is None:
        assert any(not covers_all(a, b) and not covers_all(b, a) for a in positions for b in positions)
        return
    for earlier, later in pairwise(ordered):
        assert covers_all(later, earlier)
        assert later != earlier
    assert all(each in ordered for each in positions)
