"""The gate before the sinks: rows wait until pts has passed them (design/0015, sections 1 and 2)."""

import random
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful.gate import NAME
from holdfast.operators.stateful.gate_step import GateStep, InputClock, bounds_in
from holdfast.plan.pressure import pressure_of
from holdfast.state import tables
from holdfast.state.bucket_report import Pressure
from holdfast.state.step import CLOSED, StepTime
from holdfast.testing import bound, close, drive
from holdfast.testing.drive import Drive

COLUMNS = "k STRING, t BIGINT"
NANOSECOND = 1_767_225_600_000_000_001
"""A double does not keep it apart from its neighbours."""


def source(name: str, schema: str = COLUMNS) -> Any:
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def row(t: int, k: str = "x") -> dict[str, Any]:
    return {"k": k, "t": t}


def held(*streams: Any, commit_at: Any = "pts") -> list[Any]:
    """Return the streams as their sinks are given them."""
    sinks = [stream | hf.write.memory(name=f"sink{number}") for number, stream in enumerate(streams)]
    return [sink.stream for sink in hf.Pipeline("trips", *sinks, commit_at=commit_at).sinks]


def times(epochs: Any) -> list[list[int]]:
    return [[one["t"] for one in rows] for rows in epochs]


def test_a_row_leaves_when_every_input_has_passed_it() -> None:
    fast, _ = held(source("a"), source("b"))
    given = {"a": [[row(1), row(5)], [row(9)], [row(9)]], "b": [[row(3)], [], [row(8)]]}
    assert times(drive(fast, given)) == [[1], [], [5]]


def test_rows_at_pts_wait_for_those_of_their_time_that_are_still_to_come() -> None:
    """No commit cuts between rows of one timestamp, wherever an epoch ends."""
    (one,) = held(source("a"))
    given: list[Any] = [[row(4), row(7)], [row(7)], [row(7)], [row(8)], [close()]]
    assert times(drive(one, {"a": given})) == [[4], [], [], [7, 7, 7], [8]]


@pytest.mark.slow
def test_the_end_of_a_source_holds_nobody() -> None:
    fast, _ = held(source("a"), source("b"))
    given: dict[str, Any] = {"a": [[row(1)], [row(5)], [close()]], "b": [[close()], [], []]}
    assert times(drive(fast, given)) == [[], [1], [5]]


def test_nanoseconds_keep_all_their_digits() -> None:
    (one,) = held(source("a"))
    given = [[row(NANOSECOND)], [row(NANOSECOND + 1)], [row(NANOSECOND + 2)]]
    assert times(drive(one, {"a": given})) == [[], [NANOSECOND], [NANOSECOND + 1]]


def test_microseconds_of_timestamps_are_told_apart() -> None:
    (one,) = held(source("a", "k STRING, t TIMESTAMP"))
    base = 1_767_225_600_000_000
    found = drive(one, {"a": [[row(base)], [row(base + 1)]]})
    assert [len(rows) for rows in found] == [0, 1]


def test_rows_leave_in_the_order_of_time_then_of_arrival() -> None:
    (one,) = held(source("a"))
    given = [[row(5, "first"), row(3), row(5, "second")], [row(5, "third"), row(9)]]
    assert [[(r["t"], r["k"]) for r in rows] for rows in drive(one, {"a": given})] == [
        [(3, "x")],
        [(5, "first"), (5, "second"), (5, "third")],
    ]


def test_disorder_is_kept_back_and_what_lies_further_back_is_counted_and_not_dropped() -> None:
    (one,) = held(source("a"), commit_at=hf.pts(disorder=3))
    driven = Drive(one, {"a": [[row(10)], [row(8), row(20)], [row(11), row(21)], [row(30)]]})
    found, late = [], []
    for index, time in enumerate(driven._times):
        found.append(driven._epoch(index, time).column("t").to_pylist())
        late.append(driven.counts[NAME, "late"])
    assert found == [[], [8, 10], [11], [20, 21]]
    assert late == [0, 0, 1, 0], "11 lies below 17, which pts had reached"


def test_explicit_bounds_are_the_word_of_a_source_that_has_them() -> None:
    schema = "k STRING, t BIGINT, is_bound BOOLEAN"
    marked = hf.read.rows([], schema=schema, timestamp="t", bounds="is_bound", name="a")
    (one,) = held(marked)
    assert times(drive(one, {"a": [[row(1), row(9)], [row(4)], [bound(6)], [bound(20)]]})) == [[], [], [1, 4], [9]]


