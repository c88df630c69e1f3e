"""The positions that every sink with a pace of its own holds: sources keep what lies above them.

What such a sink lacks is in the decisions.  If those are lost with the checkpoint, it is read again: so it must be
there.  The floor is moved after such a sink has committed; one that is too low keeps more than is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from holdfast.ports import Held, Store
from holdfast.positions import Positions, least
from holdfast.store import checked_json

HELD_KEY = "held/floor.json"


class HeldFloor:
    """The floor of one run.

    Parameters
    ----------
    store : Store
        The checkpoint.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: Positions | None = None

    def move(self, held: Iterable[Held]) -> None:
        """Move it to what all of these sinks hold; one durable write, or none where it is there."""
        floor = reduce(least, [each.positions for each in held])
        if floor != self._written:
            self._store.put(HELD_KEY, checked_json.dump(floor))
            self._written = floor
