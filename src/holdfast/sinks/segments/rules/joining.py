"""Which small sealed segments are joined to larger ones: neighbours of one partition, as in a tree of merges.  Pure.

A run of small segments is joined when there are :data:`RUN` of them of about the same size, or when they fill a file:
so a row is written again only as often as the logarithm of the target's size says.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.sinks.segments.entries import SealedSegment

RUN = 8
"""Joined at least, unless fewer fill a file."""

ALIKE = 4
"""Of about the same size: at most this many times the mean of the newer ones of the run."""

MANY = 64
"""From so many on, sizes do not matter."""

SMALL = 0.5
"""Share of the target's size below which a file is small."""


class SmallSegments:
    """The small segments at the end of each partition's sequence of sealed ones.

    Parameters
    ----------
    target_bytes : int
        Size that a file is to have.
    """

    def __init__(self, target_bytes: int) -> None:
        self._target_bytes = target_bytes
        self._small: dict[str, list[SealedSegment]] = {}
        self._touched: set[str] = set()

    def add(self, segments: Iterable[SealedSegment]) -> None:
        """Note what was sealed, in its order: a large one ends the run before it."""
        for segment in segments:
            if segment.size_bytes < SMALL * self._target_bytes:
                self._small.setdefault(segment.partition, []).append(segment)
                self._touched.add(segment.partition)
            else:
                self.forget(segment.partition)

    def forget(self, partition: str) -> None:
        """Leave the small segments of a partition as they are."""
        self._small.pop(partition, None)
        self._touched.discard(partition)

    def remove(self, paths: Iterable[str]) -> None:
        """Forget what is no longer part of the data."""
        gone = set(paths)
        for partition in [name for name, run in self._small.items() if any(each.path in gone for each in run)]:
            self._small[partition] = [each for each in self._small[partition] if each.path not in gone]

    def due(self) -> list[SealedSegment]:
        """Return neighbours that are to be joined, oldest first; empty where there are none."""
        while self._touched:
            partition = next(iter(self._touched))
            run = self._run(self._small.get(partition, []))
            if run:
                return run
            self._touched.discard(partition)
        return []

    def joined(self, run: list[SealedSegment], segment: SealedSegment) -> None:
        """Put one in the place of several."""
        kept = [each for each in self._small.get(segment.partition, []) if each not in run]
        place = sum(1 for each in kept if each.last_epoch < segment.first_epoch)
        if segment.size_bytes < SMALL * self._target_bytes:
            kept.insert(place, segment)
        else:
            kept = kept[place:]
        self._small[segment.partition] = kept

    def _run(self, small: list[SealedSegment]) -> list[SealedSegment]:
        run: list[SealedSegment] = []
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
