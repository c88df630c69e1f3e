"""Back-pressure: who is held, when that ends, and that it changes no set; no JVM."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.stateful.merge_step import MergeStep
from holdfast.operators.sync.step import SyncStep
from holdfast.plan.cutting import build_stages
from holdfast.plan.operation import is_held
from holdfast.plan.pressure import (
    PATIENCE_US,
    BackPressure,
    Limited,
    is_costly,
    limited_operators,
    pressure_of,
)
from holdfast.state import tables
from holdfast.state.bucket_report import WAITING_ROWS_MAX, BucketReport, Pressure
from holdfast.state.call import call
from holdfast.state.step import PLACE, Arrivals, StepTime

LIMIT = 15
ROW = pa.schema([("k", pa.string()), ("t", pa.int64())])
FAST = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="fast")
SLOW = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="slow")
TWO_SIDES = {"x": frozenset({"fast"}), "y": frozenset({"slow"})}


def step_of(limit: int | None) -> SyncStep:
    spec: Any = hf.sync({"x": FAST, "y": SLOW}, by="k", max_waiting_rows=limit).node.spec
    step: SyncStep = spec.step({"x": ROW, "y": ROW})
    return step if limit is not None else replace(step, max_waiting_rows=None)


class Bucket:
    """One bucket of a sync, called epoch by epoch."""

    def __init__(self, limit: int | None) -> None:
        self.step = step_of(limit)
        self.state = tables.empty_state(self.step)
        self.epoch = 0
        self.inputs = ("x", "y")

    def run(self, x: Sequence[int], y: Sequence[int]) -> list[dict[str, Any]]:
        """Take timestamps on both inputs; return the sets."""
        self.epoch += 1
        arrivals = {}
        place = 0
        for name, times in zip(self.inputs, (x, y), strict=True):
            rows = [{"k": "a", "t": t, PLACE: place + at} for at, t in enumerate(times)]
            place += len(times)
            bounds = tables.bounds_schema(self.step.key).append(pa.field(PLACE, pa.int64())).empty_table()
            arrivals[name] = Arrivals(pa.Table.from_pylist(rows, ROW.append(pa.field(PLACE, pa.int64()))), bounds)
        at = StepTime(self.epoch, self.epoch)
        result = call(self.step, self.state, arrivals, at, operator="both", bucket=0)
        self.state = tables.apply_changes(self.state, self.step.tables, result.changes)
        return result.outputs["rows"].to_pylist() if "rows" in result.outputs else []

    @property
    def waiting(self) -> int:
        return sum(self.state[f"waiting_{name}"].num_rows for name in ("x", "y"))


def read_all(limit: int | None, tmp_path: Path) -> tuple[list[Any], int]:
    """Read 60 ticks, ten a list from one source and two a list from the other; return sets, and the most waiting."""
    lists = {
        "fast": [list(range(at, at + 10)) for at in range(0, 60, 10)],
        "slow": [list(range(at, at + 2)) for at in range(0, 60, 2)],
    }
    path = str(tmp_path / f"held-{limit}")
    limits = {} if limit is None else {"both": Limited(limit, TWO_SIDES)}
    pressure, bucket = BackPressure(limits, path, is_bounded=True), Bucket(limit)
    sets: list[Any] = []
    most = 0
    while any(lists.values()):
        given = {name: [] if is_held(path, name) or not left else left.pop(0) for name, left in lists.items()}
        sets += bucket.run(given["fast"], given["slow"])
        most = max(most, bucket.waiting)
        said = pressure_of(bucket.step, bucket.state)
        reported = {"both/0": BucketReport(pressure=said)}
        moved = [name for name, rows in given.items() if rows]
        assert pressure.note(reported, moved, bucket.epoch) == {"both/0": BucketReport()}
    return sets, most


@pytest.mark.slow
def test_a_source_that_runs_ahead_waits_and_the_sets_are_the_same(tmp_path: Path) -> None:
    free, most_free = read_all(None, tmp_path)
    held, most_held = read_all(LIMIT, tmp_path)
    assert held == free
    assert most_free >= 45
    assert most_held < LIMIT + 10  # the epoch that reached the limit is there whole


def test_a_bucket_says_who_is_ahead_and_who_lags() -> None:
    bucket = Bucket(3)
    bucket.run([1, 2], [])
    assert pressure_of(bucket.step, bucket.state) == Pressure()
    bucket.run([3], [])
    assert pressure_of(bucket.step, bucket.state) == Pressure(3, ("x",), ("y",))
    assert pressure_of(step_of(None), bucket.state) is None


def merging(limit: int | None) -> MergeStep:
    spec: Any = hf.merge(FAST, {"y": SLOW}, by="k", max_waiting_rows=limit).node.spec
    step: MergeStep = spec.step({"main": ROW, "y": ROW})
    return step if limit is not None else replace(step, max_waiting_rows=None)


def test_a_merge_says_who_is_ahead_and_who_lags() -> None:
    """Main rows wait for the slow input; slow rows wait for the main input."""
    bucket = Bucket(3)
    bucket.step = merging(3)  # type: ignore[assignment]
    bucket.state = tables.empty_state(bucket.step)
    bucket.inputs = ("main", "y")
    bucket.run([1, 2], [0])
    assert pressure_of(bucket.step, bucket.state) == Pressure()
    bucket.run([3], [])
    assert pressure_of(bucket.step, bucket.state) == Pressure(3, ("main",), ("y",))
    assert [row["t"] for row in bucket.run([], [9])] == [1, 2, 3]
    assert pressure_of(bucket.step, bucket.state) == Pressure()
    bucket.run([], [10, 11])
    assert pressure_of(bucket.step, bucket.state) == Pressure(3, ("y",), ("main",))
    assert pressure_of(merging(None), bucket.state) is None


@pytest.mark.slow
def test_a_merge_holds_the_source_that_runs_ahead_and_gives_the_same_rows(tmp_path: Path) -> None:
    def read(limit: int | None) -> tuple[list[Any], int]:
        lists = {
            "main": [list(range(at, at + 10)) for at in range(0, 60, 10)],
            "y": [[at, at + 1] for at in range(0, 60, 2)],
        }
        path = str(tmp_path / f"merge-{limit}")
        limits = {} if limit is None else {"both": Limited(limit, {"main": frozenset({"main"}), "y": frozenset({"y"})})}
        pressure, bucket = BackPressure(limits, path, is_bounded=True), Bucket(limit)
        bucket.step, bucket.inputs = merging(limit), ("main", "y")  # type: ignore[assignment]
        bucket.state = tables.empty_state(bucket.step)
        rows, most = [], 0
        while any(lists.values()):
            given = {name: [] if is_held(path, name) or not left else left.pop(0) for name, left in lists.items()}
            rows += bucket.run(given["main"], given["y"])
            most = max(most, bucket.state["waiting"].num_rows)
            said = BucketReport(pressure=pressure_of(bucket.step, bucket.state))
            pressure.note({"both/0": said}, [name for name, part in given.items() if part], bucket.epoch)
        return rows, most

    free, most_free = read(None)
    held, most_held = read(LIMIT)
    assert held == free
    assert most_free >= 45
    assert most_held < LIMIT + 10


def limited(kind: str, limit: int | None) -> tuple[Any, Any]:
    """Return an operator with a limit, as it is declared and as it runs."""
    inputs = {"rows": ROW}
    more: Any = {} if limit is None else {"max_waiting_rows": limit}
    if kind == "sync":
        stream, inputs = hf.sync({"x": FAST, "y": SLOW}, by="k", **more), {"x": ROW, "y": ROW}
    elif kind == "merge":
        stream, inputs = hf.merge(FAST, {"y": SLOW}, by="k", **more), {"main": ROW, "y": ROW}
    elif kind == "aggregate":
        stream = FAST | hf.aggregate(by="k", window=hf.sliding(1000, 1), times=hf.collect("t"), **more)
    else:
        stream = FAST | hf.distinct(by="k", horizon=1, disorder=1000, **more)
    spec: Any = stream.node.spec
    return spec, spec.step(inputs)


KINDS = ["sync", "merge", "aggregate", "distinct"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_rows_may_wait_under_one_key_where_nothing_is_said(kind: str) -> None:
    """And what is not said is no argument: names and graphs stay what they were."""
    spec, step = limited(kind, None)
    assert step.max_waiting_rows == WAITING_ROWS_MAX == 1_000_000
    assert spec.arguments().get("max_waiting_rows") is None
    spec, step = limited(kind, 7)
    assert (step.max_waiting_rows, spec.arguments()["max_waiting_rows"]) == (7, 7)
    with pytest.raises(InvalidPipeline, match="max_waiting_rows=0 is not a number of rows"):
        limited(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_at_a_million_rows_is_not_taken_in_every_epoch(kind: str) -> None:
    """By default it is only taken where so many wait at all; a limit that is given is looked at in every epoch."""
    _, step = limited(kind, None)
    assert not is_costly(step, WAITING_ROWS_MAX - 1)
    assert is_costly(step, WAITING_ROWS_MAX)
    assert not is_costly(limited(kind, 1000)[1], WAITING_ROWS_MAX)


@pytest.mark.parametrize("kind", ["aggregate", "distinct"])
def test_what_one_input_keeps_is_reported_at_the_limit_and_nothing_is_dropped(kind: str, tmp_path: Path) -> None:
    """Nobody can be held: a key waits for its own rows.  So the limit is relaxed, and people are told."""
    _, step = limited(kind, 5)
    state = tables.empty_state(step)
    of_one = {"sums": Limited(5, {"rows": frozenset({"fast"})})}
    pressure = BackPressure(of_one, str(tmp_path / "held"), is_bounded=True)
    said = []
    for epoch, times in enumerate([[10], [11, 12], [13, 14]], start=1):
        rows = [{"k": "a", "t": t, PLACE: place} for place, t in enumerate(times)]
        rows.append({"k": "b", "t": times[0], PLACE: len(times)})
        bounds = tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64())).empty_table()
        given = Arrivals(pa.Table.from_pylist(rows, ROW.append(pa.field(PLACE, pa.int64()))), bounds)
        result = call(step, state, {"rows": given}, StepTime(epoch, epoch), operator="sums", bucket=0)
        state = tables.apply_changes(state, step.tables, result.changes)
        report = BucketReport(pressure=pressure_of(step, state))
        said.append(pressure.note({"sums/0": report}, ["fast"], epoch))
        assert not pressure.held
    if kind == "distinct":
        assert state["kept"].num_rows == 8
        assert pressure_of(step, state) == Pressure(5, ("rows",), ("rows",))
        assert "sums/limit" not in said[1]
    assert said[2]["sums/limit"] == BucketReport({"limit_relaxed": 1})
    assert pressure_of(replace(step, max_waiting_rows=10_000), state) == Pressure()


LATE = BucketReport({"late": 0})
RELAXED = BucketReport({"limit_relaxed": 1})


def full(most: int = 20, ahead: str = "x", lagging: str = "y") -> dict[str, BucketReport]:
    return {"both/0": replace(LATE, pressure=Pressure(most, (ahead,), (lagging,)))}


def test_the_limit_is_relaxed_when_who_lags_has_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pressure = BackPressure({"both": Limited(LIMIT, TWO_SIDES)}, str(tmp_path / "held"), is_bounded=True)
    with caplog.at_level(logging.INFO, "holdfast.run"):
        assert pressure.note(full(), ["fast", "slow"], 1) == {"both/0": LATE}
        assert is_held(str(tmp_path / "held"), "fast")
        assert pressure.note({}, ["slow"], 2) == {}
        assert pressure.held == {"fast"}
        assert pressure.note({}, [], 3) == {"both/limit": RELAXED}
        assert not is_held(str(tmp_path / "held"), "fast")
        assert pressure.note(full(39), ["fast"], 4) == {"both/0": LATE}
        assert pressure.held == frozenset()
        pressure.note(full(40), ["fast"], 5)
        assert pressure.held == {"fast"}
        assert pressure.note({}, [], 6) == {"both/limit": RELAXED}
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_a_run_that_waits_for_more_has_patience_with_who_lags(tmp_path: Path) -> None:
    pressure = BackPressure({"both": Limited(LIMIT, TWO_SIDES)}, str(tmp_path / "held"), is_bounded=False)
    pressure.note(full(), ["fast"], 0)
    assert pressure.note({}, [], PATIENCE_US - 1) == {}
    assert pressure.note({}, ["slow"], PATIENCE_US) == {}
    assert pressure.note({}, [], 2 * PATIENCE_US - 1) == {}
    assert pressure.note({}, [], 2 * PATIENCE_US) == {"both/limit": RELAXED}


def test_where_one_source_feeds_both_sides_the_limit_is_relaxed_at_once(tmp_path: Path) -> None:
    one = Limited(LIMIT, {"x": frozenset({"fast"}), "y": frozenset({"fast"})})
    pressure = BackPressure({"both": one}, str(tmp_path / "held"), is_bounded=False)
    assert pressure.note(full(), ["fast"], 1) == {"both/0": LATE, "both/limit": RELAXED}
    assert pressure.held == frozenset()


def test_two_operators_never_hold_each_others_sources(tmp_path: Path) -> None:
    """What one runs ahead with, the other waits for: nobody is held, both limits are relaxed."""
    both = {"both": Limited(LIMIT, TWO_SIDES), "other": Limited(LIMIT, TWO_SIDES)}
    pressure = BackPressure(both, str(tmp_path / "held"), is_bounded=True)
    said = pressure.note({**full(), "other/1": full(ahead="y", lagging="x")["both/0"]}, ["fast", "slow"], 1)
    assert {"both/limit", "other/limit"} <= set(said)
    assert pressure.held == frozenset()


def test_sources_are_found_through_operators_before(tmp_path: Path) -> None:
    def never(part: object) -> list[pa.Schema]:
        raise AssertionError("stage 0 is Arrow's")

    third = hf.read.rows([], schema="k STRING, timestamp BIGINT", timestamp="timestamp", name="third")
    first = hf.sync({"x": FAST, "y": SLOW}, by="k", name="first")
    second = hf.sync({"sets": first, "third": third}, by="k", max_waiting_rows=7, name="second")
    pipeline = hf.Pipeline("p", second | hf.write.console(name="out"))
    stages = build_stages(pipeline, lambda schema: schema, "test", buckets=2, partitions=2, prefix=never)
    sources = {"sets": frozenset({"fast", "slow"}), "third": frozenset({"third"})}
    assert limited_operators(stages) == {"first": Limited(WAITING_ROWS_MAX, TWO_SIDES), "second": Limited(7, sources)}
