"""What planning logs of who is silent, what the driver makes of it, and when epochs without rows are planned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import holdfast as hf
from holdfast.checkpoint import spark_log
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.plan import operation
from holdfast.plan.chunks import Routing
from holdfast.plan.levels import parts
from holdfast.plan.levels.packing import Packing
from holdfast.positions import SourcePositions
from holdfast.spark import datasource
from holdfast.spark.datasource import _Reader
from holdfast.spark.reading import Reading
from holdfast.state.bucket_report import BucketReport
from tests.spark.running import arrive

SECOND = 1_000_000


class Clock:
    """The planning process's clock."""

    def __init__(self) -> None:
        self.now_us = 100 * SECOND

    def time_ns(self) -> int:
        return self.now_us * 1000

    def monotonic(self) -> float:
        return self.now_us / 1e6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    given = Clock()
    monkeypatch.setattr(datasource, "time", given)
    return given


def planner(
    tmp_path: Path, *, origin: DirectoryHeader | None = None, ticks: bool = False, notes: bool = True
) -> _Reader:
    """Return the planning of a source of files, three rows an epoch."""
    node = hf.read.files(str(tmp_path / "in"), schema="id BIGINT", max_rows_per_epoch=3, name="source").node
    spec: Any = node.spec
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "stop").mkdir(exist_ok=True)
    (tmp_path / "origin.json").write_bytes((origin or DirectoryHeader(1)).to_json())
    packing = Packing("source", 0, None, Routing((), 1, 1), None, {}, (), SECOND) if ticks else None
    reading = Reading(
        spec, "source", str(tmp_path / "work"), 1, 0, str(tmp_path / "stop" / "stop"), str(tmp_path / "origin.json"),
        packing=packing, notes_silence=notes,
    )  # fmt: skip
    return _Reader(reading, StructType())


def lines(tmp_path: Path, name: str, count: int) -> None:
    arrive(tmp_path / "in", name, [{"id": number} for number in range(count)])


def plan(reader: _Reader, start: dict[str, Any]) -> dict[str, Any]:
    """Ask as Spark does: through JSON."""
    return json.loads(json.dumps(reader.latestOffset(start, None)))


def heard(offset: dict[str, Any], batch_us: int) -> int | None:
    """Return what the driver makes of an offset in Spark's log."""
    lines_ = ["v2", json.dumps({"batchTimestampMs": 0}), f"source:{json.dumps(offset)}"]
    return spark_log.active_until(spark_log._parse(lines_).positions, batch_us).get("source")


def test_a_source_that_gives_all_in_one_epoch_logs_nothing_new(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 3)
    reader = planner(tmp_path)
    first = plan(reader, reader.initialOffset())
    assert not {"behind_us", "given_us"} & set(first)
    assert heard(first, 500) is None
    assert plan(reader, first) == first, "and no epoch without rows is planned"


def test_a_source_that_has_more_to_give_is_not_silent_until_it_has_given_all(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 9)
    reader = planner(tmp_path)
    first = plan(reader, reader.initialOffset())
    assert heard(first, 500 * SECOND) == 500 * SECOND, "the batch time itself: not a moment of silence"
    clock.now_us += 30 * SECOND
    second = plan(reader, first)
    assert second["behind_us"] == first["behind_us"], "nothing has changed, and nothing more is logged"
    assert heard(second, 500 * SECOND) == 500 * SECOND
    clock.now_us += 30 * SECOND
    third = plan(reader, second)
    assert third["positions"] == third["newest"]
    assert heard(third, 500 * SECOND) == clock.now_us, "silence begins here"
    clock.now_us += 30 * SECOND
    assert plan(reader, third) == third
    lines(tmp_path, "1.json", 9)
    fourth = plan(reader, third)
    assert heard(fourth, 500 * SECOND) == 500 * SECOND, "there is a backlog again"


