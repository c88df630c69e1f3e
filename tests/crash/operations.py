"""Deaths before single file operations.

An audit hook sees every file that is created, linked, renamed or removed.  At the n-th of them the "process" dies: the
operation does not happen, and neither does any later one, so no ``finally`` can tidy up what a SIGKILL would have left.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from holdfast.connectors.byte_stream.staging import write_all

_CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


class Death(BaseException):
    """The process is gone."""


class Mortal:
    """Counts changes below a directory and dies at one of them."""

    def __init__(self) -> None:
        self.directory = ""
        self.left = 0
        self.is_dead = False

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.directory or not self._is_change(event, arguments):
            return
        self.left -= 1
        if self.is_dead or self.left < 0:
            self.is_dead = True
            raise Death

    def _is_change(self, event: str, arguments: tuple[object, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            creates = isinstance(flags, int) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            return bool(creates) and isinstance(path, str) and path.startswith(self.directory)
        if event not in _CHANGES:
            return False
        # Below a directory descriptor (shutil.rmtree) the path is relative; nothing else runs in this thread.
        return isinstance(arguments[0], str)


MORTAL = Mortal()
# An audit hook cannot be removed; it does nothing while no directory is set.
sys.addaudithook(MORTAL.audit)


def torn_write(fd: int, views: Sequence[memoryview | bytes]) -> None:
    """Write; where the process is to die, only a half."""
    if MORTAL.directory:
        MORTAL.left -= 1
        if MORTAL.is_dead or MORTAL.left < 0:
            if not MORTAL.is_dead:
                data = b"".join(views)
                os.write(fd, data[: len(data) // 2])
            MORTAL.is_dead = True
            raise Death
    write_all(fd, views)


@contextmanager
def dying(directory: Path, at: int) -> Iterator[None]:
    MORTAL.directory, MORTAL.left, MORTAL.is_dead = os.fspath(directory), at, False
    try:
        yield
    except Death:
        pass
    finally:
        MORTAL.directory = ""


def survived(act: Callable[[], None], directory: Path, at: int) -> bool:
    """Act, and die before the n-th change below a directory; return whether there were fewer."""
    with dying(directory, at):
        act()
    return not MORTAL.is_dead


class Life(Protocol):
    """What runs, dies, and is looked at in the end."""

    @property
    def directory(self) -> Path:
        """Below which its changes are counted."""

    def run(self) -> None:
        """Do everything that is left to be done."""

    def recover(self) -> None:
        """Run until everything is done that a death has left."""

    def check(self) -> None:
        """Find every row once, and nothing left over."""


@contextmanager
def files_of_the_dead() -> Iterator[None]:
    """Let what the dead had open go without a warning, and here: not in whatever test collects garbage next."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed file", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


@files_of_the_dead()
def die_once(make: Callable[[int], Life], step: int = 1) -> int:
    """Let lives die before one change each; return how many changes there are, by the life that has survived."""
    for n in count(0, step):
        life = make(n)
        is_last = survived(life.run, life.directory, n)
        if not is_last:
            life.recover()
        life.check()
        if is_last:
            return n
    raise AssertionError


@files_of_the_dead()
def die_twice(make: Callable[[str], Life], first_step: int, second_step: int) -> int:
    """Let lives die before one change, and before another during recovery: where these begin moves on with the first.

    Return how many changes there are.
    """
    for n in count(0, first_step):
        for m in count(n % second_step, second_step):
            life = make(f"{n}-{m}")
            if survived(life.run, life.directory, n):
                return n
            is_last = survived(life.run, life.directory, m)
            life.recover()
            life.check()
            if is_last:
                break
    raise AssertionError
