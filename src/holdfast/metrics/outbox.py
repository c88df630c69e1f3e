"""What is told to systems that watch: through a queue with an end, so that none of them ever holds a run up.

A thread sends.  What comes while the queue is full is dropped and counted, and so is what cannot be sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.masking import masked

log = logging.getLogger("holdfast.run")

MOST = 1_000
"""So many wait at most."""
PATIENCE_S = 5.0
"""So long the end of a run waits for what is not sent yet, at most."""

_T = TypeVar("_T")
_counts: Counter[str] = Counter()
_counting = threading.Lock()


def drops() -> dict[str, int]:
    """Return what this process has dropped since it began, by what it was; nothing of what it does not tell."""
    with _counting:
        return dict(_counts)


class Outbox(Generic[_T]):
    """Sends what it is given, in order, in a thread of its own.

    Parameters
    ----------
    what : str
        What is told, as the count of what is dropped names it.
    send : callable
        Sends one.  May take long, and raise anything.
    most : int
        How many wait at most.
    """

    def __init__(self, what: str, send: Callable[[_T], object], most: int = MOST) -> None:
        self._what, self._send, self._most = what, send, most
        self._waiting: deque[_T] = deque()
        self._changed = threading.Condition()
        self._is_sending = self._has_ended = self._has_failed = False
        with _counting:
            _counts[what] += 0
        threading.Thread(target=self._work, name=f"holdfast-{what}", daemon=True).start()

    def put(self, told: _T) -> None:
        """Give it one; returns at once."""
        with self._changed:
            is_full = self._has_ended or len(self._waiting) >= self._most
            if not is_full:
                self._waiting.append(told)
                self._changed.notify_all()
        if is_full:
            self._drop(1)

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Take nothing more; wait for what is not sent yet, and drop what is left then."""
        until_s = time.monotonic() + patience_s
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            while (self._waiting or self._is_sending) and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            left = len(self._waiting)
            self._waiting.clear()
        self._drop(left)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._has_ended:
                        return
                    self._changed.wait()
                told, self._is_sending = self._waiting.popleft(), True
            try:
                self._send(told)
                self._has_failed = False
            except Exception as error:  # of any kind: what watches never stops a run
                level = logging.DEBUG if self._has_failed else logging.WARNING
                log.log(level, "%s cannot be told, and the run goes on: %s", self._what, masked(str(error)))
                self._has_failed = True
                self._drop(1)

    def _drop(self, count: int) -> None:
        with _counting:
            _counts[self._what] += count
