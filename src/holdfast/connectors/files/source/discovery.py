"""Which files a source may take now: complete ones that it does not know yet, oldest first.

A file is taken when its name (and every directory below the root) begins with neither ``_`` nor ``.``, does not end in
``.tmp``, ``.inprogress`` or ``_COPYING_``, when it is not empty, and when it was last changed at least ``min_age``
ago.  With the default of ``"0 s"`` files must arrive complete, by rename.

Which logged files cannot be read again, in words: the positions of each, its blocks and rows, and what became of it.

Positions count blocks, so a file is a range of them; of a file that is there in part by then only that part is named.
"""

from __future__ import annotations

import glob
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from holdfast.connectors.files.source.listing import (
    NOT_THERE,
    Pattern,
    followed_files,
    is_acceptable,
    local_files,
    remote_files,
    target_mode,
)
from holdfast.connectors.files.source.log import Block
from holdfast.connectors.formats.access import FilePart, file_system, opened, shown
from holdfast.connectors.formats.identity import FileIdentity, changed_us_of, of_facts, of_status
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable

_MAGIC = "*?["
# A directory whose time of change is this old and the same as at the last scan has no new names.  Younger ones may
# have changed again within one tick of the file system's clock; and whatever the clocks say, the directory is listed
# again every 10 s.
_SETTLED_S = 2.0
_LOOK_ANYWAY_S = 10.0


class Found(NamedTuple):
    """A file that may be taken: its name relative to the root, size in bytes, time of change (µs) and identity."""

    name: str
    size: int
    changed_us: int
    identity: FileIdentity = FileIdentity()


@dataclass(frozen=True)
class Place:
    """Where files arrive: a root directory and a pattern below it; an empty pattern means the directory itself.

    Parameters
    ----------
    root : str
        Absolute path, or URL that fsspec knows.
    pattern : str
        Glob relative to the root (``*``, ``?``, ``[...]``, and ``**`` for any depth), a file's name, or empty.
    """

    root: str
    pattern: str

    @property
    def is_local(self) -> bool:
        """Whether plain operating system calls reach it."""
        return "://" not in self.root

    def path(self, name: str) -> str:
        """Return the path or URL of a file."""
        return os.path.join(self.root, name) if self.is_local else f"{self.root.rstrip('/')}/{name}"

    def name(self, path: str) -> str:
        """Return the name of a file at a path: relative to the root, or the file's own where that is the root."""
        return path.removeprefix(self.root.rstrip("/")).lstrip("/") or path.rpartition("/")[2]


def place(path: str) -> Place:
    """Split what the user wrote (a directory, a glob or a file; local or a URL) into root and pattern.

    Examples
    --------
    >>> place("/data/2024-*/flights.json")
    Place(root='/data', pattern='2024-*/flights.json')
    >>> place("s3://bucket/in")
    Place(root='s3://bucket/in', pattern='')
    """
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if "://" not in path:
        path = os.path.abspath(os.path.expanduser(path))
    if not any(character in path for character in _MAGIC):
        return Place(path, "")
    fixed, wild = [], path.split("/")
    while not any(character in wild[0] for character in _MAGIC):
        fixed.append(wild.pop(0))
    return Place("/".join(fixed) or "/", "/".join(wild))


def settled(where: Place) -> Place:
    """Return the place with a single file turned into its directory and its name; what exists as written is not a glob.

    Raises
    ------
    InvalidPipeline
        If there is neither a directory nor a file.
    Unavailable
        If what is there is unknown at present.
    """
    if where.pattern and where.is_local and _mode(where.path(where.pattern)):
        where = Place(where.path(where.pattern), "")
    is_directory, is_file = _is_local(where) if where.is_local else _is_remote(where)
    if is_directory:
        return where
    if not where.pattern and is_file:
        root, _, name = where.root.rpartition("/")
        if is_acceptable(name):
            return Place(root or "/", glob.escape(name))
        raise InvalidPipeline(
            f"{shown(where.root)} has a name that is never read.",
            why="a name that begins with '_' or '.', or ends in .tmp, .inprogress or _COPYING_, is not complete yet.",
            do="rename the file.",
            participant=shown(where.root),
        )
    raise InvalidPipeline(
        f"{shown(where.root)} does not exist.",
        why="files are read from a directory, a glob below an existing directory, or one file.",
        do="correct path=, or create the directory before the start.",
        participant=shown(where.root),
    )


