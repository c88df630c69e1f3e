"""The process that forks Spark's Python workers: PySpark's own, except that it does not report a JVM that is gone.

A run that ends while tasks are at work (it was fenced, a signal came, an epoch failed) leaves workers whose JVM
no longer reads.  PySpark's daemon prints the traceback of each to the terminal, after the one message that the user is
to read.  Started by the JVM as ``python -m holdfast.spark.launch.worker_daemon``; it must start no thread.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(connection: socket.socket, authenticated: bool) -> int:
    """Serve tasks over one connection; end this process silently when the JVM no longer reads the answer."""
    try:
        code: int = _worker(connection, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # what PySpark's daemon does, after it has printed the traceback
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
