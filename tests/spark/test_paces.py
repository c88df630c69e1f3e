"""Sinks at a pace of their own on a real run: due by the clock, asked for, and without the checkpoint (design/0019)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.commit.paced import ask_to_commit
from holdfast.errors import HoldfastError
from holdfast.store.local import LocalStore
from tests.spark.running import die_at, eventually, sqlite_rows

pytestmark = pytest.mark.spark


def test_what_waits_is_committed_by_the_clock_when_asked_for_and_though_the_checkpoint_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="id BIGINT")
    pushed = hf.read.callback(feed, name="pushed")
    paces = {"fast": None, "soon": "200 ms", "slow": "1 h"}
    sinks = {
        name: hf.write.sqlite(tmp_path / f"{name}.db", table="rows", commit_every=every, name=name)
        for name, every in paces.items()
    }
    pipeline = hf.Pipeline("fed", *(pushed | sink for sink in sinks.values()))
    checkpoint = tmp_path / "checkpoint"
    run = pipeline.start(checkpoint=str(checkpoint), trigger=hf.every("20 ms"), session=spark)

    def push(number: int, *held_by: str) -> None:
        feed.push([{"id": number}])
        for name in held_by:
            eventually(lambda name=name: number in held(name), what=f"{name} holds row {number}")

    def held(name: str) -> list[int]:
        return sqlite_rows(tmp_path / f"{name}.db")

    push(0, *paces)
    push(1, "fast", "soon")
    seen = {sink.name: sink for sink in run.status().sinks}
    assert (seen["slow"].pace, seen["slow"].waiting_epochs, seen["slow"].waiting_rows) == ("1 h", 1, 1)
    assert held("slow") == [0]
    ask_to_commit(LocalStore(str(checkpoint)), ["slow"])
    eventually(lambda: held("slow") == [0, 1])
    for number in range(2, 6):
        push(number, "fast")
    die_at("before-stage", run.status().sinks[0].epoch + 1)
    push(6)
    with pytest.raises(HoldfastError):
        run.wait(60)
    faults.install(None)
    assert held("slow") == [0, 1]
    shutil.rmtree(checkpoint)  # and with it what was decided: the feed still has the rows that the slow one lacks
    pipeline.run(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark)
    assert [held(name) for name in paces] == [list(range(7))] * 3
