"""Aggregates as values, and the histogram behind quantiles."""

import inspect

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate import aggregates, exact, histogram
from tests.everyday import examples

FINITE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-1e300, max_value=1e300)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: aggregates.mean(5), "hf.mean was given 5"),
        (lambda: aggregates.quantile("x", 2), "rank=2 is not a rank"),
        (lambda: aggregates.quantiles("x", []), "are not ranks"),
        (lambda: aggregates.quantile("x", 0.5, error=0), "not a relative error"),
    ],
)
def test_what_is_no_aggregate_is_refused(build, text):
    with pytest.raises(InvalidPipeline, match=text):
        build()


@pytest.mark.parametrize("name", [*aggregates.KINDS, "quantile"])
def test_every_argument_of_an_aggregate_is_described(name):
    build = getattr(hf, name)
    described = inspect.getdoc(build).partition("Parameters\n----------\n")[2]
    assert [argument for argument in inspect.signature(build).parameters if f"{argument} : " not in described] == []


def test_a_sum_beyond_all_doubles_is_infinite():
    both = exact.summed(np.array([1e308, 1e308, -1e308, -1e308]), np.array([0, 0, 1, 1]), 2)
    assert exact.rounded(both)[0].tolist() == [np.inf, -np.inf]


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(values=st.lists(FINITE, min_size=1, max_size=60), rank=st.floats(0, 1), error=st.sampled_from([0.01, 0.1]))
def test_a_quantile_errs_by_at_most_the_relative_error(values, rank, error):
    octave = histogram.buckets_per_octave(error)
    made = histogram.made(np.array(values), np.zeros(len(values), np.int64), 1, octave)
    found = histogram.quantiles(made, [rank], octave)[0, 0]
    wanted = sorted(values)[max(int(np.ceil(rank * len(values))), 1) - 1]
    assert abs(found - wanted) <= error * abs(wanted) * (1 + 1e-12)


@pytest.mark.parametrize(
    "value", [-1.0, -(2.0**32), -(2.0**-32), -(2.0**64), -1.5, -(2.0**32) - 1, 2.0**-1074, -(2.0**-1074)]
)
def test_a_sum_of_one_number_is_that_number_after_it_was_kept(value):
    kept = exact.to_state(exact.summed(np.array([value]), np.zeros(1, np.int64), 1))
    total, rest = exact.rounded(exact.merged(kept, np.zeros(1, np.int64), 1))
    assert (total[0], rest[0]) == (value, 0.0)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(values=st.lists(FINITE | st.integers(-3, 3).map(float), max_size=40), data=st.data())
def test_a_sum_has_one_form_whatever_the_order_and_the_cut(values, data):
    def state(numbers):
        return exact.to_state(exact.summed(np.array(numbers, np.float64), np.zeros(len(numbers), np.int64), 1))

    whole = state(values)
    shuffled = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    both = state(shuffled[:cut]), state(shuffled[cut:])
    merged = exact.merged(pa.concat_arrays(both), np.zeros(2, np.int64), 1)
    assert exact.to_state(merged).to_pylist() == whole.to_pylist()
