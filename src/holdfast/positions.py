"""Positions: where each segment of each source is read next.

Invariants: a position only grows; the positions of an epoch's end are the positions of the next one's
start; two positions of one segment can always be compared (numbers by size).  A source whose positions
are opaque to Holdfast (``read.spark``) has the single segment ``""`` with a JSON text: such positions can
be compared for equality only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Position = int | str
"""Next place to read in one segment: a number that grows, or an opaque text."""

SourcePositions = Mapping[str, Position]
"""Segment -> position, for one source."""

Positions = Mapping[str, SourcePositions]
"""Source name -> segment -> position, for a whole pipeline."""


ROUND = 1 << 45
"""Where a segment is read in rounds (``connectors/reading/rounds_log.py``), the positions of each are numbers from a
multiple of this on."""


@dataclass(frozen=True)
class SegmentSet:
    """Some of the segments of a source: those that are named; or the rest, all but those.

    Parameters
    ----------
    names : frozenset of str
        Segments.
    is_rest : bool
        Whether the set is of all others, also of those that appear later.

    Examples
    --------
    >>> few, rest = SegmentSet(frozenset({"a"})), SegmentSet(frozenset({"a"}), is_rest=True)
    >>> "a" in few, "new" in few, "a" in rest, "new" in rest
    (True, False, False, True)
    """

    names: frozenset[str] = frozenset()
    is_rest: bool = False

    def __contains__(self, segment: str) -> bool:
        return (segment in self.names) is not self.is_rest

    @property
    def is_all(self) -> bool:
        """Whether every segment is in it."""
        return self.is_rest and not self.names


ALL_SEGMENTS = SegmentSet(is_rest=True)

UNDIVIDED = ("log", "files", "rows")
"""The only segment of files, segments stores and rates until they are divided: where each of their segments begins."""


@dataclass(frozen=True)
class GroupSet(SegmentSet):
    """The segments of some groups, which are together wherever they are; a segment that appears later, too.

    Parameters
    ----------
    names, is_rest
        Groups, as :class:`SegmentSet` has segments.
    group_of : callable
        Returns the group of a segment.

    Examples
    --------
    >>> few = GroupSet(frozenset({"3"}), group_of=lambda segment: segment.partition("/")[2])
    >>> "orders/3" in few, "payments/3" in few, "orders/4" in few
    (True, True, False)
    """

    group_of: Callable[[str], str] = str

    def __contains__(self, segment: str) -> bool:
        return super().__contains__(self.group_of(segment))


@dataclass(frozen=True)
class Holding:
    """Up to where one sink holds rows.

    Parameters
    ----------
    positions : Positions
        It holds what is before these, of every segment that is not named.
    segments : mapping of str to Positions
        Segments of the sink (partition values, say) that hold rows up to elsewhere.
    """

    positions: Positions
    segments: Mapping[str, Positions] = field(default_factory=dict)


def covers(held: SourcePositions, wanted: SourcePositions) -> bool:
    """Return whether everything before ``wanted`` is before ``held`` too.

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


def covers_all(held: Positions, wanted: Positions) -> bool:
    """Return whether :func:`covers` holds for every source of ``wanted``.

    Examples
    --------
    >>> covers_all({"a": {"log": 7}}, {"a": {"log": 5}}), covers_all({"a": {"log": 7}}, {"b": {"log": 1}})
    (True, False)
    """
    return all(covers(held.get(source, {}), positions) for source, positions in wanted.items())


def lacking(held: Positions, wanted: Positions) -> dict[str, dict[str, tuple[Position, Position]]]:
    """Return what is before ``wanted`` and not before ``held``: source -> segment -> from where to where.

    A segment that ``held`` lacks counts as read up to 0.  Opaque positions can only be compared for equality.

    Examples
    --------
    >>> lacking({"a": {"log": 3}}, {"a": {"log": 9, "other": 0}, "b": {"log": 0}})
    {'a': {'log': (3, 9)}}
    """
    found: dict[str, dict[str, tuple[Position, Position]]] = {}
    for source, positions in wanted.items():
        of = held.get(source, {})
        ranges = {name: (of.get(name, 0), at) for name, at in positions.items() if not _not_before(of.get(name, 0), at)}
        if ranges:
            found[source] = ranges
    return found


def ascending(several: Iterable[Positions]) -> list[Positions] | None:
    """Return the different ones of several positions, each covering the one before; None when two cannot be ordered.

    Sinks of one pipeline always can: all of them hold a beginning of the same sequence of epochs.

    Examples
    --------
    >>> ascending([{"a": {"log": 7}}, {"a": {"log": 5}}, {"a": {"log": 7}}])
    [{'a': {'log': 5}}, {'a': {'log': 7}}]
    >>> ascending([{"a": {"log": 7}, "b": {"log": 1}}, {"a": {"log": 5}, "b": {"log": 2}}]) is None
    True
    """
    ordered: list[Positions] = []
    for positions in several:
        place = next((i for i, other in enumerate(ordered) if covers_all(other, positions)), len(ordered))
        if place < len(ordered) and covers_all(positions, ordered[place]):
            continue  # the same
        ordered.insert(place, positions)
    in_order = all(covers_all(later, earlier) for earlier, later in pairwise(ordered))
    return ordered if in_order else None


