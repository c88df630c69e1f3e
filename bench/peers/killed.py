"""How a peer dies: SIGKILL of the whole process group, by whichever of its processes comes to the row first.

``MATRIX_AT`` names the point at which this life dies; a life without it dies nowhere.
"""

from __future__ import annotations

import os
import signal

KILL_ROW = 1250
"""In the middle of the input, and of a batch."""

IN_FUNCTION, BEFORE_WRITE, AFTER_WRITE = "in a function", "before the write", "after the write"


def lead() -> None:
    """Say to all processes that this one starts which group is theirs."""
    os.environ["MATRIX_GROUP"] = str(os.getpgid(0))


def die_at(point: str) -> None:
    """Kill the group if this life dies at this point."""
    if os.environ.get("MATRIX_AT") == point:
        os.killpg(int(os.environ["MATRIX_GROUP"]), signal.SIGKILL)


def seen(number: int) -> int:
    """Return the number of a row; the function of the user in which one point is."""
    if number == KILL_ROW:
        die_at(IN_FUNCTION)
    return number
