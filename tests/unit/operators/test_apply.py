"""``apply``: a function per key with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.operators.stateful.apply import apply
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive

OUT = "origin STRING, n BIGINT, total DOUBLE"


def flights(schema="origin STRING, dest STRING, delay DOUBLE"):
    return hf.read.rows([], schema=schema, name="flights")


def row(origin, delay=1.0, dest="LAX"):
    return {"origin": origin, "dest": dest, "delay": delay}


def running(key, rows, state):
    for one in rows:
        state.set(n=state.get("n", 0) + 1, total=state.get("total", 0.0) + one["delay"])
        yield {"origin": key, "n": state.get("n"), "total": state.get("total")}


def totals(fn=running, by="origin", **more):
    given_ = {"state": "n BIGINT, total DOUBLE", "schema": OUT, "name": "totals", **more}
    return flights() | apply(fn, by, **given_)


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30)


@pytest.mark.slow
@given(ROWS, st.sets(st.integers(0, 30)), st.integers(1, 3))
def test_state_carries_over_epochs_however_they_are_cut(rows, cuts, buckets):
    borders = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    epochs = [[row(k, float(v)) for k, v in rows[a:b]] for a, b in pairwise(borders)]
    found = [one for epoch in drive(totals(), {"flights": epochs}, buckets=buckets) for one in epoch]
    counts: dict[str, tuple[int, float]] = {}
    expected = []
    for k, v in rows:
        n, total = counts.get(k, (0, 0.0))
        counts[k] = (n + 1, total + v)
        expected.append({"origin": k, "n": n + 1, "total": total + v})
    for k in "abc":
        assert [one for one in found if one["origin"] == k] == [one for one in expected if one["origin"] == k]


def test_keys_are_called_in_the_order_of_their_first_row_with_their_rows_in_order():
    seen = []

    def note(key, rows, state):
        seen.append((key, [one["delay"] for one in rows]))

    assert drive(totals(note), {"flights": [[row("b", 1), row("a", 2), row("b", 3)]]}) == [[]]
    assert seen == [("b", [1.0, 3.0]), ("a", [2.0])]


def test_a_list_of_key_columns_gives_a_tuple():
    def note(key, rows, state):
        return [{"origin": repr(key)}]

    for by, shown in (("origin", "'a'"), (["origin"], "('a',)"), (["dest", "origin"], "('LAX', 'a')")):
        assert [r["origin"] for r in drive(totals(note, by), {"flights": [[row("a")]]})[0]] == [shown]


def test_without_state_nothing_is_kept():
    def note(key, rows, state):
        assert state.is_empty
        return [{"origin": key, "n": len(rows)}]

    assert (
        drive(totals(note, state=None), {"flights": [[row("a")], [row("a")]]})
        == [[{"origin": "a", "n": 1, "total": None}]] * 2
    )


def test_a_cleared_key_leaves_no_row_of_state():
    def flip(key, rows, state):
        if state.is_empty:
            state.set(n=1)
        else:
            state.clear()

    driven = Drive(totals(flip), {"flights": [[row("a"), row("b")], [row("a")]]})
    driven.tables()
    assert [r["origin"] for r in decode(driven.states["totals"][0])["keys"].to_pylist()] == ["b"]


def test_a_key_without_rows_for_long_is_forgotten_and_counted():
    stream = totals(forget_after="10 s")
    epochs = [[row("a"), row("b")], [row("b")], [row("b"), row("a")]]
    driven = Drive(stream, {"flights": epochs}, batch_times=[0, 5_000_000, 10_000_000])
    last = driven.tables()[-1].to_pylist()
    assert {r["origin"]: r["n"] for r in last} == {"b": 3, "a": 1}
    assert driven.counts["totals", "forgotten"] == 1
    idle = Drive(stream, {"flights": epochs[:1]}, batch_times=[0, 9_999_999, 10_000_000])
    assert idle.tables()[0].num_rows == 2
    assert decode(idle.states["totals"][0])["keys"].num_rows == 0


def test_the_only_clock_is_the_batch_time():
    def note(key, rows, state):
        return [{"origin": key, "n": state.at.batch_us}]

    found = drive(totals(note), {"flights": [[row("a")], [row("a")]]}, batch_times=[7, "1970-01-01T00:00:01"])
    assert [rows[0]["n"] for rows in found] == [7, 1_000_000]


def test_what_raises_names_operator_bucket_epoch_key_and_first_rows():
    def fails(key, rows, state):
        return [{"n": 1 // (key != "bad")}]

    with pytest.raises(InvalidPipeline) as failure:
        drive(totals(fails), {"flights": [[row("a")], [row("a"), row("bad", 7.5)]]})
    text = str(failure.value)
    assert "operator 'totals'" in text
    assert "for key 'bad', raised ZeroDivisionError in bucket 0 of epoch 2" in text
    assert "the first rows: origin='bad', dest='LAX', delay=7.5" in text
    assert "test_apply.py:" in text
    assert failure.value.epoch == 2


def test_a_system_that_does_not_answer_may_answer_next_time():
    def fails(key, rows, state):
        raise TimeoutError("no answer")

    with pytest.raises(Unavailable, match="TimeoutError"):
        drive(totals(fails), {"flights": [[row("a")]]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given_back", "says"),
    [
        ([{"origin": "a", "m": 1}], "has the column 'm', which is not declared"),
        ([{"n": "many"}], r"does not fit the declared column n int64.\n.*'many'"),
        ([3], "fn gave 3, a int"),
        (5, "'int' object is not iterable"),
    ],
)
def test_what_fn_gives_must_fit(given_back, says):
    with pytest.raises(InvalidPipeline, match=says) as failure:
        drive(totals(lambda key, rows, state: given_back), {"flights": [[row("a")]]})
    assert "'totals'" in str(failure.value)


def test_what_fn_sets_must_fit():
    def wrong_type(key, rows, state):
        state.set(n="x")

    def unknown(key, rows, state):
        state.set(m=1)

    with pytest.raises(InvalidPipeline, match="what fn set in the state does not fit the declared column n int64"):
        drive(totals(wrong_type), {"flights": [[row("a")]]})
    with pytest.raises(InvalidPipeline, match="the state has no 'm'; it is declared with n, total"):
        drive(totals(unknown), {"flights": [[row("a")]]})


def test_a_null_key_is_a_bad_row():
    with pytest.raises(BadRow, match=r"operator 'totals'.*'origin'"):
        drive(totals(), {"flights": [[row(None)]]})


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: totals(lambda key, rows: None), "cannot be called with"),
        (lambda: totals(by="orgin"), "did you mean 'origin'"),
        (lambda: totals(schema="no schema at all,"), "schema"),
        (lambda: totals(forget_after="soon"), "forget_after='soon'"),
        (lambda: totals(timestamp="n2"), "'n2', which does not exist"),
        (lambda: drive(totals(state="ORIGIN BIGINT"), {"flights": []}), "part of the key"),
    ],
)
def test_what_cannot_work_says_why(build, says):
    with pytest.raises(InvalidPipeline, match=says):
        build()


def test_its_arguments_change_with_its_code():
    one, other = (totals(fn).node.spec for fn in (running, lambda key, rows, state: None))
    assert isinstance(one.arguments(), Mapping)
    assert one.arguments() != other.arguments()
