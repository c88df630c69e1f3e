"""Where text may be cut: record boundaries in bytes, found with vector operations.

Lines end with LF; a CR before it belongs to the line end.  In CSV a line end inside quotes ends no record.

What the formats of lines (JSON, CSV) have in common: records, what parses them, and what happens to the rows.

Lines are read in two ways (:mod:`holdfast.connectors.formats.texts`).  The fast way parses many blocks at once with
Arrow
and counts: there must be as many rows as records.  Where it fails, the exact way separates the records and
finds the ones that are wrong.  Both ways give a good row the same values, so it does not matter which rows are next to
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.connectors.formats.access import FilePart
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_PIECE = 1 << 18  # what is scanned at a time: small enough for the processor's cache
_AROUND_CUT = 1 << 16
_SCANNED = 1 << 23
_LONGEST_RECORD = 1 << 26

_LINE_END = 2  # bytes that it has as a rule
_IS_LINE_END = np.zeros(256, np.bool_)
_IS_LINE_END[[_NEWLINE, _RETURN]] = True

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


class TextBlock(NamedTuple):
    """One block of a text: bytes from ``start`` to ``end``, and its number of records where counted."""

    start: int
    end: int
    row_count: int | None


def as_bytes(data: bytes) -> Bytes:
    """Return bytes as an array, without copying."""
    return np.frombuffer(data, np.uint8)


def line_ends(data: Bytes) -> Offsets:
    """Return the offset after each newline."""
    return np.flatnonzero(data == _NEWLINE) + 1


def lines(data: bytes, ends: Offsets | None = None) -> tuple[Offsets, Offsets]:
    """Return where the content of each line that is not empty begins and ends; a CR before LF belongs to no content.

    Parameters
    ----------
    ends : Offsets, optional
        Offset after the newline of each line, where not every newline ends one.
    """
    view = as_bytes(data)
    ends = np.flatnonzero(view == _NEWLINE) if ends is None else ends - 1
    if len(view) > (ends[-1] + 1 if len(ends) else 0):
        ends = np.append(ends, len(view))
    starts = np.concatenate(([0], ends[:-1] + 1))[: len(ends)]
    starts, ends, _ = contents(data, starts, ends)
    return starts, ends


def contents(data: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, npt.NDArray[np.bool_]]:
    """Return where the contents of records begin and end, without line ends, and which of them are not empty."""
    view = as_bytes(data)
    for _ in range(_LINE_END):
        ends = ends - ((ends > starts) & _IS_LINE_END[view[np.maximum(ends - 1, 0)]])
    for at in np.flatnonzero((ends > starts) & _IS_LINE_END[view[np.maximum(ends - 1, 0)]]).tolist():
        start = int(starts[at])
        ends[at] = start + len(data[start : ends[at]].rstrip(b"\r\n"))
    is_record = ends > starts
    return starts[is_record], ends[is_record], is_record


def longest(ends: Offsets, size: int) -> int:
    """Return the length of the longest record, its line end counted."""
    return int(np.diff(ends, prepend=0, append=size).max())


def lengths(data: bytes, starts: Offsets, ends: Offsets) -> Offsets:
    """Return the lengths of records, their line ends not counted."""
    found: Offsets = ends - starts - (as_bytes(data)[np.maximum(ends - 1, 0)] == _NEWLINE)
    return found


def record_count(data: bytes, ends: Offsets | None = None) -> int:
    """Return the number of records that are not empty.

    Parameters
    ----------
    ends : Offsets, optional
        Offset after the newline of each record, where not every newline ends one.
    """
    if not data:
        return 0
    view = as_bytes(data)
    ends = line_ends(view) if ends is None else ends
    starts = np.concatenate(([0], ends))
    if len(ends) and ends[-1] == len(view):
        starts = starts[:-1]
    else:
        ends = np.append(ends, len(view))
    may_be_empty = np.flatnonzero(_IS_LINE_END[view[starts]])
    return len(starts) - int(np.count_nonzero(~contents(data, starts[may_be_empty], ends[may_be_empty])[2]))


def line_count(file: BinaryIO) -> int:
    """Return the number of newlines from the file's place on."""
    count = 0
    while piece := file.read(_SCANNED):
        count += int(np.count_nonzero(as_bytes(piece) == _NEWLINE))
    return count


