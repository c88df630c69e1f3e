"""``read.files``: files that arrive in a directory, as JSON lines, CSV or Parquet.

What is read is fixed by a durable log of blocks (:mod:`holdfast.connectors.files.source.log`); executors read blocks
and know nothing of the log.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from holdfast.connectors.files.source import discovery
from holdfast.connectors.files.source.division import SEGMENT, BlockIndex, FileDivision, segment_of
from holdfast.connectors.files.source.layout import RECORD_SIZE, Layout
from holdfast.connectors.files.source.log import Block, FileLog, check_log, log_end, log_explanations, restore_log
from holdfast.connectors.files.source.numbering import places_of
from holdfast.connectors.files.source.planner import FilePlanner, ends_there, gone_between, grouped, segments_there
from holdfast.connectors.files.source.reading import PartsBetween, read_parts, read_parts_numbered
from holdfast.connectors.files.source.sampling import drift_of_files
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats import csv_lines, json_lines, json_new_columns
from holdfast.connectors.formats.access import UTF_8, FilePart, encoding_of
from holdfast.connectors.formats.convert import required_unless
from holdfast.connectors.reading.bounds import with_bounds
from holdfast.connectors.reading.identified import KnownPlace, Numbered
from holdfast.connectors.reading.partitioned import own_bounds
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.ports import Explanation, SourceDrift, Span
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.store import sealed
from holdfast.types import units
from holdfast.types.partition import is_partition_type

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream

Format = Literal["json", "csv", "parquet"]
_BLOCK_SIZE_MAX = 10**9
_PARQUET_GROWTH = 20
"""Rows against Parquet files, in bytes: measured 3 bytes a row in the file and 60 in memory.  Only the choice between a
carried and a staged epoch depends on it, so the careful side is the larger number."""


@dataclass(frozen=True)
class FilesSourceSpec(FilesSelection):
    """Declaration of ``read.files``; see :func:`files` for the arguments."""

    kind: str = field(default="files", init=False)
    numbering: ClassVar[str] = "its file, and the row in it or in its block"

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        longest = self.layout.max_record_size
        shown = {
            "path": self.path,
            "format": self.layout.format,
            "timestamp": self.timestamp,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "max_files_per_epoch": self.max_files_per_epoch,
            "on_bad_row": "reject" if self.rejects else "fail",
            "min_age_us": self.min_age_us,
            "bounded": self.bounded,
            "start": self.start,
            # Only where it differs from the behaviour without the argument: older graphs are still the same.
            "max_record_size": None if longest == RECORD_SIZE else longest,
            "follow_links": self.follow_links or None,
            "on_new_column": None if self.layout.on_new == "ignore" else self.layout.on_new,
            "encoding": None if self.layout.encoding == UTF_8 else self.layout.encoding,
            "compare": None if self.compare == "identity" else self.compare,
            "partition_by": list(self.partition_by) or None,
            "divided": None if self.division is None else self.division.argument(),
            "columns": [f"{column.name}: {column.type}" for column in self.schema],
        }
        return {name: value for name, value in shown.items() if value is not None}

    def in_parts(self, parts: int) -> FilesSourceSpec:
        """Return the source in so many segments by hash; itself where it has a rule for groups of files."""
        is_by_group = self.division is not None and not self.division.parts
        return self if is_by_group else replace(self, division=FileDivision(parts))

    def segments(self, name: str, workspace: str) -> Collection[str]:
        """Return the segments: of groups those of the files that are logged, and of those that are there."""
        return segments_there(self, workspace)

    def of_segments(self, segments: SegmentSet) -> FilesSourceSpec:
        """Return the source of some segments."""
        return replace(self, reads=segments)

    def from_beginning(self) -> FilesSourceSpec:
        """Return the source with the files of its first start."""
        return replace(self, start="earliest")

    def from_time(self, at_us: int) -> FilesSourceSpec:
        """Return the source without what its time index shows to be before a time."""
        return replace(self, since=at_us)

    def up_to(self, before: int, marker: str | None) -> FilesSourceSpec:
        """Return the source without the rows at or above a time, which the log then owes."""
        return replace(self, before=before, marker=marker)

    def open(self, name: str, workspace: str) -> FilesSource:
        """Return the source; its log is opened when it is first needed, so executors never touch it."""
        return FilesSource(self, name, workspace)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return whether the log is lost, or does not reach these positions: without it a position names no file.

        Whether the files are still there is looked up where rows are asked for again.
        """
        if lost := sealed.obstacle(workspace):
            return lost
        wanted, known = _highest({**positions, **(until or {})}), _highest(self.reached(name, workspace))
        if wanted > known:
            log = os.path.join(workspace, "log")
            return f"its log of what was read, {log!r}, ends at {known}, and {wanted} is wanted."
        return "" if until is None else gone_between(self, workspace, positions, until)

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the end of the log: the file that a position names is in it before the source returns the position.

        Raises
        ------
        InvalidPipeline
            If the log is of other files than are read now: by its positions none of these is meant.
        """
        log = os.path.join(workspace, "log")
        try:
            where = discovery.settled(self.where)
        except HoldfastError:  # nothing is there, or nobody can tell: who reads says so
            return {SEGMENT: log_end(log)}
        check_log(log, name, self.identity(where))
        return ends_there(self, workspace)

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the blocks that are logged: of Parquet with their rows in the file."""
        log = FileLog(os.path.join(workspace, "log"), is_read_only=True)
        ordinals = BlockIndex(log.blocks, self.division, self.reads).between({}, until)
        return places_of(log.blocks, ordinals, self.layout, partial(segment_of, self.division))

    def drift(self, name: str) -> SourceDrift | None:
        """Return what the newest file has otherwise than the schema: of JSON."""
        return drift_of_files(self, name)

    def explanations(self, name: str, workspace: str, after: int) -> list[Explanation]:
        """Return what the log is of, and its increments."""
        return log_explanations(workspace, name, after)

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Make the log again."""
        restore_log(workspace, name, explanations)


class FilesSource:
    """The files of one source: log and discovery in the planning process, reading anywhere.

    Notes
    -----
    Pickles to its declaration.  :meth:`latest` does one durable write when it finds new files; nothing else does,
    except that :meth:`committed` merges the log once in a hundred times.
    """

    def __init__(self, spec: FilesSourceSpec, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._planning: FilePlanner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (FilesSource, (self.spec, self.name, self.workspace))

    @property
    def _plan(self) -> FilePlanner:
        if self._planning is None:
            self._planning = FilePlanner(self.spec, self.name, self.workspace)
        return self._planning

    def initial(self) -> SourcePositions:
        """Positions before the first block."""
        return {SEGMENT: 0} if self.spec.division is None else {}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: logged blocks first, then new files, within the limits."""
        if limit is not None:  # it speaks of bytes as rows have them
            limit = replace(limit, size_bytes=limit.size_bytes // self._growth)
        return self._plan.end_of_epoch(start, frozen=bounded, limit=limit)

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions: all of a bounded source is logged and before them."""
        return self._plan.has_ended(positions)

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether no row below the time where reading ends follows these positions."""
        return self._plan.has_passed(positions)

    def freeze(self) -> None:
        """Record which files are there now."""
        self._plan.freeze()

    def newest(self) -> SourcePositions | None:
        """Position after every file seen so far; one that is not split yet counts as one block."""
        return self._plan.newest()

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no row follows positions, by the times of the files."""
        return self._plan.bound_after(positions, disorder)

    def has_more(self, positions: SourcePositions) -> bool:
        """Return whether files were seen that are after these positions."""
        return self._plan.has_more(positions)

    def blocks(self, start: SourcePositions, end: SourcePositions) -> Sequence[Block]:
        """Return the blocks between two positions."""
        return self._plan.blocks(start, end)

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes of the files between two positions, as rows: Parquet's grow; None where the files are compressed."""
        blocks = self.blocks(start, end)
        if any(self.spec.layout.is_compressed(block.name) for block in blocks):
            return None
        return self._growth * sum(block.size_bytes for block in blocks)

    @property
    def _growth(self) -> int:
        return _PARQUET_GROWTH if self.spec.layout.format == "parquet" else 1

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Lines or rows between two positions; None unless all of them were counted when they were logged."""
        counts = [block.row_count for block in self.blocks(start, end)]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Group neighbouring blocks into spans of about equal size."""
        return [
            Span(
                _read_of(group, tuple(self._plan.part(block) for block in group)),
                None if any(b.row_count is None for b in group) else sum(b.row_count or 0 for b in group),
                sum(b.size_bytes for b in group),
            )
            for alike in _alike(self.blocks(start, end))
            for group in grouped(alike, parallelism)
        ]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span; touches nothing but the files themselves."""
        yield from read_parts(self.spec, span.value)

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span, each with its number: of Parquet in its file, else in its block."""
        yield from read_parts_numbered(self.spec, span.value)

    def committed(self, end: SourcePositions) -> None:
        """Merge old increments of the log: the names must be kept permanently, so nothing is dropped."""
        self._plan.log.merge()


def _alike(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Yield neighbouring blocks of which the same time is read."""
    for _, alike in groupby(blocks, key=lambda block: (block.since, block.before)):
        yield list(alike)


def _read_of(blocks: Sequence[Block], parts: tuple[FilePart, ...]) -> tuple[FilePart, ...] | PartsBetween:
    since, before = blocks[0].since, blocks[0].before
    return parts if since is None and before is None else PartsBetween(parts, since, before)


def _highest(positions: SourcePositions) -> int:
    """Return the highest of some positions: all of them are ordinals of one log."""
    return max(map(int, positions.values()), default=0)


def files(
    path: str | os.PathLike[str],
    *,
    format: Format = "json",
    schema: Any,
    timestamp: str | None = None,
    name: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    on_bad_row: Literal["fail", "reject"] = "fail",
    on_new_column: json_new_columns.OnNewColumn = "ignore",
    min_age: str = "0 s",
    bounded: bool = False,
    header: bool = True,
    separator: str = ",",
    encoding: str = "utf-8",
    block_size: str = "32 MB",
    max_record_size: str = "64 MB",
    start: Literal["earliest", "latest"] = "earliest",
    follow_links: bool = False,
    compare: Literal["identity", "size"] = "identity",
    partition_by: str | Sequence[str] = (),
    bounds: str | None = None,
    disorder: str | int | None = None,
) -> Stream:
    """Read the files of a directory, and those that arrive there while the pipeline runs, each exactly once.

    Parameters
    ----------
    path : str or path
        Directory, glob or file; local, or a URL supported by fsspec (``s3://bucket/in/*.json``).  A file's name,
        relative to the directory, is its identity: it is read once.
    format : str
        ``"json"`` (one object a line), ``"csv"`` or ``"parquet"``.
    schema : str, path, StructType or pyarrow.Schema
        Columns to read.
    timestamp : str, optional
        Column that holds event time.
    name : str, optional
        The source's name: the identity of its positions.
    max_rows_per_epoch, max_files_per_epoch : int, optional
        Limits of one epoch.  With a limit of rows, files are read once more, to be counted, when they are logged.
    on_bad_row : str
        ``"fail"`` stops with the file, line and reason; ``"reject"`` sends the row to ``stream.rejects``.
    on_new_column : str
        JSON, of members that are no column: ``"ignore"``; with ``"fail"`` the line is a bad row; ``"rescue"``: they are
        the text of the column ``_rescued``; ``"add"``: the run stops, and has added columns to the file ``schema``.
    min_age : str
        How long a file must have been unchanged before it is taken.  ``"0 s"``: files arrive complete, by rename.
    bounded : bool
        Whether no files follow those found at the first start. Where there are none, the source has
        ended without a row.
    header, separator
        CSV: whether the first line names the columns; the field separator.
    encoding : str
        JSON, CSV: the encoding of the files, by Python's name of it: ``"utf-16"``, ``"latin-1"``, ``"cp1252"``.
    block_size : str
        Larger files are split into blocks that are read in parallel.
    max_record_size : str
        A longer record (line, CSV record with its quoted line ends, Parquet row) is a bad row, so a
        damaged or hostile file cannot fill the memory.
    start : str
        ``"earliest"`` reads the files found at the first start, ``"latest"`` skips them.
    follow_links : bool
        Whether symbolic links are followed: anyone who can write into the directory can then have any file read.
        Without, a link that leads out of the directory is an error.
    compare : str
        What is compared when a file is read: ``"identity"``, its size, and its time of change or version;
        ``"size"``, for files that were restored without their times.
    partition_by : str or sequence of str
        Columns of the schema whose values are in the names of directories, ``column=value/``, as ``write.files`` and
        Spark write them, and not in the files.  A directory as ``path`` is read as many levels deep.
    bounds : str, optional
        BOOLEAN column of the schema: a row in which it is true is not data but a bound.  No row below its timestamp
        comes any more, for the key that it names, or for all keys where the key columns are null.  Not a column of the
        stream.
    disorder : str or int, optional
        With it the source gives bounds by itself: what is there and not read yet holds them back, and a file that
        arrives later has no row that is further than this below the newest that was read.  The times of files are
        looked up when they are found: in the footers of Parquet; others are read once more for it.

    Raises
    ------
    InvalidPipeline
        If an argument makes no sense, or a column's type does not exist in the format.

    Examples
    --------
    ::

        flights = hf.read.files("data/flights", schema="origin STRING, dep_delay INT, time_hour TIMESTAMP",
                                timestamp="time_hour", on_bad_row="reject", name="flights")
    """
    # Only declaring needs these: executors load this module without them.
    from holdfast.graph.building import building, check_choice, names_of
    from holdfast.graph.nodes import stream_from
    from holdfast.types.schema import to_arrow

    with building("source", name):
        columns = to_arrow(schema)
        layout = _layout(format, header, separator, block_size, max_record_size, encoding)
        {"json": json_lines.check_types, "csv": csv_lines.check_types}.get(format, lambda _: None)(columns)
        on_new = json_new_columns.choice_of(on_new_column, format)
        limits = {"max_rows_per_epoch": max_rows_per_epoch, "max_files_per_epoch": max_files_per_epoch}
        for argument, limit in limits.items():
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise InvalidPipeline(f"{argument}={limit!r} is not a positive number.", do=f"write {argument}=10_000.")
        check_choice("on_bad_row", on_bad_row, ("fail", "reject"))
        check_choice("start", start, ("earliest", "latest"))
        check_choice("compare", compare, ("identity", "size"))
        if bounded and start == "latest":
            raise InvalidPipeline(
                'bounded=True and start="latest" leave nothing to read.',
                why="the one takes only the files of the first start, and the other skips them.",
                do="leave one of the two out.",
            )
        in_names = names_of(partition_by)
        _check_partition_by(columns, in_names)
        columns = json_new_columns.with_rescue(columns, on_new)
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidPipeline(
                f"path={path!r} is not a path.", do='write a directory, a glob or a file: "data/flights".'
            )
        where = discovery.place(os.fspath(path))
        if in_names and not where.pattern:
            where = replace(where, pattern="/".join("*" * (len(in_names) + 1)))  # a level for each, and the files
        spec = FilesSourceSpec(
            path=os.fspath(path),
            where=where,
            layout=replace(layout, on_new=on_new, schema_file=json_new_columns.file_to_add_to(schema, on_new)),
            schema=columns,
            timestamp=timestamp,
            max_rows_per_epoch=max_rows_per_epoch,
            max_files_per_epoch=max_files_per_epoch,
            rejects=on_bad_row == "reject",
            min_age_us=units.duration_us(min_age, argument="min_age"),
            bounded=bounded,
            start=start,
            follow_links=follow_links,
            compare=compare,
            partition_by=in_names,
        )
        if follow_links and not spec.where.is_local:
            raise InvalidPipeline(
                "follow_links=True is for local files.",
                why=f"{spec.where.root} is on a file system whose links cannot be compared.",
                do="leave follow_links out.",
            )
        if disorder is not None:
            return stream_from(own_bounds(replace(spec, has_bounds=True), disorder, bounds), name=name)
        # What is declared NOT NULL is so in rows; a bound row holds for all keys where its columns are null.
        relaxed = columns if bounds is None else required_unless(columns, bounds, but=(timestamp or "",))
        read = with_bounds(replace(spec, schema=relaxed), bounds)
    return stream_from(read, name=name)


def _layout(format: str, header: bool, separator: str, block_size: str, max_record_size: str, encoding: str) -> Layout:
    from holdfast.graph.building import check_choice

    check_choice("format", format, ("json", "csv", "parquet"))
    size = units.size_bytes(block_size, argument="block_size")
    if not 0 < size <= _BLOCK_SIZE_MAX:
        raise InvalidPipeline(
            f"block_size={block_size!r} is out of range.",
            why="a block is held in memory.",
            do='write "32 MB"; at most "1 GB".',
        )
    longest = units.size_bytes(max_record_size, argument="max_record_size")
    if not 0 < longest <= _BLOCK_SIZE_MAX:
        raise InvalidPipeline(
            f"max_record_size={max_record_size!r} is out of range.",
            why="a record is held in memory.",
            do='write "64 MB"; at most "1 GB".',
        )
    if len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
        raise InvalidPipeline(
            f"separator={separator!r} is not a separator.",
            do="write one ASCII character, neither a quote nor a line end.",
        )
    found = encoding_of(encoding)
    if format == "parquet" and found != UTF_8:
        raise InvalidPipeline(
            f"encoding={encoding!r} is for JSON lines and CSV.", why="texts in Parquet are UTF-8.", do="leave it out."
        )
    return Layout(format, header, separator, size, longest, found)


def _check_partition_by(columns: pa.Schema, names: Sequence[str]) -> None:
    wrong = [name for name in names if name not in columns.names or not is_partition_type(columns.field(name).type)]
    if wrong or set(names) == set(columns.names):
        raise InvalidPipeline(
            f"partition_by= names {wrong[0]!r}." if wrong else "partition_by= names all columns.",
            why="the names of directories have columns of schema=, of integers, text, booleans, decimals, dates or "
            "timestamps, and files have at least one other.",
            do="correct partition_by= or schema=.",
        )
