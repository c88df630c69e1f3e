"""A part of a text file in pieces that end where records end, however large the part is and however long a line.

What is held at once is bounded by ``max_record_size`` and by the size of a piece, not by the file: a small compressed
file may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from holdfast.connectors.formats import blocks
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.csv_records import Walk
from holdfast.connectors.formats.encodings import MARK_SIZE, UTF_8, as_utf8, is_bytewise, obstacle
from holdfast.connectors.formats.lines import too_long
from holdfast.types.csv_text import BYTE_ORDER_MARK

AT_ONCE = 1 << 26
"""Bytes up to which a part that is not compressed is one piece."""

RAW_KEPT = 1000
"""Bytes that are kept of a record that is too long."""

_READ = 1 << 23
_NEWLINE = ord("\n")
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
        lengths = ends - starts - (blocks.as_bytes(data)[np.maximum(ends - 1, 0)] == _NEWLINE)
        is_long = lengths > self.longest
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
