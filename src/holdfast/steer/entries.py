"""What a run was told that outlives its process: entries in the checkpoint, numbered from 1, put where absent.

The newest says everything that is in force; those before it are kept for who asks what became of a command.

Invariants: an entry is put before it takes effect; each follows from the one before, since of two that are put at once
one finds its number taken.  A start reads the newest once no other run can write, and before anything is planned.

| crash | then |
|---|---|
| before the entry is put | nothing was told; who asks by the command's id finds none |
| after it | in force: the next start reads it |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.ports import Store
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import sources_place
from holdfast.steer.controls import Controls
from holdfast.store import records, sealed
from holdfast.store.paths import numbered, open_store

PREFIX = "control/"
"""Of the entries, in the checkpoint of a pipeline; all its shards read them."""

KEPT = 100
"""Entries besides the newest: so long it can be asked what became of a command."""


@dataclass(frozen=True)
class ControlEntry:
    """One command that was carried out.

    Parameters
    ----------
    id : str
        Who gave it made that.
    command : str
        Its name.
    arguments : mapping
        As it was given.
    generation : int
        Of the run that was told; of shard 0, where there are shards.
    at_us : int
        When, microseconds of Unix time.
    controls : Controls
        What is in force since.
    """

    id: str
    command: str
    arguments: Mapping[str, Any]
    generation: int
    at_us: int
    controls: Controls


class ControlLog:
    """The entries in a checkpoint.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self) -> ControlEntry | None:
        """Return the newest entry; None where nothing was ever told.

        Raises
        ------
        Corrupt
            If it cannot be read.
        """
        while numbers := self._numbers():
            if (found := self._read(numbers[-1])) is not None:
                return found
        return None

    def find(self, command_id: str) -> ControlEntry | None:
        """Return the entry of a command, of those that are kept; None where there is none."""
        entries = (self._read(number) for number in reversed(self._numbers()))
        return next((each for each in entries if each is not None and each.id == command_id), None)

    def put(self, entry: ControlEntry, change: Callable[[Controls], Controls]) -> ControlEntry:
        """Put an entry whose controls follow from those that are in force; returns what was put.  One durable write.

        Parameters
        ----------
        entry : ControlEntry
            Its controls do not count.
        change : callable
            Returns what is to be in force, given what is.
        """
        while True:
            numbers = self._numbers()
            number = numbers[-1] if numbers else 0
            last = self._read(number) if number else None
            if number and last is None:
                continue  # removed since it was listed: there are newer ones
            made = replace(entry, controls=change(Controls() if last is None else last.controls))
            if self._store.put_if_absent(_key(number + 1), sealed.dump(records.plain(made))):
                for old in numbers[:-KEPT]:
                    self._store.delete(_key(old))
                return made

    def _numbers(self) -> list[int]:
        return sorted(numbered(self._store, PREFIX))

    def _read(self, number: int) -> ControlEntry | None:
        key = _key(number)
        data = self._store.get(key)
        if data is None:
            return None
        says = "it says which sources are paused, and how fast they may be"
        do = f"restore {key!r} from a copy of the checkpoint; or delete it: what was told before it holds then."
        return records.load(ControlEntry, data, key=key, says=says, do=do)


def made_id(command_id: str) -> str:
    """Return the id of the entry by which a command says that what it was to make is there."""
    return f"{command_id}-made"


def in_force(store: Store) -> Controls:
    """Return what a pipeline was told that counts, for a start.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    entry = ControlLog(store).newest()
    return Controls() if entry is None else entry.controls


def controls_for(directory: Path, pipeline: str) -> Controls:
    """Return what a run begins with: what earlier ones were told that counts, of a shard its share.

    Parameters
    ----------
    directory : Path
        Its checkpoint.
    pipeline : str
        Its name in ledgers.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    store = open_store(str(sources_place(directory, pipeline)))
    layout = newest_layout(store)
    return in_force(store).shared_by(1 if layout is None else layout.shard_count)


def _key(number: int) -> str:
    return f"{PREFIX}{number:08d}.json"
