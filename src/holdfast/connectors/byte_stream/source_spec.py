"""``read.byte_stream``: messages of a store that ``write.byte_stream`` writes, from a time or from the beginning on."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.connectors.byte_stream.branch import StreamView, branches
from holdfast.connectors.byte_stream.reader import ByteStreamSource, obstacle
from holdfast.connectors.byte_stream.reading import KINDS, ByteStreamReading
from holdfast.connectors.reading.identified import KnownPlace, Recorded
from holdfast.connectors.reading.partitioned import own_bounds
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.ports import Explanation
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.store import durable
from holdfast.types import units

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream


@dataclass(frozen=True)
class ByteStreamSourceSpec(ByteStreamReading):
    """Declaration of ``read.byte_stream``; see :func:`byte_stream` for the arguments."""

    kind: str = field(default="byte_stream", init=False)
    timestamp: str | None = field(default="timestamp", init=False)
    rejects: bool = field(default=False, init=False)
    numbering: ClassVar[str] = "its stream, and its ordinal there"
    partitions: ClassVar[str] = "streams"
    parts: ClassVar[int] = 0

    def in_parts(self, parts: int) -> ByteStreamSourceSpec:
        """Return it: streams have positions of their own."""
        return self

    def segments(self, name: str, workspace: str) -> Collection[str]:
        """Return the streams that are there now."""
        wanted = self.streams
        found = (each for each, stream in self._streams().items() if wanted is None or stream.name in wanted)
        return sorted(each for each in found if each in self.reads)

    def of_segments(self, segments: SegmentSet) -> ByteStreamSourceSpec:
        """Return the source of some streams."""
        return replace(self, reads=segments)

    def group_of(self, segment: str) -> str:
        """Return the stream's name, whoever writes it."""
        return segment.split("/", 2)[2]

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        shown = {
            "path": self.path,
            "streams": None if self.streams is None else list(self.streams),
            "start": self.start,
            "end": self.end,
            "clip": self.clip or None,
            "timestamps": self.timestamps,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "holds_retention": None if self.holds_retention else False,
            "idle_after_us": self.idle_us,
        }
        return {name: value for name, value in shown.items() if value is not None}

    def from_beginning(self) -> ByteStreamSourceSpec:
        """Return the source from the first messages on that are there."""
        return replace(self, start="earliest", clip=False)

    def from_time(self, at_us: int) -> ByteStreamSourceSpec:
        """Return the source from its random access points at or before a time."""
        return replace(self, at=at_us * 1000 if self.times == "time" else at_us)

    def up_to(self, before: int, marker: str | None) -> ByteStreamSourceSpec:
        """Return the source, each stream up to its first message at or after a time."""
        return replace(self, before=before * 1000 if self.times == "time" else before)

    def open(self, name: str, workspace: str) -> ByteStreamSource:
        """Return the source; the store is opened when it is first needed."""
        return ByteStreamSource(self, name, workspace)

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the streams."""
        for stream, end in until.items():
            yield KnownPlace(stream, 0, int(end), stream, None, f"stream {stream}")

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return which messages are not there any more, or not there again; nothing of it is in the checkpoint."""
        if not os.path.isdir(self.directory):
            return f"its store {self.path} is not there."
        return obstacle(self._streams(), positions, until)

    def recorded_start(self, name: str, workspace: str) -> SourcePositions | None:
        """Return where it began in each stream that was there; its sinks keep that, too."""
        recorded = Recorded(workspace, name)
        if not recorded.has_start:
            return None
        return {segment: at for segment, at in recorded.start.items() if segment in self.reads}

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the ends of the streams; the store may be an older copy as well."""
        return {segment: stream.state.next for segment, stream in self._streams().items()}

    def explanations(self, name: str, workspace: str, after: int) -> list[Explanation]:
        """Return where reading begins, and where it ends, as far as that is known."""
        texts = Recorded(workspace, name).texts()
        return [Explanation(name, number, text) for number, text in enumerate(texts, start=1) if number > after]

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Record where reading begins and ends."""
        for each in explanations:
            if not Recorded(workspace, name).restore(each.number, each.text):
                raise Diverged(
                    f"source {name!r} has recorded another {('beginning', 'end')[each.number - 1]} than its sinks.",
                    why=f"they say {each.text}.",
                    do="restore checkpoint and sinks from the same moment.",
                    participant=name,
                )

    def _streams(self) -> dict[str, StreamView]:
        views = {name: branch.view() for name, branch in branches(self.directory).items()}
        return {f"{name}/{stream.name}": stream for name, view in views.items() for stream in view.streams.values()}


