"""``limit_in_flight``: at most so many timestamps at a time, and the rest is shed at the entry."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful.limit_in_flight import limit_in_flight
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound
from tests.everyday import examples

SCHEMA = "camera STRING, t BIGINT"


def source(name, schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def at(*times, camera="a"):
    return [{"camera": camera, "t": t} for t in times]


def entry(n, frames, done=None, **more):
    """Return the stream of what is admitted, and what its sources give."""
    acknowledged = None if done is None else source("done")
    stream = source("frames") | limit_in_flight(n, "camera", done=acknowledged, name="entry", **more)
    return stream, {"frames": frames} if done is None else {"done": done, "frames": frames}


def run(n, frames, done=None, *, batch_times=None, **more):
    """Return the admitted times of each epoch, and the drive."""
    driven = Drive(*entry(n, frames, done, **more), batch_times=batch_times)
    admitted = [[row["t"] for row in table.to_pylist()] for table in driven.tables()]
    return admitted, driven


def test_a_frame_is_shed_while_n_are_in_flight_and_admitted_when_one_is_done():
    admitted, driven = run(2, [at(1, 2, 3), at(4), at(5, 6)], [[], at(1), at(4)])
    assert admitted == [[1, 2], [4], [5, 6]]
    assert driven.counts == {("entry", "shed"): 0, ("entry", "late"): 0}


def test_one_row_of_done_finishes_everything_up_to_its_time():
    assert run(2, [at(1, 2), at(3, 4, 5)], [[], at(2)])[0] == [[1, 2], [3, 4]]


@pytest.mark.slow
def test_a_bound_of_done_finishes_what_lies_below_it():
    assert run(1, [at(1), at(2), at(3)], [[], [bound(1, {"camera": "a"})], [bound(2, {"camera": "a"})]])[0] == [
        [1],
        [],
        [3],
    ]
    assert run(1, [at(1), at(2), at(3)], [[], [bound(1)], [bound(2)]])[0] == [[1], [], [3]]
    _, driven = run(1, [at(1)], [[], [bound(2)]])
    assert decode(driven.states["entry"][0])["in_flight"].num_rows == 0


def test_a_frame_in_flight_for_longer_than_the_timeout_counts_as_done():
    """The rule is strict: older than time minus timeout."""
    assert run(1, [at(10, 12, 15, 16, 20, 22)], timeout=5)[0] == [[10, 16, 22]]


@pytest.mark.slow
def test_rows_of_one_timestamp_share_its_fate():
    given = (1, [at(1, 1), at(1, 2, 2), at(2, 3)], [[], [], at(1)])
    assert run(*given)[0] == [[1, 1], [1], [3]]
    stream, sources = entry(*given)
    assert [row["t"] for row in drive(stream.shed, sources)[-1]] == [2]


def test_keys_have_limits_of_their_own():
    assert run(1, [at(1, 2) + at(1, 2, camera="b")], [[]])[0] == [[1, 1]]


def test_a_row_below_the_newest_is_late():
    given = (9, [at(5), at(4, 6)], [[], []])
    assert run(*given)[0] == [[5], [6]]
    stream, sources = entry(*given)
    (late,) = drive(stream.late, sources)[-1]
    assert late["reason"] == "timestamp 4 is below the bound 5 that follows from the newest of its key"
    assert late["rows"] == {"camera": "a", "t": 4}


def test_a_span_of_batch_time_admits_so_many():
    times = [0, 900_000, 1_000_000, 2_500_000]
    admitted, driven = run(2, [at(1), at(2, 3), at(4), at(5, 6, 7)], per="1 s", batch_times=times)
    assert admitted == [[1], [2], [4], [5, 6]]
    assert driven.counts["entry", "shed"] == 1


def test_a_silent_key_is_forgotten():
    times = [0, 10_000_000]
    admitted, driven = run(1, [at(5) + at(5, camera="b"), at(3)], [[], []], forget_after="10 s", batch_times=times)
    assert admitted == [[5, 5], [3]]
    assert driven.counts["entry", "forgotten"] == 2
    assert decode(driven.states["entry"][0])["in_flight"].to_pylist() == [{"camera": "a", "__ticks__": 3}]


def reference(events, n, timeout):
    """The flow limiter's rules, with a queue of 0, one event after the other."""
    flying: dict[str, list[int]] = {}
    newest: dict[str, int] = {}
    admitted = []
    for kind, camera, t in events:
        mine = flying.setdefault(camera, [])
        if kind == "done":
            mine[:] = [one for one in mine if one > t]
        elif t > newest.get(camera, -1):
            newest[camera] = t
            mine[:] = [one for one in mine if timeout is None or one >= t - timeout]
            if len(mine) < n:
                mine.append(t)
                admitted.append((camera, t))
    return admitted


EVENTS = st.lists(
    st.tuples(st.sampled_from(["frame", "frame", "done"]), st.sampled_from("ab"), st.integers(0, 30)), max_size=25
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(EVENTS, st.integers(1, 3), st.one_of(st.none(), st.integers(1, 10)), st.integers(1, 2))
def test_one_event_an_epoch_follows_the_rules_of_the_flow_limiter(events, n, timeout, buckets):
    events = sorted(events, key=lambda event: event[2])
    events = [one for one, after in pairwise([*events, None]) if one != after]
    seen = set()
    events = [one for one in events if one[0] == "done" or not (one in seen or seen.add(one))]
    stream = source("frames") | limit_in_flight(n, "camera", done=source("done"), timeout=timeout, name="entry")
    frames = [[{"camera": k, "t": t}] if kind == "frame" else [] for kind, k, t in events]
    done = [[{"camera": k, "t": t}] if kind == "done" else [] for kind, k, t in events]
    driven = Drive(stream, {"frames": frames, "done": done}, buckets=buckets)
    found = [(row["camera"], row["t"]) for table in driven.tables() for row in table.to_pylist()]
    assert found == reference(events, n, timeout)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=25), st.sets(st.integers(0, 25)))
def test_cutting_the_rows_into_epochs_changes_nothing_without_per(frames, cuts):
    rows = [{"camera": k, "t": t} for k, t in sorted(frames, key=lambda one: one[1])]
    borders = [0, *sorted(one for one in cuts if one < len(rows)), len(rows)]
    whole, _ = run(1, [rows], timeout=3)
    parts, _ = run(1, [rows[a:b] for a, b in pairwise(borders)], timeout=3)
    assert [t for epoch in parts for t in epoch] == whole[0]


def test_a_null_key_is_a_bad_row():
    with pytest.raises(BadRow, match=r"operator 'entry'.*input 'done'.*'camera'"):
        run(1, [[]], [at(1, camera=None)])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: limit_in_flight(0, "camera", timeout=1), "not a number of timestamps"),
        (lambda: limit_in_flight(1, "camera"), "nothing says when a timestamp is done"),
        (lambda: limit_in_flight(1, "camera", timeout=1, per="1 s"), "per= comes with"),
        (lambda: limit_in_flight(1, "camera", done="frames"), "a str and no stream"),
        (lambda: source("frames") | limit_in_flight(1, "lens", timeout=1), "'lens', which does not exist"),
        (lambda: run(1, [[]], timeout="1 s"), "does not fit the timestamp column 't'"),
        (
            lambda: Drive(
                source("frames") | limit_in_flight(1, "camera", done=source("done", "camera INT, t BIGINT")),
                {"frames": [], "done": []},
            ),
            "the stream done= does not fit",
        ),
    ],
)
def test_what_cannot_work_says_why(build, says):
    with pytest.raises(InvalidPipeline, match=says):
        build()
