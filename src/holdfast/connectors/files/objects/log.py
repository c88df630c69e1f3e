"""The commit log of a files sink in an object store: entries that each exactly one writer creates.

Invariants.  Numbers grow by one; an entry is never changed; of several writers exactly one creates a number.  The last
entry says everything.  The entry that commits an epoch names its uploads: who opens the log next can complete them.

A number that was removed would be free again.  So the first entry of each generation, and the one before it, stay for
good: a run that was replaced while it slept finds one of them in the place of its next entry.  A listing is where one
begins to look, and never the last word: the entries after its last one are asked for by their numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.connectors.files.objects.place import each
from holdfast.connectors.files.objects.staging import UploadedFile
from holdfast.errors import Corrupt, HoldfastError
from holdfast.ports import Explanation, Held
from holdfast.positions import Positions
from holdfast.store.objects.multipart import Upload
from holdfast.store.objects.store import ObjectStore
from holdfast.store.records import without_step_time

KEPT = 1000
"""Entries that are kept: how far a rewind can go back."""

DONE = "-done"
"""Behind the number of an entry: name of the note that it is carried out."""

PRUNED_AT_ONCE = 100
"""Entries that are removed with one request."""


@dataclass(frozen=True)
class UploadsEntry:
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
        The files belong to the epochs above this one.
    positions, pts, recent_ends
        Of ``epoch``, as in :class:`~holdfast.ports.Held`.
    files : tuple of UploadedFile
        Their uploads are completed after the entry.  Empty for an entry that only fences.
    removals : tuple of str
        Keys of files that a rewind withdraws.
    back_to : int, optional
        The entry is a rewind: the entries above this epoch, and before this one, do not count any more.
    at_us : int
        When it was written, by the clock of the driver, microseconds of Unix time.
    explained : mapping of str to int
        Source -> how many explanations of its positions are kept, those of this entry among them.
    explanations : tuple of Explanation
        Those that come with this entry; they are copied after it.
    schema : str
        Columns of the rows, partition columns included, by :func:`~holdfast.types.schema.encode_schema`.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    after_epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    files: tuple[UploadedFile, ...] = ()
    removals: tuple[str, ...] = ()
    back_to: int | None = None
    recent_ends: str = ""
    at_us: int = 0
    explained: Mapping[str, int] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    schema: str = ""

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        known, ends = dict(self.explained), self.recent_ends
        return Held(self.epoch, self.generation, self.positions, self.pts, recent_ends=ends, explained=known)


@dataclass(frozen=True)
class UploadsBehind:
    """What follows some positions: the last epoch before them, and what was published after it."""

    epoch: int
    epoch_count: int
    files: tuple[UploadedFile, ...]


class ObjectLog:
    """The log of one sink.

    Parameters
    ----------
    objects : ObjectStore
        Below its address, nothing but the entries of this log.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._numbers: list[int] = []
        """Of entries that are there, as far as this process knows; those before the first look are among them."""
        self._fence = 0
        """Number of the first entry of this run."""

    @property
    def address(self) -> str:
        """Where it is."""
        return self._objects.address

    def last(self) -> UploadsEntry:
        """Look for the last entry; one with number 0 where there is none."""
        numbers = self.numbers()
        found = UploadsEntry()
        while numbers and not found.number:
            found = self.read(numbers.pop()) or found
        return self._on(found)

    def follow(self, known: UploadsEntry) -> UploadsEntry:
        """Return the last entry, by two requests where it is the one that is known."""
        if not known.number:
            return self.last()
        still, later = each(self.read, [known.number, known.number + 1])
        if still != known:  # the log was removed, or replaced
            return self.last()
        if later is None:
            return known
        last = self._on(later)
        # Behind the first entry of another generation numbers may have been removed: the last one is looked for.
        return last if last.generation == known.generation else self.last()

    def _on(self, entry: UploadsEntry) -> UploadsEntry:
        while (later := self.read(entry.number + 1)) is not None:
            entry = later
        return entry

    def append(self, entry: UploadsEntry) -> bool:
        """Append an entry; False, changing nothing, when another writer was faster.

        Raises
        ------
        InDoubt
            If it is unknown whether it was appended.  The same call finds out.
        """
        if not self._objects.put_if_absent(_key(entry.number), _encode(entry)):
            return False
        self._numbers.append(entry.number)
        return True

    def is_refused_again(self, entry: UploadsEntry) -> bool:
        """Return whether the store refuses to create an entry that is there: one that does not would lose epochs."""
        return not self._objects.put_if_absent(_key(entry.number), _encode(entry))

    def note_done(self, number: int) -> None:
        """Note that an entry is carried out: tells a file that was never visible from one that a reader has taken away.

        Each entry has a note of its own: a run that wakes after a takeover cannot take back that of a later one.
        """
        self._objects.put(f"{_key(number)}{DONE}", b"")

    def is_done(self, number: int) -> bool:
        """Return whether an entry is noted as carried out; a crash before the note leaves it out."""
        return self._objects.get(f"{_key(number)}{DONE}") is not None

    def begin(self, fence: UploadsEntry) -> None:
        """Note where a run begins: with its fence."""
        self._fence = fence.number
        self._numbers = self.numbers()

    def prune(self, last: UploadsEntry) -> None:
        """Remove old entries, once there are enough for a request; it is tried again when it fails."""
        old = [number for number in self._numbers if number <= last.number - KEPT][: 2 * PRUNED_AT_ONCE]
        if len(old) < PRUNED_AT_ONCE:
            return
        with suppress(HoldfastError):
            lasting = self._lasting(old)
            gone = [_key(number) for number in old if number not in lasting]
            self._objects.delete_several([*gone, *(f"{_key(number)}{DONE}" for number in old)])
            self._numbers = [number for number in self._numbers if number > old[-1]]

    def _lasting(self, numbers: Sequence[int]) -> set[int]:
        """Return, of some entries, the first of generations and those before them: they stay for good."""
        found = {self._fence - 1, self._fence}  # behind it all are of this run
        asked = sorted(
            {near for number in numbers if number < self._fence for near in (number - 1, number, number + 1)}
        )
        entries = dict(zip(asked, each(self.read, asked), strict=True))
        for number, entry in entries.items():
            before = entries.get(number - 1)
            # Where the one before was removed, this is not the first: else that would have stayed.
            if entry is not None and (number == 1 or (before is not None and before.generation < entry.generation)):
                found |= {number - 1, number}
        return found

    def standing(self, last: UploadsEntry) -> list[UploadsEntry]:
        """Return the entries up to the last one that are kept and that no rewind has taken back, oldest first.

        Not as far as a listing goes: what it lacks would not be withdrawn.
        """
        found: list[UploadsEntry] = []
        wanted = {*self.numbers(), *range(max(1, last.number - KEPT), last.number + 1)}
        for entry in self._entries(sorted(wanted)):
            if entry.back_to is not None:
                found = [one for one in found if one.epoch <= entry.back_to]
            found.append(entry)
        return found

    def entries(self) -> list[UploadsEntry]:
        """Return the entries that are kept, oldest first."""
        return self._entries(self.numbers())

    def _entries(self, numbers: Sequence[int]) -> list[UploadsEntry]:
        return [entry for entry in each(self.read, numbers) if entry is not None]

    def numbers(self) -> list[int]:
        """List the numbers of the entries that are kept, ascending."""
        return sorted(int(key) for key in self._objects.keys("") if key.isdecimal())

    def read(self, number: int) -> UploadsEntry | None:
        """Return an entry; None where there is none with this number.

        Raises
        ------
        Corrupt
            If its bytes are not what was written.
        """
        data = self._objects.get(_key(number))
        if data is None:
            return None
        try:
            return _decode(data, number)
        except (ValueError, KeyError, TypeError) as error:
            path = f"{self.address}/{_key(number)}"
            raise Corrupt(
                f"The log entry {path} is damaged.",
                why=f"it is not what was written: {error}.",
                do="restore it from a copy; without it, which epochs the sink holds is unknown.",
                participant=path,
            ) from error


