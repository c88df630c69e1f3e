"""Spares: a second process waits beside a supervised run, with everything ready that a start needs and no run owns.

The spare has loaded the pipeline's file and the engine, and has a JVM with a Spark session.  It has not touched the
checkpoint, the sources or the sinks: it fences no run, and holds no rows.  When the run dies, the supervisor lets the
spare continue: from there it is a start like any other.  Another spare is warmed up once the new run has finished an
epoch, so that the takeover has the machine to itself.

Supervisor and spare communicate by the spare's standard input: a line lets it continue, its end (the supervisor is
gone, or ends) ends it.  A file in the supervisor's directory says that the spare is ready.

References
----------
Hot standby of databases; the prefork servers of the web.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.child import Child, ProcessChild, tell_supervisor
from holdfast.cli.failures import as_failure, exit_code
from holdfast.cli.target import loaded_files
from holdfast.replica.spare_note import note_spare

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph

log = logging.getLogger("holdfast.supervisor")

VARIABLE = "HOLDFAST_SPARE"
"""Names the file by which a spare says that it is ready."""

JVM_POLL_S = 1.0
"""How often a spare looks whether its JVM is alive: idle and large, it is what a system without memory ends first."""

POLL_S = 0.5
"""How often it is checked whether a spare has to be warmed up."""
RETRY_S = 60.0
"""How long a spare that has died is not followed by another one."""
WARM_UP_AFTER_S = 60.0
"""A run that has no rows to read finishes no epoch: a spare is warmed up beside it after this time."""


# --- the supervisor's side --------------------------------------------------------------------------------------------


class Spare:
    """A child that waits until it is needed.

    Parameters
    ----------
    command : sequence of str
        What to run.
    said : Path
        Where it says how it ended.
    ready : Path
        Where it says that it is ready.
    """

    def __init__(self, command: Sequence[str], said: Path, ready: Path) -> None:
        ready.unlink(missing_ok=True)
        self._ready = ready
        self.child = ProcessChild(command, said, {VARIABLE: str(ready)}, has_input=True)

    @property
    def is_ready(self) -> bool:
        """Whether it is alive and ready."""
        return self.child.is_alive and self._ready.exists()

    def let_go_on(self) -> ProcessChild:
        """Let it run the pipeline; return it as the run's process."""
        self.child.tell(b"go on\n")
        return self.child


