"""A source without the rows that are dead letters, and with those of them that are sent again.

A row's *address* is the segment, the position in it, and the row's ordinal among the rows of that one position: what
is at an address never changes, whatever epochs are planned.  Rows are left out where spans are cut: a position that
holds such a row has a span of its own, which says what of it counts.  So executors need no other information, and every
reading of the same positions, whichever process plans it, yields the same rows.

Rows that are sent again are a segment of their own, ``letters``: entry *k* is read between its positions *k* and
*k* + 1.  So they are part of exactly one epoch, and sinks hold them by position as they hold anything else.

What passes behind an operator with state: all it gives, without the rows that are dead letters there.

An *outlet* is one output of such an operator in one bucket.  What it gives in an epoch is fixed, as the epoch's content
is: the levels are deterministic, and an epoch that is repeated begins with the same state.  So a row that something
behind state cannot process has an address too: outlet, epoch, and its ordinal among the rows of the outlet there.  It
is left out behind the state, which has processed it: what the row was made of was good, and so were the rows whose
arrival let it go.

A row is left out only where it equals its letter.  An epoch that is evaluated again with other content (behind a
rewind, or by a changed graph) may have another row at that place.

In a trial nothing passes behind some level, and behind the one before it only a number of rows: so it shows where an
epoch fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from holdfast.connectors.reading.bounds import MarkedSource
from holdfast.connectors.reading.wrapped import WrappedSource
from holdfast.errors import InvalidPipeline, invariant
from holdfast.limits import ReadLimit
from holdfast.ports import Source, Span
from holdfast.positions import UNDIVIDED, SourcePositions
from holdfast.state.tables import fitted
from holdfast.types.casting import by_name

LETTERS = "letters"
"""Segment of the rows that are sent again."""

ADDED = "added-"
"""Segments of rows that are no position of their source begin so: somebody has added them."""


class Address(NamedTuple):
    """The address of a row of one source."""

    segment: str
    position: int
    ordinal: int


@dataclass(frozen=True)
class Mask:
    """What of a source is read.

    Parameters
    ----------
    left_out : frozenset of Address
        Dead letters.
    again : tuple of bytes
        Rows that are sent again, in their order, each an Arrow IPC stream of one row; an empty one is none.
    first, last : Address, optional
        For a trial: only rows from the first on, and before the last.  The segment ``letters`` comes after the other.
    """

    left_out: frozenset[Address] = frozenset()
    again: tuple[bytes, ...] = ()
    first: Address | None = None
    last: Address | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {
            "left_out": sorted(self.left_out),
            "again": [base64.b64encode(row).decode() for row in self.again],
            "first": self.first,
            "last": self.last,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Mask:
        """Return what :meth:`to_json` wrote."""
        first, last = value["first"], value["last"]
        return Mask(
            frozenset(Address(*one) for one in value["left_out"]),
            tuple(base64.b64decode(row) for row in value["again"]),
            None if first is None else Address(*first),
            None if last is None else Address(*last),
        )


NOTHING = Mask()
"""Every row is read once."""


def mask_file(stop_file: str) -> str:
    """Return the file, beside the stop file of a run, in which its planning processes find the masks."""
    return os.path.join(os.path.dirname(stop_file), "masks.json")


def write_masks(path: str, masks: Mapping[str, Mask]) -> None:
    """Write the masks of all sources for planning processes that are not started yet."""
    Path(path).write_text(json.dumps({name: mask.to_json() for name, mask in masks.items()}))


def read_mask(path: str, source: str) -> Mask:
    """Return the mask of a source; that of nothing where there is no file."""
    if not os.path.exists(path):
        return NOTHING
    masks: dict[str, Any] = json.loads(Path(path).read_text())
    return Mask.from_json(masks[source]) if source in masks else NOTHING


def lettered(source: Source, mask: Mask) -> Source:
    """Return a source with a mask: the source itself where every row is read once."""
    return source if mask == NOTHING else _wrap(source, mask)


def readable(source: Source, span: Span) -> Source:
    """Return a source that can read any span: what is left out is recorded in the span."""
    return _wrap(source, NOTHING) if isinstance(span.value, _Counted | _Again) else source


def one_row(batch: pa.RecordBatch, ordinal: int) -> bytes:
    """Return one row of a batch as an Arrow IPC stream."""
    buffer = pa.BufferOutputStream()
    row = pa.Table.from_batches([batch]).take([ordinal]).combine_chunks()  # a slice would carry the whole batch along
    with pa.ipc.new_stream(buffer, row.schema) as writer:
        writer.write_table(row)
    return bytes(buffer.getvalue())


def _wrap(source: Source, mask: Mask) -> Source:
    if isinstance(source, MarkedSource):  # an address counts bound rows too, in every reader
        return cast("Source", MarkedSource(cast("Source", LetteredSource(source.source, mask)), source.marker))
    return cast("Source", LetteredSource(source, mask))


@dataclass(frozen=True)
class _Counted:
    """Value of a span of one position: the source's own span, and which of its rows count."""

    span: Span
    first: int
    last: int | None
    left_out: tuple[int, ...]


