"""Rows out of texts: the fast way for all of them, and the exact way for those that hold bad records.

The exact way costs a bounded time for each record, whatever it contains: records are separated once, some thousand
at a time are parsed with Arrow, and where Arrow refuses them the parser judges each of them on its own.

The time index of files: the range of timestamps of each block, where that is known.

Parquet files say their ranges in the footer; of other files, and of Parquet files without, a range is known once their
rows have been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.formats import blocks, json_new_columns
from holdfast.connectors.formats.access import FilePart, opened
from holdfast.connectors.formats.blocks import Parser, RefusedRecord, RowRules, Text, Unreadable, cut_short, is_utf8
from holdfast.errors import BadRow
from holdfast.ports import REJECT_COLUMN
from holdfast.store.time_ranges import TimeRange, of_groups, united

RAW_SHOWN = 200
"""Characters of a bad row that an error shows; a rejected row keeps them all."""

JOINED_SIZE = 1 << 24
"""Small blocks are parsed together up to this many bytes."""

_HEAD = 1 << 15
_HEAD_OF = 1 << 20
"""Of more bytes the first few are parsed before all of them: where every record is bad, that is known soon."""

PARSED_TOGETHER = 4000
"""Records of the exact way that Arrow sees at once."""

_TRIED = 2
"""Bad records that Arrow may name, one after the other, before all records around them are judged.  Where there were
more, the next records are judged before Arrow sees them."""

_TAKEN_OUT = 3
"""Records that are taken out because Arrow names them; then halves are made, or all the others would be parsed again
for each of many."""


def read_texts(texts: Iterable[Text | RefusedRecord], rows: RowRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of texts, in order."""
    waiting: list[Text] = []
    size = 0
    for text in texts:
        if isinstance(text, RefusedRecord):
            yield from _read_together(waiting, rows)
            waiting, size = [], 0
            yield _refusal(text, rows)
            continue
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
    yield from _read_together(waiting, rows)


def _read_together(texts: Sequence[Text], rows: RowRules) -> Iterator[pa.RecordBatch]:
    if not texts:
        return
    parser = texts[0].parser
    whole = texts[0].data if len(texts) == 1 else b"\n".join(text.data.removesuffix(b"\n") for text in texts)
    try:
        if len(whole) > _HEAD_OF:
            parser.parse(parser.head(whole, _HEAD))
        batches = parser.parse(whole)
    except Unreadable:
        yield from _together(_read_apart(texts, rows), rows.read_schema)
    else:
        yield from rows.good(batches)


def _read_apart(texts: Sequence[Text], rows: RowRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of texts that have bad ones, in order."""
    parser = texts[0].parser
    sieve = Sieve(parser)
    for chunk in _chunks(texts):
        batches, reasons = sieve.sifted(chunk.contents, chunk.problems)
        new = json_new_columns.columns_to_add(chunk.contents, reasons, rows)
        if not reasons:
            yield from rows.good(batches)
        elif new is not None or not rows.rejects:
            at = min(reasons) if new is None else new.record
            part, line = chunk.place(at)
            error = _bad_row(part, line, reasons[at], chunk.contents[at])
            raise error if new is None else new.note_in(error)
        else:
            yield from mixed(chunk.contents, chunk.positions, batches, reasons, rows)


class _Places:
    """Lines of a text's records."""

    def __init__(self, text: Text) -> None:
        self.part = text.part
        self.shown = text.part.shown
        self._text = text
        self._ends: blocks.Offsets | None = None
        self._first = 0

    def lines(self, starts: blocks.Offsets) -> blocks.Offsets:
        """Return the lines, from 1, of offsets in the text."""
        if self._ends is None:
            text = self._text
            self._ends = blocks.line_ends(blocks.as_bytes(text.data))
            self._first = text.part.line_of(text.offset, text.line)
        return np.searchsorted(self._ends, starts, side="right") + self._first


@dataclass
class _Chunk:
    """Some records, of one text or of several: of each of these where its records begin."""

    contents: list[bytes] = field(default_factory=list)
    texts: list[tuple[_Places, blocks.Offsets]] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)

    def place(self, record: int) -> tuple[FilePart, int]:
        """Return the file of a record, and its line."""
        behind = np.cumsum([len(starts) for _, starts in self.texts])
        text = int(np.searchsorted(behind, record, side="right"))
        places, starts = self.texts[text]
        at = record - int(behind[text]) + len(starts)
        return places.part, int(places.lines(starts[at : at + 1])[0])

    def positions(self, records: blocks.Offsets) -> pa.Array:
        """Return file and line of some records, which are in order."""
        borders = np.searchsorted(records, np.cumsum([0, *(len(starts) for _, starts in self.texts)]))
        counts = np.diff(borders)
        first = 0
        lines = []
        for (places, starts), begin, end in zip(self.texts, borders[:-1], borders[1:], strict=True):
            if end > begin:
                lines.append(places.lines(starts[records[begin:end] - first]))
            first += len(starts)
        paths = pa.array([places.shown for places, _ in self.texts], pa.string())
        paths = paths[0] if len(paths) == 1 else paths.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        return pc.binary_join_element_wise(paths, pa.array(np.concatenate(lines)).cast(pa.string()), ":")


