"""A source of whole entries, read up to a time: what is left of them is owed, and read by a later run.

What a position means is durable before it is returned: pieces are logged once, and read the same by every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.connectors.formats.texts import of_rows
from holdfast.connectors.reading.bounds import bounds_for_all
from holdfast.connectors.reading.deferred_log import FIRST, LoggedPiece, Owed, OwingLog
from holdfast.connectors.reading.identified import Numbered
from holdfast.connectors.reading.until import (
    SpanBetween,
    check_timestamp,
    read_between,
    read_numbered_between,
    shown_timestamp,
)
from holdfast.limits import ReadLimit
from holdfast.ports import Exhaustible, Source, SourceSpec, Span
from holdfast.positions import SourcePositions
from holdfast.store.time_ranges import TimeRange, united


class OwingSpec(SourceSpec, Protocol):
    """The declaration of such a source."""

    @property
    def before(self) -> int | None:
        """Where this run ends, exclusive: microseconds, or ticks."""

    @property
    def marker(self) -> str | None:
        """The column that marks bound rows, where a run has an end."""


class _Entry(NamedTuple):
    """An entry of which something is to be read, or owed: where its timestamps are, and whether it has any."""

    entry: int
    since: int | None
    times: TimeRange | None
    is_timeless: bool = False


class OwingSource:
    """A source of entries, with what it owes.

    Parameters
    ----------
    source : Source
        Its positions are numbers of entries in one segment; an epoch of it takes whole ones.
    spec : OwingSpec
        Its declaration, with a timestamp.
    segment : str
        That segment.
    name, workspace : str
        Its name and directory.

    Notes
    -----
    One durable write an epoch while a run has an end, and until what it owed is read; otherwise none.
    """

    def __init__(self, source: Source, spec: OwingSpec, segment: str, name: str, workspace: str) -> None:
        self.source = source
        self.spec = spec
        self.segment = segment
        self.name = name
        self.workspace = workspace
        self.column = str(spec.timestamp)
        self.before, self.marker = spec.before, spec.marker
        self._opened: OwingLog | None = None
        self._looked = 0
        """Below this entry all were looked at that are there still, of which time they are."""
        self._reached: int | None = None
        """The highest time of those."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (OwingSource, (self.source, self.spec, self.segment, self.name, self.workspace))

    @property
    def _log(self) -> OwingLog:
        if self._opened is None:
            self._opened = OwingLog(self.workspace)
            if self._opened.owed:
                check_timestamp(self.spec, self.name, self._opened.owed_by)
        return self._opened

    # --- planning ---------------------------------------------------------------------------------------------------

    def initial(self) -> SourcePositions:
        """Positions before the first entry."""
        return self.source.initial()

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: pieces that are logged, then what is owed, then new entries."""
        log, at = self._log, self._at(start)
        log.refresh()
        if log.is_new and self.before is None:
            return self.source.latest(start, bounded=bounded, limit=limit)
        if log.base is not None and at < log.base:  # read again, after a loss
            return {self.segment: min(log.base, self._epoch(at, bounded=False, limit=limit))}
        ordinal = max(0, at - FIRST)
        while (end := self._end_of_logged(ordinal, bounded=bounded, limit=limit)) == ordinal:
            if not self._log_more(at, ordinal, bounded=bounded, limit=limit):
                return start
        return {self.segment: FIRST + end}

    def freeze(self) -> None:
        """Record what is there now."""
        self.source.freeze()

    def newest(self) -> SourcePositions | None:
        """Positions after everything that is there now, and wanted."""
        newest, log = self.source.newest(), self._log
        if log.is_new or newest is None:
            return newest
        return {self.segment: FIRST + log.ordinal_of(self._at(newest)) + len(self._due())}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions, of any time."""
        log, ordinal = self._log, self._at(positions) - FIRST
        if not offers(self.source, Exhaustible):
            return False
        if log.is_new:
            return self.source.has_ended(positions)
        return ordinal >= log.end and not log.owed and self.source.has_ended({self.segment: log.fresh_at(ordinal)})

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether no row below the time where this run ends follows these positions."""
        log, at = self._log, self._at(positions)
        if self.before is None:
            return False
        if log.is_new or log.open_piece is not None:
            return self.has_ended(positions) or self._has_reached(at)
        is_before = (log.base is not None and at < log.base) or max(0, at - FIRST) < log.end
        if is_before or self._due() or self._epoch(log.next, bounded=False) > log.next:
            return False
        is_over = offers(self.source, Exhaustible) and self.source.has_ended({self.segment: log.next})
        return is_over or (log.reached is not None and log.reached >= self.before)

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut what is between two positions; what of a span is read stands in it."""
        found: list[Span] = []
        for first, last, since, before in self._ranges(start, end):
            spans = self.source.spans({self.segment: first}, {self.segment: last}, parallelism=parallelism)
            if since is None and before is None:
                found += spans
            else:
                found += [Span(SpanBetween(one, since, before), one.row_count, one.size_bytes) for one in spans]
        return found

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes of the entries between two positions."""
        return _sum(
            self.source.size_between({self.segment: first}, {self.segment: last})
            for first, last, *_ in self._ranges(start, end)
        )

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows of the entries between two positions: those that are read, at most."""
        return _sum(
            self.source.rows_between({self.segment: first}, {self.segment: last})
            for first, last, *_ in self._ranges(start, end)
        )

    def committed(self, end: SourcePositions) -> None:
        """Let go of what neither these positions nor what is owed still needs."""
        at, log = self._at(end), self._log
        log.refresh()
        if log.is_new:
            self.source.committed(end)
        else:
            lowest = log.needed(at - FIRST) if at >= FIRST else min([at, *log.owed])
            self.source.committed({self.segment: lowest})

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        return read_between(self.source, span, self.column)

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span with their numbers: those of all rows of an entry, whichever of them are read."""
        return read_numbered_between(self.source, span, self.column)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _at(self, positions: SourcePositions) -> int:
        return int(positions.get(self.segment, 0))

    def _epoch(self, entry: int, *, bounded: bool, limit: ReadLimit | None = None) -> int:
        """Return the end of an epoch of the source itself."""
        return self._at(self.source.latest({self.segment: entry}, bounded=bounded, limit=limit))

    def _end_of_logged(self, ordinal: int, *, bounded: bool, limit: ReadLimit | None) -> int:
        """Return the end of an epoch among pieces that are logged: within one of them."""
        piece = next((one for one in self._log.pieces if one.is_behind(ordinal)), None)
        if piece is None or (piece.size is None and self.before is not None):
            return ordinal  # this run has an end, and an open piece none
        entry = piece.entry_at(ordinal)
        taken = self._epoch(entry, bounded=bounded and piece.size is None, limit=limit) - entry
        return ordinal + (taken if piece.size is None else min(taken, piece.ordinal + piece.size - ordinal))

    def _due(self) -> list[Owed]:
        """Return what is read by this run of what others have left."""
        before = self.before
        return [one for one in self._log.owed.values() if before is None or one.low is None or one.low < before]

    def _log_more(self, at: int, ordinal: int, *, bounded: bool, limit: ReadLimit | None) -> bool:
        """Log what is owed, or new entries; return whether there was any."""
        log = self._log
        fresh = at if log.is_new else log.fresh_at(ordinal)
        reached: int | None = None
        if due := self._due():
            entries, following = [_Entry(*one) for one in due], fresh
        elif self.before is None:
            if log.open_piece is not None:
                return False
            self._append(at, ordinal, [LoggedPiece(0, fresh, None, None, None)], [], fresh)
            return True
        else:
            following = self._epoch(fresh, bounded=bounded, limit=limit)
            learned = [self._learned(entry) for entry in range(fresh, following)]
            entries = [entry for entry, _ in learned]
            reached = _highest(*(bound for _, bound in learned))
            if entries and (log.is_new or log.open_piece is not None):
                reached = _highest(reached, self._reached_before(fresh))
        if not entries:
            return False
        self._append(at, ordinal, *self._divided(entries), following, reached)
        return True

    def _has_reached(self, at: int) -> bool:
        """Return whether all that is there was read, by runs without an end, and a row at or above the time with it."""
        assert self.before is not None
        piece = self._log.open_piece
        if piece is not None and at - FIRST < piece.ordinal:
            return False
        entry = at if piece is None else piece.entry_at(at - FIRST)
        if self._epoch(entry, bounded=False) > entry:
            return False
        reached = _highest(self._log.reached, self._reached_before(entry))
        return reached is not None and reached >= self.before

    def _reached_before(self, entry: int) -> int | None:
        """Return how far runs without an end have come, by what is still there of what they have read.

        They note nothing; so it is read once more, the newest first, until it reaches the time.
        """
        for one in range(entry - 1, max(self._at(self.source.initial()), self._looked) - 1, -1):
            if self.before is not None and self._reached is not None and self._reached >= self.before:
                break
            self._reached = _highest(self._reached, self._learned(one)[1])
        self._looked = entry
        return self._reached

    def _append(
        self,
        at: int,
        ordinal: int,
        pieces: Sequence[LoggedPiece],
        owed: Sequence[Owed],
        following: int,
        reached: int | None = None,
    ) -> None:
        closed_at = self._log.end if self._log.open_piece is None else ordinal
        self._log.append(
            at,
            closed_at=closed_at,
            pieces=pieces,
            owed=owed,
            following=following,
            reached=reached,
            by=shown_timestamp(self.spec),
        )

    def _divided(self, entries: Sequence[_Entry]) -> tuple[list[LoggedPiece], list[Owed]]:
        """Return the pieces that this run reads of entries, neighbours of one time together, and what it leaves."""
        read: list[LoggedPiece] = []
        owed: list[Owed] = []
        for entry, since, times, is_timeless in entries:
            if self.before is not None and times is not None and times.low >= self.before:
                owed.append(Owed(entry, since, times))
                continue
            is_whole = self.before is None or is_timeless or (times is not None and times.high < self.before)
            read.append(LoggedPiece(0, entry, 1, since, None if is_whole else self.before))
            if not is_whole:
                owed.append(Owed(entry, self.before, times))
        alike = groupby(enumerate(read), key=lambda numbered: (numbered[1].entry - numbered[0], *numbered[1][3:]))
        groups = ([piece for _, piece in group] for _, group in alike)
        return [group[0]._replace(size=len(group)) for group in groups], owed

    def _learned(self, entry: int) -> tuple[_Entry, int | None]:
        """Read an entry; return where its timestamps are, and the bound that it gives."""
        found: list[TimeRange | None] = []
        bounds: list[int] = []
        for span in self.source.spans({self.segment: entry}, {self.segment: entry + 1}, parallelism=1):
            for batch in self.source.read(span):
                found.append(of_rows([batch], self.column))
                bounds += [] if self.marker is None else bounds_for_all(batch, self.column, self.marker)
        times = united(each for each in found if each is not None)
        if self.marker is None and times is not None:
            bounds.append(times.high)
        return _Entry(entry, None, times, times is None), max(bounds, default=None)

    def _ranges(
        self, start: SourcePositions, end: SourcePositions
    ) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield first entry, the one after the last, and which time is read, for what is between two positions."""
        first, last = self._at(start), self._at(end)
        if last < FIRST:
            if first < last:
                yield first, last, None, None
            return
        log = self._log
        if log.is_new or last - FIRST > log.end:
            log.refresh()
        if first < FIRST and log.base is not None and first < log.base:
            yield first, log.base, None, None
        for piece in log.pieces_between(max(0, first - FIRST), last - FIRST):
            yield piece.entry, piece.entry + (piece.size or 0), piece.since, piece.before


def _highest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _sum(several: Iterable[int | None]) -> int | None:
    total = 0
    for one in several:
        if one is None:
            return None
        total += one
    return total
