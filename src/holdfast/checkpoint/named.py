"""Named checkpoints: snapshots that are kept until they are deleted.

Under ``named/`` there is, for each name, a manifest as in ``snapshots/``: one put makes the named checkpoint, and
pruning leaves the files that it names.  One that came from another checkpoint (:mod:`holdfast.checkpoint.portable`) has
its files below its own name, where nothing is ever pruned.

A named checkpoint is never used automatically: it is asked for by name, for a fork or a rewind.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from functools import reduce

from holdfast.checkpoint.manifest import EpochEnd, Manifest, decode, encode
from holdfast.checkpoint.replay_floor import EVERY_PIPELINE, write_named_floor
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.ports import Store
from holdfast.positions import Positions, least
from holdfast.types.units import time_us

log = logging.getLogger("holdfast.checkpoint")

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
        f"{name!r} is not a name of a checkpoint.",
        why=f"it becomes the name of a file: letters, digits, '-' and '_', {NAME_LENGTH_MAX} characters at most.",
        do="choose for instance before-migration.",
    )


def new_name(name: str) -> str:
    """Return a name that a checkpoint may have: one that ``rewind --to`` reads as neither an epoch nor a time.

    Raises
    ------
    InvalidPipeline
        If it is none.

    Examples
    --------
    >>> new_name("before-2026-01-01")
    'before-2026-01-01'
    """
    read_as = "the number of an epoch" if checked_name(name).isdigit() else "a time" if _is_time(name) else ""
    if read_as:
        raise InvalidPipeline(
            f"{name!r} cannot be the name of a checkpoint.",
            why=f"rewind --to {name} takes it for {read_as}, and would never find this checkpoint.",
            do=f"choose another name, for instance before-{name}.",
        )
    return name


def _is_time(name: str) -> bool:
    try:
        time_us(name, argument="name")
    except InvalidPipeline:
        return False
    return True


def key_of(name: str) -> str:
    """Return the key of a named checkpoint's manifest."""
    return f"{PREFIX}{name}{SUFFIX}"


def names(store: Store) -> list[str]:
    """Return the names of all named checkpoints."""
    found = (key.removeprefix(PREFIX) for key in store.keys(PREFIX))
    return [name.removesuffix(SUFFIX) for name in found if "/" not in name and name.endswith(SUFFIX)]


def remains(store: Store) -> list[str]:
    """Return the names that have files and no manifest: of an import or a deletion that was not completed."""
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
    """Make sure that a name is free, and that nothing is below it: an import that failed has left files there.

    Raises
    ------
    InvalidPipeline
        If the name is taken, or is none.
    """
    if new_name(name) in names(store):
        raise taken_name(name)
    _remove_files(store, name)


def discard(store: Store, name: str) -> None:
    """Remove the files below a name that was claimed, unless it has become a checkpoint."""
    if name not in names(store):
        _remove_files(store, name)


def put_claimed(store: Store, name: str, manifest: Manifest) -> None:
    """Make a named checkpoint of a claimed name, with the files that are below it by now."""
    hold(store, manifest.pipeline, manifest.ended)
    is_made = store.put_if_absent(key_of(name), encode(manifest))
    settle_floor(store)  # a start that settles it too may have happened in between
    if not is_made:
        raise taken_name(name)


def taken_name(name: str) -> InvalidPipeline:
    """Return the error of a name that a checkpoint has."""
    return InvalidPipeline(
        f"there is a checkpoint named {name!r} already.",
        why="a named checkpoint never changes: others may rely on it.",
        do=f"choose another name; or remove it first: holdfast checkpoint delete {name}.",
    )


def delete_named(store: Store, name: str) -> None:
    """Remove a named checkpoint, or what is left of one; what only it needed goes with the next pruning."""
    store.delete(key_of(checked_name(name)))
    _remove_files(store, name)
    settle_floor(store)


def _remove_files(store: Store, name: str) -> None:
    for key in store.keys(f"{PREFIX}{name}/"):
        store.delete(key)


def hold(store: Store, pipeline: str, ended: EpochEnd) -> None:
    """Keep what sources would drop from here on, for a name that will follow."""
    settle_floor(store, {pipeline: ended.positions})


def settle_floor(store: Store, to_come: Mapping[str, Positions] | None = None) -> None:
    """Put the floor of all names where those of each pipeline need it; where one cannot be read, nothing goes."""
    floors = dict(to_come or {})
    try:
        for manifest in named_manifests(store):
            positions = manifest.ended.positions
            floors[manifest.pipeline] = least(floors.get(manifest.pipeline, positions), positions)
    except Corrupt as error:
        log.warning("sources keep all rows for named checkpoints: %s", error.message)
        floors = {EVERY_PIPELINE: {}}
    write_named_floor(store, floors)


def named_manifests(store: Store) -> Iterator[Manifest]:
    """Yield the manifests of all named checkpoints.

    Raises
    ------
    Corrupt
        At the first that cannot be read: which files it needs is unknown.
    """
    for name in names(store):
        data = store.get(key_of(name))
        if data is not None:  # removed meanwhile
            yield decode(data, key_of(name))


def earliest(store: Store, pipeline: str, snapshot: Manifest) -> Positions:
    """Return the least positions of all checkpoints of a pipeline that may still be gone back to."""
    ours = (manifest.ended.positions for manifest in named_manifests(store) if manifest.pipeline == pipeline)
    return reduce(least, ours, snapshot.ended.positions)
