"""Which shard has which segment, and what has to be handed over, from ledgers alone: arithmetic (design/0048, 8).

A change of the number of shards begins only where all sinks of each shard hold the same (section 6).  So ledgers show
each segment in one shard, whose sinks may be at different epochs; or, where a change was interrupted, some segments in
two shards at one position, and at most one shard in the middle of a hand-over: some of its sinks are behind it.  Such a
segment goes on in the lower shard.  The ledgers of others are rid of it by hand-overs, in the order of the shards: the
lower one has it in all its sinks first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import Diverged
from holdfast.ports import Held
from holdfast.positions import Position, Positions
from holdfast.shards.assignment import Assignment
from holdfast.shards.moves import UnitOf

_Place = tuple[str, str]
"""Source and segment."""


@dataclass(frozen=True)
class RecoveredShards:
    """The shards that ledgers show.

    Parameters
    ----------
    assignment : Assignment
        The units that shards have begun; as many shards as have any, at least one.
    hand_overs : mapping of int to Positions
        Shard -> the positions that all its sinks are to hold, before any shard runs; in ascending order.
    """

    assignment: Assignment
    hand_overs: Mapping[int, Positions]


def recover_shards(ledgers: Sequence[Mapping[str, Held]], unit_of: UnitOf) -> RecoveredShards:
    """Return the shards that ledgers show.

    Parameters
    ----------
    ledgers : sequence of mapping of str to Held
        For each shard, by its number: sink -> what it holds.
    unit_of : callable
        Says which unit a segment is of.

    Raises
    ------
    Diverged
        If no crash leaves such ledgers.

    Examples
    --------
    >>> ledgers = [{"out": Held(7, 1, {"topic": {"a": 3, "b": 4}})}, {"out": Held(2, 1, {"topic": {"b": 4, "c": 1}})}]
    >>> found = recover_shards(ledgers, lambda source, segment: segment)
    >>> found.assignment.shards, found.hand_overs
    ({'a': 0, 'b': 0, 'c': 1}, {1: {'topic': {'c': 1}}})
    """
    ends = [{sink: _row_ends(held) for sink, held in of.items()} for of in ledgers]
    newest = [of[max(of, key=lambda sink: ledgers[shard][sink].epoch)] if of else {} for shard, of in enumerate(ends)]
    shards: dict[str, int] = {}
    for shard, positions in enumerate(newest):
        for unit in dict(_units(positions, unit_of)).values():
            shards.setdefault(unit, shard)
    places = [(shard, *each) for shard, of in enumerate(ends) for at in of.values() for each in _units(at, unit_of)]
    shared = {place: shards[unit] for shard, place, unit in places if shards.get(unit, shard) != shard}
    for place, owner in shared.items():
        _check_is_at_one_position(place, owner, newest[owner], ends)
    hand_overs = {}
    for shard, of in enumerate(ends):
        wanted = _without(newest[shard], {place for place, owner in shared.items() if owner != shard})
        is_shared = any(_at(at, place) is not None for at in of.values() for place in shared)
        if is_shared and any(at != wanted for at in of.values()):  # one that holds nothing gets it, too
            _check_differ_in(shared, shard, [at for at in of.values() if at], unit_of)
            hand_overs[shard] = wanted
    return RecoveredShards(Assignment(1 + max(shards.values(), default=0), shards), hand_overs)


def _check_is_at_one_position(
    place: _Place, owner: int, newest: Positions, ends: Sequence[Mapping[str, Positions]]
) -> None:
    """Refuse a segment that is at two positions, or that a sink lacks in two of the shards that have it."""
    lacking: set[str] = set()
    for shard, of in enumerate(ends):
        found = {sink: _at(at, place) for sink, at in of.items() if at}
        differing = [sink for sink, at in found.items() if at not in (None, _at(newest, place))]
        without = {sink for sink, at in found.items() if at is None} if set(found.values()) != {None} else set[str]()
        if differing or lacking & without:
            raise _contradiction(place, f"shards {owner} and {shard}" if shard != owner else f"shard {shard}")
        lacking |= without


def _check_differ_in(shared: Collection[_Place], shard: int, ends: Sequence[Positions], unit_of: UnitOf) -> None:
    """Refuse sinks of one shard that differ in more than segments that move."""
    own = [{(place, _at(at, place)) for place, _ in _units(at, unit_of) if place not in shared} for at in ends]
    for place in sorted(place for each in own for place, _ in each ^ own[0]):
        raise _contradiction(place, f"sinks of shard {shard}")


def _row_ends(held: Held) -> Positions:
    """Return up to where a sink has rows: also of later epochs than the one that its ledger is at."""
    found: dict[str, dict[str, Position]] = {}
    for positions in (held.positions, *held.stops):
        for source, of in positions.items():
            found.setdefault(source, {}).update(of)
    return _plain(found)


def _units(positions: Positions, unit_of: UnitOf) -> Iterator[tuple[_Place, str]]:
    """Yield each segment in positions, with its unit."""
    for source, of in positions.items():
        yield from (((source, name), unit) for name in of if (unit := unit_of(source, name)))


def _at(positions: Positions, place: _Place) -> Position | None:
    return positions.get(place[0], {}).get(place[1])


def _without(positions: Positions, places: Collection[_Place]) -> Positions:
    return _plain(
        {
            source: {name: at for name, at in of.items() if (source, name) not in places}
            for source, of in positions.items()
        }
    )


def _plain(positions: Positions) -> Positions:
    return {source: dict(of) for source, of in positions.items() if of}


def _contradiction(place: _Place, between: str) -> Diverged:
    return Diverged(
        f"segment {place[1]!r} of source {place[0]!r} is in the ledgers of {between} at different positions.",
        why="a segment is in two ledgers at one position only, while the number of shards changes: a sink was restored "
        "from a backup, or two checkpoints write under one name.",
        do="restore the checkpoint, or all sinks from one moment; or holdfast reset, and begin again.",
        participant=place[0],
    )
