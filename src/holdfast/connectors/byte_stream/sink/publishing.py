"""From the parts of an epoch to the next state of every stream: appended, rewound, dropped; durable, not committed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from holdfast.connectors.byte_stream.sink.append import StreamAppend, StreamRules
from holdfast.connectors.byte_stream.sink.ordering import MessagePart, by_stream
from holdfast.connectors.byte_stream.sink.retention import RetentionRules, needed
from holdfast.connectors.byte_stream.sink.rewinding import StreamsBehind, left_of
from holdfast.connectors.byte_stream.store.branch import BranchView, StreamView
from holdfast.connectors.byte_stream.store.manifest import DataFile, StreamState, encode_list, stream_directory
from holdfast.store import durable

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
