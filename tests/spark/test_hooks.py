"""Hooks around real runs: their order, and which value ``on_recover`` is given (design/0013, section 2)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from tests.spark.counting import counting
from tests.spark.running import die_at, sqlite_rows

pytestmark = pytest.mark.spark

SETTINGS = Settings(buckets=2, checkpoint_freq=86_400_000)
"""A value is asked for behind a run's first epoch and at its end; only a clean stop makes a snapshot."""


class Observer:
    """Hooks that note their calls; the value of a checkpoint is a text that the test sets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.value: Any = None

    @property
    def hooks(self) -> hf.Hooks:
        return hf.Hooks(
            on_setup=lambda: self.calls.append("setup"),
            on_start=lambda: self.calls.append("start"),
            on_checkpoint=self.ask,
            on_recover=lambda value: self.calls.append(("recover", value)),
            on_error=lambda error, operator, rows: self.calls.append(("error", type(error).__name__, operator, rows)),
            on_finish=lambda: self.calls.append("finish"),
            on_teardown=lambda: self.calls.append("teardown"),
        )

    def ask(self) -> Any:
        self.calls.append("checkpoint")
        return self.value

    def taken(self) -> list[Any]:
        taken, self.calls = self.calls, []
        return taken


def run(work: Path, spark: SparkSession, count: int, hooks: hf.Hooks) -> None:
    given = hf.read.rows([[{"k": "a", "v": 1}]] * count, schema="k STRING, v BIGINT", name="given")
    counts = counting(given, name="counts") | hf.write.sqlite(work / "out.db", table="rows", name="table")
    pipeline = hf.Pipeline("counts", counts, hooks=hooks)
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=SETTINGS)


def test_hooks_stand_around_each_run_and_values_come_back_as_state_does(spark: SparkSession, tmp_path: Path) -> None:
    observer = Observer()
    observer.value = "of the first stop"
    run(tmp_path, spark, 2, observer.hooks)
    assert observer.taken() == ["setup", "start", "checkpoint", "checkpoint", "finish", "teardown"]

    observer.value = "behind epoch 3"
    die_at("before-stage", 4)
    with pytest.raises(HoldfastError):
        run(tmp_path, spark, 4, observer.hooks)
    assert observer.taken() == [
        *("setup", ("recover", "of the first stop"), "start", "checkpoint"),
        *(("error", "InternalError", None, None), "teardown"),
    ]
    die_at("before-stage", 4)
    with pytest.raises(HoldfastError):  # a plain restart: the latest value
        run(tmp_path, spark, 4, observer.hooks)
    assert observer.taken()[1] == ("recover", "behind epoch 3")

    faults.install(None)
    # State comes from the snapshot of the first stop, so the value does too: also at the next start, until a new one.
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    observer.value = {"not": {"JSON"}}
    with pytest.raises(InvalidPipeline, match="cannot be kept"):
        run(tmp_path, spark, 4, observer.hooks)
    assert observer.taken()[1] == ("recover", "of the first stop")
    observer.value = b"\x00"
    run(tmp_path, spark, 5, observer.hooks)
    assert observer.taken()[1:3] == [("recover", "of the first stop"), "start"]
    assert sqlite_rows(tmp_path / "out.db", "SELECT n FROM rows") == [1, 2, 3, 4, 5]


def test_a_hook_that_raises_before_the_first_epoch_lets_nothing_begin(spark: SparkSession, tmp_path: Path) -> None:
    torn_down: list[str] = []
    hooks = hf.Hooks(on_start=lambda: 1 // 0, on_teardown=lambda: torn_down.append("teardown"))
    with pytest.raises(InvalidPipeline, match="on_start of pipeline 'counts' raised ZeroDivisionError"):
        run(tmp_path, spark, 1, hooks)
    assert torn_down == ["teardown"]
    assert sqlite_rows(tmp_path / "out.db", "SELECT n FROM rows") == []
    run(tmp_path, spark, 1, hf.Hooks())
    assert sqlite_rows(tmp_path / "out.db", "SELECT n FROM rows") == [1]
