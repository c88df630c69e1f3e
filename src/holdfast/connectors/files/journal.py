"""The journal of a feed: numbered entries in a directory, each one push, durable before the push returns.

Invariants: numbers are dense; an entry appears whole, sealed with a checksum; the newest entry is never removed, so
a number is never reused; pushing and removing hold the directory's lock, which the kernel drops with its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.connectors.files.source.log import Block
from holdfast.errors import Corrupt
from holdfast.store import durable, sealed

_ENTRY = re.compile(r"(\d{12})\.entry")
_ROWS = struct.Struct("<Q")


def path(directory: str, number: int) -> str:
    """Return the path of an entry."""
    return os.path.join(directory, f"{number:012d}.entry")


def append(directory: str, batch: pa.RecordBatch) -> int:
    """Write one entry and return its number.  Durable when it returns.

    Raises
    ------
    InDoubt
        If its directory could not be synced: the entry is there, and read, and may be gone after a power cut.  After
        anything else nothing is there.

    Notes
    -----
    Two syncs.  Any number of threads and processes may call it; each waits for those before it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload = _ROWS.pack(batch.num_rows) + sink.getvalue().to_pybytes()
    with _locked(directory):
        _, number = bounds(directory)
        while not sealed.put_if_absent(path(directory, number), payload):
            number += 1  # a file system without working locks: the name itself decides
    return number


def bounds(directory: str) -> tuple[int, int]:
    """Return the number of the oldest entry and of the next one; twice that one when there is none."""
    numbers = _numbers(directory)
    return min(numbers, default=0), max(numbers, default=-1) + 1


def block(directory: str, number: int) -> Block | None:
    """Return what is known of an entry from its head: rows and bytes; None when it is not there."""
    name = path(directory, number)
    with durable.explained(f"reading {name}"):
        try:
            with open(name, "rb") as file:
                head = file.read(sealed.SEAL_SIZE + _ROWS.size)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None
    if len(head) < sealed.SEAL_SIZE + _ROWS.size:
        sealed.read_sealed(name)  # says that it is damaged
    row_count = _ROWS.unpack_from(head, sealed.SEAL_SIZE)[0]
    return Block(name, size, 0, -1, row_count, size)


def read(name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an entry.

    Raises
    ------
    Corrupt
        If it is damaged or gone.
    """
    payload = sealed.read_sealed(name)
    if payload is None:
        raise Corrupt(
            f"{name} is gone.",
            why="entries are removed once every sink holds their rows; this one is to be read again.",
            do="restore it; executors must see the feed's directory under the same path as the driver.",
            participant=name,
        )
    with pa.ipc.open_stream(pa.py_buffer(payload)[_ROWS.size :]) as reader:
        yield from reader


def drop(directory: str, below: int) -> None:
    """Remove entries below a number, except the newest one."""
    numbers = [number for number in _numbers(directory) if number < below - 1]
    if numbers:
        with _locked(directory):
            for number in numbers:
                with durable.explained(f"removing {path(directory, number)}"):
                    if os.path.exists(path(directory, number)):
                        os.unlink(path(directory, number))


def _numbers(directory: str) -> list[int]:
    with durable.explained(f"listing {directory}"):
        return [int(match[1]) for name in os.listdir(directory) if (match := _ENTRY.fullmatch(name))]


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    with durable.explained(f"locking {directory}"):
        descriptor = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with durable.explained(f"locking {directory}"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
