"""``distinct``: the first to arrive stays, within a horizon of event time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful.distinct import distinct
from holdfast.state.step import BOUND, PLACE, Arrivals, StepTime
from holdfast.state.tables import apply_changes, bounds_schema, empty_state
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close

SCHEMA = "k STRING, t BIGINT, n INT"


def events(schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name="events")


def row(k, t, n=0):
    return {"k": k, "t": t, "n": n}


def kept(epochs, horizon=10, disorder=1000, **more):
    stream = events() | distinct("k", horizon, disorder=disorder, name="once")
    return [[(r["k"], r["t"]) for r in rows] for rows in drive(stream, {"events": epochs}, **more)]


def test_a_row_less_than_the_horizon_away_is_dropped_on_both_sides():
    assert kept([[row("a", 100), row("a", 109), row("a", 91), row("b", 100), row("a", 110), row("a", 90)]]) == [
        [("a", 100), ("b", 100), ("a", 110), ("a", 90)]
    ]


def test_a_dropped_row_does_not_prolong_the_horizon():
    assert kept([[row("a", 0)], [row("a", 9)], [row("a", 12)]]) == [[("a", 0)], [], [("a", 12)]]


def reference(rows, horizon, disorder):
    newest, known, stays, late = None, {}, [], []
    for k, t in rows:
        if newest is not None and t < newest - disorder:
            late.append((k, t))
            continue
        newest = t if newest is None else max(newest, t)
        if all(abs(t - s) >= horizon for s in known.setdefault(k, [])):
            known[k].append(t)
            stays.append((k, t))
    return stays, late


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(-60, 60)), max_size=40)


@pytest.mark.slow
@given(ROWS, st.integers(1, 30), st.integers(0, 80), st.sets(st.integers(0, 40)), st.integers(1, 3))
def test_however_the_rows_are_cut_the_result_is_that_of_one_row_after_the_other(rows, horizon, disorder, cuts, buckets):
    borders = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    epochs = [[row(k, t) for k, t in rows[a:b]] for a, b in pairwise(borders)]
    stays, late = reference(rows, horizon, disorder)
    assert [one for epoch in kept(epochs, horizon, disorder) for one in epoch] == stays
    if disorder == 80 or not late:
        several = [one for epoch in kept(epochs, horizon, 200, buckets=buckets) for one in epoch]
        assert sorted(several) == sorted(reference(rows, horizon, 200)[0])


def test_late_rows_go_to_late_with_the_reason_and_are_counted():
    stream = events() | distinct("k", 5, disorder=10, name="once")
    drive_ = Drive(stream, {"events": [[row("a", 100), row("b", 89, 7), row("b", 90)]]})
    assert [r["t"] for r in drive_.tables()[0].to_pylist()] == [100, 90]
    assert drive_.counts == {("once", "late"): 1, ("once", "dropped"): 0}
    step = stream.node.spec.step({"rows": pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int32())])})
    rows = pa.table({"k": ["a", "b"], "t": [100, 89], "n": pa.array([1, 7], pa.int32()), PLACE: [0, 1]})
    late = step.apply(empty_state(step), {"rows": Arrivals(rows, no_bounds(step))}, StepTime(0, 0)).outputs["late"]
    assert late.to_pylist() == [
        {
            "k": "b",
            "timestamp": 89,
            "input": "rows",
            "reason": "timestamp 89 is below the bound 90 of the input",
            "rows": {"k": "b", "t": 89, "n": 7},
        }
    ]


def no_bounds(step):
    return bounds_schema(step.key).append(pa.field(PLACE, pa.int64())).empty_table()


def test_a_bound_for_all_keys_forgets_what_cannot_matter_any_more():
    stream = events() | distinct("k", 10, disorder=1000, name="once")
    states = Drive(stream, {"events": [[row("a", 100), row("b", 105)], [bound(112)]]})
    states.tables()
    assert state_of(states)["kept"].to_pylist() == [{"k": "b", "__ticks__": 105}]


def state_of(driven):
    from holdfast.state.tables import decode

    return decode(driven.states["once"][0])


@pytest.mark.slow
def test_state_is_forgotten_behind_horizon_and_disorder():
    stream = events() | distinct("k", 10, disorder=5, name="once")
    one = Drive(stream, {"events": [[row(f"k{t}", t)] for t in range(100)]})
    one.tables()
    assert state_of(one)["kept"].num_rows == 15


def test_a_row_behind_an_explicit_bound_is_late():
    stream = events() | distinct("k", 10, disorder=1000, name="once")
    one = Drive(stream, {"events": [[bound(50), row("a", 49), row("a", 50), close()]]})
    assert [r["t"] for r in one.tables()[0].to_pylist()] == [50]
    assert one.counts["once", "late"] == 1


@pytest.mark.slow
def test_a_key_with_very_many_rows_that_stay():
    times = np.random.default_rng(7).permutation(5000) * 3
    found = kept([[row("a", int(t)) for t in times]], horizon=4, disorder=10**6)
    assert found == [reference([("a", int(t)) for t in times], 4, 10**6)[0]]


def test_timestamps_take_durations_with_units():
    stream = hf.read.rows([], schema="k STRING, t TIMESTAMP", timestamp="t", name="events")
    step = (stream | distinct("k", "1 h", name="once")).node.spec.step(
        {"rows": pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])}
    )
    assert (step.horizon, step.disorder) == (3_600_000_000, 3_600_000_000)


def test_a_null_key_or_timestamp_is_a_bad_row():
    with pytest.raises(BadRow, match=r"operator 'once', bucket 0, epoch 2: 1 row\(s\) of input 'rows' .* in 'k'"):
        kept([[], [row(None, 1)]])
    with pytest.raises(BadRow, match=r"in 't'.*\n.*k='a', t=None, n=0"):
        kept([[row("a", None)]])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: events() | distinct("x", 10), "'x', which does not exist"),
        (lambda: events() | distinct([], 10), "does not name columns"),
        (lambda: events() | distinct("k", "soon"), "horizon='soon' is not a number with a unit"),
        (lambda: events() | distinct("k", 0), "too small"),
        (lambda: events() | distinct("k", 1.5), "not a duration"),
        (lambda: hf.read.rows([], schema=SCHEMA, name="e") | distinct("k", 1), "no known timestamp"),
        (lambda: drive(events() | distinct("k", "1 s"), {"events": []}), "does not fit the timestamp column 't'"),
        (lambda: drive(events("k INT, t INT") | distinct("k", 1), {"events": []}), "type int32"),
        (lambda: drive(events("k ARRAY<INT>, t BIGINT") | distinct("k", 1), {"events": []}), "plain value"),
    ],
)
def test_what_cannot_work_says_why(build, says):
    with pytest.raises(InvalidPipeline, match=says):
        build()


def test_a_replay_gives_equal_tables():
    step = (events() | distinct("k", 10, disorder=5, name="once")).node.spec.step(
        {"rows": pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int32())])}
    )
    rows = pa.table({"k": ["a", "b", "a"], "t": [1, 2, 30], "n": pa.array([1, 2, 3], pa.int32()), PLACE: [0, 1, 2]})
    given_ = {"rows": Arrivals(rows, no_bounds(step))}
    first, again = (step.apply(empty_state(step), given_, StepTime(0, 0)) for _ in range(2))
    assert first == again
    assert apply_changes(empty_state(step), step.tables, first.changes)["kept"].to_pylist() == [
        {"k": "a", "__ticks__": 30}
    ]
    assert BOUND not in first.outputs["rows"].schema.names
