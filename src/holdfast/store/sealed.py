"""Objects in a local directory that are written once and never changed: the basis of a source's log or journal.

Each is sealed with its length and CRC-32, so that damage is detected, and put under its name only if the name is free
(:mod:`holdfast.store.durable`): of several writers exactly one wins, and no reader ever sees a part.
"""

from __future__ import annotations

import os
import struct
import zlib

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.store import durable, scratch

_SEAL = struct.Struct("<8sIQ")
_MAGIC = b"HOLDFAST"
SEAL_SIZE = _SEAL.size
"""Bytes before the payload."""


def local_directory(url: str, *, participant: str) -> str:
    """Return a directory that must be local as a path.

    Raises
    ------
    InvalidPipeline
        If it is in an object store: those have no write that fails when the name exists.
    """
    path = durable.local_path(url)
    if path is None:
        raise InvalidPipeline(
            f"source {participant!r} cannot keep its log in {url.partition('://')[0]}://...",
            why="the log needs a file system on which exactly one of several writers can create a name.",
            do="choose a checkpoint directory on a local or network file system; the data may stay where it is.",
            participant=participant,
        )
    return os.path.abspath(path)


def prepare(directory: str) -> None:
    """Create the directory, prove that it can be written, remove leftovers of writers that died."""
    durable.prepare(directory, aside=_aside(directory))


def put_if_absent(path: str, payload: bytes, *, is_told: bool = False) -> bool:
    """Create the object, sealed and durable; return False, changing nothing, when the name is taken.

    Parameters
    ----------
    path : str
        The object.  Below the scratch of a checkpoint in an object store it is an object there first, and then a file.
    payload : bytes
        What it holds.
    is_told : bool
        Whether sinks know it too (design/0018): then the file is enough.
    """
    data, aside = seal(payload), _aside(os.path.dirname(path))
    kept = None if is_told else scratch.object_of(path)
    if kept is not None:
        store, key = kept
        if not store.put_if_absent(key, data):
            found = store.get(key)
            if found is not None:  # our own, before a crash; or another run's
                durable.create(path, found, aside=aside)
            return False
    return durable.create(path, data, aside=aside)


def seal(payload: bytes) -> bytes:
    """Return the bytes after a header that reveals any damage to them."""
    return _SEAL.pack(_MAGIC, zlib.crc32(payload), len(payload)) + payload


def read_sealed(path: str) -> bytes | None:
    """Return what was sealed, or None when there is no such object.

    Raises
    ------
    Corrupt
        If the bytes are not those that were written.
    """
    with durable.explained(f"reading {path}"):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
    if len(data) >= _SEAL.size:  # shorter, or another length than sealed: a power cut, or a disk, has cut it
        magic, checksum, length = _SEAL.unpack_from(data)
        payload = data[_SEAL.size :]
        if magic == _MAGIC and length == len(payload) and checksum == zlib.crc32(payload):
            return payload
    raise Corrupt(
        f"{path} is damaged.",
        why="its checksum does not match its bytes: it was changed, by the disk or by hand.",
        do="restore the file from a backup; without it, what was already read is unknown.",
        participant=path,
    )


def obstacle(workspace: str) -> str:
    """Return why positions of a source that keeps a log in its workspace mean nothing any more; empty when they do."""
    return "" if os.path.isdir(workspace) else "its log of what was read is not in this checkpoint."


def _aside(directory: str) -> str:
    return os.path.join(directory, "aside")