@dataclass(frozen=True)
class _Again:
    """Value of a span of rows that are sent again."""

    rows: tuple[bytes, ...]


class LetteredSource(WrappedSource):
    """A source with a mask; all that is not about rows is the source itself.

    Parameters
    ----------
    source : Source
        Its positions are numbers.
    mask : Mask
        What is left out, and what is sent again.
    """

    def __init__(self, source: Source, mask: Mask = NOTHING) -> None:
        super().__init__(source)
        self.mask = mask

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End positions of the next epoch: what is sent again is part of the first one."""
        return self._with_letters(self.source.latest(start, bounded=bounded, limit=limit), start)

    def newest(self) -> SourcePositions | None:
        """Positions after everything that is known now."""
        newest = self.source.newest()
        return None if newest is None else self._with_letters(newest, {})

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut the rows between two positions: those that are left out, or are outside, are in no span."""
        initial = self.source.initial()
        said, until = ({name: at for name, at in of.items() if name.startswith("@")} for of in (start, end))
        spans: list[Span] = []
        for segment in segments_of(end):
            begin = low_in(segment, start, initial)
            spans += self._spans(segment, begin, int(end[segment]), parallelism)
        if said != until:  # what is no row: a bound, for instance
            at = {segment: end[segment] for segment in segments_of(end)}
            spans += self.source.spans({**at, **said}, {**at, **until}, parallelism=1)
        return spans + list(self._letters(int(start.get(LETTERS, 0)), int(end.get(LETTERS, 0))))

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span that count."""
        value = span.value
        if isinstance(value, _Again):
            for row in value.rows:
                yield from pa.ipc.open_stream(row).read_all().to_batches()
        elif isinstance(value, _Counted):
            yield from _counting(self.source.read(value.span), value)
        else:
            yield from self.source.read(span)

    def rows_at(self, segment: str, position: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of one position, left out or not."""
        if segment == LETTERS:
            yield from self.read(Span(_Again(self._again(position, position + 1))))
            return
        for span in self._of_one(segment, position):
            yield from self.source.read(span)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _with_letters(self, positions: SourcePositions, start: SourcePositions) -> SourcePositions:
        count = max(len(self.mask.again), int(start.get(LETTERS, 0)))
        return {**positions, LETTERS: count} if count else positions

    def _spans(self, segment: str, begin: int, end: int, parallelism: int) -> Iterator[Span]:
        """Yield the spans of the source's own segment; positions of which only a part counts have their own."""
        first, last = self._window(segment)
        begin = begin if first is None else max(begin, first.position)
        end = end if last is None else min(end, last.position + (last.ordinal > 0))
        special = {address.position for address in self.mask.left_out if address.segment == segment}
        special |= {border.position for border in (first, last) if border is not None and border.ordinal > 0}
        at = begin
        for position in sorted(one for one in special if begin <= one < end):
            if at < position:
                yield from self.source.spans({segment: at}, {segment: position}, parallelism=parallelism)
            yield from self._counted(segment, position, first, last)
            at = position + 1
        if at < end:
            yield from self.source.spans({segment: at}, {segment: end}, parallelism=parallelism)

    def _counted(self, segment: str, position: int, first: Address | None, last: Address | None) -> Iterator[Span]:
        for span in self._of_one(segment, position):
            out = sorted(a.ordinal for a in self.mask.left_out if (a.segment, a.position) == (segment, position))
            begin = first.ordinal if first is not None and first.position == position else 0
            end = last.ordinal if last is not None and last.position == position else None
            yield Span(_Counted(span, begin, end, tuple(out)), None, span.size_bytes)

    def _of_one(self, segment: str, position: int) -> Sequence[Span]:
        spans = self.source.spans({segment: position}, {segment: position + 1}, parallelism=1)
        invariant(
            len(spans) <= 1,
            f"position {position} of segment {segment!r} was cut into {len(spans)} spans.",
            why="rows of one position are numbered in the order of one reading.",
        )
        return spans

    def _letters(self, begin: int, end: int) -> Iterator[Span]:
        first, last = self._window(LETTERS)
        begin = begin if first is None else max(begin, first.position)
        end = end if last is None else min(end, last.position)
        left_out = {address.position for address in self.mask.left_out if address.segment == LETTERS}
        rows = self._again(begin, end, left_out)
        if rows:
            yield Span(_Again(rows), len(rows), sum(map(len, rows)))

    def _again(self, begin: int, end: int, left_out: Collection[int] = ()) -> tuple[bytes, ...]:
        """Return the rows between two positions of the letters; those of a pipeline this is a fork of are not here."""
        numbers = range(begin, min(end, len(self.mask.again)))
        return tuple(
            self.mask.again[number] for number in numbers if number not in left_out and self.mask.again[number]
        )

    def _window(self, segment: str) -> tuple[Address | None, Address | None]:
        """Return the borders that are in a segment; one in another segment excludes all of this one, or none of it."""
        first, last = self.mask.first, self.mask.last
        if (first is not None and _place(segment) < _place(first.segment)) or (
            last is not None and _place(last.segment) < _place(segment)
        ):
            return None, Address(segment, 0, 0)
        return (
            first if first is not None and first.segment == segment else None,
            last if last is not None and last.segment == segment else None,
        )


