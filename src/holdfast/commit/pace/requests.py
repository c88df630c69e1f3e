"""Requests that sinks with a pace of their own commit now: objects in the checkpoint, which the run alive obeys.

Each is an object of its own, so that none replaces another, and then a note says which is the newest.  A run looks at
the note alone, which is one request where the checkpoint is in an object store, and lists when it has changed.

No row depends on them: one that is lost, or obeyed twice, changes only when rows become visible.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.ports import Store
from holdfast.store import checked_json

_PREFIX = "flush/"
_NOTE = f"{_PREFIX}newest"


def ask_to_commit(store: Store, sinks: Sequence[str]) -> None:
    """Ask the run that works on a checkpoint to let some sinks commit what waits for them; returns at once."""
    key = f"{_PREFIX}{uuid.uuid4().hex}.json"
    store.put(key, checked_json.dump({"sinks": list(sinks)}))
    store.put(_NOTE, key.encode())


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


class RequestReader:
    """Finds what is asked of the sinks of a run, which looks often.

    Parameters
    ----------
    store : Store
        The checkpoint.
    sinks : collection of str
        Those that have a pace.
    """

    def __init__(self, store: Store, sinks: Collection[str]) -> None:
        self._store = store
        self._sinks = sinks
        self._has_listed = False
        self._newest: bytes | None = None

    def pending(self) -> CommitRequests:
        """Return what is asked, with every request: what cannot be read is one to all sinks."""
        newest = self._store.get(_NOTE)
        if self._has_listed and newest == self._newest:
            return CommitRequests()
        keys = {key for key in self._store.keys(_PREFIX) if key != _NOTE}
        if newest is not None:
            keys.add(newest.decode())  # a listing may lag
        found = {key: data for key in sorted(keys) if (data := self._store.get(key)) is not None}
        wanted: set[str] = set()
        for data in found.values():
            try:
                wanted.update(checked_json.load(data)["sinks"])
            except (ValueError, KeyError, TypeError):
                wanted.update(self._sinks)
        self._has_listed, self._newest = True, newest
        return CommitRequests(frozenset(wanted).intersection(self._sinks), tuple(found))

    def forget(self, done: CommitRequests) -> None:
        """Remove requests: what they wanted is done."""
        for key in done.keys:
            self._store.delete(key)
