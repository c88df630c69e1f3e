"""A supervised run on Spark whose driver, and whose JVM, are killed with SIGKILL (design/0013, section 3)."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.crash.processes import FILES, ROWS_PER_FILE, Case, jvm_of

pytestmark = [pytest.mark.crash, pytest.mark.spark]


def until(look: Callable[[], Any], what: str) -> Any:
    """Return what a look finds, once it finds something."""
    end = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def rows_of(case: Case) -> int:
    with suppress(sqlite3.OperationalError):  # no table yet
        return len(case.rows()["sqlite"])
    return 0


def test_kills_of_the_driver_and_of_the_jvm_are_survived_and_sigterm_is_a_clean_stop(tmp_path: Path) -> None:
    case = Case(tmp_path, ("sqlite",), environment={"HOLDFAST_RESTART_FIRST": "1 ms"})
    case.write_input()
    fault = {"HOLDFAST_FAULT": "publish-uncommitted:3", "HOLDFAST_FAULT_MARK": str(tmp_path / "died")}
    with (tmp_path / "output").open("w") as output:
        supervisor = case.start("--supervise", "--every", "0 s", output=output, **fault)
        seen: list[psutil.Process] = []

        def next_child() -> psutil.Process | None:
            return next((one for one in psutil.Process(supervisor.pid).children() if one not in seen), None)

        seen.append(until(next_child, "the first child"))
        seen.append(until(next_child, "a second child: the first one kills itself in epoch 3"))
        until(lambda: rows_of(case) == FILES * ROWS_PER_FILE, "epoch 3, by the second child")
        jvm_of(seen[-1]).kill()
        seen.append(until(next_child, "a third child"))
        case.write_input(FILES, FILES + 1)
        everything = (FILES + 1) * ROWS_PER_FILE
        until(lambda: rows_of(case) == everything, "epoch 4, by the third child")
        supervisor.send_signal(signal.SIGTERM)
        code = supervisor.wait(timeout=120)
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    case.check_exact(range(everything))
    assert case.leftovers() == []
    assert "the run killed by SIGKILL; restart 1 " in said
    assert "JVM has died" in said


def test_a_spare_takes_over_a_run_that_is_killed_and_every_row_is_there_once(tmp_path: Path) -> None:
    case = Case(tmp_path, ("sqlite",))
    case.write_input(0, 2)
    fault = {"HOLDFAST_FAULT": "publish-uncommitted:4", "HOLDFAST_FAULT_MARK": str(tmp_path / "died")}
    with (tmp_path / "output").open("w") as output:
        supervisor = case.start("--supervise", "--spare", "--every", "0 s", output=output, **fault)

        def ready(other_than: psutil.Process | None = None) -> psutil.Process | None:
            for child in psutil.Process(supervisor.pid).children():
                with suppress(psutil.Error):
                    file = child.environ().get("HOLDFAST_SPARE")
                    if child != other_than and file is not None and Path(file).exists():
                        return child
            return None

        until(lambda: rows_of(case) == 2 * ROWS_PER_FILE, "the first rows")
        spare = until(ready, "a spare")
        (run,) = [child for child in psutil.Process(supervisor.pid).children() if child != spare]
        run.kill()
        for number in range(2, FILES):  # an epoch each, or more: the spare kills itself in the fourth
            case.write_input(number, number + 1)
            until(lambda rows=(number + 1) * ROWS_PER_FILE: rows_of(case) == rows, f"rows of file {number}")
        last = psutil.Process(supervisor.pid).children(recursive=True)
        supervisor.send_signal(signal.SIGTERM)
        code = supervisor.wait(timeout=120)
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    case.check_exact(range(FILES * ROWS_PER_FILE))
    assert case.leftovers() == []
    assert (tmp_path / "died").exists()
    assert "the spare takes over" in said
    _, alive = psutil.wait_procs(last, timeout=30)
    assert alive == []  # no spare, and no JVM of one
