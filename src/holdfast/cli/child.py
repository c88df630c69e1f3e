"""Children of a supervisor: processes that run a pipeline, and how they report its end.

SIGINT and SIGTERM: the first asks for a graceful stop after the current epoch, the second exits immediately.

Exiting immediately is a crash like any other: whatever was staged is resolved at the next start.  A supervisor's child
does not exit at a second one: a service manager sends each process a signal of its own, and the supervisor forwards
the one that it was sent; when the user asks twice, the supervisor ends the child.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from holdfast.errors import BadRow, HoldfastError
from holdfast.masking import masked
from holdfast.replica.spare_note import SUPERVISED
from holdfast.shards.ends import is_final

log = logging.getLogger("holdfast.supervisor")

VARIABLE = SUPERVISED
"""Names the file in which a child says how it ended."""


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
    is_progress : bool
        Whether it has done something that the next start goes on from, though no epoch was finished.
    """

    code: int
    what: str = ""
    is_final: bool = False
    is_progress: bool = False

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


class ProcessChild:
    """A child of the operating system, in a session of its own: Ctrl-C of a terminal reaches it through us, once.

    Parameters
    ----------
    command : sequence of str
        What to run.
    said : Path
        Where it says how it ended.
    variables : mapping of str to str, optional
        More variables for it.
    has_input : bool
        Whether its standard input is ours.
    """

    def __init__(
        self, command: Sequence[str], said: Path, variables: Mapping[str, str] | None = None, *, has_input: bool = False
    ) -> None:
        said.unlink(missing_ok=True)
        self._said = said
        self._process = subprocess.Popen(
            list(command),
            env={**os.environ, VARIABLE: str(said), **(variables or {})},
            stdin=subprocess.PIPE if has_input else None,
            start_new_session=True,
        )

    def wait(self) -> ChildEnd:
        """Wait for its end; read what it said."""
        code = self._process.wait()
        said: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):  # killed: it said nothing, or not all
            said = json.loads(self._said.read_text())
        flags = (bool(said.get(each, False)) for each in ("is_final", "is_progress"))
        return ChildEnd(code, str(said.get("what", "")), *flags)

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        self._process.send_signal(number)  # nothing if it has been waited for

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def tell(self, line: bytes) -> None:
        """Write the one line that its standard input will ever have."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died just now: its end is read like any other
            self._process.stdin.write(line)
            self._process.stdin.close()

    def dismiss(self) -> None:
        """End it, and wait for its end."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        with suppress(OSError):
            self._process.kill()
        self._process.wait()


def is_supervised() -> bool:
    """Return whether this process is a supervisor's child."""
    return VARIABLE in os.environ


@contextmanager
def told_to_supervisor() -> Iterator[None]:
    """Tell the supervisor, if there is one, of the error that the block raises."""
    try:
        yield
    except HoldfastError as error:
        tell_supervisor(error)
        raise


def tell_supervisor(error: HoldfastError) -> None:
    """Tell the supervisor, if there is one, of the error by which this process ends."""
    if file := os.environ.get(VARIABLE):
        said = {"what": masked(error.what), "is_final": is_final(error)}
        if isinstance(error, BadRow) and error.is_mended_by_start and error.new_columns:
            said["is_progress"] = True  # a schema file is longer
        try:
            Path(file).write_text(json.dumps(said))
        except OSError as silence:  # the disk is full: the exit code of the error itself still says the most
            log.warning("the supervisor does not learn how the run has ended: %s", silence)


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
