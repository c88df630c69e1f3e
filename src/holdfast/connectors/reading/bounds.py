"""Bound rows: promises of a source about later rows, placed among its rows and marked by a BOOLEAN column.

A row in which the column is true is not data.  Its timestamp is a promise: no row below it follows.  It holds for
the key that its columns name, and for all keys where they are null.  The column itself is not part of the stream.

The bound of a source that reads growing partitions: what the times of their last messages promise together.

Within a partition times ascend, or are at most ``disorder`` below the highest before; so the last messages before a
position say what may still follow.  The bound of the source is the lowest of its partitions'.  One that has no message
yet holds nobody back.  A partition that has been silent for ``idle_after`` counts with the bound that was reached
*before* it was found silent once more: whatever comes of it was appended after that.

Decided where epochs are planned, by its clock.  The outcome is part of the positions, so a replay knows it without
asking anybody, and it never falls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec
from holdfast.errors import InvalidPipeline
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, Source, SourceSpec, Span

OWN = "__bound__"
"""The column that marks them where the source makes them itself, and not whoever wrote its rows."""


@dataclass(frozen=True)
class MarkedSpec(WrappedSpec):
    """Declaration of a source with bound rows among its rows.

    Parameters
    ----------
    given : SourceSpec
        The source as it reads: with the column that marks bounds.
    marker : str
        That column.
    """

    marker: str

    @property
    def is_own(self) -> bool:
        """Whether the source gives the bounds itself, of its partitions: then its rows promise nothing besides."""
        return self.marker == OWN

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows: without the mark."""
        return pa.schema([field.remove_metadata() for field in self.given.schema if field.name != self.marker])

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        return {**self.given.arguments(), "bounds": "its own" if self.is_own else self.marker}

    def columns_inside(self, columns: Collection[str]) -> Collection[str]:
        """Return the columns that are needed: all where one marks bound rows, as they say for which keys these hold."""
        return columns if self.is_own else self.given.schema.names

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        return cast("Source", MarkedSource(self.given.open(name, workspace), self.marker))


def unmarked(spec: SourceSpec) -> SourceSpec:
    """Return the declaration as the source reads: with the column that marks bound rows, where there is one."""
    return spec.given if isinstance(spec, MarkedSpec) else spec


def schema_of_rows(spec: SourceSpec, *, with_bounds: bool = False) -> pa.Schema:
    """Return the columns that a source is read with: its own, with the marks of bound rows and of rejects."""
    schema = spec.given.schema if with_bounds and isinstance(spec, MarkedSpec) else spec.schema
    if spec.rejects:
        nullable = [field.with_nullable(True) for field in schema]
        return pa.schema([*nullable, pa.field(REJECT_COLUMN, REJECT_TYPE)])
    return schema


