"""Formats of files: how each is cut into blocks when it is logged, and read block by block.

Lines (JSON, CSV) are read in two ways.  The fast way parses many blocks at once with Arrow and counts: as many rows
must come out as records went in.  Where it fails, the slow way takes the records apart and finds the ones that are
wrong.  Both ways give a good row the same values, so it does not matter which rows stand beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.errors import BadRow
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE
from holdfast.sources.access import Part

RAW_SHOWN = 200
"""Characters of a bad row that an error shows; a rejected row keeps them all."""

JOINED_SIZE = 1 << 24
"""Small blocks are parsed together up to this many bytes."""


_PARSED_TOGETHER = 1000
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


class Record(NamedTuple):
    """One record's place in a text, and what is wrong with it as far as is known without parsing it."""

    start: int
    end: int
    problem: str


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

    def records(self, data: bytes) -> Iterator[Record]:
        """Take the text apart into records; empty lines are none."""

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say for people why one record cannot be read."""


@dataclass(frozen=True)
class Text:
    """Some records of a file, and what reads them.

    Parameters
    ----------
    part : Part
        Where they come from.
    offset : int
        Offset of the first byte of ``data`` in the file.
    """

    part: Part
    offset: int
    data: bytes
    parser: Parser


@dataclass(frozen=True)
class Rows:
    """What is made of rows: the schema that the source yields, and whether bad rows are rejected or fatal."""

    schema: pa.Schema
    rejects: bool

    @property
    def read_schema(self) -> pa.Schema:
        """The schema of the batches that are yielded."""
        if not self.rejects:
            return self.schema
        return pa.schema([*(field.with_nullable(True) for field in self.schema), pa.field(REJECT_COLUMN, REJECT_TYPE)])

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield good rows with the schema that is expected."""
        for batch in batches:
            columns = batch.columns
            if self.rejects:
                columns = [*columns, pa.nulls(batch.num_rows, REJECT_TYPE)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.read_schema)

    def bad(self, reason: str, raw: str, position: str) -> pa.RecordBatch:
        """Return one rejected row."""
        reject = {"reason": reason, "raw": raw, "position": position}
        columns = [*(pa.nulls(1, field.type) for field in self.schema), pa.array([reject], REJECT_TYPE)]
        return pa.RecordBatch.from_arrays(columns, schema=self.read_schema)


def read_texts(texts: Iterator[Text], rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of texts, in order."""
    waiting: list[Text] = []
    size = 0
    for text in texts:
        if not text.data:
            continue
        if waiting and not (
            size + len(text.data) <= JOINED_SIZE
            and text.parser == waiting[0].parser
            and all(text.parser.joins(one.data) for one in (waiting[-1], text))
        ):
            yield from _read_together(waiting, rows)
            waiting, size = [], 0
        waiting.append(text)
        size += len(text.data)
    if waiting:
        yield from _read_together(waiting, rows)


def _read_together(texts: Sequence[Text], rows: Rows) -> Iterator[pa.RecordBatch]:
    parser = texts[0].parser
    whole = texts[0].data if len(texts) == 1 else b"\n".join(text.data.removesuffix(b"\n") for text in texts)
    try:
        batches = parser.parse(whole)
    except Unreadable:
        if len(texts) == 1:
            apart = _read_apart(texts[0], rows)
            # Rejected rows come one by one: together again they make batches worth their name.
            yield from _together(apart, rows.read_schema) if rows.rejects else apart
            return
    else:
        yield from rows.good(batches)
        return
    for text in texts:
        yield from _read_together([text], rows)


def _read_apart(text: Text, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a text that has bad ones, in order."""
    records = list(text.parser.records(text.data))
    lines = _LineNumbers(text)
    # A stack of ranges that are still to be read, the first one on top.
    todo = list(reversed(_ranges(records)))
    while todo:
        first, last = todo.pop()
        problem = records[first].problem
        try:
            if problem:
                raise Unreadable(problem)
            parsed = text.parser.parse(_joined(text.data, records[first:last]))
        except Unreadable as error:
            if last - first > 1:
                todo += reversed(_split(first, last, error.row))
            else:
                yield _bad_row(text, records[first], lines.at(records[first].start), error, rows)
        else:
            yield from rows.good(parsed)


def _ranges(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Return ranges to be parsed together: records with a known problem stand alone."""
    ranges: list[tuple[int, int]] = []
    first = 0
    for at, record in enumerate(records):
        if record.problem or at - first == _PARSED_TOGETHER:
            if at > first:
                ranges.append((first, at))
            first = at
        if record.problem:
            ranges.append((at, at + 1))
            first = at + 1
    if first < len(records):
        ranges.append((first, len(records)))
    return ranges


def _split(first: int, last: int, row: int | None) -> list[tuple[int, int]]:
    """Split a range around the row that the reader complains of, or in the middle.  A wrong hint costs time only."""
    if row is None or row >= last - first:
        middle = (first + last) // 2
        return [(first, middle), (middle, last)]
    bad = first + row
    return [(a, b) for a, b in ((first, bad), (bad, bad + 1), (bad + 1, last)) if b > a]


class _LineNumbers:
    """Lines of a file, counted once while bad rows are met in order."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._counted_to = 0
        self._line: int | None = None

    def at(self, start: int) -> int:
        """Return the line, from 1, of an offset in the text."""
        if self._line is None:
            self._line = self._text.part.lines_before(self._text.offset) + 1
        self._line += self._text.data.count(b"\n", self._counted_to, start)
        self._counted_to = start
        return self._line


def _together(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(list(batches), schema).combine_chunks().to_batches()


def _joined(data: bytes, records: Sequence[Record]) -> bytes:
    return b"\n".join(data[record.start : record.end].rstrip(b"\r\n") for record in records) + b"\n"


def _bad_row(text: Text, record: Record, line: int, error: Unreadable, rows: Rows) -> pa.RecordBatch:
    content = text.data[record.start : record.end].rstrip(b"\r\n")
    reason = record.problem or text.parser.reason(content, error)
    raw = content.decode("utf-8", errors="replace")
    if rows.rejects:
        return rows.bad(reason, raw, f"{text.part.shown}:{line}")
    shown = raw if len(raw) <= RAW_SHOWN else raw[: RAW_SHOWN - 3] + "..."
    raise BadRow(
        f"{text.part.shown}, line {line}, cannot be read: {reason}.",
        why=f"the line is {shown!r}.",
        do='mend the line, correct schema=, or choose on_bad_row="reject" to go on with the good rows.',
        participant=text.part.shown,
    )
