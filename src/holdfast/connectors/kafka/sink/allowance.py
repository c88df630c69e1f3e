"""How many transactional ids a sink may use up: each is kept by its coordinator for a week after its last use.

Invariant: of any day not more than ``per_day`` and ``at_once`` together (design/0036, "Names").  What is spent comes
back evenly with time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PER_DAY = 100_000
"""700,000 in the week that an id is kept (``transactional.id.expiration.ms``): 256 MB, in the memory of all
coordinators together, at the 366 bytes that one was measured to take (Kafka 4.4)."""

AT_ONCE = 20_000
"""For the backlog of a first start: 20,000 tasks are more than a billion rows."""

DAY_S = 86_400.0


class NameAllowance:
    """What is left to one sink of one process.

    Parameters
    ----------
    per_day, at_once : int
        How many come back in a day, and how many there are at most: those of the beginning.
    now_s : callable
        Seconds that only grow.

    Examples
    --------
    >>> now = 0.0
    >>> left = NameAllowance(24, 2, lambda: now)
    >>> left.spend(2)
    >>> left.is_spent
    True
    >>> now = 3600.0
    >>> left.is_spent
    False
    """

    def __init__(
        self, per_day: int = PER_DAY, at_once: int = AT_ONCE, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_day = per_day
        self._at_once = at_once
        self._now_s = now_s
        self._left = float(at_once)
        self._at_s = now_s()

    @property
    def is_spent(self) -> bool:
        """Whether none is left now."""
        now_s = self._now_s()
        back = (now_s - self._at_s) * self._per_day / DAY_S
        self._left, self._at_s = min(self._at_once, self._left + back), now_s
        return self._left < 1

    def spend(self, count: int) -> None:
        """Take some; an epoch that has begun takes more than are left."""
        self._left -= count