class MarkedSource(WrappedSource):
    """A source whose :meth:`read` leaves bound rows out; all else is the source itself.

    Parameters
    ----------
    source : Source
        Its rows have the mark.
    marker : str
        The column.
    """

    def __init__(self, source: Source, marker: str) -> None:
        super().__init__(source)
        self.marker = marker

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        for batch in self.source.read(span):
            marks = marks_of(batch, self.marker)
            rows = batch.drop_columns([self.marker])
            yield rows.filter(pc.invert(marks)) if marks.true_count else rows

    def read_marked(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield rows and bound rows of a span in their order, with the mark."""
        yield from self.source.read(span)


def marks_of(batch: pa.RecordBatch, marker: str) -> pa.BooleanArray:
    """Return which rows of a batch are bounds."""
    return pc.fill_null(batch.column(marker), False)


def bounds_for_all(batch: pa.RecordBatch, column: str, marker: str) -> list[int]:
    """Return the highest bound of a batch that holds for all keys: nothing but the timestamp stands in its row."""
    is_bound = marks_of(batch, marker)
    for name in batch.schema.names:
        if name not in (column, marker):
            is_bound = pc.and_(is_bound, pc.is_null(batch.column(name)))
    highest = pc.max(batch.column(column).filter(is_bound).cast(pa.int64()))
    return [highest.as_py()] if highest.is_valid else []


def with_bounds(spec: SourceSpec, bounds: str | None) -> SourceSpec:
    """Return the declaration of a source that gives bound rows; the spec itself where ``bounds`` is None.

    Raises
    ------
    InvalidPipeline
        If the column is not there, is not BOOLEAN, or the source has no timestamp.
    """
    if bounds is None:
        return spec
    names = ", ".join(map(repr, spec.schema.names))
    if bounds not in spec.schema.names:
        raise InvalidPipeline(
            f"bounds={bounds!r} is not a column.",
            why=f"the columns are {names}.",
            do='add it to the schema: "..., is_bound BOOLEAN", and write bounds="is_bound".',
        )
    kind = spec.schema.field(bounds).type
    if kind != pa.bool_():
        raise InvalidPipeline(
            f"bounds={bounds!r} is a column of type {kind}.",
            why="it distinguishes bound rows (true) from rows (false or null).",
            do=f'declare "{bounds} BOOLEAN".',
        )
    if spec.timestamp is None:
        raise InvalidPipeline(
            "bounds= needs timestamp=.",
            why="the timestamp of a bound row is the bound.",
            do='write timestamp="<column>" too.',
        )
    return cast("SourceSpec", MarkedSpec(spec, bounds))


log = logging.getLogger("holdfast.connectors")

HELD_US = 60_000_000
"""So long a partition has been silent when it is said that it holds the bound back."""

TAIL = 64
"""So many offsets before a position are looked at: some are marks of transactions."""


class OffsetRange(NamedTuple):
    """Messages of a partition: its segment, the first offset, and the one after the last."""

    segment: str
    first: int
    last: int


@dataclass(frozen=True)
class PartitionTimes:
    """What a source is told of the times in its partitions.

    Parameters
    ----------
    disorder : int, optional
        Ticks by which a message may be below the highest before it in its partition; None: only the broker's own times
        count, which ascend.
    idle_after_us : int, optional
        After so long without a message a partition holds nobody back; None: never.
    """

    disorder: int | None
    idle_after_us: int | None


class PartitionBounds:
    """The bounds of the partitions of one source, as far as this process has seen them.

    Parameters
    ----------
    times : PartitionTimes
        What is promised.
    latest : callable
        Ranges of offsets -> segment -> the highest time of the messages in it, ticks; without those where there is
        none.
    """

    def __init__(self, times: PartitionTimes, latest: Callable[[Collection[OffsetRange]], Mapping[str, int]]) -> None:
        self.times = times
        self.latest = latest
        self._at: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._heard_us: dict[str, int] = {}
        self._before: Mapping[str, int | None] = {}
        self._named: str | None = None

    def unseen(self, positions: Mapping[str, int]) -> list[str]:
        """Return the partitions whose messages before a position this process has not looked at."""
        return [segment for segment, at in positions.items() if self._at.get(segment) != at]

    def after(
        self, positions: Mapping[str, int], ends: Mapping[str, int], lows: Mapping[str, int], now_us: int
    ) -> int | None:
        """Return the bound after some positions; None where nothing is known yet.

        Parameters
        ----------
        positions : mapping of str to int
            The end of an epoch, without the bound.
        ends : mapping of str to int
            Where partitions end now: all that there are.
        lows : mapping of str to int
            The first offset that is certainly there, of those that are :meth:`unseen`.
        now_us : int
            The clock of this process.
        """
        self._first = {**lows, **self._first}
        self._look(positions, lows)
        for segment, end in ends.items():
            if segment not in self._heard_us or end > positions.get(segment, 0) or self._moved(segment, positions):
                self._heard_us[segment] = now_us
        self._at.update(positions)
        idle = {segment for segment in ends if self._is_idle(segment, now_us)}
        bounds = {segment: self._of(segment) for segment, end in ends.items() if not self._is_empty(segment, end)}
        before, self._before = self._before, bounds
        active = [bound for segment, bound in bounds.items() if segment not in idle]
        if not active:  # everything up to the newest message is settled, whatever disorder was waited for
            return max((self._highest[segment] + 1 for segment in ends if segment in self._highest), default=None)
        # What a silent partition gives from now on was appended after this process had looked the last time.
        reached = _lowest(before.get(segment) for segment in bounds if segment not in idle)
        silent = [_higher(bounds[segment], reached) for segment in idle if segment in bounds]
        return _lowest([*active, *silent])

    def warn_of_silence(self, ends: Mapping[str, int], now_us: int, source: str, shown: Callable[[str], str]) -> None:
        """Name in the log, once, the partition that alone holds the bound back and has been silent for long.

        Parameters
        ----------
        ends, now_us
            As of :meth:`after`, which was called before.
        source : str
            What the source is called.
        shown : callable
            What a segment is called: ``stream trips/out/left``.
        """
        held_by = self.held_by(ends, now_us)
        if held_by is not None and held_by != self._named:
            log.warning(
                "%s: %s has been silent for a minute, and rows of all others wait for its next message. Where it may "
                'stay silent, write idle_after="1 min", say',
                source,
                shown(held_by),
            )
        self._named = held_by

    def held_by(self, ends: Mapping[str, int], now_us: int) -> str | None:
        """Return the partition that alone holds the bound back, and has been silent for long; None where none does."""
        known = {segment: bound for segment, bound in self._before.items() if bound is not None}
        if len(known) < max(2, len(self._before)):
            return None
        lowest, other = sorted(known, key=lambda segment: known[segment])[:2]
        is_silent = ends.get(lowest) == self._at.get(lowest) and now_us - self._heard_us[lowest] >= HELD_US
        return lowest if is_silent and known[lowest] < known[other] and not self._is_idle(lowest, now_us) else None

    def _look(self, positions: Mapping[str, int], lows: Mapping[str, int]) -> None:
        ranges = []
        for segment in self.unseen(positions):
            first, last = max(lows.get(segment, 0), positions[segment] - TAIL), positions[segment]
            if last < self._at.get(segment, 0):  # what was seen beyond is to be read again
                self._highest.pop(segment, None)
            if first < last:
                ranges.append(OffsetRange(segment, first, last))
        for segment, at in self.latest(ranges).items() if ranges else ():
            self._highest[segment] = max(at, self._highest.get(segment, at))

    def _moved(self, segment: str, positions: Mapping[str, int]) -> bool:
        return segment in positions and self._at.get(segment, 0) != positions[segment]

    def _is_idle(self, segment: str, now_us: int) -> bool:
        after_us = self.times.idle_after_us
        return after_us is not None and now_us - self._heard_us[segment] >= after_us

    def _is_empty(self, segment: str, end: int) -> bool:
        return segment not in self._highest and end <= self._first.get(segment, 0)

    def _of(self, segment: str) -> int | None:
        highest = self._highest.get(segment)
        return None if highest is None else highest - (self.times.disorder or 0)


def _lowest(bounds: Iterable[int | None]) -> int | None:
    """Return the lowest bound; None where one is not known."""
    found = list(bounds)
    known = [bound for bound in found if bound is not None]
    return min(known) if known and len(known) == len(found) else None


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
