"""``merge``: the latest slow rows as of each main row's time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful.merge import merge
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close
from tests.everyday import examples

pytestmark = pytest.mark.slow

MAIN = "k STRING, t BIGINT, v INT"
SLOW = "k STRING, at BIGINT, w INT"


def source(name, schema, timestamp):
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name)


def merged(**more):
    main, slow = source("fast", MAIN, "t"), source("weather", SLOW, "at")
    return merge(main, {"weather": slow}, **{"by": "k", "name": "seen", **more})


def row(t, k="a", v=0):
    return {"k": k, "t": t, "v": v}


def slow(at, w=0, k="a"):
    return {"k": k, "at": at, "w": w}


def pairs(epochs):
    return [[(r["k"], r["t"], r["weather"] and r["weather"]["at"]) for r in rows] for rows in epochs]


def run(fast, weather, *, buckets=1, batch_times=None, **more):
    return pairs(drive(merged(**more), {"fast": fast, "weather": weather}, buckets=buckets, batch_times=batch_times))


def test_a_main_row_waits_until_the_slow_input_is_past_it():
    assert run([[row(5)], [], []], [[slow(3)], [slow(5)], [slow(6)]]) == [[], [], [("a", 5, 5)]]


def test_the_column_is_the_slow_row_without_the_key():
    found = drive(merged(), {"fast": [[row(5, v=9)]], "weather": [[slow(3, 7), close()]]})
    assert found == [[{"k": "a", "t": 5, "v": 9, "weather": {"at": 3, "w": 7}}]]


def test_without_a_slow_row_before_it_the_column_is_null():
    assert run([[row(5), row(9)]], [[slow(7), close()]]) == [[("a", 5, None), ("a", 9, 7)]]


def test_of_several_slow_rows_of_one_time_the_last_to_arrive_counts():
    found = drive(merged(), {"fast": [[row(5)], [], []], "weather": [[slow(5, 1)], [slow(5, 2)], [close()]]})
    assert [r["weather"]["w"] for rows in found for r in rows] == [2]


def test_a_slow_row_older_than_the_tolerance_does_not_count():
    assert run([[row(5), row(6), row(20)]], [[slow(3), close()]], tolerance=2) == [
        [("a", 5, 3), ("a", 6, None), ("a", 20, None)]
    ]


def test_keys_do_not_wait_for_each_other_and_a_bound_for_all_keys_lets_all_go():
    assert run([[row(5, "b"), row(5, "a")], [], []], [[slow(6, k="b")], [bound(6, {"k": "c"})], [bound(6)]]) == [
        [("b", 5, None)],
        [],
        [("a", 5, None)],
    ]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fast", "weather"]), st.sampled_from("ab"), st.integers(0, 20)), max_size=30
)


def reference(fast, weather, tolerance):
    """Return the merge of everything at once, by (time, key, arrival)."""
    found = []
    for one in sorted(fast, key=lambda r: (r["t"], r["k"])):
        before = [(s["at"], n, s["w"]) for n, s in enumerate(weather) if s["k"] == one["k"] and s["at"] <= one["t"]]
        best = max(before, default=None)
        if best is not None and tolerance is not None and one["t"] - best[0] > tolerance:
            best = None
        found.append((one["k"], one["t"], one["v"], best and best[2]))
    return found


def shuffled_within(rows, time, disorder, random):
    """Return rows in an order that keeps the promise of a disorder."""
    return sorted(rows, key=lambda r: r[time] + random.uniform(0, disorder))


@settings(max_examples=examples(60))
@given(
    EVENTS,
    st.sets(st.integers(0, 30), max_size=5),
    st.sets(st.integers(0, 30), max_size=5),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 8)),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_however_arrivals_interleave_and_are_cut_the_result_is_that_of_all_at_once(
    events, fast_cuts, slow_cuts, disorder, tolerance, buckets, random
):
    fast = [row(t, k, n) for n, (name, k, t) in enumerate(events) if name == "fast"]
    weather = [slow(t, n, k) for n, (name, k, t) in enumerate(events) if name == "weather"]
    fast = shuffled_within(sorted(fast, key=lambda r: r["t"]), "t", disorder, random)
    weather = shuffled_within(sorted(weather, key=lambda r: r["at"]), "at", disorder, random)
    given_ = {"fast": cut(fast, fast_cuts), "weather": cut(weather, slow_cuts)}
    stream = merged(disorder=disorder, tolerance=tolerance)
    driven = Drive(stream, given_, buckets=buckets)
    found = [
        (r["k"], r["t"], r["v"], r["weather"] and r["weather"]["w"]) for e in driven.tables() for r in e.to_pylist()
    ]
    expected = reference(fast, weather, tolerance)
    for key in "ab":
        assert [one for one in found if one[0] == key] == [one for one in expected if one[0] == key]
    state = [decode(data) for data in driven.states["seen"]]
    assert sum(tables["waiting"].num_rows + tables["slow_weather"].num_rows for tables in state) == 0


def cut(rows, cuts):
    borders = [0, *sorted(one for one in cuts if one < len(rows)), len(rows)]
    return [*(rows[a:b] for a, b in pairwise(borders)), [close()]]


def test_slow_rows_that_no_main_row_can_need_are_pruned():
    driven = Drive(merged(), {"fast": [[row(t) for t in range(0, 100, 2)]], "weather": [[slow(t) for t in range(99)]]})
    driven.tables()
    state = decode(driven.states["seen"][0])
    assert state["slow_weather"].column("at").to_pylist() == [98]
    assert state["waiting"].column("t").to_pylist() == [98]
    assert driven.counts == {("seen", "late"): 0, ("seen", "waiting_rows"): 1}


def test_a_slow_row_that_a_later_main_row_needs_stays():
    assert run([[row(10)], [row(20)], [row(30)]], [[slow(5), bound(50)], [], [close()]]) == [
        [("a", 10, 5)],
        [("a", 20, 5)],
        [("a", 30, 5)],
    ]


def test_late_rows_of_each_input_go_to_late_with_input_and_reason():
    stream = merged()
    epochs = {"fast": [[row(10), row(9, v=7)]], "weather": [[slow(10), slow(3, 8), close()]]}
    driven = Drive(stream, epochs)
    assert pairs([table.to_pylist() for table in driven.tables()]) == [[("a", 10, 10)]]
    assert driven.counts["seen", "late"] == 2
    (late,) = drive(stream.late, epochs)
    assert late[0] == {
        "k": "a",
        "timestamp": 9,
        "input": "main",
        "reason": "timestamp 9 is below the bound 10 of main",
        "main": {"k": "a", "t": 9, "v": 7},
        "weather": None,
    }
    assert (late[1]["input"], late[1]["weather"]["w"], late[1]["main"]) == ("weather", 8, None)


def test_strict_timestamps_make_a_repeat_late_and_let_rows_go_earlier():
    assert run([[row(5)]], [[slow(5)]], timestamps="strict") == [[("a", 5, 5)]]
    driven = Drive(merged(timestamps={"main": "strict"}), {"fast": [[row(5), row(5)]], "weather": [[]]})
    driven.tables()
    assert driven.counts["seen", "late"] == 1


def test_a_row_that_waited_long_leaves_and_what_comes_below_is_late():
    fast, weather = [[row(5)], [row(8)], [], [row(9)]], [[slow(3)], [], [], [slow(4), slow(8, 1), close()]]
    stream = merged(idle_after="10 s")
    driven = Drive(stream, {"fast": fast, "weather": weather}, batch_times=[0, 5_000_000, 10_000_000, 11_000_000])
    found = pairs([table.to_pylist() for table in driven.tables()])
    assert found == [[], [], [("a", 5, 3)], [("a", 8, 8), ("a", 9, 8)]]
    assert driven.counts["seen", "late"] == 1


def test_a_key_that_is_silent_for_long_is_forgotten():
    stream = merged(forget_after="10 s")
    epochs = {"fast": [[row(5)], [], [row(1)]], "weather": [[slow(3), slow(3, k="b"), bound(100)], [], []]}
    driven = Drive(stream, epochs, batch_times=[0, 10_000_000, 11_000_000])
    assert pairs([table.to_pylist() for table in driven.tables()]) == [[("a", 5, 3)], [], [("a", 1, None)]]


def test_a_merge_behind_a_merge_follows_its_bounds():
    first = merged()
    other = source("other", SLOW, "at")
    second = merge(first, {"o": other}, by="k", name="second")
    found = drive(
        second,
        {
            "fast": [[row(5), close()], [], []],
            "weather": [[], [slow(9)], []],
            "other": [[slow(4), bound(6)], [], []],
        },
    )
    assert [(r["t"], r["weather"], r["o"]["at"]) for r in found[1]] == [(5, None, 4)]


def test_a_null_key_or_time_is_a_bad_row():
    with pytest.raises(BadRow, match=r"operator 'seen'.*input 'weather'.*'k'"):
        run([[]], [[slow(1, k=None)]])
    with pytest.raises(BadRow, match=r"operator 'seen'.*input 'main'.*'t'"):
        run([[row(None)]], [[]])


NO_STREAM: Any = 3


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: merge(source("m", MAIN, "t"), {}, by="k"), "no slow stream"),
        (lambda: merge(source("m", MAIN, "t"), [], by="k"), "no slow stream"),
        (lambda: merge(source("m", MAIN, "t"), {"w": NO_STREAM}, by="k"), "an int stands for 'w'"),
        (lambda: merge(source("m", MAIN, "t"), {"main": source("w", SLOW, "at")}, by="k"), "named 'main'"),
        (lambda: merge(source("m", MAIN, "t"), {"v": source("w", SLOW, "at")}, by="k"), "name of a column"),
        (lambda: merge(source("m", MAIN, None), {"w": source("w", SLOW, "at")}, by="k"), "no known timestamp"),
        (lambda: merged(by="x"), "by= of input 'main' names the column 'x'"),
        (lambda: merged(timestamps="random"), "not a promise"),
        (lambda: merged(disorder={"fast": 3}), "the input 'fast', which does not exist"),
        (lambda: merged(tolerance=-1), "too small"),
        (lambda: run([[]], [[]], tolerance="1 s"), "does not fit the timestamp column 't'"),
        (lambda: drive(merge(source("m", MAIN, "t"), {"w": source("w", "k INT, at BIGINT", "at")}, by="k"),
                       {"m": [], "w": []}), "the key is 'k' int32, in main 'k' string"),
        (lambda: drive(merge(source("m", MAIN, "t"), {"w": source("w", "k STRING, at TIMESTAMP", "at")}, by="k"),
                       {"m": [], "w": []}), "the timestamp 'at' is timestamp"),
    ],
)  # fmt: skip
def test_what_cannot_work_says_why(build, says):
    with pytest.raises(InvalidPipeline, match=says):
        build()
