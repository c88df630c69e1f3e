"""Rows of a side output that a sink holds are sent through a changed graph, each once (design/0013, section 4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.dead_letters import add, described, replay
from holdfast.clock import SystemClock
from holdfast.graph.nodes import Stream
from holdfast.store.local import LocalStore
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark


def test_shed_rows_that_were_written_are_delivered_once_where_nothing_sheds_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    store = LocalStore(str(checkpoint))

    def run(is_limited: bool) -> list[int]:
        frames: Stream = hf.read.files(tmp_path / "in", schema="k STRING, t BIGINT", timestamp="t", name="frames")
        sinks = []
        if is_limited:
            frames = frames | hf.limit_in_flight(1, by="k", timeout=100, name="entry")
            sinks = [frames.shed | hf.write.files(tmp_path / "shed", name="shed")]
        table = frames | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table")
        pipeline = hf.Pipeline("frames", table, *sinks)
        pipeline.run(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark)
        return sqlite_rows(tmp_path / "t.db", "SELECT t FROM rows ORDER BY t")

    arrive(tmp_path / "in", "0.json", [{"k": "a", "t": t} for t in (1, 2, 3)])
    assert run(is_limited=True) == [1]
    for _ in range(2):  # typed twice
        add(store, checkpoint, "frames", [tmp_path / "shed"], SystemClock())
    assert len(replay(store, checkpoint, ())) == 2
    arrive(tmp_path / "in", "1.json", [{"k": "a", "t": 4}])
    assert run(is_limited=False) == [1, 2, 3, 4]
    assert [letter["standing"] for letter in described(store, checkpoint)] == ["replayed"] * 2
    shutil.rmtree(checkpoint / "spark")
    assert run(is_limited=False) == [1, 2, 3, 4], "not even after a replay of what is not in Spark's directory"
