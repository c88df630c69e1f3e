"""SIGTERM for every process of a run at once, as a service manager sends it, is a stop (design/0013, section 3)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.crash.processes import FILES, ROWS_PER_FILE, Case, kill_tree

pytestmark = [pytest.mark.crash, pytest.mark.spark]


def signal_group(process: subprocess.Popen[str]) -> None:
    """What a shell's ``kill -- -PGID`` and Ctrl-C do, and most process managers."""
    os.killpg(process.pid, signal.SIGTERM)


def signal_each(process: subprocess.Popen[str]) -> None:
    """What systemd does (``KillMode=control-group``): whatever group or session a process is in."""
    root = psutil.Process(process.pid)
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(("send", "arguments"), [(signal_group, ()), (signal_each, ("--supervise",))])
def test_sigterm_for_every_process_stops_after_the_epoch_with_0(
    tmp_path: Path, send: Callable[[subprocess.Popen[str]], None], arguments: tuple[str, ...]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    # Executors stage each epoch, slowly: the signal meets workers in the middle of epoch 2.
    slowly = {"CRASH_SLOW_S": "0.4", "CRASH_MARKS": str(marks), "HOLDFAST_CARRY_MAX": "0 B"}
    case = Case(tmp_path, ("sqlite", "files"), environment=slowly)
    case.write_input()
    with (tmp_path / "output").open("w") as output:
        run = case.start("--every", "0 s", *arguments, output=output)
        try:
            end = time.monotonic() + 120
            while not list(marks.glob("2.*")):
                assert time.monotonic() < end, (tmp_path / "output").read_text()
                assert run.poll() is None, (tmp_path / "output").read_text()
                time.sleep(0.02)
            send(run)
            code = run.wait(timeout=120)
        finally:
            kill_tree(run)
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    assert "SIGTERM: stopping after the current epoch" in said
    assert "Error" not in said
    held = len(case.rows()["sqlite"])
    assert held % (2 * ROWS_PER_FILE) == 0, "whole epochs"
    assert held < FILES * ROWS_PER_FILE, "it stopped before the end"
    case.check_exact(range(held))
    assert case.leftovers() == []
