"""The arithmetic of positions."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.positions import covers, minimum

SEGMENTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


def test_a_segment_that_was_never_read_is_not_covered():
    assert not covers({}, {"a": 0})
    assert covers({"a": 3}, {})


def test_opaque_positions_are_compared_for_equality_only():
    assert covers({"": '{"o": 1}'}, {"": '{"o": 1}'})
    assert not covers({"": '{"o": 2}'}, {"": '{"o": 1}'})
    assert not covers({"": 7}, {"": "7"})


def test_the_minimum_of_nothing_is_nothing():
    assert minimum([]) == {}


@given(SEGMENTS)
def test_positions_cover_themselves(positions):
    assert covers(positions, positions)


@given(SEGMENTS, SEGMENTS, SEGMENTS)
def test_covering_is_transitive(first, second, third):
    if covers(first, second) and covers(second, third):
        assert covers(first, third)


@given(st.lists(SEGMENTS, min_size=1, max_size=4))
def test_each_of_several_positions_covers_their_minimum_and_nothing_higher_is_covered_by_all(several):
    lowest = minimum(several)
    assert all(covers(each, lowest) for each in several)
    for segment, position in lowest.items():
        assert not all(covers(each, {segment: position + 1}) for each in several)


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.randoms())
def test_the_minimum_does_not_depend_on_the_order(several, random_):
    shuffled = list(several)
    random_.shuffle(shuffled)
    assert minimum(shuffled) == minimum(several)
