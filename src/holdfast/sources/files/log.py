"""The durable log of a file source: which blocks of which files, in which order.

A position is the ordinal of the next block.  The log is a sequence of *increments*, each an object that is written once
(:mod:`holdfast.store.sealed`), so two concurrent planners agree: the loser reads what the winner wrote.

Increments are named by their numbers: ``000000000007.json``.  A hundred neighbours are merged into one object
``000000000001-000000000100.json``, a hundred of those into a larger one: opening reads a few hundred objects at
most, whatever the number of files.  A merged object is made of immutable ones, so every process makes the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.sources.files.identity import FileIdentity
from holdfast.store import durable, sealed

MERGED_AT_A_TIME = 100
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.json")
_READ_ATTEMPTS = 20


class Block(NamedTuple):
    """Part of a file that is read as a whole.

    Parameters
    ----------
    name : str
        The file, relative to the source's root.
    file_size : int
        The file's size in bytes when it was logged.
    start, end : int
        Bytes for text formats, rows for Parquet; ``end`` is -1 for "to the end of the file".
    row_count : int, optional
        Rows, where counted.
    size_bytes : int
        About how many bytes of the file it takes.
    identity : FileIdentity, optional
        The file's when it was logged; None in logs that were written before it was kept.
    """

    name: str
    file_size: int
    start: int
    end: int
    row_count: int | None
    size_bytes: int
    identity: FileIdentity | None = None


class LoggedFile(NamedTuple):
    """A file and the blocks it was cut into; without blocks it is known and never read (``start="latest"``)."""

    name: str
    size: int
    blocks: tuple[Block, ...]
    identity: FileIdentity | None = None


def whole(name: str, size: int) -> LoggedFile:
    """Return a file that is one block of unknown row count."""
    return LoggedFile(name, size, (Block(name, size, 0, -1, None, size),))


class FileLog:
    """The log of one source, to the extent that this process has read it.

    Parameters
    ----------
    directory : str
        Local directory of the log, created when absent.
    is_read_only : bool
        It is only read, while a run may be alive: nothing is created or cleaned up.

    Notes
    -----
    Runs in the planning process.  One durable write per :meth:`append`.
    """

    def __init__(self, directory: str, *, is_read_only: bool = False) -> None:
        self.directory = directory
        self.blocks: list[Block] = []
        self.names: set[str] = set()
        self.is_complete = False
        self._next = 1
        self._loose = 0  # increments read that are not merged yet
        if not is_read_only:
            sealed.prepare(directory)
        self.refresh()

    @classmethod
    def of_source(cls, workspace: str, name: str, identity: Mapping[str, str]) -> FileLog:
        """Open the log of a source, after comparing what it was made for (root, format) with what is read now.

        Raises
        ------
        InvalidPipeline
            If it belongs to other files: names found there are no names found here.
        """
        directory = os.path.join(sealed.local_directory(workspace, participant=name), "log")
        sealed.prepare(directory)
        path = os.path.join(directory, "identity")
        held = sealed.read_sealed(path)
        if held is None:
            sealed.put_if_absent(path, json.dumps(dict(identity)).encode())
            held = sealed.read_sealed(path)
        before = json.loads(held or b"{}")
        if before != dict(identity):
            changed = next(key for key in identity if before.get(key) != identity[key])
            raise InvalidPipeline(
                f"source {name!r} reads {changed} {identity[changed]!r}, and its log is of {before.get(changed)!r}.",
                why="the log knows files by their names below the root: in another place they are other files.",
                do="restore the former argument, or give the source another name= to read all that is there now.",
                participant=name,
            )
        return cls(directory)

    @property
    def end(self) -> int:
        """Position after the last block."""
        return len(self.blocks)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever logged."""
        return self._next == 1

    def refresh(self) -> None:
        """Read the increments that others have added."""
        for _ in range(_READ_ATTEMPTS):
            if self._read_on():
                return
        # A directory can be listed while another planner merges, and then seems to have a gap; a real one stays.
        raise Corrupt(
            f"increment {self._next} of the file log {self.directory} is missing, and later ones are there.",
            why="it was removed, or the disk lost it.",
            do="restore the directory from a backup; without it, what was already read is unknown.",
            participant=self.directory,
        )

    def append(self, files: Sequence[LoggedFile], *, is_complete: bool = False) -> bool:
        """Add files at the end of the log; return False, having read on, when another planner was faster.

        Durable when it returns True.  After False ``names`` says what is in the log: it may hold these files.
        """
        entries = [[file.name, file.size, [list(block[2:6]) for block in file.blocks], file.identity] for file in files]
        increment = {"first": self.end, "files": entries, "complete": is_complete}
        number = self._next
        payload = json.dumps(increment, separators=(",", ":")).encode()
        if not sealed.put_if_absent(self._path(number, number), payload):
            self.refresh()
            return False
        if any(first <= number <= last and first != last for first, last in self._stored()):
            # Either we were so far behind that the number had been merged away, and our object does not count;
            # or another planner has already merged it.  Reading further shows which.
            self._remove(number, number)
            self.refresh()
            return False
        self._take(number, number, payload)
        return True

    def merge(self) -> None:
        """Merge full hundreds of increments.  Cheap when there are none; safe to be killed anywhere."""
        if self._loose < MERGED_AT_A_TIME:
            return
        self._loose = 0
        stored = self._stored()
        while (group := _mergeable(stored)) is not None:
            payloads = [sealed.read_sealed(self._path(*one)) for one in group]
            if any(payload is None for payload in payloads):
                return  # another planner is merging
            merged = b"\n".join(payload for payload in payloads if payload is not None)
            first, last = group[0][0], group[-1][1]
            # 1. the merged object; a crash here leaves both, and readers take the larger one
            sealed.put_if_absent(self._path(first, last), merged)
            stored = [one for one in stored if one not in group] + [(first, last)]
        # 2. what is covered; a crash here leaves some, to be removed next time
        for one in _covered(stored + self._stored()):
            self._remove(*one)

    def _read_on(self) -> bool:
        """Read everything from the next number on; False when objects were merged away under our eyes."""
        while True:
            stored = self._stored()
            pending = _cover(stored, self._next)
            if not pending:
                return not any(first > self._next for first, _ in stored)
            for first, last in pending:
                payload = sealed.read_sealed(self._path(first, last))
                if payload is None:
                    return False
                self._take(first, last, payload)

    def _take(self, first: int, last: int, payload: bytes) -> None:
        for number, line in enumerate(payload.split(b"\n"), start=first):
            if number < self._next:
                continue  # read before it was merged
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise Corrupt(
                    f"increment {number} of the file log {self.directory} cannot be read: {error}.",
                    do="restore the directory from a backup.",
                    participant=self.directory,
                ) from error
            self._next = number + 1
        if first == last:
            self._loose += 1

    def _apply(self, increment: dict[str, Any]) -> None:
        if increment["first"] != self.end:
            raise ValueError(f"it begins at position {increment['first']}, but the log ends at {self.end}")
        for name, size, blocks, *more in increment["files"]:
            self.names.add(name)
            identity = FileIdentity(*more[0]) if more and more[0] else None  # absent in older logs
            self.blocks += [Block(name, size, start, end, rows, taken, identity) for start, end, rows, taken in blocks]
        self.is_complete = self.is_complete or increment["complete"]

    def _stored(self) -> list[tuple[int, int]]:
        return _stored(self.directory)

    def _remove(self, first: int, last: int) -> None:
        with durable.explained(f"removing {self._path(first, last)}"), suppress(FileNotFoundError):
            os.unlink(self._path(first, last))

    def _path(self, first: int, last: int) -> str:
        return _path(self.directory, first, last)


def log_end(directory: str) -> int:
    """Return the position after the last block of a log, of which only the newest object is read; 0 without a log.

    Raises
    ------
    Corrupt
        If that object cannot be read.
    """
    for _ in range(_READ_ATTEMPTS):
        stored = _stored(directory) if os.path.isdir(directory) else []
        if not stored:
            return 0
        path = _path(directory, *max(stored, key=lambda one: (one[1], -one[0])))
        payload = sealed.read_sealed(path)
        if payload is None:
            continue  # another process has merged it meanwhile
        try:
            increment = json.loads(payload.rpartition(b"\n")[2])
            return int(increment["first"]) + sum(len(blocks) for _, _, blocks, *_ in increment["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{path} cannot be read: {error}.", do="restore the file from a backup.", participant=path
            ) from error
    raise Corrupt(
        f"the newest object of the file log {directory} is missing.",
        why="it was listed repeatedly, but was not there.",
        do="restore the directory from a backup; without it, what was already read is unknown.",
        participant=directory,
    )


def _stored(directory: str) -> list[tuple[int, int]]:
    """Return (first, last) of every object, ascending, the larger of two with one beginning first."""
    matches = [match for name in os.listdir(directory) if (match := _NAME.fullmatch(name))]
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
