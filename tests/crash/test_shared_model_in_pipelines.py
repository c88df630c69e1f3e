"""Two pipelines and this process share a model, which is killed, and one pipeline is frozen (design/0046)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.crash.lives import LIFE_MAX_S, Lives
from tests.crash.model_caller import ENTERED, HOLD, calls, model_of
from tests.crash.processes import kill_tree
from tests.crash.test_shared_model import computing, kill, loaded, work  # noqa: F401
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

FILES, ROWS = 6, 20
MODEL = {"max_batch": 64, "max_delay": "20 ms"}


def lives_of(directory: Path) -> Lives:
    """Return a pipeline with its input."""
    (directory / "in").mkdir(parents=True)
    for number in range(FILES):
        path = directory / "in" / f"{number}.json"
        path.write_text("".join(json.dumps({"id": number * ROWS + row}) + "\n" for row in range(ROWS)))
        os.utime(path, (number, number))
    return Lives(
        directory, "model_pipeline", {"CRASH_PIPELINE": str(directory), "CRASH_WORK": os.environ["CRASH_WORK"]}
    )


def end(lives: Lives, process: subprocess.Popen[str]) -> None:
    """Wait for the end of a life, and look at its sink: every row is there once, with the answer to it."""
    assert process.wait(timeout=LIFE_MAX_S) == 0, lives.said()
    ids = range(FILES * ROWS)
    expected = sorted((number, f"{lives.work.name} {number}") for number in ids)
    assert sqlite_rows(lives.work / "out.db", "SELECT id, told FROM told") == expected


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a run and all that it has started."""
    for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def test_nothing_is_lost_or_doubled_when_the_model_is_killed_and_a_pipeline_frozen(
    work: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    left, right = lives_of(tmp_path / "left"), lives_of(tmp_path / "right")
    (work / HOLD).touch()
    running = [left.start(), right.start()]
    try:
        for _ in range(2):
            kill(computing(work))
            (work / ENTERED).unlink()
        computing(work)
        send(running[0], signal.SIGSTOP)
        (work / HOLD).unlink()
        assert calls(model_of(**MODEL), "notebook", count=10)["wrong"] == 0
        end(right, running[1])
        send(running[0], signal.SIGCONT)
        end(left, running[0])
    finally:
        for process in running:
            kill_tree(process)
    assert model_of(**MODEL).stats().restart_count == 2
    assert len(loaded(work)) == 3
