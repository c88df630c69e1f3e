"""``hf.policy.custom``: a function of the user's says which of what waits leaves now, and is held to its promise."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.sync import policy as policies
from holdfast.operators.sync import report as sync_report
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing import bound, drive
from holdfast.testing import close as ended
from tests.unit.operators.sync_driver import Drive, arrivals_of, close, run, step_of

GAP = 6
WAITS, DROPS = policies.WAITS, policies.DROPS


def bursts(waiting: policies.WaitingRows, gap: int = GAP) -> Any:
    """Rows of any inputs less than a gap apart are one set, at the time of the last."""
    begins = np.ones(len(waiting.at), bool)
    begins[1:] = (np.diff(waiting.key) != 0) | (np.diff(waiting.at) >= gap)
    ends = np.append(np.flatnonzero(begins), len(begins))[1:] - 1
    last = waiting.at[ends][np.cumsum(begins) - 1]
    return np.where(last + gap <= waiting.settled[waiting.key], last, WAITS)


def quorum(waiting: policies.WaitingRows) -> Any:
    """A timestamp leaves as soon as two inputs have a row there; below it nothing waits any longer."""
    begins = np.ones(len(waiting.at), bool)
    begins[1:] = (np.diff(waiting.key) != 0) | (np.diff(waiting.at) != 0)
    group = np.cumsum(begins) - 1
    has_enough = np.bincount(group)[group] >= 2
    reached = np.full(len(waiting.bounds), DROPS)
    np.maximum.at(reached, waiting.key[has_enough], waiting.at[has_enough])
    return np.where(has_enough, waiting.at, np.where(waiting.at < reached[waiting.key], DROPS, WAITS))


BURSTS = policies.custom(bursts, delay=GAP, many=True)


def row(name: str, at: int, value: int = 0, key: str = "x") -> tuple[Any, ...]:
    return (name, "row", key, at, value)


def values_of(drive: Drive) -> list[Any]:
    return [
        (found["k"], found["timestamp"], *[[one["v"] for one in found[name] or ()] for name in ("a", "b")])
        for found in drive.rows
    ]


def source(name: str) -> hf.Stream:
    return hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name=name)


def test_a_set_is_what_the_function_says_and_leaves_when_it_says_so() -> None:
    ran = run(
        step_of(("a", "b"), BURSTS),
        [
            [row("a", 1, 10), row("b", 3, 30), row("a", 5, 50)],  # b may still bring 4: the burst goes on
            [row("b", 8, 80), row("a", 20, 200)],  # 8 belongs to it, and b holds up what follows
            [row("b", 30, 300)],
        ],
    )
    assert values_of(ran) == [("x", 8, [10, 50], [30, 80])]
    ran.epoch_of([("a", "bound", None, 100), ("b", "bound", None, 100)])
    assert values_of(ran)[1:] == [("x", 20, [200], []), ("x", 30, [], [300])]


def test_keys_are_judged_by_themselves_and_bounds_of_one_hold_nobody_else_up() -> None:
    ran = run(
        step_of(("a", "b"), BURSTS),
        [[row("a", 1, 1, "x"), row("a", 2, 2, "y")], [("a", "bound", "y", 50), ("b", "bound", "y", 50)]],
    )
    assert values_of(ran) == [("y", 2, [2], [])]


def test_one_row_of_each_input_is_a_struct_with_its_own_timestamp() -> None:
    ran = run(step_of(("a", "b"), policies.custom(bursts, delay=GAP)), [[row("a", 1, 10), row("b", 3, 30)]])
    ran.epoch_of([close("a"), close("b")])
    assert ran.rows == [{"k": "x", "timestamp": 3, "a": {"t": 1, "v": 10}, "b": {"t": 3, "v": 30}}]


def test_the_function_sees_rows_by_key_time_input_and_arrival_with_all_their_columns() -> None:
    seen: list[Any] = []

    def look(waiting: policies.WaitingRows) -> Any:
        columns = [waiting.rows(name).column("v").to_pylist() for name in waiting.inputs]
        names = waiting.rows("a").column_names
        seen.append((waiting.key.tolist(), waiting.at.tolist(), waiting.input.tolist(), waiting.arrived.tolist()))
        seen.append((waiting.inputs, columns, names, waiting.bounds.tolist()))
        assert not waiting.at.flags.writeable
        return np.full(len(waiting.at), WAITS)

    step = step_of(("a", "b"), policies.custom(look))
    run(step, [[row("b", 4, 1, "y"), row("a", 9, 2, "x"), row("b", 4, 3, "x"), row("a", 4, 4, "y")]])
    assert seen[0] == ([0, 0, 1, 1], [4, 9, 4, 4], [1, 0, 0, 1], [2, 1, 3, 0])
    assert seen[1] == (("a", "b"), [[2, 4], [3, 1]], ["k", "t", "v"], [[10, 5], [5, 5]])


def test_what_it_drops_goes_to_late_with_the_policy_as_reason() -> None:
    ran = run(
        step_of(("a", "b", "c"), policies.custom(quorum)),
        [[row("a", 1, 1)], [row("a", 2, 2), row("b", 2, 3)], [row("c", 2, 4)], [row("b", 9, 5), row("c", 9, 6)]],
    )
    assert [(found["timestamp"], found["a"], found["c"]) for found in ran.rows] == [
        (2, {"t": 2, "v": 2}, None),
        (9, None, {"t": 9, "v": 6}),
    ]
    assert [(found["timestamp"], found["input"]) for found in ran.late] == [(1, "a"), (2, "c")]
    assert {found["reason"] for found in ran.late} == {"custom: quorum lets it leave in no set"}
    assert ran.counts["dropped"] == 2


def test_what_still_waits_when_every_input_has_ended_is_late_and_waits_no_more() -> None:
    def never(waiting: policies.WaitingRows) -> Any:
        return np.full(len(waiting.at), WAITS)

    ran = run(step_of(("a", "b"), policies.custom(never)), [[row("a", 1)], [close("a")], [close("b")]])
    assert ran.rows == []
    assert [found["timestamp"] for found in ran.late] == [1]
    assert ran.counts["waiting_rows"] == 0


def test_operators_behind_are_told_bounds_that_every_later_set_keeps() -> None:
    step = step_of(("a", "b"), BURSTS)
    ran = run(step, [[row("a", 10), row("b", 12)], [row("a", 30), row("b", 40)]])
    of_key = [found["__bound__"] for found in ran.bounds if found["k"] == "x"]
    assert of_key == [11 - GAP, 31 - GAP]
    assert [found["timestamp"] for found in ran.rows] == [12]


def test_without_a_delay_operators_behind_are_told_the_end_alone() -> None:
    ran = run(
        step_of(("a", "b"), policies.custom(bursts, many=True)),
        [[row("a", 10), row("b", 12)], [close("a"), close("b")]],
    )
    assert [(found["k"], found["__bound__"]) for found in ran.bounds] == [(None, 2**63 - 1)]


@pytest.mark.slow
def test_a_graph_with_it_is_driven_through_the_physical_plan_in_any_number_of_buckets() -> None:
    streams = {"a": source("left"), "b": source("right")}
    aligned = hf.sync(streams, by="k", policy=BURSTS, name="aligned")
    counted = aligned | hf.aggregate(by="k", window=hf.tumbling(10), sets=hf.count(), name="counted")
    left = [[{"k": key, "t": t, "v": 0} for key in "xyz" for t in (1, 4, 20)], [bound(40)], [ended()]]
    right = [[{"k": "x", "t": 2, "v": 0}], [bound(40)], [ended()]]
    given: dict[str, Any] = {"left": left, "right": right}
    for buckets in (1, 3):
        found = [
            sorted((one["k"], one["window_start"], one["sets"]) for one in rows)
            for rows in drive(counted, given, buckets=buckets)
        ]
        # The delay holds back what is told behind: 40 - 6 closes every window that ends by 34.
        assert found[:2] == [[], [(key, start, 1) for key in "xyz" for start in (0, 20)]]


def test_the_idle_rule_lets_a_key_go_on_without_a_silent_input() -> None:
    ran = Drive(step_of(("a", "b"), BURSTS, idle_us=10))
    ran.epoch_of([row("a", 1, 1)], 0)
    ran.epoch_of([row("a", 30, 2)], 5)
    ran.epoch_of([], 20)
    assert values_of(ran) == [("x", 1, [1], [])]


def test_the_stall_report_names_whom_it_waits_on_without_calling_the_function() -> None:
    ran = run(step_of(("a", "b"), BURSTS), [[row("a", 1), row("a", 30), row("b", 2)]])

    def fail(waiting: policies.WaitingRows) -> Any:
        raise AssertionError("called between epochs")

    step = step_of(("a", "b"), policies.custom(fail, delay=GAP, many=True))
    stalls = sync_report.stalls(step, ran.state, StepTime(9, 0)).to_pylist()
    assert [(found["input"], found["waiting_rows"]) for found in stalls] == [("b", 3)]
    assert sync_report.running_ahead(step, ran.state, 1).column("input").to_pylist() == ["a"]


def test_a_policy_is_a_value_with_a_fingerprint_of_its_function() -> None:
    one, other = policies.custom(bursts, delay=6), policies.custom(partial(bursts, gap=7), delay=6)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.arguments() != other.arguments()
    aligned = hf.sync({"a": source("a"), "b": source("b")}, by="k", policy=one, name="aligned")
    assert '"kind": "custom"' in hf.Pipeline("p", aligned | hf.write.memory("m")).explain()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decide", "more", "says", "cure"),
    [
        (lambda waiting: 1.0, {}, "returned an array of float64 of shape", "one int64 for each row"),
        (lambda waiting: None, {}, "returned a NoneType", "one int64 for each row"),
        (lambda waiting: np.zeros(9, np.int64), {}, r"of shape \(9,\)", "one int64 for each row"),
        (
            lambda waiting: waiting.at * 0,
            {"delay": 1},
            "gave a set at 0: no set below 1 may follow",
            "delay= longer",
        ),
        (lambda waiting: waiting.at * 0 + 9, {}, "put two rows of input 'a' into one set, at 9", "many=True"),
        (lambda waiting: 1 // 0, {}, "raised ZeroDivisionError", "fix the step"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_with_its_cure(decide: Any, more: Any, says: str, cure: str) -> None:
    step = step_of(("a", "b"), policies.custom(decide, **more))
    ran = Drive(step_of(("a", "b"), policies.custom(lambda waiting: np.full(len(waiting.at), WAITS), **more)))
    ran.epoch_of([row("a", 1), row("b", 1)])
    with pytest.raises(InvalidPipeline, match=says) as raised:
        call(step, ran.state, arrivals_of(step, [row("a", 2)]), StepTime(1, 0), operator="aligned")
    assert cure in str(raised.value.do)
    assert "aligned" in str(raised.value)


def test_a_time_in_a_message_is_an_iso_time_where_it_has_a_unit() -> None:
    sources = [hf.read.rows([], schema="k STRING, t TIMESTAMP", timestamp="t", name=name) for name in ("a", "b")]
    at_once = policies.custom(lambda waiting: waiting.at * 0 + 1_362_117_600_000_000)
    stream = hf.sync(dict(zip("ab", sources, strict=True)), by="k", policy=at_once, name="aligned")
    rows = [{"k": "x", "t": datetime(2013, 3, 1, 5, minute, tzinfo=UTC)} for minute in range(2)]
    with pytest.raises(InvalidPipeline, match="into one set, at 2013-03-01T06:00:00Z"):
        drive(stream, {"a": [rows], "b": [[]]})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bursts",), "not a function"),
        ((lambda: 1,), "cannot be called with"),
        ((bursts, -1), "negative"),
        ((bursts, 1.5), "no distance in time"),
        ((bursts, "soon"), "not a number with a unit"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_with_its_cure(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(InvalidPipeline, match=says) as raised:
        policies.custom(arguments[0], delay=arguments[1] if len(arguments) > 1 else None)
    assert raised.value.do


def test_the_idle_rule_needs_a_delay_and_a_delay_the_unit_of_its_timestamps() -> None:
    streams = {"a": source("a"), "b": source("b")}
    with pytest.raises(InvalidPipeline, match="without delay=") as raised:
        hf.sync(streams, policy=policies.custom(bursts), idle_after="5 s")
    assert "delay=" in str(raised.value.do)
    spec = hf.sync(streams, by="k", policy=policies.custom(bursts, delay="6 s")).node.spec
    schema = source("a").node.spec.schema
    with pytest.raises(InvalidPipeline, match="delay='6 s' is a duration, but the timestamps are BIGINT"):
        spec.step({"a": schema, "b": schema})