class Discovery:
    """Looks for new files.  Runs in the planning process.

    Parameters
    ----------
    where : Place
        Settled: see :func:`settled`.
    min_age_us : int
        How long ago a file must have been changed last.
    follow_links : bool
        Whether symbolic links are followed; see :mod:`holdfast.connectors.files.source.listing`.

    Attributes
    ----------
    has_seen_all : bool
        Whether the last look left no file for later because it is too young; False before the first look.
    """

    def __init__(self, where: Place, min_age_us: int, *, follow_links: bool = False) -> None:
        self.where = where
        self.min_age_us = min_age_us
        self._pattern = Pattern(where.pattern)
        # A single file is what the user has named: no one else can put another name there.
        self.follows_links = follow_links or self._pattern.is_one_name
        self.has_seen_all = False
        self._quiet_since: tuple[int, float] | None = None  # the directory's time of change, when that was checked

    def new_files(self, known: Collection[str]) -> list[Found]:
        """Return the files that may be taken and are not known, by time of change and name.

        Raises
        ------
        InvalidPipeline
            If a link is among them that is not to be followed.
        Unavailable
            If the directory, or one below it, cannot be listed now.
        """
        try:
            found = list(self._local(known) if self.where.is_local else self._remote(known))
        except HoldfastError:
            raise
        except Exception as error:  # an fsspec file system raises what its library raises
            raise Unavailable(
                f"{shown(self.where.root)} cannot be listed: {error}.",
                do="check that it is reachable and readable for this user, then start again.",
                participant=shown(self.where.root),
            ) from error
        return sorted(found, key=lambda file: (file.changed_us, file.name))

    def _local(self, known: Collection[str]) -> Iterator[Found]:
        began = time.time()
        changed_ns = os.stat(self.where.root).st_mtime_ns if self._pattern.is_flat else None
        if changed_ns is not None and self._is_unchanged(changed_ns, began):
            return
        self._quiet_since = None
        self.has_seen_all = True
        held_back = False
        walk = followed_files if self.follows_links else local_files
        for name in walk(self.where.root, self._pattern, known):
            try:
                status = os.stat(self.where.path(name), follow_symlinks=self.follows_links)
            except (FileNotFoundError, NotADirectoryError):
                continue  # renamed or removed since it was listed
            if not stat.S_ISREG(status.st_mode):
                continue
            changed_us = status.st_mtime_ns // 1000
            if self.min_age_us and changed_us > began * 1e6 - self.min_age_us:
                self.has_seen_all, held_back = False, True
                continue
            if status.st_size == 0:
                held_back = True
                continue
            yield Found(name, status.st_size, changed_us, of_status(status))
        if changed_ns is not None and not held_back and began - changed_ns / 1e9 > _SETTLED_S:
            self._quiet_since = (changed_ns, began)

    def _is_unchanged(self, changed_ns: int, now: float) -> bool:
        if self._quiet_since is None:
            return False
        seen_ns, looked = self._quiet_since
        return seen_ns == changed_ns and 0 <= now - looked < _LOOK_ANYWAY_S

    def _remote(self, known: Collection[str]) -> Iterator[Found]:
        system, root = file_system(self.where.root)
        system.invalidate_cache()
        self.has_seen_all = True
        youngest_us = time.time() * 1e6 - self.min_age_us
        for name, facts in remote_files(system, root, self._pattern):
            if name in known:
                continue
            changed_us = changed_us_of(facts)
            if self.min_age_us and changed_us > youngest_us:
                self.has_seen_all = False
            elif facts["size"]:
                yield Found(name, int(facts["size"]), changed_us, of_facts(facts))


def _is_local(where: Place) -> tuple[bool, bool]:
    """Return whether a directory is there, and whether a file is."""
    mode = _mode(where.root)
    return stat.S_ISDIR(mode), stat.S_ISREG(mode)


