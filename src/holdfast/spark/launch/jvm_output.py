"""What the JVM of a session prints, and the Python processes that it starts: read by the driver, masked, and sorted.

A JVM inherits stderr from the process that starts it, and its output there is not filtered: Spark prints each failure
of a task with its whole trace, once per attempt, and its Python processes print theirs when the JVM ends.  Holdfast
gives the JVM that it starts a pipe instead.  A line of a user's function goes to the terminal; Spark's own lines and
traces go to the logger ``holdfast.jvm``, which the run's log file shows and the terminal only at level DEBUG.

- Every line is masked before it goes anywhere.
- The driver reads as long as it lives: a full pipe would hold the JVM.
- When the driver is killed, the pipe has no reader: Java gives up what it cannot print, and the Python processes write
  to Java and not to the pipe.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from holdfast.errors import MARKER, without_records
from holdfast.masking import masked
from holdfast.spark import private

RECORD, LINE_BREAK = "\x1e", "\x1f"
"""What ``log4j2.properties`` puts before each record, and in place of each line break inside of one."""

FILE_ONLY = {"holdfast_file_only": True}
"""As ``holdfast.observe.logs.FILE_ONLY``, which stands above this room."""

LINE_BYTES_MAX = 1 << 20
"""The rest of a longer line is dropped: a function that prints without line breaks must not fill the memory."""

READ_BYTES = 1 << 16
LAST_LINES_COUNT = 8
DRAIN_S = 1.0
"""How long the end of the process waits for what is still in the pipe."""

_log = logging.getLogger("holdfast.jvm")

_OF_NOBODY = re.compile(
    rf"""
    \s+File\ "[^"]*",\ line\ \d+ | \s+[~^]+\s*$                                         # Python's
  | (?:During\ handling\ of\ the\ above|The\ above\ exception\ was\ the\ direct\ cause)
  | Exception\ (?:ignored\ in|in\ thread)\b | (?:BrokenPipe|ConnectionReset)Error:\ \[Errno
  | {private.PRINTED_BY_PROCESSES}
  | \tat\ \S | \s*\.{{3}}\ \d+\ more$ | (?:Caused\ by|\s+Suppressed):\                  # Java's
  | \S+\ (?:HotSpot\(TM\)\ )?64-Bit\ Server\ VM\ warning: | \[[\d.]+s\]\[\w+\s*\]\[
  | WARNING:\ (?:Using\ incubator|An?\ (?:restricted|terminally\ deprecated)\ method|(?:java|sun)\.|Use\ --|Restricted\
      methods\ will|Please\ consider\ reporting)
  | Warning:\ Java\ versions\ >\ Java\ 11\ can\ only\ operate                             # of approx_top_k
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One line that was printed, or one record of Spark's log with all its lines."""

    text: str
    is_of_user: bool


class Sorter:
    """Separates lines of users' functions from records of Spark and from traces, line by line.

    Examples
    --------
    >>> sort = Sorter()
    >>> [said.is_of_user for line in ("hello", "Traceback (most recent call last):", "  x", "KeyError: 1", "bye")
    ...  for said in sort(line)]
    [True, False, False, False, True]
    """

    def __init__(self) -> None:
        self._open = 0  # tracebacks whose last line has not come: several processes may print at once
        self._is_behind_one = False  # what is indented there, or empty, belongs to it

    def __call__(self, line: str) -> list[Said]:
        """Return what the line holds: text of a user that had no line break yet may stand before a record."""
        before, mark, record = line.partition(RECORD)
        found = [Said(before, self._is_of_user(before))] if before or not mark else []
        return [*found, Said(record.replace(LINE_BREAK, "\n").rstrip(), False)] if mark else found

    def _is_of_user(self, line: str) -> bool:
        if line.startswith("Traceback (most recent call last):"):
            self._open += 1
            return False
        if (self._open or self._is_behind_one) and (not line or line[0].isspace()):
            return False
        if self._open:
            self._open -= 1
            self._is_behind_one = True
            return False
        self._is_behind_one = _OF_NOBODY.match(line) is not None
        return not self._is_behind_one


_is_read = threading.Event()


def is_read() -> bool:
    """Tell whether this process has a JVM whose output it reads: one that Holdfast has started."""
    return _is_read.is_set()


class JvmOutput:
    """The pipe that a JVM prints to, and the thread that reads it until the JVM has ended.

    Parameters
    ----------
    ends : tuple of int, optional
        Where to read and to write, of a pipe that is there; a new one when omitted, for all that a JVM prints.
    """

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        if ends is None:
            _is_read.set()
        self._read_end, self.write_end = ends or os.pipe()
        self._sort = Sorter()
        self._line = bytearray()  # as much as there is of the line that has not ended
        self._is_starting = True
        self._last: deque[str] = deque(maxlen=LAST_LINES_COUNT)
        # Held from before a read until what was read has been passed on: what is not in the pipe then is nowhere.
        self._passing = threading.Lock()
        self._has_ended = False
        self._process = os.getpid()
        self._reader = threading.Thread(target=self._read, name="holdfast-jvm-output", daemon=True)
        self._reader.start()
        # A daemon thread that is writing while the interpreter ends makes it abort.
        atexit.register(self.drain)

    def is_launched(self) -> None:
        """Leave the other end to the JVM alone, so that its end ends the pipe."""
        os.close(self.write_end)

    def has_started(self) -> None:
        """From now on lines may be those of users; before, only Java and Spark's scripts print."""
        self._is_starting = False

    def last_lines(self) -> list[str]:
        """Return the last lines of a JVM that has ended, masked, without traces."""
        self._reader.join(timeout=2)
        return [line for line in self._last if not _OF_NOBODY.match(line)]

    def drain(self) -> None:
        """Pass on what is still in the pipe, and nothing after that."""
        if os.getpid() != self._process:
            return
        end = time.monotonic() + DRAIN_S
        while not self._has_ended and time.monotonic() < end:
            if self._passing.acquire(timeout=DRAIN_S):
                try:
                    if self._has_ended or not self._has_more(0):
                        self._end()
                finally:
                    self._passing.release()
            time.sleep(0.001)

    def _has_more(self, timeout_ms: int | None) -> bool:
        # Not select(): it knows the first 1024 files of a process only.
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def _read(self) -> None:
        while self._has_more(None):
            with self._passing:
                data = os.read(self._read_end, READ_BYTES)
                if not data:
                    self._end()
                    os.close(self._read_end)
                    return
                if not self._has_ended:
                    self._take(data)

    def _end(self) -> None:
        if self._line:
            self._pass_on_line()
        self._has_ended = True

    def _take(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for line in ended:
            self._lengthen(line)
            self._pass_on_line()
        self._lengthen(rest)

    def _lengthen(self, data: bytes) -> None:
        self._line += data[: LINE_BYTES_MAX - len(self._line)]

    def _pass_on_line(self) -> None:
        line = self._line.decode(errors="replace").removesuffix("\r")
        self._line.clear()
        # Whatever goes wrong with one line (a closed terminal, a full disk): the JVM must not wait for its reader.
        with suppress(Exception):
            self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        for said in self._sort(line):
            text = masked(without_records(said.text))
            if MARKER in said.text and not text.strip():
                continue
            if self._is_starting or not said.is_of_user:
                self._last.append(text.partition("\n")[0])
                _log.info("%s", text, extra=FILE_ONLY)
            else:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
