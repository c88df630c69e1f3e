"""A log of numbered entries in a local directory, each created once: the last one says everything.

Invariants: numbers grow by one; an entry is never changed; of several writers exactly one creates a number,
so a writer that was overtaken learns it from the very write that would have committed.  What an entry holds, and that
one may follow another, is the matter of who appends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Corrupt, HoldfastError, InDoubt
from holdfast.store import durable

KEPT = 100
"""Entries kept after each epoch that is published.  One would do; a hundred show the history of the last epochs to a
person, and are how far a rewind can go back.  Runs that publish nothing add at most as many."""

IDLE_KEPT = 900
"""Entries of idle epochs that are kept besides, at most: they do not use up the history, and the log stays small."""


class Entry(Protocol):
    """What every log knows of its entries."""

    @property
    def number(self) -> int:
        """Place in the sequence, from 1."""

    @property
    def generation(self) -> int:
        """Generation that appended it."""

    @property
    def epoch(self) -> int:
        """Highest epoch held."""

    @property
    def back_to(self) -> int | None:
        """Of a rewind: the entries above this epoch, and before this one, do not count any more."""


E = TypeVar("E", bound=Entry)


class EntryLog(Generic[E]):
    """The log in one directory.

    Parameters
    ----------
    directory : str
        Holds ``<number, 12 digits>.json``.
    aside : str
        Directory for temporary files, prepared (:func:`holdfast.store.durable.prepare`); who only reads needs none.
    encode, decode : callable
        Entry to bytes, and back: ``decode(data, number)`` raises ValueError, KeyError or TypeError where the bytes are
        not those of the entry with this number.
    gap : callable
        ``gap(path, entry)``: the error of an entry whose predecessor is gone.
    """

    def __init__(
        self,
        directory: str,
        *,
        aside: str,
        encode: Callable[[E], bytes],
        decode: Callable[[bytes, int], E],
        gap: Callable[[str, E], HoldfastError],
    ) -> None:
        self._directory = directory
        self._aside = aside
        self._encode = encode
        self._decode = decode
        self._gap = gap

    def last(self) -> E | None:
        """Return the last entry; None when there is none.

        Raises
        ------
        Corrupt
            If its bytes are not what was written.
        """
        while number := max(self.numbers(), default=0):
            # Gone between the two calls: it was removed because a hundred newer ones exist.
            with suppress(FileNotFoundError):
                return self.read(number)
        return None

    def standing(self) -> list[E]:
        """Return the entries that are kept and that no rewind has taken back, oldest first."""
        found: list[E] = []
        for number in self.numbers():
            try:
                entry = self.read(number)
            except FileNotFoundError:
                continue  # removed meanwhile: newer ones exist
            if entry.back_to is not None:
                found = [each for each in found if each.epoch <= entry.back_to]
            found.append(entry)
        return found

    def append(self, entry: E) -> bool:
        """Append an entry durably; return False when another writer was faster.  One file sync, one directory sync.

        Raises
        ------
        Diverged
            If the entry before it is gone: the log was restored or removed since it was read.  Nothing is appended.
        """
        path = self._path(entry.number)
        if not durable.create(path, self._encode(entry), aside=self._aside):
            return False
        try:
            numbers = self.numbers()
            if numbers[-1:] > [entry.number]:
                # We slept while others appended that many entries: our number had been removed again.
                with suppress(FileNotFoundError):
                    os.unlink(path)
                return False
            if entry.number > 1 and entry.number - 1 not in numbers:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                raise self._gap(path, entry)
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

    def prune(self, *, besides: int = 0) -> None:
        """Remove all but the last entries, ``KEPT`` and some besides.

        Not durable: an old entry that comes back is removed again.
        """
        with suppress(OSError):  # the epoch is committed: tidying may fail, and is tried again after the next
            for number in self.numbers()[: -KEPT - besides]:
                os.unlink(self._path(number))

    def prune_fences(self) -> None:
        """Remove, before the last entries, those that say what the one before says: of runs that published nothing.

        Anything else there may be the target of a rewind that is decided, and completed next.
        """
        before: E | None = None
        with suppress(OSError, Corrupt):  # cleaning up may fail; what is damaged here decides nothing
            for number in self.numbers()[:-KEPT]:
                entry = self.read(number)
                if before is not None and entry.epoch == before.epoch:
                    os.unlink(self._path(number))
                before = entry

    def numbers(self) -> list[int]:
        """Return the numbers of the entries that are kept, ascending."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def read(self, number: int) -> E:
        """Return an entry.

        Raises
        ------
        Corrupt
            If its bytes are not what was written.
        FileNotFoundError
            If there is none with this number.
        """
        path = self._path(number)
        with open(path, "rb") as file:
            data = file.read()
        try:
            return self._decode(data, number)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"The log entry {path} is damaged.",
                why=f"it is not what was written: {error}.",
                do="restore it from a copy; without it, which epochs the directory holds is unknown.",
                participant=path,
            ) from error

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:012}.json")
