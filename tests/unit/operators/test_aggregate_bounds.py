"""Bounds that an aggregation passes on: no window that begins below them comes any more, and they do advance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.aggregate import window
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED
from tests.everyday import examples
from tests.unit.operators.test_aggregate import END, run, step_of

CUTS = [window.tumbling(7, offset=3), window.sliding(10, 3), window.sliding(9, 3), window.session(4), window.total()]
EPOCHS = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(-9, 40), st.none(), st.just(1)),
            st.tuples(st.just("bound"), st.sampled_from([None, "a"]), st.integers(-9, 40)),
        ),
        max_size=6,
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(epochs=EPOCHS, cut=st.sampled_from(CUTS), disorder=st.sampled_from([None, 6]))
def test_no_window_below_a_bound_comes_after_it(epochs, cut, disorder):
    step = step_of("k", cut, disorder=disorder if cut.kind != "total" else None)
    out, _, _, bounds = run(step, *epochs, [END])
    everywhere, of_key = -(2**63), {}
    for rows, told in zip(out, bounds, strict=True):
        for row in rows:
            start = row.get("window_start", 0)
            assert start >= max(everywhere, of_key.get(row["k"], everywhere)), (row, everywhere, of_key)
        for one in told:
            if one[ALL_KEYS]:
                everywhere = max(everywhere, one[BOUND])
            else:
                of_key[one["k"]] = max(one[BOUND], of_key.get(one["k"], one[BOUND]))
    assert everywhere == CLOSED


@pytest.mark.parametrize(
    ("cut", "bound"),
    [
        (window.tumbling(10), 20),  # [20, 30) is the first that may still come
        (window.sliding(10, 5), 20),  # [15, 25) is final at 25
        (window.session(4), 24),  # the open session began at 24
    ],
)
def test_a_bound_of_25_says_of_windows_what_is_known(cut, bound):
    *_, bounds = run(step_of("k", cut), [("a", 3, None, 1), ("a", 24, None, 1), ("a", 25, None, 1)])
    assert bounds == [[{"k": "a", ALL_KEYS: False, BOUND: bound}]]


def test_an_open_session_holds_the_bound_for_all_keys_back_in_the_epoch_that_opened_it():
    step = step_of("k", window.session(10))
    *_, bounds = run(step, [("a", 20, None, 1), ("bound", None, 25)], [("bound", None, 31)])
    assert [[one[BOUND] for one in told if one[ALL_KEYS]] for told in bounds] == [[20], [31]]


def test_a_bound_is_told_once():
    *_, bounds = run(step_of(), [("bound", None, 30)], [("bound", None, 30)], [("bound", None, 20)])
    assert [len(told) for told in bounds] == [1, 0, 0]


def test_an_open_session_holds_the_bound_back_where_an_earlier_one_of_its_key_is_closed_by_a_bound_for_all_keys():
    step = step_of("k", window.session(4), disorder=6)
    out, _, _, bounds = run(step, [("a", 0, None, 1), ("a", 4, None, 1)], [("bound", None, 5)], [END])
    assert [[row["window_start"] for row in rows] for rows in out] == [[], [0], [4]]
    assert bounds[1] == [{"k": None, ALL_KEYS: True, BOUND: 4}]
