"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """Clock time of this machine."""

    def now_us(self) -> int:
        """Microseconds of Unix time."""
        return time.time_ns() // 1000

    def sleep_s(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
