"""Walks a directory for the files that a pattern names, so that nothing is silently skipped.

A directory that is not there (any more) has no files; one that cannot be listed for any other reason is an error of
the lister: a source that took it for empty would log itself as complete, and stay so.

Links.  Unless they are followed, a symbolic link yields no row: what it names is read under its own name, or, if it is
not, the walk ends with an error that names the link and the remedy.  Where they are followed, each directory is entered
once and each file is read once, by whatever links they are reached: a link to a directory above would multiply rows.

A glob as states: which directories it leads into, and which files it takes.

A state is the set of the pattern's parts that may follow.  Walking with states visits each directory once, however
many ways of the pattern lead there, and enters none that it does not name.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import heapq
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from holdfast.connectors.formats.access import shown
from holdfast.errors import InvalidPipeline

_UNFINISHED = (".tmp", ".inprogress", "_COPYING_")
_NAMED = 5
NOT_THERE = (FileNotFoundError, NotADirectoryError)


def is_acceptable(name: str) -> bool:
    """Return whether a file of this name, relative to the root, may be read: it is neither hidden nor unfinished."""
    if name.endswith(_UNFINISHED) or name.startswith(HIDDEN):
        return False
    return "/" not in name or not any(part.startswith(HIDDEN) for part in name.split("/"))


def named(paths: Sequence[str]) -> str:
    """Return the first five of some paths as a message names them, and how many more there are.

    Examples
    --------
    >>> named(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d, e and 1 more'
    """
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED])}{more}"


class _Entry(Protocol):
    """What a directory says of a name in it: ``os.DirEntry``, or :class:`_Named`."""

    @property
    def name(self) -> str: ...

    def is_symlink(self) -> bool: ...

    def is_dir(self, *, follow_symlinks: bool) -> bool: ...


class _Named(NamedTuple):
    """A name that was looked up, because the pattern writes it in full: its directory need not be listed."""

    name: str
    mode: int

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return stat.S_ISDIR(self.mode)


def local_files(root: str, pattern: Pattern, known: Collection[str]) -> Iterator[str]:
    """Yield the names, relative to the root, that the pattern takes and that are not known; links are not followed.

    Raises
    ------
    InvalidPipeline
        If a link leads out of the root, or to what is not read under its own name.
    OSError
        If a directory cannot be listed.
    """
    pending = [("", pattern.start)]
    while pending:
        below, state = pending.pop()
        for entry in _entries(os.path.join(root, below), pattern.names(state), is_root=not below):
            name = below + entry.name
            if entry.name.startswith(HIDDEN) or name in known:
                continue
            is_taken = pattern.takes(state, entry.name) and is_acceptable(name)
            inside = pattern.into(state, entry.name)
            if not is_taken and not inside:
                continue
            if entry.is_symlink():
                _check_link(root, name, pattern, is_taken, inside)
            elif entry.is_dir(follow_symlinks=False):
                if inside:
                    pending.append((f"{name}/", inside))
            elif is_taken:
                yield name


def followed_files(root: str, pattern: Pattern, known: Collection[str]) -> Iterator[str]:
    """Yield the names, relative to the root, that the pattern takes and that are not known; links are followed.

    Notes
    -----
    A file is its directory (device and inode) and its name there: hard links are files of their own.  Directories are
    entered under their own names first, then by links under which files are known: a later link must not give them
    other names.  A file of several names is known if one of them is.
    """
    entered: dict[tuple[int, int], set[int]] = {}
    names: dict[tuple[tuple[int, int], str], list[tuple[int, str]]] = {}
    known_directories: set[str] | None = None
    pending: list[tuple[int, int, str, list[int]]] = [(0, 0, "", sorted(pattern.start))]
    while pending:
        by_link, is_new, below, parts = heapq.heappop(pending)
        if (directory := _identity(os.path.join(root, below), is_root=not below)) is None:
            continue
        before = entered.setdefault(directory, set())
        if not (state := frozenset(parts) - before):
            continue
        before |= state
        for entry in _entries(os.path.join(root, below), pattern.names(state), is_root=not below):
            name = below + entry.name
            inside = pattern.into(state, entry.name)
            if is_link := entry.is_symlink():
                mode = target_mode(os.path.join(root, name))
                if not mode:
                    continue
            if is_link and inside and stat.S_ISDIR(mode):
                if known_directories is None:
                    known_directories = _directories(known)
                new = int(f"{name}/" not in known_directories)
                heapq.heappush(pending, (1, new, f"{name}/", sorted(inside)))
            elif entry.is_dir(follow_symlinks=False):
                if inside:
                    heapq.heappush(pending, (by_link, is_new, f"{name}/", sorted(inside)))
            elif pattern.takes(state, entry.name) and is_acceptable(name):
                where, own_name = directory, entry.name
                if is_link:
                    parent, own_name = os.path.split(os.path.realpath(os.path.join(root, name)))
                    if (found := _identity(parent, is_root=False)) is None:
                        continue
                    where = found
                names.setdefault((where, own_name), []).append((int(is_link) + by_link, name))
    for several in names.values():
        if not any(name in known for _, name in several):
            yield min(several)[1]


def remote_files(system: Any, root: str, pattern: Pattern) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names, relative to the root, that the pattern takes, and what the fsspec file system says of each.

    Notes
    -----
    Not its ``glob`` or ``find``: they leave out what cannot be listed.  An empty prefix is not an
    error: it may be filled later.

    Raises
    ------
    InvalidPipeline
        If a link is among them.
    Exception
        Whatever the file system raises.
    """
    pending = [("", pattern.start)]
    base = root.rstrip("/")
    while pending:
        below, state = pending.pop()
        directory = f"{base}/{below}".rstrip("/") or "/"
        try:
            listed = system.ls(directory, detail=True)
        except NOT_THERE:
            continue
        for facts in listed:
            path = str(facts["name"]).rstrip("/")
            own_name = path.rpartition("/")[2]
            name = below + own_name
            kind = facts.get("type", "file")
            if path.strip("/") == directory.strip("/") or not own_name:
                if len(listed) == 1 and kind == "file" and facts.get("size") and not str(facts["name"]).endswith("/"):
                    raise NotADirectoryError(errno.ENOTDIR, "it is an object itself", directory)
                continue  # the object that marks the directory itself
            if kind == "directory":
                if inside := pattern.into(state, own_name):
                    pending.append((f"{name}/", inside))
            elif pattern.takes(state, own_name) and is_acceptable(name):
                if kind == "link":
                    raise InvalidPipeline(
                        f"{base}/{name} is a link, and links are not followed there.",
                        why="what it leads to cannot be compared with the directory that is read.",
                        do="put the file itself in its place, or give path= the directory that it leads to.",
                        participant=f"{base}/{name}",
                    )
                if kind == "file":
                    yield name, facts


def _entries(path: str, names: list[str] | None, *, is_root: bool) -> Iterator[_Entry]:
    """Yield what is in a directory, or which of the names are; nothing if it is not there (any more)."""
    if names is not None:
        os.stat(path) if is_root else None
        for name in names:
            try:
                yield _Named(name, os.lstat(os.path.join(path, name)).st_mode)
            except NOT_THERE:
                continue
        return
    try:
        entries = os.scandir(path)
    except NOT_THERE:
        if is_root:
            raise
        return
    with entries:
        yield from entries


def target_mode(path: str) -> int:
    """Return the mode of the target of a path, through links; 0 where there is none: then it is not a file yet."""
    try:
        return os.stat(path).st_mode
    except NOT_THERE:
        return 0
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return 0
        raise


def _identity(path: str, *, is_root: bool) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except NOT_THERE:
        if is_root:
            raise
        return None
    return status.st_dev, status.st_ino


def _directories(names: Collection[str]) -> set[str]:
    """Return the directories of the names, and those above them, each followed by a slash."""
    found: set[str] = set()
    for directory in {name.rpartition("/")[0] for name in names}:
        while directory and f"{directory}/" not in found:
            found.add(f"{directory}/")
            directory = directory.rpartition("/")[0]
    return found


def _check_link(root: str, name: str, pattern: Pattern, is_taken: bool, inside: State) -> None:
    """Return if nothing is lost by passing a link over; a link that leads nowhere is not a file yet."""
    path, real_root = os.path.join(root, name), os.path.realpath(root)
    target = os.path.realpath(path)
    leads_out = os.path.commonpath([real_root, target]) != real_root
    try:
        mode = target_mode(path)
    except PermissionError:
        if not leads_out:
            raise
        mode = 0  # refused, before a permission is asked for
    else:
        if not (stat.S_ISDIR(mode) and inside) and not (stat.S_ISREG(mode) and is_taken):
            return
    if leads_out:
        why = f"its target is outside of {root}: anyone who can write there could make it read any of your files."
    elif _is_read_itself(os.path.relpath(target, real_root), pattern, stat.S_ISDIR(mode), inside):
        return
    else:
        why = f"its target is not read under its own name: {shown(path)} would be silently skipped."
    raise InvalidPipeline(
        f"{shown(path)} is a link to {shown(target)}, and links are not followed.",
        why=why,
        do="put what it leads to in its place, or remove it; "
        "write follow_links=True if you trust everybody who can write there.",
        participant=shown(path),
    )


def _is_read_itself(target: str, pattern: Pattern, is_directory: bool, inside: State) -> bool:
    """Return whether the walk also reaches a link's target, in the root, by its own name."""
    if is_directory:
        return inside <= pattern.at(target)
    parent, _, own_name = target.rpartition("/")
    return is_acceptable(target) and pattern.takes(pattern.at(parent or "."), own_name)


ANY_DEPTH = "**"
HIDDEN = ("_", ".")
"""How names begin that are never read, nor are files below them."""
_ESCAPED = re.compile(r"\[([*?[])\]")

State = frozenset[int]


class Pattern:
    """A glob relative to a directory; an empty one means the files in the directory itself.

    Parameters
    ----------
    text : str
        ``*``, ``?`` and ``[...]`` within a part; ``**`` for any depth, as last part for every file below.

    Examples
    --------
    >>> pattern = Pattern("**/x/*.json")
    >>> inside = pattern.into(pattern.into(pattern.start, "a"), "x")
    >>> pattern.takes(inside, "1.json"), pattern.takes(pattern.start, "1.json")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        self._parts = [part for part in text.split("/") if part] or ["*"]
        self.start: State = self._closed({0})

    @property
    def is_flat(self) -> bool:
        """Whether it takes files of the directory itself alone."""
        return len(self._parts) == 1 and self._parts != [ANY_DEPTH]

    @property
    def is_one_name(self) -> bool:
        """Whether it is the name of one file of the directory itself."""
        return self.is_flat and literal(self._parts[0]) is not None

    def into(self, state: State, name: str) -> State:
        """Return the state within a directory of this name; an empty one: nothing is looked for there."""
        if name.startswith(HIDDEN):
            return frozenset()
        reached = set()
        for at in state:
            if self._parts[at] == ANY_DEPTH:
                reached.add(at)
            elif at + 1 < len(self._parts) and _matches(self._parts[at], name):
                reached.add(at + 1)
        return self._closed(reached)

    def takes(self, state: State, name: str) -> bool:
        """Return whether a file of this name is one that it names."""
        last = len(self._parts) - 1
        return last in state and (self._parts[last] == ANY_DEPTH or _matches(self._parts[last], name))

    def at(self, path: str) -> State:
        """Return the state within a directory by its path relative to the beginning; ``.`` is the beginning."""
        state = self.start
        for name in path.split("/"):
            state = state if name == "." else self.into(state, name)
        return state

    def names(self, state: State) -> list[str] | None:
        """Return the only names that can follow; None where they must be searched."""
        known = {literal(self._parts[at]) for at in state}
        return None if None in known else sorted(name for name in known if name is not None)

    def _closed(self, state: set[int]) -> State:
        """Add the parts after each ``**`` of the state: it may match nothing."""
        for at in sorted(state):
            while self._parts[at] == ANY_DEPTH and at + 1 < len(self._parts):
                at += 1
                state.add(at)
        return frozenset(state)


def literal(part: str) -> str | None:
    """Return the one name that a part of a pattern matches, or None.

    Examples
    --------
    >>> literal("a[[]1].json"), literal("a[1].json")
    ('a[1].json', None)
    """
    name = _ESCAPED.sub(r"\1", part)
    return name if glob.escape(name) == part else None


def _matches(part: str, name: str) -> bool:
    return _compile(part).match(name) is not None


@lru_cache(maxsize=256)
def _compile(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
