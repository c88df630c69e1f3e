"""Supervision: a pipeline runs in a child process, and is started again when that fails, unless a start cannot help.

A run whose JVM has died cannot be mended from inside, and a process that was killed can do nothing at all: so whoever
restarts it is another process, which neither starts Spark nor holds rows.  A restart is a start like any other: it
takes over, asks the sinks, and goes on.

What is final: ``Fenced`` (two would fence each other for ever), ``InvalidPipeline``, ``BadRow``, ``Diverged`` unless a
sink went back under a live run, and ``Corrupt`` unless it says that the next start restores.  Anything else, a kill
included, is tried again: after waits that double, with jitter, up to a number of restarts *in a row*.  A child that
finished an epoch ends the row.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol

from holdfast.clock import SystemClock
from holdfast.commit.retry import Retry
from holdfast.config import Settings
from holdfast.errors import STATE, BadRow, Corrupt, Diverged, Fenced, HoldfastError, InvalidPipeline
from holdfast.masking import masked
from holdfast.ports import Store
from holdfast.quarantine.search import SEARCH
from holdfast.store.local import open_store
from holdfast.store.paths import checkpoint_directory

log = logging.getLogger("holdfast.supervisor")

VARIABLE = "HOLDFAST_SUPERVISED"
"""Names the file in which a child says how it ended."""
RECORD = "supervisor.json"
"""Key, in the checkpoint, of what the supervisor did."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What is passed on to the child.  SIGHUP too: a terminal that is closed would end us, and not the child's session."""

FINAL_CODES = (0, 2, 3)
"""Exit codes behind which nothing is started again, whatever the child said: done, wrong, fenced."""


def is_final(error: HoldfastError) -> bool:
    """Tell whether a start would meet the same error again.

    Examples
    --------
    >>> is_final(Fenced("it")), is_final(HoldfastError("it")), is_final(Corrupt("it", participant="@state"))
    (True, False, False)
    """
    if isinstance(error, Corrupt):
        return error.participant != STATE
    if isinstance(error, BadRow):
        return not error.is_isolated_later
    if isinstance(error, Diverged):
        return not error.is_mended_by_start
    return isinstance(error, InvalidPipeline | Fenced)


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended.

    Parameters
    ----------
    code : int
        Exit code; negative: the signal that killed it.
    what : str
        What it said; empty where it could say nothing.
    is_final : bool
        Whether another start would meet the same.
    """

    code: int
    what: str = ""
    is_final: bool = False

    @property
    def exit_code(self) -> int:
        """The code to end with, as a shell has it: 128 and the signal's number for a child that was killed."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return f"ended with code {self.code}" + (f": {self.what}" if self.what else "")


class Child(Protocol):
    """A process that runs the pipeline."""

    def wait(self) -> ChildEnd:
        """Wait for its end."""

    def signal(self, number: int) -> None:
        """Pass a signal on; nothing if it has ended."""


class Supervisor:
    """Starts children, one after the other.

    Parameters
    ----------
    start : callable
        Starts a child.
    progress : callable
        Returns another value whenever an epoch was finished.
    retry : Retry
        The waits; ``attempts`` is how many starts in a row may fail.
    note : callable, optional
        Told, before each wait, how many restarts there were in all, how many in a row, and why.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        progress: Callable[[], Any],
        retry: Retry,
        note: Callable[[int, int, str], None] = lambda total, in_a_row, why: None,
    ) -> None:
        self._start = start
        self._progress = progress
        self._retry = retry
        self._note = note
        self._random = random.Random(retry.seed)
        self._child: Child | None = None
        self._is_asked = False
        self._left_by: int | None = None
        self._asked: SimpleQueue[int] = SimpleQueue()  # NB no Event: a signal may interrupt a line that holds its lock
        self._undelivered: int | None = None

    def stop(self, number: int) -> None:
        """Pass a signal on to the child, and start none after it; end the child at once when it is the second one.

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
            in_a_row = 0 if self._progress() != before else in_a_row
            if in_a_row + 1 >= self._retry.attempts:
                log.error("the run %s; not started again after %d restarts in a row", ended.words, in_a_row)
                return ended.exit_code
            total, in_a_row = total + 1, in_a_row + 1
            wait_s = self._retry.wait_s(in_a_row, self._random)
            log.warning(
                "the run %s; restart %d (%d of at most %d in a row) in %.1f s",
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
        if self._undelivered is not None:  # it came while there was no child, or no name for it
            self._child.signal(self._undelivered)
        ended = self._child.wait()
        self._child = None
        return ended

    def _is_asked_within(self, wait_s: float) -> bool:
        with suppress(Empty):
            self._asked.get(timeout=wait_s)
        return self._is_asked


# --- processes --------------------------------------------------------------------------------------------------------


class ProcessChild:
    """A child of the operating system, in a session of its own: Ctrl-C of a terminal reaches it through us, once.

    Parameters
    ----------
    command : sequence of str
        What to run.
    said : Path
        Where it says how it ended.
    """

    def __init__(self, command: Sequence[str], said: Path) -> None:
        said.unlink(missing_ok=True)
        self._said = said
        environment = os.environ | {VARIABLE: str(said)}
        self._process = subprocess.Popen(list(command), env=environment, start_new_session=True)

    def wait(self) -> ChildEnd:
        """Wait for its end; read what it said."""
        code = self._process.wait()
        said: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):  # killed: it said nothing, or not all
            said = json.loads(self._said.read_text())
        return ChildEnd(code, str(said.get("what", "")), bool(said.get("is_final", False)))

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        self._process.send_signal(number)  # nothing if it has been waited for


