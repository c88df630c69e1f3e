"""Parts of a source in tests: their positions after another division."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.positions import Position, SegmentSet, SourcePositions


def positions_of_part(
    several: Iterable[SourcePositions], known: Iterable[str], wanted: SegmentSet
) -> dict[str, Position]:
    """Return the positions of a part that takes segments over from several others.

    Parameters
    ----------
    several : iterable of SourcePositions
        Those of all parts there were.
    known : iterable of str
        The segments of the source.
    wanted : SegmentSet
        The segments of the new part.

    Examples
    --------
    >>> before = [{"a/0": 7, "@bound": 90}, {"a/1": 9, "a/2": 3, "@bound": 80}]
    >>> positions_of_part(before, {"a/0", "a/1", "a/2"}, SegmentSet(frozenset({"a/0", "a/2"})))
    {'a/0': 7, '@bound': 80, 'a/2': 3}
    """
    names, found = frozenset(known), dict[str, Position]()
    for positions in several:
        for segment, at in positions.items():
            if segment not in names:
                found[segment] = _lower(found.get(segment, at), at)
            elif segment in wanted:
                found[segment] = at
    return found


def _lower(one: Position, other: Position) -> Position:
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else one
