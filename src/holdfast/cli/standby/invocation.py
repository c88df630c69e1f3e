"""How a process is begun again, as one that watches the lease."""

from __future__ import annotations

import os
import sys

REPLICA = "--replica"


class Invocation:
    """How this process is begun again, as it was before the pipeline's modules changed something.  Made early."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._directory = os.getcwd()

    def begin_again_as_replica(self) -> None:
        """Replace this process by one of the same command that watches.  Its JVM ends with its standard input."""
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = sys.orig_argv[1:]
        more = [] if REPLICA in arguments else [REPLICA]
        os.chdir(self._directory)
        os.execve(sys.executable, [sys.executable, *arguments, *more], self._environment)
