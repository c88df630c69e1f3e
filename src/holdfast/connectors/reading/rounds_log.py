"""The log of a source of segments that was read up to a time: its rounds.

Rows stand in a segment in any order, so no position divides them by time.  A run whose time is another one than that of
the run before therefore begins a *round*: first it reads what earlier rounds have left, as far as it is below its time,
then what is new.  Of what is new some ranges are *limited*: of these it reads the rows below its time, and leaves the
others.  A source that never was read up to a time has no log, and its own positions.

Positions of a round are numbers from ``round * UNIT`` on: first those of what was left, in the order of its pieces;
then, from ``HALF`` more on, the source's own.  So what a position means is in the log, and the source's own one in
itself.

Invariants: a round never changes once it is logged, nor does the position at which it begins; rounds grow.  So the rows
between two positions are the same whenever they are read, and a rewind needs nothing of the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.errors import Corrupt
from holdfast.positions import ROUND, SourcePositions
from holdfast.store import sealed
from holdfast.store.increments import Increments

UNIT = ROUND
HALF = UNIT >> 1
"""A segment has fewer entries; 2**18 rounds are below 2**63."""

_WHAT = "the log of what was read up to a time"


class OwedRange(NamedTuple):
    """Entries of which the rows from a time on were left."""

    first: int
    last: int
    since: int


class RangeRead(NamedTuple):
    """Entries of a segment as they are read once: at which position, and the rows of which time; None: no limit."""

    first: int
    last: int
    position: int
    since: int | None = None
    before: int | None = None


class Round(NamedTuple):
    """What one run, or some with the same time, reads of a segment.

    Parameters
    ----------
    number : int
        It grows.
    until : int, optional
        The time of the run; None: it has no end.
    at : int
        The position at which the round begins, of an earlier one.
    pieces : sequence of OwedRange
        What it reads of what was left, below its time.
    limits : sequence of (int, bool)
        From which entry on the rest is limited, or not.
    """

    number: int
    until: int | None
    at: int
    pieces: Sequence[OwedRange]
    limits: Sequence[tuple[int, bool]]

    @property
    def owed_count(self) -> int:
        """The entries of all pieces."""
        return sum(last - first for first, last, _ in self.pieces)

    def pieces_between(self, first: int, last: int) -> Iterator[RangeRead]:
        """Yield what is read between two places among the pieces."""
        begin = 0
        for piece in self.pieces:
            size = piece.last - piece.first
            low, high = max(first - begin, 0), min(last - begin, size)
            if low < high:
                place = self.number * UNIT + begin + low
                yield RangeRead(piece.first + low, piece.first + high, place, piece.since, self.until)
            begin += size

    def entries_between(self, first: int, last: int) -> Iterator[RangeRead]:
        """Yield what is read of new entries, as it is limited."""
        edges = [*self.limits, (last, False)]
        for (begin, is_limited), (end, _) in pairwise(edges):
            low, high = max(first, begin), min(last, end)
            if low < high:
                yield RangeRead(low, high, entry_position(self.number, low), None, self.until if is_limited else None)


_FIRST = Round(0, None, 0, (), ((0, False),))
"""What is read before a time is set: everything, under the source's own positions."""


def round_of(position: int) -> int:
    """Return the number of the round that a position is of.

    Examples
    --------
    >>> round_of(7), round_of(entry_position(2, 7))
    (0, 2)
    """
    return position // UNIT


def entry_position(number: int, entry: int) -> int:
    """Return the position of a new entry in a round."""
    return entry + (number * UNIT + HALF if number else 0)


def entry_of(position: int) -> int | None:
    """Return the new entry at a position; None where it is among what was left.

    Examples
    --------
    >>> entry_of(7), entry_of(entry_position(2, 7)), entry_of(2 * UNIT + 7)
    (7, 7, None)
    """
    number, place = divmod(position, UNIT)
    if number == 0:
        return position
    return place - HALF if place >= HALF else None


def own_positions(positions: SourcePositions) -> dict[str, int]:
    """Return the source's own positions, of the segments where they show them."""
    found = {segment: entry_of(int(at)) for segment, at in positions.items() if not segment.startswith("@")}
    return {segment: at for segment, at in found.items() if at is not None}


