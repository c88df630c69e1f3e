"""A clock that stands still until somebody waits."""

from __future__ import annotations


class SimulatedClock:
    """Clock time that only :meth:`sleep_s` and :meth:`advance_us` move.

    Parameters
    ----------
    start_us : int
        Microseconds of Unix time.

    Examples
    --------
    >>> clock = SimulatedClock(start_us=0)
    >>> clock.sleep_s(1.5)
    >>> clock.now_us(), clock.slept_s
    (1500000, 1.5)
    """

    def __init__(self, start_us: int = 1_000_000_000_000) -> None:
        self._now_us = start_us
        self.slept_s = 0.0

    def now_us(self) -> int:
        """Microseconds of Unix time."""
        return self._now_us

    def sleep_s(self, seconds: float) -> None:
        """Advance the clock."""
        self.slept_s += seconds
        self._now_us += round(seconds * 1e6)

    def advance_us(self, microseconds: int) -> None:
        """Advance the clock without counting it as waiting."""
        self._now_us += microseconds
