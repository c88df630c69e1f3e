"""Positions: where each segment of each source is to be read next.

Invariants: a position only grows; the positions of an epoch's end are the positions of the next one's
start; two positions of one segment can always be compared (numbers by size).  A source whose positions
are opaque to Holdfast (``read.spark``) has the single segment ``""`` with a JSON text: such positions can
be compared for equality only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Position = int | str
"""Next place to read in one segment: a number that grows, or an opaque text."""

SourcePositions = Mapping[str, Position]
"""Segment -> position, for one source."""

Positions = Mapping[str, SourcePositions]
"""Source name -> segment -> position, for a whole pipeline."""


def covers(held: SourcePositions, wanted: SourcePositions) -> bool:
    """Tell whether everything before ``wanted`` lies before ``held`` too.

    Parameters
    ----------
    held, wanted : mapping of str to int or str
        Segment -> next position to read.  A segment that ``held`` lacks counts as unread.

    Examples
    --------
    >>> covers({"log": 7}, {"log": 5}), covers({"log": 7}, {"log": 5, "other": 1})
    (True, False)
    """
    return all(segment in held and _not_before(held[segment], position) for segment, position in wanted.items())


def minimum(several: Iterable[SourcePositions]) -> dict[str, Position]:
    """Return, for each segment, the earliest of several positions; a segment missing in one is left out (unread there).

    Examples
    --------
    >>> minimum([{"log": 7, "b": 2}, {"log": 5}])
    {'log': 5}
    """
    all_positions = list(several)
    if not all_positions:
        return {}
    shared = [s for s in all_positions[0] if all(s in other for other in all_positions[1:])]
    return {s: _earliest([positions[s] for positions in all_positions]) for s in shared}


def _earliest(positions: list[Position]) -> Position:
    earliest = positions[0]
    for position in positions[1:]:
        if _not_before(earliest, position):
            earliest = position
    return earliest


def _not_before(left: Position, right: Position) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left >= right
    return left == right
