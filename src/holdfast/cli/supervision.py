"""Supervision: a pipeline runs in a child process, and is restarted when that fails, unless a restart cannot help.

A run whose JVM has died cannot be repaired from inside, and a process that was killed can do nothing at all: so what
restarts it is another process, which neither starts Spark nor holds rows.  A restart is a start like any other: it
takes over, asks the sinks, and continues.

What is final (:func:`holdfast.shards.ends.is_final`) is not started again.  Anything else, a kill included, is:
after waits that double, with jitter, up to a number of *consecutive* restarts.  A child that finished an epoch resets
the count. Where a spare waits (:mod:`holdfast.cli.spare`), the first restart of a row waits for nothing.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from holdfast.cli.child import Child, ChildEnd, ProcessChild
from holdfast.cli.spare import Spares
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.ports import Store
from holdfast.quarantine.search import SEARCH
from holdfast.retry import RetryPolicy
from holdfast.spark.launch import stop_directory
from holdfast.store.paths import checkpoint_directory, open_store

log = logging.getLogger("holdfast.supervisor")

RECORD = "supervisor.json"
"""Key, in the checkpoint, of what the supervisor did."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What is passed on to the child.  SIGHUP too: a terminal that is closed would end us, and not the child's session."""

FINAL_CODES = (0, 2, 3)
"""Exit codes after which nothing is restarted, whatever the child said: done, wrong, fenced."""


