"""``read.segments``: what a segments sink holds at one version of its manifest, as a bounded source.

The version is fixed once and durable before a position is returned: the list of its files, and the files themselves,
which the source keeps as links of its own, because the sink removes them when their rows are elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.connectors.reading.rounds import SourceInRounds
from holdfast.connectors.reading.rounds_log import RoundsLog, entry_position, own_positions
from holdfast.connectors.reading.rounds_log import obstacle as rounds_obstacle
from holdfast.connectors.segments import dataset
from holdfast.connectors.segments.journal import PiecesReader
from holdfast.connectors.segments.version import (
    UNPARTITIONED,
    FileOfVersion,
    Wanted,
    fix_version,
    growing_of,
    read_version,
)
from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building
from holdfast.graph.nodes import Stream, stream_from
from holdfast.limits import EpochRoom, ReadLimit
from holdfast.ports import Source, Span
from holdfast.positions import ALL_SEGMENTS, SegmentSet, SourcePositions
from holdfast.store import durable, sealed
from holdfast.types.schema import to_arrow

SEGMENT = "files"
"""The only segment of one that is not divided; of one that is: up to where it was read before."""


@dataclass(frozen=True)
class SegmentsSourceSpec:
    """Declaration of ``read.segments``; see :func:`segments` for the arguments."""

    path: str
    schema: pa.Schema
    growing: bool = True
    timestamp: str | None = None
    max_files_per_epoch: int | None = None
    since: int | None = None
    """No row before this time is wanted, microseconds or ticks; no argument of users."""
    is_divided: bool = False
    """Whether each partition has a position of its own; no argument of users."""
    reads: SegmentSet = ALL_SEGMENTS
    """The partitions that are read; no argument of users."""
    before: int | None = None
    """No row at or above this time is wanted yet, microseconds or ticks; no argument of users."""
    parts: ClassVar[int] = 0
    kind: str = field(default="segments", init=False)
    rejects: bool = field(default=False, init=False)
    bounded: bool = field(default=True, init=False)

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        shown = {
            "path": self.path,
            "growing": self.growing,
            "timestamp": self.timestamp,
            "max_files_per_epoch": self.max_files_per_epoch,
            "divided": self.is_divided or None,
            "columns": [f"{column.name}: {column.type}" for column in self.schema],
        }
        return {name: value for name, value in shown.items() if value is not None}

    def in_parts(self, parts: int) -> SegmentsSourceSpec:
        """Return the source with a position for each partition."""
        return replace(self, is_divided=True)

    def segments(self, name: str, workspace: str) -> Collection[str]:
        """Return the partitions of the version that is read; while it is not fixed, of the newest one."""
        if not self.is_divided:
            return [SEGMENT]
        files = read_version(workspace)
        if files is not None:
            found = {each for file in files for each in file.partitions}
        else:
            now = dataset.content(self.path)
            names = {segment.partition for segment in now.sealed}
            for file in now.growing if self.growing else ():
                names |= {*growing_of(file.path)} - file.sealed
            found = {name or UNPARTITIONED for name in names}
        return sorted(each for each in found if each in self.reads)

    def of_segments(self, segments: SegmentSet) -> SegmentsSourceSpec:
        """Return the source of some partitions."""
        return replace(self, reads=segments)

    def group_of(self, segment: str) -> str:
        """Return the partition."""
        return segment

    def from_time(self, at_us: int) -> SegmentsSourceSpec:
        """Return the source without sealed files of which every row is before a time."""
        return replace(self, since=at_us)

    def up_to(self, before: int, marker: str | None) -> SegmentsSourceSpec:
        """Return the source without the rows at or above a time, which it then owes."""
        return replace(self, before=before)

    def open(self, name: str, workspace: str) -> Source:
        """Return the source; what it reads is fixed when it is first asked for positions."""
        source = SegmentsSource(self, name, workspace)
        if self.timestamp is None:
            return source
        return SourceInRounds(source, self, name, workspace, SEGMENT if self.is_divided else "")

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return whether the list of files is lost: without it a position names no file."""
        if lost := sealed.obstacle(workspace):
            return lost
        log = RoundsLog(workspace, SEGMENT if self.is_divided else "")
        wanted = {**positions, **(until or {})}
        if lost := rounds_obstacle(log, wanted):
            return lost
        highest, known = max(own_positions(wanted).values(), default=0), len(read_version(workspace) or ())
        return f"its list of files has {known}, and {highest} is wanted." if highest > known else ""

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the end of the list, in the last round."""
        files = read_version(workspace) or ()
        log = RoundsLog(workspace, SEGMENT if self.is_divided else "")
        ends = {SEGMENT: len(files), **(self.ends(files) if self.is_divided else {})}
        return {segment: entry_position(log.latest(segment).number, end) for segment, end in ends.items()}

    def segments_of(self, file: FileOfVersion) -> Sequence[str]:
        """Return the segments that a file has rows of, of those that are read."""
        return [each for each in file.partitions if each in self.reads] if self.is_divided else [SEGMENT]

    def ends(self, files: Sequence[FileOfVersion]) -> dict[str, int]:
        """Return the position after the last file of each segment."""
        return {segment: at for at, file in enumerate(files, start=1) for segment in self.segments_of(file)}


class SegmentsSource:
    """The files of one version.

    Notes
    -----
    Pickles to its declaration.  The first :meth:`latest` does the durable writes: a link for each file, and one
    object.
    """

    def __init__(self, spec: SegmentsSourceSpec, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._files: Sequence[FileOfVersion] | None = None
        self._most: Mapping[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (SegmentsSource, (self.spec, self.name, self.workspace))

    def initial(self) -> SourcePositions:
        """Positions before the first file."""
        return {} if self.spec.is_divided else {SEGMENT: 0}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: all files, or as many as an epoch may have."""
        found, files = dict(start), self._version()
        room = EpochRoom(self.spec.max_files_per_epoch, None, limit)
        for at, segments in self._files_after(start, self._most):
            if not room.fits(files[at]):
                break
            room.take(files[at])
            found |= dict.fromkeys(segments, at + 1)
        return found if self.spec.is_divided else {SEGMENT: 0, **found}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether these positions are after the last file."""
        return next(iter(self._files_after(positions)), None) is None

    def has_more(self, positions: SourcePositions) -> bool:
        """Return whether files are left."""
        return not self.has_ended(positions)

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no row follows positions: the lowest of the files that are left."""
        files = self._version()
        lowest = [files[at].lowest for at, _ in self._files_after(positions)]
        known = [low for low in lowest if low is not None]
        return min(known) if known and len(known) == len(lowest) else None

    def low_of(self, segment: str, start: SourcePositions) -> int:
        """Return which file is read next of a segment."""
        return _low(start, segment)

    def ends_up_to(self, before: int) -> Mapping[str, int]:
        """Return where files begin of which every row is at or above a time: they are in the order of their times."""
        files = self._version()
        last = max((at for at, file in enumerate(files, 1) if file.lowest is None or file.lowest < before), default=0)
        return self.spec.ends(files[:last]) if self.spec.is_divided else {SEGMENT: last}

    def limits(self, starts: Mapping[str, int], before: int) -> Mapping[str, Sequence[tuple[int, bool]]]:
        """Return which files may have rows at or above a time: by their highest one."""
        may = [file.highest is None or file.highest >= before for file in self._version()]
        found: dict[str, list[tuple[int, bool]]] = {}
        for segment, start in starts.items():
            of = found.setdefault(segment, [(start, False)])
            of += [(at, may[at]) for at in range(start, len(may)) if may[at] != (at > start and may[at - 1])]
        return found

    def hold_to(self, ends: Mapping[str, int]) -> None:
        """Plan no file from now on that is at or after the end of its segment."""
        self._most = ends

    def most_entries(self, count: int, size: Callable[[], int | None], limit: ReadLimit | None) -> int | None:
        """Return how many of so many files an epoch takes."""
        return self.spec.max_files_per_epoch if limit is None else 1

    def freeze(self) -> None:
        """Do nothing: the version never grows."""

    def newest(self) -> SourcePositions | None:
        """Position after the last file."""
        return self.spec.ends(self._version()) if self.spec.is_divided else {SEGMENT: len(self._version())}

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes of the files between two positions."""
        return sum(file.size_bytes for file in self._between(start, end))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions; None where a journal file has sealed ones, too."""
        counts = [file.row_count for file in self._between(start, end)]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Divide the files into spans of about equal size, in their order."""
        files = self._between(start, end)
        share = sum(file.size_bytes for file in files) / max(1, parallelism)
        groups: list[list[FileOfVersion]] = []
        size = 0.0
        for file in files:
            if not groups or size >= share:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size_bytes
        return [
            Span(
                tuple(group),
                None if any(f.row_count is None for f in group) else sum(f.row_count or 0 for f in group),
                sum(f.size_bytes for f in group),
            )
            for group in groups
        ]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        known: dict[str, dict[str, Any]] = {}
        for file in span.value:
            try:
                if file.partition is not None:
                    yield from dataset.sealed_rows(file.path, file.partition, self.spec.schema)
                else:
                    yield from dataset.growing_rows(
                        PiecesReader(file.path), frozenset(file.sealed), self.spec.schema, known
                    )
            except FileNotFoundError as error:
                raise InvalidPipeline(
                    f"Source {self.name!r} cannot read {file.path}: it is gone.",
                    why="it was there when the run began: retention, compaction or somebody has removed it since.",
                    do="restore it, or begin with another checkpoint: the source then reads what is there.",
                    participant=self.name,
                ) from error

    def committed(self, end: SourcePositions) -> None:
        """Remove the links when nothing is read any more; a part removes those that no other part reads."""
        links = os.path.join(self.workspace, "files")
        if not self.has_ended(end):
            return
        if self.spec.reads.is_all:
            shutil.rmtree(links, ignore_errors=True)
            return
        for file in self._version():
            is_link = os.path.dirname(file.path) == links  # else it is the sink's own file, which could not be linked
            if is_link and file.partition is not None and self.spec.segments_of(file):
                with suppress(FileNotFoundError):
                    os.unlink(file.path)

    def _files_after(
        self, start: SourcePositions, end: SourcePositions | None = None
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the files after positions, up to others: which one it is, and the segments that are read of it."""
        for at, file in enumerate(self._version()):
            segments = [
                each
                for each in self.spec.segments_of(file)
                if _low(start, each) <= at and (end is None or at < int(end.get(each, 0)))
            ]
            if segments:
                yield at, segments

    def _between(self, start: SourcePositions, end: SourcePositions) -> Sequence[FileOfVersion]:
        return [self._read_of(self._version()[at], segments) for at, segments in self._files_after(start, end)]

    def _read_of(self, file: FileOfVersion, segments: Sequence[str]) -> FileOfVersion:
        """Return a file as it is read: of one of the journal only the rows of some partitions."""
        if not self.spec.is_divided or file.partition is not None or len(segments) == len(file.growing):
            return file
        others = (each for each in file.growing if (each or UNPARTITIONED) not in segments)
        return replace(file, row_count=None, sealed=(*file.sealed, *others))

    def _version(self) -> Sequence[FileOfVersion]:
        """Return the files of the version, which is fixed by the first call of the first process."""
        if self._files is None:
            self._files = read_version(self.workspace)
        if self._files is None:
            spec = self.spec
            wanted = Wanted(spec.path, spec.schema, spec.timestamp, spec.growing, spec.since)
            self._files = fix_version(wanted, self.name, self.workspace)
        return self._files


