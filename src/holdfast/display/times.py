"""Times in readable form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(at_us: int, *, is_exact: bool = False) -> str:
    """Return microseconds of Unix time as people read them, in UTC; the number itself where it is no such time.

    Parameters
    ----------
    at_us : int
        The time.
    is_exact : bool
        Whether what is less than a second is shown, where there is any.

    Examples
    --------
    >>> utc(1_700_000_000_000_000), utc(1_700_000_000_000_001), utc(1_700_000_000_000_001, is_exact=True)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20Z', '2023-11-14T22:13:20.000001Z')
    """
    try:
        at = _EPOCH + timedelta(microseconds=at_us)
        shown = at.isoformat() if is_exact else at.isoformat(timespec="seconds")
        return shown.replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at_us)