class Supervisor:
    """Starts children, one after the other.

    Parameters
    ----------
    start : callable
        Starts a child.
    progress : callable
        Returns another value whenever an epoch was finished.
    retry : RetryPolicy
        The waits; ``attempts`` is how many starts in a row may fail.
    note : callable, optional
        Called before each wait with the total of restarts, the consecutive ones, and the reason.
    has_spare : callable, optional
        Returns whether the next child is ready: then the first restart in a row does not wait.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        progress: Callable[[], Any],
        retry: RetryPolicy,
        note: Callable[[int, int, str], None] = lambda total, in_a_row, why: None,
        has_spare: Callable[[], bool] = lambda: False,
    ) -> None:
        self._start = start
        self._progress = progress
        self._retry = retry
        self._note = note
        self._has_spare = has_spare
        self._random = random.Random(retry.seed)
        self._child: Child | None = None
        self._is_asked = False
        self._left_by: int | None = None
        self._asked: SimpleQueue[int] = SimpleQueue()  # NB no Event: a signal may interrupt a line that holds its lock
        self._undelivered: int | None = None

    def stop(self, number: int) -> None:
        """Pass a signal on to the child, and start none after it; end the child immediately when it is the second one.

        Safe in a signal handler.  A child that is sent the same signal by a service manager, and by us, has been asked
        once: that the user does not want to wait is known here alone.
        """
        if self._is_asked:
            self._left_by = number
            number = signal.SIGKILL
        self._is_asked = True
        self._asked.put(number)
        if self._child is not None:
            self._child.signal(number)
        else:
            self._undelivered = number

    @property
    def is_asked(self) -> bool:
        """Whether a signal has asked for the end: nothing is started after it."""
        return self._is_asked

    def run(self) -> int:
        """Run until a child has ended well, finally, or too often; return the exit code."""
        total = in_a_row = 0
        while True:
            before = self._progress()
            ended = self._one()
            if self._left_by is not None and ended.code < 0:
                return 128 + self._left_by
            if self._is_asked or ended.is_final or ended.code in FINAL_CODES:
                return ended.exit_code
            in_a_row = 0 if ended.is_progress or self._progress() != before else in_a_row
            if in_a_row + 1 >= self._retry.attempts:
                log.error("the run %s; not restarted after %d consecutive restarts", ended.words, in_a_row)
                return ended.exit_code
            total, in_a_row = total + 1, in_a_row + 1
            wait_s = self._retry.wait_s(in_a_row, self._random) if in_a_row > 1 or not self._has_spare() else 0.0
            log.warning(
                "the run %s; restart %d (%d of at most %d consecutive) in %.1f s",
                ended.words,
                total,
                in_a_row,
                self._retry.attempts - 1,
                wait_s,
            )
            self._note(total, in_a_row, ended.words)
            if self._is_asked_within(wait_s):
                return ended.exit_code

    def _one(self) -> ChildEnd:
        """Start a child, and wait for its end; where the system has no room for a process, that is its end."""
        try:
            self._child = self._start()
        except OSError as error:
            return ChildEnd(1, f"no process could be started: {error.strerror or error}")
        if self._undelivered is not None:  # it arrived while there was no child, or no name for it
            self._child.signal(self._undelivered)
        ended = self._child.wait()
        self._child = None
        return ended

    def _is_asked_within(self, wait_s: float) -> bool:
        with suppress(Empty):
            self._asked.get(timeout=wait_s)
        return self._is_asked


def finished(directory: Path) -> tuple[Any, ...]:
    """Return which epoch was finished last, by Spark's files: its directory there, and its number.

    A search for rows that crash the run is progress too, up to its present state.

    Examples
    --------
    >>> finished(Path("/nowhere"))
    ('', -1)
    """
    shards = sorted(directory.glob("shards/[0-9]*"))
    return (*_finished_in(directory), *(each for shard in shards for each in _finished_in(shard)))


def _finished_in(directory: Path) -> tuple[Any, ...]:
    searched: tuple[Any, ...] = ()
    with suppress(OSError, ValueError, KeyError, TypeError):  # damaged: the child reports it, if it matters
        noted = json.loads((directory / SEARCH).read_text())
        searched = (noted["low"], noted["high"], *(noted["trial"] or ()))
    found = directory.glob("spark/*/commits/[0-9]*")
    commits = [path for path in found if path.name.isdigit() and path.parts[-3].isdigit()]  # not a copy that is there
    newest = max(commits, key=lambda path: (int(path.parts[-3]), int(path.name)), default=None)
    return (*(("", -1) if newest is None else (newest.parts[-3], int(newest.name))), *searched)


def supervise(
    target: str,
    *,
    checkpoint: str | os.PathLike[str],
    max_restarts: int | None = None,
    arguments: Sequence[str] = (),
    settings: Settings | None = None,
    spare: bool = False,
) -> int:
    """Run a pipeline in a child process, and restart it when it fails; what ``holdfast run --supervise`` does.

    Parameters
    ----------
    target : str
        ``path/to/file.py:pipeline`` or ``package.module:pipeline``: the child loads it again each time.
    checkpoint : str or path
        Its directory.
    max_restarts : int, optional
        Consecutive restarts, without a finished epoch in between.  Default is the setting ``HOLDFAST_MAX_RESTARTS``.
    arguments : sequence of str
        More arguments for ``holdfast run``, for instance ``["--every", "1s"]``.
    settings : Settings, optional
        Default: read from ``HOLDFAST_*`` variables.  Only the limits of restarts count (``max_restarts``,
        ``restart_first_s``, ``restart_cap_s``): the child is another process, and reads the variables itself.
    spare : bool, default False
        Keep a second process beside the child that has everything ready for a start, and takes over when the child
        dies (:mod:`holdfast.cli.spare`).  It costs its memory: a JVM and some Python processes.

    Returns
    -------
    int
        The exit code of the last child.

    Notes
    -----
    Main thread only: SIGINT, SIGTERM and SIGHUP are forwarded to the child meanwhile, and nothing is started after
    them.
    """
    settings = settings or Settings()
    limit = settings.max_restarts if max_restarts is None else max_restarts
    location = os.fspath(checkpoint)
    directory = checkpoint_directory(location)
    store = open_store(str(directory))
    with stop_directory.temporary() as place:
        command = [sys.executable, "-m", "holdfast", "run", target, "--checkpoint", location, *arguments]
        retry = RetryPolicy(limit + 1, settings.restart_first_s, settings.restart_cap_s)
        spares = None
        if spare:
            spares = Spares(command, place, lambda: finished(directory), lambda: not supervisor.is_asked)
        supervisor = Supervisor(
            (lambda: ProcessChild(command, place / "ended.json")) if spares is None else spares.start,
            lambda: finished(directory),
            retry,
            _noting(store),
            (lambda: False) if spares is None else spares.is_ready,
        )
        try:
            with _passing_signals_on(supervisor):
                return supervisor.run()
        finally:
            if spares is not None:
                spares.end()


def _noting(store: Store) -> Callable[[int, int, str], None]:
    clock = SystemClock()

    def note(total: int, in_a_row: int, why: str) -> None:
        record = {"pid": os.getpid(), "restarts": total, "in_a_row": in_a_row, "why": why, "at_us": clock.now_us()}
        try:
            store.put(RECORD, json.dumps(record).encode())
        except HoldfastError as error:  # the child says so itself if it matters
            log.warning("the restart is not recorded: %s", error.what)

    return note


@contextmanager
def _passing_signals_on(supervisor: Supervisor) -> Iterator[None]:
    def arrived(number: int, frame: FrameType | None) -> None:
        supervisor.stop(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:  # nohup: ignored here, and in the child
            signal.signal(number, arrived)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, before[number])
