"""Windows: how an aggregation cuts the rows of a key into groups.

All are frozen values that only say what is wanted; :mod:`holdfast.operators.aggregate.cutting` does the cutting.  A
duration is a text with a unit (``"1 hour"``) where the timestamp is a TIMESTAMP, and a whole number of the column's
ticks where it is a BIGINT.  Windows are half open: a row at the end of one belongs to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from holdfast.errors import InvalidPipeline
from holdfast.types import units

Duration = str | int


@dataclass(frozen=True)
class Tumbling:
    """Windows of one length, one after the other."""

    size: Duration
    offset: Duration = 0
    kind: ClassVar[str] = "tumbling"


@dataclass(frozen=True)
class Sliding:
    """Windows of one length that begin every so often: a row belongs to each that covers it."""

    size: Duration
    every: Duration
    offset: Duration = 0
    kind: ClassVar[str] = "sliding"


@dataclass(frozen=True)
class Session:
    """Rows of a key between two silences."""

    gap: Duration
    kind: ClassVar[str] = "session"


@dataclass(frozen=True)
class CountWindow:
    """A fixed number of rows of a key, in order of arrival."""

    size: int
    kind: ClassVar[str] = "count_window"


@dataclass(frozen=True)
class Timer:
    """Rows that arrive in one period of logged batch time."""

    period: str
    count_trigger: int | None = None
    kind: ClassVar[str] = "timer"


@dataclass(frozen=True)
class Total:
    """All rows of a key."""

    kind: ClassVar[str] = "total"


Window = Tumbling | Sliding | Session | CountWindow | Timer | Total


def arguments(window: Window) -> dict[str, Any]:
    """Return kind and measures of a window, for display and fingerprint."""
    fields: Mapping[str, Any] = vars(window)
    return {"kind": window.kind} | {name: value for name, value in fields.items() if value is not None}


def tumbling(size: Duration, *, offset: Duration = 0) -> Tumbling:
    """Return windows of one length, one after the other.

    Parameters
    ----------
    size : str or int
        Length: ``"1 hour"``, or ticks of a BIGINT timestamp.  At least one tick.
    offset : str or int
        Where a window begins, counted from 1970-01-01 UTC (tick 0); for instance ``"6 h"`` for days that begin at six.

    Raises
    ------
    InvalidPipeline
        If a duration cannot be read or is not positive.

    Examples
    --------
    >>> tumbling("1 hour").size
    '1 hour'
    """
    _positive(size, "size")
    _duration(offset, "offset")
    return Tumbling(size, offset)


def sliding(size: Duration, every: Duration, *, offset: Duration = 0) -> Sliding:
    """Return windows of ``size`` that begin every ``every``.

    Parameters
    ----------
    size, every : str or int
        Length, and distance from one beginning to the next; ``every`` is at most ``size``: no row falls between.
    offset : str or int
        Where a window begins, counted from 1970-01-01 UTC (tick 0).

    Raises
    ------
    InvalidPipeline
        If a duration cannot be read or is not positive, or ``every`` is longer than ``size``.

    Notes
    -----
    State and output hold up to ``size / every`` windows per key and time.

    Examples
    --------
    >>> sliding("1 hour", "15 min").every
    '15 min'
    """
    if _positive(every, "every") > _positive(size, "size"):
        raise InvalidPipeline(
            f"every={every!r} is longer than size={size!r}.",
            why="rows between two windows would belong to none.",
            do='write for instance hf.sliding("1 hour", "15 min"), or hf.tumbling(...) after a filter.',
        )
    if isinstance(every, str) != isinstance(size, str):
        raise InvalidPipeline(
            f"size={size!r} and every={every!r} are not in one unit.",
            why="a text is a time, a whole number counts ticks of a BIGINT timestamp.",
            do='write both the same way, for instance hf.sliding("1 hour", "15 min").',
        )
    _duration(offset, "offset")
    return Sliding(size, every, offset)


def session(gap: Duration) -> Session:
    """Return windows that end where a key is silent for ``gap``.

    Parameters
    ----------
    gap : str or int
        Silence that ends a session: a row ``gap`` or more after the one before begins a new session.

    Notes
    -----
    A session's window reaches from its first row to ``gap`` after its last, exclusive.

    Examples
    --------
    >>> session("30 min").gap
    '30 min'
    """
    _positive(gap, "gap")
    return Session(gap)


def count_window(size: int) -> CountWindow:
    """Return windows of ``size`` rows of a key, in order of arrival.

    Parameters
    ----------
    size : int
        Rows in a window, at least 1.  The last window of an ended input may hold fewer.

    Examples
    --------
    >>> count_window(100).size
    100
    """
    _count(size, "size")
    return CountWindow(size)


def timer(period: str, *, count_trigger: int | None = None) -> Timer:
    """Return windows by the time at which rows arrive: the batch time that Spark logged for their epoch.

    Parameters
    ----------
    period : str
        Length of a period, for instance ``"10 s"``; periods are counted from 1970-01-01 UTC.
    count_trigger : int, optional
        A key's window ends early when it has this many rows; later rows of the period open the next window.

    Notes
    -----
    A replayed epoch has the batch time it had, so a recovered run produces the same windows.  But which rows share a
    window depends on when they arrived: a run over old data, which is read much faster, makes larger windows.
    ``count_trigger`` bounds their size in both.  Where that matters use :func:`tumbling`, which uses event time
    alone.

    Examples
    --------
    >>> timer("10 s", count_trigger=1000).count_trigger
    1000
    """
    if not isinstance(period, str):
        raise InvalidPipeline(f"period={period!r} is not a time.", do='write a number with a unit: hf.timer("10 s").')
    _positive(period, "period")
    if count_trigger is not None:
        _count(count_trigger, "count_trigger")
    return Timer(period, count_trigger)


def total() -> Total:
    """Return one window over all rows of a key: it settles when the input ends.

    Examples
    --------
    >>> total()
    Total()
    """
    return Total()


def ticks(duration: Duration, *, is_timestamp: bool, argument: str) -> int:
    """Return a duration in ticks of a timestamp column.

    Parameters
    ----------
    duration : str or int
        As the user wrote it.  A zero may be written as 0 for either kind.
    is_timestamp : bool
        Whether the column is a TIMESTAMP (microseconds) and not a BIGINT.
    argument : str
        The argument's name, for the error.

    Raises
    ------
    InvalidPipeline
        If a text is given for a BIGINT timestamp or a number for a TIMESTAMP.

    Examples
    --------
    >>> ticks("1 s", is_timestamp=True, argument="size")
    1000000
    """
    if duration == 0 or isinstance(duration, str) == is_timestamp:
        return _duration(duration, argument)
    if is_timestamp:
        why, do = "the timestamp is a TIMESTAMP.", f'write a number with a unit: {argument}="1 hour".'
    else:
        why, do = "the timestamp is a BIGINT, whose unit is yours.", f"write a number of its ticks: {argument}=1000."
    raise InvalidPipeline(f"{argument}={duration!r} has the wrong unit.", why=why, do=do)


def _duration(value: Duration, argument: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return units.duration_us(cast(str, value), argument=argument)  # which says what is wrong with anything else


def _positive(value: Duration, argument: str) -> int:
    length = _duration(value, argument)
    if length <= 0:
        raise InvalidPipeline(
            f"{argument}={value!r} is not positive.",
            why="a window must have a length.",
            do=f'write for instance {argument}="1 hour".',
        )
    return length


def _count(value: int, argument: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidPipeline(
            f"{argument}={value!r} is not a number of rows.", do=f"write a whole number from 1: {argument}=1000."
        )