def test_what_is_logged_never_falls_when_the_clock_is_set_back(tmp_path: Path, clock: Clock) -> None:
    reader = planner(tmp_path)
    offset = reader.initialOffset()
    seen: list[tuple[int, int]] = []
    for number in range(3):
        lines(tmp_path, f"{number}.json", 6)
        for _ in range(2):
            clock.now_us -= 3600 * SECOND
            offset = plan(reader, offset)
            seen.append((offset["behind_us"], offset.get("given_us", 0)))
    assert seen == sorted(seen)
    assert [spark_log.has_more({"behind_us": behind, "given_us": given}) for behind, given in seen] == [True, False] * 3


def test_a_source_whose_backlog_is_gone_without_rows_says_so_in_one_epoch(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 3)
    reader = planner(tmp_path)
    start = {**plan(reader, reader.initialOffset()), "behind_us": 7}
    told = plan(reader, start)
    assert told == {**start, "given_us": clock.now_us}
    assert plan(reader, told) == told


def test_offsets_of_before_are_understood(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 6)
    reader = planner(tmp_path)
    old = {"positions": {"log": 0}, "size_bytes": 0, "row_count": 0, "newest": {"log": 9}, "ticks": 4}
    assert heard(old, 500) is None, "a replay decides as it did"
    assert {"behind_us", "ticks"} <= set(plan(reader, old))


def test_where_nobody_waits_for_silence_nothing_is_logged(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 9)
    reader = planner(tmp_path, notes=False)
    assert "behind_us" not in plan(reader, reader.initialOffset())


def test_a_replayed_epoch_is_decided_by_its_own_marks(tmp_path: Path, clock: Clock) -> None:
    """The source is far ahead by now; when the epoch ran first it had given all, and the next one had not."""
    lines(tmp_path, "0.json", 9)
    ahead = planner(tmp_path)
    offset = ahead.initialOffset()
    for _ in range(3):
        offset = plan(ahead, offset)
    stops: list[SourcePositions] = [{"log": 0}, {"log": 1}, {"log": 2, "@behind": 50}, {"log": 3, "@behind": 50}]
    origin = DirectoryHeader(5, tuple({"source": stop} for stop in stops), replayed=((3, 1), (4, 2)))
    reader = planner(tmp_path, origin=origin)
    first = plan(reader, reader.initialOffset())
    assert (heard(first, 500), heard(plan(reader, first), 500)) == (None, 500)


def test_a_source_that_is_held_is_not_silent(tmp_path: Path, clock: Clock) -> None:
    lines(tmp_path, "0.json", 3)
    reader = planner(tmp_path, ticks=True)
    first = plan(reader, reader.initialOffset())
    operation.write_held(operation.hold_file(reader.reading.stop_file), ["source"])
    held = plan(reader, first)
    assert heard(held, 500 * SECOND) == 500 * SECOND
    operation.write_held(operation.hold_file(reader.reading.stop_file), [])
    assert heard(plan(reader, held), 500 * SECOND) == clock.now_us


@pytest.mark.slow
def test_epochs_without_rows_are_planned_when_they_can_release_something_and_then_once(
    tmp_path: Path, clock: Clock
) -> None:
    lines(tmp_path, "0.json", 3)
    reader = planner(tmp_path, ticks=True)
    offset = plan(reader, reader.initialOffset())
    file = operation.due_file(reader.reading.stop_file)

    def planned(seconds: int) -> int:
        """Return how many epochs are planned while time passes; nothing is heard of them."""
        nonlocal offset
        count = 0
        for _ in range(10 * seconds):
            clock.now_us += SECOND // 10
            after = plan(reader, offset)
            count += after != offset
            offset = after
        return count

    assert planned(1) == 1, "nobody has said anything yet: one epoch finds out"
    parts.write_due(file, None)
    assert planned(120) == 0
    parts.write_due(file, clock.now_us + 5 * SECOND)
    assert planned(4) == 0
    for _ in range(20):
        clock.now_us += SECOND // 10
        after = plan(reader, offset)
        if after != offset:
            parts.write_due(file, None)  # the epoch has released it
            break
    assert after["ticks"] == offset["ticks"] + 1
    offset = after
    assert planned(120) == 0


