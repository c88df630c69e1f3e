"""Places: of a checkpoint that a user has named, a directory or an object store with a scratch (0037); of a cache.

Objects of a store that are named by a number, ``<prefix><digits>.json``: they are in the order of the numbers.

The digits are padded for readability.  As text they are in order only while the padding lasts: ``100000000`` sorts
before ``99999999``, and the older object would be mistaken for the newest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import InvalidPipeline
from holdfast.ports import Store
from holdfast.store import scratch
from holdfast.store.local import LocalStore, directory_of
from holdfast.store.scratch import ScratchedStore


def open_store(location: str) -> LocalStore | ScratchedStore:
    """Open the store of a checkpoint.

    Parameters
    ----------
    location : str
        A path or a ``file://`` URL, on a local disk or a mounted file system with hard links (NFS has them); or the
        address of one in an object store, or the scratch of one.  A directory is created by the first write.

    Raises
    ------
    InvalidPipeline
        If the location is of a kind that is not supported.
    """
    directory = scratch.scratch_of(location) if scratch.is_address(location) else directory_of(location)
    address = scratch.address_in(directory)
    if address is None:
        return LocalStore(str(directory))
    return ScratchedStore(scratch.objects_of(address), directory)


def checkpoint_directory(location: str, *, scratch_base: str | None = None) -> Path:
    """Return the directory of a checkpoint, there or not; of one in an object store the scratch, which is then there.

    Parameters
    ----------
    location : str
        As the user wrote it.
    scratch_base : str
        Where the scratch lies (:func:`holdfast.store.scratch.scratch_of`).

    Raises
    ------
    InvalidPipeline
        If it is a file, or the location is of a kind that is not supported.
    """
    if scratch.is_address(location):
        return scratch.scratch_of(location, scratch_base)
    return checked_place(directory_of(location), "a checkpoint")


def viewed_directory(location: str) -> Path:
    """Return :func:`checkpoint_directory` for who starts no run: a scratch that is out of date is not shown.

    Raises
    ------
    InvalidPipeline
        If it is a file, or the location is of a kind that is not supported.
    """
    return scratch.view_of(location) if scratch.is_address(location) else checkpoint_directory(location)


def checked_place(directory: Path, of: str) -> Path:
    """Return a directory, there or not.

    Raises
    ------
    InvalidPipeline
        If it is a file, or would be below one.
    """
    for path in (directory, *directory.parents):
        if os.path.isdir(path):
            break
        if os.path.exists(path):
            raise InvalidPipeline(
                f"{directory} cannot be the directory of {of}.",
                why="it is a file." if path == directory else f"{path} is a file.",
                do="name a directory; a missing one is created.",
            )
    return directory


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``holdfast`` in the user's cache directory, there or not: what another start would make again."""
    home = Path(environment.get("HOME") or "~").expanduser()
    default = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(environment.get("XDG_CACHE_HOME") or default) / "holdfast"


def numbered(store: Store, prefix: str) -> dict[int, str]:
    """Return number -> key of every such object, in ascending order; other keys are left out."""
    names = ((path, path.rpartition("/")[2].removesuffix(".json")) for path in store.keys(prefix))
    return dict(sorted((int(name), path) for path, name in names if name.isdigit()))
