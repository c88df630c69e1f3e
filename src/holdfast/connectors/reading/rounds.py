"""A source of segments, read up to a time: what is left of what was read is owed, and read by a later run.

What a position means is durable before it is returned: one write when a run begins whose time is another one than that
of the run before, and one when it is known where a run ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.connectors.reading.identified import Numbered
from holdfast.connectors.reading.partitioned import BOUND, Partitioned, of_partitions, share, with_bound
from holdfast.connectors.reading.rounds_log import (
    UNIT,
    RangeRead,
    Round,
    RoundsLog,
    entry_position,
    round_of,
)
from holdfast.connectors.reading.until import (
    SpanBetween,
    check_timestamp,
    read_between,
    read_numbered_between,
    shown_timestamp,
)
from holdfast.errors import invariant
from holdfast.limits import ReadLimit
from holdfast.ports import Exhaustible, ExplainedSpec, Source, SourceSpec, Span
from holdfast.positions import SegmentSet, SourcePositions

Limits = Mapping[str, Sequence[tuple[int, bool]]]
"""Segment -> from which entry on rows at or above a time are among the rest, or are not."""


class RangedSource(Source, Protocol):
    """What a source must do that is read in rounds: any range of entries of a segment can be read at any time."""

    def low_of(self, segment: str, start: SourcePositions) -> int:
        """Return where a segment is read next that may have no position."""

    def ends_up_to(self, before: int) -> Mapping[str, int] | None:
        """Return where a run up to a time ends in each segment, as far as is known now; None: not yet."""

    def limits(self, starts: Mapping[str, int], before: int) -> Limits:
        """Return of which entries from some on rows may be at or above a time; it may be said of more."""

    def hold_to(self, ends: Mapping[str, int]) -> None:
        """Let no epoch that is planned from now on go beyond the end of a run."""

    def most_entries(self, count: int, size: Callable[[], int | None], limit: ReadLimit | None) -> int | None:
        """Return how many of so many entries of a size an epoch takes; None: all."""


class RoundedSpec(SourceSpec, Protocol):
    """The declaration of such a source."""

    @property
    def before(self) -> int | None:
        """Where this run ends, exclusive: microseconds, or ticks."""

    @property
    def reads(self) -> SegmentSet:
        """The segments that are read."""


class SourceInRounds:
    """A source of segments, with what it owes.

    Parameters
    ----------
    source : RangedSource
        Its positions are numbers of entries.
    spec : RoundedSpec
        Its declaration, with a timestamp.
    name, workspace : str
        Its name and directory.
    former : str
        Of a source that is divided: the segment that it had before; empty where there is none.

    Notes
    -----
    Two durable writes for each run with a time, and one for the first run after it; otherwise none.
    """

    def __init__(self, source: RangedSource, spec: RoundedSpec, name: str, workspace: str, former: str = "") -> None:
        self.source = source
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self.former = former
        self._opened: RoundsLog | None = None
        self._planned: dict[str, int] = {}
        self._is_empty = False
        """Whether there was no segment at all when it was asked where this run ends."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (SourceInRounds, (self.source, self.spec, self.name, self.workspace, self.former))

    @property
    def _log(self) -> RoundsLog:
        if self._opened is None:
            self._opened = RoundsLog(self.workspace, self.former, is_told=offers(self.spec, ExplainedSpec))
        return self._opened

    # --- planning ---------------------------------------------------------------------------------------------------

    def initial(self) -> SourcePositions:
        """Positions before the first entry."""
        return self.source.initial()

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: what is owed, then new entries."""
        self._log.refresh()
        found: SourcePositions
        if self._is_plain(start):
            found = self.source.latest(start, bounded=bounded, limit=limit)
        else:
            rounds = self._rounds(start)
            owed = self._owed_epoch(start, rounds, limit)
            found = owed or self._new_epoch(start, rounds, bounded=bounded, limit=limit)
        self._planned = of_partitions(found)
        return found

    def freeze(self) -> None:
        """Record what is there now."""
        self.source.freeze()

    def newest(self) -> SourcePositions | None:
        """Positions after everything that is there now, and wanted: so far from those that were planned last as there
        are entries left, whatever lies between two rounds.
        """
        newest, log = self.source.newest(), self._log
        if log.is_new or newest is None:
            return newest
        ends, found = self._ends(), dict[str, int]()
        for segment, at in of_partitions(newest).items():
            entry, here = at if ends is None else min(at, ends.get(segment, 0)), self._planned.get(segment)
            if here is None:
                found[segment] = entry_position(log.latest(segment).number, entry)
            else:
                left = max(0, entry - log.entry_at(segment, here))
                found[segment] = here + log.owed_left(segment, here) + left
        return {**newest, **found}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions, of any time."""
        if not offers(self.source, Exhaustible):
            return False
        if self._log.is_new:
            return self.source.has_ended(positions)
        return self._lowest_owed(positions) is None and self.source.has_ended(self._own(positions))

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether no row below the time where this run ends follows these positions."""
        if self.spec.before is None or (ends := self._ends()) is None:
            return False
        rounds = self._rounds(positions)
        if any(self._left(segment, of, positions) for segment, of in rounds.items()):
            return False
        own = self._own(positions)
        return all(own.get(each, self.source.low_of(each, own)) >= end for each, end in ends.items())

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no row follows positions: also of what is owed."""
        source = self.source
        assert offers(source, Partitioned)
        assert offers(source, Exhaustible)
        if self._log.is_new:
            return source.bound_after(positions, disorder)
        own = self._own(positions)
        bound = source.bound_after(own, disorder)
        lowest = self._lowest_owed(positions)
        if bound is None:
            return lowest if source.has_ended(own) else None
        return bound if lowest is None else min(bound, lowest)

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut what is between two positions; what of a span is read stands in it."""
        if self._is_plain(end):
            return self.source.spans(start, end, parallelism=parallelism)
        found: list[Span] = []
        for (since, before), first, last in self._ranges(start, end):
            spans = self.source.spans(first, last, parallelism=parallelism)
            if since is None and before is None:
                found += spans
            else:
                found += [Span(SpanBetween(one, since, before), one.row_count, one.size_bytes) for one in spans]
        if end.get(BOUND) != start.get(BOUND):
            own = self._own(end)
            of_start = {BOUND: start[BOUND]} if BOUND in start else {}
            found += self.source.spans({**own, **of_start}, {**own, BOUND: end[BOUND]}, parallelism=1)
        return found

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions."""
        if self._is_plain(end):
            return self.source.size_between(start, end)
        sizes = [self.source.size_between(first, last) for _, first, last in self._ranges(start, end)]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions: those that are read, at most."""
        if self._is_plain(end):
            return self.source.rows_between(start, end)
        counts = [self.source.rows_between(first, last) for _, first, last in self._ranges(start, end)]
        return None if None in counts else sum(count or 0 for count in counts)

    def committed(self, end: SourcePositions) -> None:
        """Let go of what neither these positions nor what is owed still needs."""
        self._log.refresh()
        if self._log.is_new:
            self.source.committed(end)
        elif self._lowest_owed(end) is None:
            self.source.committed(self._own(end))

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        return read_between(self.source, span, str(self.spec.timestamp))

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span with their numbers."""
        return read_numbered_between(self.source, span, str(self.spec.timestamp))

    # --- where it is ------------------------------------------------------------------------------------------------

    def _is_plain(self, positions: SourcePositions) -> bool:
        """Return whether positions are the source's own, and nothing is asked of a time."""
        return self.spec.before is None and all(int(at) < UNIT for at in of_partitions(positions).values())

    def _own(self, positions: SourcePositions) -> dict[str, int]:
        """Return the source's own positions."""
        return {each: self._log.entry_at(each, at) for each, at in of_partitions(positions).items()}

    def _at(self, segment: str, positions: SourcePositions) -> int:
        """Return the position of a segment that may have none."""
        if segment in positions:
            return int(positions[segment])
        if self.former and self.former in positions:
            return int(positions[self.former])
        return self.source.low_of(segment, {})

    def _places(self, positions: SourcePositions) -> dict[str, int]:
        """Return the positions of the segments that are read; also of those that go on from where the whole was."""
        known = dict.fromkeys(of_partitions(positions))
        if self.former and self.former in known:
            known |= dict.fromkeys(of_partitions(self.source.newest() or {}))
        return {each: self._at(each, positions) for each in known if each in self.spec.reads and each != self.former}

    def _left(self, segment: str, of: Round, positions: SourcePositions) -> int:
        """Return how many entries are left of what a round reads of what is owed."""
        at = self._at(segment, positions)
        return self._log.owed_left(segment, at) if round_of(at) == of.number else of.owed_count

    def _lowest_owed(self, positions: SourcePositions) -> int | None:
        """Return a time below which nothing is owed; None where nothing is owed at all."""
        owed = (one for each, at in self._places(positions).items() for one in self._log.owed_ranges(each, at))
        return min((one.since for one in owed), default=None)

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[str, int] | None:
        """Return where this run ends, as it was logged; None while that is not known."""
        if self.spec.before is None:
            return None
        ends = self._log.ends.get(self.spec.before, {})
        # Those of the whole are none of its segments': these are asked for anew.
        found = {each: end for each, end in ends.items() if each in self.spec.reads and each != self.former}
        return found if found or self._is_empty else None

    def _rounds(self, start: SourcePositions, also: Iterable[str] = ()) -> dict[str, Round]:
        """Return the round of this run for each segment, and for some more; what is lacking is logged first."""
        log, before = self._log, self.spec.before
        places: dict[str, int] = {}

        def lacking() -> tuple[dict[str, Any], dict[str, int] | None]:
            ends: dict[str, int] | None = None
            if before is not None and self._ends() is None and (found := self.source.ends_up_to(before)) is not None:
                ends, self._is_empty = dict(found), not found
            places.clear()
            places.update(self._places(start))
            if before is not None:
                known = [*(self._ends() or ends or of_partitions(self.source.newest() or {})), *also]
                places.update({each: self._at(each, start) for each in known if each in self.spec.reads})
            new = {each: at for each, at in places.items() if log.following(each, at, before) is None}
            return self._new_rounds(new), ends or None

        log.append(before, shown_timestamp(self.spec), lacking)
        found = {each: log.following(each, at, before) for each, at in places.items()}
        invariant(None not in found.values(), f"of {found}, from {places} on, a round is lacking.")
        return {each: of for each, of in found.items() if of is not None}

    def _new_rounds(self, starts: Mapping[str, int]) -> dict[str, Any]:
        log, before = self._log, self.spec.before
        owed = {segment: log.owed_ranges(segment, at) for segment, at in starts.items()}
        if any(owed.values()):
            check_timestamp(self.spec, self.name, log.owed_by)
        entries = {segment: log.entry_at(segment, at) for segment, at in starts.items()}
        limits: Limits = {segment: [(at, False)] for segment, at in entries.items()}
        if before is not None and entries:
            limits = self.source.limits(entries, before)
        return {
            segment: [at, [one for one in owed[segment] if before is None or one.since < before], limits[segment]]
            for segment, at in starts.items()
        }

    def _owed_epoch(
        self, start: SourcePositions, rounds: Mapping[str, Round], limit: ReadLimit | None
    ) -> dict[str, Any] | None:
        """Return the end of an epoch of what is owed; None where nothing is left of that."""
        left = {segment: count for segment, of in rounds.items() if (count := self._left(segment, of, start))}
        if not left:
            return None
        log, found = self._log, dict(start)
        after = {each: entry_position(rounds[each].number, log.entry_at(each, rounds[each].at)) for each in left}
        most = self.source.most_entries(sum(left.values()), lambda: self.size_between(start, {**start, **after}), limit)
        for segment, count in share(left, most).items():
            of = rounds[segment]
            if count:
                is_last = count == left[segment]
                place = of.number * UNIT + of.owed_count - left[segment] + count
                found[segment] = after[segment] if is_last else place
        return found

    def _new_epoch(
        self, start: SourcePositions, rounds: Mapping[str, Round], *, bounded: bool, limit: ReadLimit | None
    ) -> SourcePositions:
        """Return the end of an epoch of new entries, in the rounds of this run."""
        own: dict[str, Any] = self._own(start)
        bound = {BOUND: start[BOUND]} if BOUND in start else {}
        if (ends := self._ends()) is not None:
            self.source.hold_to(ends)
        latest = self.source.latest({**own, **bound}, bounded=bounded, limit=limit)
        if self.spec.before is not None and (appeared := of_partitions(latest).keys() - rounds.keys()):
            rounds = self._rounds(start, appeared)  # segments that were not there a moment ago
        found: dict[str, Any] = dict(start)
        for segment, end in of_partitions(latest).items():
            if end > (own[segment] if segment in own else self.source.low_of(segment, own)):
                found[segment] = entry_position(rounds[segment].number if segment in rounds else 0, end)
        if BOUND not in latest:
            return found
        lowest = self._lowest_owed(found)
        said = int(latest[BOUND]) if lowest is None else min(int(latest[BOUND]), lowest)
        return with_bound({each: at for each, at in found.items() if each != BOUND}, start, said)

    def _ranges(
        self, start: SourcePositions, end: SourcePositions
    ) -> Iterator[tuple[tuple[int | None, int | None], dict[str, int], dict[str, int]]]:
        """Yield which time is read of which entries, those of several segments together."""
        groups: dict[tuple[int, int | None, int | None], list[tuple[str, RangeRead]]] = defaultdict(list)
        for segment, at in of_partitions(end).items():
            if segment not in self.spec.reads or segment == self.former:
                continue
            seen: dict[tuple[int | None, int | None], int] = defaultdict(int)
            for read in self._log.between(segment, self._at(segment, start), at):
                time = (read.since, read.before)
                groups[seen[time], *time].append((segment, read))
                seen[time] += 1
        for (_, since, before), several in groups.items():
            first = {segment: read.first for segment, read in several}
            yield (since, before), first, {segment: read.last for segment, read in several}