def cut_around(file: BinaryIO, size: int, block_size: int) -> list[TextBlock]:
    r"""Cut lines into blocks of about ``block_size`` bytes, reading only around the cuts.

    Examples
    --------
    >>> import io
    >>> [(cut.start, cut.end) for cut in cut_around(io.BytesIO(b"aa\nbb\ncc\n"), 9, 4)]
    [(0, 3), (3, 6), (6, 9)]
    """
    count = max(1, -(-size // block_size))
    offsets = [0]
    for number in range(1, count):
        wanted = size * number // count
        if wanted <= offsets[-1]:
            continue  # one line is longer than a block
        # A newline right before the wanted place makes the place itself a boundary.
        boundary = _next_boundary(file, wanted - 1, size)
        if boundary >= size:
            break
        offsets.append(boundary)
    return [TextBlock(start, end, None) for start, end in zip(offsets, [*offsets[1:], size], strict=True)]


def _next_boundary(file: BinaryIO, at: int, size: int) -> int:
    while at < size:
        file.seek(at)
        piece = file.read(_AROUND_CUT)
        if not piece:
            break
        found = piece.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(piece)
    return size


class Quotes(NamedTuple):
    """The placement of the quotes of a CSV text.

    Parameters
    ----------
    ends : Offsets
        Offset after each newline that ends a record.
    is_clean : bool
        Whether every quoted field opens right at a field's start, closes right at its end, and is closed: then
        ``ends`` are exactly the records' ends.
    is_multiline : bool
        Whether some quoted field holds a newline.
    """

    ends: Offsets
    is_clean: bool
    is_multiline: bool


def quotes(data: bytes, separator: str, *, to_last_end: bool = False) -> Quotes:
    """Find the ends of CSV records, with every quote taken into account.

    Parameters
    ----------
    to_last_end : bool
        Judge only what is before the last record's end: the text continues after ``data``.
    """
    view = as_bytes(data)
    newlines = np.flatnonzero(view == _NEWLINE)
    marks = np.flatnonzero(view == _QUOTE) if b'"' in data else newlines[:0]
    if len(marks) == 0:
        return Quotes(newlines + 1, True, False)
    inside = np.searchsorted(marks, newlines) % 2 == 1
    ends = newlines[~inside] + 1
    if to_last_end:
        marks = marks[: np.searchsorted(marks, ends[-1]) if len(ends) else 0]
    # Quotes open and close alternately, a doubled quote being both a close and an open.  That holds exactly when every
    # opening one is at a field's start or right after a closing one, and every closing one at a field's end.
    opening, closing = marks[0::2], marks[1::2]
    sep = ord(separator)
    opens_well = (opening == 0) | np.isin(view[np.maximum(opening - 1, 0)], (sep, _NEWLINE))
    opens_well[1:] |= opening[1:] == closing[: max(len(opening) - 1, 0)] + 1
    behind = view[np.minimum(closing + 1, len(view) - 1)]
    closes_well = (closing == len(view) - 1) | np.isin(behind, (sep, _NEWLINE, _RETURN, _QUOTE))
    is_clean = len(marks) % 2 == 0 and bool(opens_well.all()) and bool(closes_well.all())
    return Quotes(ends, is_clean, bool(inside.any()))


def cut_counted(
    file: BinaryIO, size: int, *, block_size: int, rows: int | None, separator: str | None
) -> list[TextBlock] | None:
    r"""Cut records into blocks of at most ``rows`` records and about ``block_size`` bytes, reading the file once.

    Parameters
    ----------
    separator : str, optional
        CSV's separator; None for plain lines.

    Returns
    -------
    list of Cut or None
        None when a quote of a CSV file is misplaced: then no newline is surely a record's end.

    Examples
    --------
    >>> import io
    >>> cut_counted(io.BytesIO(b'a,"\n"\nb,c\nd,e'), 13, block_size=100, rows=2, separator=",")
    [TextBlock(start=0, end=10, row_count=2), TextBlock(start=10, end=13, row_count=1)]
    """
    target = -(-size // max(1, -(-size // block_size)))
    cuts: list[TextBlock] = []
    start, taken, at, rest, is_open = 0, 0, 0, b"", False
    while piece := file.read(_SCANNED):
        if separator is None:
            data, ends, used = piece, line_ends(as_bytes(piece)), len(piece)  # a line may be longer than the memory
            is_open = not piece.endswith(b"\n")
        else:
            data = rest + piece
            found = quotes(data, separator, to_last_end=True)
            ends = found.ends
            if not found.is_clean or (len(ends) == 0 and len(data) > _LONGEST_RECORD):
                return None
            used = int(ends[-1]) if len(ends) else 0
            is_open = used < len(data)
        start, taken = _cut_here(cuts, ends + at, start, taken, target, rows)
        at, rest = at + used, data[used:]
    if is_open:
        if separator is not None and not quotes(rest, separator).is_clean:
            return None
        start, taken = _cut_here(cuts, np.array([at + len(rest)]), start, taken, target, rows)
    if taken:
        cuts.append(TextBlock(start, at + len(rest), taken))
    return cuts


def _cut_here(
    cuts: list[TextBlock], ends: Offsets, start: int, taken: int, target: int, rows: int | None
) -> tuple[int, int]:
    """Append the blocks that are full within ``ends``; return the start of the open block and its records so far."""
    first = 0
    while first < len(ends):
        by_size = int(np.searchsorted(ends, start + target))  # the record that fills the block
        last = max(by_size, first)
        if rows is not None:
            last = min(last, first + rows - taken - 1)
        if last >= len(ends):
            break
        end = int(ends[last])
        cuts.append(TextBlock(start, end, taken + last + 1 - first))
        start, taken, first = end, 0, last + 1
    return start, taken + len(ends) - first


SHOWN = 80
"""Characters of a value that a reason shows: the row itself is kept completely."""

_SAID = 200
_ROW = re.compile(r"in row (\d+)|Row #(\d+)")


class Unreadable(ValueError):
    """A text holds at least one record that cannot be read; the message says why."""

    @property
    def row(self) -> int | None:
        """Index of the record that Arrow complains of, where it names one."""
        named = _ROW.search(str(self))
        if named is None:
            return None
        return int(named[1]) if named[1] else max(0, int(named[2]) - 1)


class Records(NamedTuple):
    """The records of a text.

    Parameters
    ----------
    starts, ends : numpy.ndarray
        Place of each record's content: no line end belongs to it.
    problems : dict
        Index of a record -> what is wrong with it, if known without parsing it.
    """

    starts: Offsets
    ends: Offsets
    problems: dict[int, str]


class Parser(Protocol):
    """Reads the records of one format (and, for CSV, of one header) with one schema."""

    def parse(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows, one for each record.

        Raises
        ------
        Unreadable
            If some record cannot be read.
        """

    def joins(self, data: bytes) -> bool:
        """Whether the text may be parsed together with others of its kind."""

    def head(self, data: bytes, size: int) -> bytes:
        """Return the records that surely end within the first bytes of a text."""

    def records(self, data: bytes) -> Records:
        """Take the text apart into records; empty lines are none."""

    def judge(self, contents: Sequence[bytes], error: Unreadable | None = None) -> Mapping[int, str]:
        """Return why records surely cannot be read, by index; of the others nothing is said.

        Parameters
        ----------
        contents : sequence of bytes
            Records without a known problem.
        error : Unreadable, optional
            What Arrow said of them, or of the ones before: for what only a closer check can show.

        Notes
        -----
        A few microseconds a record at most.  Never wrong: a record that is judged is one that :meth:`parse` refuses
        alone.
        """

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say for people why one record cannot be read."""


@dataclass(frozen=True)
class Text:
    """Some records of a file, and what reads them.

    Parameters
    ----------
    part : FilePart
        Their origin.
    offset : int
        Offset of the first byte of ``data`` in the file, decompressed.
    line : int, optional
        Line of the first byte in the part, from 1, where it was counted.
    """

    part: FilePart
    offset: int
    data: bytes
    parser: Parser
    line: int | None = None


@dataclass(frozen=True)
class RefusedRecord:
    """A record, or a whole file, that is known to be bad before it is parsed.

    Parameters
    ----------
    line : int, optional
        In the part, from 1; 0 means the whole file.
    offset : int
        Where the record begins, when ``line`` is None.
    raw : bytes
        As much of it as is shown.
    """

    part: FilePart
    offset: int
    line: int | None
    reason: str
    raw: bytes


@dataclass(frozen=True)
class RowRules:
    """The result of rows: the schema that the source yields, and whether bad rows are rejected or fatal.

    ``schema_file`` is the file that gets the columns that the schema lacks; empty where none does.  ``unread`` has
    columns of Parquet that nothing uses: they hold nulls.
    """

    schema: pa.Schema
    rejects: bool
    schema_file: str = ""
    unread: frozenset[str] = frozenset()

    @property
    def read_schema(self) -> pa.Schema:
        """The schema of the batches that are yielded."""
        fields = [field.remove_metadata() for field in self.schema]  # it says to parsers what may be null
        if not self.rejects:
            return pa.schema(fields)
        return pa.schema([*(field.with_nullable(True) for field in fields), pa.field(REJECT_COLUMN, REJECT_TYPE)])

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield good rows with the schema that is expected."""
        for batch in batches:
            columns = batch.columns
            if self.rejects:
                columns = [*columns, pa.nulls(batch.num_rows, REJECT_TYPE)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.read_schema)

    def bad(self, reason: str, raw: str, position: str) -> pa.RecordBatch:
        """Return one rejected row."""
        return self.rejected(*(pa.array([text], pa.string()) for text in (reason, raw, position)))

    def rejected(self, reasons: pa.Array, raws: pa.Array, positions: pa.Array) -> pa.RecordBatch:
        """Return rejected rows."""
        reject = pa.StructArray.from_arrays([reasons, raws, positions], fields=list(REJECT_TYPE))
        columns = [*(pa.nulls(len(reasons), field.type) for field in self.schema), reject]
        return pa.RecordBatch.from_arrays(columns, schema=self.read_schema)


def cut_short(text: str, size: int = _SAID) -> str:
    """Return a foreign text, shortened for a reason or a message."""
    return text if len(text) <= size else text[: size - 3] + "..."


def too_long(longest: int) -> str:
    """Say why a record of more than ``longest`` bytes is refused."""
    return f"it is longer than max_record_size ({longest:,} bytes)"


def not_encoded(encoding: str) -> str:
    """Say why a record is refused whose bytes are not of its file's encoding."""
    return f"it is not {encoding}"


def is_utf8(data: bytes) -> bool:
    """Whether a text is UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
