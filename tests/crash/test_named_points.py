"""SIGKILL at every named point of a real run (design/0001, section 3): each crash is followed by a run that recovers.

One chain kills the same pipeline again and again, each time at another point and further on, so that what one crash
left is what the next run has to resolve; the last run survives.  The rows hold a random value: sinks that agree
on it got it from one evaluation.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import faults
from tests.crash.processes import Case

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.postgres]

STAGED = {"HOLDFAST_CARRY_MAX": "0 B"}

CHAINS: dict[str, tuple[tuple[str, ...], dict[str, str], list[str]]] = {
    # name: (sinks, environment, points in the order of their crashes)
    "postgres alone, prepared": (
        ("postgres",),
        {**STAGED, "CRASH_STAGE": "prepared"},
        [
            "before-stage:1",
            "after-stage:1",
            "publish-uncommitted:1",
            "publish-begun:1",
            "after-publish:2",
            "after-stage:3",
        ],
    ),
    "postgres alone, carried": (
        ("postgres",),
        {},
        ["before-publish:1", "publish-uncommitted:1", "after-publish:1", "recovery-resolved", "publish-uncommitted:3"],
    ),
    "sqlite and files, carried": (
        ("sqlite", "files"),
        {},
        [
            "after-decide:1",
            "recovery-resolved",
            "after-publish:2",
            "publish-begun:2",
            "before-forget:3",
            "after-forget:3",
        ],
    ),
    "sqlite, postgres tables and files, staged": (
        ("sqlite", "postgres", "files"),
        {**STAGED, "CRASH_STAGE": "table"},
        [
            "after-stage:1",
            "after-decide:1",
            "publish-uncommitted:2",
            "after-publish:2",
            "publish-begun:3",
            "after-forget:3",
        ],
    ),
}


EVERYDAY = "sqlite, postgres tables and files, staged"
"""Of this chain ``make test`` goes to every other point."""


@pytest.mark.parametrize(
    ("chain", "stride"), [(EVERYDAY, 2), *(pytest.param(chain, 1, marks=pytest.mark.nightly) for chain in CHAINS)]
)
def test_every_row_is_in_every_sink_once_after_a_chain_of_kills(
    chain: str, stride: int, tmp_path: Path, postgres_prepared: Any
) -> None:
    sinks, environment, points = CHAINS[chain]
    case = Case(tmp_path, sinks, postgres_prepared, environment)
    case.write_input()
    for point in points[::stride]:
        killed = case.run(HOLDFAST_FAULT=point)
        assert killed.returncode == -signal.SIGKILL, f"{point} was not reached:\n{killed.stdout[-3000:]}"
    survived = case.run()
    assert survived.returncode == 0, survived.stdout[-3000:]
    case.check_exact()
    assert case.leftovers() == []


def test_a_worker_that_dies_while_it_writes_is_replaced_and_leaves_nothing(
    tmp_path: Path, postgres_prepared: Any
) -> None:
    case = Case(tmp_path, ("postgres", "files"), postgres_prepared, STAGED)
    case.write_input()
    survived = case.run(HOLDFAST_FAULT="stage-write:2", HOLDFAST_FAULT_MARK=str(tmp_path / "died"))
    assert survived.returncode == 0, survived.stdout[-3000:]
    assert (tmp_path / "died").exists(), "no worker reached the point"
    case.check_exact()
    assert case.leftovers() == []


def test_the_chains_reach_every_named_point() -> None:
    reached = {point.partition(":")[0] for _, _, points in CHAINS.values() for point in points}
    elsewhere = [*faults.SNAPSHOT_POINTS, *faults.RESOLVE_POINTS, *faults.REPAIR_POINTS, *faults.COLUMN_POINTS]
    assert reached | {"stage-write", *elsewhere} == set(faults.POINTS)
