"""Layouts: which shard has which segments, as numbered records that are put where they are absent and never change.

The newest counts.  A crash after one was put, and before any shard has begun under it, leaves a record that the next
start finds and uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.errors import Corrupt
from holdfast.ports import Store
from holdfast.shards.assignment import Assignment
from holdfast.store import sealed
from holdfast.store.paths import numbered

LAYOUTS = "shards/layout/"
"""Where they are, in the checkpoint of the pipeline."""
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
    """

    assignment: Assignment
    parts: Mapping[str, int] = field(default_factory=dict)
    by: str = ""
    number: int = 0

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return self.assignment.shard_count

    @property
    def highest_count(self) -> int:
        """How many there were at most, as far as is recorded: those that were given up have left checkpoints, too."""
        return max([self.shard_count, *self.assignment.former])


def newest_layout(store: Store) -> ShardLayout | None:
    """Return the layout that counts; None where the pipeline has no shards.

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
    if not found:
        return None
    number = max(found)
    key = found[number]
    try:
        value = sealed.load(store.get(key) or b"")
        return ShardLayout(Assignment.from_json(value["assignment"]), value["parts"], value["by"], number)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{key!r} in the checkpoint cannot be read.",
            why=f"{error}; it says which shard reads which segments.",
            do="restore the file from a copy of the checkpoint.",
            participant=key,
        ) from error


def record_layout(store: Store, layout: ShardLayout) -> ShardLayout | None:
    """Record a layout as the one that follows the layout of its number; None where another process has put one there.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    layout : ShardLayout
        With the number of the layout that it follows, 0 for the first.
    """
    number = layout.number + 1
    value = {"assignment": layout.assignment.to_json(), "parts": dict(layout.parts), "by": layout.by}
    is_put = store.put_if_absent(f"{LAYOUTS}{number:08d}.json", sealed.dump(value))
    return replace(layout, number=number) if is_put else None
