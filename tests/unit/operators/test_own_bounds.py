"""Functions of the user tell bounds: their own, and those of their input by what they promise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.stateful import own_bounds
from holdfast.state import tables
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED
from holdfast.testing import bound, close, drive

SCHEMA = "k STRING, t BIGINT"
GIVEN = hf.read.rows([], schema=SCHEMA, timestamp="t", name="given")


def at(t: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": t}


def passed(key: Any, rows: list[dict[str, Any]], state: Any) -> Any:
    return rows


def ascending(key: Any, rows: list[dict[str, Any]], state: Any) -> Any:
    """Give rows as they are; none of the key lies below the last one any more."""
    state.bound(rows[-1]["t"])
    return rows


def passed_columns(tables: Any, rows: pa.Table, at: Any) -> Any:
    return None, rows


def ascending_columns(tables: Any, rows: pa.Table, at: Any) -> Any:
    last = rows.group_by("k").aggregate([("t", "max")]).rename_columns(["k", "bound"])
    return None, rows, last


def applied(fn: Any, **more: Any) -> hf.Stream:
    return GIVEN | hf.apply(fn, by="k", schema=SCHEMA, timestamp="t", name="own", **more)


def stepped(step: Any, **more: Any) -> hf.Stream:
    return GIVEN | hf.stateful(step, by="k", schema=SCHEMA, state={"s": SCHEMA}, timestamp="t", name="own", **more)


def counts(stream: hf.Stream, epochs: Any, **more: Any) -> list[list[tuple[str, int, int]]]:
    """Count rows in windows of ten behind a stream; rows alone let none out, for they may come in any order."""
    sums = stream | hf.aggregate(by="k", window=hf.tumbling(10), disorder=1000, n=hf.count(), name="sums")
    return [
        sorted((row["k"], row["window_start"], row["n"]) for row in rows)
        for rows in drive(sums, {"given": epochs}, **more)
    ]


EITHER = pytest.mark.parametrize("stream", [applied(ascending), stepped(ascending_columns)], ids=["apply", "stateful"])
MOVED = pytest.mark.parametrize(
    "moved",
    [lambda by: applied(passed, timestamp_offset=by), lambda by: stepped(passed_columns, timestamp_offset=by)],
    ids=["apply", "stateful"],
)


@pytest.mark.slow
@EITHER
def test_a_bound_of_its_own_settles_what_waits_behind_it(stream: hf.Stream) -> None:
    epochs = [[at(3), at(4, "b")], [at(12)], [at(25), at(8, "b")]]
    for buckets in (1, 3):
        assert counts(stream, epochs, buckets=buckets) == [[], [("a", 0, 1)], [("a", 10, 1)]]


@EITHER
def test_a_row_below_a_bound_that_it_told_is_late_behind_it_and_counted(stream: hf.Stream) -> None:
    sums = stream | hf.aggregate(by="k", window=hf.tumbling(10), disorder=1000, n=hf.count(), name="sums")
    found = drive(sums.late, {"given": [[at(30)], [at(5)]]})
    assert [[row["rows"] for row in rows] for rows in found] == [[], [{"k": "a", "t": 5}]]


@pytest.mark.slow
@MOVED
def test_bounds_of_its_input_hold_behind_it_moved_by_what_it_promises(moved: Any) -> None:
    epochs = [[at(3), at(4, "b")], [bound(10)], [bound(13)], [bound(20, {"k": "a"})]]
    assert counts(moved(0), epochs, buckets=2)[:2] == [[], [("a", 0, 1), ("b", 0, 1)]]
    assert counts(moved(-3), epochs)[:3] == [[], [], [("a", 0, 1), ("b", 0, 1)]]
    one_key = [[at(3), at(4, "b")], [bound(10, {"k": "a"})]]
    assert counts(moved(0), one_key, buckets=2) == [[], [("a", 0, 1)]]


@pytest.mark.parametrize("stream", [applied(passed), stepped(passed_columns)], ids=["apply", "stateful"])
def test_without_a_promise_operators_behind_hear_the_end_alone(stream: hf.Stream) -> None:
    assert counts(stream, [[at(3)], [bound(99)], [close()]]) == [[], [], [("a", 0, 1)]]


def test_its_own_bounds_and_those_of_its_input_go_together() -> None:
    stream = applied(ascending, timestamp_offset=0)
    assert counts(stream, [[at(3), at(4, "b")], [at(12), bound(10)], [at(21)]]) == [
        [],
        [("a", 0, 1), ("b", 0, 1)],
        [("a", 10, 1)],
    ]


def test_a_bound_of_timestamps_is_a_datetime() -> None:
    schema = "k STRING, t TIMESTAMP"
    given = hf.read.rows([], schema=schema, timestamp="t", name="given")

    def told(key: Any, rows: Any, state: Any) -> Any:
        state.bound(rows[-1]["t"])
        return rows

    stream = given | hf.apply(told, by="k", schema=schema, timestamp="t", timestamp_offset="-1 s", name="own")
    windows = hf.tumbling("10 s")
    sums = stream | hf.aggregate(by="k", window=windows, disorder="1 hour", n=hf.count(), name="sums")
    times = [datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC) for second in (3, 12)]
    found = drive(sums, {"given": [[{"k": "a", "t": t}] for t in times]})
    assert [[row["n"] for row in rows] for rows in found] == [[], [1]]


def nulls(tables: Any, rows: pa.Table, at: Any) -> Any:
    return None, rows, pa.table({"k": pa.nulls(1, pa.string()), "bound": [1]})


def texts(tables: Any, rows: pa.Table, at: Any) -> Any:
    return None, rows, pa.table({"k": rows["k"], "bound": pc.cast(rows["t"], pa.string())})


def says_text(key: Any, rows: Any, state: Any) -> Any:
    state.bound("soon")


@pytest.mark.parametrize(
    ("stream", "error", "says", "cure"),
    [
        (stepped(nulls), BadRow, "have no value in 'k'", "give them a value"),
        (stepped(texts), InvalidPipeline, "its bounds with another schema", "return the declared columns"),
        (applied(says_text), InvalidPipeline, "what fn passed to state.bound does not fit", "a value of that type"),
        (
            GIVEN | hf.apply(ascending, by="k", schema=SCHEMA, name="own"),
            InvalidPipeline,
            "returned a bound, but its rows have no timestamp",
            'timestamp="..."',
        ),
    ],
)
def test_a_bound_that_cannot_be_is_refused_with_its_cure(stream: Any, error: Any, says: str, cure: str) -> None:
    with pytest.raises(error, match=says) as raised:
        drive(stream, {"given": [[at(3)]]})
    assert cure in str(raised.value.do)
    assert "'own'" in str(raised.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hf.apply(passed, by="k", schema=SCHEMA, timestamp_offset=0), "and no timestamp="),
        (lambda: applied(passed, timestamp_offset="-1 s"), "does not fit timestamps of type int64"),
        (lambda: stepped(passed_columns, timestamp_offset=0.5), "no distance in time"),
        (
            lambda: (
                hf.read.rows([], schema=SCHEMA, name="untimed")
                | hf.apply(passed, by="k", schema=SCHEMA, timestamp="t", timestamp_offset=0)
            ),
            "the stream has none",
        ),
    ],
)
def test_a_promise_that_cannot_be_is_refused_with_its_cure(make: Any, says: str) -> None:
    with pytest.raises(InvalidPipeline, match=says) as raised:
        make()
    assert raised.value.do


@pytest.mark.slow
def test_explain_says_what_operators_behind_it_hear() -> None:
    def said(stream: hf.Stream) -> list[str]:
        behind = stream | hf.accumulate(by="k", n=hf.count(), name="n")
        lines = hf.Pipeline("p", behind | hf.write.memory("m")).explain().splitlines()
        return [line.strip().partition(": ")[2] for line in lines if "bounds end" in line]

    assert said(applied(passed, timestamp_offset=0)) == []
    told = "timestamp_offset= would pass on those of its input; it gives its own by state.bound"
    assert said(applied(passed)) == [told]
    untimed = GIVEN | hf.apply(passed, by="k", schema=SCHEMA, name="own")
    assert said(untimed) == ["it declares no timestamp"]


def test_no_end_is_told_as_long_as_a_timer_may_fire() -> None:
    key = pa.schema([("k", pa.string())])
    schema = tables.bounds_schema(key)
    told = [{"k": None, ALL_KEYS: True, BOUND: CLOSED}, {"k": "a", ALL_KEYS: False, BOUND: 7}]
    bounds = pa.Table.from_pylist(told, schema=schema)
    waiting = own_bounds.with_end(bounds, key, is_done=False)
    assert waiting is not None
    assert waiting.to_pylist() == told[1:]
    done = own_bounds.with_end(bounds, key, is_done=True)
    assert done is not None
    assert done.to_pylist() == told[::-1]
    assert own_bounds.with_end(None, key, is_done=False) is None
    assert own_bounds.with_end(bounds.slice(0, 1), key, is_done=False) is None
