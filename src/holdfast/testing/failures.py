"""What a system that is there can do wrong: not answer, lose the answer, not know."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar

from holdfast.errors import InDoubt, Unavailable

T = TypeVar("T")


class Failure(Enum):
    """One failure of one call.  The value is the definition."""

    UNAVAILABLE = "it does not answer, and nothing is changed"
    BREAK_BEFORE = "the connection breaks before the request arrives: InDoubt, and nothing is changed"
    BREAK_AFTER = "the connection breaks after the work is done, before the reply: InDoubt, and everything is changed"
    UNKNOWN = "it answers that it cannot tell (``outcome`` only)"


class Failures(Protocol):
    """Says how a call fails; asked once per call."""

    def __call__(self, participant: str, call: str) -> Failure | None:
        """Return the failure of this call of this participant, or None."""


class NoFailures:
    """Everything answers."""

    def __call__(self, participant: str, call: str) -> Failure | None:
        """Return None."""
        return None


class ScriptedFailures:
    """Fails the calls that were added, once each, in that order.

    Examples
    --------
    >>> failures = ScriptedFailures()
    >>> failures.add("table", "publish", Failure.BREAK_AFTER)
    >>> failures("table", "publish").name, failures("table", "publish")
    ('BREAK_AFTER', None)
    """

    def __init__(self) -> None:
        self._script: dict[tuple[str, str], list[Failure]] = {}

    def add(self, participant: str, call: str, failure: Failure, times: int = 1) -> None:
        """Fail the next ``times`` such calls."""
        self._script.setdefault((participant, call), []).extend([failure] * times)

    def __call__(self, participant: str, call: str) -> Failure | None:
        """Return the next scripted failure of this call."""
        script = self._script.get((participant, call))
        return script.pop(0) if script else None


_POSSIBLE = {
    "publish": (Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER),
    "outcome": (Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.UNKNOWN),
    "open": (Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER),
    "put": (Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER),
    "put_if_absent": (Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER),
}


class SeededFailures:
    """Fails a share of all calls, chosen by a seeded generator."""

    def __init__(self, random_: random.Random, rate: float) -> None:
        self._random = random_
        self.rate = rate

    def __call__(self, participant: str, call: str) -> Failure | None:
        """Return a failure that is possible for this call, now and then."""
        if self._random.random() >= self.rate:
            return None
        return self._random.choice(_POSSIBLE.get(call, (Failure.UNAVAILABLE,)))


def failing(failure: Failure | None, participant: str, call: str, work: Callable[[], T]) -> T:
    """Do the work of a call, or as much of it as the failure lets through."""
    if failure is Failure.UNAVAILABLE:
        raise Unavailable(f"{participant!r} does not answer ({call}).", participant=participant)
    if failure is Failure.BREAK_BEFORE:
        raise InDoubt(f"the connection to {participant!r} broke ({call}).", participant=participant)
    result = work()
    if failure is Failure.BREAK_AFTER:
        raise InDoubt(f"the connection to {participant!r} broke ({call}).", participant=participant)
    return result