def _chunks(texts: Sequence[Text]) -> Iterator[_Chunk]:
    chunk = _Chunk()
    for text in texts:
        places, data = _Places(text), text.data
        starts, ends, problems = text.parser.records(data)
        first = 0
        while first < len(starts):
            before = len(chunk.contents)
            last = min(len(starts), first + PARSED_TOGETHER - before)
            chunk.contents += _contents(data, starts[first:last], ends[first:last])
            chunk.texts.append((places, starts[first:last]))
            if problems:
                known = {before + at - first: problems[at] for at in range(first, last) if at in problems}
                chunk.problems.update(known)
            if len(chunk.contents) == PARSED_TOGETHER:
                yield chunk
                chunk = _Chunk()
            first = last
    if chunk.contents:
        yield chunk


def _contents(data: bytes, starts: blocks.Offsets, ends: blocks.Offsets) -> list[bytes]:
    """Return records as bytes; those that are lines, contiguously, in a third of the time."""
    if int((starts[1:] - ends[:-1]).sum()) == len(starts) - 1:
        lines = data[starts[0] : ends[-1]].split(b"\n")
        if len(lines) == len(starts):
            return lines
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


class _Suspects(NamedTuple):
    """Records that nothing is known against, and that Arrow may refuse.

    Parameters
    ----------
    records : list of int
        Their indices.
    judged_from : int
        They are judged if they are as few: twice as many were, and nothing was found.
    taken_out : int
        How many records were taken out, one by one, of what these are left of.
    """

    records: list[int]
    judged_from: int
    taken_out: int = 0


class Sieve:
    """Separates good records from bad ones, chunk by chunk: what is wrong with one is likely wrong with the next.

    Parameters
    ----------
    parser : Parser
        Reads them.
    """

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._is_dense = False
        self._error: Unreadable | None = None

    def sifted(
        self, contents: Sequence[bytes], problems: Mapping[int, str]
    ) -> tuple[list[pa.RecordBatch], dict[int, str]]:
        """Return the rows of the good records, and why the others are bad, by index."""
        reasons = dict(problems)
        left = _others(contents, reasons)
        for _ in range(0 if self._is_dense else _TRIED):
            try:
                return self._parsed(contents, left), reasons
            except Unreadable as error:
                named = error.row
                if named is None or named >= len(left):
                    break
                judged = self._parser.judge([contents[left[named]]])
                if not judged:
                    break  # Arrow counts from the begin of its own block
                reasons[left.pop(named)] = judged[0]
        judged = self._parser.judge(contents if not reasons else [contents[at] for at in left], self._error)
        if judged:
            reasons.update(judged if not reasons else {left[at]: reason for at, reason in judged.items()})
            left = _others(contents, reasons)
        self._error = None if left else self._error
        batches = self._searched(contents, left, reasons)
        self._is_dense = len(reasons) > _TRIED
        return batches, reasons

    def _searched(self, contents: Sequence[bytes], left: list[int], reasons: dict[int, str]) -> list[pa.RecordBatch]:
        """Parse what nothing is known against; find by halves what Arrow refuses nevertheless, and say why."""
        batches: list[pa.RecordBatch] = []
        todo = [_Suspects(left, len(left))]  # a stack, the first records on top
        while todo:
            suspects = todo.pop()
            some = suspects.records
            try:
                batches += self._parsed(contents, some)
            except Unreadable as error:
                self._error = error
                is_due = len(some) <= suspects.judged_from
                judged = self._parser.judge([contents[at] for at in some], error) if is_due else {}
                reasons.update((some[at], reason) for at, reason in judged.items())
                if judged:
                    rest = [at for at in some if at not in reasons]
                    todo.append(suspects._replace(records=rest, judged_from=len(rest)))
                elif len(some) == 1:
                    reasons[some[0]] = self._parser.reason(contents[some[0]], error)
                else:
                    judged_from = len(some) // 2 if is_due else suspects.judged_from
                    todo += reversed(_split(suspects._replace(judged_from=judged_from), error.row))
        return batches

    def _parsed(self, contents: Sequence[bytes], some: Sequence[int]) -> list[pa.RecordBatch]:
        return self._parser.parse(b"\n".join([contents[at] for at in some]) + b"\n") if some else []


def _others(contents: Sequence[bytes], reasons: Mapping[int, str]) -> list[int]:
    """Return the records that no reason is known for."""
    if len(reasons) == len(contents):
        return []
    return [at for at in range(len(contents)) if at not in reasons] if reasons else list(range(len(contents)))


