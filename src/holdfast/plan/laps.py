"""Where the time of an evaluation goes, node by node: laps of one thread, and how those of several are one epoch's.

A thread's time is cut into *laps*: each moment belongs to one name, so they add up to all of it, whatever calls what.
Names are those of nodes; :data:`OTHER` is what is no node's: rows on their way from one process to another, reports.
One look at the clock for each batch and node, and none for each row.

Work is done in *waves*, one after the other: all tasks that read, all tasks of a level.  The tasks of a wave work at
the same time; so it takes as long as the longest of them, and its nodes have their parts of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

OTHER = ""
"""The name of what is no node's."""

STATE = "(state)"
"""The name of the driver's write of an epoch's state."""

READING, STAGING, HERE = "read", "stage", "here"
"""Waves: the tasks that read; those that stage a pipeline's chunks; all of an epoch in one process."""

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """The time of the tasks of one wave.

    Parameters
    ----------
    nodes : mapping of str to int
        Node, or one of the other names -> nanoseconds of all tasks together.
    longest : int
        Nanoseconds of the task that took longest.

    Examples
    --------
    >>> Spent({"rows": 5, "sums": 2}, 7).beside(Spent({"sums": 4}, 4))
    Spent(nodes={'rows': 5, 'sums': 6}, longest=7)
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    longest: int = 0

    def beside(self, other: Spent) -> Spent:
        """Return both, of tasks that work at the same time."""
        names = {**self.nodes, **other.nodes}
        nodes = {name: self.nodes.get(name, 0) + other.nodes.get(name, 0) for name in names}
        return Spent(nodes, max(self.longest, other.longest))


Waves = Mapping[str, Spent]
"""Wave -> the time of its tasks."""


class Laps:
    """The time of one thread, cut into laps.

    Parameters
    ----------
    now_ns : callable, optional
        Time that only grows, nanoseconds; that of the process where it is omitted.

    Examples
    --------
    >>> ticks = iter((0, 10, 15))
    >>> laps = Laps(lambda: next(ticks))
    >>> laps.to("rows"), laps.to("sums")
    (None, 'rows')
    >>> laps.take()
    Spent(nodes={'rows': 10, 'sums': 5}, longest=15)
    """

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        self._now_ns = now_ns or time.perf_counter_ns
        self._spent: dict[str, int] = {}
        self._name: str | None = None
        self._since = 0

    def to(self, name: str | None) -> str | None:
        """End a lap, and begin one of this name; return the name of the one that ends.  None: it counts for nothing."""
        now = self._now_ns()
        before = self._name
        if before is not None:
            self._spent[before] = self._spent.get(before, 0) + now - self._since
        self._name, self._since = name, now
        return before

    def during(self, name: str | None, items: Iterable[T]) -> Iterator[T]:
        """Yield items; while each of them is waited for it is a lap of this name."""
        iterator = iter(items)
        while True:
            self.to(name)
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.to(OTHER)
            yield item

    def take(self) -> Spent:
        """End the last lap; return all since the last call."""
        self.to(None)
        spent, self._spent = self._spent, {}
        return Spent(spent, sum(spent.values()))


def side_by_side(waves: Iterable[Waves]) -> dict[str, Spent]:
    """Return the waves of tasks of one epoch."""
    found: dict[str, Spent] = {}
    for each in waves:
        for wave, spent in each.items():
            found[wave] = found[wave].beside(spent) if wave in found else spent
    return found


def parts_of(waves: Waves, whole: float) -> dict[str, float]:
    """Return which part of an evaluation each name has: they add up to the whole.

    Parameters
    ----------
    waves : mapping of str to Spent
        What its tasks measured.
    whole : float
        How long it took by the clock of the driver, nanoseconds.  What no task measured is of :data:`OTHER`: what Spark
        needs for its jobs, and what goes from one process to another.

    Examples
    --------
    >>> parts_of({"read": Spent({"rows": 12}, 6), "1": Spent({"sums": 2}, 2)}, 10)
    {'': 2.0, 'rows': 6.0, 'sums': 2.0}
    """
    measured = sum(spent.longest for spent in waves.values())
    scale = min(1.0, whole / measured) if measured else 0.0
    parts: dict[str, float] = {OTHER: whole - scale * measured}
    for spent in waves.values():
        total = sum(spent.nodes.values())
        for name, work in spent.nodes.items():
            parts[name] = parts.get(name, 0.0) + (scale * spent.longest * work / total if total else 0.0)
    return parts


def to_json(waves: Waves) -> dict[str, list[object]]:
    """Return waves as a JSON value."""
    return {wave: [spent.longest, dict(spent.nodes)] for wave, spent in waves.items()}


def from_json(value: Mapping[str, list[object]]) -> dict[str, Spent]:
    """Return what :func:`to_json` gave."""
    return {wave: Spent(nodes, longest) for wave, (longest, nodes) in value.items()}  # type: ignore[arg-type]
