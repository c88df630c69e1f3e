"""The manifest of a segments sink in its directory: a put-if-absent sequence of entries, and bases that fold them.

Invariants: numbers grow by one; no object is ever changed; of several writers exactly one creates a number, so a writer
that was overtaken learns it from the very write that would have counted.  A base tells what its entries told: whoever
writes it, and whether one reads it or them, the state is the same.  What a base covers is removed only when a newer
base covers it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.connectors.kit.expected import went_back
from holdfast.connectors.segments.entries import (
    SealedSegment,
    SegmentsEntry,
    decode_entry,
    encode_entry,
    seal,
    unseal,
)
from holdfast.connectors.segments.holdings import CHUNK_SEGMENTS, Holdings, SegmentList, folded, from_body
from holdfast.connectors.segments.journal import journal_names
from holdfast.errors import Corrupt, InDoubt
from holdfast.store import durable

ENTRIES_MIN = 100
"""Between two bases at least: the last hundred entries show the history to a person, too."""

ENTRIES_MAX = 2000
"""Between two bases at most, however small they are: reading these takes a start about 50 ms."""

_NAME = re.compile(r"(base-|sealed-|)(\d{12})\.json")


class SegmentsManifest:
    """The manifest in one directory.

    Parameters
    ----------
    directory : str
        Holds its objects.
    aside : str
        Directory for temporary files, prepared (:func:`holdfast.store.durable.prepare`); empty for a reader.
    """

    def __init__(self, directory: str, *, aside: str = "") -> None:
        self._directory = directory
        self._aside = aside
        self._base = (0, 0)
        """Number and size of the newest base known here."""
        self._bytes_behind = 0

    # --- reading ------------------------------------------------------------------------------------------------

    def last(self, known: int = 0) -> SegmentsEntry:
        """Return the last entry; number 0 when there is none.

        Parameters
        ----------
        known : int
            One that was the last: where it is there and none follows, nothing is listed.

        Raises
        ------
        Corrupt
            If its bytes are not what was written.
        """
        if known and not os.path.lexists(self._path(known + 1)):
            with suppress(FileNotFoundError):
                return self._read(known)
        while number := max(self._numbers(), default=0):
            with suppress(FileNotFoundError):  # removed between the two calls: newer ones exist
                return self._read(number)
        return SegmentsEntry()

    def holdings(self) -> Holdings:
        """Return the state after the last entry.

        Raises
        ------
        Corrupt
            If an object that it needs is damaged, or an entry is missing.
        """
        while True:
            found = self._folded()
            if found is not None:
                return found

    def _folded(self) -> Holdings | None:
        """Return the state; None if objects were removed while they were read."""
        bases, numbers = self._numbers("base-"), self._numbers()
        base = bases[-1] if bases else 0
        behind = [number for number in numbers if number > base]
        if behind and behind != list(range(base + 1, behind[-1] + 1)):
            if self._numbers("base-") != bases:
                return None
            raise Corrupt(
                f"Entries are missing in {self._directory}.",
                why=f"base {base} is followed by entries up to {behind[-1]}, and {len(behind)} are there.",
                do="restore the directory from a copy; without it, what the sink holds is unknown.",
                participant=self._directory,
            )
        try:
            holdings = Holdings()
            if base:
                body = self._unsealed(self._path(base, "base-"))
                holdings = from_body(body)
            found = folded(holdings, (self._read(number) for number in behind))
            self._base = (base, os.path.getsize(self._path(base, "base-")) if base else 0)
            self._bytes_behind = sum(os.path.getsize(self._path(number)) for number in behind)
        except FileNotFoundError:
            if self._numbers("base-") == bases:
                raise
            return None
        return found

    def sealed(self, holdings: Holdings) -> Iterator[SealedSegment]:
        """Yield the sealed segments of a state, in the order in which they were sealed."""
        for chunk in holdings.chunks:
            for segment in self.chunk(chunk):
                if segment.path not in holdings.removed:
                    yield segment
        yield from holdings.recent

    def chunk(self, chunk: SegmentList) -> list[SealedSegment]:
        """Return the sealed segments in an object, also those that were removed since."""
        body = self._unsealed(os.path.join(self._directory, chunk.name))
        return [SealedSegment(**each) for each in body["segments"]]

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, entry: SegmentsEntry) -> bool:
        """Append an entry durably; return False when another writer was faster.  One file sync, one directory sync.

        Raises
        ------
        Diverged
            If the entry before it is gone: the manifest was restored or removed since it was read.  Nothing is
            appended.
        """
        path = self._path(entry.number)
        data = encode_entry(entry)
        if not durable.create(path, data, aside=self._aside):
            return False
        try:
            # The entry before is removed only after hundreds of others: then nothing is wrong but that we slept.
            if entry.number > 1 and not os.path.lexists(self._path(entry.number - 1)):
                with suppress(FileNotFoundError):
                    os.unlink(path)
                if self._numbers()[-1:] > [entry.number]:
                    return False
                raise went_back(
                    f"the manifest entry before {path} is gone; nothing was published.",
                    participant=path,
                    epoch=entry.epoch,
                    generation=entry.generation,
                )
        except OSError as error:
            raise InDoubt(
                f"{path} is written, but it is unknown whether it is the last entry.",
                why=f"the manifest could not be listed: {error.strerror}.",
                do="repair the file system, then start again: the manifest is then read.",
                participant=path,
                epoch=entry.epoch,
                generation=entry.generation,
            ) from error
        self._bytes_behind += len(data)
        return True

    def sync(self) -> None:
        """Make sure that the entries seen here survive a power cut: their writer may have died before its own sync."""
        durable.sync_directory(self._directory)

    def is_base_due(self, holdings: Holdings) -> bool:
        """Return whether the entries behind the last base are as large as it is: then writing one costs no more."""
        behind = holdings.last.number - self._base[0]
        return behind >= ENTRIES_MAX or (behind >= ENTRIES_MIN and self._bytes_behind >= self._base[1])

    def write_base(self, holdings: Holdings) -> Holdings:
        """Write a base for a state, and remove what only older ones need; return the state with its new chunks."""
        number = holdings.last.number
        while holdings.chunks and holdings.removed:
            paths = {segment.path for segment in self.chunk(holdings.chunks[0])}
            if not paths <= holdings.removed:
                break
            holdings.chunks = holdings.chunks[1:]
            holdings.removed -= paths
        if len(holdings.recent) >= CHUNK_SEGMENTS:
            segments = [vars(segment) for segment in holdings.recent]
            name = f"sealed-{number:012}.json"
            data = seal({"segments": segments})
            durable.create(os.path.join(self._directory, name), data, aside=self._aside)
            holdings.chunks = (*holdings.chunks, SegmentList(name, len(segments), len(data)))
            holdings.recent = []
        data = seal(holdings.as_body())
        durable.create(self._path(number, "base-"), data, aside=self._aside)
        self._base, self._bytes_behind = (number, len(data)), 0
        self._prune(holdings)
        return holdings

    def _prune(self, holdings: Holdings) -> None:
        """Remove what the last base but one covers.  Not durable: what comes back is removed again."""
        bases = self._numbers("base-")
        if len(bases) < 2:
            return
        kept = bases[-2]
        needed = {chunk.name for chunk in holdings.chunks}
        with suppress(OSError):  # tidying may fail, and is tried again with the next base
            for number in self._numbers():
                if number < kept:
                    os.unlink(self._path(number))
            for number in bases[:-2]:
                os.unlink(self._path(number, "base-"))
            for number in self._numbers("sealed-"):
                if number < kept and f"sealed-{number:012}.json" not in needed:
                    os.unlink(self._path(number, "sealed-"))

    # --- names --------------------------------------------------------------------------------------------------

    def _numbers(self, kind: str = "") -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted(int(match[2]) for match in matches if match and match[1] == kind)

    def _path(self, number: int, kind: str = "") -> str:
        return os.path.join(self._directory, f"{kind}{number:012}.json")

    def _read(self, number: int) -> SegmentsEntry:
        path = self._path(number)
        with open(path, "rb") as file:
            data = file.read()
        try:
            return decode_entry(data, number)
        except (ValueError, KeyError, TypeError) as error:
            raise _damage(path, error) from error

    def _unsealed(self, path: str) -> dict[str, Any]:
        with open(path, "rb") as file:
            data = file.read()
        try:
            return unseal(data)
        except (ValueError, KeyError, TypeError) as error:
            raise _damage(path, error) from error


def _damage(path: str, error: Exception) -> Corrupt:
    return Corrupt(
        f"{path} of a manifest is damaged.",
        why=f"it is not what was written: {error}.",
        do="restore it from a copy; without it, what the sink holds is unknown.",
        participant=path,
    )


def as_opened(manifest: SegmentsManifest, journal: str) -> Holdings:
    """Return the state that an opening would find: without what grew, if files of the journal are gone.

    Parameters
    ----------
    manifest : SegmentsManifest
        Of a sink that a run may be at work in: what its entries free goes while this looks.
    journal : str
        Directory of the journal.
    """
    while True:
        holdings = manifest.holdings()
        if not holdings.missing({each.name for each in journal_names(journal)}):
            return holdings
        if manifest.last().number == holdings.last.number:
            holdings.lose()
            return holdings
