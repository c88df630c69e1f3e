"""Holds each room to its floor of branch coverage: figures of ``coverage json`` against those of ``pyproject.toml``.

    .venv/bin/python -m tools.branch_coverage build/coverage/report.json    after make coverage has measured

A branch that no quick test takes is a decision that only a kill could show to be wrong.  The floors
(``tool.holdfast.branch-coverage``) are percents, rounded down when they were set, and may only rise.  The examples of
properties are drawn from one seed, so that a figure changes with the code and the tests alone; it is that of Python
3.11, as other versions count other branches.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/holdfast"


@dataclass(frozen=True)
class Branches:
    """The branches of a room: how many there are, and how many were taken."""

    taken: int = 0
    count: int = 0

    @property
    def percent(self) -> float:
        """Which part was taken.  Of a room without branches nothing: it was not measured."""
        return 100 * self.taken / self.count if self.count else 0.0

    def __add__(self, other: Branches) -> Branches:
        return Branches(self.taken + other.taken, self.count + other.count)


def main(arguments: Sequence[str]) -> int:
    """Print the figure of each room beside its floor; return 1 when one is below."""
    (report,) = arguments
    of = floors(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    found = by_room(json.loads(Path(report).read_text()), of)
    for room, branches in found.items():
        note = "" if branches.percent >= of[room] else "   too few: test what is new"
        taken = f"{branches.taken} of {branches.count}"
        print(f"{room + '/':>10} {branches.percent:6.2f} % of branches ({taken}), at least {of[room]} %{note}")
    return 0 if all(branches.percent >= of[room] for room, branches in found.items()) else 1


def floors(project: Mapping[str, Any]) -> dict[str, float]:
    """Return room -> percent, as the project's file has it."""
    found: dict[str, float] = project["tool"]["holdfast"]["branch-coverage"]
    return found


def by_room(report: Mapping[str, Any], rooms: Sequence[str] | Mapping[str, float]) -> dict[str, Branches]:
    """Return room -> branches of all its modules.

    Examples
    --------
    >>> def module(taken, count):
    ...     return {"summary": {"covered_branches": taken, "num_branches": count}}
    >>> files = {"src/holdfast/state/a.py": module(3, 4), "src/holdfast/state/b/c.py": module(6, 6)}
    >>> by_room({"files": files}, ["state"])["state"].percent
    90.0
    """
    found = dict.fromkeys(rooms, Branches())
    for name, module in report["files"].items():
        for room in found:
            if name.startswith(f"{SOURCE}/{room}/"):
                summary = module["summary"]
                found[room] += Branches(summary["covered_branches"], summary["num_branches"])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
