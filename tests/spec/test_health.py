"""Health: what is wrong with a run, said of its status, told when it changes (design/0049, 9)."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.display.health import health_of, with_health
from holdfast.health import ExpectationStatus, Health
from holdfast.spark.health_watch import LOOK_S, HealthWatch
from holdfast.status import CheckpointStatus, ShardStatus, SinkStatus, Status

RUNNING = Status("trips", state="running", epoch=4)
TABLE = SinkStatus("table", "sqlite", "exactly-once", stale_s=10.0, freshness_s=60.0)
VALID = ExpectationStatus("valid", "speed > 0", "warn", 0.1, last_rows=50, last_failed=5)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (replace(RUNNING, state="failed", error="BadRow: a row.\n  Why: so."), "the run has failed: BadRow: a row."),
        (replace(RUNNING, state="stopped"), "the run has ended."),
        (replace(RUNNING, waits_for="publish to 'table'"), "is tried again: publish to 'table'"),
        (replace(RUNNING, audit_difference=3), "do not add up, by 3"),
        (replace(RUNNING, shards=(ShardStatus(0, "running"), ShardStatus(1, "waiting", error="no disk\nat all"))), "1"),
        (replace(RUNNING, sinks=(replace(TABLE, stale_s=61.0),)), "sink 'table' lacks a row that is 61 s old"),
        (replace(RUNNING, expectations=(replace(VALID, is_broken=True),)), "'valid' (speed > 0) is broken: 5 of the"),
        (replace(RUNNING, checkpoints=CheckpointStatus(failed=1, last_error="full", is_failing=True)), "made: full"),
    ],
)
def test_what_is_wrong_is_one_reason(status: Status, said: str) -> None:
    (reason,) = health_of(status).reasons
    assert said in reason
    assert "\n" not in reason


def test_what_is_not_wrong_is_none() -> None:
    fine = replace(
        RUNNING,
        sinks=(TABLE, replace(TABLE, stale_s=None), replace(TABLE, stale_s=900.0, freshness_s=None)),
        expectations=(VALID,),
        checkpoints=CheckpointStatus(failed=1, last_error="full"),
        shards=(ShardStatus(0, "running"), ShardStatus(1, "starting")),
    )
    assert health_of(fine).is_healthy


def test_what_changes_is_told_once_and_numbers_are_no_change(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Health] = []
    now = [0.0]
    watch = HealthWatch(told.append, lambda: now[0])

    def look(*stale: float) -> None:
        now[0] += LOOK_S
        sinks = tuple(replace(TABLE, name=f"table{n}", stale_s=each) for n, each in enumerate(stale))
        watch.look_if_due(lambda: with_health(replace(RUNNING, sinks=sinks)))

    with caplog.at_level(logging.WARNING):
        for stale in ((10, 10), (70, 10), (75, 10), (80, 90), (10, 95), (10, 10), (10, 10)):
            look(*stale)
    assert [len(health.reasons) for health in told] == [1, 2, 1, 0]
    assert len(caplog.records) == 2, "each reason when it begins"


def test_a_look_that_fails_or_comes_too_early_is_none() -> None:
    told: list[Health] = []
    now = [100.0]
    watch = HealthWatch(told.append, lambda: now[0])

    def fails() -> Any:
        raise RuntimeError("the gateway is gone")

    watch.look_if_due(fails)
    watch.look_if_due(lambda: with_health(replace(RUNNING, waits_for="x")))
    assert told == []
    now[0] += LOOK_S
    watch.look_if_due(lambda: with_health(replace(RUNNING, waits_for="x")))
    assert len(told) == 1


def test_a_hook_of_the_health_that_raises_leaves_the_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    from holdfast.graph.hooks import Lifecycle

    def tell(health: Health) -> None:
        raise ValueError(health.reasons)

    Lifecycle(hf.Hooks(on_health=tell), "trips").tell_health(Health(("x",)))
    assert "on_health" in caplog.text
