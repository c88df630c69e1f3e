"""Several requests at a time: what a store takes for each is mostly waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE = 8


def each(ask: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the answers, in the order of the items; an error comes in its place, when the others have ended.

    Examples
    --------
    >>> list(each(len, ["a", "bcd"]))
    [1, 3]
    """
    several = list(items)
    if len(several) == 1:
        yield ask(several[0])
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "holdfast-objects") as pool:
        yield from pool.map(ask, several)
