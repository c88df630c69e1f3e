"""Where the threads of a run's Python processes are: each process of this machine writes its stacks when it is asked.

A process registers: a file named by its id and by when it began, in the directory that :data:`VARIABLE` names, to which
``faulthandler`` writes on SIGUSR1, whatever the process is doing.  Only who has registered, is still the same process,
and catches the signal is sent it: it would end any other.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from holdfast.spark.launch import stop_directory

VARIABLE = "HOLDFAST_STACKS"
_SIGNAL = signal.SIGUSR1
_PATIENCE_S = 2.0
_LOOK_S = 0.02

_files: dict[int, object] = {}
"""This process -> what it writes to, open for as long as it lives; a fork has its parent's, until it registers."""


@cache
def directory() -> Path:
    """Return where the processes of this one register; made when it is asked for first."""
    return stop_directory.of_process()


def register() -> None:
    """Let this process write its stacks when it is asked; where that cannot be, it goes on without."""
    place, process = os.environ.get(VARIABLE, ""), os.getpid()
    if not place or process in _files:
        return
    with suppress(OSError, ValueError, RuntimeError):
        if began := _began(process):
            file = open(Path(place) / f"{process}-{began}.stacks", "wb")  # noqa: SIM115
            faulthandler.register(_SIGNAL, file=file, all_threads=True)
            _files[process] = file


def stacks_of_workers(place: Path) -> dict[int, str]:
    """Return the stacks of all processes that have registered and live.

    Parameters
    ----------
    place : Path
        Where they have.

    Returns
    -------
    dict of int to str
        Process -> what it has written; empty where it has not in two seconds.
    """
    asked = {}
    for path in sorted(place.glob("*.stacks")):
        number, _, began = path.stem.partition("-")
        size = path.stat().st_size
        if _is_asked(int(number), began):
            asked[int(number)] = (path, size)
        else:
            path.unlink(missing_ok=True)  # it has ended
    end_s = time.monotonic() + _PATIENCE_S
    return {process: _when_written(path, size, end_s) for process, (path, size) in asked.items()}


def own_stacks(place: Path) -> str:
    """Return the stacks of this process."""
    with open(place / "own", "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def _when_written(path: Path, since: int, end_s: float) -> str:
    """Return what a process has written when nothing is added any more, or when the time is over."""
    before, text = "", _text_since(path, since)
    while (not text or text != before) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        before, text = text, _text_since(path, since)
    return text


def _text_since(path: Path, since: int) -> str:
    try:
        return path.read_bytes()[since:].decode(errors="replace")
    except OSError:
        return ""


def _is_asked(process: int, began: str) -> bool:
    """Send the signal to a process, if it is the one that has registered, and catches it."""
    try:
        handle = os.pidfd_open(process)
    except (OSError, AttributeError):  # it has gone; no Linux
        return False
    try:
        # In this order: the handle is of one process, and what is read is of that one as long as it lives.
        if _began(process) != began or not _catches(process):
            return False
        signal.pidfd_send_signal(handle, _SIGNAL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _began(process: int) -> str:
    """Return when a process began, in ticks since the machine did; empty where that is not known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _catches(process: int) -> bool:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False
