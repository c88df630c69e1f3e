"""What becomes of each shard when segments move between shards: arithmetic on positions alone (design/0048, section 6).

A shard *receives* segments with their positions, or *gives* some away, or both, in that order; each is an epoch without
rows, a *hand-over*.  Invariants: a segment's position is taken over as it is; after all hand-overs each position is in
one shard; what of positions is of no segment (a bound, where a source was read before it was divided) goes to each
shard that gets segments of its source, and of several values the least holds.  What a run notes of its own reading
(that it has read everything, say) is not true of a source of which the shard gets more, and begins anew there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import Diverged
from holdfast.positions import Position, Positions
from holdfast.shards.assignment import Assignment, keep

UnitOf = Callable[[str, str], str | None]
"""Given a source and a name in its positions, returns the unit of the segment.

Empty: the name is of no segment, and what it says holds for all.  None: it is a note of the run on its own reading.
"""

_Found = dict[str, dict[str, Position]]


@dataclass(frozen=True)
class Stand:
    """Where a shard stands while it does not run, and nothing of it is in doubt.

    Parameters
    ----------
    epoch : int
        The highest that its sinks, its ledger or its engine have used; 0: none.
    positions : Positions
        What all of its sinks hold is before these.
    planned : Positions
        Where the last epoch ends that its engine has planned, published or not; empty where there is none.
    """

    epoch: int = 0
    positions: Positions = field(default_factory=dict)
    planned: Positions = field(default_factory=dict)


@dataclass(frozen=True)
class Move:
    """What a layout does to one shard.

    Parameters
    ----------
    epoch : int
        The highest epoch that was used before.
    positions : Positions
        Those of its sinks before.
    receives : Positions, optional
        Those after it has received segments, in the epoch after; None: it receives none.
    gives : Positions, optional
        Those after it has given segments away, in the next epoch; None: it gives none.
    seed : str
        Key in its checkpoint of the state with which it goes on; empty where it keeps none.
    """

    epoch: int
    positions: Positions
    receives: Positions | None = None
    gives: Positions | None = None
    seed: str = ""

    @property
    def receipt(self) -> tuple[int, Positions]:
        """Epoch and positions when it has received what it gets."""
        return (self.epoch, self.positions) if self.receives is None else (self.epoch + 1, self.receives)

    @property
    def end(self) -> tuple[int, Positions]:
        """Epoch and positions when it has moved: it begins behind them."""
        epoch, positions = self.receipt
        return (epoch, positions) if self.gives is None else (epoch + 1, self.gives)

    def at(self, epoch: int) -> Positions | None:
        """Return the positions that its sinks must have when they hold an epoch; None: it has moved, and gone on."""
        for number, positions in ((self.epoch, self.positions), self.receipt, self.end):
            if epoch <= number:
                return positions
        return None

    def to_json(self) -> list[Any]:
        """Return it as a JSON value."""
        return [self.epoch, self.positions, self.receives, self.gives, *([self.seed] if self.seed else [])]

    @classmethod
    def from_json(cls, value: list[Any]) -> Move:
        """Return what :meth:`to_json` said."""
        return cls(*value)


def note_beginnings(assignment: Assignment, stands: Mapping[int, Stand], unit_of: UnitOf) -> Assignment:
    """Return the assignment with the segments that shards have begun to read: the one with the rest begins new ones.

    Parameters
    ----------
    assignment : Assignment
        Of the layout that holds.
    stands : mapping of int to Stand
        Shard -> where it stands.
    unit_of : callable
        Says which unit a segment is of.

    Raises
    ------
    Diverged
        If a shard has positions of a segment that another one has.
    """
    for shard, stand in stands.items():
        begun = {unit for each in (stand.positions, stand.planned) for unit in _units(each, unit_of)}
        assignment = keep(assignment, begun, shard) if shard < assignment.shard_count else assignment
        foreign = sorted(unit for unit in begun if assignment.shards.get(unit) != shard)
        if foreign:
            raise Diverged(
                f"shard {shard} has read {foreign[0]!r}, which is shard {assignment.shards.get(foreign[0])}'s.",
                why="its sinks hold positions of another layout: they were restored, or written with another "
                "checkpoint.",
                do="restore sinks and checkpoint so that they belong together.",
                participant=foreign[0],
            )
    return assignment


def plans_of_others(assignment: Assignment, stands: Mapping[int, Stand], unit_of: UnitOf) -> bool:
    """Return whether an engine has planned to read what is another shard's.

    A run that is fenced may still plan: behind the look of the next controller at what has begun, a segment that this
    one has dealt since.  Nobody has evaluated that epoch, and nobody may.
    """
    return any(
        assignment.shards.get(unit, shard) != shard
        for shard, stand in stands.items()
        for unit in _units(stand.planned, unit_of)
    )


def moves_between(
    before: Assignment, after: Assignment, stands: Mapping[int, Stand], unit_of: UnitOf
) -> dict[int, Move]:
    """Return, for each shard of two assignments, what becomes of it.

    Parameters
    ----------
    before : Assignment
        With every segment that a shard has begun (:func:`note_beginnings`).
    after : Assignment
        The other one.
    stands : mapping of int to Stand
        Shard -> where it stands; one that is not named has not begun.
    unit_of : callable
        Says which unit a segment is of.

    Examples
    --------
    >>> one, two = Assignment(1, {"a": 0, "b": 0}), Assignment(2, {"a": 0, "b": 1})
    >>> stands = {0: Stand(7, {"topic": {"a": 3, "b": 4}})}
    >>> moved = moves_between(one, two, stands, lambda source, segment: segment)
    >>> moved[0].end, moved[1].end
    ((8, {'topic': {'a': 3}}), (1, {'topic': {'b': 4}}))
    """
    found = {}
    for shard in range(max(before.shard_count, after.shard_count)):
        stand = stands.get(shard, Stand())
        got: _Found = {source: dict(of) for source, of in stand.positions.items()}
        for giver, theirs in stands.items():
            units = {unit for unit, of in before.shards.items() if of == giver and after.shards.get(unit) == shard}
            if giver != shard and units:
                _take_over(got, theirs.positions, units, unit_of)
        left = _without(got, {unit for unit in before.shards if after.shards.get(unit) != shard}, unit_of)
        left = left if shard < after.shard_count else {}
        receives, gives = got if got != stand.positions else None, left if left != got else None
        found[shard] = Move(stand.epoch, stand.positions, receives, gives)
    return found


def _take_over(got: _Found, theirs: Positions, units: set[str], unit_of: UnitOf) -> None:
    """Add to positions those of some units of another shard, and what goes with them."""
    for source, of in theirs.items():
        mine = {name: at for name, at in of.items() if unit_of(source, name) in units}
        if not mine and not _may_be_of(source, units, theirs):
            continue
        place = got[source] = {
            name: at for name, at in got.get(source, {}).items() if unit_of(source, name) is not None
        }
        for name, at in of.items():
            if unit_of(source, name) == "":
                place[name] = _lower(place.get(name, at), at)
        place.update(mine)


def _may_be_of(source: str, units: set[str], sources: Iterable[str]) -> bool:
    """Return whether some units can be of a source although they have no position in it: nothing of them was read."""
    of_one = {unit for unit in units if any(unit.startswith(f"{name}:") for name in sources)}
    return any(unit.startswith(f"{source}:") for unit in of_one) or of_one != units


def _without(positions: _Found, units: set[str], unit_of: UnitOf) -> _Found:
    """Return positions without those of some units; sources of which nothing is left are left out."""
    left = {
        source: {name: at for name, at in of.items() if unit_of(source, name) not in units}
        for source, of in positions.items()
    }
    return {source: of for source, of in left.items() if of}


def _units(positions: Positions, unit_of: UnitOf) -> Iterable[str]:
    return (unit for source, of in positions.items() for name in of if (unit := unit_of(source, name)))


def _lower(one: Position, other: Position) -> Position:
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else one
