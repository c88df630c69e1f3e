"""The durable log of a file source: which blocks of which files, in which order.

A position is the ordinal of the next block.  The log is a sequence of *increments*, each written once and merged with
its neighbours (:mod:`holdfast.store.increments`), so two concurrent planners agree: the loser reads what the winner
wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.connectors.formats.identity import FileIdentity
from holdfast.errors import Corrupt, Diverged, InvalidPipeline
from holdfast.ports import Explanation
from holdfast.store import sealed
from holdfast.store.increments import Increments, newest_object
from holdfast.store.time_ranges import TimeRange

_WHAT = "the file log"
_IDENTITY = "identity"


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
    times : TimeRange, optional
        Where its timestamps are, where that is known (:mod:`holdfast.connectors.formats.texts`).
    since, before : int, optional
        Only its rows of this time are read: those below ``since`` stand in an earlier block of the log, and those at or
        above ``before`` are owed (:mod:`holdfast.connectors.reading.until`).
    """

    name: str
    file_size: int
    start: int
    end: int
    row_count: int | None
    size_bytes: int
    identity: FileIdentity | None = None
    times: TimeRange | None = None
    since: int | None = None
    before: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """Which part of which file it is."""
        return self.name, self.start, self.end


class LoggedFile(NamedTuple):
    """A file and the blocks it was cut into; without blocks it is known and never read (``start="latest"``).

    Parameters
    ----------
    name, size, identity
        The file's.
    blocks : tuple of Block
        What is read of it.
    passed_over : int
        Blocks that are not read, because all of their times are before the time where reading begins.
    later : tuple of Block
        Blocks of which no row is below the time where reading ends: they are owed.
    reached : int, optional
        The highest time that it shows the source to have reached.
    by : str
        By which timestamp rows of it are owed; empty: none are.
    """

    name: str
    size: int
    blocks: tuple[Block, ...]
    identity: FileIdentity | None = None
    passed_over: int = 0
    later: tuple[Block, ...] = ()
    reached: int | None = None
    by: str = ""


def whole(name: str, size: int) -> LoggedFile:
    """Return a file that is one block of unknown row count."""
    return LoggedFile(name, size, (Block(name, size, 0, -1, None, size),))


