"""How the demos end: what each sink holds, and a closing line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True)
class Content:
    """What one table, directory or video holds against what it should hold."""

    name: str
    held: int
    duplicates: int
    """Rows of a key that are there more often than they should be."""
    lost: int
    """Rows of a key that are there less often."""
    differences: int
    """Rows that are there, and have other values."""

    @property
    def is_exact(self) -> bool:
        """Whether the content is right."""
        return self.duplicates == self.lost == self.differences == 0


def say(contents: Sequence[Content], console: Console, unit: str) -> None:
    """Print what each holds."""
    for each in contents:
        numbers = f"duplicates {each.duplicates}, lost {each.lost}, differences {each.differences}"
        console.print(f"{each.name:16} {each.held:>9,} {unit}: {numbers}")


def closing_line(demo: str, contents: Sequence[Content], *, unit: str, kills: int, seconds: float) -> str:
    """Return the last line of a demo: the sums over all that it wrote."""
    held, duplicates, lost, differences = (
        sum(getattr(each, name) for each in contents) for name in ("held", "duplicates", "lost", "differences")
    )
    return (
        f"{demo}: {unit}={held} duplicates={duplicates} lost={lost} differences={differences} "
        f"kills={kills} seconds={seconds:.1f}"
    )