class RoundsLog:
    """The rounds of a source, as far as this process has read them.

    Parameters
    ----------
    workspace : str
        The source's directory; the log is a directory in it, created by the first round.
    former : str
        Of a source that is divided: the segment that it had before.  Its rounds hold for a segment that goes on from
        where it was; empty where there is none.
    is_told : bool
        Whether sinks know it too: then files are enough, also of a checkpoint in an object store.
    """

    def __init__(self, workspace: str, former: str = "", *, is_told: bool = True) -> None:
        self.directory = os.path.join(workspace, "until")
        self.former = former
        self.owed_by = ""
        """By which timestamp rows are left."""
        self.ends: dict[int, dict[str, int]] = {}
        """Time -> segment -> where runs up to that time end."""
        self._rounds: dict[str, dict[int, Round]] = {}
        self._increments: Increments | None = None
        self._is_told = is_told
        self._is_prepared = False
        self.refresh()

    @property
    def is_new(self) -> bool:
        """Whether the source was never read up to a time."""
        return not self._rounds and not self.ends

    @property
    def next_number(self) -> int:
        """The number of the next round."""
        return 1 + max((number for rounds in self._rounds.values() for number in rounds), default=0)

    def refresh(self) -> None:
        """Read what others have added."""
        if self._increments is None and os.path.isdir(self.directory):
            self._increments = Increments(self.directory, _WHAT, is_read_only=True, is_told=self._is_told)
        for number, payload in self._increments.read_on() if self._increments is not None else ():
            try:
                self._apply(json.loads(payload))
            except (ValueError, KeyError, TypeError) as error:
                raise Corrupt(
                    f"increment {number} of {_WHAT} {self.directory} cannot be read: {error}.",
                    why="what a run up to a time has left for later is in it.",
                    do="restore the directory from a backup; of a topic: remove it and start again, the sinks have it.",
                    participant=self.directory,
                ) from error

    def append(
        self, until: int | None, by: str, what: Callable[[], tuple[dict[str, Any], dict[str, int] | None]]
    ) -> None:
        """Add rounds and ends.  Durable when it returns.

        Parameters
        ----------
        until : int, optional
            The time of the run.
        by : str
            By which timestamp rows are left.
        what : callable
            Returns what is still lacking: segment -> round, and the ends.  Asked again when another process, which
            reads other segments, was faster.
        """
        while True:
            rounds, ends = what()
            if not rounds and ends is None:
                return
            if not self._is_prepared:  # also of a log that is there: who restored it may have left out what is empty
                sealed.prepare(self.directory)
                self._is_prepared = True
            if self._increments is None:
                self._increments = Increments(self.directory, _WHAT, is_read_only=True, is_told=self._is_told)
            said = {"number": self.next_number, "until": until, "by": by, "rounds": rounds, "ends": ends}
            if self._increments.put(json.dumps(said, separators=(",", ":")).encode()):
                self._apply(json.loads(json.dumps(said)))
                return
            self.refresh()

    def round(self, segment: str, number: int) -> Round | None:
        """Return a round of a segment; None where it is not known."""
        if number == 0:
            return _FIRST
        return self._of(segment, number)

    def latest(self, segment: str) -> Round:
        """Return the last round of a segment."""
        known = self._all_of(segment)
        return known[max(known)] if known else _FIRST

    def following(self, segment: str, position: int, until: int | None) -> Round | None:
        """Return the round of a run with this time that goes on from a position, if there is one.

        It is that of the position, or begins exactly there: what lies between a position and a round that begins later
        is read up to other times, and as no limit of an epoch knows.
        """
        here = self._known(segment, round_of(position))
        if here.until == until:
            return here
        newest_first = sorted(self._all_of(segment).items(), reverse=True)
        return next((of for _, of in newest_first if of.until == until and of.at == position), None)

    def begin(self, segment: str, number: int) -> int:
        """Return the first position of a round."""
        found = self._known(segment, number)
        return number * UNIT if found.pieces else entry_position(number, self.entry_at(segment, found.at))

    def entry_at(self, segment: str, position: int) -> int:
        """Return the new entry that is read next at a position."""
        found = entry_of(position)
        return self.entry_at(segment, self._known(segment, round_of(position)).at) if found is None else found

    def owed_left(self, segment: str, position: int) -> int:
        """Return how many entries are left at a position of what its round reads of what was left."""
        if entry_of(position) is not None:
            return 0
        return self._known(segment, round_of(position)).owed_count - position % UNIT

    def between(self, segment: str, start: int, end: int) -> Iterator[RangeRead]:
        """Yield what is read of a segment between two positions, in order."""
        for number, first, last in self._way(segment, end, start):
            low = max(first, start)
            if low < last:
                yield from self._part(segment, number, low, last)

    def owed_ranges(self, segment: str, position: int) -> list[OwedRange]:
        """Return what was left of a segment where it was read up to a position."""
        found: list[OwedRange] = []
        for read in self.between(segment, 0, position):
            if read.since is not None:
                found = list(_without(found, read))
            elif read.before is not None:
                found.append(OwedRange(read.first, read.last, read.before))
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _all_of(self, segment: str) -> dict[int, Round]:
        return {**self._rounds.get(self.former, {}), **self._rounds.get(segment, {})}

    def _of(self, segment: str, number: int) -> Round | None:
        of_former = self._rounds.get(self.former, {}).get(number)
        return self._rounds.get(segment, {}).get(number, of_former)

    def _known(self, segment: str, number: int) -> Round:
        found = self.round(segment, number)
        if found is None:
            self.refresh()
            found = self.round(segment, number)
        if found is None:
            raise Corrupt(
                f"{_WHAT}, {self.directory!r}, has no round {number} of segment {segment!r}, and a position is of it.",
                why="what a run up to a time has left for later is in it.",
                do="restore the directory from a backup; of a topic: remove it and start again, the sinks have it.",
                participant=self.directory,
            )
        return found

    def _way(self, segment: str, position: int, start: int = 0) -> list[tuple[int, int, int]]:
        """Return which positions of which rounds lead to a position, in order; those before a start may be left out."""
        found: list[tuple[int, int, int]] = []
        while (number := round_of(position)) != 0 and position > start:
            found.append((number, self.begin(segment, number), position))
            position = self._known(segment, number).at
        return [*([] if round_of(position) else [(0, 0, position)]), *reversed(found)]

    def _part(self, segment: str, number: int, first: int, last: int) -> Iterator[RangeRead]:
        of = self._known(segment, number)
        if number == 0:
            yield from of.entries_between(first, last)
            return
        here = number * UNIT
        yield from of.pieces_between(first - here, min(last - here, of.owed_count))
        if last - here > HALF:
            low = self.entry_at(segment, of.at) if first - here < HALF else first - here - HALF
            yield from of.entries_between(low, last - here - HALF)

    def _apply(self, increment: Mapping[str, Any]) -> None:
        until, self.owed_by = increment["until"], increment["by"]
        for segment, (at, pieces, limits) in increment["rounds"].items():
            of = self._rounds.setdefault(segment, {})
            owed = tuple(OwedRange(*piece) for piece in pieces)
            limited = tuple((int(first), bool(is_limited)) for first, is_limited in limits)
            of[increment["number"]] = Round(increment["number"], until, at, owed, limited)
        if increment["ends"] is not None:
            # Whoever was first has the last word: a run that goes on ends where it was meant to.
            self.ends[until] = {**increment["ends"], **self.ends.get(until, {})}


def _without(owed: Sequence[OwedRange], read: RangeRead) -> Iterator[OwedRange]:
    """Yield what is left of ranges when some of it was read."""
    for one in owed:
        low, high = max(one.first, read.first), min(one.last, read.last)
        if low >= high:
            yield one
            continue
        if one.first < low:
            yield one._replace(last=low)
        if read.before is not None:
            yield OwedRange(low, high, read.before)
        if high < one.last:
            yield one._replace(first=high)


def obstacle(log: RoundsLog, positions: SourcePositions) -> str:
    """Return whether the log is lost that says what positions mean; empty when it is not."""
    for segment, at in positions.items():
        if not segment.startswith("@") and log.round(segment, round_of(int(at))) is None:
            return f"{_WHAT}, {log.directory!r}, has no round {round_of(int(at))}."
    return ""
