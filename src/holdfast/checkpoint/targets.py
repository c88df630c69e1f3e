"""The positions that a run goes to and no further: a file of its checkpoint, of numbered lines (design/0024).

A run that follows computes what another one has published: its epochs end where sinks of that one stood.  The file is
replaced as a whole, and keeps the last targets alone: who is further behind takes fewer and larger steps.  Sources'
planning processes read it whenever they are asked for a position, so this module imports little.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import invariant
from holdfast.ports import Store
from holdfast.positions import Positions

FILE_NAME = "targets"

KEPT = 2000
"""Lines."""


@dataclass(frozen=True)
class Target:
    """Where an epoch ends.

    Parameters
    ----------
    number : int
        From 1, ascending.
    positions : Positions
        The end.
    """

    number: int
    positions: Positions


def read_targets(path: Path, *, after: int = 0) -> list[Target]:
    """Return the targets above a number, in the order in which epochs end there."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = (Target(*json.loads(line)) for line in reversed(lines))
    chosen = []
    for each in found:
        if each.number <= after:
            break
        chosen.append(each)
    return chosen[::-1]


def add_targets(store: Store, path: Path, *positions: Positions) -> None:
    """Add targets, durably.  From one process at a time; dead in between, there are those of before.

    Parameters
    ----------
    store, path : Store, Path
        The checkpoint, and where in it the file is.
    *positions : Positions
        Where the next epochs end.
    """
    known = read_targets(path)
    numbers = [each.number for each in known]
    invariant(numbers == sorted({*numbers}), f"targets do not ascend: {numbers}.")
    first = known[-1].number + 1 if known else 1
    new = [Target(number, each) for number, each in enumerate(positions, first)]
    lines = [json.dumps([each.number, each.positions], sort_keys=True) for each in [*known, *new][-KEPT:]]
    store.put(FILE_NAME, "".join(f"{line}\n" for line in lines).encode())
