"""How long each sink, and the ledger, has been busy: for the engine's thread, and for the commit threads beside it.

Time that the engine's thread is busy holds epochs up.  That of a commit thread does so only while the engine waits for
it; how long that is the engine's thread alone can tell.  What waits between attempts is busy, too: it holds up as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.commit.commit_thread import is_commit_thread
from holdfast.errors import invariant

LEDGER = "(ledger)"
"""The name of the ledger: no sink is called so."""


@dataclass(frozen=True)
class Busy:
    """Seconds since the start of a run, of what is at work now as well.

    Parameters
    ----------
    here, beside : mapping of str to float
        Sink, or the ledger -> seconds of the engine's thread; of the commit threads.
    """

    here: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: Busy) -> Busy:
        """Return what has come since then.

        Examples
        --------
        >>> Busy({"table": 3.0}, {"log": 1.0}).since(Busy({"table": 1.0}))
        Busy(here={'table': 2.0}, beside={'log': 1.0})
        """
        here = {name: seconds - before.here.get(name, 0.0) for name, seconds in self.here.items()}
        return Busy(here, {name: seconds - before.beside.get(name, 0.0) for name, seconds in self.beside.items()})


class BusyTimes:
    """Counts how long each name is busy.  Any thread may time, and ask.

    Parameters
    ----------
    now_s : callable, optional
        Time that only grows, seconds; that of the process where it is omitted.
    """

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s or time.perf_counter
        self._lock = threading.Lock()
        self._done: dict[tuple[str, bool], float] = {}
        self._began: dict[tuple[str, bool], float] = {}

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Count the time of the block; within a block of the same name it counts once."""
        key = name, is_commit_thread()
        if key in self._began:
            yield
            return
        with self._lock:
            self._began[key] = self._now_s()
        try:
            yield
        finally:
            with self._lock:
                took = self._now_s() - self._began.pop(key)
                invariant(took >= 0, f"{name!r} was busy for {took} s.", why="the clock only grows.")
                self._done[key] = self._done.get(key, 0.0) + took

    def seconds(self) -> Busy:
        """Return all times so far."""
        with self._lock:
            now, total = self._now_s(), dict(self._done)
            for key, began in self._began.items():
                total[key] = total.get(key, 0.0) + now - began
        sides: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for (name, is_beside), seconds in total.items():
            sides[is_beside][name] = seconds
        return Busy(*sides)
