"""The visible files of one sink: which a directory has, and what their names say.  Joined ones know two epochs.

Which small files are joined to larger ones: neighbours of one partition, as in a tree of merges.  Pure.

A run of small ones is joined when there are :data:`RUN` of them of about the same size, or when they fill a file:
so a row is written again only as often as the logarithm of the target's size says.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeVar

_NAME = re.compile(r"part-(\d{12})-(?:(\d{12})|\d+)-([0-9a-f]+)-[0-9a-f]{12}(?:-\d+)?\.(parquet|json)")


@dataclass(frozen=True)
class OwnFile:
    """What the path of a visible file says.

    Parameters
    ----------
    path : str
        Relative to the sink's directory.
    partition : str
        Its directory, ``day=mo/route=LHR%2FJFK``; empty where nothing is partitioned.
    first_epoch, last_epoch : int
        It holds rows of these epochs and, joined of several, all rows of its partition of those between.
    """

    path: str
    partition: str
    first_epoch: int
    last_epoch: int


@dataclass(frozen=True)
class EpochFiles:
    """All files of one partition of some whole epochs, in the order of their names; see ``Neighbour``."""

    partition: str
    paths: tuple[str, ...]
    first_epoch: int
    last_epoch: int
    size_bytes: int

    @property
    def path(self) -> str:
        """The first of them."""
        return self.paths[0]


def own_file(path: str, tag: str) -> OwnFile | None:
    """Return what a path says; None for a file of others.

    Examples
    --------
    >>> own_file("day=mo/part-000000000041-00001-3f2a-d02f61c79a3e-000.parquet", "3f2a").last_epoch
    41
    >>> own_file("part-000000000001-000000000041-3f2a-d02f61c79a3e.parquet", "3f2a").last_epoch
    41
    """
    partition, name = os.path.split(path)
    match = _NAME.fullmatch(name)
    if match is None or match[3] != tag:
        return None
    first = int(match[1])
    return OwnFile(path, partition, first, first if match[2] is None else int(match[2]))


def tag_of(pipeline: str, sink: str) -> str:
    """Return what the names of a sink's files have, to distinguish pipelines and sinks."""
    return hashlib.sha256(f"{pipeline}/{sink}".encode()).hexdigest()[:8]


def own_files(directory: str, tag: str) -> Iterator[OwnFile]:
    """Yield what a sink has made visible in its directory, in any order."""
    for path in visible_paths(directory):
        found = own_file(path, tag)
        if found is not None:
            yield found


def visible_paths(directory: str) -> Iterator[str]:
    """Yield the paths that a reader of a directory would read, relative to it."""
    for above, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name[0] not in "_."]
        below = os.path.relpath(above, directory)
        yield from (os.path.normpath(os.path.join(below, name)) for name in names if name[0] not in "_.")


def joined_name(files: EpochFiles, tag: str, token: str, format_name: str) -> str:
    """Return the path of the file that takes the place of some."""
    name = f"part-{files.first_epoch:012}-{files.last_epoch:012}-{tag}-{token}.{format_name}"
    return os.path.join(files.partition, name)


def by_epoch(directory: str, files: Iterable[OwnFile]) -> Iterator[EpochFiles]:
    """Yield the files of each partition and epoch together, oldest first; what is gone is left out."""
    ordered = sorted(files, key=lambda each: (each.first_epoch, each.last_epoch, each.partition, each.path))
    for (first, last, partition), group in groupby(
        ordered, lambda each: (each.first_epoch, each.last_epoch, each.partition)
    ):
        sizes = {
            each.path: size for each in group if (size := _size_bytes(os.path.join(directory, each.path))) is not None
        }
        if sizes:
            yield EpochFiles(partition, tuple(sizes), first, last, sum(sizes.values()))


def together(run: Iterable[EpochFiles]) -> EpochFiles:
    """Return neighbours as one."""
    several = list(run)
    return EpochFiles(
        several[0].partition,
        tuple(path for each in several for path in each.paths),
        several[0].first_epoch,
        several[-1].last_epoch,
        sum(each.size_bytes for each in several),
    )


def _size_bytes(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


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
