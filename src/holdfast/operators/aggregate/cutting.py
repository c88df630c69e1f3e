"""Cutting the rows of each key into windows, and which windows are final."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.operators.aggregate import window as windows
from holdfast.state.keys import Ints, coded_pairs, first_of
from holdfast.state.step import CLOSED, UNBOUNDED
from holdfast.state.timeline import bounds_before


@dataclass(frozen=True)
class WindowCut:
    """A window kind with its measures in ticks.

    Parameters
    ----------
    kind : str
        As in :mod:`holdfast.operators.aggregate.window`.
    size : int
        Length; gap of a session; rows of a count window; period of a timer, microseconds.
    every, offset : int
        Of tumbling and sliding windows.
    trigger : int
        Rows that end a timer's window; 0 for none.
    """

    kind: str
    size: int = 0
    every: int = 0
    offset: int = 0
    trigger: int = 0

    @property
    def by_time(self) -> bool:
        """Whether event time decides; else arrival does."""
        return self.kind in ("tumbling", "sliding", "session")

    @property
    def counts(self) -> bool:
        """Whether the number of a key's rows decides."""
        return self.kind == "count_window" or self.trigger > 0

    def period_of(self, batch_us: int) -> int:
        """Return the start of the timer's period of a batch time."""
        return batch_us // self.size * self.size


def cut_of(window: windows.Window, *, is_timestamp: bool) -> WindowCut:
    """Return a window with its measures in ticks of the timestamp column."""

    def ticks(value: windows.Duration, argument: str) -> int:
        return windows.ticks(value, is_timestamp=is_timestamp, argument=argument)

    match window:
        case windows.Tumbling(size, offset):
            length = ticks(size, "size")
            return WindowCut(window.kind, length, length, ticks(offset, "offset"))
        case windows.Sliding(size, every, offset):
            return WindowCut(window.kind, ticks(size, "size"), ticks(every, "every"), ticks(offset, "offset"))
        case windows.Session(gap):
            return WindowCut(window.kind, ticks(gap, "gap"))
        case windows.CountWindow(size):
            return WindowCut(window.kind, size)
        case windows.Timer(period, trigger):
            return WindowCut(
                window.kind, windows.ticks(period, is_timestamp=True, argument="period"), trigger=trigger or 0
            )
        case windows.Total():
            return WindowCut(window.kind)


@dataclass(frozen=True)
class Spans:
    """Groups of rows: each has a key and a span of time.

    Parameters
    ----------
    codes, starts, ends : ndarray of int64
        Of each group.
    """

    codes: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[Ints]:
        return iter((self.codes, self.starts, self.ends))

    def taken(self, rows: Ints) -> Spans:
        """Return some of them."""
        return Spans(self.codes[rows], self.starts[rows], self.ends[rows])


