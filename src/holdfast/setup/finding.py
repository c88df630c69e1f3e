"""What a check of the machine says: whether it is well, what was found, and the cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]
"""``fail``: a run cannot work.  ``warn``: it can, and may meet trouble."""


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Parameters
    ----------
    name : str
        The check.
    level : {"ok", "warn", "fail"}
        How it is.
    found : str
        What was found, in a few words.
    cure : str
        What to do about it; empty where it is well.
    """

    name: str
    level: Level
    found: str
    cure: str = ""

    def line(self) -> str:
        """Return it as one line."""
        return f"{self.level:4}  {self.name:11}  {self.found}" + (f"  Do: {self.cure}" if self.cure else "")


def of_amount(name: str, value: float, *, fail: float, warn: float, found: str, cure: str) -> Finding:
    """Return the finding of an amount of which there may be too little.

    Parameters
    ----------
    name : str
        The check.
    value : float
        How much there is.
    fail, warn : float
        Below these it fails, or is warned of.
    found, cure : str
        As of a :class:`Finding`.
    """
    level: Level = "fail" if value < fail else "warn" if value < warn else "ok"
    return Finding(name, level, found, "" if level == "ok" else cure)


def size(count: float) -> str:
    """Return a number of bytes in words."""
    return f"{count / 2**30:,.1f} GB" if count >= 2**30 else f"{count / 2**20:,.0f} MB"
