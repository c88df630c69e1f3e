"""The store of a checkpoint: small durable objects under keys, in a local directory.

Invariants: a reader sees the old object or the new one, never a part; what a call reported survives a
power cut; a key never leaves the directory.  Temporary files live in ``.writing/``; no key begins with a dot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import Corrupt, InvalidPipeline, invariant
from holdfast.store import durable, encodings

_ASIDE = ".writing"
_OURS = frozenset(
    {_ASIDE, ".reading", ".trial", "backfills", "beginning.json", "control", "dead-letters", "fences"}
) | {
    *("foreach_batch", "steer"),
    *("generations", "graph", "identity.json", "ledger", "named", "poison", "progress", "rewinds.json", "schemas"),
    *("shards", "sinks", "snapshots", "sources", "sources.json", "spark", "starts", "state", "supervisor.json"),
    "user-data",
}
"""What is directly in a checkpoint; a user may keep other things there."""
_LOG = "holdfast.log"
_NO_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def directory_of(location: str) -> Path:
    """Return the directory that a path (``~`` is home) or a ``file://`` URL names.

    Raises
    ------
    InvalidPipeline
        If the location is of a kind that is not supported.
    """
    path = durable.local_path(location)
    if path is None:
        raise InvalidPipeline(
            f"A checkpoint at a {location.partition('://')[0]}:// address is not supported.",
            why=(
                "at most one decision per epoch needs an atomic put-if-absent, which directories give "
                "(a path or file:///path, on a local disk or NFS) and which is not assured behind this address."
            ),
            do="choose a directory, for instance /data/checkpoints/trips.",
        )
    directory = Path(path).expanduser().absolute()
    encodings.check_path("the checkpoint", str(directory))
    return directory


class LocalStore:
    """A :class:`~holdfast.ports.Store` in a directory.  Safe between threads and between processes.

    Parameters
    ----------
    directory : str
        Created by the first write.  It may contain files of others (Spark's checkpoint); hidden ones are no
        objects.

    Notes
    -----
    ``put`` and ``put_if_absent`` sync one file and one directory.  The first of them prepares the directory; who only
    reads changes nothing there: it may be a backup that is mounted read-only, or the original of a fork.
    """

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self._aside = os.path.join(self.directory, _ASIDE)
        self._is_prepared = False

    def __repr__(self) -> str:
        return f"LocalStore({self.directory!r})"

    def prepare(self) -> None:
        """Create the directory, prove it writable, and remove the temporary files of dead processes.

        The first write does it; a caller that writes later, and wants to know now whether it can, does it first.

        Raises
        ------
        InvalidPipeline
            If the directory cannot be created or written.
        Unavailable
            If the disk is full or does not answer.
        """
        if not self._is_prepared:  # of two threads both may do it: that is the same as two processes
            durable.prepare(self.directory, aside=self._aside)
            self._tighten()
            self._is_prepared = True

    def _tighten(self) -> None:
        """Revoke the access that an older version gave others.  The directory itself keeps its mode."""
        for name in os.listdir(self.directory):
            if name in _OURS or name.startswith(_LOG):
                durable.tighten(os.path.join(self.directory, name))

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        path = self._path(key)
        with durable.explained(f"reading {path}"):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except OSError as error:
                if error.errno in _NO_OBJECT:
                    return None
                if error.errno == errno.EIO:
                    raise Corrupt(
                        f"{path} cannot be read.",
                        why="the disk reports an input/output error.",
                        do="restore the file, or the checkpoint, from a copy.",
                        participant=path,
                    ) from error
                raise

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        path = self._path(key)
        self.prepare()
        durable.replace(path, data, aside=self._aside)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins."""
        path = self._path(key)
        self.prepare()
        return durable.create(path, data, aside=self._aside)

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        path = self._path(key)
        with durable.explained(f"removing {path}"):
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno in _NO_OBJECT:
                    return
                raise
            durable.sync_directory(os.path.dirname(path))

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        above, slash, _ = prefix.rpartition("/")
        start = self._path(above) if above else self.directory
        with durable.explained(f"listing {start}"):
            return sorted(key for key in _files(start, above + slash) if key.startswith(prefix))

    def _path(self, key: str) -> str:
        parts = key.split("/")
        is_key = all(parts) and not any(part.startswith(".") for part in parts) and not any(c in key for c in "\0\\")
        invariant(
            is_key,
            f"{key!r} is not a key of a store.",
            why="a key is made of names joined by '/'; a name is not empty and does not begin with a dot.",
        )
        return os.path.join(self.directory, *parts)


def _files(directory: str, prefix: str) -> Iterator[str]:
    """Yield the keys below a directory; what vanishes meanwhile is skipped."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name
