"""However a run evaluates its rows, every node's time is told, or said to be unknown (design/0049, section 2)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.words import inspection_lines
from holdfast.config import Settings
from holdfast.observe.inspection import inspect_checkpoint
from holdfast.status import Status
from holdfast.store.paths import open_store
from holdfast.time_use import TimeUse

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, v BIGINT"
HERE: Mapping[str, Any] = {}
STAGED: Mapping[str, Any] = {"carry_max": "0 B", "prefetch_max": "0 B"}
IN_SPARK: Mapping[str, Any] = {"columnar": False}


def passed(rows: Any) -> Any:
    return rows


def rows_of(name: str) -> hf.Stream:
    lists = [[{"k": "ab"[number % 2], "t": number + 9 * epoch, "v": number} for number in range(6)] for epoch in (0, 1)]
    return hf.read.rows(lists, schema=SCHEMA, timestamp="t", name=name)


def sink(work: Path, name: str) -> Any:
    return hf.write.sqlite(work / f"{name}.db", table="rows", name=name)


def stateless(work: Path) -> hf.Pipeline:
    """Return a graph with a function, a fan-out, a union and two sinks."""
    called = rows_of("rows") | hf.map_batches(passed, SCHEMA, timestamp="t", name="called")
    some = called | hf.filter("v > 1", name="some")
    both = hf.union(some, rows_of("more"), name="both")
    return hf.Pipeline("times", both | sink(work, "table"), called | sink(work, "other"))


def with_state(work: Path) -> hf.Pipeline:
    """Return a graph with a join behind a function, windows behind that, and two sinks."""
    called = rows_of("rows") | hf.map_batches(passed, SCHEMA, timestamp="t", name="called")
    joined = hf.join(called, rows_of("more"), on="k", within=3, name="joined")
    sums = called | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.sum("v"), name="sums")
    return hf.Pipeline("times", joined | sink(work, "table"), sums | sink(work, "other"))


def used(pipeline: hf.Pipeline, work: Path, spark: SparkSession, settings: Mapping[str, Any]) -> tuple[Status, TimeUse]:
    run = pipeline.run(
        checkpoint=str(work / "checkpoint"),
        trigger=hf.available_now(),
        session=spark,
        settings=Settings(buckets=2, **settings),
    )
    status = run.status()
    assert status.time is not None
    return status, status.time


def check_sums(use: TimeUse) -> None:
    """What is told adds up to what was measured."""
    assert sum(use.stages_ms.values()) == pytest.approx(use.period_ms)
    evaluated = sum(node.evaluate_ms or 0.0 for node in use.nodes) + use.other_ms
    assert evaluated == pytest.approx(use.stages_ms["evaluate"])
    assert use.other_ms >= -1e-6
    published = sum((node.share or 0.0) * use.epoch_ms - (node.evaluate_ms or 0.0) for node in use.nodes)
    assert published == pytest.approx(use.stages_ms["publish"], abs=1e-6)


@pytest.mark.parametrize("settings", [HERE, STAGED], ids=["here", "staged"])
@pytest.mark.parametrize("graph", [stateless, with_state])
def test_every_node_that_arrow_evaluates_has_its_time(
    graph: Any, settings: Mapping[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = graph(tmp_path)
    _, use = used(pipeline, tmp_path, spark, settings)
    assert [node.name for node in use.nodes] == [each.name for each in (*pipeline.nodes, *pipeline.sinks)]
    check_sums(use)
    known = {node.name: node.evaluate_ms for node in use.nodes}
    assert None not in known.values()
    took = [name for name, ms in known.items() if ms and name not in ("table", "other")]
    assert took == [each.name for each in pipeline.nodes], "even the quickest takes some microseconds"
    assert all(node.publish_ms > 0 for node in use.nodes if node.name in ("table", "other"))
    written = {name for name in ("table", "other") if known[name]}
    assert written == ({"table", "other"} if settings is STAGED else set()), "writers are in tasks"
    assert use.limited_by


def test_what_sparks_plan_evaluates_is_unknown_and_its_writers_are_known(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = stateless(tmp_path)
    status, use = used(pipeline, tmp_path, spark, {**IN_SPARK, **STAGED})
    check_sums(use)
    known = {node.name: node.evaluate_ms is not None for node in use.nodes}
    assert known == {each.name: False for each in pipeline.nodes} | {"table": True, "other": True}
    assert all(node.evaluate_ms for node in use.nodes[-2:])
    assert all(each.rows is None for each in status.filters), "what Spark does not count it does not time either"


def test_state_behind_sparks_plan_has_its_time_and_what_is_before_it_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    _, use = used(with_state(tmp_path), tmp_path, spark, IN_SPARK)
    check_sums(use)
    known = {node.name: node.evaluate_ms is not None for node in use.nodes}
    assert known == {"rows": False, "called": False, "more": False, "joined": True, "sums": True} | {
        "table": True,
        "other": True,
    }
    assert all(node.evaluate_ms for node in use.nodes if node.name in ("joined", "sums"))


def test_inspect_tells_where_the_time_of_the_last_run_went(spark: SparkSession, tmp_path: Path) -> None:
    """Without state, too; in the report that the checkpoint has anyway."""
    _, use = used(stateless(tmp_path), tmp_path, spark, HERE)
    checkpoint = tmp_path / "checkpoint"
    inspection = inspect_checkpoint(str(checkpoint), open_store(str(checkpoint)), checkpoint)
    assert inspection.state is not None
    kept = inspection.state.time
    assert kept is not None
    assert [node.name for node in kept.nodes] == [node.name for node in use.nodes]
    check_sums(kept)
    lines = [*inspection_lines(inspection)]
    assert f"  limited by: {kept.limited_by}" in lines
    assert any(line.startswith("  busiest: ") for line in lines)
