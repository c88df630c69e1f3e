"""The commit log of a files sink: a put-if-absent sequence of entries whose last one says everything.

Invariants: numbers grow by one; an entry is never changed; of several writers exactly one creates a number,
so a writer that was overtaken learns it from the very write that would have committed.  The entry that
commits an epoch names all its renames: the next run that opens the log can finish them.  That entries grow, and follow
finished renames only, is asserted by who appends them (:mod:`holdfast.sinks.files.sink`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.errors import Corrupt, InDoubt
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.sinks.believed import went_back
from holdfast.store import durable

KEPT = 100
"""Entries kept after each epoch that is published.  One would do; a hundred show the history of the last epochs to a
person, and are how far a rewind can go back.  Runs that publish nothing add at most as many."""


@dataclass(frozen=True)
class LogEntry:
    """What a sink holds after one append.

    Parameters
    ----------
    number : int
        Place in the sequence, from 1; 0 stands for an empty log.
    generation : int
        Generation that appended it: no lower one may append after it.
    epoch : int
        Highest epoch held.
    after_epoch : int
        The renames belong to the epochs above this one.
    positions, pts
        Of ``epoch``, as in :class:`~holdfast.ports.Held`.
    renames : tuple of (str, str)
        Staged file -> final file, both relative to the sink's directory.  Empty for an entry that only fences.
    removals : tuple of str
        Files that a rewind withdraws, relative to the sink's directory.
    back_to : int, optional
        The entry is a rewind: the entries above this epoch, and before this one, do not count any more.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    after_epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()
    back_to: int | None = None

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return Held(self.epoch, self.generation, self.positions, self.pts)


class FilesLog:
    """The log in one directory.

    Parameters
    ----------
    directory : str
        Holds ``<number, 12 digits>.json``.
    aside : str
        Directory for temporary files, prepared (:func:`holdfast.store.durable.prepare`).
    """

    def __init__(self, directory: str, *, aside: str) -> None:
        self._directory = directory
        self._aside = aside

    def last(self) -> LogEntry:
        """Return the last entry; number 0 when there is none.

        Raises
        ------
        Corrupt
            If its bytes are not what was written.
        """
        while number := self._highest():
            # Gone between the two calls: it was removed because a hundred newer ones exist.
            with suppress(FileNotFoundError):
                return self._read(number)
        return LogEntry()

    def standing(self) -> list[LogEntry]:
        """Return the entries that are kept and that no rewind has taken back, oldest first."""
        found: list[LogEntry] = []
        for number in self._numbers():
            try:
                entry = self._read(number)
            except FileNotFoundError:
                continue  # removed meanwhile: newer ones exist
            if entry.back_to is not None:
                found = [each for each in found if each.epoch <= entry.back_to]
            found.append(entry)
        return found

    def append(self, entry: LogEntry) -> bool:
        """Append an entry durably; return False when another writer was faster.  One file sync, one directory sync.

        Raises
        ------
        Diverged
            If the entry before it is gone: the log was restored or removed since it was read.  Nothing is appended.
        """
        path = self._path(entry.number)
        if not durable.create(path, _encode(entry), aside=self._aside):
            return False
        try:
            numbers = self._numbers()
            if numbers[-1:] > [entry.number]:
                # We slept while others appended that many entries: our number had been removed again.
                with suppress(FileNotFoundError):
                    os.unlink(path)
                return False
            if entry.number > 1 and entry.number - 1 not in numbers:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                raise went_back(
                    f"the log entry before {path} is gone; nothing was published.",
                    participant=path,
                    epoch=entry.epoch,
                    generation=entry.generation,
                )
        except OSError as error:
            raise InDoubt(
                f"{path} is written, but it is unknown whether it is the last entry.",
                why=f"the log could not be listed: {error.strerror}.",
                do="repair the file system, then start again: the log is then read.",
                participant=path,
                epoch=entry.epoch,
                generation=entry.generation,
            ) from error
        return True

    def sync(self) -> None:
        """Make sure that the entries seen here survive a power cut: their writer may have died before its own sync."""
        durable.sync_directory(self._directory)

    def prune(self) -> None:
        """Remove all but the last entries.  Not durable: an old entry that comes back is removed again."""
        with suppress(OSError):  # the epoch is committed: tidying may fail, and is tried again after the next
            for number in self._numbers()[:-KEPT]:
                os.unlink(self._path(number))

    def prune_fences(self) -> None:
        """Remove, before the last entries, those that say what the one before says: of runs that published nothing.

        Anything else there may be the target of a rewind that is decided, and completed next.
        """
        before: LogEntry | None = None
        with suppress(OSError, Corrupt):  # cleaning up may fail; what is damaged here decides nothing
            for number in self._numbers()[:-KEPT]:
                entry = self._read(number)
                if before is not None and entry.epoch == before.epoch:
                    os.unlink(self._path(number))
                before = entry

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _highest(self) -> int:
        return max(self._numbers(), default=0)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:012}.json")

    def _read(self, number: int) -> LogEntry:
        path = self._path(number)
        with open(path, "rb") as file:
            data = file.read()
        try:
            return _decode(data, number)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"The log entry {path} is damaged.",
                why=f"it is not what was written: {error}.",
                do="restore it from a copy; without it, which epochs the directory holds is unknown.",
                participant=path,
            ) from error


@dataclass(frozen=True)
class FilesBehind:
    """What follows some positions: the last epoch before them, and what was published after it."""

    epoch: int
    epoch_count: int
    files: tuple[str, ...]


def files_behind(entries: Sequence[LogEntry], to: Positions) -> FilesBehind | None:
    """Return what was published after some positions; None where no entry ended there."""
    at = max((place for place, entry in enumerate(entries) if entry.epoch and entry.positions == to), default=None)
    if at is None:
        return None
    later = [entry for entry in entries[at + 1 :] if entry.renames]
    files = tuple(final for entry in later for _, final in entry.renames)
    return FilesBehind(entries[at].epoch, len(later), files)


def _encode(entry: LogEntry) -> bytes:
    body = asdict(entry)
    return (json.dumps({"format": 1, "entry": body, "sha256": _checksum(body)}) + "\n").encode()


def _decode(data: bytes, number: int) -> LogEntry:
    document = json.loads(data)
    body: Mapping[str, Any] = document["entry"]
    if document["sha256"] != _checksum(body):
        raise ValueError("its checksum does not match")
    renames = tuple((staged, final) for staged, final in body["renames"])
    entry = LogEntry(**{**body, "renames": renames, "removals": tuple(body.get("removals", ()))})
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
