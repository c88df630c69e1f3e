"""SIGINT and SIGTERM: the first asks for a graceful stop after the current epoch, the second exits immediately.

Exiting immediately is a crash like any other: whatever was staged is resolved at the next start.  A supervisor's child
does not exit at a second one: a service manager sends each process a signal of its own, and the supervisor forwards
the one that it was sent; when the user asks twice, the supervisor ends the child.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Whether a signal has asked for a stop.  A context: handlers are installed inside and put back afterwards.

    Parameters
    ----------
    leave : callable
        Ends the process with a code, immediately: neither threads nor ``atexit`` are waited for.
    is_supervised : bool
        Whether this process is a supervisor's child.

    Notes
    -----
    Main thread only, as Python wants it.  PySpark installs a SIGINT handler of its own when a session starts: call
    :meth:`install` again after that.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit, *, is_supervised: bool = False) -> None:
        self.asked_by: str | None = None
        self._leave = leave
        self._is_supervised = is_supervised
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            # None: it was set outside Python, and cannot be restored.
            if handler is not None:
                signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers, whatever is installed now."""
        for number in SIGNALS:
            # Ignored from outside (nohup, a background job of a shell without job control): stays ignored.
            if self._before.get(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked_by is not None and self._is_supervised:
            return
        if self.asked_by is not None:
            _say(f"{name} again: exiting now; the next start resolves what is in doubt.", restore_cursor=True)
            self._leave(128 + number)
        else:
            self.asked_by = name
            _say(f"{name}: stopping after the current epoch; again to exit immediately.")


def _say(text: str, *, restore_cursor: bool = False) -> None:
    # Not through sys.stderr: a handler may interrupt a write to it, and then writing to it again is an error.
    cursor = "\x1b[?25h" if restore_cursor and sys.__stderr__ is not None and sys.__stderr__.isatty() else ""
    try:
        os.write(2, f"{cursor}\n{text}\n".encode() if cursor else f"{text}\n".encode())
    except OSError:
        return
