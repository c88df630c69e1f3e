"""The source of a run: a position is the ordinal of a stream's next message, and an ordinal is one message for ever.

Where reading begins, and where it ends if it does, is recorded in the workspace when it is first known.  A stream that
appears later is read from its beginning.

Pure arithmetic of planning: how many messages of each stream an epoch takes, and which task reads which of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.connectors.byte_stream.branch import LOOKS, Branch, StreamView, branches
from holdfast.connectors.byte_stream.data_file import MessageChunk, ReaderMark
from holdfast.connectors.byte_stream.reading import ByteStreamReading
from holdfast.connectors.reading.bounds import OffsetRange, PartitionBounds, PartitionTimes
from holdfast.connectors.reading.identified import Numbered, PlaceRun, Recorded
from holdfast.connectors.reading.partitioned import share
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.limits import ReadLimit, rows_within
from holdfast.ports import Span
from holdfast.positions import SourcePositions

T = TypeVar("T")


class ByteStreamSource:
    """Segments are streams, ``<pipeline>/<sink>/<stream>``."""

    def __init__(self, spec: ByteStreamReading, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._branches: dict[str, Branch] = {}
        self._streams: dict[str, StreamView] = {}
        self._frozen: SourcePositions | None = None
        self._firsts: dict[tuple[str, int], int] = {}
        self._released: dict[str, int] | None = None
        self._is_registered = False
        self._bounds: PartitionBounds | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ByteStreamSource, (self.spec, self.name, self.workspace))

    # --- planning ---------------------------------------------------------------------------------------------------

    def initial(self) -> SourcePositions:
        """Positions where reading begins, as recorded at the first start."""
        return self._own(self._recorded().start)

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: what is committed, within the limits."""
        ends = self._up_to(self._ends())
        self._register(start)
        if bounded:
            if self._frozen is None:
                self._frozen = ends
            ends = {segment: min(end, int(self._frozen.get(segment, 0))) for segment, end in ends.items()}
        counts: dict[str, int] = {}
        for segment, end in ends.items():
            low = self._low(segment, start)
            counts[segment] = self._streams[segment].count_between(low, end)
        found = dict(start)
        most = rows_within(
            self.spec.max_rows_per_epoch,
            limit,
            sum(counts.values()),
            lambda: self.size_between(start, {**start, **ends}),
        )
        for segment, count in share(counts, most).items():
            if count:
                found[segment] = self._streams[segment].after(self._low(segment, start), count)
        return found

    def freeze(self) -> None:
        """Record what is there now."""
        self._frozen = self._ends()

    def newest(self) -> SourcePositions | None:
        """Positions behind everything that is there now, and belongs to this source."""
        return self._up_to(self._ends())

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether everything before the end is before these positions."""
        end = self._recorded().end
        if end is None:
            return False
        streams = self._own(self._looked())
        return all(
            segment not in streams or not streams[segment].count_between(self._low(segment, positions), int(last))
            for segment, last in end.items()
        )

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether each stream is read up to its first message at or after the time where this run ends."""
        if self.spec.before is None:
            return False
        if self.has_ended(positions):
            return True
        ends = self._ends()
        firsts = {segment: self._first_from(segment, self.spec.before) for segment in ends}
        return bool(ends) and all(
            first is not None
            and not self._streams[segment].count_between(self._low(segment, positions), min(ends[segment], first))
            for segment, first in firsts.items()
        )

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no message follows positions: the lowest of the streams that go on."""
        if self._bounds is None:
            self._bounds = PartitionBounds(PartitionTimes(disorder, self.spec.idle_us), self._highest_times)
        end, streams = self._recorded().end, self._own(self._streams)
        last = {name: stream.end if end is None else int(end.get(name, 0)) for name, stream in streams.items()}
        going = {
            name: stream.end
            for name, stream in streams.items()
            if end is None or stream.count_between(self._low(name, positions), last[name])
        }
        begins = {name: streams[name].state.begin for name in going}
        at = {name: self._low(name, positions) for name in going}
        if not going:
            return None
        now_us = time.monotonic_ns() // 1000
        bound = self._bounds.after(at, going, begins, now_us)
        self._bounds.warn_of_silence(going, now_us, f"source {self.name!r}", "stream {}".format)
        return bound

    def _highest_times(self, ranges: Collection[OffsetRange]) -> dict[str, int]:
        """Return the highest time before the end of each range, in the unit of the rows."""
        scale = 1000 if self.spec.timestamps == "timestamp" else 1
        found = {each.segment: self._streams[each.segment].highest_before(each.last) for each in ranges}
        return {segment: highest // scale for segment, highest in found.items() if highest is not None}

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """About how many bytes there are between two positions."""
        return sum(stream.bytes_between(first, last) for _, stream, first, last in self._between(start, end))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Messages between two positions."""
        return sum(stream.count_between(first, last) for _, stream, first, last in self._between(start, end))

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Deal the messages between two positions, stream by stream, to at most a few tasks per core."""
        return dealt(self._between(start, end), parallelism)

    def committed(self, end: SourcePositions) -> None:
        """Let retention have the files whose messages every sink holds."""
        if not self.spec.holds_retention:
            return
        streams = self._own(self._looked())
        released = {
            segment: sum(1 for file in stream.files if file.end <= int(end.get(segment, 0)))
            for segment, stream in streams.items()
        }
        has_ended = self.spec.bounded and self.has_ended(end)
        if not self.spec.reads.is_all:
            self._release(end, released, has_ended=has_ended)
        elif has_ended:
            self._mark().remove()
        elif released != self._released:  # a whole file more: only such are dropped
            self._mark().put(end)
            self._released = released

    def _release(self, end: SourcePositions, released: Mapping[str, int], *, has_ended: bool) -> None:
        """Say it of the streams of this part alone; the last part to reach the end takes the whole mark away."""
        mark, last = self._mark(), self._recorded().end or {}
        if has_ended:
            for segment in self._own(last):
                mark.put_segment(segment, None)
            if all(mark.is_released(segment) for segment in last):
                mark.remove()
            return
        before = self._released or {}
        for segment, count in released.items():
            if count != before.get(segment):
                mark.put_segment(segment, int(end.get(segment, 0)))
        self._released = dict(released)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a span.

        Raises
        ------
        Corrupt
            If messages are damaged, or are not there any more: says which.
        """
        for _, batch in self.read_numbered(span):
            yield batch

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the messages of a span with their ordinals."""
        found: dict[str, Branch] = {}
        for segment, first, last in span.value:
            pipeline, sink, stream = segment.split("/", 2)
            directory = os.path.join(self.spec.directory, pipeline, sink)
            branch = found.setdefault(directory, Branch(directory))
            for chunk in _chunks(branch, stream, first, last):
                yield from self._batches(segment, stream, chunk)

    def _batches(self, segment: str, stream: str, chunk: MessageChunk) -> Iterator[Numbered]:
        timestamps = np.array(chunk.timestamps, np.int64)
        keys, payloads = np.array(chunk.keys, bool), chunk.payloads
        ordinals = np.arange(chunk.first, chunk.first + len(payloads), dtype=np.uint64)
        if self.spec.clip_at is not None and chunk.timestamps and min(chunk.timestamps) < self.spec.clip_at:
            stays = timestamps >= self.spec.clip_at
            timestamps, keys, ordinals = timestamps[stays], keys[stays], ordinals[stays]
            payloads = [payload for payload, is_left in zip(payloads, stays.tolist(), strict=True) if is_left]
        if not payloads:
            return
        schema = self.spec.schema
        kind = schema.field("timestamp").type
        shown = pa.array(timestamps // 1000 if pa.types.is_timestamp(kind) else timestamps)
        offsets = np.cumsum([0, *map(len, payloads)]).astype(np.int32)
        data = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(payloads))]
        columns = [
            pa.repeat(pa.scalar(stream, pa.string()), len(payloads)),
            shown.cast(kind),
            pa.array(keys),
            pa.Array.from_buffers(pa.binary(), len(payloads), data, null_count=0),
        ]
        yield Numbered((PlaceRun(segment, ordinals),), pa.RecordBatch.from_arrays(columns, schema=schema))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, StreamView]:
        """Look at the store; return its streams by segment."""
        for name, branch in branches(self.spec.directory).items():
            self._branches.setdefault(name, branch)
        found = {}
        for name, branch in self._branches.items():
            view = branch.view()
            if view.streams and view.entry.times != "time" and self.spec.times == "time":
                raise InvalidPipeline(
                    f"source {self.name!r} reads times, and the messages of {name} have ticks.",
                    why="they were written with a BIGINT as timestamp.",
                    do='write read.byte_stream(..., timestamps="bigint").',
                    participant=self.name,
                )
            for stream in view.streams.values():
                if self.spec.streams is None or stream.name in self.spec.streams:
                    found[f"{name}/{stream.name}"] = stream
        self._streams = dict(sorted(found.items()))
        return self._streams

    def _looked(self) -> dict[str, StreamView]:
        return self._streams or self._look()

    def _own(self, by_segment: Mapping[str, T]) -> dict[str, T]:
        """Return what is of the streams that this part of the source reads."""
        return {segment: value for segment, value in by_segment.items() if segment in self.spec.reads}

    def _recorded(self) -> Recorded:
        """Return where reading begins and ends; recorded by the first process that asks."""
        recorded = Recorded(self.workspace, self.name)
        if not recorded.has_start:
            if self.spec.holds_retention:
                self._mark().put({})  # before the look: what is found there must stay
            streams = self._look()
            if self.spec.end == "latest":
                recorded.put_end({segment: stream.end for segment, stream in streams.items()})
            recorded.put_start({segment: self._start(stream) for segment, stream in streams.items()})
        return recorded

    def _register(self, start: SourcePositions) -> None:
        """Put a mark again that somebody has removed: what the sinks hold is not known here, so all is needed."""
        if not self._is_registered and self.spec.holds_retention:
            if not self._mark().is_there and not self.has_ended(start):
                self._mark().put({})
            self._is_registered = True

    def _start(self, stream: StreamView) -> int:
        start = self.spec.start if self.spec.at is None else self.spec.at
        if isinstance(start, int):
            return stream.access_point(start)
        return stream.end if start == "latest" else stream.state.begin

    def _ends(self) -> dict[str, int]:
        """Return the position up to which each stream of this part can be read now."""
        return self._own(self._ends_of_all())

    def _ends_of_all(self) -> dict[str, int]:
        """Return it of all streams: where reading ends is recorded once, for all parts."""
        recorded, streams = self._recorded(), self._look()
        end = recorded.end
        if end is None and isinstance(self.spec.end, int):
            firsts = {segment: self._first_from(segment, self.spec.end) for segment in streams}
            reached = {segment: first for segment, first in firsts.items() if first is not None}
            if firsts and len(reached) == len(firsts):  # now it is fixed: streams that appear later are not read
                recorded.put_end(reached)
                end = recorded.end
            else:
                end = {segment: reached.get(segment, stream.end) for segment, stream in streams.items()}
        if end is None:
            return {segment: stream.end for segment, stream in streams.items()}
        return {segment: stream.end_up_to(int(end.get(segment, 0))) for segment, stream in streams.items()}

    def _up_to(self, ends: dict[str, int]) -> dict[str, int]:
        """Return ends no later than the time where this run ends."""
        before = self.spec.before
        if before is None:
            return ends
        firsts = {segment: self._first_from(segment, before) for segment in ends}
        return ends | {segment: min(ends[segment], first) for segment, first in firsts.items() if first is not None}

    def _first_from(self, segment: str, at: int) -> int | None:
        if (segment, at) not in self._firsts:
            first = self._streams[segment].first_from(at)
            if first is None:
                return None
            self._firsts[segment, at] = first
        return self._firsts[segment, at]

    def _low(self, segment: str, start: SourcePositions) -> int:
        """Return where a stream is read next; one that has not been read yet is read from what is left of it."""
        stream = self._streams[segment]
        low = int(start.get(segment, stream.state.begin))
        if low < stream.state.begin:
            raise _dropped(segment, low, stream.state.begin)
        return low

    def _between(self, start: SourcePositions, end: SourcePositions) -> list[tuple[str, StreamView, int, int]]:
        """Return segment, stream, first and last for what is between two positions."""
        streams = self._looked()
        if any(segment not in streams or int(last) > streams[segment].end for segment, last in end.items()):
            streams = self._look()
        found = []
        for segment, last in sorted(end.items()):
            if int(last) > int(start.get(segment, 0)):
                if segment not in streams:
                    raise _gone(segment, f"{self.spec.path} has no such stream")
                found.append((segment, streams[segment], self._low(segment, start), int(last)))
        return found

    def _mark(self) -> ReaderMark:
        return ReaderMark(self.spec.directory, self.name, self.workspace, self.spec.streams)


def _chunks(branch: Branch, stream: str, first: int, last: int) -> Iterator[MessageChunk]:
    """Yield the messages between two positions, wherever they are by now: files may be copied or dropped meanwhile."""
    vanished: FileNotFoundError | None = None
    for _ in range(LOOKS):
        view = branch.view().streams.get(stream)
        if view is None:
            raise _gone(stream, f"{branch.directory} has no such stream")
        if first < view.state.begin:
            raise _dropped(stream, first, view.state.begin)
        if view.is_withdrawn(last):
            raise _gone(stream, f"what was there up to message {last - 1} was withdrawn by a rewind of its pipeline")
        try:
            for chunk in view.read(first, last):
                yield chunk
                first = chunk.first + len(chunk.payloads)
            return
        except FileNotFoundError as error:
            vanished = error
    raise _gone(stream, f"{vanished.filename if vanished else branch.directory} is not there")


def _dropped(segment: str, first: int, begin: int) -> Corrupt:
    return _gone(segment, f"messages {first} to {begin - 1} were dropped by the retention of its sink")


def _gone(segment: str, why: str) -> Corrupt:
    return Corrupt(
        f"Messages of stream {segment!r} that were to be read are not there any more.",
        why=f"{why}.",
        do="restore them from a copy; or start over with a new checkpoint and empty targets.",
        participant=segment,
    )


def obstacle(streams: Mapping[str, StreamView], positions: SourcePositions, until: SourcePositions | None) -> str:
    """Return why reading cannot go on at positions, stream by stream; empty when it can."""
    ends = until or {}
    found = (_obstacle(name, streams.get(name), positions, ends) for name in {**positions, **ends})
    return " ".join(each for each in found if each)


def _obstacle(segment: str, stream: StreamView | None, positions: SourcePositions, ends: SourcePositions) -> str:
    # One without a position appeared later, or reading of it began elsewhere than with its first message.
    start = int(positions.get(segment, 0 if stream is None else stream.state.begin))
    end = int(ends.get(segment, start))
    highest = max(start, end)
    if stream is None:
        return f"its stream {segment!r} is not there." if highest else ""
    if highest > stream.state.next:
        return f"its stream {segment!r} ends before message {stream.state.next}, and {highest} is wanted."
    if start < stream.state.begin:
        gone = f"messages {start} to {stream.state.begin - 1} of stream {segment!r}"
        return f"{gone} were dropped by the retention of its sink."
    if segment in ends and stream.is_withdrawn(end):
        return f"messages of stream {segment!r} before {end} were withdrawn by a rewind of its pipeline."
    lost = stream.lost_files(start, end)
    named = (f"messages {max(start, file.first)} to {min(end, file.end) - 1} ({why})" for file, why in lost)
    return f"of stream {segment!r} are gone: {'; '.join(named)}." if lost else ""


SPANS_PER_CORE = 4
SPAN_BYTES_MIN = 2_000_000


def dealt(ranges: Sequence[tuple[str, StreamView, int, int]], parallelism: int) -> list[Span]:
    """Deal messages to tasks: consecutive ones of about as many bytes.

    Parameters
    ----------
    ranges : sequence of (str, StreamView, int, int)
        Segment, stream, first and last position.
    parallelism : int
        Cores.

    Returns
    -------
    list of Span
        The value of each is a tuple of (segment, first, last).
    """
    total = sum(stream.bytes_between(first, last) for _, stream, first, last in ranges)
    wanted = max(1, min(SPANS_PER_CORE * max(1, parallelism), total // SPAN_BYTES_MIN))
    goal = -(-total // wanted) if total else 1
    spans: list[Span] = []
    held: list[tuple[str, int, int]] = []
    rows = size = 0

    def close() -> None:
        nonlocal rows, size
        if held:
            spans.append(Span(tuple(held), rows, size))
        held.clear()
        rows = size = 0

    for segment, stream, first, last in ranges:
        at, left = first, stream.count_between(first, last)
        while left:
            per_message = max(1, stream.bytes_between(at, last) // left)
            count = min(left, max(1, -(-(goal - size) // per_message)))
            end = last if count == left else stream.after(at, count)
            held.append((segment, at, end))
            rows, size = rows + count, size + stream.bytes_between(at, end)
            at, left = end, left - count
            if size >= goal:
                close()
    close()
    return spans
