"""Two drivers on one checkpoint: the older one is fenced, exits with code 3, says so once, and changes nothing.

The older driver is put to sleep (SIGSTOP to its whole tree) at a step of its work that a seed chooses among the marks
of :mod:`tests.crash.slow`; the newer one runs meanwhile; then the older one wakes up and goes on as if
nothing had been.
``HOLDFAST_SEED`` chooses other steps.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.crash.drivers import Driver
from tests.crash.processes import ROWS_PER_FILE, Case
from tests.everyday import everyday, seed_of_kills

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.postgres]

SEED = seed_of_kills(1)
FENCED = 3
STAGED = {"HOLDFAST_CARRY_MAX": "0 B"}
INTERLEAVINGS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    # name: (sinks, environment, marks among which the older driver falls asleep)
    "carried, asleep before a sink publishes": (("sqlite", "files"), {}, "*.publishing"),
    "carried into PostgreSQL": (("postgres", "sqlite"), {}, "*.publishing"),
    "staged, asleep while a worker writes": (("sqlite", "files"), STAGED, "*.write*"),
    "staged as prepared transactions": (("postgres",), {**STAGED, "CRASH_STAGE": "prepared"}, "*.staging"),
    "staged, asleep before a sink publishes": (("postgres", "files"), {**STAGED, "CRASH_STAGE": "table"}, "*.publish*"),
}
EVERYDAY: tuple[str, ...] = ()
"""None: the test below, of two that are both at work, is the harder one."""


@pytest.mark.parametrize("name", everyday(INTERLEAVINGS, EVERYDAY))
def test_the_older_driver_is_fenced_and_changes_nothing(name: str, tmp_path: Path, postgres_prepared: str) -> None:
    sinks, environment, steps = INTERLEAVINGS[name]
    case = Case(tmp_path, sinks, postgres_prepared, environment)
    case.write_input()
    chosen = random.Random(f"{SEED} {name}")
    older = Driver(case, "older")
    try:
        older.sleep_at(steps, chosen.randint(1, 3))
        newer = case.run()
        assert newer.returncode == 0, newer.stdout[-3000:]
        before = evidence(case)
        older.wake()
        _check_fenced(older)
        assert evidence(case) == before, "the older driver changed a sink"
    finally:
        older.end()
    case.check_exact()
    _check_nothing_left(case)


def test_the_older_driver_is_fenced_while_the_newer_one_is_at_work(tmp_path: Path, postgres_prepared: str) -> None:
    """Both have staged the same epoch; the older one would publish first, and may not."""
    case = Case(tmp_path, ("sqlite", "files"), postgres_prepared, STAGED)
    case.write_input()
    older, newer = Driver(case, "older"), None
    try:
        older.sleep_at("*.publishing", 1)
        newer = Driver(case, "newer")
        newer.sleep_at("*.publishing", 1)
        before = evidence(case)
        older.wake()
        _check_fenced(older)
        assert evidence(case) == before, "the older driver changed a sink"
        newer.wake()
        assert newer.exit_code() == 0, newer.log()
    finally:
        for driver in (older, newer):
            if driver is not None:
                driver.end()
    case.check_exact()
    _check_nothing_left(case)


@pytest.mark.nightly
def test_a_driver_that_idles_is_fenced_at_its_next_epoch(tmp_path: Path, postgres_prepared: str) -> None:
    """Nothing keeps it from waiting for rows; it must not touch them when they come."""
    case = Case(tmp_path, ("sqlite", "files"), postgres_prepared)
    case.write_input(0, 2)
    older = Driver(case, "older", "--every", "100ms")
    try:
        older.await_marks("*.published", 2)
        newer = case.run()
        assert newer.returncode == 0, newer.stdout[-3000:]
        before = evidence(case)
        case.write_input(2, 4)
        _check_fenced(older)
        assert evidence(case) == before, "the older driver changed a sink"
    finally:
        older.end()
    last = case.run()
    assert last.returncode == 0, last.stdout[-3000:]
    case.check_exact(range(4 * ROWS_PER_FILE))
    _check_nothing_left(case)


def evidence(case: Case) -> dict[str, Any]:
    """Return what the sinks show to a reader, and what their ledgers say."""
    shown: dict[str, Any] = dict(case.rows()) if any((case.work / "checkpoint").glob("ledger/*")) else {}
    files = case.work / "files"
    shown["files"] = sorted(str(path) for path in files.rglob("*.parquet") if "_holdfast" not in path.parts)
    shown["log"] = {str(path): path.read_bytes() for path in files.glob("_holdfast/*/*/log/*.json")}
    return shown


def _check_fenced(driver: Driver) -> None:
    code = driver.exit_code()
    said = driver.log()
    assert code == FENCED, f"exit code {code}:\n{said[-3000:]}"
    assert said.count("Fenced: ") == 1, said[-3000:]
    assert "has taken over" in said
    assert "Traceback" not in said, said[-3000:]
    assert "\tat " not in said, said[-3000:]


def _check_nothing_left(case: Case) -> None:
    """Whatever the older driver had staged is gone after the next start."""
    last = case.run()
    assert last.returncode == 0, last.stdout[-3000:]
    assert case.leftovers() == []
