"""The job of nothing that a start runs beside itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.launch.warm_workers import warm_workers
from holdfast.spark.state.jobs import ReadTask

pytestmark = pytest.mark.spark


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "holdfast-warm-workers":
            thread.join()


@pytest.mark.parametrize("task", [None, ReadTask, "a program"], ids=["spark's plan", "levels", "a program"])
def test_it_runs_one_job_in_as_many_tasks_as_run_at_a_time(spark: SparkSession, task: object | None) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    warm_workers(spark, 2, task)
    ended()
    (job,) = set(tracker.getJobIdsForGroup()) - before
    info = tracker.getJobInfo(job)
    assert info is not None
    assert info.status == "SUCCEEDED"
    (stage,) = [tracker.getStageInfo(number) for number in info.stageIds]
    assert stage is not None
    assert stage.numTasks == 2


def test_a_job_that_fails_is_the_first_epochs_business(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="holdfast.run")
    gone: Any = SimpleNamespace()  # not even a session
    warm_workers(gone, 2, None)
    ended()
    assert "not warmed up" in caplog.text
