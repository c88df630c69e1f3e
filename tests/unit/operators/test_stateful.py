"""``stateful``: the user's step over a whole bucket."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful.spec import stateful
from holdfast.state.step import Change, StateTable
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive

TOTALS = "k STRING, n BIGINT, tags ARRAY<STRING>"
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])


def events():
    return hf.read.rows([], schema="k STRING, v BIGINT", name="events")


def sums(rows):
    summed = rows.group_by("k").aggregate([("v", "sum")])
    tags = pa.array([[]] * summed.num_rows, pa.list_(pa.string()))
    return pa.Table.from_arrays([summed.column("k"), summed.column("v_sum"), tags], schema=SCHEMA)


def whole(tables, rows, at):
    """Return the whole table."""
    new = sums(rows)
    if tables is not None:
        both = pa.concat_tables([tables["totals"], new]).group_by("k").aggregate([("n", "sum")])
        tags = pa.array([[]] * both.num_rows, pa.list_(pa.string()))
        new = pa.Table.from_arrays([both.column("k"), both.column("n_sum"), tags], schema=SCHEMA)
    return {"totals": new}, new.filter(pa.compute.is_in(new.column("k"), value_set=rows.column("k").combine_chunks()))


def changed(tables, rows, at):
    """Return only what changed."""
    _, out = whole(tables, rows, at)
    return {"totals": Change(out, out.select(["k"]).slice(0, 0))}, out


def frames(tables, rows, at):
    """Do the same in polars."""
    new = (
        pl.from_arrow(rows)
        .group_by("k", maintain_order=True)
        .agg(n=pl.col("v").sum(), tags=pl.lit([], pl.List(pl.String)))
    )
    if tables is not None:
        before = pl.from_arrow(tables["totals"]).select("k", old="n")
        new = new.join(before, on="k", how="left").select("k", n=pl.col("n") + pl.col("old").fill_null(0), tags="tags")
    return {"totals": Change(new.to_arrow(), None)}, new


def totals(step, **more):
    arguments = {"schema": TOTALS, "state": {"totals": TOTALS}, "name": "totals", **more}
    return events() | stateful(step, "k", **arguments)


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30)


@pytest.mark.slow
@pytest.mark.parametrize("step", [whole, changed, frames])
@given(ROWS, st.sets(st.integers(0, 30), max_size=4), st.integers(1, 3))
def test_state_carries_over_epochs_in_whole_tables_changes_and_frames(step, rows, cuts, buckets):
    borders = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    epochs = [[{"k": k, "v": v} for k, v in rows[a:b]] for a, b in pairwise(borders)]
    driven = Drive(totals(step), {"events": epochs}, buckets=buckets)
    driven.tables()
    kept = {
        row["k"]: row["n"] for data in driven.states.get("totals", []) for row in decode(data)["totals"].to_pylist()
    }
    assert kept == {key: sum(v for k, v in rows if k == key) for key in {k for k, _ in rows}}


def one(k, v):
    return {"k": k, "v": v}


def test_the_first_call_has_no_tables_and_an_epoch_without_rows_no_call():
    seen = []

    def note(tables, rows, at):
        seen.append((tables is None, rows.to_pydict(), at.epoch))
        return {"totals": sums(rows)}, None

    drive(totals(note), {"events": [[], [one("a", 1)], [], [one("b", 2)]]})
    assert seen == [(True, {"k": ["a"], "v": [1]}, 2), (False, {"k": ["b"], "v": [2]}, 4)]


def test_a_row_left_out_of_a_whole_table_is_deleted_and_an_equal_one_is_not_written():
    step = totals(lambda tables, rows, at: ({"totals": rows.select(["k"]).append_column("n", rows.column("v"))}, None),
                  state={"totals": "k STRING, n BIGINT"})  # fmt: skip
    driven = Drive(step, {"events": [[one("a", 1), one("b", 2), one("c", None)], [one("b", 2), one("c", 3)]]})
    driven.tables()
    assert decode(driven.states["totals"][0])["totals"].to_pydict() == {"k": ["b", "c"], "n": [2, 3]}


def test_rows_that_were_not_written_for_long_are_forgotten():
    stream = totals(changed, forget_after="10 s")
    epochs = [[one("a", 1), one("b", 1)], [one("b", 1)], [one("b", 1), one("a", 1)]]
    driven = Drive(stream, {"events": epochs}, batch_times=[0, 5_000_000, 10_000_000])
    assert {r["k"]: r["n"] for r in driven.tables()[-1].to_pylist()} == {"a": 1, "b": 3}
    assert driven.counts == {("totals", "forgotten"): 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given_back", "says"),
    [
        (None, "returned a NoneType"),
        (({}, {}), "returned a dict for its rows"),
        (([], None), "returned a list for its tables"),
        (({"other": None}, None), "the table 'other', which is not declared"),
        (
            (None, pa.table({"k": ["a"]})),
            r"declared: k string, n int64, tags list<element: string>; returned: k string\.",
        ),
        (({"totals": pa.table({"k": [1], "n": [1], "tags": [[""]]})}, None), "table 'totals' with another schema"),
        (({"totals": Change(None, pa.table({"n": [1]}))}, None), "the deletes of table 'totals' with another"),
        (({"totals": pa.Table.from_pylist([{"k": "a"}] * 2, SCHEMA)}, None), "two rows of one key"),
    ],
)
def test_a_wrong_schema_names_the_operator_and_both_schemas(given_back, says):
    with pytest.raises(InvalidPipeline, match=says) as failure:
        drive(totals(lambda tables, rows, at: given_back), {"events": [[one("a", 1)]]})
    assert "operator 'totals', bucket 0, epoch 1" in str(failure.value)


def test_a_step_that_raises_names_operator_bucket_epoch_and_first_rows():
    def fails(tables, rows, at):
        raise KeyError("n")

    with pytest.raises(InvalidPipeline) as failure:
        drive(totals(fails), {"events": [[], [one("a", 1), one("b", 2)]]})
    assert "operator 'totals', step" in str(failure.value)
    assert "raised KeyError in bucket 0 of epoch 2" in str(failure.value)
    assert "the first rows: k='a', v=1; k='b', v=2" in str(failure.value)


def test_a_null_key_is_a_bad_row():
    with pytest.raises(BadRow, match=r"operator 'totals'.*'k'"):
        drive(totals(whole), {"events": [[one(None, 1)]]})


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: totals(lambda rows: None), "cannot be called with"),
        (lambda: totals(whole, state={}), "declares no table"),
        (lambda: totals(whole, state={"totals": "n BIGINT"}), "'k', which does not exist"),
        (lambda: totals(whole, state={"totals": StateTable(SCHEMA, ("x",))}), "the key of state table 'totals'"),
        (lambda: events() | stateful(whole, "x", schema=TOTALS, state={"t": "x INT"}), "by= names the column 'x'"),
    ],
)
def test_what_cannot_work_says_why(build, says):
    with pytest.raises(InvalidPipeline, match=says):
        build()


def test_a_table_may_have_a_key_of_its_own():
    def log(tables, rows, at):
        stamped = rows.append_column("epoch", pa.repeat(pa.scalar(at.epoch), rows.num_rows))
        return {"log": Change(stamped, None)}, None

    key = StateTable(pa.schema([("k", pa.string()), ("v", pa.int64()), ("epoch", pa.int64())]), ("k", "epoch"))
    driven = Drive(totals(log, state={"log": key}), {"events": [[one("a", 1)], [one("a", 2)]]})
    driven.tables()
    assert decode(driven.states["totals"][0])["log"].num_rows == 2
