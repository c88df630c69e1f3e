"""Times in readable form."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(at_us: int) -> str:
    """Return microseconds of Unix time as people read them, in UTC; the number itself where it is no such time.

    Examples
    --------
    >>> utc(1_700_000_000_000_000)
    '2023-11-14T22:13:20Z'
    """
    try:
        return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(at_us)
