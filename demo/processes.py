"""Starts a program in a session of its own and kills its whole tree: JVM, Python workers and all, by process id."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "DEMO_RUN"
"""Environment variable that every process of one run inherits, with a value of its own."""


@dataclass(frozen=True)
class Running:
    """A started program with its log."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str

    @property
    def has_ended(self) -> bool:
        """Whether the program itself is gone."""
        return self.process.poll() is not None

    def log_tail(self, line_count: int = 30) -> str:
        """Return the last lines it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-line_count:])


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Running:
    """Start a program in a session of its own, its output going to ``log``."""
    mark = uuid.uuid4().hex
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(process, log, mark)


def kill_tree(running: Running, signal_number: int = signal.SIGKILL) -> int:
    """Send a signal (SIGKILL) to the program and everything it started; return the number of processes.

    Notes
    -----
    The tree is listed first and then killed at once, the program before its children, so that no parent has time to
    tidy up.  A child forked in between is orphaned, no longer in the tree: it is found by the mark in its environment.
    One that is going has no environment any more, and is waited for as well.
    """
    victims = [*_tree(running.process.pid)]
    for victim in victims:
        _send(victim, signal_number)
    running.process.wait()
    # PySpark's workers fork from a daemon of their own; look until nothing that bears the mark is left.
    deadline = time.monotonic() + 10
    while late := [*_marked(running.mark), *filter(_is_alive, victims)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes survive their SIGKILL: {[process.pid for process in late]}")
        for process in late:
            if process not in victims:
                victims.append(process)
            _send(process, signal.SIGKILL)
        time.sleep(0.01)
    return len(victims)


def kill_one(process: psutil.Process) -> int:
    """SIGKILL one process and the children it has; return the number of processes."""
    victims = _tree(process.pid)
    for victim in victims:
        _send(victim, signal.SIGKILL)
    return len(victims)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _bears(process, mark)]


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _bears(process: psutil.Process, mark: str) -> bool:
    try:
        return _is_alive(process) and process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def _send(process: psutil.Process, signal_number: int) -> None:
    with suppress(psutil.NoSuchProcess):  # psutil compares start times: a reused process id is never hit
        process.send_signal(signal_number)
