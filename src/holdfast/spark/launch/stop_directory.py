"""Directories of temporary files that belong to a process, and go with it, whatever ends it.

By one for each run a driver talks to the processes of its sources; in another one its JVM has what it leaves behind.  A
process removes its own.  One that was killed cannot, so every start removes those of dead processes: like a temporary
file of :mod:`holdfast.store.durable` it is locked for as long as its process lives, and the kernel drops the lock with
it. A process id in the name would prove less: it may be reused, and in another container it is another process.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

PREFIX = "holdfast-run-locked-"

_locks: dict[Path, int] = {}
"""Descriptors of the directories of this process; that of a run that has ended is closed by the next start."""


def create(place: str | None = None) -> Path:
    """Return a new directory, locked, mode 0700; remove those that dead processes of this user left beside it.

    ``place`` is where; by default the directory for temporary files.
    """
    for path in [path for path in (*_locks,) if not path.exists()]:  # a copy: shards start in several threads at once
        if (ended := _locks.pop(path, None)) is not None:  # else another thread's start was quicker
            os.close(ended)
    _sweep(Path(place or tempfile.gettempdir()))
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        try:
            fd = _open(path)
        except FileNotFoundError:  # another start found it before it was locked
            continue
        with suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists():
            _locks[path] = fd
            return path
        os.close(fd)


@contextmanager
def temporary() -> Iterator[Path]:
    """Have a directory for the block; where its process is killed, a later start removes it."""
    path = create()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@cache
def of_process() -> Path:
    """Return the directory of this process for what others put below the directory for temporary files."""
    path = create()
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _sweep(place: Path) -> None:
    for path in place.glob(f"{PREFIX}*"):
        try:
            fd = _open(path)
        except OSError:  # gone meanwhile; another user's
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its process lives, or that cannot be known
            continue
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