def ascending_by_epoch(several: Iterable[tuple[int, Positions]]) -> list[Positions] | None:
    """Return positions at the ends of epochs, in the order of these; None where what can be compared contradicts it.

    Of two opaque positions only their source knows which is before the other; the epochs of one pipeline tell it too.

    Examples
    --------
    >>> ascending_by_epoch([(7, {"a": {"": "y"}}), (5, {"a": {"": "x"}}), (7, {"a": {"": "y"}})])
    [{'a': {'': 'x'}}, {'a': {'': 'y'}}]
    >>> ascending_by_epoch([(7, {"a": {"": "y"}, "b": {"log": 1}}), (5, {"a": {"": "x"}, "b": {"log": 2}})]) is None
    True
    """
    ordered: list[Positions] = []
    for _, positions in sorted(several, key=lambda each: each[0]):
        if not ordered or not (covers_all(ordered[-1], positions) and covers_all(positions, ordered[-1])):
            ordered.append(positions)
    in_order = all(is_not_before(later, earlier) for earlier, later in pairwise(ordered))
    return ordered if in_order else None


def is_not_before(later: Positions, earlier: Positions) -> bool:
    """Return whether positions cover others, as far as they can be compared: opaque ones are left out.

    Examples
    --------
    >>> is_not_before({"a": {"": "y"}, "b": {"log": 2}}, {"a": {"": "x"}, "b": {"log": 1}})
    True
    """
    known = {name: {at: of for at, of in each.items() if isinstance(of, int)} for name, each in earlier.items()}
    return covers_all(later, known)


def least(one: Positions, other: Positions) -> Positions:
    """Return positions that are before both; without the sources that one of them lacks: they start from the beginning.

    Opaque positions are those of the first: which of two is before the other only Spark knows.

    Examples
    --------
    >>> least({"a": {"log": 7}, "b": {"log": 1}}, {"a": {"log": 5}, "c": {"log": 2}})
    {'a': {'log': 5}}
    """
    return {source: _least(of, other[source]) for source, of in one.items() if source in other}


def held_by_every(several: Iterable[Positions]) -> dict[str, dict[str, Position]]:
    """Return the positions before which all of some holdings have everything.

    A source, or a segment of one, that one of them lacks, and opaque positions that differ, are left out: of these it
    is not known.

    Examples
    --------
    >>> held_by_every([{"a": {"log": 7, "new": 1}, "b": {"log": 1}}, {"a": {"log": 5}}])
    {'a': {'log': 5}}
    """
    first, *others = several
    found = {source: dict(of) for source, of in first.items()}
    for positions in others:
        for source, of in found.items():
            other = positions.get(source, {})
            lower = {name: _lower_of(at, other[name]) for name, at in of.items() if name in other}
            found[source] = {name: at for name, at in lower.items() if at is not None}
    return {source: of for source, of in found.items() if of}


def lag_between(positions: SourcePositions, newest: SourcePositions | None) -> int | None:
    """Return how many positions a source is behind, over all its segments.

    Parameters
    ----------
    positions, newest : mapping of str to int or str
        Segment -> next position to read, and the same after everything that is known.

    Returns
    -------
    int or None
        None when ``newest`` is unknown, or a position is an opaque text that differs; a segment without a position
        counts from 0.  Between two rounds only entries count that are new.

    Examples
    --------
    >>> lag_between({"log": 3}, {"log": 10}), lag_between({}, {"log": 4}), lag_between({"log": 3}, None)
    (7, 4, None)
    """
    if newest is None:
        return None
    lag = 0
    for segment, end in newest.items():
        here = positions.get(segment, 0)
        if isinstance(end, int) and isinstance(here, int):
            is_of_round = here // ROUND == end // ROUND
            lag += max(0, end - here if is_of_round else end % (ROUND // 2) - here % (ROUND // 2))
        elif end != here:
            return None
    return lag


def _lower_of(one: Position, other: Position) -> Position | None:
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return one if one == other else None


def _least(one: SourcePositions, other: SourcePositions) -> SourcePositions:
    found = {**other, **one}
    for segment in one.keys() & other.keys():
        left, right = one[segment], other[segment]
        if isinstance(left, int) and isinstance(right, int):
            found[segment] = min(left, right)
    return found


def _not_before(left: Position, right: Position) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left >= right
    return left == right