def byte_stream(
    path: str | os.PathLike[str],
    *,
    streams: str | Sequence[str] | None = None,
    start: str | int | datetime = "earliest",
    end: str | int | datetime | None = None,
    clip: bool = False,
    timestamps: Literal["timestamp", "bigint"] = "timestamp",
    max_rows_per_epoch: int | None = None,
    holds_retention: bool = True,
    disorder: str | int | None = None,
    idle_after: str | None = None,
    name: str | None = None,
) -> Stream:
    """Read messages: ``stream`` STRING, ``timestamp``, ``is_key`` BOOLEAN, ``data`` BINARY.

    Parameters
    ----------
    path : str or path
        Directory of the store, on a local disk or a mounted file system that driver and executors share.  It need not
        be there yet.
    streams : str or sequence of str, optional
        Names of the streams to read; by default all, also those that appear later.
    start : {"earliest", "latest"} or time
        Where reading begins at the first start: with all that is there, with nothing of it, or in each stream at the
        nearest random access point at or before a time (ISO 8601, a datetime, microseconds of Unix time; ticks for
        BIGINT).
    end : "latest" or time, optional
        Where it ends, exactly: behind what is there at the first start, or before the first message at or after a time.
        By default it does not end.
    clip : bool
        With a time as ``start``: leave out messages before the exact time.  A video decoder needs those from the random
        access point on.
    timestamps : {"timestamp", "bigint"}
        Type of the column: TIMESTAMP, to the microsecond; or BIGINT, as it is stored: nanoseconds of Unix time, or the
        ticks that were written.
    max_rows_per_epoch : int, optional
        Limit of one epoch; streams have equal shares.
    holds_retention : bool
        Whether the sink's retention waits for this source: no message is dropped that it still needs.  It registers
        itself in the store for that.
    disorder : str or int, optional
        How far a message may be below the highest before it in its stream: with it the source gives bounds by itself,
        the lowest of its streams'.
    idle_after : str, optional
        After so long without a message a stream holds that bound back no more; left out: never.
    name : str, optional
        The source's name.

    Raises
    ------
    InvalidPipeline
        If an argument makes no sense.

    Examples
    --------
    ::

        frames = hf.read.byte_stream("data/cameras", streams=["front"], start="2026-01-01T06:00Z", name="frames")
    """
    # Only declaring needs the graph: executors load this module without it.
    from holdfast.graph.building import building, names_of
    from holdfast.graph.nodes import stream_from

    with building("source", name):
        if timestamps not in KINDS:
            raise InvalidPipeline(
                f"timestamps={timestamps!r} is not known.", do='write timestamps="timestamp" or "bigint".'
            )
        if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
            raise InvalidPipeline(
                f"max_rows_per_epoch={max_rows_per_epoch!r} is not a positive number.",
                do="write max_rows_per_epoch=1000, or leave it out.",
            )
        spec = ByteStreamSourceSpec(
            os.fspath(path),
            None if streams is None else names_of(streams),
            _place(start, timestamps, "start", ("earliest", "latest")),
            None if end is None else _place(end, timestamps, "end", ("latest",)),
            clip,
            timestamps,
            max_rows_per_epoch,
            holds_retention,
            idle_us=None if idle_after is None else units.duration_us(idle_after, argument="idle_after"),
        )
        if idle_after is not None and disorder is None:
            raise InvalidPipeline(
                "read.byte_stream: idle_after= without disorder=.",
                why="nothing is known of the order of messages, so no stream holds a bound back.",
                do='say how far a message may be below the highest before it in its stream: disorder="0 s", say.',
            )
        if durable.local_path(spec.path) is None:
            raise InvalidPipeline(
                f"read.byte_stream cannot read {spec.path.partition('://')[0]}:// addresses.",
                why="write.byte_stream writes to file systems only.",
                do="choose a mounted path (a local disk, NFS, EFS).",
            )
        if clip and not isinstance(spec.start, int):
            raise InvalidPipeline(
                "clip=True is for a start at a time.",
                why=f"start={start!r} is none.",
                do='write start="2026-01-01T06:00Z", or leave clip out.',
            )
        if isinstance(spec.start, int) and isinstance(spec.end, int) and spec.end <= spec.start:
            raise InvalidPipeline(
                f"end={end!r} is not after start={start!r}: nothing would be read.", do="exchange the two."
            )
    return stream_from(spec if disorder is None else own_bounds(spec, disorder), name=name)


def _place(given: str | int | datetime, timestamps: str, argument: str, words: tuple[str, ...]) -> str | int:
    if isinstance(given, str) and given in words:
        return given
    if timestamps == "bigint":
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if isinstance(given, int):
            raise InvalidPipeline(f"{argument}={given!r} is not a number of ticks.", do=f"write {argument}=0.")
    return units.time_us(given, argument=argument) * 1000
