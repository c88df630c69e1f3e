"""The bound of a source that reads growing partitions: what the times of their last messages promise together.

Within a partition times ascend, or are at most ``disorder`` below the highest before; so the last messages before a
position say what may still follow.  The bound of the source is the lowest of its partitions'.  One that has no message
yet holds nobody back.  A partition that has been silent for ``idle_after`` counts with the bound that was reached
*before* it was found silent once more: whatever comes of it was appended after that.

Decided where epochs are planned, by its clock.  The outcome is part of the positions, so a replay knows it without
asking anybody, and it never falls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
