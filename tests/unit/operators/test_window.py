"""Windows as values."""

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate import window


def test_a_duration_counts_microseconds_of_a_timestamp_and_ticks_of_a_bigint():
    assert window.ticks("1 s", is_timestamp=True, argument="size") == 1_000_000
    assert window.ticks(7, is_timestamp=False, argument="size") == 7
    assert window.ticks(0, is_timestamp=True, argument="offset") == 0
    for value, is_timestamp in (("1 s", False), (7, True)):
        with pytest.raises(InvalidPipeline, match="wrong unit"):
            window.ticks(value, is_timestamp=is_timestamp, argument="size")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: window.tumbling(0), "not positive"),
        (lambda: window.tumbling("soon"), "size='soon'"),
        (lambda: window.sliding("1 h", "2 h"), "longer than"),
        (lambda: window.sliding(10**9, "1 s"), "not in one unit"),
        (lambda: window.session(-1), "not positive"),
        (lambda: window.count_window(0), "not a number of rows"),
        (lambda: window.timer(5), "is not a time"),
        (lambda: window.timer("5 s", count_trigger=0), "not a number of rows"),
    ],
)
def test_what_is_no_window_is_refused(build, text):
    with pytest.raises(InvalidPipeline, match=text):
        build()


def test_a_window_is_shown_with_its_measures():
    assert window.arguments(window.tumbling("1 h")) == {"kind": "tumbling", "size": "1 h", "offset": 0}
    assert window.arguments(window.timer("1 s")) == {"kind": "timer", "period": "1 s"}