def _split(suspects: _Suspects, row: int | None) -> list[_Suspects]:
    """Split records around the one that the reader complains of, or in the middle.  A wrong hint costs time only."""
    some, taken_out = suspects.records, suspects.taken_out
    if row is None or row >= len(some) or taken_out == _TAKEN_OUT:
        middle = len(some) // 2
        parts = [some[:middle], some[middle:]]
    else:
        parts, taken_out = [some[:row], some[row : row + 1], some[row + 1 :]], taken_out + 1
    return [_Suspects(part, suspects.judged_from, taken_out) for part in parts if part]


def mixed(
    contents: Sequence[bytes],
    positions: Callable[[blocks.Offsets], pa.Array],
    batches: list[pa.RecordBatch],
    reasons: dict[int, str],
    rows: RowRules,
) -> Iterator[pa.RecordBatch]:
    """Yield good and rejected rows in the order of their records.

    Parameters
    ----------
    contents : sequence of bytes
        The records.
    positions : callable
        Returns, for people, where some of them are from, by their indices.
    batches : list of pyarrow.RecordBatch
        The rows of the good ones.
    reasons : dict of int to str
        Why the others are bad.
    rows : RowRules
        They reject.
    """
    bad = sorted(reasons)
    raws = contents if len(bad) == len(contents) else [contents[at] for at in bad]
    try:
        raw = pa.array(raws, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        raw = pa.array([_text(one) for one in raws], pa.string())
    rejected = rows.rejected(pa.array([reasons[at] for at in bad], pa.string()), raw, positions(np.array(bad)))
    if len(bad) == len(contents):
        yield rejected
        return
    is_bad = np.zeros(len(contents), np.bool_)
    is_bad[bad] = True
    # Rejected rows follow the good ones in the table, and each record names its row.
    table = pa.Table.from_batches([*rows.good(batches), rejected], rows.read_schema).combine_chunks()
    places = np.where(is_bad, np.cumsum(is_bad) - 1 + len(is_bad) - len(bad), np.cumsum(~is_bad) - 1)
    yield from table.take(pa.array(places)).combine_chunks().to_batches()


def _together(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Make small batches into some that are worth their name."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size > JOINED_SIZE:
            yield from pa.Table.from_batches(waiting, schema).combine_chunks().to_batches()
            waiting, size = [], 0
    if waiting:
        yield from pa.Table.from_batches(waiting, schema).combine_chunks().to_batches()


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


def _refusal(refused: RefusedRecord, rows: RowRules) -> pa.RecordBatch:
    part = refused.part
    line = 0 if refused.line == 0 else part.line_of(refused.offset, refused.line)
    if rows.rejects:
        return rows.bad(refused.reason, _text(refused.raw), f"{part.shown}:{line}")
    raise _bad_row(part, line, refused.reason, refused.raw)


def _bad_row(part: FilePart, line: int, reason: str, raw: bytes) -> BadRow:
    do = "leave the file as it is (one that was taken must not change) and correct schema="
    if not is_utf8(raw):
        do += ', or encoding= if the file is not UTF-8 ("utf-16", "latin-1", "cp1252")'
    where = f"{part.shown}, line {line}," if line else part.shown
    return BadRow(
        f"{where} cannot be read: {reason}.",
        why=f"the line is {cut_short(_text(raw), RAW_SHOWN)!r}." if line else "it is refused as a whole.",
        do=f'{do}; or write on_bad_row="reject" where the source is built: the good rows go on, and the '
        f"{'line' if line else 'file'} itself can come in again, corrected, in a new file.",
        participant=part.shown,
    )


def of_blocks(part: FilePart, column: pa.Field, cuts: Sequence[tuple[int, int]]) -> list[TimeRange | None]:
    """Return the ranges of blocks of a Parquet file, by the statistics in its footer.

    Parameters
    ----------
    part : FilePart
        The whole file.
    column : pyarrow.Field
        The timestamp, as it is declared.
    cuts : sequence of (int, int)
        First row and the one after the last of each block; -1 is the end of the file.

    Raises
    ------
    Corrupt
        If it is not the file that was found.
    """
    try:
        with opened(part) as file, pq.ParquetFile(file) as parquet:
            groups = of_groups(parquet, column)
    except (pa.ArrowException, OSError, ValueError):
        return [None] * len(cuts)  # the reader reports it
    return [
        united(range_ for first, last, range_ in groups if last > first and last > start and (end < 0 or first < end))
        for start, end in cuts
    ]


def of_rows(batches: Iterable[pa.RecordBatch], column: str) -> TimeRange | None:
    """Return the range of rows; None where none of them has a timestamp, those that are rejected apart.

    Examples
    --------
    >>> of_rows([pa.record_batch({"t": [4, None, 2]}), pa.record_batch({"t": [9]})], "t")
    TimeRange(low=2, high=9)
    """
    found: list[TimeRange | None] = []
    for batch in batches:
        values = batch.column(column)
        if REJECT_COLUMN in batch.schema.names:
            values = values.filter(pc.is_null(batch.column(REJECT_COLUMN)))
        ends = pc.min_max(values.cast(pa.int64()))
        if ends["min"].is_valid:
            found.append(TimeRange(ends["min"].as_py(), ends["max"].as_py()))
    return united(found)