def _place(segment: str) -> tuple[bool, str]:
    """Return where a segment stands among those of a source: what is sent again comes last."""
    return segment == LETTERS, segment


def _counting(batches: Iterator[pa.RecordBatch], of: _Counted) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        if of.last is not None and at >= of.last:
            return
        ordinals = np.arange(at, at + batch.num_rows)
        at += batch.num_rows
        keep = (ordinals >= of.first) & ~np.isin(ordinals, of.left_out)
        if of.last is not None:
            keep &= ordinals < of.last
        if keep.any():
            yield batch if keep.all() else batch.filter(pa.array(keep))


def segments_of(positions: SourcePositions) -> list[str]:
    """Return the segments of a source in their order, marks and letters apart.

    Raises
    ------
    InvalidPipeline
        If a row has no address: only Spark understands the positions.

    Examples
    --------
    >>> segments_of({"log": 3, "@ended": 1, "letters": 2}), segments_of({"5/60": 7, "39/60": 4})
    (['log'], ['39/60', '5/60'])
    """
    segments = sorted(name for name in positions if name != LETTERS and not name.startswith("@"))
    if not segments or not all(isinstance(positions[segment], int) for segment in segments):
        raise InvalidPipeline(
            f"rows at {dict(positions)!r} cannot be left out of a source.",
            why="a row has an address only where positions are numbers.",
            do='read it with another source, or leave on_poison="stop".',
        )
    return segments


def low_in(segment: str, start: SourcePositions, initial: SourcePositions) -> int:
    """Return where a segment begins in an epoch: one without a position goes on where the undivided source was.

    Examples
    --------
    >>> low_in("39/60", {"39/60": 5, "log": 3}, {}), low_in("5/60", {"39/60": 5, "log": 3}, {}), low_in("5/60", {}, {})
    (5, 3, 0)
    """
    before = next((start[name] for name in UNDIVIDED if name in start), initial.get(segment, 0))
    return int(start.get(segment, before))


OUTLET = "out-"
"""Segments of rows that an operator with state has given begin so."""


def segment_at(output: str, bucket: int) -> str:
    """Return the segment of an outlet's rows.

    Examples
    --------
    >>> segment_at("rows", 3)
    'out-rows-3'
    """
    return f"{OUTLET}{output}-{bucket}"


