"""The process that forks Spark's Python workers: PySpark's own, but for two things.

A worker does not report a JVM that is gone, and its garbage is collected without what it imported.

A run that ends while tasks are at work (it was fenced, a signal came, an epoch failed) leaves workers whose JVM
no longer reads.  PySpark's daemon prints the traceback of each to the terminal, after the one message that the user is
to read.  Started by the JVM as ``python -m holdfast.spark.launch.worker_daemon``; it must start no thread.
"""

from __future__ import annotations

import gc
import os
import socket
from functools import cache

from pyspark import daemon

from holdfast.spark.launch import stacks

_worker = daemon.worker


def worker(connection: socket.socket, authenticated: bool) -> int:
    """Serve tasks over one connection; end this process silently when the JVM no longer reads the answer."""
    stacks.register()
    try:
        code: int = _worker(connection, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # what PySpark's daemon does, after it has printed the traceback
    _keep_imported()
    return code


@cache
def _keep_imported() -> None:
    """After the first task, leave what is there out of every collection: modules mostly, which stay."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
