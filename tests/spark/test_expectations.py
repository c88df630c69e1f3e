"""Expectations of real runs, by Arrow and by Spark's plan: rows, counts, the ledger, a stop (design/0049, 9)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.commit.ledger import survey
from holdfast.config import Settings
from holdfast.errors import BadRow
from holdfast.health import Health
from holdfast.store.local import LocalStore
from tests.spark.running import CARRIED, STAGED, arrive, die_at, eventually, held_back, sqlite_rows

pytestmark = pytest.mark.spark

IN_SPARK = Settings(columnar=False)
WAYS = {
    "arrow": CARRIED,
    "arrow-staged": STAGED,
    "spark": IN_SPARK,
    "spark-staged": Settings(columnar=False, carry_max="0 B", prefetch_max="0 B"),
}
SPEEDS = [10, 130, None, 50, -1, 70]


def speeds(work: Path, name: str, values: list[int | None], first: int = 0) -> None:
    arrive(work / "in", name, [{"id": first + number, "speed": speed} for number, speed in enumerate(values)])


def rides(work: Path) -> Any:
    return hf.read.files(str(work / "in"), schema="id BIGINT, speed BIGINT", name="rides")


def table(work: Path, name: str = "table", **options: Any) -> hf.SinkNode:
    return hf.write.sqlite(str(work / f"{name}.db"), table="rows", name=name, **options)


def counted(work: Path) -> list[tuple[int, ...]]:
    """Return what the ledger says of the expectation, by epoch."""
    entries = survey(LocalStore(str(work / "checkpoint")))
    return [tuple(entry.content.record.expected["valid"]) for entry in entries if entry.content is not None]


def run_through(pipeline: hf.Pipeline, work: Path, settings: Settings = CARRIED, **options: Any) -> Any:
    run = pipeline.start(checkpoint=work / "checkpoint", trigger=hf.available_now(), settings=settings, **options)
    run.wait()
    return run.status()


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_each_way_counts_and_drops_the_same(tmp_path: Path, settings: Settings) -> None:
    """Alone, and on branches that share a prefix, which Spark computes in one frame."""
    source = rides(tmp_path)
    valid = source | hf.expect("speed between 0 and 120", name="valid", on_fail="reject", max_fraction=0.2)
    fast = valid | hf.expect("speed >= 50", name="fast")
    pipeline = hf.Pipeline("rides", fast | table(tmp_path), valid.rejects | table(tmp_path, "bad"))
    speeds(tmp_path, "a.json", SPEEDS)
    status = run_through(pipeline, tmp_path, settings)
    assert sqlite_rows(tmp_path / "table.db") == [0, 3, 5]
    assert sqlite_rows(tmp_path / "bad.db") == [1, 2, 4]
    by_name = {each.name: (each.rows, each.failed, each.is_broken) for each in status.expectations}
    assert by_name == {"valid": (6, 3, True), "fast": (3, 1, True)}
    assert [reason for reason in status.health.reasons if "expectation 'valid'" in reason]
    assert counted(tmp_path) == [(6, 3, 6, 3)]


@pytest.mark.parametrize("settings", [CARRIED, IN_SPARK], ids=["arrow", "spark"])
def test_one_sink_has_the_counts_in_the_ledger_and_later_runs_go_on(tmp_path: Path, settings: Settings) -> None:
    pipeline = hf.Pipeline("rides", rides(tmp_path) | hf.expect("speed > 0", name="valid") | table(tmp_path))
    speeds(tmp_path, "a.json", SPEEDS)
    run_through(pipeline, tmp_path, settings)
    speeds(tmp_path, "b.json", [1, 0], first=6)
    status = run_through(pipeline, tmp_path, settings)
    assert len(sqlite_rows(tmp_path / "table.db")) == 8
    assert counted(tmp_path) == [(6, 2, 6, 2), (2, 1, 8, 3)]
    (valid,) = status.expectations
    assert (valid.rows, valid.rows_total, valid.failed_total) == (2, 8, 3)


@pytest.mark.parametrize("settings", [CARRIED, IN_SPARK], ids=["arrow", "spark"])
@pytest.mark.parametrize("point", ["after-stage", "after-decide", "after-publish", "before-forget"])
def test_an_epoch_that_is_replayed_is_counted_once(tmp_path: Path, point: str, settings: Settings) -> None:
    pipeline = hf.Pipeline("rides", rides(tmp_path) | hf.expect("speed > 0", name="valid") | table(tmp_path))
    speeds(tmp_path, "a.json", SPEEDS)
    die_at(point, 1)
    with pytest.raises(hf.HoldfastError):
        run_through(pipeline, tmp_path, settings)
    die_at("", 0)
    status = run_through(pipeline, tmp_path, settings)
    assert counted(tmp_path) == [(6, 2, 6, 2)]
    assert len(sqlite_rows(tmp_path / "table.db")) == 6
    assert status.expectations[0].rows_total == 6


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_a_stop_leaves_nothing_of_the_epoch_and_the_next_start_too(tmp_path: Path, settings: Settings) -> None:
    def pipeline(max_fraction: float) -> hf.Pipeline:
        held = rides(tmp_path) | hf.expect("speed > 0", name="valid", on_fail="stop", max_fraction=max_fraction)
        return hf.Pipeline("rides", held | table(tmp_path), held | table(tmp_path, "copy"))

    speeds(tmp_path, "a.json", [1, 2])
    run_through(pipeline(0.3), tmp_path, settings)
    speeds(tmp_path, "b.json", SPEEDS, first=2)
    for _ in range(2):
        with pytest.raises(BadRow, match="2 of 6 rows do not meet it"):
            run_through(pipeline(0.3), tmp_path, settings)
        assert sqlite_rows(tmp_path / "table.db") == sqlite_rows(tmp_path / "copy.db") == [0, 1]
    assert counted(tmp_path) == [(2, 0, 2, 0)]
    run_through(pipeline(0.5), tmp_path, settings)
    assert sqlite_rows(tmp_path / "table.db") == sqlite_rows(tmp_path / "copy.db") == [*range(8)]


def test_an_expectation_behind_state_counts_what_leaves_the_state(tmp_path: Path) -> None:
    source = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, speed BIGINT", name="rides", timestamp="id")
    once = source | hf.distinct(by="id", horizon=100, disorder=100, name="once")
    met = once | hf.expect("speed > 0", name="valid", on_fail="drop")
    spark = once | hf.map(lambda df: df, name="by_spark") | hf.expect("speed > 0", name="other", on_fail="drop")
    pipeline = hf.Pipeline("rides", met | table(tmp_path), spark | table(tmp_path, "copy"))
    speeds(tmp_path, "a.json", SPEEDS)
    speeds(tmp_path, "b.json", SPEEDS)
    status = run_through(pipeline, tmp_path)
    assert sqlite_rows(tmp_path / "table.db") == sqlite_rows(tmp_path / "copy.db") == [0, 1, 3, 5]
    assert {(each.rows, each.failed) for each in status.expectations} == {(6, 2)}


def test_a_sink_that_is_not_fresh_is_told_and_told_again_when_it_is(tmp_path: Path) -> None:
    told: list[Health] = []
    gate = threading.Event()
    sink = held_back(table(tmp_path, freshness="1 s"), gate)
    pipeline = hf.Pipeline("rides", rides(tmp_path) | sink, hooks=hf.Hooks(on_health=told.append))
    speeds(tmp_path, "a.json", [1])
    run = pipeline.start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms"))
    try:
        eventually(lambda: told and not told[-1].is_healthy, what="it is not fresh")
        assert "sink 'table' lacks a row" in told[-1].reasons[0]
        assert run.status().sinks[0].stale_s > 1
        gate.set()
        eventually(lambda: told[-1].is_healthy, what="it is fresh again")
    finally:
        gate.set()
        run.stop()
        run.wait()


def test_a_probe_hears_what_is_wrong_and_what_has_gone(tmp_path: Path) -> None:
    """``status --check``: 0 and 1, of a run that lives and of one that does not."""
    speeds(tmp_path, "a.json", SPEEDS)
    checked = rides(tmp_path) | hf.expect("speed > 0", name="valid", max_fraction=0.5)
    run = hf.Pipeline("rides", checked | table(tmp_path)).start(
        checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms")
    )
    try:
        eventually(lambda: run.status().epoch == 1, what="the first epoch")
        eventually(lambda: probed(tmp_path) == (0, {"is_healthy": True, "reasons": []}), what="healthy")
        speeds(tmp_path, "b.json", [0, -1, 5], first=6)
        eventually(lambda: run.status().epoch == 2, what="the second epoch")
        code, said = probed(tmp_path)
        assert (code, len(said["reasons"])) == (1, 1)
        assert "expectation 'valid' (speed > 0) is broken: 2 of the last 3 rows" in said["reasons"][0]
    finally:
        run.stop()
        run.wait()
    code, said = probed(tmp_path)
    assert (code, said["is_healthy"]) == (1, False)
    assert "no run" in said["reasons"][0]


def probed(work: Path) -> tuple[int, Any]:
    answer = CliRunner().invoke(app, ["status", "--checkpoint", str(work / "checkpoint"), "--check", "--json"])
    return answer.exit_code, json.loads(answer.stdout)
