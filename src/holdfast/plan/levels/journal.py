"""The state of a pipeline as a journal in the checkpoint: what each epoch changed, in which bucket.

An epoch writes one *entry*: the records of the buckets that it changed, and where their pieces lie: in the entry
itself, or in *parts*, which workers write before it.  Every so often an entry is *whole*: it has all buckets.  The
state at the end of an epoch is its entry with those before it, back to a whole one; each names the one before it.

Invariants.  An entry is durable before its epoch is decided, so what was published has its state.  An entry counts
only with everything that it names.  Of several entries of one epoch, by several runs, that of the highest generation
counts: a lower one is of an attempt that was given up, or of a run that was fenced.  What the last whole entry but one
names, or any since, is not removed; nor what a version needs that is held.

Layout, below Spark's directory::

    journal/000000000041-7.entry                 epoch 41 of the directory (Spark's batch), by generation 7
    journal/counted/1/000000000041-9f03a2c1.part pieces of bucket 1 of operator "counted", from a worker
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import STATE, Corrupt, HoldfastError, invariant
from holdfast.ports import Store
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")

WHOLE_EVERY = 32
"""Entries from one whole one to the next: a reader reads no more than these."""

At = tuple[str, int]
"""A bucket: operator and number."""

PieceKey = tuple[int, int]
"""A piece of a part: the part's serial number, and the piece's."""

HELD_S = 10.0
"""So long what a run no longer needs stays at least: a snapshot may be about to hold what it reads."""

_FORMAT = 2
_FORMATS = (1, 2)
"""Entries of format 1 have BLAKE2b checksums of their pieces."""
_HEAD_BYTES = 8


@dataclass(frozen=True)
class StoredPiece:
    """Where a piece of a bucket's state lies.

    Parameters
    ----------
    key : str
        The object in the store.
    offset, size : int
        The bytes within it.
    checksum : str
        Of these bytes.
    """

    key: str
    offset: int
    size: int
    checksum: str


@dataclass(frozen=True)
class StoredBucket:
    """One bucket as an entry has it.

    Parameters
    ----------
    record : str
        As :meth:`holdfast.plan.levels.store.Record.to_json` gives it.
    pieces : mapping of PieceKey to StoredPiece
        Of all its parts.
    """

    record: str
    pieces: Mapping[PieceKey, StoredPiece] = field(default_factory=dict)


@dataclass(frozen=True)
class BucketChange:
    """What a call of a step changed of a bucket.

    Parameters
    ----------
    at : At
        The bucket.
    record : str
        Its new record.
    kept : mapping of PieceKey to StoredPiece
        Pieces that lie somewhere already.
    written : mapping of PieceKey to bytes
        New pieces, which the entry is to hold.
    """

    at: At
    record: str
    kept: Mapping[PieceKey, StoredPiece]
    written: Mapping[PieceKey, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Boundary:
    """What must stay of a journal so that the versions from a whole entry on can be read.

    Parameters
    ----------
    batch_id : int
        The epoch of the whole entry: objects of it and of later epochs stay.
    needed : frozenset of str
        Those of older epochs in which its pieces lie.
    """

    batch_id: int = -1
    needed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StateVersion:
    """All state at the end of one epoch.

    Parameters
    ----------
    batch_id : int
        The epoch, as Spark numbers it in this directory; -1 before the first.
    key : str
        Its entry; empty before the first.
    buckets : mapping of At to StoredBucket
        Those that have state.
    spread : int
        How many entries lie between the last whole one and it.
    boundary : Boundary
        What must stay for its sake: that of the last whole entry.
    """

    batch_id: int = -1
    key: str = ""
    buckets: Mapping[At, StoredBucket] = field(default_factory=dict)
    spread: int = 0
    boundary: Boundary = field(default_factory=lambda: Boundary())


NOTHING = StateVersion()


# --- reading ----------------------------------------------------------------------------------------------------------


class JournalReader:
    """Reads a journal.  Safe between threads; used by the driver and by workers.

    Parameters
    ----------
    store : Store
        The checkpoint.
    below : str
        Spark's directory below it.
    """

    def __init__(self, store: Store, below: str) -> None:
        self._store = store
        self.directory = f"{below}/journal/"
        self._object: tuple[str, bytes] = ("", b"")

    def entries(self, batch_id: int) -> list[str]:
        """Return the entries of one epoch, that of the highest generation first."""
        found = self._store.keys(f"{self.directory}{batch_id:012d}-")
        return sorted((key for key in found if key.endswith(".entry")), key=_generation, reverse=True)

    def version(self, batch_id: int) -> StateVersion:
        """Return the state at the end of an epoch.

        Raises
        ------
        Corrupt
            If an entry is missing or damaged.
        """
        if batch_id < 0:
            return NOTHING
        found = self.entries(batch_id)
        if not found:
            raise self._damaged(f"{self.directory}{batch_id:012d}", "it is missing, and the state needs it")
        return self.version_of(found[0])

    def version_of(self, key: str, known: StateVersion = NOTHING) -> StateVersion:
        """Return the state that ends with an entry.

        Parameters
        ----------
        key : str
            The entry; empty before the first.
        known : StateVersion, optional
            One that was read before: entries that it has are not read again.
        """
        entries: list[_Entry] = []
        while key and key != known.key:
            entries.append(self._entry(key))
            key = "" if entries[-1].is_whole else entries[-1].previous
        version = known if key else NOTHING
        for entry in reversed(entries):
            version = entry.after(version)
        return version

    def piece(self, piece: StoredPiece) -> bytes:
        """Return the bytes of a piece.

        Raises
        ------
        Corrupt
            If they are missing or damaged.
        """
        key, data = self._object  # one after the other often lie in the same object
        if key != piece.key:
            data = self._get(piece.key)
            self._object = (piece.key, data)
        found = data[piece.offset : piece.offset + piece.size]
        if len(found) != piece.size or not _fits(found, piece.checksum):
            raise self._damaged(piece.key, "its checksum does not match: it was truncated or changed")
        return found

    def _entry(self, key: str) -> _Entry:
        data = self._get(key)
        try:
            return _Entry.parsed(key, data)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(key, str(error)) from error

    def _get(self, key: str) -> bytes:
        data = self._store.get(key)
        if data is None:
            raise self._damaged(key, "it is missing, and the state needs it")
        return data

    def _damaged(self, key: str, why: str) -> Corrupt:
        return Corrupt(
            f"{key} in the checkpoint cannot be read.",
            why=f"{why}; it holds state.",
            do="restore the checkpoint, or this file, from a copy.",
            participant=STATE,
        )


@dataclass(frozen=True)
class _Entry:
    """What an entry says: its buckets replace those of the version before it."""

    key: str
    batch_id: int
    previous: str
    is_whole: bool
    buckets: Mapping[At, StoredBucket]

    def after(self, version: StateVersion) -> StateVersion:
        invariant(
            self.is_whole or (version.key, version.batch_id) == (self.previous, self.batch_id - 1),
            f"{self.key} follows {self.previous or 'nothing'!r}, and is put after {version.key or 'nothing'!r}.",
        )
        if self.is_whole:
            needed = frozenset(piece.key for bucket in self.buckets.values() for piece in bucket.pieces.values())
            return StateVersion(self.batch_id, self.key, self.buckets, 0, Boundary(self.batch_id, needed))
        buckets = {**version.buckets, **self.buckets}
        return StateVersion(self.batch_id, self.key, buckets, version.spread + 1, version.boundary)

    def written(self, pieces: Sequence[bytes]) -> bytes:
        """Return the bytes of the entry, with the pieces that it holds itself."""
        buckets = [
            [*at, bucket.record, [[*number, *_place(piece, self.key)] for number, piece in bucket.pieces.items()]]
            for at, bucket in self.buckets.items()
        ]
        head = sealed.dump(
            {
                "format": _FORMAT,
                "batch": self.batch_id,
                "previous": self.previous,
                "whole": self.is_whole,
                "buckets": buckets,
            }
        )
        # The place of a piece in here is counted from the end of the head, whose length depends on its contents.
        return b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *pieces])

    @staticmethod
    def parsed(key: str, data: bytes) -> _Entry:
        head_end = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
        head = sealed.load(data[_HEAD_BYTES:head_end])
        if head["format"] not in _FORMATS:
            raise ValueError(
                f"it has the format {head['format']}, and this version knows {' and '.join(map(str, _FORMATS))}"
            )
        buckets = {
            (str(operator), int(number)): StoredBucket(
                str(record),
                {
                    (part, at): StoredPiece(place or key, offset + (0 if place else head_end), size, checksum)
                    for part, at, place, offset, size, checksum in pieces
                },
            )
            for operator, number, record, pieces in head["buckets"]
        }
        return _Entry(key, int(head["batch"]), str(head["previous"]), bool(head["whole"]), buckets)


def _place(piece: StoredPiece, here: str) -> list[Any]:
    return ["" if piece.key == here else piece.key, piece.offset, piece.size, piece.checksum]


def _checksum(data: bytes) -> str:
    """Return what shows that bytes were truncated or changed: by accident, so a CRC, which a processor computes."""
    return f"{zlib.crc32(data):08x}"


def _fits(data: bytes, checksum: str) -> bool:
    if len(checksum) == 2 * _EARLIER_BYTES:
        return hashlib.blake2b(data, digest_size=_EARLIER_BYTES).hexdigest() == checksum
    return _checksum(data) == checksum


_EARLIER_BYTES = 8
"""Length of the digests of format 1: pieces keep theirs from entry to entry."""


def _generation(key: str) -> int:
    return int(key.rpartition("-")[2].removesuffix(".entry"))


def _batch(key: str) -> int:
    """Return the epoch in the name of an object of a journal; -1 for names that are not ours."""
    number = key.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdigit() else -1


# --- writing ----------------------------------------------------------------------------------------------------------


def write_part(store: Store, below: str, batch_id: int, change: BucketChange) -> BucketChange:
    """Write the new pieces of a bucket as an object of its own; return the change with their places.

    For workers: whether it counts, an entry says.  The name is new with every attempt.
    """
    if not change.written:
        return change
    operator, number = change.at
    key = f"{below}/journal/{operator}/{number}/{batch_id:012d}-{secrets.token_hex(4)}.part"
    places, pieces = _laid(key, change.written, 0)
    store.put(key, b"".join(pieces))
    return BucketChange(change.at, change.record, {**change.kept, **places})


def change_to_json(change: BucketChange) -> dict[str, Any]:
    """Return a change without new pieces as a JSON value: a worker reports it to the driver."""
    invariant(not change.written, "a change that is reported has its pieces in a part.")
    pieces = [[*number, piece.key, piece.offset, piece.size, piece.checksum] for number, piece in change.kept.items()]
    return {"at": list(change.at), "record": change.record, "pieces": pieces}


def change_from_json(value: Mapping[str, Any]) -> BucketChange:
    """Return the change that :func:`change_to_json` was given."""
    operator, number = value["at"]
    pieces = {(part, at): StoredPiece(*place) for part, at, *place in value["pieces"]}
    return BucketChange((operator, number), value["record"], pieces)


class StateJournal:
    """Writes the journal of one directory.  Lives on the driver; one thread writes.

    Parameters
    ----------
    store : Store
        The checkpoint.
    below : str
        Spark's directory below it.
    generation : int
        Of this run.
    is_trial : bool
        Whether it only says with which state an epoch begins, and keeps nothing: for an evaluation that is no epoch.
    clock_s : callable
        Time that only grows, seconds.
    """

    def __init__(
        self,
        store: Store,
        below: str,
        generation: int,
        *,
        is_trial: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._generation = generation
        self._is_trial = is_trial
        self.reader = JournalReader(store, below)
        self._clock_s = clock_s
        self._now = NOTHING
        self._before: StateVersion | None = None
        self._boundaries: list[tuple[float, Boundary]] = []
        """When each was written by this run, ascending; the one that it found first."""
        self._removed = Boundary()
        self._held: dict[object, int] = {}
        self._lock = threading.Lock()

    def begin(self, batch_id: int) -> StateVersion:
        """Return the state with which an epoch begins: that of the end of the one before.

        Raises
        ------
        Corrupt
            If it cannot be read.
        """
        if self._now.batch_id == batch_id and self._before is not None:  # it is repeated
            self._now, self._before = self._before, None
        if self._now.batch_id != batch_id - 1:
            self._now, self._before = self.reader.version(batch_id - 1), None
            self._boundaries = [(float("-inf"), self._now.boundary)]
        return self._now

    def adopted(self, batch_id: int) -> bool:
        """Go on with the entry that was written of an epoch before; return whether there is one."""
        before = self.begin(batch_id)
        found = self.reader.entries(batch_id)
        if not found:
            return False
        self._before, self._now = before, self.reader.version_of(found[0], before)
        return True

    def write(self, batch_id: int, changes: Iterable[BucketChange]) -> StateVersion:
        """Write what an epoch changed, and return the state at its end.  Durable when it returns."""
        before = self.begin(batch_id)
        if self._is_trial:
            return before
        key = f"{self.reader.directory}{batch_id:012d}-{self._generation}.entry"
        changed: dict[At, StoredBucket] = {}
        pieces: list[bytes] = []
        offset = 0
        for change in changes:
            what = f"bucket {change.at[1]} of {change.at[0]!r} has changed twice in one epoch."
            invariant(change.at not in changed, what, why="its step is called once.", generation=self._generation)
            places, new = _laid(key, change.written, offset)
            offset += sum(map(len, new))
            pieces += new
            changed[change.at] = StoredBucket(change.record, {**change.kept, **places})
        is_whole = not before.key or before.spread + 1 >= WHOLE_EVERY
        buckets = {**before.buckets, **changed} if is_whole else changed
        data = _Entry(key, batch_id, before.key, is_whole, buckets).written(pieces)
        self._store.put(key, data)
        self._before, self._now = before, _Entry.parsed(key, data).after(before)
        if is_whole:
            self._remove_needless(before)
            self._boundaries.append((self._clock_s(), self._now.boundary))
        return self._now

    def hold(self, batch_id: int) -> Callable[[], None]:
        """Keep what the state at the end of an epoch needs, until what is returned is called.

        Safe between threads.  Nothing durable says so: what a run held that died, the next one removes.
        """
        hold = object()
        with self._lock:
            self._held[hold] = batch_id

        def let_go() -> None:
            with self._lock:
                self._held.pop(hold, None)

        return let_go

    def _remove_needless(self, before: StateVersion) -> None:
        """Remove what is needed neither by the epoch that was just written, should it be repeated, nor by a reader.

        The epoch begins with the version before it, so nothing from that one's last whole entry on is removed: however
        often it is repeated, by whomever.  A snapshot may be about to hold a version of some seconds ago.
        """
        until_s = self._clock_s() - HELD_S
        known = [(at_s, each) for at_s, each in self._boundaries if each.batch_id <= before.boundary.batch_id]
        ready = [each for at_s, each in known if at_s <= until_s]
        with self._lock:
            oldest = min(self._held.values(), default=before.batch_id)
            found = [each for each in ready if each.batch_id <= oldest]
            useful = (*found[-1:], *ready[-1:])  # as long as a version is held, there are more and more
            self._boundaries = [(at_s, each) for at_s, each in known if at_s > until_s or each in useful]
            if not found or found[-1] == self._removed:
                return
            try:
                for key in self._store.keys(self.reader.directory):
                    if _batch(key) < found[-1].batch_id and key not in found[-1].needed:
                        self._store.delete(key)
            except HoldfastError as error:  # the entry is durable: its epoch must not fail for this
                log.warning("old state was not removed, and is with the next whole entry: %s", error.message)
                return
        self._removed = found[-1]


def _laid(key: str, written: Mapping[PieceKey, bytes], offset: int) -> tuple[dict[PieceKey, StoredPiece], list[bytes]]:
    """Return where pieces lie in an object, one after the other, and the pieces in that order."""
    places, pieces = {}, []
    for number, data in sorted(written.items()):
        places[number] = StoredPiece(key, offset, len(data), _checksum(data))
        pieces.append(data)
        offset += len(data)
    return places, pieces
