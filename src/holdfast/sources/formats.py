"""Formats of files: how each is cut into blocks when it is logged, and read block by block.

Lines (JSON, CSV) are read in two ways.  The fast way parses many blocks at once with Arrow and counts: as many rows
must come out as records went in.  Where it fails, the slow way takes the records apart and finds the ones that are
wrong.  Both ways give a good row the same values, so it does not matter which rows stand beside it.
"""

from __future__ import annotations

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


class Unreadable(ValueError):
    """A text holds at least one record that cannot be read; the message says why."""


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
        if waiting and (text.parser != waiting[0].parser or size + len(text.data) > JOINED_SIZE):
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
            yield from _read_apart(texts[0], rows)
            return
    else:
        yield from rows.good(batches)
        return
    for text in texts:
        yield from _read_together([text], rows)


def _read_apart(text: Text, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a text that has bad ones, in order."""
    records = list(text.parser.records(text.data))
    # A stack of ranges that are still to be read, the first one on top.
    todo = [(0, len(records))]
    while todo:
        first, last = todo.pop()
        if first == last:
            continue
        problem = records[first].problem if last - first == 1 else ""
        try:
            if problem or any(record.problem for record in records[first:last]):
                raise Unreadable(problem)
            parsed = text.parser.parse(_joined(text.data, records[first:last]))
        except Unreadable as error:
            if last - first > 1:
                middle = (first + last) // 2
                todo += [(middle, last), (first, middle)]
                continue
            yield _bad_row(text, records[first], problem, error, rows)
        else:
            yield from rows.good(parsed)


def _joined(data: bytes, records: Sequence[Record]) -> bytes:
    return b"\n".join(data[record.start : record.end].rstrip(b"\r\n") for record in records) + b"\n"


def _bad_row(text: Text, record: Record, problem: str, error: Unreadable, rows: Rows) -> pa.RecordBatch:
    content = text.data[record.start : record.end].rstrip(b"\r\n")
    reason = problem or text.parser.reason(content, error)
    line = text.part.lines_before(text.offset + record.start) + 1
    raw = content.decode("utf-8", errors="replace")
    if rows.rejects:
        return rows.bad(reason, raw, f"{text.part.path}:{line}")
    shown = raw if len(raw) <= RAW_SHOWN else raw[: RAW_SHOWN - 3] + "..."
    raise BadRow(
        f"{text.part.path}, line {line}, cannot be read: {reason}.",
        why=f"the line is {shown!r}.",
        do='mend the line, correct schema=, or choose on_bad_row="reject" to go on with the good rows.',
        participant=text.part.path,
    )
