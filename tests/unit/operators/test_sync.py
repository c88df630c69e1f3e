"""``sync``: its output, late rows, the idle rule, forgetting, the stall report, and what it refuses."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.operators.sync import forget
from holdfast.operators.sync import policy as policies
from holdfast.operators.sync import report as sync_report
from holdfast.operators.sync.spec import Sync, sync
from holdfast.state.checks import check_result
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, StepTime
from holdfast.state.tables import bounds_schema, empty_state
from tests import graphs
from tests.unit.operators.sync_driver import Drive, arrivals_of, close, run, step_of

SECOND = 1_000_000


def row(name: str, at: int, value: int = 0, key: str = "x") -> tuple[Any, ...]:
    return (name, "row", key, at, value)


def source(name: str, schema: str = "k string, t timestamp, v bigint", timestamp: str | None = "t") -> Stream:
    return graphs.source(name, schema=schema, timestamp=timestamp)


def test_a_set_is_all_rows_of_a_settled_timestamp() -> None:
    drive = run(step_of(("a", "b")), [[row("a", 1, 10), row("b", 2, 20), row("a", 2, 11)], [row("b", 3)]])
    assert drive.rows == [
        {"k": "x", "timestamp": 1, "a": {"v": 10}, "b": None},
        {"k": "x", "timestamp": 2, "a": {"v": 11}, "b": {"v": 20}},
    ]


def test_an_ascending_input_gives_lists_and_waits_for_repeats() -> None:
    step = step_of(("a", "b"), timestamps=("ascending", "strict"))
    drive = run(step, [[row("a", 1, 10), row("b", 1, 20), row("b", 5)], [row("a", 1, 11)], [row("a", 2)]])
    assert drive.rows[0] == {"k": "x", "timestamp": 1, "a": [{"v": 10}, {"v": 11}], "b": {"v": 20}}


def test_a_row_below_its_bound_goes_to_late_and_the_run_goes_on() -> None:
    drive = run(
        step_of(("a", "b")), [[row("a", 5), ("b", "bound", None, 9)], [row("b", 7, 77)], [row("b", 9), row("a", 9)]]
    )
    assert [found["timestamp"] for found in drive.rows] == [5, 9]
    assert drive.late == [
        {
            "k": "x", "timestamp": 7, "input": "b", "reason": "timestamp 7 is below the bound 9",
            "a": None, "b": {"k": "x", "t": 7, "v": 77},
        }
    ]  # fmt: skip
    assert drive.counts["late"] == 1


def test_a_row_after_the_end_of_its_input_says_so() -> None:
    drive = run(step_of(("a", "b")), [[close("a")], [row("a", 5)]])
    assert [found["reason"] for found in drive.late] == ["timestamp 5: the input has ended"]


def test_a_strict_input_with_disorder_keeps_the_first_row_of_a_timestamp() -> None:
    step = step_of(("a", "b"), disorder=(10, None))
    drive = run(step, [[row("a", 9, 1)], [row("a", 5, 2), row("a", 9, 3)], [close("a"), close("b")]])
    assert [(found["timestamp"], found["a"]) for found in drive.rows] == [(5, {"v": 2}), (9, {"v": 1})]
    assert [found["reason"] for found in drive.late] == ["timestamp 9 is there already, and timestamps are strict"]


def test_a_timestamp_column_gives_a_timestamp_column() -> None:
    stamp = pa.timestamp("us", tz="UTC")
    schema = pa.schema([("k", pa.string()), ("t", stamp), ("v", pa.int64())])
    spec = Sync(("a", "b"), ("k",), ("t", "t"), policies.settled(), ("strict",) * 2, ("5 s", None))
    step = spec.step({"a": schema, "b": schema})
    assert step.promises[0].disorder == 5 * SECOND
    at = [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]
    rows = pa.table({"k": ["x"] * 3, "t": pa.array(at, stamp), "v": [1, 2, 3], PLACE: [0, 1, 2]})
    no_bounds = bounds_schema(step.key).append(pa.field(PLACE, pa.int64())).empty_table()
    ended = pa.table({"k": [None], ALL_KEYS: [True], BOUND: [CLOSED], PLACE: [9]}, schema=no_bounds.schema)
    result = step.apply(empty_state(step), {"a": Arrivals(rows, no_bounds), "b": Arrivals(rows.slice(0, 0), ended)},
                        StepTime(0, 0))  # fmt: skip
    result = check_result("sync", step, result)
    assert result.outputs["rows"].column("timestamp").to_pylist() == at[:1]
    assert "2024-01-01 00:00:00" in result.outputs["late"].column("reason")[0].as_py()


def test_a_null_key_or_timestamp_is_an_error_that_names_the_input() -> None:
    for bad in [("a", "row", None, 1, 1), ("a", "row", "x", None, 1)]:
        with pytest.raises(BadRow, match="input 'a'"):
            run(step_of(("a", "b")), [[bad]])


def test_a_mux_choice_that_is_no_input_is_an_error_that_names_the_inputs() -> None:
    with pytest.raises(BadRow, match="0 \\(a\\), 1 \\(b\\)"):
        run(step_of(("a", "b", "c"), policies.mux("c")), [[row("c", 1, 2)]])


def test_a_match_keeps_each_rows_own_timestamp() -> None:
    drive = run(step_of(("a", "b"), policies.within(5)), [[row("a", 10, 1), row("b", 12, 2), close("a"), close("b")]])
    assert drive.rows == [{"k": "x", "timestamp": 10, "a": {"t": 10, "v": 1}, "b": {"t": 12, "v": 2}}]


# --- the idle rule ----------------------------------------------------------------------------------------------


def test_a_silent_input_holds_up_a_key_no_longer_than_idle_after_and_its_row_is_then_late() -> None:
    drive = Drive(step_of(("a", "b"), idle_us=30 * SECOND))
    drive.epoch_of([row("b", 1)], 0)
    drive.epoch_of([row("a", 5), row("a", 6)], 10 * SECOND)
    assert [found["timestamp"] for found in drive.rows] == [1]
    assert drive.epoch_of([], 39 * SECOND) == []
    assert [found["timestamp"] for found in drive.epoch_of([], 40 * SECOND)] == [5, 6]
    # While the silence lasts nothing waits again.
    assert [found["timestamp"] for found in drive.epoch_of([row("a", 7)], 41 * SECOND)] == [7]
    drive.epoch_of([row("b", 6)], 42 * SECOND)
    assert [(late["timestamp"], late["input"]) for late in drive.late] == [(6, "b")]
    # It has spoken: the key waits on it again.
    assert drive.epoch_of([row("a", 9)], 43 * SECOND) == []
    assert drive.counts["waiting_rows"] == 1


def test_a_pause_of_all_inputs_is_no_silence_of_one() -> None:
    drive = Drive(step_of(("a", "b"), idle_us=30 * SECOND))
    drive.epoch_of([row("a", 1), row("b", 1)], 0)
    assert drive.epoch_of([row("a", 2)], 3600 * SECOND) == []


def test_when_every_input_is_silent_what_waits_goes_out() -> None:
    drive = Drive(step_of(("a", "b", "c"), idle_us=30 * SECOND))
    drive.epoch_of([row("a", 5), row("b", 9)], 0)
    drive.epoch_of([], 30 * SECOND)
    assert [found["timestamp"] for found in drive.rows] == [5]
    drive.epoch_of([], 60 * SECOND)
    assert [found["timestamp"] for found in drive.rows] == [5, 9]


# --- forgetting -------------------------------------------------------------------------------------------------


def test_a_forgotten_key_leaves_no_state_and_its_waiting_rows_are_late() -> None:
    drive = Drive(step_of(("a", "b"), forget_us=60 * SECOND))
    drive.epoch_of([row("a", 5), row("a", 7, key="y")], 0)
    drive.epoch_of([row("b", 1, key="y")], 59 * SECOND)
    drive.epoch_of([], 60 * SECOND)
    assert [(late["k"], late["timestamp"]) for late in drive.late] == [("x", 5)]
    assert "forgotten" in drive.late[0]["reason"]
    assert (drive.counts["forgotten"], drive.counts["waiting_rows"]) == (1, 1)
    assert drive.state["keys"].column("k").to_pylist() == ["y"]
    drive.epoch_of([row("a", 1)], 61 * SECOND)
    assert drive.counts["late"] == 0  # its bound is forgotten too


@pytest.mark.parametrize("policy", [policies.settled(), policies.within(2)], ids=["settled", "within"])
@pytest.mark.slow
def test_when_the_next_key_is_forgotten_is_what_a_look_at_all_keys_tells(policy: Any) -> None:
    """Many keys, few of which wait, and few keys, of which many do."""
    chance, step = random.Random(7), step_of(("a", "b"), policy, forget_us=20)
    drive, told = Drive(step), 0
    for epoch in range(40):
        keys = [f"{chance.randrange(600 if epoch % 20 < 10 else 5)}" for _ in range(chance.randrange(60))]
        events = [row(name, epoch, key=key) for key in keys for name in ("a", "b") if chance.random() < 0.98]
        changes = step.apply(drive.state, arrivals_of(step, events), StepTime(epoch, epoch)).changes
        due = forget.forgetting_due(step, drive.state, changes)
        drive.epoch_of(events, epoch)
        waiting = [
            found["k"]
            for table in ("waiting_a", "waiting_b")
            for found in drive.state[table].to_pylist()
            if not found.get("__sent__")
        ]
        quiet = {key["k"]: key["__active_us__"] for key in drive.state["keys"].to_pylist()}
        assert due == min((quiet[key] + 20 for key in waiting), default=None)
        told += due is not None
    assert told > 20


# --- what the state says ----------------------------------------------------------------------------------------


def test_the_stall_report_names_the_key_the_input_and_since_when() -> None:
    step = step_of(("a", "b", "c"))
    drive = Drive(step)
    drive.epoch_of([row("a", 5), row("c", 9), row("a", 1, key="y")], 10)
    drive.epoch_of([row("c", 1, key="y"), row("a", 6)], 20)
    report = sync_report.stalls(step, drive.state, StepTime(1, 25)).to_pylist()
    assert [(found["k"], found["input"], found["since_us"]) for found in report] == [("x", "b", 10), ("y", "b", 10)]
    assert [(found["waiting_rows"], found["bound"]) for found in report] == [(3, None), (2, None)]
    drive.epoch_of([("b", "bound", "y", 9)], 30)
    assert sync_report.stalls(step, drive.state, StepTime(2, 30)).column("k").to_pylist() == ["x"]


def test_waiting_rows_are_counted_by_key_and_input() -> None:
    step = step_of(("a", "b"))
    drive = run(step, [[row("a", 5), row("a", 6), row("a", 1, key="y")]])
    assert sync_report.waiting_rows(step, drive.state).to_pylist() == [
        {"k": "x", "waiting_rows": 2, "waiting_a": 2, "waiting_b": 0},
        {"k": "y", "waiting_rows": 1, "waiting_a": 1, "waiting_b": 0},
    ]


def test_who_runs_ahead_is_named_where_the_limit_is_reached() -> None:
    step = step_of(("a", "b", "c"), max_waiting_rows=3)
    drive = run(step, [[row("a", 5), row("a", 6), row("b", 7), row("a", 1, key="y")]])
    assert sync_report.running_ahead(step, drive.state).to_pylist() == [
        {"k": "x", "input": "a", "ahead_rows": 2, "waiting_rows": 3},
        {"k": "x", "input": "b", "ahead_rows": 1, "waiting_rows": 3},
    ]
    assert sync_report.running_ahead(step, drive.state, 4).num_rows == 0


def test_the_bounds_of_the_output_say_what_is_settled() -> None:
    drive = run(step_of(("a", "b")), [[row("a", 5), row("b", 8)], [close("a"), ("b", "bound", None, 7)]])
    assert [(found["k"], found[ALL_KEYS], found[BOUND]) for found in drive.bounds] == [
        ("x", False, 6),
        ("x", False, 9),
        (None, True, 7),
    ]


@pytest.mark.slow
def test_state_is_proportional_to_what_waits() -> None:
    drive = run(step_of(("a", "b")), [[row(name, at) for name in ("a", "b")] for at in range(50)])
    assert {name: table.num_rows for name, table in drive.state.items()} == {
        "keys": 1, "inputs": 0, "waiting_a": 0, "waiting_b": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_rows_matched_within_a_tolerance_are_let_go_when_no_neighbour_looks_at_them() -> None:
    step = step_of(("a", "b"), policies.within(2))
    drive = run(step, [[row("a", at), row("b", at + 1)] for at in range(0, 500, 10)])
    assert drive.state["waiting_a"].num_rows + drive.state["waiting_b"].num_rows <= 6


def test_a_replay_of_an_epoch_gives_the_same_bytes() -> None:
    step = pickle.loads(pickle.dumps(step_of(("a", "b"))))
    arrivals = arrivals_of(step, [row("a", 2), row("b", 1), row("b", 2), row("a", 4, key="y")])
    results = [step.apply(empty_state(step), arrivals, StepTime(3, 7)) for _ in range(2)]
    assert results[0].outputs == results[1].outputs
    assert results[0].changes == results[1].changes


# --- building ---------------------------------------------------------------------------------------------------


def test_it_is_declared_with_names_key_and_policy() -> None:
    stream = sync({"a": source("one"), "b": source("two")}, by="k", policy=policies.within("1 s"), name="both")
    assert stream.columns == ("k", "timestamp", "a", "b")
    assert stream.timestamp == "timestamp"
    assert stream.node.arguments()["policy"] == {"kind": "within", "tolerance": "1 s", "base": None}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"inputs": {"a": source("one")}}, "it has 1 input; only 'a', built at"),
        ({"inputs": [source("one"), source("two")]}, "its inputs are a list"),
        ({"inputs": {"a": source("one"), "A": source("two")}}, "'a' and 'A' are one name"),
        ({"inputs": {"a": source("one"), "timestamp": source("two")}}, "column of sync's own"),
        ({"inputs": {"a": source("one"), "b": 3}}, "input 'b' is an int and no stream"),
        ({"inputs": {"a": source("one"), "b": source("two", timestamp=None)}}, "no known timestamp column"),
        ({"by": "a"}, "has the name of another output column"),
        ({"by": "z"}, "which does not exist"),
        ({"policy": policies.mux("z")}, "policy mux names the input 'z', which does not exist"),
        ({"policy": policies.settled}, "is not a policy"),
        ({"timestamps": "sorted"}, "is not a promise"),
        ({"timestamps": {"z": "strict"}}, "timestamps= names the input 'z'"),
        ({"disorder": "often"}, "not a number with a unit"),
        ({"disorder": "5 s", "policy": policies.barrier()}, "do not go together"),
        ({"idle_after": "5 s", "policy": policies.immediate()}, "do not go together"),
        ({"timestamps": "ascending", "policy": policies.fixed_size()}, "fixed_size needs strict timestamps"),
        ({"max_waiting_rows": 0}, "is not a number of rows"),
    ],
)
def test_a_mistake_is_refused_where_it_is_built(arguments: dict[str, Any], says: str) -> None:
    given = {"inputs": {"a": source("one"), "b": source("two")}, "by": "k", **arguments}
    with pytest.raises(InvalidPipeline, match="sync") as raised:
        sync(given.pop("inputs"), **given)
    assert says in str(raised.value)
    assert raised.value.do


@pytest.mark.parametrize(
    ("second", "more", "says"),
    [
        ({"t": pa.string()}, {}, "is of type string"),
        ({"t": pa.timestamp("us", tz="UTC")}, {}, "is of type int64 in input 'a' and of type timestamp"),
        ({"k": pa.int64()}, {}, "k is of type string in input 'a' and of type int64"),
        ({}, {"disorder": ("5 s", None)}, "the timestamps are BIGINT"),
    ],
)
def test_types_that_cannot_meet_are_refused(second: dict[str, Any], more: dict[str, Any], says: str) -> None:
    kinds = {"k": pa.string(), "t": pa.int64(), "v": pa.int64()}
    spec = Sync(("a", "b"), ("k",), ("t", "t"), policies.settled(), ("strict",) * 2, more.get("disorder", (None,) * 2))
    with pytest.raises(InvalidPipeline, match=says):
        spec.step({"a": pa.schema(list(kinds.items())), "b": pa.schema(list({**kinds, **second}.items()))})