def _mode(path: str) -> int:
    """Return the mode of what is there; 0 where nothing is."""
    try:
        return target_mode(path)
    except ValueError:  # no name of a file
        return 0
    except OSError as error:
        raise _not_told(path, error) from error


def _is_remote(where: Place) -> tuple[bool, bool]:
    """Return whether a directory is there, and whether a file is.

    An object store has no directories: a prefix exists as soon as something is below it, and may be filled later.
    """
    system, path = file_system(where.root)
    try:  # not its ``isfile``, which takes every error for a no
        is_file = system.info(path)["type"] == "file"
    except NOT_THERE:
        is_file = False
    except Exception as error:  # an fsspec file system raises what its library raises
        if not _is_listed(system, path, may_be_empty=isinstance(error, PermissionError)):
            raise _not_told(where.root, error) from error
        is_file = False
    return not is_file, is_file


def _is_listed(system: Any, path: str, *, may_be_empty: bool) -> bool:
    """Whether what is below a prefix can be listed: some may do that who may not look up the prefix itself.

    With ``may_be_empty`` also where that is nothing.  An object is listed as itself alone, and a listing of nothing is
    no answer where the listing failed for now: s3fs ignores such errors in the part of its listing that finds objects.
    """
    try:
        listed = system.ls(path, detail=True)
    except NOT_THERE:
        return may_be_empty
    except Exception:
        return False
    if not listed:
        return may_be_empty
    return any(str(facts["name"]).strip("/") != path.strip("/") for facts in listed)


def _not_told(path: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"{shown(path)} cannot be looked up: {error}.",
        why="it may be there: what is below it would be silently left out.",
        do="check that it is reachable and readable for this user, then start again.",
        participant=shown(path),
    )


_NAMED = 20
"""Files that are named, at most; of the others only how many there are, and where the last one lies."""


def what_is_gone(blocks: Sequence[Block], wanted: Sequence[int], part_of: Callable[[Block], FilePart]) -> str:
    """Return which of the files that are wanted are not there as they were logged; empty where all are.

    Parameters
    ----------
    blocks : sequence of Block
        The log.
    wanted : sequence of int
        Ordinals of the blocks that are to be read, in order.
    part_of : callable
        What a reader of a block needs.

    Raises
    ------
    Unavailable
        If a file cannot be looked at now.
    """
    files = list(_files(blocks, wanted))
    gone = [(low, high, part, why) for low, high, part in files if (why := _why_gone(part_of(part)))]
    if not gone:
        return ""
    named = [
        f"{_positions(low, high)}, {part_of(block).shown} ({_rows(blocks[low:high])}): {why}"
        for low, high, block, why in gone[:_NAMED]
    ]
    if more := gone[_NAMED:]:
        named.append(f"and {len(more)} more, up to {_positions(*more[-1][:2])}, {part_of(more[-1][2]).shown}")
    return f"{len(gone)} of its {len(files)} files are gone, or are not as they were: {'; '.join(named)}."


def _files(blocks: Sequence[Block], wanted: Sequence[int]) -> Iterator[tuple[int, int, Block]]:
    """Yield first and last position (exclusive) of each file, and one of its blocks."""
    for _, several in groupby(wanted, key=lambda at: blocks[at].name):
        low, *others = several
        yield low, (others[-1] if others else low) + 1, blocks[low]


def _why_gone(part: FilePart) -> str:
    try:
        with opened(part):
            return ""
    except Corrupt as error:
        return error.what.rpartition("logged: ")[2].rstrip(".")


def _positions(low: int, high: int) -> str:
    return f"position {low}" if high == low + 1 else f"positions {low} to {high - 1}"


def _rows(blocks: Sequence[Block]) -> str:
    """Return how many rows blocks have, where that was counted; else which bytes (of Parquet: rows) they are."""
    counts = [block.row_count for block in blocks if block.row_count is not None]
    if len(counts) == len(blocks):
        return f"{sum(counts):,} rows"
    first, last = blocks[0], blocks[-1]
    size = sum(block.size_bytes for block in blocks)
    is_whole = first.start == 0 and last.end in (-1, last.file_size)
    return f"all {size:,} bytes" if is_whole else f"{size:,} bytes, from {first.start:,} on"
