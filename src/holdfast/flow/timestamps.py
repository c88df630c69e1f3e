"""Time values of packets and bounds: 64-bit whole numbers, with some special ones at both ends.

From low to high::

    UNSET < UNSTARTED < PRE_STREAM < MIN ... MAX < POST_STREAM < ONE_OVER_POST_STREAM < DONE

A packet carries ``PRE_STREAM``, ``MIN`` to ``MAX``, or ``POST_STREAM``.  What a number means is the graph's own
business: microseconds, or frames.

References
----------
MediaPipe, "Synchronization"; its ``framework/timestamp.h``.
"""

from __future__ import annotations

UNSET = -(1 << 63)
UNSTARTED = UNSET + 1
PRE_STREAM = UNSET + 2
"""Of a packet that comes before everything, and alone: a header."""

MIN = UNSET + 3
MAX = (1 << 63) - 4
POST_STREAM = MAX + 1
"""Of a packet that comes after everything, and alone: a summary."""

ONE_OVER_POST_STREAM = MAX + 2
DONE = (1 << 63) - 1
"""Bound of a stream that is closed."""

SPECIAL = {
    "UNSET": UNSET,
    "UNSTARTED": UNSTARTED,
    "PRE_STREAM": PRE_STREAM,
    "POST_STREAM": POST_STREAM,
    "ONE_OVER_POST_STREAM": ONE_OVER_POST_STREAM,
    "DONE": DONE,
}
_NAMES = {value: name for name, value in SPECIAL.items()}


def may_carry(t: int) -> bool:
    """Return whether a packet may have this time."""
    return PRE_STREAM <= t <= POST_STREAM


def after(t: int) -> int:
    """Return the bound that a packet at a time leaves: the lowest time of the next one.

    Examples
    --------
    >>> after(7), after(PRE_STREAM) == ONE_OVER_POST_STREAM, after(MAX) == ONE_OVER_POST_STREAM
    (8, True, True)
    """
    if MIN <= t < MAX:
        return t + 1
    return MIN if t < MIN and t != PRE_STREAM else ONE_OVER_POST_STREAM


def before(t: int) -> int:
    """Return the last time that a bound settles.

    Examples
    --------
    >>> before(7), before(DONE) == MAX, before(PRE_STREAM) == UNSTARTED, before(POST_STREAM) == UNSTARTED
    (6, True, True, True)
    """
    if MIN < t <= MAX:
        return t - 1
    return UNSTARTED if t <= MIN or t == POST_STREAM else MAX


def shift(t: int, offset: int) -> int:
    """Return a time moved by an offset, within ``MIN`` and ``MAX``; a special one stays.

    Examples
    --------
    >>> shift(7, -2), shift(MAX - 1, 5) == MAX, shift(DONE, -3) == DONE
    (5, True, True)
    """
    return min(max(t + offset, MIN), MAX) if MIN <= t <= MAX else t


def text(t: int) -> str:
    """Return a time for messages.

    Examples
    --------
    >>> text(7), text(DONE)
    ('7', 'DONE')
    """
    return _NAMES.get(t) or ("MIN" if t == MIN else "MAX" if t == MAX else str(t))
