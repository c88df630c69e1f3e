"""Which shard reads which segments of a pipeline's sources: arithmetic alone (design/0048, section 4).

What is dealt are *units*: segments that stay together, as the caller names them.  Invariants: each unit has one shard;
a new unit moves no other; a change of the number of shards moves as few as a balance to within one allows; and a number
that there was before gives what there was then, but for units that have come since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from typing import Any

from holdfast.errors import invariant
from holdfast.positions import SegmentSet


@dataclass(frozen=True)
class Assignment:
    """The shards of all units that are known.

    Parameters
    ----------
    shard_count : int
        How many shards there are, at least 1; their numbers begin with 0.
    shards : mapping of str to int
        Unit -> its shard.
    former : mapping of int to mapping of str to int
        Another number of shards -> unit -> its shard when there were so many the last time.
    """

    shard_count: int = 1
    shards: Mapping[str, int] = field(default_factory=dict)
    former: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_whole = all(0 <= shard < self.shard_count for shard in self.shards.values())
        invariant(
            self.shard_count >= 1 and is_whole, f"a unit has a shard beyond the {self.shard_count} that there are."
        )

    def counts(self) -> list[int]:
        """Return how many units each shard has."""
        found = [0] * self.shard_count
        for shard in self.shards.values():
            found[shard] += 1
        return found

    @property
    def rest(self) -> int:
        """The shard that reads what appears next: the first one with the fewest units."""
        counts = self.counts()
        return counts.index(min(counts))

    def units_of(self, shard: int) -> SegmentSet:
        """Return what a shard reads: its units, or all but those of the others, where it has the rest.

        Examples
        --------
        >>> dealt = assign(Assignment(2), ["a", "b", "c"])
        >>> [sorted(dealt.units_of(shard).names) for shard in (0, 1)], dealt.units_of(1).is_rest
        ([['a', 'c'], ['a', 'c']], True)
        """
        has_rest = shard == self.rest
        names = (unit for unit, of in self.shards.items() if (of == shard) is not has_rest)
        return SegmentSet(frozenset(names), is_rest=has_rest)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value: units by shard, since their names are longer than numbers."""
        former = {str(count): _by_shard(shards, count) for count, shards in self.former.items()}
        return {"shards": _by_shard(self.shards, self.shard_count), "former": former}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Assignment:
        """Return what :meth:`to_json` said."""
        former = {int(count): _by_unit(lists) for count, lists in value["former"].items()}
        return cls(len(value["shards"]), _by_unit(value["shards"]), former)


def assign(assignment: Assignment, units: Iterable[str]) -> Assignment:
    """Return the assignment with units that may be new, each given to the shard with the fewest.

    Examples
    --------
    >>> assign(assign(Assignment(2), ["b", "a"]), ["a", "c", "d"]).shards
    {'a': 0, 'b': 1, 'c': 0, 'd': 1}
    """
    return replace(assignment, shards=_with_fewest(assignment.shard_count, assignment.shards, units))


def keep(assignment: Assignment, units: Iterable[str], shard: int) -> Assignment:
    """Return the assignment with units that a shard has begun to read, as the one with the rest; known ones stay.

    Examples
    --------
    >>> sorted(keep(Assignment(2, {"a": 0}), ["a", "b", "c"], 1).shards.items())
    [('a', 0), ('b', 1), ('c', 1)]
    """
    return replace(assignment, shards={**dict.fromkeys(sorted(units), shard), **assignment.shards})


def regroup(assignment: Assignment, shard_count: int) -> Assignment:
    """Return the assignment to another number of shards, with as few moves as a balance to within one allows.

    Units that had a shard when there were so many before have it again.

    Examples
    --------
    >>> two = assign(Assignment(2), "abcdef")
    >>> three = regroup(two, 3)
    >>> moves(two, three), regroup(three, 2).shards == two.shards
    ({'e': (0, 2), 'f': (1, 2)}, True)
    """
    if shard_count == assignment.shard_count:
        return assignment
    former = {**assignment.former, assignment.shard_count: assignment.shards}
    home = former.pop(shard_count, {})
    shards = {unit: home[unit] for unit in assignment.shards if unit in home}
    stays: list[list[str]] = [[] for _ in range(shard_count)]
    for unit in sorted(assignment.shards.keys() - shards.keys()):
        if assignment.shards[unit] < shard_count:
            stays[assignment.shards[unit]].append(unit)
    counts = [len(units) for units in stays]
    for shard in shards.values():
        counts[shard] += 1
    for shard, quota in enumerate(_quotas(counts, len(assignment.shards))):
        left = max(0, len(stays[shard]) - max(0, counts[shard] - quota))
        shards |= dict.fromkeys(stays[shard][:left], shard)
    return Assignment(shard_count, _with_fewest(shard_count, shards, assignment.shards), former)


def moves(before: Assignment, after: Assignment) -> dict[str, tuple[int, int]]:
    """Return the units that change their shard: from which to which."""
    at = before.shards
    return {unit: (at[unit], shard) for unit, shard in after.shards.items() if unit in at and at[unit] != shard}


def _quotas(counts: list[int], total: int) -> Iterator[int]:
    """Yield how many units each shard may keep: those with the most one more, where they cannot all have as many."""
    least, more = divmod(total, len(counts))
    fullest = sorted(range(len(counts)), key=lambda shard: (-counts[shard], shard))[:more]
    favoured = frozenset(fullest)
    for shard in range(len(counts)):
        yield least + (shard in favoured)


def _with_fewest(shard_count: int, shards: Mapping[str, int], units: Iterable[str]) -> dict[str, int]:
    """Return shards of units with others, each given to the shard with the fewest: the first of these."""
    counts = [0] * shard_count
    for shard in shards.values():
        counts[shard] += 1
    heap = [(count, shard) for shard, count in enumerate(counts)]
    heapify(heap)
    found = dict(shards)
    for unit in sorted(set(units) - shards.keys()):
        count, shard = heap[0]
        found[unit] = shard
        heapreplace(heap, (count + 1, shard))
    return found


def _by_shard(shards: Mapping[str, int], shard_count: int) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(shard_count)]
    for unit in sorted(shards):
        found[shards[unit]].append(unit)
    return found


def _by_unit(lists: Iterable[Iterable[str]]) -> dict[str, int]:
    return {unit: shard for shard, units in enumerate(lists) for unit in units}
