"""The positions that a run goes to and no further: one line each, in a file of its checkpoint (design/0024).

A run that follows computes what another one has published: its epochs end where sinks of that one stood.  Lines are
only added.  Sources' planning processes read the file whenever they are asked for a position, so this module imports
little.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from holdfast.positions import Positions

FILE_NAME = "targets"


def read_targets(path: Path) -> list[Positions]:
    """Return the positions, in the order in which epochs end there; a line that is being written is not there yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def add_targets(path: Path, *targets: Positions) -> None:
    """Add positions, durably.  From one process at a time; what a crash left of a line is removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b"".join(json.dumps(each, sort_keys=True).encode() + b"\n" for each in targets)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        known = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        whole = known.rfind(b"\n") + 1
        os.ftruncate(descriptor, whole)
        os.pwrite(descriptor, lines, whole)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