class Skips(NamedTuple):
    """How many files, and blocks, the time index let nobody read: files of which nothing is read, and all blocks."""

    files: int = 0
    blocks: int = 0

    def plus(self, blocks: int, *, has_rest: bool) -> Skips:
        """Return it with a file more, of which so many blocks are passed over, and the rest is read or there is none.

        Examples
        --------
        >>> Skips().plus(2, has_rest=False).plus(1, has_rest=True).plus(0, has_rest=True)
        Skips(files=1, blocks=3)
        """
        return Skips(self.files + (blocks > 0 and not has_rest), self.blocks + blocks)


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
        self.passed_over = Skips()
        self.owed: dict[tuple[str, int, int], Block] = {}
        """What was left of blocks when a run ended at a time, in the order in which they were logged."""
        self.reached: int | None = None
        """The highest time that the source is known to have reached: of what was logged while a run had an end."""
        self.owed_by = ""
        """By which timestamp."""
        self._increments = Increments(directory, _WHAT, is_read_only=is_read_only)
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
        path = os.path.join(directory, _IDENTITY)
        held = sealed.read_sealed(path)
        if held is None:
            sealed.put_if_absent(path, json.dumps(dict(identity)).encode())
            held = sealed.read_sealed(path)
        _check_identity(name, held, identity)
        return cls(directory)

    @property
    def end(self) -> int:
        """Position after the last block."""
        return len(self.blocks)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever logged."""
        return self._increments.next == 1

    def refresh(self) -> None:
        """Read the increments that others have added."""
        for number, payload in self._increments.read_on():
            self._take(number, payload)

    def append(self, files: Sequence[LoggedFile], *, is_complete: bool = False) -> bool:
        """Add files at the end of the log; return False, having read on, when another planner was faster.

        Durable when it returns True.  After False ``names`` says what is in the log: it may hold these files.
        """
        increment = {"first": self.end, "files": [_entry(file) for file in files], "complete": is_complete}
        number, payload = self._increments.next, json.dumps(increment, separators=(",", ":")).encode()
        if not self._increments.put(payload):
            self.refresh()
            return False
        self._take(number, payload)
        return True

    def merge(self) -> None:
        """Merge full hundreds of increments.  Cheap when there are none; safe to be killed anywhere."""
        self._increments.merge()

    def _take(self, number: int, payload: bytes) -> None:
        try:
            self._apply(json.loads(payload))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"increment {number} of the file log {self.directory} cannot be read: {error}.",
                do="restore the directory from a backup.",
                participant=self.directory,
            ) from error

    def _apply(self, increment: dict[str, Any]) -> None:
        if increment["first"] != self.end:
            raise ValueError(f"it begins at position {increment['first']}, but the log ends at {self.end}")
        for name, size, blocks, *more in increment["files"]:
            self.names.add(name)
            identity = FileIdentity(*more[0]) if more and more[0] else None  # absent in older logs
            added = [_block(name, size, identity, fields) for fields in blocks]
            self.blocks += added
            index: dict[str, Any] = more[1] if len(more) > 1 else {}  # only where it says something
            later = index.get("later", ())
            self.passed_over = self.passed_over.plus(index.get("passed_over", 0), has_rest=bool(blocks or later))
            if later or self.owed or any(block.before is not None for block in added):
                self._settle(added, [_block(name, size, identity, fields) for fields in later])
            self.owed_by = index.get("by", self.owed_by)
            reached = index.get("reached")
            if reached is not None:
                self.reached = reached if self.reached is None else max(reached, self.reached)
        self.is_complete = self.is_complete or increment["complete"]

    def _settle(self, added: Sequence[Block], later: Sequence[Block]) -> None:
        """Note what the newest blocks leave, and what others are."""
        for block in added:
            if block.before is not None:
                self.owed[block.place] = block._replace(since=block.before, before=None)
            else:
                self.owed.pop(block.place, None)
        self.owed.update((block.place, block) for block in later)


def _entry(file: LoggedFile) -> list[Any]:
    """Return a file as the log has it."""
    known = {
        "passed_over": file.passed_over or None,
        "later": [_fields(block) for block in file.later] or None,
        "reached": file.reached,
        "by": file.by or None,
    }
    index = {name: value for name, value in known.items() if value is not None}
    entry = [file.name, file.size, [_fields(block) for block in file.blocks], file.identity]
    return [*entry, index] if index else entry


def _fields(block: Block) -> list[Any]:
    fields: list[Any] = [*block[2:6], block.times, block.since, block.before]
    while fields[-1] is None:  # as logs were written before there was an index
        fields.pop()
    return fields + [None] * (4 - len(fields))


def _block(name: str, size: int, identity: FileIdentity | None, fields: Sequence[Any]) -> Block:
    start, end, rows, taken = fields[:4]
    if len(fields) == 4:
        return Block(name, size, start, end, rows, taken, identity)
    range_, since, before = (list(fields[4:]) + [None] * 3)[:3]
    times = None if range_ is None else TimeRange(*range_)
    return Block(name, size, start, end, rows, taken, identity, times, since, before)


def check_log(directory: str, name: str, identity: Mapping[str, str]) -> None:
    """Refuse a log that was made for other files, as opening it does; without a log all is well.  Changes nothing."""
    held = sealed.read_sealed(os.path.join(directory, _IDENTITY))
    if held is not None:
        _check_identity(name, held, identity)


def _check_identity(name: str, held: bytes | None, identity: Mapping[str, str]) -> None:
    before = json.loads(held or b"{}")
    if before != dict(identity):
        changed = next(key for key in identity if before.get(key) != identity[key])
        raise InvalidPipeline(
            f"source {name!r} reads {changed} {identity[changed]!r}, and its log is of {before.get(changed)!r}.",
            why="the log knows files by their names below the root: in another place they are other files.",
            do="restore the former argument, or give the source another name= to read all that is there now.",
            participant=name,
        )


def log_end(directory: str) -> int:
    """Return the position after the last block of a log, of which only the newest object is read; 0 without a log.

    Raises
    ------
    Corrupt
        If that object cannot be read.
    """
    newest = newest_object(directory, _WHAT)
    if newest is None:
        return 0
    path, payloads = newest
    try:
        increment = json.loads(payloads[-1])
        return int(increment["first"]) + sum(len(blocks) for _, _, blocks, *_ in increment["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}.", do="restore the file from a backup.", participant=path
        ) from error


def log_explanations(workspace: str, name: str, after: int) -> list[Explanation]:
    """Return what the positions of a source mean: number 1 is what its log is of, the others are its increments."""
    directory = os.path.join(workspace, "log")
    identity = os.path.join(directory, _IDENTITY)
    found = []
    if after:
        if not os.path.exists(identity):  # restored up to here by a start that died: it is not whole
            return []
    else:
        held = sealed.read_sealed(identity)
        if held is None:
            return []
        found.append(Explanation(name, 1, held.decode()))
    increments = Increments(directory, _WHAT, is_read_only=True, read_up_to=max(0, after - 1))
    return found + [Explanation(name, number + 1, payload.decode()) for number, payload in increments.read_on()]


def restore_log(workspace: str, name: str, explanations: Sequence[Explanation]) -> None:
    """Write a log as it was, as far as it is not there.

    Raises
    ------
    Diverged
        If an increment that is there is another one.
    """
    directory = os.path.join(sealed.local_directory(workspace, participant=name), "log")
    sealed.prepare(directory)
    identity, *others = (each.text.encode() for each in explanations)
    increments = Increments(directory, _WHAT)
    for number, payload in enumerate(others, start=1):
        while increments.next <= number and not increments.put(payload):
            for there, other in increments.read_on():
                if there == number and other != payload:
                    raise Diverged(
                        f"increment {number} of the file log {directory} is not the one that the sinks hold.",
                        why="another run has begun this checkpoint anew at the same time.",
                        do="stop that run, remove the checkpoint, and start again: it is restored from the sinks.",
                        participant=name,
                    )
    # Last: a log that does not say what it is of is not whole.
    sealed.put_if_absent(os.path.join(directory, _IDENTITY), identity)
    increments.merge()
