"""A row that kills the driver with SIGKILL, supervised: it ends as a dead letter (design/0013, section 4)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.quarantine.dead_letters import read_letters
from holdfast.store.local import LocalStore
from tests.crash.processes import ROOT

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]


def holdfast(work: Path, *arguments: str, bad: int) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "CRASH_WORK": str(work),
        "CRASH_BAD": str(bad),
        "HOLDFAST_DRIVER_MEMORY": "1 GiB",
        "HOLDFAST_POISON_ATTEMPTS": "1",
        "HOLDFAST_RESTART_FIRST": "1 ms",
    }
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments, "--checkpoint", str(work / "checkpoint")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_row_that_kills_the_driver_is_isolated_under_the_supervisor_and_comes_back_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps({"id": one}) + "\n" for one in range(3)))
    run = ["run", f"{ROOT}/tests/crash/poisoned.py:pipeline", "--master", "local[2]", "--available-now"]
    said = holdfast(tmp_path, *run, "--supervise", "--on-poison", "isolate", bad=1)
    assert "the run killed by SIGKILL; restart 1 " in said
    (letter,) = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert (letter.table.to_pylist(), letter.error["kind"]) == ([{"id": 1}], "Unavailable")
    assert rows(tmp_path) == [0, 2]
    assert letter.name in holdfast(tmp_path, "dead-letters", "list", bad=-1)
    holdfast(tmp_path, "dead-letters", "replay", bad=-1)
    holdfast(tmp_path, *run, bad=-1)
    assert rows(tmp_path) == [0, 1, 2]


def rows(work: Path) -> list[int]:
    with sqlite3.connect(work / "out.db") as connection:
        return sorted(one for (one,) in connection.execute("SELECT id FROM rows"))
