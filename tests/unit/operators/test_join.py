"""``hf.join``: against a reference by brute force, whatever the order of arrival and wherever epochs are cut."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.plan.pressure import pressure_of
from holdfast.state import tables
from holdfast.state.bucket_report import Pressure
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing import bound, close, drive, step_contract
from tests.everyday import examples

pytestmark = pytest.mark.slow

HOWS = ["inner", "left", "right", "full", "semi", "anti"]


def streams():
    left = hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="l")
    right = hf.read.rows([], schema="k STRING, t BIGINT, w BIGINT", timestamp="t", name="r")
    return left, right


def joined(how, within=(-2, 5), **options):
    return hf.join(*streams(), on="k", within=within, how=how, name="joined", **options)


def brute_force(lefts, rights, how, within):
    """Return the rows of a join, by the definition."""
    low, high = within
    pairs = [
        (one, other)
        for one in lefts
        for other in rights
        if one["k"] is not None and one["k"] == other["k"] and low <= other["t"] - one["t"] <= high
    ]
    with_left, with_right = [one for one, _ in pairs], [other for _, other in pairs]
    if how in ("semi", "anti"):
        return [one for one in lefts if (one in with_left) == (how == "semi")]
    rows = [
        {**one, "t_right": other["t"], "w": other["w"], "joined_time": max(one["t"], other["t"])}
        for one, other in pairs
    ]
    if how in ("left", "full"):
        rows += [{**one, "t_right": None, "w": None, "joined_time": one["t"]} for one in lefts if one not in with_left]
    if how in ("right", "full"):
        rows += [
            {"k": other["k"], "t": None, "v": None, "t_right": other["t"], "w": other["w"], "joined_time": other["t"]}
            for other in rights
            if other not in with_right
        ]
    return rows


def same(found, expected):
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def rows_of(side, keys, times):
    value = "v" if side == "l" else "w"
    return [{"k": key, "t": time, value: number} for number, (key, time) in enumerate(zip(keys, times, strict=True))]


def in_epochs(rows, cuts):
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [rows[start:end] for start, end in pairwise(borders)] + [[close()]]


keys = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=25)


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from(HOWS), st.sampled_from([(-2, 5), (0, 0), (0, 9), (-9, 0), (2, 6), (-6, -2)]))
def test_it_is_the_reference_in_any_order_of_arrival_and_epochs(data, how, within):
    given_rows, epochs = {}, {}
    for side in "lr":
        chosen = data.draw(keys)
        times = data.draw(st.lists(st.integers(0, 30), min_size=len(chosen), max_size=len(chosen)))
        given_rows[side] = rows_of(side, chosen, times)
        arriving = data.draw(st.permutations(given_rows[side]))
        epochs[side] = in_epochs(list(arriving), data.draw(st.lists(st.integers(0, 25), max_size=3)))
    stream = joined(how, within, disorder=30)
    found = [row for epoch in drive(stream, epochs) for row in epoch]
    same(found, brute_force(given_rows["l"], given_rows["r"], how, within))


def rows_out(stream, epochs):
    return [[tuple(row.values()) for row in epoch] for epoch in drive(stream, epochs)]


def test_a_pair_leaves_when_both_streams_are_past_it_and_keys_that_occur_once_are_released():
    orders = [[{"k": "a", "t": 1, "v": 0}], [{"k": "b", "t": 4, "v": 1}], [{"k": "c", "t": 9, "v": 2}]]
    payments = [[{"k": "a", "t": 3, "w": 0}], [{"k": "b", "t": 5, "w": 1}], [{"k": "c", "t": 9, "w": 2}]]
    found = rows_out(joined("inner"), {"l": orders, "r": payments})
    assert found == [[], [("a", 1, 0, 3, 0, 3)], [("b", 4, 1, 5, 1, 5)]]


def test_a_row_without_a_partner_leaves_by_the_bound_of_the_other_stream_alone():
    found = rows_out(joined("left"), {"l": [[{"k": "a", "t": 1, "v": 0}]], "r": [[bound(6)], [bound(7)]]})
    assert found == [[], [("a", 1, 0, None, None, 1)]]


def test_rows_below_the_bound_are_late_and_in_no_pair():
    stream = joined("full", disorder={"left": 2})
    lefts = [[{"k": "a", "t": 9, "v": 0}, {"k": "a", "t": 7, "v": 1}, {"k": "a", "t": 6, "v": 2}], [close()]]
    epochs: dict[str, Any] = {"l": lefts, "r": [[{"k": "a", "t": 6, "w": 0}], [close()]]}
    assert [row["v"] for epoch in drive(stream, epochs) for row in epoch if row["w"] is not None] == [1]
    (late,) = [row for epoch in drive(stream.late, epochs) for row in epoch]
    assert (late["input"], late["left"]["v"]) == ("left", 2)
    assert late["reason"] == "timestamp 6 is below the bound 7 of left"


@pytest.mark.parametrize(("how", "expected"), [("inner", ["b", None, "d"]), ("semi", ["b", None])])
def test_rows_without_a_partner_are_a_side_output(how, expected):
    lefts = rows_of("l", ["a", "b", None], [1, 2, 3])
    rights = rows_of("r", ["a", "d"], [2, 30])
    found = drive(joined(how).unmatched, {"l": [lefts, [close()]], "r": [rights, [close()]]})
    assert [row["k"] for epoch in found for row in epoch] == expected


def test_keys_of_other_names_are_there_once_under_the_name_of_left():
    left = hf.read.rows([], schema="id BIGINT, t BIGINT", timestamp="t", name="l")
    right = hf.read.rows([], schema="t BIGINT, order_id BIGINT, w BIGINT", timestamp="t", name="r")
    stream = hf.join(left, right, on={"id": "order_id"}, forget_after=5, suffix="_paid", name="joined")
    assert stream.columns == ("id", "t", "t_paid", "w", "joined_time")
    epochs = {"l": [[{"id": 1, "t": 2}], [close()]], "r": [[{"order_id": 1, "t": 4, "w": 7}], [close()]]}
    assert [row for epoch in rows_out(stream, epochs) for row in epoch] == [(1, 2, 4, 7, 4)]


def test_timestamps_with_a_unit_take_durations():
    left = hf.read.rows([], schema="k INT, at TIMESTAMP", timestamp="at", name="l")
    right = hf.read.rows([], schema="k INT, seen TIMESTAMP", timestamp="seen", name="r")
    stream = hf.join(left, right, on="k", within=("-1 min", "2 h"), disorder="5 s", name="joined")
    spec = stream.node.spec
    schemas = {"left": left.node.spec.schema, "right": right.node.spec.schema}
    step = spec.step(schemas)
    assert (step.within.low, step.within.high, {name: one.disorder for name, one in step.promises.items()}) == (
        -60_000_000,
        7_200_000_000,
        {"left": 5_000_000, "right": 5_000_000},
    )


def test_state_is_bounded_by_the_range():
    step = step_contract.step_of(joined("full", (-20, 20)))
    state = tables.empty_state(step)
    for number in range(50):
        times = range(number * 10, number * 10 + 10)
        events = [("left", row) for row in rows_of("l", [str(number)] * 10, times)]
        events += [("right", row) for row in rows_of("r", [str(number)] * 10, times)]
        result = call(step, state, step_contract.arrivals_of(step, events), StepTime(number, 0), operator="joined")
        state = tables.apply_changes(state, step.tables, result.changes)
        assert sum(table.num_rows for table in state.values()) < 200


def test_the_input_that_runs_ahead_is_held_once_too_many_rows_wait_for_the_other():
    step = step_contract.step_of(joined("inner", max_waiting_rows=30))
    events = [("left", row) for row in rows_of("l", map(str, range(40)), range(40))]
    events += [("right", row) for row in rows_of("r", ["a"], [3])]
    arrivals = step_contract.arrivals_of(step, events)
    result = call(step, tables.empty_state(step), arrivals, StepTime(0, 0), operator="joined")
    state = tables.apply_changes(tables.empty_state(step), step.tables, result.changes)
    assert pressure_of(step, state) == Pressure(38, ("left",), ("right",))


def test_another_kind_of_join_has_the_same_tables_where_a_start_continues_its_state():
    of = {how: step_contract.step_of(joined(how, (-1, 9))).tables for how in HOWS}
    assert of["inner"] == of["left"] == of["right"] == of["full"] != of["semi"] == of["anti"]


@pytest.mark.parametrize(
    ("how", "within", "expected"),
    [("left", (-2, 5), ["b"]), ("inner", (-2, 20), ["b"]), ("inner", (-2, 5), []), ("full", (0, 0), ["b", "b"])],
)
def test_changed_arguments_hold_for_the_rows_in_the_state(how, within, expected):
    """Row a has left with its partner as a pair before the change, and stays for others; b has met none."""
    before, after = (step_contract.step_of(joined(*of)) for of in (("inner", (-2, 5)), (how, within)))
    rows: list[Any] = [("left", {"k": key, "t": 10, "v": 0}) for key in "ab"] + [("right", {"k": "a", "t": 10, "w": 0})]
    rows += [("left", bound(11)), ("right", bound(11))]
    state = tables.empty_state(before)
    result = call(before, state, step_contract.arrivals_of(before, rows), StepTime(0, 0), operator="joined")
    assert result.outputs["rows"].column("k").to_pylist() == ["a"]
    state = tables.apply_changes(state, before.tables, result.changes)
    rows = [("right", {"k": "b", "t": 25, "w": 0}), ("left", bound(99)), ("right", bound(99))]
    result = call(after, state, step_contract.arrivals_of(after, rows), StepTime(1, 0), operator="joined")
    assert result.outputs["rows"].column("k").to_pylist() == expected


WRONG = {
    "no limit": (lambda left, right: hf.join(left, right, on="k"), "no limit in event time"),
    "both limits": (lambda left, right: hf.join(left, right, on="k", within=1, forget_after=1), "are both given"),
    "how": (lambda left, right: hf.join(left, right, on="k", within=1, how="outer"), "no kind of join"),
    "column": (lambda left, right: hf.join(left, right, on="x", within=1), "'x'"),
    "twice": (lambda left, right: hf.join(left, left, on="k", within=1), "is given twice"),
    "no stream": (lambda left, right: hf.join(left, "right", on="k", within=1), "right stream"),
    "time": (lambda left, right: hf.join(left, right, on="k", within=1, timestamp="v"), "column 'v'"),
    "input": (lambda left, right: hf.join(left, right, on="k", within=1, disorder={"l": 1}), "'l'"),
    "three": (lambda left, right: hf.join(left, right, on="k", within=(1, 2, 3)), "is not a range"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused_with_a_cure(case):
    build, says = WRONG[case]
    with pytest.raises(InvalidPipeline) as refused:
        build(*streams())
    assert says in str(refused.value)
    assert refused.value.do


def test_types_that_differ_are_refused():
    left = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="l")
    right = hf.read.rows([], schema="k BIGINT, t BIGINT", timestamp="t", name="r")
    spec = hf.join(left, right, on="k", within=1, name="joined").node.spec
    with pytest.raises(InvalidPipeline, match="the key 'k' of right is int64, of left 'k' is string"):
        spec.step({"left": left.node.spec.schema, "right": right.node.spec.schema})
    spec = hf.join(*streams(), on="k", within=(2, 1), name="joined").node.spec
    with pytest.raises(InvalidPipeline, match="contains nothing"):
        spec.step({name: stream.node.spec.schema for name, stream in zip(("left", "right"), streams(), strict=True)})
