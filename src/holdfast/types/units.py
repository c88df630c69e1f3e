"""Quantities with their unit: durations and sizes as users write them.

Where a row goes, in a sink whose rows say so: checked before the epoch is decided, and refused here.

A decision cannot be taken back.  A destination that the target does not take would keep the epoch out of it for ever,
and one that is not the sink's would change what belongs to somebody else: so every sink asks for the destinations of
its rows when it stages or admits them, and goes to no other than those that it declares (design/0002, "Where a row
goes").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow, InvalidPipeline

_DURATION_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
}
_SIZE_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def duration_us(text: str, *, argument: str = "duration") -> int:
    """Return a duration such as ``"100 ms"`` in microseconds.

    Parameters
    ----------
    text : str
        A number and a unit: us, ms, s, min, h, d (or second(s), minute(s), hour(s), day(s)).
    argument : str
        The argument's name, for the error.

    Raises
    ------
    InvalidPipeline
        If the text is not a number with one of these units.

    Examples
    --------
    >>> duration_us("100 ms"), duration_us("1 hour")
    (100000, 3600000000)
    """
    return _quantity(text, _DURATION_US, argument, "100 ms", plural=True)


def duration_text(amount_us: int) -> str:
    """Return a duration as :func:`duration_us` reads it, exactly; one below zero with its sign before it.

    Examples
    --------
    >>> duration_text(-300_000_000), duration_text(1_500_000), duration_text(0)
    ('-5 min', '1500 ms', '0 s')
    """
    shown = {unit: _DURATION_US[unit] for unit in ("d", "h", "min", "s", "ms", "us")}
    unit = next(unit for unit, size in shown.items() if amount_us % size == 0) if amount_us else "s"
    return f"{amount_us // shown[unit]} {unit}"


def size_bytes(text: str, *, argument: str = "size") -> int:
    """Return a size such as ``"128 MB"`` in bytes (MB is 10**6, MiB is 2**20).

    Examples
    --------
    >>> size_bytes("128 MB"), size_bytes("4KiB")
    (128000000, 4096)
    """
    return _quantity(text, _SIZE_BYTES, argument, "128 MB", plural=False)


def _quantity(text: str, units: dict[str, int], argument: str, example: str, *, plural: bool) -> int:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    unit = match[2].lower() if match else ""
    if plural and unit not in units:
        unit = unit.removesuffix("s")
    if match is None or unit not in units:
        raise InvalidPipeline(
            f"{argument}={text!r} is not a number with a unit.",
            why=f"known units are {', '.join(units)}.",
            do=f'write for instance {argument}="{example}".',
        )
    return round(float(match[1]) * units[unit])


def time_us(time: str | datetime | int, *, argument: str) -> int:
    """Return a time in microseconds of Unix time; text is ISO 8601, without a zone it is UTC.

    Raises
    ------
    InvalidPipeline
        If it is not a time.

    Examples
    --------
    >>> time_us("1970-01-01T00:00:01Z", argument="at"), time_us("1970-01-01", argument="at"), time_us(7, argument="at")
    (1000000, 0, 7)
    """
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    try:
        moment = time if isinstance(time, datetime) else datetime.fromisoformat(time)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise InvalidPipeline(
            f"{argument}={time!r} is not a time.",
            why=f"{error}.",
            do=f'write ISO 8601 text, a datetime or microseconds: for instance {argument}="2026-01-01T06:00Z".',
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


_SHOWN = 60


def check_destinations(
    node: str, what: str, named: pa.Array, refusal: Callable[[Any], str | None], do: str
) -> None:  # fmt: skip
    """Raise :class:`BadRow` if a row names a destination that it cannot go to.

    Parameters
    ----------
    node : str
        Whose rows: the sink, and the column that names the destination.
    what : str
        What a destination is: "topic", "stream".
    named : pyarrow.Array
        Of each row the destination.
    refusal : callable
        Destination -> why no row may go there; None where rows may.  Asked once for each.
    do : str
        What to do about it.
    """
    try:
        names = pc.unique(named).to_pylist()
    except UnicodeDecodeError as error:
        raise refused_destination(node, what, error.object, "it is no text: not UTF-8", do) from error
    for name in names:
        if (why := refusal(name)) is not None:
            raise refused_destination(node, what, name, why, do)


def refused_destination(node: str, what: str, name: object, why: str, do: str) -> BadRow:
    """Return the error of a row that names a destination to which it cannot go."""
    is_long = isinstance(name, (str, bytes)) and len(name) > _SHOWN
    shown = f"{name[:_SHOWN]!r}..." if is_long else repr(name)  # type: ignore[index]
    return BadRow(f"{node}: a row cannot go to the {what} {shown}.", why=f"{why}.", do=do)
