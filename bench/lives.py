"""Lives: processes of a benchmark that are killed with everything they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.sides import WORK
from holdfast.spark.launch import class_archive
from holdfast.spark.launch.java import require_java


class Life:
    """A process that is killed with everything it started when its block ends."""

    def __init__(self, command: list[str], out: Path) -> None:
        with (out / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=WORK.parent.parent,
            )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *exception: object) -> None:
        with suppress(ProcessLookupError):  # a supervisor that has been asked to end
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def make_archive(cache: Path) -> None:
    """Make an archive of Spark's classes, as an earlier run makes it, for all lives that begin from here on.

    Not the user's: a benchmark leaves nothing behind, and finds nothing.
    """
    os.environ |= {"XDG_CACHE_HOME": str(cache), "HOLDFAST_CLASS_ARCHIVE": "auto"}
    require_java()
    archive = class_archive.path_for(os.environ)
    if archive is not None:
        print("making an archive of Spark's classes", flush=True)
        class_archive.make(archive)


def life_of(module: str, side: str, arguments: Mapping[str, Any], out: Path) -> Life:
    """Begin the life of a side (:mod:`bench.sides`)."""
    return Life([sys.executable, "-m", "bench.sides", module, side, json.dumps(arguments)], out)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds, of the user and the system, of a process that runs and of everything it started."""
    total = 0.0
    root = psutil.Process(pid)
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(each.cpu_times()[:4])  # with those of children that have ended
    return total


class Watch:
    """What a process and everything it started use while a block runs: seconds, processor seconds, the peak of memory.

    Parameters
    ----------
    pid : int, optional
        The process; by default this one.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seconds = self.cpu_s = self.peak_mb = 0.0

    def __enter__(self) -> Watch:
        self._cpu_before_s = cpu_s(self._pid)
        self._started_s = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._started_s
        self.cpu_s = cpu_s(self._pid) - self._cpu_before_s
        self._ends.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """Return what it has seen."""
        return {"seconds": self.seconds, "cpu_s": self.cpu_s, "peak_mb": self.peak_mb}

    def _look(self) -> None:
        # A look at some gigabytes takes the kernel tenths of a second: a fiftieth of the time at most is spent on it.
        while True:
            began_s = time.perf_counter()
            self.peak_mb = max(self.peak_mb, memory_mb(self._pid))
            if self._ends.wait(max(0.5, 50 * (time.perf_counter() - began_s))):
                return


def until(holds: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Wait until something holds.

    Raises
    ------
    RuntimeError
        If the process ends before, or it takes more than five minutes.
    """
    end = time.monotonic() + 300
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the process {process.args!r} ended, or took too long: see its log")
        time.sleep(0.005)


def memory_mb(pid: int) -> float:
    """Return the memory of a process and of everything it started, what several share counted once, in MB."""
    total = 0
    root = psutil.Process(pid)
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            total += each.memory_full_info().pss
    return total / 1e6
