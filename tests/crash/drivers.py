"""A real run that says where it is: waited for, put to sleep in the middle of a step, and woken up again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.crash.processes import Case, kill_tree

SLOW_S = 1.0
"""Long against the test's reaction to a mark: what the test does falls into the middle of the step."""


class Driver:
    """One ``holdfast run`` that leaves marks, with everything it started.

    Parameters
    ----------
    case : Case
        The pipeline.
    name : str
        Of its marks and its log.
    *arguments, **environment
        As for :meth:`Case.start`.
    """

    def __init__(self, case: Case, name: str, *arguments: str, **environment: str) -> None:
        self._marks = case.work / f"marks-{name}"
        self._marks.mkdir()
        self._log = case.work / f"{name}.log"
        with self._log.open("w") as output:
            steps = {"CRASH_SLOW_S": str(SLOW_S), "CRASH_MARKS": str(self._marks), **environment}
            self._process = case.start(*arguments, output=output, **steps)
        self._asleep: list[psutil.Process] = []

    def await_marks(self, pattern: str, count: int) -> None:
        """Wait for so many marks of a pattern."""
        self.await_that(lambda: len(list(self._marks.glob(pattern))) >= count, f"{count} marks {pattern}")

    def sleep_at(self, pattern: str, count: int) -> None:
        """Put the whole tree to sleep as soon as there are so many marks of a pattern."""
        self.await_marks(pattern, count)
        root = psutil.Process(self._process.pid)
        for process in (root, *root.children(recursive=True)):  # the driver first: it starts the others
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                self._asleep.append(process)

    def wake(self) -> None:
        """Let all of it go on."""
        for process in reversed(self._asleep):
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._asleep.clear()

    def exit_code(self) -> int:
        """Wait for the end."""
        return self._process.wait(timeout=180)

    def interrupted(self) -> int:
        """Ask it to end, as Ctrl-C does, and wait for that."""
        self._process.send_signal(signal.SIGINT)
        return self.exit_code()

    def log(self) -> str:
        """Everything it has said."""
        return self._log.read_text()

    def end(self) -> None:
        """Leave nothing running."""
        self.wake()
        kill_tree(self._process)

    def await_that(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, which must be before the end."""
        end = time.monotonic() + 120
        while not holds():
            assert self._process.poll() is None, f"ended before {what}:\n{self.log()[-3000:]}"
            assert time.monotonic() < end, f"not in time: {what}\n{self.log()[-3000:]}"
            time.sleep(0.005)