def test_what_is_due_within_a_millisecond_of_batch_time_waits_for_the_next_one(tmp_path: Path) -> None:
    file = str(tmp_path / "due")
    parts.write_due(file, 5_000_500)
    assert [operation.is_due(file, now) for now in (5_000_499, 5_000_999, 5_001_000)] == [False, False, True]


def test_a_bucket_knows_the_silence_of_an_input_from_all_its_sources() -> None:
    from holdfast.plan.cutting import build_stages

    def source(name: str) -> hf.Stream:
        return hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name=name)

    first = hf.sync({"a": source("a"), "b": source("b")}, by="k", name="first")
    flat = first | hf.select("k", "timestamp", name="flat")
    seen = hf.merge(source("main"), {"slow": flat}, by="k", idle_after="1 s", name="seen")
    pipeline = hf.Pipeline("p", seen | hf.write.memory("p_seen"))

    def no_prefix(part: object) -> list[pa.Schema]:
        raise AssertionError

    stages = build_stages(pipeline, lambda schema: schema, "t", buckets=1, partitions=1, prefix=no_prefix)
    hosted = stages.stages[2].hosted["seen"]
    assert hosted.sources == {"main": {"main"}, "slow": {"a", "b"}}
    assert hosted.active_until({"a": 3, "b": 8}) == {"slow": 8}


@pytest.mark.parametrize("stop", [{"log": 2}, {"log": 3, "@behind": 50}, {"log": 2, "@behind": 50, "@given": 60}])
def test_an_epoch_up_to_where_a_sink_stands_ends_exactly_there(
    tmp_path: Path, clock: Clock, stop: SourcePositions
) -> None:
    """No record tells how the epoch was cut; with a mark more than the sink has, the sink would hold a part of it."""
    lines(tmp_path, "0.json", 9)
    ahead = planner(tmp_path)
    plan(ahead, plan(ahead, plan(ahead, ahead.initialOffset())))
    origin = DirectoryHeader(5, ({"source": {"log": 0}}, {"source": stop}))
    reader = planner(tmp_path, origin=origin)
    offset = plan(reader, reader.initialOffset())
    texts = ["v2", json.dumps({"batchTimestampMs": 0}), f"source:{json.dumps(offset)}"]
    assert spark_log._parse(texts).positions == {"source": stop}


def test_what_is_due_in_a_bucket_is_not_forgotten_in_an_epoch_that_does_not_call_it(tmp_path: Path) -> None:
    """Behind a plan of Spark's an epoch with rows calls only the buckets that they are for."""
    file = str(tmp_path / "due")
    dues = parts.Dues(file)
    reports = {
        "seen/0": BucketReport({"late": 1}, due_us=90_000_000),
        "seen/1": BucketReport({"late": 0}, due_us=30_000_000),
    }
    assert dues.take(reports) == {"seen/0": BucketReport({"late": 1}), "seen/1": BucketReport({"late": 0})}
    dues.take({"seen/0": BucketReport({"late": 0})})
    assert [operation.is_due(file, now) for now in (29_999_999, 30_000_000)] == [False, True]
    dues.take({"seen/1": BucketReport({"late": 0}, due_us=70_000_000)})
    assert [operation.is_due(file, now) for now in (69_999_999, 70_000_000)] == [False, True]
    dues.take({"seen/1": BucketReport({"late": 0})})
    assert not operation.is_due(file, 900_000_000)
    dues.forget()
    assert operation.is_due(file, 0), "one epoch finds out"


def test_a_backfill_leaves_a_mark_of_its_end_again_that_a_power_cut_has_lost(tmp_path: Path) -> None:
    reader, mark = planner(tmp_path), tmp_path / "marks" / "source.ended"
    reader.reading = replace(reader.reading, is_backfill=True, end_mark=str(mark))
    start = {**reader.initialOffset(), "has_ended": True}
    assert plan(reader, start) == start
    assert mark.exists()
