"""Named checkpoints: snapshots that stay until somebody deletes them.

Under ``named/`` lies, for each name, a manifest as in ``snapshots/``: one put makes the named checkpoint, and pruning
leaves the files that it names.  One that came from another checkpoint (:mod:`holdfast.checkpoint.portable`) has its
files below its own name, where nothing is ever pruned.

Nothing takes a named checkpoint by itself: it is asked for by name, for a fork or a rewind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.checkpoint.manifest import Manifest, decode, encode
from holdfast.errors import InvalidPipeline
from holdfast.ports import Store
from holdfast.positions import Positions

PREFIX = "named/"
SUFFIX = ".manifest"
NAME_LENGTH_MAX = 60
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def checked_name(name: str) -> str:
    """Return a name that is one.

    Raises
    ------
    InvalidPipeline
        If it is not a letter or digit followed by letters, digits, ``-`` and ``_``.

    Examples
    --------
    >>> checked_name("before-2026_01")
    'before-2026_01'
    """
    if len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name):
        return name
    raise InvalidPipeline(
        f"{name!r} is no name of a checkpoint.",
        why=f"it becomes the name of a file: letters, digits, '-' and '_', {NAME_LENGTH_MAX} characters at most.",
        do="choose for instance before-migration.",
    )


def key_of(name: str) -> str:
    """Return the key of a named checkpoint's manifest."""
    return f"{PREFIX}{name}{SUFFIX}"


def names(store: Store) -> list[str]:
    """Return the names of all named checkpoints."""
    found = (key.removeprefix(PREFIX) for key in store.keys(PREFIX))
    return [name.removesuffix(SUFFIX) for name in found if "/" not in name and name.endswith(SUFFIX)]


def remains(store: Store) -> list[str]:
    """Return the names that have files and no manifest: of an import or a deletion that did not come to its end."""
    below = {
        key.removeprefix(PREFIX).partition("/")[0] for key in store.keys(PREFIX) if "/" in key.removeprefix(PREFIX)
    }
    return sorted(below.difference(names(store)))


def read_named(store: Store, name: str) -> Manifest:
    """Return the manifest of a named checkpoint.

    Raises
    ------
    InvalidPipeline
        If there is none of that name.
    Corrupt
        If it is damaged.
    """
    data = store.get(key_of(checked_name(name)))
    if data is None:
        raise InvalidPipeline(
            f"there is no checkpoint named {name!r}.",
            why=f"named are: {', '.join(names(store)) or 'none'}.",
            do="name one of those; holdfast checkpoint create makes one.",
        )
    return decode(data, key_of(name))


def put_named(store: Store, name: str, manifest: Manifest) -> None:
    """Make a named checkpoint: from here on its files stay.

    Raises
    ------
    InvalidPipeline
        If the name is taken.
    """
    claim(store, name)
    put_claimed(store, name, manifest)


def claim(store: Store, name: str) -> None:
    """Make sure that a name is free, and that nothing lies below it: an import that failed has left files there.

    Raises
    ------
    InvalidPipeline
        If the name is taken, or is none.
    """
    if checked_name(name) in names(store):
        raise _taken(name)
    _remove_files(store, name)


def discard(store: Store, name: str) -> None:
    """Remove the files that lie below a name which was claimed, unless somebody has made a checkpoint of it."""
    if name not in names(store):
        _remove_files(store, name)


def put_claimed(store: Store, name: str, manifest: Manifest) -> None:
    """Make a named checkpoint of a name that was claimed, with the files that lie below it by now."""
    if not store.put_if_absent(key_of(name), encode(manifest)):
        raise _taken(name)


def _taken(name: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"there is a checkpoint named {name!r} already.",
        why="a named checkpoint never changes: somebody may rely on it.",
        do=f"choose another name; or remove it first: holdfast checkpoint delete {name}.",
    )


def delete_named(store: Store, name: str) -> None:
    """Remove a named checkpoint, or what is left of one; what only it needed goes with the next pruning."""
    store.delete(key_of(checked_name(name)))
    _remove_files(store, name)


def _remove_files(store: Store, name: str) -> None:
    for key in store.keys(f"{PREFIX}{name}/"):
        store.delete(key)


def named_manifests(store: Store) -> Iterator[Manifest]:
    """Yield the manifests of all named checkpoints.

    Raises
    ------
    Corrupt
        At the first that cannot be read: nobody knows which files it needs.
    """
    for name in names(store):
        data = store.get(key_of(name))
        if data is not None:  # removed meanwhile
            yield decode(data, key_of(name))


def earliest(store: Store, pipeline: str, snapshot: Manifest) -> Positions:
    """Return the positions of the oldest checkpoint of a pipeline that may still be gone back to."""
    oldest = snapshot
    for manifest in named_manifests(store):
        if manifest.pipeline == pipeline and manifest.ended.epoch < oldest.ended.epoch:
            oldest = manifest
    return oldest.ended.positions
