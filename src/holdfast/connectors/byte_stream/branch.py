"""A store of byte streams as readers see it: its branches, the files of each stream, random access points.

Each sink that writes to a store has a *branch* of its own, ``<store>/<pipeline>/<sink>/``, with a log and streams.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.connectors.byte_stream.data_file import MessageChunk, StoredFile
from holdfast.connectors.byte_stream.manifest import (
    LOG,
    LOWEST,
    DataFile,
    StreamEntry,
    StreamState,
    decode_entry,
    encode_entry,
    read_list,
    stream_directory,
)
from holdfast.errors import Corrupt, HoldfastError
from holdfast.store import durable
from holdfast.store.entry_log import EntryLog

T = TypeVar("T")

LOOKS = 10
"""How often a reader looks again when a file vanishes between the log and its opening: a writer has moved on."""


@dataclass(frozen=True)
class StreamView:
    """A stream as one log entry says it.

    Parameters
    ----------
    directory : str
        Where its files are.
    name : str
        Its name.
    state : StreamState
        What the entry says.
    files : tuple of DataFile
        All that can be read, oldest first.
    """

    directory: str
    name: str
    state: StreamState
    files: tuple[DataFile, ...]

    @property
    def end(self) -> int:
        """Ordinal behind the last message that can be read; where nothing is left, that of the first dropped ones."""
        return self.files[-1].end if self.files else self.state.begin

    def is_withdrawn(self, end: int) -> bool:
        """Return whether rows up to a position were there once, and a rewind has withdrawn the last of them.

        Ordinals are not given again, so no message ends there any more.
        """
        return end > self.state.begin and not any(file.first < end <= file.end for file in self.files)

    def end_up_to(self, ordinal: int) -> int:
        """Return the end of the last message below an ordinal."""
        return max((min(ordinal, file.end) for file in self.files if file.first < ordinal), default=self.state.begin)

    def count_between(self, start: int, end: int) -> int:
        """Return how many messages have an ordinal between two positions."""
        return sum(max(0, min(end, file.end) - max(start, file.first)) for file in self.files)

    def bytes_between(self, start: int, end: int) -> int:
        """Return about how many bytes they have: those of their files, in proportion."""
        size = 0
        for file in self.files:
            count = max(0, min(end, file.end) - max(start, file.first))
            size += -(-file.size * count // file.count)
        return size

    def after(self, start: int, count: int) -> int:
        """Return the position behind so many messages from another one on."""
        end = start
        for file in self.files:
            if count and file.end > start:
                taken = min(count, file.end - max(start, file.first))
                end, count = max(start, file.first) + taken, count - taken
        return end

    def lost_files(self, start: int, end: int) -> list[tuple[DataFile, str]]:
        """Return the files with messages between two positions that are not there, or too short; and which file it is.

        A look at their sizes: what is in them is compared when it is read.
        """
        found = []
        for file in self.files:
            if max(start, file.first) < min(end, file.end):
                for name, size in ((f"{file.stem}.data", file.size), (f"{file.stem}.index", file.index_size)):
                    path = os.path.join(self.directory, name)
                    there = os.path.getsize(path) if os.path.exists(path) else None
                    if there is None or there < size:
                        has = "is not there" if there is None else f"has {there} of {size} bytes"
                        found.append((file, f"{path} {has}"))
                        break
        return found

    def read(self, start: int, end: int) -> Iterator[MessageChunk]:
        """Yield the messages between two positions."""
        for file in self.files:
            first, last = max(start, file.first), min(end, file.end)
            if first < last:
                with StoredFile(self.directory, self.name, file) as stored:
                    yield from stored.messages(first, last)

    def access_point(self, at: int) -> int:
        """Return the position of the random access point at or before a time; the first message where there is none.

        The last one with a timestamp at or before it, and all messages before it below: none at or after the time is
        missing.
        """
        for file in reversed(self.files):
            if file.before < at:
                with StoredFile(self.directory, self.name, file) as stored:
                    found = stored.last_entry(lambda entry: entry.highest <= at and entry.before < at)
                if found is not None:
                    return found.ordinal
        return self.files[0].first if self.files else self.end

    def highest_before(self, ordinal: int) -> int | None:
        """Return the highest timestamp before a position, or a lower one that is in the index; None where none is."""
        for file in reversed(self.files):
            if file.end <= ordinal:
                return file.highest
            if file.first < ordinal:
                with StoredFile(self.directory, self.name, file) as stored:
                    entry = stored.last_entry(lambda entry: entry.ordinal < ordinal)
                known = file.before if entry is None else entry.highest
                return None if known == LOWEST else known
        return None

    def first_from(self, at: int) -> int | None:
        """Return the ordinal of the first message at or after a time; None while there is none."""
        for file in self.files:
            if file.highest < at:
                continue
            if file.before >= at:  # those before are gone
                return file.first
            with StoredFile(self.directory, self.name, file) as stored:
                known = stored.last_entry(lambda entry: entry.highest < at)
                heads = stored.heads(file.first if known is None else known.ordinal)
                return next(ordinal for ordinal, _, head in heads if head.timestamp >= at)
        return None


@dataclass(frozen=True)
class BranchView:
    """A branch as one log entry says it."""

    entry: StreamEntry
    streams: Mapping[str, StreamView] = field(default_factory=dict)


class Branch:
    """The part of a store that one sink writes: its log, and what it says.

    Parameters
    ----------
    directory : str
        ``<store>/<pipeline>/<sink>``.
    aside : str
        As of :class:`~holdfast.store.entry_log.EntryLog`.
    gap : callable
        As there.
    """

    def __init__(
        self, directory: str, *, aside: str = "", gap: Callable[[str, StreamEntry], HoldfastError] | None = None
    ) -> None:
        self.directory = directory
        self.log = EntryLog(
            os.path.join(directory, LOG),
            aside=aside,
            encode=encode_entry,
            decode=decode_entry,
            gap=gap or _never,
        )
        self._lists: dict[tuple[str, str], tuple[DataFile, ...]] = {}

    def view(self) -> BranchView:
        """Return what the last entry says.

        Raises
        ------
        Corrupt
            If an entry or a list is damaged, or a list is gone.
        """

        def look() -> BranchView:
            return self.view_of(self.log.last() or StreamEntry())

        return while_it_moves(look)

    def view_of(self, entry: StreamEntry) -> BranchView:
        """Return what an entry says; FileNotFoundError where a newer one has replaced a list."""
        streams, lists = {}, {}
        for name, state in entry.streams.items():
            directory = stream_directory(self.directory, name)
            files: tuple[DataFile, ...] = ()
            if state.list is not None:
                key = (name, state.list)
                files = lists[key] = self._lists.get(key) or read_list(directory, state.list)
            grows = () if state.open is None else (state.open,)
            streams[name] = StreamView(directory, name, state, files + grows)
        self._lists = lists
        return BranchView(entry, streams)


def branches(store: str) -> dict[str, Branch]:
    """Return the branches of a store by name, ``<pipeline>/<sink>``, sorted; none where there is no store."""
    found = {}
    for pipeline in _directories(store):
        for sink in _directories(os.path.join(store, pipeline)):
            directory = os.path.join(store, pipeline, sink)
            if os.path.isdir(os.path.join(directory, LOG)):
                found[f"{pipeline}/{sink}"] = Branch(directory)
    return found


def while_it_moves(look: Callable[[], T]) -> T:
    """Do something that reads files which a log names, again while one of them vanishes between the two."""
    for _ in range(LOOKS - 1):
        try:
            return look()
        except FileNotFoundError:
            continue
    try:
        return look()
    except FileNotFoundError as error:
        raise Corrupt(
            f"{error.filename} is gone, and the log names it.",
            why="somebody removed it.",
            do="restore it from a copy.",
            participant=str(error.filename),
        ) from error


def _directories(path: str) -> list[str]:
    with durable.explained(f"listing {path}"):
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "_.")
        except FileNotFoundError:
            return []


def _never(path: str, entry: StreamEntry) -> HoldfastError:
    raise AssertionError(f"{path}: a reader appends nothing")
