"""From the parts of an epoch to the next state of every stream: appended, rewound, dropped; durable, not committed.

Which files of a stream are dropped: the oldest ones, beyond an age or a size, and that no reader needs.

A reader that has registered itself says in ``<store>/_readers/`` up to where its own sinks hold everything.  Behind
what is dropped, a stream begins with a random access point.

What a rewind leaves of a stream: the messages below an ordinal.  Ordinals go on above all that were ever given.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from holdfast.connectors.byte_stream.append import StreamAppend, StreamRules
from holdfast.connectors.byte_stream.branch import BranchView, StreamView
from holdfast.connectors.byte_stream.data_file import OF_SEGMENT, READERS, mark_of_segment
from holdfast.connectors.byte_stream.manifest import (
    LOWEST,
    DataFile,
    StreamEntry,
    StreamState,
    encode_list,
    stream_directory,
)
from holdfast.connectors.byte_stream.messages import MessagePart, by_stream
from holdfast.errors import Corrupt, invariant
from holdfast.positions import Positions
from holdfast.store import durable
from holdfast.store.sealed import read_sealed

_OPEN_STREAMS = 64
"""Written before any of them is synced: the file system commits them together."""

_SYNCS = 8
"""At the same time."""

T = TypeVar("T")


@dataclass
class NextStreams:
    """What an entry will say of all streams."""

    states: dict[str, StreamState]
    removals: list[str] = field(default_factory=list)
    message_count: int = 0


@dataclass(frozen=True)
class StreamPublishing:
    """How publications change streams.

    Parameters
    ----------
    rules, retention
        As the user has said.
    store, branch, aside : str
        The store's directory, the name of the branch in it, and its directory for temporary files.
    """

    rules: StreamRules
    retention: RetentionRules
    store: str = ""
    branch: str = ""
    aside: str = ""

    def appended(self, view: BranchView, parts: Sequence[MessagePart], number: int, generation: int) -> NextStreams:
        """Append the messages of epochs, and drop what retention lets go.

        Parameters
        ----------
        view : BranchView
            What the last entry says.
        parts : sequence of MessagePart
            The messages.
        number, generation : int
            Of the entry that will commit them.
        """
        found = self._unchanged(view)
        with ThreadPoolExecutor(_SYNCS) as pool:
            for batch in batched(by_stream(parts).items(), _OPEN_STREAMS):
                appends: list[StreamAppend] = []
                try:
                    for name, messages in batch:
                        appends.append(StreamAppend(view.streams.get(name) or self._new(name), generation, self.rules))
                        appends[-1].append(messages)
                        found.message_count += messages.count
                    closing = [pool.submit(append.close) for append in appends]
                    wait(closing)
                    for each in closing:
                        each.result()
                except BaseException:
                    for append in appends:
                        append.abort()
                    raise
                for append in appends:
                    self._settle(found, append.stream, append, f"{number:012}-{generation:08}.files")
        return found

    def rewound(self, view: BranchView, back: StreamsBehind, number: int, generation: int) -> NextStreams:
        """Cut every stream where an epoch ended."""
        found = self._unchanged(view)
        for name, stream in view.streams.items():
            files, highest = left_of(stream, back.state_of(name))
            name_of_list = self._listed(found, stream, files, f"{number:012}-{generation:08}.files")
            state = stream.state
            found.states[name] = StreamState(state.next, state.begin, highest, name_of_list, None)
            left = {file.stem for file in files}
            self._remove(found, stream, [file for file in stream.files if file.stem not in left])
        return found

    def _settle(self, found: NextStreams, stream: StreamView, append: StreamAppend, name_of_list: str) -> None:
        files = [*append.finished, *(() if append.grows is None else (append.grows,))]
        dropped = self.retention.dropped(files, append.highest)
        if dropped:
            dropped = self.retention.dropped(files, append.highest, needed(self.store, self._segment(stream)))
        finished = append.finished[dropped:]
        self._remove(found, stream, [*append.replaced, *files[:dropped]])
        listed = self._listed(found, stream, finished, name_of_list)
        begin = files[dropped].first if dropped else stream.state.begin
        found.states[stream.name] = StreamState(append.next, begin, append.highest, listed, append.grows)

    def _listed(self, found: NextStreams, stream: StreamView, files: Sequence[DataFile], name: str) -> str | None:
        """Return the name of the list of these files: that of before, or a new one."""
        before = stream.state.list
        grew = 0 if stream.state.open is None else 1
        if list(stream.files[: len(stream.files) - grew]) == list(files):
            return before
        if before is not None:
            found.removals.append(self._path(stream, before))
        if not files:
            return None
        durable.replace(os.path.join(stream.directory, name), encode_list(files), aside=self.aside)
        return name

    def _remove(self, found: NextStreams, stream: StreamView, files: Sequence[DataFile]) -> None:
        for file in files:
            found.removals += [self._path(stream, f"{file.stem}.{kind}") for kind in ("data", "index")]

    def _path(self, stream: StreamView, name: str) -> str:
        return os.path.relpath(os.path.join(stream.directory, name), os.path.join(self.store, self.branch))

    def _segment(self, stream: StreamView) -> str:
        return f"{self.branch}/{stream.name}"

    def _new(self, name: str) -> StreamView:
        return StreamView(stream_directory(os.path.join(self.store, self.branch), name), name, StreamState(), ())

    @staticmethod
    def _unchanged(view: BranchView) -> NextStreams:
        return NextStreams({name: stream.state for name, stream in view.streams.items()})


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items, so many at a time."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


log = logging.getLogger("holdfast.connectors.byte_stream")


@dataclass(frozen=True)
class RetentionRules:
    """How much of each stream stays.

    Parameters
    ----------
    age : int, optional
        Nanoseconds or ticks: files whose messages are all older than this, counted from the stream's highest
        timestamp, go.  No clock is asked: a stream that is silent keeps what it has.
    size_bytes : int, optional
        The oldest files go as long as the others have at least this many bytes.
    """

    age: int | None = None
    size_bytes: int | None = None

    def dropped(self, files: Sequence[DataFile], highest: int, needed: int | None = None) -> int:
        """Return how many of the oldest files go.

        Parameters
        ----------
        files : sequence of DataFile
            Of a stream, oldest first.  The last one always stays.
        highest : int
            Highest timestamp of the stream.
        needed : int, optional
            Messages from this ordinal on are needed.

        Examples
        --------
        >>> files = [DataFile(n, 1, 1, 100, 0, n - 1, n, True) for n in range(5)]
        >>> RetentionRules(size_bytes=250).dropped(files, 4), RetentionRules(age=1).dropped(files, 4, needed=2)
        (2, 2)
        """
        count, size = 0, sum(file.size for file in files)
        for file in files[:-1]:
            is_old = self.age is not None and file.highest < highest - self.age
            is_much = self.size_bytes is not None and size - file.size >= self.size_bytes
            if not (is_old or is_much) or (needed is not None and file.end > needed):
                break
            count, size = count + 1, size - file.size
        while count and not files[count].is_start:
            count -= 1
        return count


def needed(store: str, segment: str) -> int | None:
    """Return the lowest position at which a registered reader needs a segment; None where none does.

    A reader whose mark is damaged needs everything, until somebody removes it: a recording does not stop for that.
    """
    directory = os.path.join(store, READERS)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return None
    lowest: int | None = None
    for name in names:
        if name.endswith(".json") and OF_SEGMENT not in name:
            at = _needed_by(os.path.join(directory, name), segment)
            lowest = at if lowest is None or (at is not None and at < lowest) else lowest
    return lowest


def _needed_by(path: str, segment: str) -> int | None:
    try:
        data = read_sealed(path)
        if data is None:
            return None
        if (alone := read_sealed(mark_of_segment(path, segment))) is not None:
            at = json.loads(alone)["at"]
            return None if at is None else int(at)
        said = json.loads(data)
        streams, positions = said["streams"], said["positions"]
        return int(positions.get(segment, 0)) if streams is None or segment.split("/", 2)[2] in streams else None
    except (Corrupt, ValueError, KeyError, TypeError) as error:
        log.warning(
            "%s does not say where its reader is, so all messages stay; remove it if it is gone: %s", path, error
        )
        return 0


@dataclass(frozen=True)
class StreamsBehind:
    """What follows some positions.

    Parameters
    ----------
    target : StreamEntry
        The last entry that ended there.
    epoch_count : int
        Publications with messages behind it.
    """

    target: StreamEntry
    epoch_count: int

    def message_count(self, view: BranchView) -> int:
        """Return how many messages a rewind would withdraw."""
        return sum(
            stream.count_between(self.state_of(name).next, stream.state.next) for name, stream in view.streams.items()
        )

    def state_of(self, stream: str) -> StreamState:
        """Return a stream as the target says it."""
        return self.target.streams.get(stream, StreamState())


def streams_behind(entries: Sequence[StreamEntry], to: Positions) -> StreamsBehind | None:
    """Return what was published after some positions; None where no entry ended there."""
    at = max((place for place, entry in enumerate(entries) if entry.epoch and entry.positions == to), default=None)
    if at is None:
        return None
    return StreamsBehind(entries[at], sum(1 for entry in entries[at + 1 :] if entry.message_count))


def left_of(stream: StreamView, target: StreamState) -> tuple[list[DataFile], int]:
    """Return the files of a stream that a rewind leaves, and the highest timestamp in them.

    The file in which the target ended is cut where it ended: it has not been changed below, and may have been copied.
    """
    files = []
    for file in stream.files:
        if file.end <= target.next:
            files.append(file)
        elif file.first < target.next:
            end = target.open
            invariant(
                end is not None and (end.first, end.end) == (file.first, target.next),
                f"message {target.next} of stream {stream.name!r}, where an epoch ended, is inside file {file.stem}.",
                why="an epoch ends in the file that grows, and that one keeps its beginning.",
            )
            if end is not None:
                files.append(replace(end, generation=file.generation))
    return files, target.highest if target.next else LOWEST
