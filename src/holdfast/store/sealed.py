"""Objects in a local directory that are written once and never changed: the basis of a source's log or journal.

Each is sealed with its length and CRC-32, so that damage is detected, and put under its name only if the name is free
(:mod:`holdfast.store.durable`): of several writers exactly one wins, and no reader ever sees a part.

Small JSON objects of a checkpoint with a checksum in them: damage that leaves valid JSON is detected too.

The member ``#sha256`` holds the checksum of all others.  An object without it was written by an older version, and is
accepted.

Whether what a reader says of stored bytes is their damage, or the trouble of whoever has them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from holdfast.errors import Corrupt, InvalidPipeline, Unavailable, invariant
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


_CHECK = "#sha256"


def dump(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object; equal objects have equal bytes.

    Examples
    --------
    >>> dump({"buckets": 2})
    b'{"#sha256":"8b05c6e6fd0ff8ca","buckets":2}'
    """
    invariant(_CHECK not in value, f"a record is to have a member {_CHECK!r} of its own.")
    return _text({**value, _CHECK: _checksum(value)})


def load(data: bytes) -> dict[str, Any]:
    """Return what :func:`dump` was given.

    Raises
    ------
    ValueError
        If the bytes are no JSON object, or not the one that was written.

    Examples
    --------
    >>> load(dump({"buckets": 2}))
    {'buckets': 2}
    >>> load(dump({"buckets": 2}).replace(b":2", b":3"))
    Traceback (most recent call last):
    ValueError: its checksum does not match: it was changed
    """
    try:
        value = json.loads(data)
    except ValueError:
        raise ValueError("it is not the JSON that was written there: it was truncated or changed") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the bytes are wrong, not the argument
    check = value.pop(_CHECK, None)
    if check is not None and check != _checksum(value):
        raise ValueError("its checksum does not match: it was changed")
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(value)).hexdigest()[:16]


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


_OF_S3 = "AWS Error "
"""In all that Arrow says of a request to S3 that failed, a kind of OSError without a number as for damage."""


def is_of_data(error: Exception) -> bool:
    """Whether an error that a reader raises is of the bytes that it was given, and not of the machine it runs on.

    Examples
    --------
    >>> is_of_data(pa.ArrowInvalid("no magic bytes")), is_of_data(pa.ArrowMemoryError("malloc failed"))
    (True, False)
    """
    if isinstance(error, MemoryError | pa.ArrowCancelled) or _is_of_s3(error):
        return False
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def _is_of_s3(error: Exception) -> bool:
    return type(error) is OSError and _OF_S3 in str(error)


@contextmanager
def damage_named(place: str) -> Iterator[None]:
    """Raise :class:`Corrupt` where what is read at a place cannot be decoded, :class:`Unavailable` where a bucket does
    not give it; what a file system says stays.
    """
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if _is_of_s3(error):
            raise Unavailable(
                f"{place} cannot be read.",
                why=f"{error}.",
                do="try again; if it stays so, look at the network, the endpoint and the rights of the credentials.",
                participant=place,
            ) from error
        if not is_of_data(error):
            raise
        raise Corrupt(
            f"{place} cannot be read.",
            why=f"{error}.",
            do="restore it from a copy, or move it out: its rows are missing then.",
            participant=place,
        ) from error