def files_behind(entries: Sequence[UploadsEntry], to: Positions) -> UploadsBehind | None:
    """Return what was published after some positions; None where no entry ended there."""
    at = max((place for place, entry in enumerate(entries) if entry.epoch and entry.positions == to), default=None)
    if at is None:
        return None
    later = [entry for entry in entries[at + 1 :] if entry.files]
    return UploadsBehind(entries[at].epoch, len(later), tuple(file for entry in later for file in entry.files))


def _key(number: int) -> str:
    return f"{number:012}"


def _encode(entry: UploadsEntry) -> bytes:
    body = asdict(entry) | {"files": [_plain(file) for file in entry.files]}
    return (json.dumps({"format": 1, "entry": body, "sha256": _checksum(body)}) + "\n").encode()


def _plain(file: UploadedFile) -> list[Any]:
    upload = file.upload
    return [upload.key, upload.upload_id, list(upload.etags), upload.size_bytes, file.row_count]


def _decode(data: bytes, number: int) -> UploadsEntry:
    document = json.loads(data)
    body: Mapping[str, Any] = document["entry"]
    if document["sha256"] != _checksum(body):
        raise ValueError("its checksum does not match")
    files = tuple(
        UploadedFile(Upload(key, upload, tuple(etags), size), rows) for key, upload, etags, size, rows in body["files"]
    )
    plain = {
        "files": files,
        "removals": tuple(body["removals"]),
        "explanations": tuple(Explanation(**one) for one in body["explanations"]),
    }
    entry = UploadsEntry(**{**without_step_time(body), **plain})
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
