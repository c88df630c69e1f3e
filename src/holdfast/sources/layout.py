"""How one source's files are laid out: cutting a file when it is logged, and the texts of its parts when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from holdfast.sources import blocks, csv_lines, parquet
from holdfast.sources.access import Part, compression, opened
from holdfast.sources.blocks import Cut
from holdfast.sources.csv_lines import CsvParser
from holdfast.sources.discovery import Found, Place
from holdfast.sources.file_log import Block, LoggedFile, whole
from holdfast.sources.formats import Parser, Text
from holdfast.sources.json_lines import JsonParser

# An epoch takes whole blocks: with blocks of a quarter of its limit it is filled to three quarters at least.
_BLOCKS_PER_EPOCH = 4
_HEADER_READ = 1 << 16  # at first: nearly every header is shorter
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
        CSV: what stands between fields.
    block_size : int
        Bytes from which on a file is cut.
    """

    format: str
    header: bool = True
    separator: str = ","
    block_size: int = 32_000_000

    def is_compressed(self, name: str) -> bool:
        """Whether a file is compressed as a whole: then it is one block."""
        return self.format != "parquet" and compression(name) is not None

    def cut(self, where: Place, found: Found, max_rows: int | None) -> LoggedFile:
        """Cut a file into blocks; read as little of it as possible.  Runs in the planning process."""
        part = Part(where.path(found.name), found.size, 0, -1, found.identity)
        rows = None if max_rows is None else max(1, max_rows // _BLOCKS_PER_EPOCH)
        if max_rows is None and found.size <= self.block_size:
            return whole(found.name, found.size)
        if self.format == "parquet":
            return _logged(found, parquet.cut(part, block_size=self.block_size, rows=rows), by_rows=True)
        if self.is_compressed(found.name):
            count = None if max_rows is None else blocks.record_count(part.content())
            return LoggedFile(found.name, found.size, (Block(found.name, found.size, 0, -1, count, found.size),))
        with opened(part) as file:
            if self.format == "json" and rows is None:
                cuts: list[Cut] | None = blocks.cut_around(file, found.size, self.block_size)
            else:
                separator = self.separator if self.format == "csv" else None
                size = self.block_size
                cuts = blocks.cut_counted(file, found.size, block_size=size, rows=rows, separator=separator)
        if cuts is None:  # quotes that stand wrong: one block, so that whoever reads it sees all of them
            with opened(part) as file:
                cuts = [Cut(0, -1, blocks.line_count(file))]
        if self.format == "csv" and self.header and cuts and cuts[0].row_count:
            cuts[0] = cuts[0]._replace(row_count=cuts[0].row_count - 1)
        return _logged(found, cuts, by_rows=False)

    def texts(self, parts: Sequence[Part], schema: pa.Schema) -> Iterator[Text]:
        """Read parts of JSON or CSV files."""
        for part in parts:
            data, offset = part.content(), part.start
            if part.start == 0 and data.startswith(_BYTE_ORDER_MARK):
                data, offset = data.removeprefix(_BYTE_ORDER_MARK), len(_BYTE_ORDER_MARK)
            if self.format == "json":
                yield Text(part, offset, data, JsonParser(schema))
                continue
            if not self.header:
                yield Text(part, offset, data, CsvParser(schema, tuple(schema.names), self.separator))
                continue
            if part.start == 0:
                length = _header_length(data, self.separator)
                header, data, offset = data[:length], data[length:], offset + length
            else:
                header = _header(part._replace(start=0, end=-1), self.separator)
            yield Text(part, offset, data, _csv_parser(header, self.separator, schema))


def _logged(found: Found, cuts: list[Cut] | None, *, by_rows: bool) -> LoggedFile:
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
def _csv_parser(header: bytes, separator: str, schema: pa.Schema) -> Parser:
    columns, problem = csv_lines.header_columns(header, separator, schema)
    return CsvParser(schema, columns, separator, problem)


@lru_cache(maxsize=8)
def _header(part: Part, separator: str) -> bytes:
    """Return the header of a file that is read from its middle on, however long it is.

    Such a file was cut, so every quote in it stands well: its first newline outside of quotes ends the header.
    """
    size = _HEADER_READ
    while True:
        data = part.head(size)
        ends = blocks.quotes(data.removeprefix(_BYTE_ORDER_MARK), separator, to_last_end=True).ends
        if len(ends):
            return data.removeprefix(_BYTE_ORDER_MARK)[: int(ends[0])]
        if len(data) < size:
            return data.removeprefix(_BYTE_ORDER_MARK)
        size *= 4


def _header_length(data: bytes, separator: str) -> int:
    return next((end for _, end, _ in blocks.tolerant_records(data, separator)), 0)
