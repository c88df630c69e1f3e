"""Lives of one run: killed, started again, and watched from outside until a right row is there that was not.

A side is a command.  Each life has a variable that says where it dies; the last one has none and ends.  What dies is
the process itself, by SIGKILL, and then everything of its session.  A chain is several deaths of one run, each further
on in the input than the one before: what a death left is what the next life has to recover.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
FILES = 30
ROWS_PER_FILE = 100
EXPECTED = frozenset(range(FILES * ROWS_PER_FILE))
LIFE_MAX_S = 240
PAUSE_S = 0.05
"""Between two looks at a sink: the resolution of the seconds."""


class NotReached(RuntimeError):
    """A life ended before it came to where it was to die.

    Parameters
    ----------
    point : str
        Where that is.
    found : dict
        The figures of the points before.
    said : str
        How it ended.
    """

    def __init__(self, point: str, found: dict[str, dict[str, Any]], said: str) -> None:
        super().__init__(f"{point} was not reached: {said}")
        self.point, self.found = point, found


@dataclass(frozen=True)
class Death:
    """Where one life of a chain dies.

    Parameters
    ----------
    point : str
        The point, as the table names it; empty for a death that only prepares the next one.
    variables : mapping of str to str
        What makes the life die there.
    ids_below : int
        Rows with a smaller number have to be in the sink when the life after the next death begins.
    """

    point: str
    variables: Mapping[str, str]
    ids_below: int = 0


@dataclass(frozen=True)
class Side:
    """How a side is started.

    Parameters
    ----------
    command : sequence of str
        The process.
    variables : mapping of str to str
        What its environment has besides that of this process.
    deaths : sequence of Death
        The deaths of the chain, first things first; a further life then runs to its end.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    deaths: Sequence[Death]


@dataclass(frozen=True)
class Worker:
    """The death of a worker of the last life, which survives it.

    Parameters
    ----------
    point : str
        The point.
    variables : mapping of str to str
        What makes the worker die there.
    mark : Path
        What its death leaves.
    """

    point: str
    variables: Mapping[str, str]
    mark: Path


def write_input(work: Path) -> None:
    """Write the input: files of numbered rows, each with its own minute of event time."""
    directory = work / "in"
    directory.mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        lines = [json.dumps({"id": i, "at": f"2026-01-01T00:{number:02}:00Z", "value": i / 2}) for i in ids]
        path = directory / f"{number:03}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (number + 1, number + 1))


def run_chain(
    side: Side,
    ids: Callable[[], Sequence[int]],
    log: Path,
    worker: Worker | None = None,
    keep: Callable[[dict[str, dict[str, Any]]], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Kill, start again, and so on, until a life runs to its end; return what each death led to.

    Parameters
    ----------
    side : Side
        What is run.
    ids : callable
        Reads the ids in the sink as a reader of it would.
    log : Path
        Where its processes write.
    worker : Worker, optional
        A worker of the last life dies, too.
    keep : callable, optional
        Is given what has been found, after each life.

    Returns
    -------
    dict
        Point -> ``duplicates`` (rows that were not there twice before), ``lost``, ``seconds``.

    Raises
    ------
    NotReached
        If a life ends before its point; it has the figures of the points before.
    """
    found: dict[str, dict[str, Any]] = {}
    last: Death | None = None
    twice_before = 0
    for death in side.deaths:
        life = _Life(side, death.variables, ids, log, is_watched=last is not None)
        if life.code == 0:  # it has gone on to the end: the death before has figures, too
            _note(found, last, life, twice_before, EXPECTED)
        if life.code != -signal.SIGKILL:
            raise NotReached(death.point, found, f"exit code {life.code}\n{log.read_text()[-3000:]}")
        twice_before = _note(found, last, life, twice_before, frozenset(range(death.ids_below)))
        keep(found)
        last = death
    life = _Life(side, {} if worker is None else worker.variables, ids, log, is_watched=last is not None, worker=worker)
    if life.code != 0:
        raise RuntimeError(f"the last life ended with {life.code}:\n{log.read_text()[-3000:]}")
    if worker is None:
        _note(found, last, life, twice_before, EXPECTED)
        return found
    if not worker.mark.exists():
        raise NotReached(worker.point, found, "no worker came to it")
    # What the last life leaves may come from either of the two deaths before: both say so.
    _note(found, last, life, twice_before, EXPECTED)
    found[worker.point] = {**_counts(life, twice_before, EXPECTED), "seconds": life.after_worker_s}
    return found


class _Life:
    """One life, watched from outside until a right row is there that was not."""

    def __init__(
        self,
        side: Side,
        variables: Mapping[str, str],
        ids: Callable[[], Sequence[int]],
        log: Path,
        *,
        is_watched: bool,
        worker: Worker | None = None,
    ) -> None:
        self.first_s: float | None = None
        self.after_worker_s: float | None = None
        before = frozenset(ids()) if is_watched else EXPECTED
        at_worker: frozenset[int] | None = None
        worker_at = 0.0
        process = _start(side, variables, log)
        began = time.time()
        try:
            while process.poll() is None and time.time() < began + LIFE_MAX_S:
                if self.first_s is None and (frozenset(_now(ids)) - before) & EXPECTED:
                    self.first_s = round(time.time() - began, 1)
                if worker is not None and worker.mark.exists() and self.after_worker_s is None:
                    now = frozenset(_now(ids))
                    if at_worker is None:
                        at_worker, worker_at = now, time.time()
                    elif now - at_worker:
                        self.after_worker_s = round(time.time() - worker_at, 1)
                time.sleep(PAUSE_S)
            self.code = process.poll()
        finally:
            _end_session(process)
        self.found = list(ids())
        if self.first_s is None and (frozenset(self.found) - before) & EXPECTED:
            self.first_s = round(time.time() - began, 1)


def _counts(life: _Life, twice_before: int, expected: frozenset[int]) -> dict[str, int]:
    twice = len(life.found) - len(set(life.found))
    wrong = len(set(life.found) - EXPECTED)
    return {"duplicates": twice - twice_before, "lost": len(expected - set(life.found)), "wrong": wrong}


def _note(
    found: dict[str, dict[str, Any]], last: Death | None, life: _Life, twice_before: int, expected: frozenset[int]
) -> int:
    """Note what the death before this life has led to; return how many rows are there twice."""
    if last is not None and last.point:
        found[last.point] = {**_counts(life, twice_before, expected), "seconds": life.first_s}
    return len(life.found) - len(set(life.found))


def _now(ids: Callable[[], Sequence[int]]) -> Sequence[int]:
    """What a reader finds while rows are being written; nothing where it meets a file that is just replaced."""
    try:
        return ids()
    except Exception:  # of any client: the sink may not be there yet
        return ()


def _start(side: Side, variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            list(side.command),
            cwd=ROOT,
            env={**os.environ, **side.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL what is left of a life, by process id, and wait until it is gone."""
    end = time.monotonic() + 30
    while (left := [pid for pid in psutil.pids() if _session_of(pid) == process.pid]) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.02)
    process.wait()


def _session_of(pid: int) -> int | None:
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    return None


def scratch() -> Path:
    """Return a new directory with the input in it."""
    work = Path(tempfile.mkdtemp(prefix="holdfast-matrix-"))
    write_input(work)
    return work
