"""The process of a shared model: ``python -m holdfast.models.process``, started by :mod:`holdfast.models.starting`.

It is told on stdin what to load, and holds a lock that it was given as long as it lives.  On stdout it says that it
listens, or the record of what went wrong; whatever is printed after that goes to its log.  It leaves its parent at
once: it serves others, too.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import IO

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.models.computing import ModelLoop, failure
from holdfast.models.declaration import Declaration
from holdfast.models.place import SOCKET_SUFFIX, ModelPlace
from holdfast.models.server import ModelServer
from holdfast.models.wire import LISTENS


def main() -> None:
    """Serve until nobody calls any more."""
    if os.fork():
        os._exit(0)
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker that starts it may ignore it
    # Module path, declaration, descriptor of the lock, and how many processes have died before.
    path, pickled, lock, restart_count = pickle.loads(sys.stdin.buffer.read())
    os.set_inheritable(lock, False)
    held = [lock, report.fileno()]
    os.register_at_fork(after_in_child=partial(_let_go, held))
    os.pwrite(lock, f"{restart_count + 1} {os.getpid()}".encode(), 0)
    sys.path += [entry for entry in path if entry not in sys.path]
    code = 1
    try:
        place, server = _begin(pickled, restart_count)
        _say(report, LISTENS)
        held[:] = [lock]
        server.run()
        place.socket.unlink(missing_ok=True)
        os.ftruncate(lock, 0)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        record = error.record() if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        _say(report, record.encode())
    os._exit(code)  # a frozen caller, or a thread of the function, must not keep it


def _let_go(held: list[int]) -> None:
    """Close in a process that the function forks what says that this one lives: that one may live longer.

    So lock and report, and the sockets of callers, who see by them that this process is gone.
    """
    for each in {*held, *_sockets()}:
        os.close(each)


def _sockets() -> Iterator[int]:
    """Yield the sockets of the place of models: the one that listens, and those of callers."""
    for each in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the one that reads the directory is closed
            if stat.S_ISSOCK(os.fstat(each).st_mode):
                with socket.socket(fileno=os.dup(each)) as found:
                    name = found.getsockname() if found.family == socket.AF_UNIX else ""
                if str(name).endswith(SOCKET_SUFFIX):
                    yield each


def _say(report: IO[bytes], what: bytes) -> None:
    with suppress(OSError, ValueError):  # who has started it is gone, or has been told
        report.write(what)
        report.close()


def _begin(pickled: bytes, restart_count: int) -> tuple[ModelPlace, ModelServer]:
    declared: Declaration = pickle.loads(pickled)
    loop = _load(declared, restart_count)
    place = declared.place()
    place.socket.unlink(missing_ok=True)  # of one that died: the lock is ours
    return place, ModelServer(place, loop)


def _load(declared: Declaration, restart_count: int) -> ModelLoop:
    try:
        function = declared.load()
    except BaseException as error:
        raise failure(declared, "cannot be loaded", error) from error
    if not callable(function):
        raise InvalidPipeline(
            f"Model {declared.name!r} cannot be called.",
            why=f"fn is a class, and its objects have no __call__: {function!r}.",
            do="give the class a method __call__(self, batch).",
            participant=declared.name,
        )
    return ModelLoop(declared, function, restart_count=restart_count)


if __name__ == "__main__":
    main()
