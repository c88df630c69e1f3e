"""Joins without a limit, and joins whose range the left row gives (design/0060): against a reference by brute force."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.join.spec import HOWS, join
from holdfast.plan.warnings import start_warnings, waits_to_mind
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing import bound, close, drive, step_contract
from tests.everyday import examples

LEFT = "k STRING, t BIGINT, v BIGINT, opens BIGINT, closes BIGINT"
FAR = 10**6
EVER = {"within": (None, None)}
RANGES: dict[str, dict[str, Any]] = {
    "no limit": {"forget_after": None},
    "no limit as a pair": EVER,
    "before": {"within": (None, 0)},
    "after": {"within": (3, None)},
    "own columns": {"within": ("opens", "closes"), "forget_after": None},
    "own columns, not far": {"within": ("opens", "closes"), "forget_after": 9},
    "timestamp and column": {"within": ("t", "closes")},
    "distance and column": {"within": (-4, "closes")},
    "column and timestamp": {"within": ("opens", "t"), "forget_after": 9},
    "no limit and column": {"within": (None, "closes")},
    "column and no limit": {"within": ("opens", None), "forget_after": None},
}


def streams() -> tuple[hf.Stream, hf.Stream]:
    left = hf.read.rows([], schema=LEFT, timestamp="t", name="l")
    right = hf.read.rows([], schema="k STRING, at BIGINT, w BIGINT", timestamp="at", name="r")
    return left, right


def joined(how: str = "inner", **options: Any) -> hf.Stream:
    return join(*streams(), on="k", how=how, name="joined", **options)


def is_pair(one: dict[str, Any], other: dict[str, Any], limits: dict[str, Any]) -> bool:
    """By the definition: one key, and right's time within what the left row says."""
    if one["k"] is None or one["k"] != other["k"]:
        return False
    apart = limits.get("forget_after")
    if apart is not None and abs(other["at"] - one["t"]) > apart:
        return False
    low, high = limits.get("within", (None, None))
    ends = []
    for limit, otherwise in ((low, -FAR), (high, FAR)):
        end = otherwise if limit is None else one[limit] if isinstance(limit, str) else one["t"] + limit
        if end is None:
            return False
        ends.append(end)
    return bool(ends[0] <= other["at"] <= ends[1])


