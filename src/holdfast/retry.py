"""Bounded retry: attempts, waits between them, the one loop that repeats a call, and a store that is retried.

A coordinator retries only ``Unavailable``, because only it promises that nothing was changed.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, InDoubt, Unavailable
from holdfast.ports import Clock, Store

T = TypeVar("T")

UNLIMITED = sys.maxsize
"""As many attempts as fit in the time."""


@dataclass(frozen=True)
class RetryPolicy:
    """How a transient failure is tried again.

    Parameters
    ----------
    attempts : int
        In all, the first included.
    first_s, cap_s : float
        Wait before the second attempt, and the longest; doubled in between.
    jitter : float
        Share of each wait that is random.  Small on purpose: full jitter (0 to the whole wait) spreads better, but ten
        attempts would then last 38 s on average instead of 70, and a database that is away for a minute would stop the
        run.
    seed : int, optional
        Of the jitter; None for a random one.

    Examples
    --------
    >>> policy, chance = RetryPolicy(), random.Random(0)
    >>> sum(policy.wait_s(attempt, chance) for attempt in range(1, policy.attempts)) > 60
    True
    """

    attempts: int = 10
    first_s: float = 0.5
    cap_s: float = 15.0
    jitter: float = 0.15
    seed: int | None = None

    def wait_s(self, attempt: int, random_: random.Random) -> float:
        """Return the wait after a failed attempt (the first is 1), seconds."""
        whole = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 60))
        return float(whole * (1 - self.jitter * random_.random()))

    def call(self, call: Callable[[], T], is_transient: Callable[[Exception], bool], timeout_s: float = math.inf) -> T:
        """Call until it succeeds; raise what is not transient, and the failure that leaves no attempt or no time."""
        random_, end_s = random.Random(self.seed), time.monotonic() + timeout_s

        def may_repeat(attempt: int, error: Exception) -> bool:
            if attempt >= self.attempts or not is_transient(error) or time.monotonic() >= end_s:
                return False
            time.sleep(self.wait_s(attempt, random_))
            return True

        return _repeat(call, may_repeat)


class Retrier:
    """A :class:`RetryPolicy` at work: with a clock, a random number generator, and somebody who is told.

    Parameters
    ----------
    on_retry : callable
        Called before each wait with what is being done, the attempt that failed, and the error.
    may_go_on : callable
        Asked before each wait; False ends the retrying (the run is being closed).
    """

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock,
        *,
        on_retry: Callable[[str, int, HoldfastError], None],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._on_retry = on_retry
        self._may_go_on = may_go_on
        self._random = random.Random(policy.seed)
        self._waiting: dict[object, str] = {}

    @property
    def waits_for(self) -> str:
        """What failed and is tried again, in one line; empty when nothing is.  Of several threads the first one's."""
        return next(iter([*self._waiting.values()]), "")

    def call(self, call: Callable[[], T], doing: str) -> T:
        """Call until it does not raise ``Unavailable``; raise the last one after the last attempt."""
        asked = object()
        try:
            return _repeat(
                call,
                lambda attempt, error: isinstance(error, Unavailable) and self._wait(asked, attempt, doing, error),
            )
        finally:
            self._waiting.pop(asked, None)

    def wait_after(self, attempt: int, doing: str, error: HoldfastError) -> bool:
        """Wait after a failed attempt (the first is 1) of what :meth:`call` cannot repeat; False after the last one."""
        asked = object()
        try:
            return self._wait(asked, attempt, doing, error)
        finally:
            self._waiting.pop(asked, None)

    def _wait(self, asked: object, attempt: int, doing: str, error: HoldfastError) -> bool:
        if attempt >= self.policy.attempts or not self._may_go_on():
            return False
        self._on_retry(doing, attempt, error)
        self._waiting[asked] = one_line(error)
        self._clock.sleep_s(self.policy.wait_s(attempt, self._random))
        return True


def _repeat(call: Callable[[], T], may_repeat: Callable[[int, Exception], bool]) -> T:
    """Call until it succeeds; ``may_repeat`` is asked after each failed attempt (the first is 1), and waits."""
    attempt = 1
    while True:
        try:
            return call()
        except Exception as error:
            if not may_repeat(attempt, error):
                raise
        attempt += 1


def one_line(error: HoldfastError) -> str:
    """Return what happened and why."""
    return " ".join(f"{error.what} {error.why}".split())


class RetriedStore:
    """A store whose operations are tried again, and whose lost replies are looked up."""

    def __init__(self, store: Store, retrier: Retrier) -> None:
        self._store = store
        self._retrier = retrier

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        return self._call(lambda: self._store.get(key), f"read {key}")

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object.  Writing the same bytes twice is the same, so a lost reply is no question."""

        def put() -> None:
            try:
                self._store.put(key, data)
            except InDoubt as doubt:  # the connection broke before the reply
                raise _again(doubt) from doubt

        self._call(put, f"write {key}")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object.  After a lost reply the store is asked: the bytes there are ours, or they are not."""
        lost_reply = False

        def put() -> bool:
            nonlocal lost_reply
            try:
                won = self._store.put_if_absent(key, data)
            except InDoubt as doubt:  # the connection broke before the reply
                lost_reply = True
                raise _again(doubt) from doubt
            # Not won, after a broken connection: our own first try may have succeeded.
            return won or (lost_reply and self._store.get(key) == data)

        return self._call(put, f"write {key}")

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""

        def delete() -> None:
            try:
                self._store.delete(key)
            except InDoubt as doubt:  # the connection broke before the reply
                raise _again(doubt) from doubt

        self._call(delete, f"delete {key}")

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return self._call(lambda: self._store.keys(prefix), f"list {prefix}")

    def _call(self, call: Callable[[], T], doing: str) -> T:
        return self._retrier.call(call, f"{doing} in the checkpoint")


def _again(doubt: InDoubt) -> Unavailable:
    fields: dict[str, Any] = {"why": doubt.why, "do": doubt.do, "participant": doubt.participant}
    return Unavailable(doubt.what, **fields)