def is_supervised() -> bool:
    """Tell whether this process is a supervisor's child."""
    return VARIABLE in os.environ


@contextmanager
def told_to_supervisor() -> Iterator[None]:
    """Tell the supervisor, if there is one, of the error that the block raises."""
    try:
        yield
    except HoldfastError as error:
        if file := os.environ.get(VARIABLE):
            said = json.dumps({"what": masked(error.what), "is_final": is_final(error)})
            try:
                Path(file).write_text(said)
            except OSError as silence:  # the disk is full: the exit code of the error itself still says the most
                log.warning("the supervisor is not told how the run has ended: %s", silence)
        raise


def finished(directory: Path) -> tuple[Any, ...]:
    """Return which epoch was finished last, as Spark's files tell it: its directory there, and its number.

    A search for rows that kill the run is progress too, as far as it has come.

    Examples
    --------
    >>> finished(Path("/nowhere"))
    ('', -1)
    """
    searched: tuple[Any, ...] = ()
    with suppress(OSError, ValueError, KeyError, TypeError):  # damaged: the child tells of it, if it matters
        noted = json.loads((directory / SEARCH).read_text())
        searched = (noted["low"], noted["high"], *(noted["trial"] or ()))
    found = directory.glob("spark/*/commits/[0-9]*")
    commits = [path for path in found if path.name.isdigit() and path.parts[-3].isdigit()]  # not a copy that lies there
    newest = max(commits, key=lambda path: (int(path.parts[-3]), int(path.name)), default=None)
    return (*(("", -1) if newest is None else (newest.parts[-3], int(newest.name))), *searched)


def supervise(
    target: str,
    *,
    checkpoint: str,
    max_restarts: int | None = None,
    arguments: Sequence[str] = (),
    settings: Settings | None = None,
) -> int:
    """Run a pipeline in a child process, and start it again when it fails; what ``holdfast run --supervise`` does.

    Parameters
    ----------
    target : str
        ``path/to/file.py:pipeline`` or ``package.module:pipeline``: the child loads it anew each time.
    checkpoint : str
        Its directory.
    max_restarts : int, optional
        Restarts in a row, without a finished epoch between them.  Default is the setting ``HOLDFAST_MAX_RESTARTS``.
    arguments : sequence of str
        More arguments for ``holdfast run``, for instance ``["--every", "1s"]``.
    settings : Settings, optional
        Default: read from ``HOLDFAST_*`` variables.  Only the limits of restarts count (``max_restarts``,
        ``restart_first_s``, ``restart_cap_s``): the child is another process, and reads the variables itself.

    Returns
    -------
    int
        The exit code of the last child.

    Notes
    -----
    Main thread only: SIGINT, SIGTERM and SIGHUP are passed on to the child meanwhile, and nothing is started after
    them.
    """
    settings = settings or Settings()
    limit = settings.max_restarts if max_restarts is None else max_restarts
    directory = checkpoint_directory(checkpoint)
    store = open_store(str(directory))
    with tempfile.TemporaryDirectory(prefix="holdfast-supervisor-") as place:
        command = [sys.executable, "-m", "holdfast", "run", target, "--checkpoint", checkpoint, *arguments]
        supervisor = Supervisor(
            lambda: ProcessChild(command, Path(place) / "ended.json"),
            lambda: finished(directory),
            Retry(limit + 1, settings.restart_first_s, settings.restart_cap_s),
            _noting(store),
        )
        with _passing_signals_on(supervisor):
            return supervisor.run()


def _noting(store: Store) -> Callable[[int, int, str], None]:
    clock = SystemClock()

    def note(total: int, in_a_row: int, why: str) -> None:
        record = {"pid": os.getpid(), "restarts": total, "in_a_row": in_a_row, "why": why, "at_us": clock.now_us()}
        try:
            store.put(RECORD, json.dumps(record).encode())
        except HoldfastError as error:  # the child says so itself if it matters
            log.warning("the restart is not noted: %s", error.what)

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
