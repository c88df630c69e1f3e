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
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.child import Child, ProcessChild

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline

log = logging.getLogger("holdfast.supervisor")

VARIABLE = "HOLDFAST_SPARE"
"""Names the file by which a spare says that it is ready."""

POLL_S = 0.5
"""How often it is checked whether a spare has to be warmed up."""
WARM_UP_AFTER_S = 60.0
"""A run that has no rows to read finishes no epoch: a spare is warmed up beside it after this time."""


# --- the supervisor's side --------------------------------------------------------------------------------------------


class SpareChild(ProcessChild):
    """A process that waits until it is needed.

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
        super().__init__(command, said, {VARIABLE: str(ready)}, has_input=True)

    @property
    def is_ready(self) -> bool:
        """Whether it is alive and ready."""
        return self._process.poll() is None and self._ready.exists()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def let_go_on(self) -> None:
        """Let it run the pipeline."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died just now: its end is a run's end like any other
            self._process.stdin.write(b"go on\n")
            self._process.stdin.close()

    def dismiss(self) -> None:
        """End it, and wait for its end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(OSError):
            self._process.kill()
        self._process.wait()


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
    """

    def __init__(self, command: Sequence[str], place: Path, progress: Callable[[], Any]) -> None:
        self._command = command
        self._place = place
        self._progress = progress
        self._count = 0
        self._spare: SpareChild | None = None
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
                spare.let_go_on()
                return spare
            spare.dismiss()
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
                self._spare.dismiss()

    def _keep_warm(self) -> None:
        while not self._has_ended.wait(POLL_S):
            with self._lock:
                waited_s = time.monotonic() - self._started_at
                if self._spare is not None and not self._spare.is_alive:
                    # What kills a spare (memory, mostly) is given time to pass.
                    log.warning("the spare has ended, and another one is started in %.0f s", WARM_UP_AFTER_S)
                    self._spare.dismiss()
                    self._spare, self._started_at, self._before = None, time.monotonic(), self._progress()
                elif self._spare is None and (self._progress() != self._before or waited_s > WARM_UP_AFTER_S):
                    self._spare = self._warmed_up()

    def _warmed_up(self) -> SpareChild | None:
        self._count += 1
        try:
            return SpareChild(self._command, self._place / f"ended-{self._count}.json", self._place / "ready")
        except OSError as error:
            log.warning("no spare could be started: %s", error.strerror or error)
            self._started_at, self._before = time.monotonic(), self._progress()
            return None


# --- the spare's side -------------------------------------------------------------------------------------------------


def is_spare() -> bool:
    """Return whether this process must wait until it is needed."""
    return VARIABLE in os.environ


def wait_until_needed(pipeline: Pipeline, options: dict[str, Any]) -> None:
    """Make everything ready that a start of the pipeline needs and no run owns; return when it must start.

    Parameters
    ----------
    pipeline : Pipeline
        As its file says now.  If that or a module that it imports has changed when the spare is needed, the process is
        replaced by a new one, which loads it again.
    options : dict of str to Any
        The arguments of its start.

    Raises
    ------
    SystemExit
        If it is no longer needed.
    """
    ready = Path(os.environ.pop(VARIABLE))
    loaded = _loaded_files()
    import_module("holdfast.spark.launch.early").warm_up(pipeline, options)
    ready.touch()
    if not sys.stdin.buffer.readline():
        sys.exit(0)
    if _loaded_files(loaded) != loaded:
        log.info("what the pipeline was loaded from has changed: it is loaded again")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _loaded_files(names: Sequence[str] | dict[str, int] | None = None) -> dict[str, int]:
    """Return the files of the user's own modules, and when each was changed."""
    if names is None:
        files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
        own = [file for file in files if file and not file.startswith((sys.prefix, sys.base_prefix))]
        names = [*own, *(str(path) for path in import_module("holdfast.cli.target").loaded_files())]
    changed: dict[str, int] = {}
    for name in names:
        with suppress(OSError):
            changed[name] = os.stat(name).st_mtime_ns
    return changed
