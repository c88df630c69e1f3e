"""A run whose page fails goes on, and the page is started again (issue 41, acceptance 5)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.page.beside import PageBeside
from tests.spark.running import eventually

pytestmark = pytest.mark.slow

LIVES = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); sys.stdin.read()"


def begun(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_page_that_is_killed_is_started_again_and_ends_with_the_run(tmp_path: Path) -> None:
    notes = tmp_path / "pids"

    def start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        assert list(arguments[1:]) == ["-m", "holdfast", "dashboard"]
        return subprocess.Popen([sys.executable, "-c", LIVES, str(notes)], stdin=subprocess.PIPE)

    with PageBeside(["dashboard"], start, first_wait_s=0.01):
        for count in (1, 2, 3):
            eventually(lambda count=count: len(begun(notes)) == count, what=f"page number {count}")
            os.kill(begun(notes)[-1], signal.SIGKILL)
        eventually(lambda: len(begun(notes)) == 4, what="one more")
    assert not is_there(begun(notes)[-1])


def test_a_page_that_cannot_be_started_leaves_the_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    def start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        raise OSError("no room for a process")

    with PageBeside(["dashboard"], start, first_wait_s=0.01):
        eventually(lambda: "the page cannot be started: no room for a process" in caplog.text, what="a word of it")


def test_a_page_ends_when_the_process_of_the_run_is_killed(tmp_path: Path) -> None:
    notes = tmp_path / "pids"
    run = f"""
import subprocess, sys, time
from holdfast.page.beside import PageBeside
start = lambda arguments: subprocess.Popen([sys.executable, "-c", {LIVES!r}, {str(notes)!r}], stdin=subprocess.PIPE)
with PageBeside(["dashboard"], start):
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", run])
    try:
        eventually(lambda: bool(begun(notes)), what="the page")
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not is_there(begun(notes)[0]), what="its end")
