"""A shadow follows a pipeline while it runs; a start of the pipeline goes on with what the shadow has kept."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.starts.shadows.following import Following
from holdfast.starts.shadows.reconciling import Reconciling, replica_shadow
from tests.spark.test_reconcile import give, reconciling, source

pytestmark = pytest.mark.spark


def counted(work: Path) -> hf.Pipeline:
    """Return a pipeline whose every row depends on all rows before it."""
    numbered = source(work) | hf.accumulate(by="k", n=hf.count(), name="numbered")
    return hf.Pipeline("counted", numbered | hf.write.sqlite(work / "out.db", table="t", name="table"))


def rows(work: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(work / "out.db")) as connection:
        return connection.execute("SELECT k, n FROM t ORDER BY k, n").fetchall()


def test_a_pipeline_with_state_goes_on_with_the_checkpoint_of_its_shadow(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = counted(tmp_path)
    give(tmp_path, 0, 1)
    main = pipeline.start(checkpoint=str(tmp_path / "main"), trigger=hf.every("0 s"), session=spark)
    following = Following(pipeline, tmp_path / "replica", Settings(), session=spark)
    try:
        wait_for(lambda: main.status().epoch >= 1, main)
        following.start()
        for number in range(2, 6):
            give(tmp_path, number)
            wait_for(lambda n=number: main.status().rows_total == 90 * (n + 1), main)
        wait_for(lambda: following.lag.is_level and following.lag.epoch == main.status().epoch, main)
        assert following.error is None
        assert following.lag.size_bytes > 0, "it says what it costs"
    finally:
        main.stop()
        following.stop()
    checkpoint = following.become_checkpoint()
    give(tmp_path, 6)
    run = pipeline.run(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark)
    assert run.status().rows_total == 90, "nothing is evaluated again for the sink"
    assert rows(tmp_path) == sorted((k, n) for k in range(7) for n in range(1, expected_count(k) + 1))
    assert reconciling(pipeline, tmp_path, spark).look().is_equal


def expected_count(k: int) -> int:
    return sum(i % 7 == k and (number * 100 + i) % 10 != 3 for number in range(7) for i in range(100))


def wait_for(condition: Any, run: hf.Run | None = None) -> None:
    """Wait as long as the test's own time limit allows, or until the run that it waits for has failed."""
    while not condition():
        assert run is None or not run.wait(0), "the run has ended"
        time.sleep(0.05)


def test_where_a_source_was_pruned_the_shadow_of_a_replica_says_what_a_sink_should_hold(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = counted(tmp_path)
    give(tmp_path, 0, 1)
    pipeline.run(checkpoint=str(tmp_path / "main"), trigger=hf.available_now(), session=spark)
    kept = replica_shadow(tmp_path / "replica")
    following = Following(pipeline, kept, Settings(), session=spark)
    following.start()
    wait_for(lambda: following.lag.is_level and following.lag.epoch == 2)
    following.stop()
    (tmp_path / "in/000.json").unlink()
    with pytest.raises(InvalidPipeline, match="cannot be computed from its sources"):
        reconciling(pipeline, tmp_path, spark).look()
    (node,) = pipeline.sinks
    asked = Reconciling(pipeline, node, tmp_path / "replica", kept, Settings(), session=spark)
    found = asked.look()
    assert (found.is_equal, found.actual_count) == (True, 180)
    assert found.expected_from.startswith("the shadow of a replica")


def test_a_shadow_that_keeps_digests_says_what_differs_as_one_that_keeps_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = counted(tmp_path)
    kept = replica_shadow(tmp_path / "replica")
    following = Following(pipeline, kept, Settings(), session=spark, digests_only=True)
    following.start()  # the sink holds nothing, and is not there
    give(tmp_path, 0, 1)
    pipeline.run(checkpoint=str(tmp_path / "main"), trigger=hf.available_now(), session=spark)
    wait_for(lambda: following.error or (following.lag.is_level and following.lag.epoch == 2))
    following.stop()
    assert following.error is None
    assert not [*(kept / "content").rglob("*.parquet")], "no row is kept"
    (node,) = pipeline.sinks
    asked = Reconciling(pipeline, node, tmp_path / "replica", kept, Settings(), session=spark, digests_only=True)
    found = asked.look()
    assert (found.is_equal, found.actual_count) == (True, 180)
    assert found.expected_from.startswith("the shadow of a replica")
    with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM t WHERE k = 2 AND n IN (3, 4)")
        connection.execute("UPDATE t SET n = 999 WHERE k = 5 AND n = 1")
    found = asked.look()
    assert (found.missing_count, found.extra_count, found.changed_count) == (3, 1, 0)
    assert not (kept / "rows").exists()
