"""Starts a program in a session of its own and kills its whole tree: JVM, Python workers and all, by process id.

Needs nothing but the system: ``/proc`` on Linux, ``ps`` elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
GOING_MAX_S = 10.0
"""How long processes may take to be gone after their SIGKILL."""

MARK = "DEMO_RUN"
"""Environment variable that every process of one run inherits, with a value of its own."""


@dataclass(frozen=True)
class Living:
    """A process that is no zombie: its number alone may be another's by the time it is used."""

    pid: int
    parent: int = field(compare=False)  # who is orphaned gets another
    began: str
    """When it began, in the system's words."""


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
    victims = tree(running.process.pid)
    for victim in victims:
        _send(victim, signal_number)
    running.process.wait()
    # PySpark's workers fork from a daemon of their own; look until nothing that bears the mark is left.
    deadline = time.monotonic() + GOING_MAX_S
    while late := [each for each in living() if each in victims or _bears(each, running.mark)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes survive their SIGKILL: {[process.pid for process in late]}")
        for process in late:
            if process not in victims:
                victims.append(process)
            _send(process, signal.SIGKILL)
        time.sleep(0.01)
    return len(victims)


def kill_one(pid: int) -> int:
    """SIGKILL one process and the children it has; return the number of processes."""
    victims = tree(pid)
    for victim in victims:
        _send(victim, signal.SIGKILL)
    return len(victims)


def tree(pid: int) -> list[Living]:
    """Return a process and all that it has started, parents before children; nothing if it is gone."""
    alive = list(living())
    found = [each for each in alive if each.pid == pid]
    for parent in found:  # NB grows meanwhile
        found += [each for each in alive if each.parent == parent.pid and each not in found]
    return found


def living() -> Iterator[Living]:
    """Yield all processes that live."""
    if (PROC / "self" / "stat").exists():
        for entry in PROC.iterdir():
            if entry.name.isdecimal() and (fields := _stat(entry)) and fields[0] not in "ZX":
                yield Living(int(entry.name), int(fields[1]), fields[19])
        return
    for line in _ps("-A", "-o", "pid=,ppid=,stat=,lstart="):
        pid, parent, state, began = line.split(maxsplit=3)
        if not state.startswith("Z"):
            yield Living(int(pid), int(parent), began)


def _bears(process: Living, mark: str) -> bool:
    wanted = f"{MARK}={mark}"
    if not PROC.joinpath("self").exists():
        return any(wanted in line for line in _ps("-E", "-ww", "-p", str(process.pid), "-o", "command="))
    with suppress(OSError):
        return wanted.encode() in (PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
    return False


def _send(process: Living, signal_number: int) -> None:
    if _is_still(process):  # a process number that was given again is never hit
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal_number)


def _is_still(process: Living) -> bool:
    if not PROC.joinpath("self").exists():
        return process in living()
    fields = _stat(PROC / str(process.pid))
    return bool(fields) and fields[19] == process.began


def _stat(entry: Path) -> list[str]:
    """Return what the kernel says of a process, from its state on; empty: it is gone."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _ps(*arguments: str) -> list[str]:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout.splitlines()
