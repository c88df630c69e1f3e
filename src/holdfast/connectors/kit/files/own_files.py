"""The visible files of one sink: which a directory has, and what their names say.  Joined ones know two epochs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

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
