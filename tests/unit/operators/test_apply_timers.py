"""Timers of ``apply``: a function is called again for a key, at an event time or at a batch time, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close

SECOND = 1_000_000


def events(**schema: Any) -> Stream:
    return hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="events")


def row(k: str, t: int) -> dict[str, Any]:
    return {"k": k, "t": t}


def ring(gap: int) -> Any:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        for each in rows:
            state.timer(each["t"] + gap)
        if state.fired is not None:
            assert not rows
            yield {"k": key, "t": state.fired.at}

    return fn


def rung(fn: Any, epochs: Any, **more: Any) -> list[list[Any]]:
    driven = {name: more.pop(name) for name in ("batch_times", "buckets") if name in more}
    options = {"timers": "event", "schema": "k STRING, t BIGINT", "name": "alarms", **more}
    stream = events() | hf.apply(fn, by="k", **options)
    return [[(each["k"], each["t"]) for each in rows] for rows in drive(stream, {"events": epochs}, **driven)]


@pytest.mark.slow
def test_a_timer_fires_once_when_no_row_at_or_before_its_time_follows() -> None:
    epochs = [[row("a", 1), row("b", 3)], [bound(6)], [bound(7)], [bound(7)], [bound(20)]]
    assert rung(ring(5), epochs) == [[], [], [("a", 6)], [], [("b", 8)]]


@pytest.mark.slow
def test_the_bound_of_a_key_fires_the_timers_of_that_key() -> None:
    epochs = [[row("a", 1), row("b", 1)], [bound(9, {"k": "a"})], [row("b", 2)], [bound(9)]]
    assert rung(ring(5), epochs, buckets=2) == [[], [("a", 6)], [], [("b", 6), ("b", 7)]]


@pytest.mark.slow
def test_the_end_of_the_input_fires_every_timer_and_is_told_behind_them() -> None:
    epochs: list[Any] = [[row("a", 1), row("b", 3)], [close()]]
    assert rung(ring(5), epochs) == [[], [("a", 6), ("b", 8)]]

    def again(key: str, rows: Any, state: hf.KeyState) -> Any:
        at = state.fired.at if state.fired else rows[0]["t"]
        state.timer(at + 1)
        return [{"k": key, "t": at}]

    assert rung(again, epochs) == [[("a", 1), ("b", 3)], [("a", 2), ("b", 4)]], "what fires at the end is the last"
    behind = events() | hf.apply(ring(5), by="k", schema="k STRING, t BIGINT", timestamp="t", timers="event", name="a")
    last = behind | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="windows")
    found = drive(last, {"events": epochs})
    assert [sorted((each["k"], each["n"]) for each in rows) for rows in found] == [[], [("a", 1), ("b", 1)]]


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=25)


@pytest.mark.slow
@given(ROWS, st.sets(st.integers(0, 25)), st.integers(1, 3), st.integers(0, 4))
def test_the_same_timers_fire_however_rows_are_cut_into_epochs(steps: Any, cuts: Any, buckets: int, gap: int) -> None:
    items: list[Any] = []
    at = 0
    for key, step in steps:
        at += step
        items += [row(key, at), bound(at)] if step else [row(key, at)]
    items.append(close())
    borders = [0, *sorted(cut for cut in cuts if cut < len(items)), len(items)]
    found = rung(ring(gap), [items[a:b] for a, b in pairwise(borders)], buckets=buckets)
    fired = [each for epoch in found for each in epoch]
    times = {key: sorted({each["t"] + gap for each in items[:-1] if isinstance(each, dict) and each["k"] == key})
             for key in "abc"}  # fmt: skip
    for key in "abc":
        assert [t for k, t in fired if k == key] == times[key]


@pytest.mark.slow
def test_the_rows_of_a_key_let_its_timers_fire_where_they_promise_something() -> None:
    epochs = [[row("a", 1), row("b", 1)], [row("a", 9)], [row("a", 10)], [row("b", 5)]]
    assert rung(ring(5), epochs, disorder=3) == [[], [], [("a", 6)], []]


def test_a_time_that_is_over_fires_at_once_and_a_timer_set_by_a_timer_in_its_turn() -> None:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        for each in rows:
            state.timer(each["t"])
        if state.fired is not None:
            if state.fired.at < 30:
                state.timer(state.fired.at + 10)
            yield {"k": key, "t": state.fired.at}

    assert rung(fn, [[bound(25)], [row("a", 3), row("a", 4)], [bound(99)]]) == [
        [], [("a", 3), ("a", 4), ("a", 13), ("a", 14), ("a", 23), ("a", 24)], [("a", 33), ("a", 34)]
    ]  # fmt: skip


def test_timers_of_batch_time_fire_in_the_first_later_epoch_that_has_reached_them() -> None:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        for _ in rows:
            state.timer(state.at.batch_us + 5 * SECOND, clock="batch")
        if state.fired is not None:
            yield {"k": key, "t": state.fired.at}

    times = [0, 4 * SECOND, 5 * SECOND, 8 * SECOND, 11 * SECOND]
    stream = events() | hf.apply(fn, by="k", schema="k STRING, t BIGINT", timers="batch", name="alarms")
    driven = Drive(stream, {"events": [[row("a", 1), row("b", 1)], [row("b", 2)]]}, batch_times=times)
    found = [[(each["k"], each["t"]) for each in table.to_pylist()] for table in driven.tables()]
    assert found == [[], [], [("a", 5 * SECOND), ("b", 5 * SECOND)], [], [("b", 9 * SECOND)]]
    assert driven.dues == [5 * SECOND, 5 * SECOND, 9 * SECOND, 9 * SECOND, None], "epochs are made for them"


def test_the_end_is_told_behind_the_last_timer_of_batch_time() -> None:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        for each in rows:
            state.timer(each["t"] * SECOND, clock="batch")
        if state.fired is not None:
            yield {"k": key, "t": state.fired.at}

    stream = events() | hf.apply(
        fn, by="k", schema="k STRING, t BIGINT", timestamp="t", timers=["event", "batch"], name="alarms"
    )
    windows = stream | hf.aggregate(by="k", window=hf.tumbling(60 * SECOND), n=hf.count(), name="windows")
    times = [0, SECOND, 3 * SECOND, 9 * SECOND, 10 * SECOND]
    found = drive(windows, {"events": [[row("a", 2), row("a", 7)], [close()]]}, batch_times=times)
    assert [[each["n"] for each in rows] for rows in found] == [[], [], [], [2], []]


def test_a_timer_can_be_removed_and_one_of_the_same_time_is_the_same() -> None:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        for each in rows:
            state.timer(10)
            state.timer(each["t"] + 5)
            state.cancel(each["t"] + 4)
        if state.fired is not None:
            yield {"k": key, "t": state.fired.at}

    assert rung(fn, [[row("a", 1), row("b", 1)], [row("a", 2)], [bound(9)], [bound(11)]]) == [
        [], [], [("b", 6), ("a", 7)], [("a", 10), ("b", 10)]
    ]  # fmt: skip


@pytest.mark.slow
def test_a_key_that_waits_for_a_timer_is_not_forgotten() -> None:
    def fn(key: str, rows: Any, state: hf.KeyState) -> Any:
        if rows:
            state.set(n=len(rows))
            if key == "a":
                state.timer(50)
        elif state.fired:
            yield {"k": key, "t": state.get("n", 0)}

    epochs = [[row("a", 1), row("b", 1)], [], [], [bound(51)]]
    times = [0, 5 * SECOND, 20 * SECOND, 30 * SECOND]
    found = rung(fn, epochs, state="n BIGINT", forget_after="10 s", batch_times=times)
    assert found == [[], [], [], [("a", 1)]]


def test_times_are_those_of_the_column() -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    seen = []

    def fn(key: str, rows: Any, state: hf.KeyState) -> None:
        for each in rows:
            state.timer(each["at"] + timedelta(minutes=1))
        if state.fired is not None:
            seen.append(state.fired)

    given_ = hf.read.rows([], schema="k STRING, at TIMESTAMP", timestamp="at", name="events")
    stream = given_ | hf.apply(fn, by="k", schema="k STRING", timers="event", name="alarms")
    drive(stream, {"events": [[{"k": "a", "at": noon}], [bound(noon + timedelta(minutes=1))], [close()]]})
    assert [tuple(each) for each in seen] == [(noon + timedelta(minutes=1), "event")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "more", "text"),
    [
        (lambda key, rows, state: state.timer(5), {"timers": None}, 'was not given timers="event"'),
        (lambda key, rows, state: state.timer(5, clock="batch"), {}, "has no 'batch' timers"),
        (lambda key, rows, state: state.timer("5 s"), {}, "'5 s' is no time"),
        (lambda key, rows, state: state.timer(datetime(2026, 1, 1)), {}, "give ticks"),
        (lambda key, rows, state: state.timer(1 if state.fired is None else state.fired.at), {}, "for ever"),
    ],
)
def test_what_is_no_timer_stops_the_run_and_says_why(fn: Any, more: Any, text: str) -> None:
    with pytest.raises(InvalidPipeline, match=text):
        rung(fn, [[row("a", 1)], [bound(9)]], **more)


def test_arguments_that_go_by_nothing_are_refused() -> None:
    with pytest.raises(InvalidPipeline, match="names no clock"):
        hf.apply(ring(1), by="k", schema="k STRING", timers="wall")
    with pytest.raises(InvalidPipeline, match="are for event timers"):
        hf.apply(ring(1), by="k", schema="k STRING", timers="batch", disorder=3)
    timeless = hf.read.rows([], schema="k STRING", name="timeless")
    with pytest.raises(InvalidPipeline, match="no known timestamp column"):
        timeless | hf.apply(ring(1), by="k", schema="k STRING", timers="event")


def test_a_graph_without_timers_is_the_graph_that_it_was() -> None:
    plain = events() | hf.apply(ring(1), by="k", schema="k STRING", name="plain")
    assert set(plain.node.arguments()) == {"fn", "by", "schema", "state", "forget_after"}
