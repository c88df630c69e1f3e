"""The process that Spark's Python processes are forked from: what they all import is imported once, beforehand.

Spark starts ``python -m <module>`` for every source and every operator with state of a query, and for each daemon that
forks workers: about eight processes before the first row is read, each with a third of a second of imports.  A fork
takes a hundredth.  Only on one machine, only for modules that are known, and only where the process is as it would be
if it were started anew: whatever else is asked for is refused, and :mod:`holdfast.spark.launch.forked_python` starts
it.

Started by :mod:`holdfast.spark.launch.forking` as ``python -m holdfast.spark.launch.fork_server SOCKET``.  It must
start no thread: only the thread that forks lives on in a child.  It ends when its standard input does, with the driver;
signals for all processes of a run are not for it.

References
----------
The fork server of Python's :mod:`multiprocessing`; the zygote of Android.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from holdfast.spark.launch import stacks
from holdfast.spark.launch.forked_python import LENGTH_BYTES, MODULES, SIGNALS

IMPORTED = (
    *(*MODULES, "pyspark.worker", "pyarrow.compute", "pyarrow.parquet"),
    *("holdfast.spark.datasource", "holdfast.spark.state.evaluation"),
)
"""What the processes need, whatever the graph."""

OF_VALUES = "pandas"
"""Where it is installed, pyarrow imports it for the first value that it makes: a third of a second and 35 MB in each of
five or more processes of a start."""

_OWN = (
    *("_", "PWD", "OLDPWD", "SHLVL"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"),
    *("PYSPARK_EXECUTOR_MEMORY_MB", "PYSPARK_PLANNER_MEMORY_MB", "_PYSPARK_DRIVER_CONN_INFO_PATH"),
)
_OWN_PREFIXES = ("SPARK_", "PYTHON_", "HOLDFAST_")
"""Variables that may differ between the server and a process: what is done at a start with these is done for a fork
too, or nothing is, or the value is the one that Spark gives (one thread for the libraries that heed it)."""


def main(path: str) -> None:
    """Fork until standard input ends.

    Parameters
    ----------
    path : str
        Where the socket is to be: it is there when everything is imported.
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    with suppress(ImportError):
        importlib.import_module(OF_VALUES)
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared: nothing walks through them
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}.new")
        listening.listen(128)
        os.rename(f"{path}.new", path)
        try:
            _Server(listening).serve()
        finally:
            os.unlink(path)


class _Server:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._waiting: dict[int, socket.socket] = {}  # process -> who waits for its end
        self._environment = dict(os.environ)
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waking, False)
        signal.set_wakeup_fd(self._waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        poll = select.poll()
        for each in (0, self._woken, self._listening.fileno()):
            poll.register(each, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == 0 and not os.read(0, 1 << 10):
                    return
                if number == self._woken:
                    os.read(self._woken, 1 << 10)
                if number == self._listening.fileno():
                    self._answer(self._listening.accept()[0])
            self._reap()

    def _answer(self, asking: socket.socket) -> None:
        """Fork what is asked for, or say 0."""
        process = 0
        with suppress(OSError, ValueError):
            asked, streams = _received(asking)
            try:
                if len(streams) == 3 and is_as_if_new(asked, self._environment):
                    process = os.fork()
                    if process == 0:
                        try:
                            self._let_go(asking)
                            _become(asked, streams)
                        finally:
                            os._exit(1)  # whatever goes wrong: there must not be a second server
            finally:
                for each in streams:
                    os.close(each)
        self._tell(asking, process)
        if process:
            self._waiting[process] = asking
        else:
            asking.close()

    def _let_go(self, asking: socket.socket) -> None:
        """Take from a child what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._waking)
        for connection in (self._listening, asking, *self._waiting.values()):
            connection.close()

    def _reap(self) -> None:
        while self._waiting:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            asking = self._waiting.pop(process)
            self._tell(asking, status)
            asking.close()

    def _tell(self, asking: socket.socket, number: int) -> None:
        with suppress(OSError):
            asking.sendall(number.to_bytes(LENGTH_BYTES, "big"))


def _received(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, streams, _, _ = socket.recv_fds(asking, 1 << 16, 3)
    length = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
    while len(data) < length:
        more = asking.recv(1 << 16)
        if not more:
            break
        data += more
    try:
        return json.loads(data[LENGTH_BYTES:]), streams
    except ValueError:
        for each in streams:
            os.close(each)
        raise


def is_as_if_new(asked: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether a fork is what a process would be that is started with these arguments and this environment.

    Parameters
    ----------
    asked : mapping
        ``arguments``: module and arguments; ``environment``; ``directory``.
    environment : mapping of str to str
        The server's.
    """
    theirs: dict[str, str] = asked["environment"]
    differing = {name for name in environment.keys() | theirs.keys() if environment.get(name) != theirs.get(name)}
    return (
        asked["arguments"][0] in MODULES
        and theirs.get("OMP_NUM_THREADS", "1") == environment.get("OMP_NUM_THREADS")
        and not any(name not in _OWN and not name.startswith(_OWN_PREFIXES) for name in differing)
        and _has_same_modules(theirs, environment)
    )


def _has_same_modules(environment: Mapping[str, str], servers: Mapping[str, str]) -> bool:
    """Whether modules are sought where the server has found them.

    Spark puts its own package before the rest, as zips: those of the installed one, or else it is another Spark.  It
    repeats entries, which finds nothing else.
    """
    theirs, ours = (
        [os.path.realpath(entry) for entry in of.get("PYTHONPATH", "").split(os.pathsep) if entry]
        for of in (environment, servers)
    )
    installed = f"{Path(pyspark.__file__).resolve().parent}{os.sep}"
    return list(dict.fromkeys(entry for entry in theirs if not entry.startswith(installed))) == ours


def _become(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Be the process that was asked for; does not return."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(asked["environment"])
        stacks.register()
        os.chdir(asked["directory"])
        sys.path[0] = asked["directory"]
        for each in SIGNALS:
            if each not in asked["ignored"]:
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        if os.environ.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        module, *arguments = asked["arguments"]
        with suppress(OSError):  # so that a process list distinguishes them, on Linux
            Path("/proc/self/comm").write_text(module.rpartition(".")[2])
        sys.argv = [module, *arguments]
        _seed()
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _seed() -> None:
    """Give the process random numbers of its own: Python's are new in each fork, NumPy's are not."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy").random.seed()


if __name__ == "__main__":
    main(sys.argv[1])
