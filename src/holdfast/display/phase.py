"""What a start is doing, said while it does it: a start blocks, so there is no run yet that could be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("holdfast_phase", default=None)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each phase that this thread reaches inside of the block.

    Examples
    --------
    >>> with heard_by(print):
    ...     say("starting Spark")
    starting Spark
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def say(phase: str) -> None:
    """Say what is done from now on; nobody may be listening."""
    listener = _listener.get()
    if listener is not None:
        listener(phase)
