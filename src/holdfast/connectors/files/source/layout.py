"""How one source's files are laid out: splitting a file when it is logged, the texts of its parts when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import pyarrow as pa

from holdfast.connectors.files.source.discovery import Found, Place
from holdfast.connectors.files.source.log import Block, LoggedFile, whole
from holdfast.connectors.formats import blocks, csv_lines, parquet
from holdfast.connectors.formats.access import FilePart, Undecodable, compression, opened
from holdfast.connectors.formats.blocks import TextBlock
from holdfast.connectors.formats.csv_lines import CsvParser
from holdfast.connectors.formats.csv_records import Walk
from holdfast.connectors.formats.encodings import MARK_SIZE, UTF_8, as_utf8, is_bytewise, obstacle
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.connectors.formats.lines import RefusedRecord, RowRules, Text, too_long
from holdfast.connectors.formats.pieces import RAW_KEPT, Cutter, Piece
from holdfast.types.csv_text import BYTE_ORDER_MARK

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
        JSON, CSV: what files are encoded in, as :func:`~holdfast.connectors.formats.encodings.encoding_of` names it.
    """

    format: str
    header: bool = True
    separator: str = ","
    block_size: int = 32_000_000
    max_record_size: int = RECORD_SIZE
    encoding: str = UTF_8

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
        parser = JsonParser(rows.schema, _show(self.encoding))
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
