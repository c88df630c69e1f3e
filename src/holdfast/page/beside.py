"""The page beside a run: a process of its own, started again when it dies; the run goes on whatever becomes of it.

It ends with the process that started it, also where that is killed: its standard input is a pipe, which ends then.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

log = logging.getLogger("holdfast.page")

FIRST_WAIT_S, LAST_WAIT_S = 1.0, 60.0
"""Before it is started again: doubled each time that it has not lived for the longer one."""


class PageBeside:
    """Keeps a page alive, inside of a ``with``.

    Parameters
    ----------
    arguments : sequence of str
        Of ``holdfast``: what the process is.
    start : callable, optional
        Starts it.
    first_wait_s : float
        Seconds before it is started again.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        start: Callable[[Sequence[str]], subprocess.Popen[bytes]] | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._arguments = [sys.executable, "-m", "holdfast", *arguments]
        self._start = start or _start
        self._first_wait_s = first_wait_s
        self._is_over = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="holdfast-page", daemon=True)

    def __enter__(self) -> PageBeside:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        _end(self.process)
        self._thread.join()

    def _keep(self) -> None:
        wait_s = self._first_wait_s
        while not self._is_over.is_set():
            lived = self._one()
            if self._is_over.is_set():
                return
            wait_s = self._first_wait_s if lived else min(2 * wait_s, LAST_WAIT_S)
            log.warning("the page has ended, and is started again in %.0f s; the run goes on", wait_s)
            self._is_over.wait(wait_s)

    def _one(self) -> bool:
        """Let it live; return whether it did for long."""
        try:
            self.process = self._start(self._arguments)
        except OSError as error:
            log.warning("the page cannot be started: %s", error)
            return False
        process = self.process
        if self._is_over.is_set():  # the run has ended meanwhile, and may have seen the process before this one
            _end(process)
        try:
            process.wait(LAST_WAIT_S)
        except subprocess.TimeoutExpired:
            process.wait()
            return True
        finally:
            if process.stdin is not None:
                process.stdin.close()
        return False


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
