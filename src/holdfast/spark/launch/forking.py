"""The driver's side of the fork server: it is started beside the JVM, and Spark gets a Python executable that asks it.

Where anything about it does not work, processes are started as Spark starts them, only later.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdfast.spark.launch import forked_python, stop_directory

log = logging.getLogger("holdfast.run")

HASH_SEED = "PYTHONHASHSEED"

SOCKET_PLACE_LENGTH_MAX = 25
"""With our directory's name and Spark's socket's, 76 characters, a path of the kernel's 107, or of macOS's 103."""


@dataclass(frozen=True)
class PythonWorkers:
    """Where Spark's Python processes of this machine come from.

    Parameters
    ----------
    directory : Path
        For sockets: connections are not authenticated, so no other user has access.  Removed with this process, or by a
        later start.
    python : str, optional
        What Spark is to take for Python; None: Python itself.
    """

    directory: Path
    python: str | None


@cache
def workers() -> PythonWorkers:
    """Return where this process's Python processes come from; made when it is asked for first."""
    place = tempfile.gettempdir()
    directory = stop_directory.create(place if len(place) <= SOCKET_PLACE_LENGTH_MAX else "/tmp")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return PythonWorkers(directory, start(directory))


def python() -> str:
    """Return what to start as Python: what asks the fork server, where this process has one."""
    return (workers().python if workers.cache_info().currsize else None) or sys.executable


def environment() -> dict[str, str]:
    """Return the variables of a Python process that works for Spark, or as one does."""
    # Spark gives this seed to its workers: what is hashed in several of them must be equal.
    return {HASH_SEED: "0", "OMP_NUM_THREADS": "1", **os.environ}


def start(directory: Path) -> str | None:
    """Start a fork server; return what Spark is to take for Python, None where that cannot be.

    Parameters
    ----------
    directory : Path
        For its socket and the script: accessible to this user only.
    """
    python, path = directory / "python", directory / "forks"
    arguments = [sys.executable, "-I", "-S", os.fspath(Path(forked_python.__file__)), os.fspath(path)]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n')
    python.chmod(0o700)
    try:
        # Where nothing may be executed, not even a script of our own, Spark could start no process at all.
        subprocess.run([python, "-c", ""], check=True, capture_output=True, timeout=60)
        server = subprocess.Popen(
            [sys.executable, "-m", "holdfast.spark.launch.fork_server", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("no fork server: %s", error)
        return None
    atexit.register(_end, server)
    return os.fspath(python)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server.  If this process is killed it ends too: no other process holds this end of its standard input."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
