"""What a process does that rewinds a pipeline and is killed before its n-th change of a file."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.sim.rewinding import Flow

_CHANGES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
_WRITES = os.O_CREAT | os.O_WRONLY | os.O_RDWR


def die_before(change: int, below: str) -> None:
    """Die by SIGKILL before a change of a file below a directory, counted from 0; what SQLite writes is not counted."""
    left = change

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and bool(flags & _WRITES)
        else:
            path, changes = next(iter(arguments), None), event in _CHANGES
        if not changes or not isinstance(path, str) or not path.startswith(below):
            return
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    sys.addaudithook(audit)


def rewind(work: str, change: int) -> None:
    """Carry through what a dead process began, and rewind; die before a change, if there are so many."""
    flow = Flow(Path(work))
    die_before(change, work)
    flow.rewinding().carry_through()
    flow.rewinding().do("3")