class Spares:
    """Starts children: those that wait ready first.

    Parameters
    ----------
    command : sequence of str
        What a child runs.
    place : Path
        For the files by which children say something.
    progress : callable
        Returns another value whenever an epoch was finished.
    is_wanted : callable, optional
        Returns whether another child may still be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        place: Path,
        progress: Callable[[], Any],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_wanted = is_wanted
        self._not_before = 0.0
        self._command = command
        self._place = place
        self._progress = progress
        self._count = 0
        self._spare: Spare | None = None
        self._said = ""
        """Why there is no spare, as it was said last."""
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._warming = threading.Thread(target=self._keep_warm, name="holdfast-spare", daemon=True)
        self._started_at = time.monotonic()
        self._before = progress()

    def start(self) -> Child:
        """Let the spare continue if it is ready; else start a process."""
        before = self._progress()
        with self._lock:
            self._before, self._started_at = before, time.monotonic()
            spare, self._spare = self._spare, None
            if not self._warming.is_alive():
                self._warming.start()
        if spare is not None:
            if spare.is_ready:
                log.info("the spare takes over")
                return spare.let_go_on()
            spare.child.dismiss()
        return ProcessChild(self._command, self._place / "ended.json")

    def is_ready(self) -> bool:
        """Return whether a spare waits."""
        with self._lock:
            return self._spare is not None and self._spare.is_ready

    def end(self) -> None:
        """End the spare, and start no other one."""
        self._has_ended.set()
        if self._warming.is_alive():
            self._warming.join()
        with self._lock:
            if self._spare is not None:
                self._spare.child.dismiss()

    def _keep_warm(self) -> None:
        while not self._has_ended.wait(POLL_S):
            note_spare(self._place, is_ready=self.is_ready())
            with self._lock:
                if self._spare is not None and not self._spare.child.is_alive:
                    self._spare.child.dismiss()
                    ended, self._spare = self._spare.child.wait(), None
                    self._wait(f"the spare {ended.words}")
                elif self._spare is None and self._is_due():
                    self._spare = self._warmed_up()
                elif self._spare is not None and self._spare.is_ready:
                    self._said = ""

    def _is_due(self) -> bool:
        now = time.monotonic()
        has_begun = self._progress() != self._before or now - self._started_at > WARM_UP_AFTER_S
        return has_begun and now >= self._not_before and self._is_wanted()

    def _warmed_up(self) -> Spare | None:
        self._count += 1
        try:
            return Spare(self._command, self._place / f"ended-{self._count}.json", self._place / "ready")
        except OSError as error:
            self._wait(f"no spare could be started ({error.strerror or error})")
            return None

    def _wait(self, why: str) -> None:
        """Give time to pass to what ends spares: memory, mostly; or a port of Java's that the run has."""
        # Once: what is wrong with the pipeline's file, say, is the same with each spare.
        level = logging.DEBUG if why == self._said else logging.WARNING
        log.log(level, "%s; another one is started in %.0f s", why.removesuffix("."), RETRY_S)
        self._said = why
        self._not_before = time.monotonic() + RETRY_S


# --- the spare's side -------------------------------------------------------------------------------------------------


def is_spare() -> bool:
    """Return whether this process must wait until it is needed."""
    return VARIABLE in os.environ


class Waiting:
    """The process that waits until it is needed.  Made before anything of the user's is loaded.

    An error in the context of it is reported to the supervisor, which logs it, and ends the process.  Its stdout and
    stderr are those of the run beside it: what is printed there is taken for the run's.
    """

    def __init__(self) -> None:
        self._ready = Path(os.environ.pop(VARIABLE))
        # What the user's modules set must not outlast them: a new version of theirs is loaded into what they found.
        self._environment = dict(os.environ)
        self._directory = os.getcwd()

    def __enter__(self) -> None:
        """Tell the supervisor alone from here on."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the process if it cannot be a spare."""
        if isinstance(error, Exception):
            failure = as_failure(error)
            tell_supervisor(failure)
            sys.exit(exit_code(failure))

    def until_needed(self, pipeline: Graph, options: dict[str, Any]) -> None:
        """Make everything ready that a start of the pipeline needs and no run owns; return when it must start.

        Parameters
        ----------
        pipeline : Graph
            As its file says now.  If that or any module that was imported has changed when the spare is needed, the
            process is replaced by a new one, which loads it again.
        options : dict of str to Any
            The arguments of its start.

        Raises
        ------
        SystemExit
            If it is no longer needed, or its JVM has died: then it is no spare.
        """
        loaded = changed_at(loaded_files())
        from holdfast.starts import warm_up

        warm_up.warm_up(pipeline, options)
        self._ready.touch()
        while not select.select([sys.stdin], [], [], JVM_POLL_S)[0]:
            if not warm_up.is_warm():
                self._ready.unlink(missing_ok=True)
                sys.exit(1)
        if not sys.stdin.buffer.readline():
            sys.exit(0)
        if changed_at(loaded) != loaded:
            log.info("what the pipeline was loaded from has changed: it is loaded again")
            sys.stdout.flush()
            os.chdir(self._directory)
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], self._environment)


def changed_at(files: Iterable[str]) -> dict[str, int]:
    """Return when each of these files was changed; those that are gone are left out."""
    changed: dict[str, int] = {}
    for file in files:
        with suppress(OSError):
            changed[file] = os.stat(file).st_mtime_ns
    return changed
