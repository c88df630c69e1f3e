"""The first epochs after a start: the first one is small, and each of the next about as long as the run is old.

What a run that is killed has planned, and not finished, takes the next one about as long as this one lived.  So a run
that is killed again and again gets on, however much waits in its sources.  Planning processes read the limit from a
file that the driver writes after each epoch; where an epoch ends is logged as ever, and replayed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.limits import ReadLimit
from holdfast.plan.notes import beside, read_note, write_note

FILE_NAME = "limit"
ROW_SIZE = 80
"""Bytes that a row counts at least: compressed columns say little about the memory and the time that rows take."""
_ENOUGH = 10**12
"""Bytes beyond which there is no limit any more."""


def limit_file(stop_file: str) -> str:
    """Return the path of the file that says how much an epoch takes: beside the one that stops a run."""
    return beside(stop_file, FILE_NAME)


def read_limit(path: str) -> ReadLimit | None:
    """Return how much the next epoch takes of each source at most; None: there is no limit."""
    size_bytes = read_note(path, None)
    return None if size_bytes is None else ReadLimit(max(1, size_bytes // ROW_SIZE), size_bytes)


class Ramp:
    """Says after each epoch how much the next one takes.  Lives on the driver, called by one thread.

    Parameters
    ----------
    path : str
        The file.
    first_bytes : int
        What the first epoch takes of each source at most, in a run whose trigger leaves no time between epochs; 0:
        there is no limit.
    interval_s : float
        Time between two epochs, as the trigger says: the first one may take as long, about, at ``first_bytes`` a
        second.  A run that waits an hour between epochs does not leave what is there for the next hour.
    now_s : callable
        A clock that never goes back, seconds.
    """

    def __init__(
        self, path: str, first_bytes: int, now_s: Callable[[], float] = time.monotonic, *, interval_s: float = 0.0
    ) -> None:
        self._path = path
        self._size_bytes = _as_limit(int(first_bytes * max(1.0, interval_s)))
        self._now_s = now_s
        self._began_s: float | None = None
        self._write()

    def note(self, took_s: float) -> None:
        """Take in how long the epoch took that has just ended, and was planned by this run.

        The next one takes twice as much; more where the run has waited between epochs, as its trigger says.
        """
        if self._size_bytes is None:
            return
        now_s = self._now_s()
        if self._began_s is None:
            self._began_s = now_s - took_s
        times = max(2, int((now_s - self._began_s) / took_s) if took_s > 0 else 0)
        self._size_bytes = _as_limit(self._size_bytes * times)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk: the last limit goes on
            if self._size_bytes is None:
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
            else:
                write_note(self._path, self._size_bytes)


def _as_limit(size_bytes: int) -> int | None:
    """Return a number of bytes; None where it is no limit."""
    return size_bytes if 0 < size_bytes <= _ENOUGH else None