def _low(start: SourcePositions, segment: str) -> int:
    """Return where a partition is read next: without a position, where all were read before they were divided."""
    return int(start.get(segment, start.get(SEGMENT, 0)))


def segments(
    path: str | os.PathLike[str],
    *,
    growing: bool = True,
    schema: Any = None,
    timestamp: str | None = None,
    max_files_per_epoch: int | None = None,
    name: str | None = None,
) -> Stream:
    """Read what ``hf.write.segments`` has written, with what is in no sealed file yet: once, up to an epoch's end.

    Parameters
    ----------
    path : str or path
        The sink's directory.
    growing : bool
        Whether rows are read that still grow in the sink's journal.
    schema : str, StructType or pyarrow.Schema, optional
        Columns to read; by default all that the sink has, which must have been opened then.
    timestamp : str, optional
        Column that holds event time.  With it files are read in the order of their lowest times, and the source gives
        bounds by itself: the lowest time of the files that are left.
    max_files_per_epoch : int, optional
        Limits an epoch; by default everything is one.
    name : str, optional
        The source's name.

    Returns
    -------
    Stream
        Bounded: what the sink gets after the first epoch of this pipeline is planned is not read.

    Raises
    ------
    InvalidPipeline
        If no segments sink has written there and no schema is given.

    Examples
    --------
    ::

        flights = hf.read.segments("out/flights", name="flights")
    """
    with building("source", name):
        directory = durable.local_directory(path, "read.segments")
        columns = dataset.content(directory).schema if schema is None else to_arrow(schema)
        if timestamp is not None and timestamp not in columns.names:
            raise InvalidPipeline(
                f"read.segments: the timestamp column {timestamp!r} is not in the schema.",
                do=f"name one of {', '.join(columns.names)}.",
            )
        if max_files_per_epoch is not None and max_files_per_epoch < 1:
            raise InvalidPipeline("read.segments: max_files_per_epoch must be 1 or more.", do="leave it out for all.")
        spec = SegmentsSourceSpec(directory, columns, growing, timestamp, max_files_per_epoch)
        time = None if timestamp is None else columns.field(timestamp).type
        is_timed = time is not None and (pa.types.is_timestamp(time) or time == pa.int64())
    if not is_timed:
        return stream_from(spec, name=name)
    from holdfast.connectors.reading.partitioned import own_bounds  # a source in the house of a sink

    return stream_from(own_bounds(spec, 0), name=name)