def reference(lefts: Any, rights: Any, how: str, limits: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = [(one, other) for one in lefts for other in rights if is_pair(one, other, limits)]
    with_left, with_right = [one for one, _ in pairs], [other for _, other in pairs]
    if how in ("semi", "anti"):
        return [one for one in lefts if (one in with_left) == (how == "semi")]
    rows = [
        {**one, "at": other["at"], "w": other["w"], "joined_time": max(one["t"], other["at"])} for one, other in pairs
    ]
    if how in ("left", "full"):
        rows += [{**one, "at": None, "w": None, "joined_time": one["t"]} for one in lefts if one not in with_left]
    if how in ("right", "full"):
        none = {"t": None, "v": None, "opens": None, "closes": None}
        rows += [{**none, **other, "joined_time": other["at"]} for other in rights if other not in with_right]
    return rows


def same(found: Any, expected: Any) -> None:
    def told(rows: Any) -> list[str]:
        return sorted(repr(sorted(row.items(), key=lambda item: item[0])) for row in rows)

    assert told(found) == told(expected)


TIMES, KEYS = st.integers(0, 30), st.sampled_from(["a", "b", None])
OPENS = st.one_of(st.none(), TIMES)
LEFTS = st.lists(st.tuples(KEYS, TIMES, OPENS, OPENS), max_size=20)
RIGHTS = st.lists(st.tuples(KEYS, TIMES), max_size=20)


def lefts_of(rows: Any) -> list[dict[str, Any]]:
    return [
        {"k": key, "t": time, "v": number, "opens": opens, "closes": closes}
        for number, (key, time, opens, closes) in enumerate(rows)
    ]


def rights_of(rows: Any) -> list[dict[str, Any]]:
    return [{"k": key, "at": time, "w": number} for number, (key, time) in enumerate(rows)]


def in_epochs(rows: Any, cuts: Any) -> list[list[Any]]:
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [list(rows[start:end]) for start, end in pairwise(borders)] + [[close()]]


@pytest.mark.slow
@pytest.mark.parametrize("limits", RANGES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data(), how=st.sampled_from(HOWS), lefts=LEFTS, rights=RIGHTS)
def test_it_is_the_reference_in_any_order_of_arrival_and_epochs(
    limits: str, data: Any, how: str, lefts: Any, rights: Any
) -> None:
    rows = {"l": lefts_of(lefts), "r": rights_of(rights)}
    epochs = {
        side: in_epochs(data.draw(st.permutations(of)), data.draw(st.lists(st.integers(0, 20), max_size=3)))
        for side, of in rows.items()
    }
    found = [row for epoch in drive(joined(how, disorder=30, **RANGES[limits]), epochs) for row in epoch]
    same(found, reference(rows["l"], rows["r"], how, RANGES[limits]))


EVENTS = st.lists(
    st.tuples(st.sampled_from("lr"), st.sampled_from("ab"), st.integers(0, 4), st.integers(-6, 9)), max_size=24
)


@pytest.mark.slow
@pytest.mark.parametrize("limits", RANGES)
@settings(max_examples=examples(20), deadline=None)
@given(how=st.sampled_from(HOWS), events=EVENTS, size=st.integers(1, 5))
def test_no_row_is_below_a_bound_whatever_the_pace_of_the_inputs(limits: str, how: str, events: Any, size: int) -> None:
    """The next operator goes by the bounds of the join's output: none of its rows may be late there."""
    at = {"l": 0, "r": 0}
    epochs: dict[str, list[list[Any]]] = {name: [[] for _ in range(0, len(events) + size, size)] for name in "lr"}
    for number, (name, key, step, width) in enumerate(events):
        at[name] += step
        row: dict[str, Any] = {"k": key, "at": at[name], "w": number}
        if name == "l":
            row = {"k": key, "t": at[name], "v": number, "opens": at[name] + width, "closes": at[name] + 2 * width}
        epochs[name][number // size].append(row)
    for name in "lr":
        epochs[name][-1].append(close())
    behind = joined(how, disorder=0, **RANGES[limits]) | hf.distinct(by="k", horizon=1, disorder=FAR, name="next")
    assert not any(drive(behind.late, epochs))


def rows_held(how: str, epochs: list[list[Any]], **options: Any) -> list[dict[str, int]]:
    """Return how many rows are in each state table after each epoch."""
    step = step_contract.step_of(joined(how, **options))
    state, held = tables.empty_state(step), []
    for number, events in enumerate(epochs):
        result = call(step, state, step_contract.arrivals_of(step, events), StepTime(number, 0), operator="joined")
        state = tables.apply_changes(state, step.tables, result.changes)
        held.append({name: table.num_rows for name, table in state.items() if table.num_rows and name != "inputs"})
    return held


def opened(key: str, time: int, closes: int | None) -> tuple[str, Any]:
    return ("left", {"k": key, "t": time, "v": 0, "opens": time, "closes": closes})


def test_a_row_is_dropped_at_its_own_end() -> None:
    """Both inputs pass 10, then 20, then 40: the row that closes at 15 goes first; one of right at its own time."""
    both = [("left", bound(10)), ("right", bound(10))]
    first = [opened("a", 5, 15), opened("b", 5, 30), ("right", {"k": "a", "at": 6, "w": 0}), *both]
    later = [[("left", bound(at)), ("right", bound(at))] for at in (20, 40)]
    held = rows_held("inner", [first, *later], within=("t", "closes"))
    assert held == [{"left": 2, "matched_left": 1}, {"left": 1}, {}]


def test_of_an_open_end_the_rows_for_which_it_is_one_are_kept_and_no_others() -> None:
    rows = [opened("a", 5, None), ("right", {"k": "a", "at": 4, "w": 0}), ("left", bound(FAR)), ("right", bound(FAR))]
    assert rows_held("inner", [rows], within=(None, 0)) == [{"right": 1, "matched_right": 1}]
    assert rows_held("inner", [rows], within=(0, None)) == [{"left": 1}]
    assert rows_held("inner", [rows], forget_after=None) == [
        {"left": 1, "matched_left": 1, "right": 1, "matched_right": 1}
    ]
    ends = [("left", close()), ("right", close())]
    assert rows_held("full", [rows, ends], forget_after=None)[1] == {}


@pytest.mark.parametrize("closes", [None, 4])
def test_a_row_whose_range_contains_nothing_leaves_alone_at_its_own_time(closes: int | None) -> None:
    row = {"k": "a", "t": 5, "v": 0, "opens": 5, "closes": closes}
    rights: list[list[Any]] = [[{"k": "a", "at": 5, "w": 0}, bound(5)], [bound(6)], [close()]]
    lefts: list[list[Any]] = [[row], [bound(7)], [close()]]
    found = drive(joined("left", within=("t", "closes")), {"l": lefts, "r": rights})
    assert [[row["w"] for row in epoch] for epoch in found] == [[], [None], []]


def test_times_at_both_ends_of_what_a_number_holds_are_pairs_without_a_limit() -> None:
    lefts = [{"k": "a", "t": -(2**63) + 2, "v": 0, "opens": 0, "closes": 0}]
    rights = [{"k": "a", "at": 2**63 - 3, "w": 0}]
    for limits in ({"forget_after": None}, EVER, {"within": (0, None)}):
        found = drive(joined(**limits), {"l": [lefts, [close()]], "r": [rights, [close()]]})
        assert [row["w"] for epoch in found for row in epoch] == [0]


def test_timestamps_with_a_unit_take_columns_and_durations_together() -> None:
    left = hf.read.rows([], schema="k INT, at TIMESTAMP, until TIMESTAMP", timestamp="at", name="l")
    right = hf.read.rows([], schema="k INT, seen TIMESTAMP", timestamp="seen", name="r")
    step = step_contract.step_of(join(left, right, on="k", within=("-1 min", "UNTIL"), name="joined"))
    within = step.within  # type: ignore[attr-defined]
    assert (within.low, within.high, within.begin, within.end) == (-60_000_000, None, None, "until")
    far = join(left, right, on="k", within=("until", None), forget_after="1 min", name="joined")
    within = step_contract.step_of(far).within  # type: ignore[attr-defined]
    assert (within.low, within.high, within.begin, within.end) == (-60_000_000, 60_000_000, "until", None)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing is said": ({}, "no limit in event time", "forget_after=None"),
    "one column": ({"within": "closes"}, "is one column", '"closes")'),
    "a column of right": ({"within": (0, "w")}, "the right stream has", "exchange the streams"),
    "no column": ({"within": (0, "ends")}, "'ends'", "did you mean"),
    "right is not limited": ({"within": ("opens", "closes")}, "how long rows of right", "forget_after="),
    "both": ({"within": (None, 4), "forget_after": 4}, "are both given", "None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_limits_are_refused_with_a_cure(case: str) -> None:
    limits, says, cure = WRONG[case]
    with pytest.raises(InvalidPipeline) as refused:
        joined(**limits)
    assert says in str(refused.value)
    assert cure in str(refused.value.do)


def test_a_limit_of_another_type_than_the_timestamps_is_refused() -> None:
    left = hf.read.rows([], schema="k STRING, t BIGINT, closes TIMESTAMP", timestamp="t", name="l")
    stream = join(left, streams()[1], on="k", within=(0, "closes"), name="joined")
    with pytest.raises(InvalidPipeline, match="names the column 'closes', which is of type timestamp") as refused:
        step_contract.step_of(stream)
    assert "CAST(closes AS BIGINT)" in str(refused.value.do)


def pipeline(stream: hf.Stream) -> hf.Pipeline:
    return hf.Pipeline("p", stream | hf.write.memory(name="out"))


def test_plan_says_which_rows_are_kept_and_by_how_much_the_state_grows_and_a_start_does_not() -> None:
    (said,) = waits_to_mind(pipeline(joined(forget_after=None, disorder=0)))
    assert "rows of left and right are kept until the streams end" in said
    assert "44 bytes and a text for a row of left and 28 bytes and a text for a row of right" in said
    assert start_warnings(pipeline(joined(forget_after=None, disorder=0))) == []
    (said,) = waits_to_mind(pipeline(joined(within=(None, "closes"), disorder=0)))
    assert "rows of right are kept" in said
    for limited in ({"within": ("t", "closes")}, {"within": ("opens", "closes"), "forget_after": 9}, {"within": 3}):
        assert waits_to_mind(pipeline(joined(disorder=0, **limited))) == []


@pytest.mark.parametrize(
    ("limits", "how", "says"),
    [
        ({"forget_after": None}, "left", "No disorder= is enough"),
        ({"within": ("t", "closes")}, "left", "the longest range of a row"),
        ({"within": ("t", "closes")}, "right", None),
        ({"within": ("opens", "closes"), "forget_after": 9}, "full", None),
        ({"forget_after": None}, "inner", None),
    ],
)
def test_an_operator_by_time_behind_rows_without_a_partner_is_warned_of(
    limits: dict[str, Any], how: str, says: str | None
) -> None:
    behind = joined(how, disorder=0, **limits) | hf.distinct(by="k", horizon=9, disorder=9, name="next")
    said = start_warnings(pipeline(behind))
    assert (says is None) == (not said)
    assert says is None or says in said[0]
