"""Layouts: which shard has which segments, as numbered records that are put where they are absent and never change.

The newest that counts holds.  One is proposed, then it is looked whether somebody has taken a shard over meanwhile,
then it is decided that it counts.  Whoever takes a shard over looks for proposals afterwards, and decides that one
which is not decided does not count.  So of two that do this at once at most one goes on: who took over either saw the
proposal, or was seen (as decisions and fences do, ``commit/ledger.py``).  A crash between proposal and decision leaves
what the next start does away with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import Corrupt
from holdfast.ports import Store
from holdfast.shards.assignment import Assignment
from holdfast.shards.moves import Move
from holdfast.store import sealed
from holdfast.store.paths import numbered

LAYOUTS = "shards/layout/"
"""Where they are, in the checkpoint of the pipeline."""
DECIDED = "shards/decided/"
"""Where it is noted of each whether it counts."""
INDEPENDENT = "independent"
"""What stands for the shard key where each shard gives a result of its own."""


@dataclass(frozen=True)
class ShardLayout:
    """An assignment of segments to shards, and what their names depend on.

    Parameters
    ----------
    assignment : Assignment
        Unit -> shard.
    parts : mapping of str to int
        Source -> how many segments it has by hash.  For ever: without the sources whose segments are their system's.
    by : str
        The column by which rows of one key are in one segment; ``"independent"``, or empty where no state is kept.
    number : int
        Its number, from 1 on; 0 while it is not recorded.
    moves : mapping of int to Move
        Shard -> what becomes of it; empty where no segment that was begun moves.
    is_opened : bool
        Whether the sinks of all its shards were opened before it was recorded, so that each ledger knows its shard;
        False in a record of versions that did not.
    """

    assignment: Assignment
    parts: Mapping[str, int] = field(default_factory=dict)
    by: str = ""
    number: int = 0
    moves: Mapping[int, Move] = field(default_factory=dict)
    is_opened: bool = True

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return self.assignment.shard_count

    @property
    def highest_count(self) -> int:
        """How many there were at most, as far as is recorded: those that were given up have left checkpoints, too."""
        return max([self.shard_count, *self.assignment.former])

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value, without its number."""
        moves = {str(shard): move.to_json() for shard, move in self.moves.items()}
        of = {"assignment": self.assignment.to_json(), "parts": dict(self.parts), "by": self.by, "moves": moves}
        return {**of, "opened": self.is_opened}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], number: int) -> ShardLayout:
        """Return what :meth:`to_json` said; raise a ``KeyError``, ``TypeError`` or ``ValueError`` if that is none."""
        moves = {int(shard): Move.from_json(move) for shard, move in value["moves"].items()}
        assignment, is_opened = Assignment.from_json(value["assignment"]), bool(value.get("opened", False))
        return cls(assignment, value["parts"], value["by"], number, moves, is_opened)


def newest_layout(store: Store) -> ShardLayout | None:
    """Return the layout that counts; None where the pipeline has no shards.  Changes nothing.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.

    Raises
    ------
    Corrupt
        If it is damaged: an older one may not be used instead.
    """
    found = numbered(store, LAYOUTS)
    number = next((each for each in sorted(found, reverse=True) if _counts(store, each)), None)
    if number is None:
        return None
    key = found[number]
    try:
        return ShardLayout.from_json(sealed.load(store.get(key) or b""), number)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why=f"{error}; it says which shard reads which segments.",
            do="restore the file from a copy of the checkpoint.",
            participant=key,
        ) from error


def settled_layout(store: Store) -> ShardLayout | None:
    """Return the layout that counts, after a shard was taken over: a newer one that is not decided never counts.

    Notes
    -----
    One durable write, where somebody died between proposing a layout and deciding it.

    Raises
    ------
    Corrupt
        As :func:`newest_layout`.
    """
    for number in sorted(numbered(store, LAYOUTS), reverse=True):
        if _decide(store, number, counts=False):
            break
    return newest_layout(store)


def record_layout(store: Store, layout: ShardLayout, look: Callable[[], None] = lambda: None) -> ShardLayout | None:
    """Record a layout that follows the one of its number; None where another process has recorded one since.

    All its shards have been taken over.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    layout : ShardLayout
        With the number of the layout that it follows, 0 for the first.
    look : callable
        Raises ``Fenced`` if a shard that was taken over for it has been taken over again.

    Notes
    -----
    Durable writes: 1. the proposal.  A crash right after leaves what counts for nobody.  2. the decision.  A crash
    right after leaves a layout that the next start carries through.
    """
    newest = newest_layout(store)
    if (0 if newest is None else newest.number) != layout.number:
        return None
    number = max(numbered(store, LAYOUTS), default=0) + 1
    key, data = f"{LAYOUTS}{number:08d}.json", sealed.dump({**layout.to_json(), "opened": True})
    if not store.put_if_absent(key, data) and store.get(key) != data:  # else the reply to our own put was lost
        return None
    look()
    return replace(layout, number=number, is_opened=True) if _decide(store, number, counts=True) else None


def _decide(store: Store, number: int, *, counts: bool) -> bool:
    """Decide whether a layout counts, unless that is decided; return whether it counts."""
    store.put_if_absent(f"{DECIDED}{number:08d}.json", sealed.dump({"counts": counts}))
    return _counts(store, number)


def _counts(store: Store, number: int) -> bool:
    """Return whether it is decided that a layout counts.

    Raises
    ------
    Corrupt
        If what was decided cannot be read.
    """
    key = f"{DECIDED}{number:08d}.json"
    data = store.get(key)
    try:
        return data is not None and bool(sealed.load(data)["counts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why=f"{error}; it says whether the layout of this number counts.",
            do="restore the file from a copy of the checkpoint.",
            participant=key,
        ) from error