def outlet_of(operator: str, output: str, bucket: int) -> str:
    """Return the name of an outlet: the operator, and the segment.

    Examples
    --------
    >>> outlet_of("sums", "rows", 3)
    'sums/out-rows-3'
    """
    return f"{operator}/{segment_at(output, bucket)}"


def digest_of(row: bytes) -> str:
    """Return what identifies a row that is kept as an Arrow IPC stream, for the version of Arrow that runs here."""
    return _digest(pa.ipc.open_stream(row).read_all(), 0)


@dataclass(frozen=True)
class GivenRows:
    """What an outlet gave in a trial.

    Parameters
    ----------
    count : int
        Number of rows.
    row : bytes, optional
        The one that was to be shown, an Arrow IPC stream.
    """

    count: int
    row: bytes | None = None

    def to_json(self) -> list[Any]:
        """Return it as a JSON value."""
        return [self.count, None if self.row is None else base64.b64encode(self.row).decode()]

    @staticmethod
    def from_json(value: Sequence[Any]) -> GivenRows:
        """Return what :meth:`to_json` wrote."""
        return GivenRows(value[0], None if value[1] is None else base64.b64decode(value[1]))


@dataclass(frozen=True)
class Passing:
    """What passes behind the levels in one epoch.

    Parameters
    ----------
    left_out : mapping of str to mapping of int to str
        Outlet -> ordinal -> digest of the row there that is a dead letter.
    level : int, optional
        In a trial: the level behind which some rows pass, behind later ones none; 0: none behind any.  None: no trial.
    until : mapping of str to int
        In a trial: outlet of that level -> how many of its rows pass; of others none do.
    shown : (str, int), optional
        In a trial: outlet and ordinal of a row to be reported.
    """

    left_out: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    level: int | None = None
    until: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[str, int] | None = None

    def of(self, level: int, outlet: str, rows: pa.Table) -> pa.Table:
        """Return the rows of an outlet that pass."""
        left_out = self.left_out.get(outlet, {})
        gone = [at for at, digest in left_out.items() if at < rows.num_rows and _digest(rows, at) == digest]
        if gone:
            rows_kept = np.ones(rows.num_rows, bool)
            rows_kept[gone] = False
        else:
            rows_kept = None
        if self.level is not None and level >= self.level:
            most = self.until.get(outlet, 0) if level == self.level else 0
            rows, rows_kept = rows.slice(0, most), None if rows_kept is None else rows_kept[:most]
        return rows if rows_kept is None else rows.filter(pa.array(rows_kept))

    def report(self, outlet: str, rows: pa.Table) -> GivenRows | None:
        """Return what a trial reports of an outlet; None where this is no trial."""
        if self.level is None:
            return None
        is_here = self.shown is not None and self.shown[0] == outlet
        return GivenRows(rows.num_rows, _row(rows, self.shown[1]) if is_here and self.shown is not None else None)

    def to_json(self) -> str:
        """Return it as it travels to workers."""
        if self == EVERYTHING:
            return "{}"
        left_out = {outlet: {str(at): digest for at, digest in of.items()} for outlet, of in self.left_out.items()}
        return json.dumps({"left_out": left_out, "level": self.level, "until": self.until, "shown": self.shown})

    @staticmethod
    def from_json(text: str) -> Passing:
        """Return what :meth:`to_json` wrote."""
        value = json.loads(text)
        if not value:
            return EVERYTHING
        left_out = {outlet: {int(at): digest for at, digest in of.items()} for outlet, of in value["left_out"].items()}
        shown = value["shown"]
        return Passing(left_out, value["level"], value["until"], None if shown is None else (shown[0], shown[1]))


EVERYTHING = Passing()
"""All rows pass."""


def _row(rows: pa.Table, ordinal: int) -> bytes:
    batch = rows.slice(ordinal, 1).combine_chunks().to_batches()[0]
    return one_row(batch, 0)


def _digest(rows: pa.Table, ordinal: int) -> str:
    row = fitted(rows.slice(ordinal, 1), by_name(rows.schema))  # the graph may name its columns in another order now
    return hashlib.sha256(_row(row, 0)).hexdigest()[:16]