def grouped(cut: WindowCut, codes: Ints, ticks: Ints, ordinals: Ints, batch_us: int) -> tuple[Ints, Spans]:
    """Group rows that share all their windows.

    Parameters
    ----------
    cut : WindowCut
        The window.
    codes, ticks : ndarray of int64
        Key and time of each row; times may be zeros where event time does not decide.
    ordinals : ndarray of int64
        Of windows that count: number of each row among those of its key.
    batch_us : int
        Batch time.

    Returns
    -------
    groups : ndarray of int64
        For each row its group.
    spans : Spans
        Of the groups: of sliding windows the pane, of sessions what the epoch alone knows.
    """
    if cut.kind == "session":
        return _sessions(cut, codes, ticks)
    if cut.kind in ("tumbling", "sliding"):
        pane = math.gcd(cut.size, cut.every)
        numbers = (ticks - cut.offset) // pane
        groups, first = _pairs(codes, numbers)
        starts = numbers[first] * pane + cut.offset
        return groups, Spans(codes[first], starts, starts + pane)
    if cut.kind == "count_window":
        groups, first = coded_pairs(codes, ordinals // cut.size)
        starts = ordinals[first] // cut.size * cut.size
        return groups, Spans(codes[first], starts, starts + cut.size)
    if cut.kind == "timer":
        parts = ordinals // cut.trigger if cut.trigger else np.zeros(len(codes), np.int64)
        groups, first = coded_pairs(codes, parts)
        start = cut.period_of(batch_us)
        return groups, Spans(codes[first], start + parts[first], np.full(len(first), start + cut.size))
    groups, first = coded_pairs(codes, np.zeros(len(codes), np.int64))
    return groups, Spans(codes[first], np.zeros(len(first), np.int64), np.full(len(first), CLOSED))


def _pairs(codes: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """Number distinct pairs as :func:`coded_pairs` does, in any order; by counting where they are close together."""
    if not len(codes):
        return codes, codes
    low, size = int(numbers.min()), int(codes.max()) + 1
    width = int(numbers.max()) - low + 1
    if size * width > 4 * len(codes) + 1024:
        return coded_pairs(codes, numbers)
    cells = codes * width + (numbers - low)
    is_used = np.bincount(cells, minlength=size * width) > 0
    groups = (np.cumsum(is_used) - 1)[cells]
    return groups, first_of(groups, int(is_used.sum()))


def _sessions(cut: WindowCut, codes: Ints, ticks: Ints) -> tuple[Ints, Spans]:
    order = np.lexsort((ticks, codes))
    keys, times = codes[order], ticks[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] >= cut.size)
    groups = np.empty_like(codes)
    groups[order] = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.concatenate([first[1:], [len(order)]])[: len(first)] - 1
    return groups, Spans(keys[first], times[first], times[last] + cut.size)


def spread(cut: WindowCut, panes: Spans) -> tuple[Ints, Spans]:
    """Return for each window of each pane the pane and the window, ordered by pane."""
    if cut.kind != "sliding":
        return np.arange(len(panes)), panes
    count = -(-cut.size // cut.every)
    last = (panes.starts - cut.offset) // cut.every * cut.every + cut.offset
    starts = last[:, None] - np.arange(count - 1, -1, -1) * cut.every
    covers = starts + cut.size >= panes.ends[:, None]
    which = np.repeat(np.arange(len(panes)), count)[covers.ravel()]
    chosen = starts[covers]
    return which, Spans(panes.codes[which], chosen, chosen + cut.size)


def joined(cut: WindowCut, spans: Spans) -> tuple[Ints, Spans]:
    """Merge what is one window: equal spans of a key, or sessions of a key that overlap."""
    if cut.kind != "session":
        groups, first = coded_pairs(spans.codes, spans.starts)
        found = spans.taken(first)
        if (spans.ends != found.ends[groups]).any():  # the length has changed: one that was open holds what it held
            np.maximum.at(found.ends, groups, spans.ends)
        return groups, found
    order = np.lexsort((spans.starts, spans.codes))
    codes, starts, ends = (values[order] for values in spans)
    reached = bounds_before(codes, ends, np.full(len(order), UNBOUNDED))  # the last end of those of the key before
    begins = starts >= reached
    groups = np.empty_like(spans.codes)
    groups[order] = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.concatenate([first[1:], [len(order)]])[: len(first)] - 1
    return groups, Spans(codes[first], starts[first], np.maximum(reached, ends)[last])


def first_start(cut: WindowCut, bounds: Ints) -> Ints:
    """Return for each bound of the rows the lowest start that a window not yet final can have.

    Of windows by arrival nothing is known before they are closed; of sessions it is the bound itself, and the open
    sessions have to be examined as well.
    """
    if not cut.by_time:
        return np.where(bounds == CLOSED, CLOSED, UNBOUNDED)
    if cut.kind == "session":
        return bounds
    is_time = (bounds > UNBOUNDED + 2 * cut.size + abs(cut.offset)) & (bounds < CLOSED)
    safe = np.where(is_time, bounds, 0)
    starts = ((safe - cut.size - cut.offset) // cut.every + 1) * cut.every + cut.offset
    return np.where(is_time, starts, np.where(bounds == CLOSED, CLOSED, UNBOUNDED))
