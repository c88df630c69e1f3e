"""Parts of a source: its declaration narrowed to some segments, whatever is wrapped around it; and their positions.

Invariants: each segment is in one part; what of positions is of no segment (a bound, where a source was read before it
was divided) holds for each part, and of several values the least holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from holdfast.capabilities import offers
from holdfast.connectors.reading.wrapped import WrappedSpec
from holdfast.ports import Divisible, SourceSpec
from holdfast.positions import Position, SegmentSet, SourcePositions


def divisible(spec: SourceSpec) -> Divisible | None:
    """Return the declaration beneath its wrappers where it can be divided, else None."""
    while isinstance(spec, WrappedSpec):
        spec = spec.given
    return spec if offers(spec, Divisible) else None


def is_divided(spec: SourceSpec) -> bool:
    """Return whether a source has a position for each segment that can be read alone: nothing is left to be divided."""
    found = divisible(spec)
    again: object = None if found is None else found.in_parts(found.parts or 1)
    return found is not None and again == found


def in_parts(spec: SourceSpec, parts: int) -> SourceSpec:
    """Return a declaration with a position for each segment; itself where it cannot be divided."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=in_parts(spec.given, parts)))
    return spec.in_parts(parts) if offers(spec, Divisible) else spec


def part_of(spec: SourceSpec, segments: SegmentSet) -> SourceSpec:
    """Return the declaration of the part that reads some segments."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=part_of(spec.given, segments)))
    assert offers(spec, Divisible)
    return spec.of_segments(segments)


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
