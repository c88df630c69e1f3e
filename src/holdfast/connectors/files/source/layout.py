"""How one source's files are laid out: splitting a file when it is logged, the texts of its parts when it is read.

A part of a text file in pieces that end where records end, however large the part is and however long a line.

What is held at once is bounded by ``max_record_size`` and by the size of a piece, not by the file: a small compressed
file may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.connectors.files.source.discovery import Found, Place
from holdfast.connectors.files.source.log import Block, LoggedFile, whole
from holdfast.connectors.formats import blocks, csv_lines, parquet
from holdfast.connectors.formats.access import (
    MARK_SIZE,
    UTF_8,
    FilePart,
    Undecodable,
    as_utf8,
    compression,
    is_bytewise,
    obstacle,
    opened,
)
from holdfast.connectors.formats.blocks import RefusedRecord, RowRules, Text, TextBlock, too_long
from holdfast.connectors.formats.csv_lines import CsvParser
from holdfast.connectors.formats.csv_records import Walk
from holdfast.connectors.formats.json_new_columns import OnNewColumn, parser_of
from holdfast.types.from_text import BYTE_ORDER_MARK

# An epoch takes whole blocks: with blocks of a quarter of its limit it is filled to three quarters at least.
_BLOCKS_PER_EPOCH = 4
_HEADER_READ = 1 << 16  # at first: nearly every header is shorter

RECORD_SIZE = 64_000_000
"""Default of ``max_record_size``."""


@dataclass(frozen=True)
class Layout:
    """Format of files and its options.

    Parameters
    ----------
    format : str
        ``"json"``, ``"csv"`` or ``"parquet"``.
    header : bool
        CSV: whether the first line names the columns.
    separator : str
        CSV: the field separator.
    block_size : int
        Bytes from which on a file is cut.
    max_record_size : int
        Bytes that a record may have; a longer one is a bad row.
    encoding : str
        JSON, CSV: what files are encoded in, as :func:`~holdfast.connectors.formats.access.encoding_of` names it.
    on_new : str
        JSON: what becomes of members that are no column: ``"ignore"``, ``"fail"``, ``"rescue"`` or ``"add"``.
    schema_file : str
        The file that gets columns for them; empty where none does.
    unread : frozenset of str
        Parquet: columns that nothing uses, which hold nulls.
    """

    format: str
    header: bool = True
    separator: str = ","
    block_size: int = 32_000_000
    max_record_size: int = RECORD_SIZE
    encoding: str = UTF_8
    on_new: OnNewColumn = "ignore"
    schema_file: str = ""
    unread: frozenset[str] = frozenset()

    def is_compressed(self, name: str) -> bool:
        """Whether a file is compressed as a whole: then it is one block."""
        return self.format != "parquet" and compression(name) is not None

    def cut(self, where: Place, found: Found, max_rows: int | None) -> LoggedFile:
        """Cut a file into blocks; read as little of it as possible.  Runs in the planning process."""
        part = FilePart(where.path(found.name), found.size, 0, -1, found.identity)
        rows = None if max_rows is None else max(1, max_rows // _BLOCKS_PER_EPOCH)
        if max_rows is None and found.size <= self.block_size:
            return whole(found.name, found.size)
        if self.format == "parquet":
            return _logged(found, parquet.cut(part, block_size=self.block_size, rows=rows), by_rows=True)
        if self.is_compressed(found.name) or not self._is_cut_in_place(part):
            count = None if max_rows is None else self._count(part)
            return LoggedFile(found.name, found.size, (Block(found.name, found.size, 0, -1, count, found.size),))
        with opened(part) as file:
            if self.format == "json" and rows is None:
                cuts: list[TextBlock] | None = blocks.cut_around(file, found.size, self.block_size)
            else:
                separator = self.separator if self.format == "csv" else None
                size = self.block_size
                cuts = blocks.cut_counted(file, found.size, block_size=size, rows=rows, separator=separator)
        if cuts is None:  # misplaced quotes: one block, so that its reader sees all of them
            with opened(part) as file:
                cuts = [TextBlock(0, -1, blocks.line_count(file))]
        if self.format == "csv" and self.header and cuts and cuts[0].row_count:
            cuts[0] = cuts[0]._replace(row_count=cuts[0].row_count - 1)
        return _logged(found, cuts, by_rows=False)

    def _is_cut_in_place(self, part: FilePart) -> bool:
        """Whether line ends are found in the file as it is; one that is refused as a whole is not cut either."""
        return is_bytewise(self.encoding) and not obstacle(part.head(MARK_SIZE), self.encoding)

    def _count(self, part: FilePart) -> int | None:
        """Count the lines of a file that is decoded; None when it is damaged: the reader reports it."""
        try:
            pieces = Cutter(None, self.max_record_size, self.encoding).pieces(part)
            return sum(1 if piece.problem else blocks.record_count(piece.data) for piece in pieces)
        except Undecodable:
            return None

    def texts(self, parts: Sequence[FilePart], rows: RowRules) -> Iterator[Text | RefusedRecord]:
        """Read parts of JSON or CSV files; a file that cannot be decompressed is one bad row, where those are rejected.

        Raises
        ------
        Corrupt
            If a file cannot be decompressed, and bad rows are not rejected.
        """
        cutter = Cutter(self.separator if self.format == "csv" else None, self.max_record_size, self.encoding)
        for part in parts:
            try:
                pieces = cutter.pieces(part, all_or_none=rows.rejects)
                yield from self._json(part, pieces, rows) if self.format == "json" else self._csv(part, pieces, rows)
            except Undecodable as error:
                if not rows.rejects:
                    raise error.of(part) from error
                yield RefusedRecord(part, 0, 0, f"the file cannot be decompressed: {error}", b"")

    def _json(self, part: FilePart, pieces: Iterator[Piece], rows: RowRules) -> Iterator[Text | RefusedRecord]:
        parser = parser_of(rows.schema, self.on_new, _show(self.encoding))
        for piece in pieces:
            yield _refusal(part, piece) if piece.problem else Text(part, piece.offset, piece.data, parser, piece.line)

    def _csv(self, part: FilePart, pieces: Iterator[Piece], rows: RowRules) -> Iterator[Text | RefusedRecord]:
        parser = self._parser_of(part, rows.schema)
        raw, without_records = b"", ""
        if parser is None:
            # The header is the first record of the first piece.
            first = next(pieces, None)
            if first is None or first.line == 0:
                yield from () if first is None else (_refusal(part, first),)
                return
            length = _header_length(first.data, self.separator, self.max_record_size)
            header = None if first.problem else first.data[:length]
            parser = self._parser(header, rows.schema)
            if header is not None:
                pieces = chain((_after_header(first, header),), pieces)
            if part.is_whole and (header is None or header.strip()):
                raw, without_records = first.data[:RAW_KEPT], parser.problem
        for piece in pieces:
            if without_records and (piece.problem or piece.data.strip()):
                without_records = ""
            if piece.problem:
                yield _refusal(part, piece)
            else:
                yield Text(part, piece.offset, piece.data, parser, piece.line)
        if without_records:
            yield RefusedRecord(part, 0, 0, without_records, raw)

    def _parser_of(self, part: FilePart, schema: pa.Schema) -> CsvParser | None:
        """Return what reads a part of a CSV file; None where its first record is the header that says so."""
        if not self.header:
            names = tuple(schema.names)
            return CsvParser(schema, names, self.separator, "", self.max_record_size, _show(self.encoding))
        if part.start == 0:
            return None
        whole_file = part._replace(start=0, end=-1)
        return self._parser(_header(whole_file, self.separator, self.max_record_size, self.encoding), schema)

    def _parser(self, header: bytes | None, schema: pa.Schema) -> CsvParser:
        return _csv_parser(header, self.separator, schema, self.max_record_size, _show(self.encoding))


def _after_header(piece: Piece, header: bytes) -> Piece:
    line = None if piece.line is None else piece.line + header.count(b"\n")
    return Piece(piece.offset + len(header), piece.data[len(header) :], line)


def _refusal(part: FilePart, piece: Piece) -> RefusedRecord:
    return RefusedRecord(part, piece.offset, piece.line, piece.problem, piece.data)


def _logged(found: Found, cuts: list[TextBlock] | None, *, by_rows: bool) -> LoggedFile:
    if cuts is None:
        return whole(found.name, found.size)
    total = max(1, sum(cut.row_count or 0 for cut in cuts))
    return LoggedFile(
        found.name,
        found.size,
        tuple(
            Block(
                found.name,
                found.size,
                cut.start,
                cut.end,
                cut.row_count,
                found.size * (cut.row_count or 0) // total
                if by_rows
                else (found.size if cut.end < 0 else cut.end) - cut.start,
            )
            for cut in cuts
        ),
    )


@lru_cache(maxsize=64)
def _csv_parser(header: bytes | None, separator: str, schema: pa.Schema, longest: int, encoding: str) -> CsvParser:
    if header is None:
        columns: tuple[str, ...] = ()
        problem = f"the header of the file cannot be read: {too_long(longest)}"
    else:
        columns, problem = csv_lines.header_columns(header, separator, schema)
    return CsvParser(schema, columns, separator, problem, longest, encoding)


@lru_cache(maxsize=8)
def _header(part: FilePart, separator: str, longest: int, encoding: str) -> bytes | None:
    """Return the header of a file that is read from its middle on, however long it is; None when it is too long.

    Such a file was cut, so every quote in it is well placed: its first newline outside of quotes ends the header.
    """
    size = _HEADER_READ
    while True:
        data = b"".join(as_utf8(iter([part.head(size)]), encoding)) if encoding != UTF_8 else part.head(size)
        data = data.removeprefix(BYTE_ORDER_MARK)
        ends = blocks.quotes(data, separator, to_last_end=True).ends
        if len(ends):
            return data[: int(ends[0])] if int(ends[0]) <= longest + 1 else None
        if len(data) > longest:
            return None
        if size >= part.file_size:  # another file by now, without a line end
            return data
        size *= 4


def _show(encoding: str) -> str:
    return "UTF-8" if encoding == UTF_8 else encoding


def _header_length(data: bytes, separator: str, longest: int) -> int:
    return next((end for _, end, _ in Walk(data, separator, longest=longest).records()), 0)


AT_ONCE = 1 << 26
"""Bytes up to which a part that is not compressed is one piece."""

RAW_KEPT = 1000
"""Bytes that are kept of a record that is too long."""

_READ = 1 << 23
_NONE = np.zeros(0, np.int64)


class Piece(NamedTuple):
    """Some whole records, or the beginning of one that is refused.

    Parameters
    ----------
    offset : int
        Of the first byte, in the part's file as it is when decompressed.
    data : bytes
        Records, the last one with its line end unless the file ends without.
    line : int, optional
        Line of the first byte in the part, from 1, where it was counted; 0 means the whole file.
    problem : str
        Why this one record, or the file, is refused; ``data`` is its beginning then.
    """

    offset: int
    data: bytes
    line: int | None
    problem: str = ""


@dataclass(frozen=True)
class Cutter:
    """Cuts parts into pieces.

    Parameters
    ----------
    separator : str, optional
        CSV's separator; None for plain lines.
    longest : int
        Bytes that a record may have.
    encoding : str
        What the files are encoded in; pieces are UTF-8.
    """

    separator: str | None
    longest: int
    encoding: str = UTF_8

    def pieces(self, part: FilePart, *, all_or_none: bool = False) -> Iterator[Piece]:
        """Yield the pieces of a part, in order.  A byte order mark at the begin of the file belongs to none.

        Parameters
        ----------
        all_or_none : bool
            Yield nothing of a compressed file before all of it could be decompressed.

        Raises
        ------
        Undecodable
            If it cannot be decompressed.
        """
        is_recoded = self.encoding != UTF_8
        if part.is_compressed or part.size > AT_ONCE or is_recoded:
            chunks = part.verified(_READ) if all_or_none else part.stream(_READ)
            head = _read(chunks, MARK_SIZE)
            if problem := self._obstacle(part, head):
                yield problem
                return
            chunks = chain([head], chunks)
            if is_recoded:
                chunks = as_utf8(chunks, self.encoding)
            yield from self._cut(chunks, part.start, 1 if part.is_compressed or is_recoded else None)
            return
        data = part.content()
        if problem := self._obstacle(part, data):
            yield problem
            return
        if len(data) > self.longest:
            yield from self._cut(iter([data]), part.start, None)
        elif part.start == 0 and data.startswith(BYTE_ORDER_MARK):
            yield Piece(len(BYTE_ORDER_MARK), data.removeprefix(BYTE_ORDER_MARK), None)
        else:
            yield Piece(part.start, data, None)

    def _obstacle(self, part: FilePart, data: bytes) -> Piece | None:
        reason = obstacle(data[:MARK_SIZE], self.encoding) if part.start == 0 else ""
        if not is_bytewise(self.encoding) and not part.is_whole:
            reason = f"it was divided as a file of another encoding than {self.encoding}: give it in under another name"
        return Piece(0, b"", 0, reason) if reason else None

    def _cut(self, chunks: Iterator[bytes], offset: int, line: int | None) -> Iterator[Piece]:
        rest = _read(chunks, len(BYTE_ORDER_MARK)) if offset == 0 else b""
        if rest.startswith(BYTE_ORDER_MARK):
            offset, rest = len(BYTE_ORDER_MARK), rest.removeprefix(BYTE_ORDER_MARK)
        is_last = False
        while not is_last:
            # At least as much as is left over: a record that fills many chunks is scanned a few times, not many.
            more = _read(chunks, len(rest))
            is_last = not more
            data = rest + more
            used, long = self._ends(data, is_last=is_last)
            at = 0
            for start, end in [*long, (used, used)]:
                if start > at:
                    yield Piece(offset + at, data[at:start], line)
                    line = _behind(line, data, at, start)
                if end > start:
                    yield self._refused(offset + start, data[start:end], line)
                    line = _behind(line, data, start, end)
                at = end
            offset, rest = offset + used, data[used:]
            if not is_last and len(rest) > self.longest and b"\n" not in rest:
                yield self._refused(offset, rest, line)
                skipped, rest = _behind_newline(rest, chunks)
                offset += skipped
                line = None if line is None else line + 1

    def _refused(self, offset: int, data: bytes, line: int | None) -> Piece:
        return Piece(offset, data[: min(RAW_KEPT, self.longest)], line, too_long(self.longest))

    def _ends(self, data: bytes, *, is_last: bool) -> tuple[int, list[tuple[int, int]]]:
        """Return the end of the last whole record, and the places of records on one line that are too long."""
        has_quotes = self.separator is not None and b'"' in data
        if not has_quotes:
            used = len(data) if is_last else data.rfind(b"\n") + 1
            ends = blocks.line_ends(blocks.as_bytes(data)) if used > self.longest else _NONE
        else:
            assert self.separator is not None
            found = blocks.quotes(data, self.separator, to_last_end=not is_last)
            ends = found.ends
            used = len(data) if is_last else int(ends[-1]) if len(ends) else 0
            if not found.is_clean or len(data) - used > self.longest:
                return self._walked(data, is_last=is_last)
        if used <= self.longest or blocks.longest(ends, used) <= self.longest:
            return used, []
        starts = np.concatenate(([0], ends))
        ends = np.concatenate((ends, [used]))
        is_long = blocks.lengths(data, starts, ends) > self.longest
        if has_quotes and is_long.any():  # of a record on several lines, the first alone is refused
            return self._walked(data, is_last=is_last)
        return used, list(zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True))

    def _walked(self, data: bytes, *, is_last: bool) -> tuple[int, list[tuple[int, int]]]:
        assert self.separator is not None
        used, long, problem = 0, [], too_long(self.longest)
        for start, end, found in Walk(data, self.separator, longest=self.longest, is_whole=is_last).records():
            used = end
            if found == problem:
                long.append((start, end))
        return used, long


def _read(chunks: Iterator[bytes], size: int) -> bytes:
    """Return the next chunk, or several where that is less than ``size``; nothing at the end."""
    read: list[bytes] = []
    taken = 0
    while (chunk := next(chunks, b"")) and (taken := taken + len(chunk)):
        read.append(chunk)
        if taken >= size:
            break
    return b"".join(read)


def _behind(line: int | None, data: bytes, start: int, end: int) -> int | None:
    return None if line is None else line + data.count(b"\n", start, end)


def _behind_newline(data: bytes, chunks: Iterator[bytes]) -> tuple[int, bytes]:
    """Return how much was skipped up to and with the next newline, and what was read after it."""
    skipped = 0
    while data and (found := data.find(b"\n")) < 0:
        skipped += len(data)
        data = next(chunks, b"")
    if not data:
        return skipped, b""
    return skipped + found + 1, data[found + 1 :]
