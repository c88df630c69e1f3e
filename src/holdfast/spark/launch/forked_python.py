"""What Spark takes for Python: it asks the fork server for the process, and else becomes Python itself.

Run as a script by a bare interpreter (``python -I -S forked_python.py SOCKET -m module ...``), which takes a hundredth
of a second: only the standard library is imported, and little of it.  It stands for the process that was forked: has
its standard streams handed on, passes signals on to it, and ends as it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

MODULES = (
    "pyspark.daemon",
    "holdfast.spark.launch.worker_daemon",
    "holdfast.spark.kept_worker",
    "holdfast.spark.quarantine.probe_process",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)
"""What is forked; everything else is started."""

LENGTH_BYTES = 4
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Passed on, unless this process was started with them ignored: then the fork ignores them too."""


def main(path: str, arguments: list[str]) -> None:
    """Fork what Spark starts, or become it; does not return.

    Parameters
    ----------
    path : str
        The fork server's socket.
    arguments : list of str
        Of the interpreter.
    """
    if arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in MODULES:
        server = socket.socket(socket.AF_UNIX)
        # A signal that arrives before the process exists stays pending: else this process would end alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        process = _forked(server, path, arguments[1:])
        if process:
            _stand_for(process, server)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(server: socket.socket, path: str, arguments: list[str]) -> int:
    """Return the process that was forked; 0 where there is none."""
    asked = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "ignored": [number for number in SIGNALS if _is_ignored(number)],
    }
    try:
        data = json.dumps(asked).encode()
        server.connect(path)
        message = len(data).to_bytes(LENGTH_BYTES, "big") + data
        server.sendall(message[socket.send_fds(server, [message], [0, 1, 2]) :])
        return _number(server)
    except OSError:
        return 0


def _stand_for(process: int, server: socket.socket) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        # NB the server reaps it before it reports its end, and this process ends then: the number is not reused.
        with suppress(ProcessLookupError):
            os.kill(process, number)

    for number in SIGNALS:
        if not _is_ignored(number):
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for stream in (0, 1, 2):
        os.close(stream)
    try:
        status = _number(server)
    except OSError:
        status = 1 << 8
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _number(server: socket.socket) -> int:
    data = b""
    while len(data) < LENGTH_BYTES:
        more = server.recv(LENGTH_BYTES - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return int.from_bytes(data, "big")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
