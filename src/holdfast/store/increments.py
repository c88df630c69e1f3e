"""A sequence of numbered payloads in a directory: each is written once, and neighbours are merged.

Numbers begin at 1 and are dense.  Each payload is an object (:mod:`holdfast.store.sealed`) named by its number,
``000000000007.json``, so of several writers exactly one creates it.  A hundred neighbours are merged into one object
``000000000001-000000000100.json``, a hundred of those into a larger one: reading everything takes a few hundred
objects at most.  A merged object is made of immutable ones, so every process makes the same.

What a source's log says, sinks know too (design/0018): of a checkpoint in an object store it is in the scratch alone.
Of any other sequence each object is in the store, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress

from holdfast.errors import Corrupt
from holdfast.store import durable, scratch, sealed

MERGED_AT_A_TIME = 100
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.json")
_READ_ATTEMPTS = 20


class Increments:
    """The sequence in one directory, to the extent that this process has read it.

    Parameters
    ----------
    directory : str
        Local; created when absent, unless it is only read.
    what : str
        What the sequence is, for errors.
    is_read_only : bool
        It is only read, while a writer may be alive: nothing is created or cleaned up.
    read_up_to : int
        Where :meth:`read_on` begins: behind this number.
    is_told : bool
        Whether sinks know it too: then files are enough.
    """

    def __init__(
        self, directory: str, what: str, *, is_read_only: bool = False, read_up_to: int = 0, is_told: bool = True
    ) -> None:
        self.directory = directory
        self._is_told = is_told
        self.next = read_up_to + 1
        """Number of the next payload, as far as this process has read."""
        self._what = what
        self._loose = 0  # payloads read that are not merged yet
        if not is_read_only:
            sealed.prepare(directory)

    def read_on(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of what is new, in order.  One counts as read when the next one is asked for.

        Raises
        ------
        Corrupt
            If one is missing, and later ones are there.
        """
        for _ in range(_READ_ATTEMPTS):
            if (yield from self._read_on()):
                return
        # A directory can be listed while another process merges, and then seems to have a gap; a real one stays.
        raise Corrupt(
            f"increment {self.next} of {self._what} {self.directory} is missing, and later ones are there.",
            why="it was removed, or the disk lost it.",
            do="restore the directory from a backup; without it, what was already read is unknown.",
            participant=self.directory,
        )

    def put(self, payload: bytes) -> bool:
        """Write a payload, without line breaks, under the next number; False when another process was faster.

        Durable when it returns True.  After False there is something to read on.
        """
        number = self.next
        if not sealed.put_if_absent(self._path(number, number), payload, is_told=self._is_told):
            return False
        if any(first <= number <= last and first != last for first, last in _stored(self.directory)):
            # Either we were so far behind that the number had been merged away, and our object does not count;
            # or another process has already merged it.  Reading further shows which.
            self._remove(number, number)
            return False
        self.next = number + 1
        self._loose += 1
        return True

    def merge(self) -> None:
        """Merge full hundreds.  Cheap when there are none; safe to be killed anywhere."""
        if self._loose < MERGED_AT_A_TIME:
            return
        self._loose = 0
        stored = _stored(self.directory)
        while (group := _mergeable(stored)) is not None:
            payloads = [sealed.read_sealed(self._path(*one)) for one in group]
            if any(payload is None for payload in payloads):
                return  # another process is merging
            merged = b"\n".join(payload for payload in payloads if payload is not None)
            first, last = group[0][0], group[-1][1]
            # 1. the merged object; a crash here leaves both, and readers take the larger one
            sealed.put_if_absent(self._path(first, last), merged, is_told=self._is_told)
            stored = [one for one in stored if one not in group] + [(first, last)]
        # 2. what is covered; a crash here leaves some, to be removed next time
        for one in _covered(stored + _stored(self.directory)):
            self._remove(*one)

    def _read_on(self) -> Generator[tuple[int, bytes], None, bool]:
        """Yield from the next number on; return False when objects were merged away under our eyes."""
        while True:
            stored = _stored(self.directory)
            pending = _cover(stored, self.next)
            if not pending:
                return not any(first > self.next for first, _ in stored)
            for first, last in pending:
                payload = sealed.read_sealed(self._path(first, last))
                if payload is None:
                    return False
                for number, line in enumerate(payload.split(b"\n"), start=first):
                    if number >= self.next:  # else it was read before it was merged
                        yield number, line
                        self.next = number + 1
                if first == last:
                    self._loose += 1

    def _remove(self, first: int, last: int) -> None:
        path = self._path(first, last)
        kept = None if self._is_told else scratch.object_of(path)
        if kept is not None:
            store, key = kept
            store.delete(key)
        with durable.explained(f"removing {path}"), suppress(FileNotFoundError):
            os.unlink(path)

    def _path(self, first: int, last: int) -> str:
        return _path(self.directory, first, last)


def newest_object(directory: str, what: str) -> tuple[str, list[bytes]] | None:
    """Return the path of the newest object and its payloads; None where there is none.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    for _ in range(_READ_ATTEMPTS):
        stored = _stored(directory)
        if not stored:
            return None
        path = _path(directory, *max(stored, key=lambda one: (one[1], -one[0])))
        payload = sealed.read_sealed(path)
        if payload is not None:
            return path, payload.split(b"\n")
        # else another process has merged it meanwhile
    raise Corrupt(
        f"the newest object of {what} {directory} is missing.",
        why="it was listed repeatedly, but was not there.",
        do="restore the directory from a backup; without it, what was already read is unknown.",
        participant=directory,
    )


def _stored(directory: str) -> list[tuple[int, int]]:
    """Return (first, last) of every object, ascending, the larger of two with one beginning first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    found = [(int(match[1]), int(match[2] or match[1])) for match in matches]
    return sorted(found, key=lambda one: (one[0], -one[1]))


def _path(directory: str, first: int, last: int) -> str:
    name = f"{first:012d}" if first == last else f"{first:012d}-{last:012d}"
    return os.path.join(directory, f"{name}.json")


def _cover(stored: Iterable[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Return the fewest objects that hold everything from ``number`` on without a gap."""
    chosen: list[tuple[int, int]] = []
    for first, last in stored:
        if first <= number <= last:
            chosen.append((first, last))
            number = last + 1
    return chosen


def _covered(stored: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the objects whose numbers a larger object holds too."""
    distinct = set(stored)
    return [
        one for one in distinct if any(other != one and other[0] <= one[0] and one[1] <= other[1] for other in distinct)
    ]


def _mergeable(stored: Iterable[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Return a full hundred of neighbours of one size, or None.

    Groups begin at fixed numbers (1, 101, 201, ...), so that all planners merge the same ones.
    """
    distinct = set(stored)
    for size in sorted({last - first + 1 for first, last in distinct}):
        span = size * MERGED_AT_A_TIME
        for first in sorted(first for first, last in distinct if last - first + 1 == size and (first - 1) % span == 0):
            group = [(begin, begin + size - 1) for begin in range(first, first + span, size)]
            is_done = any(other[0] <= first and first + span - 1 <= other[1] for other in distinct)
            if not is_done and all(one in distinct for one in group):
                return group
    return None
