"""A run looks at its own health now and then: what changes is logged, and told to the hook ``on_health``."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.health import Health
from holdfast.status import Status

LOOK_S = 5.0
"""How often a run looks at its own health."""

log = logging.getLogger("holdfast.run")


@dataclass
class HealthWatch:
    """Looks at the health of a run now and then; what changes is logged, and told.

    Parameters
    ----------
    tell : callable
        Receives the health when its reasons are others than before, numbers in them apart.
    now_s : callable
        A clock that never goes back, seconds.
    """

    tell: Callable[[Health], object]
    now_s: Callable[[], float] = time.monotonic
    _next_s: float = 0.0
    _known: tuple[str, ...] = ()

    def look_if_due(self, status: Callable[[], Status]) -> None:
        """Look, if that is due; raises nothing."""
        if self.now_s() < self._next_s:
            return
        self._next_s = self.now_s() + LOOK_S
        try:
            health = status().health
        except Exception:  # of any kind: the run goes on
            log.debug("no health", exc_info=True)
            return
        known = tuple(map(_without_numbers, health.reasons))
        if known == self._known:
            return
        for reason, kind in zip(health.reasons, known, strict=True):
            if kind not in self._known:
                log.warning("%s", reason)
        if not known:
            log.info("what was wrong with the run is not any more")
        self._known = known
        self.tell(health)


def _without_numbers(reason: str) -> str:
    """Return a reason as it is told from another one: with the numbers in names alone.

    Examples
    --------
    >>> _without_numbers("sink 'table2' lacks a row that is 1,071 s old, and 5 min are allowed.")
    "sink 'table2' lacks a row that is  s old, and  min are allowed."
    """
    return re.sub(r"('[^']*')|[0-9][0-9,.]*", lambda found: found[1] or "", reason)