@pytest.mark.slow
def test_an_open_window_holds_pts_at_its_start() -> None:
    """A sink behind an aggregate lacks nothing below pts, and neither does the one beside it."""
    a = source("a")
    counted = a | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
    windows, rows = held(counted, a)
    given: dict[str, Any] = {"a": [[row(3), row(7)], [row(12, "y")], [row(25)], [close()]]}
    assert [[r["window_start"] for r in found] for found in drive(windows, given, buckets=2)] == [[], [0], [10], [20]]
    assert times(drive(rows, given, buckets=2)) == [[], [3, 7], [12], [25]]


@pytest.mark.slow
def test_late_rows_of_an_operator_go_with_the_next_commit() -> None:
    a, b = source("a"), source("b")
    sets = hf.sync({"a": a, "b": b}, by="k", name="sets")
    late, _ = held(sets.late, a)
    given = {"a": [[row(10)], [row(4)], [row(20)], [row(30)]], "b": [[row(10)], [row(10)], [row(10)], [row(30)]]}
    found = drive(late, given)
    assert [[(r["timestamp"], r["input"]) for r in rows] for rows in found][:3] == [[], [], []]
    assert (4, "a") in [(r["timestamp"], r["input"]) for r in found[3]]


def test_a_row_without_a_timestamp_is_refused_with_its_input() -> None:
    (one,) = held(source("a"))
    with pytest.raises(BadRow, match="sink0"):
        drive(one, {"a": [[{"k": "x", "t": None}]]})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_however_rows_are_cut_into_epochs_each_commit_is_what_lies_before_its_pts(seed: int) -> None:
    chance = random.Random(seed)
    ascending = {name: sorted(chance.choices(range(30), k=12)) for name in ("a", "b")}
    given: dict[str, list[list[Any]]] = {"a": [], "b": []}
    for name, left in ascending.items():
        rest = [row(t, name) for t in left]
        while len(given[name]) < 6:
            count = chance.randint(0, len(rest))
            given[name].append(rest[:count])
            rest = rest[count:]
        given[name].append([*rest, close()])
    (both,) = held(hf.union(source("a"), source("b"), name="both"))
    shown: list[int] = []
    reached = {"a": -1, "b": -1}
    for index, rows in enumerate(times(drive(both, given, buckets=chance.choice((1, 3))))):
        for name in given:
            seen = [one["t"] for one in given[name][index] if isinstance(one, dict)]
            is_end = index == 6
            reached[name] = 10**6 if is_end else max([reached[name], *seen])
        shown += rows
        pts = min(reached.values())
        assert sorted(shown) == sorted(t for of in ascending.values() for t in of if t < pts)


# --- the step by itself -------------------------------------------------------------------------------------------


SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64())])


def step(limit: int = 2, **inputs: pa.Schema) -> GateStep:
    clocks = {name: InputClock("t", 0, by_rows=True) for name in ("a", "b")}
    return GateStep({"one": SCHEMA, "a": SCHEMA, "b": SCHEMA, **inputs}, {"one": "t"}, clocks, limit)


def state_of(waiting: int, a: int, b: int) -> dict[str, pa.Table]:
    state = tables.empty_state(step())
    rows = {"k": ["x"] * waiting, "t": list(range(waiting)), "__seq__": list(range(waiting))}
    return {
        "waiting_one": pa.table(rows, schema=state["waiting_one"].schema),
        "bounds": pa.table({"input": ["a", "b", ""], "__bound__": [a, b, min(a, b)]}),
    }


def test_it_is_full_when_so_many_wait_and_says_who_runs_ahead() -> None:
    assert pressure_of(step(), state_of(1, a=9, b=3)) == Pressure()
    assert pressure_of(step(), state_of(2, a=9, b=3)) == Pressure(2, ("a",), ("b",))


def test_what_waits_is_taken_over_with_a_new_column_and_not_without_an_old_one() -> None:
    old = pa.table({"k": ["x"], "t": [1], "__seq__": [0]})
    at = StepTime(1, 0)
    wider = step(one=pa.schema([*SCHEMA, ("v", pa.int64())]))
    grown = wider.grown("waiting_one", old, at)
    assert grown is not None
    assert grown.column("v").to_pylist() == [None]
    assert step(one=pa.schema([("t", pa.int64())])).grown("waiting_one", old, at) is None
    assert step().grown("waiting_one", None, at) == tables.empty(step().tables["waiting_one"].schema)


def test_pts_is_kept_apart_from_the_bounds_of_inputs() -> None:
    assert bounds_in(state_of(0, a=9, b=CLOSED))[""] == 9


def test_clocks_of_two_units_are_refused_where_schemas_are_known() -> None:
    a = source("a")
    own = a | hf.map_batches(lambda b: b, schema="k STRING, t TIMESTAMP", name="own")
    with pytest.raises(InvalidPipeline, match="pts has no unit"):
        drive(held(own)[0], {"a": [[row(1)]]})
