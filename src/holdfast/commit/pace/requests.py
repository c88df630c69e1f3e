"""Requests that sinks with a pace of their own commit now: objects in the checkpoint, which the run alive obeys.

No row depends on them: one that is lost, or obeyed twice, changes only when rows become visible.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.ports import Store
from holdfast.store import checked_json

_PREFIX = "flush/"


def ask_to_commit(store: Store, sinks: Sequence[str]) -> None:
    """Ask the run that works on a checkpoint to let some sinks commit what waits for them; returns at once."""
    store.put(f"{_PREFIX}{uuid.uuid4().hex}.json", checked_json.dump({"sinks": list(sinks)}))


@dataclass(frozen=True)
class CommitRequests:
    """What was asked for, and not done yet.

    Parameters
    ----------
    sinks : frozenset of str
        Which are to commit.
    keys : tuple of str
        The requests.
    """

    sinks: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()

    @staticmethod
    def pending(store: Store, sinks: Collection[str]) -> CommitRequests:
        """Return what is asked of these sinks, with every request: what cannot be read is one to all of them."""
        keys = tuple(store.keys(_PREFIX))
        wanted: set[str] = set()
        for key in keys:
            data = store.get(key)
            try:
                wanted.update(checked_json.load(data or b"")["sinks"])
            except (ValueError, KeyError, TypeError):
                wanted.update(sinks)
        return CommitRequests(frozenset(wanted).intersection(sinks), keys)

    def forget(self, store: Store) -> None:
        """Remove the requests: what they wanted is done."""
        for key in self.keys:
            store.delete(key)
