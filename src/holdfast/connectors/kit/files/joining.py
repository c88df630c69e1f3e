"""Which small files are joined to larger ones: neighbours of one partition, as in a tree of merges.  Pure.

A run of small ones is joined when there are :data:`RUN` of them of about the same size, or when they fill a file:
so a row is written again only as often as the logarithm of the target's size says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

RUN = 8
"""Joined at least, unless fewer fill a file."""

ALIKE = 4
"""Of about the same size: at most this many times the mean of the newer ones of the run."""

MANY = 64
"""From so many on, sizes do not matter."""

SMALL = 0.5
"""Share of the target's size below which a file is small."""


class Neighbour(Protocol):
    """The rows of a partition in some consecutive epochs, in files: these may be joined to those of its neighbours."""

    @property
    def partition(self) -> str:
        """Its directory."""

    @property
    def path(self) -> str:
        """Its file, or the first of them."""

    @property
    def first_epoch(self) -> int:
        """Where it begins."""

    @property
    def last_epoch(self) -> int:
        """Where it ends."""

    @property
    def size_bytes(self) -> int:
        """Of its files."""


N = TypeVar("N", bound=Neighbour)


class SmallNeighbours(Generic[N]):
    """The small ones at the end of each partition's sequence.

    Parameters
    ----------
    target_bytes : int
        Size that a file is to have.
    """

    def __init__(self, target_bytes: int) -> None:
        self._target_bytes = target_bytes
        self._small: dict[str, list[N]] = {}
        self._touched: set[str] = set()

    def add(self, segments: Iterable[N]) -> None:
        """Note what there is, in its order: a large one ends the run before it."""
        for segment in segments:
            if segment.size_bytes < SMALL * self._target_bytes:
                self._small.setdefault(segment.partition, []).append(segment)
                self._touched.add(segment.partition)
            else:
                self.forget(segment.partition)

    def forget(self, partition: str) -> None:
        """Leave the small ones of a partition as they are."""
        self._small.pop(partition, None)
        self._touched.discard(partition)

    def remove(self, paths: Iterable[str]) -> None:
        """Forget what is no longer part of the data."""
        gone = set(paths)
        for partition in [name for name, run in self._small.items() if any(each.path in gone for each in run)]:
            self._small[partition] = [each for each in self._small[partition] if each.path not in gone]

    def due(self) -> list[N]:
        """Return neighbours that are to be joined, oldest first; empty where there are none."""
        while self._touched:
            partition = next(iter(self._touched))
            run = self._run(self._small.get(partition, []))
            if run:
                return run
            self._touched.discard(partition)
        return []

    def joined(self, run: list[N], segment: N) -> None:
        """Put one in the place of several."""
        kept = [each for each in self._small.get(segment.partition, []) if each not in run]
        place = sum(1 for each in kept if each.last_epoch < segment.first_epoch)
        if segment.size_bytes < SMALL * self._target_bytes:
            kept.insert(place, segment)
        else:
            kept = kept[place:]
        self._small[segment.partition] = kept

    def _run(self, small: list[N]) -> list[N]:
        run: list[N] = []
        size = 0
        for segment in reversed(small):
            is_alike = not run or segment.size_bytes * len(run) <= ALIKE * size
            if not (is_alike or len(small) >= MANY or size + segment.size_bytes >= self._target_bytes):
                break
            run.insert(0, segment)
            size += segment.size_bytes
            if size >= self._target_bytes:
                return run
        return run if len(run) >= RUN else []
