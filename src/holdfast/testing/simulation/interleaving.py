"""Several drivers at once, one durable write at a time, in an order that a seed chooses.

Each driver runs in a thread of its own, but only the one that holds the baton moves; at every durable write the baton
may go to another.  So a run is as deterministic as one thread, and every interleaving of durable writes can happen.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """How one driver ended: with an error, or (None) in good order."""

    error: BaseException | None


class Baton:
    """Lets exactly one of several threads run.

    Parameters
    ----------
    random_ : random.Random
        Chooses who runs next.
    """

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._turns: dict[str, threading.Semaphore] = {}
        self._current = ""
        self._all_done = threading.Event()

    def switch(self, name: str) -> None:
        """Give the turn to a driver, perhaps this one, and wait for the next turn; called by driver ``name``."""
        if self._current != name:
            return  # not one of ours: the test's own thread
        self._pass_on()
        self._turns[name].acquire()

    def run(self, drivers: Mapping[str, Callable[[], None]]) -> dict[str, Ending]:
        """Run every driver to its end; returns how each ended."""
        endings: dict[str, Ending] = {}
        self._turns = {name: threading.Semaphore(0) for name in drivers}
        threads = [
            threading.Thread(target=self._drive, args=(name, drive, endings), name=name, daemon=True)
            for name, drive in drivers.items()
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        self._all_done.wait()
        for thread in threads:
            thread.join()
        return {name: endings[name] for name in drivers}

    def _drive(self, name: str, drive: Callable[[], None], endings: dict[str, Ending]) -> None:
        self._turns[name].acquire()
        error: BaseException | None = None
        try:
            drive()
        except BaseException as failure:  # returned as the driver's ending
            error = failure
        endings[name] = Ending(error)
        del self._turns[name]
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._turns:
            self._all_done.set()
            return
        self._current = self._random.choice(sorted(self._turns))
        self._turns[self._current].release()
