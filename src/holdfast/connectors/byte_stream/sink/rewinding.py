"""What a rewind leaves of a stream: the messages below an ordinal.  Ordinals go on above all that were ever given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.connectors.byte_stream.store.branch import BranchView, StreamView
from holdfast.connectors.byte_stream.store.layout import LOWEST
from holdfast.connectors.byte_stream.store.manifest import DataFile, StreamEntry, StreamState
from holdfast.errors import invariant
from holdfast.positions import Positions


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
