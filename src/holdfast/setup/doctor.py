"""All checks of the machine, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.setup import machine, places, versions
from holdfast.setup.finding import Finding

CHECKS: Mapping[str, Callable[[Path], Finding]] = {
    "python": lambda directory: machine.python(),
    "java": lambda directory: machine.java(),
    "spark": lambda directory: versions.spark(),
    "libraries": lambda directory: versions.libraries(),
    "clients": lambda directory: versions.clients(),
    "memory": lambda directory: machine.memory(),
    "disk": places.disk,
    "temporary": lambda directory: places.temporary(),
    "permissions": places.permissions,
    "locks": places.locks,
    "clock": machine.clock,
    "host": lambda directory: machine.host(),
    "ports": lambda directory: machine.ports(),
}


def examine(directory: Path, checks: Mapping[str, Callable[[Path], Finding]] = CHECKS) -> list[Finding]:
    """Return what each check finds.

    Parameters
    ----------
    directory : Path
        Where a checkpoint is, or would be.
    checks : mapping of str to callable, optional
        Which ones.

    Notes
    -----
    A check that fails by itself hides no other one: that it did is its finding.
    """
    found = []
    for name, check in checks.items():
        try:
            found.append(check(directory))
        except Exception as error:  # whatever a machine has that none had so far
            told = f"it could not be looked at: {type(error).__name__}: {error}"
            found.append(Finding(name, "warn", told, "look at it yourself; and tell us, with this line."))
    return found
