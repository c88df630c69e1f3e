"""The bytes of a byte stream's files: heads of files, messages, index entries.  All numbers are little-endian.

A data file is a head and messages, one after the other; an index file a head and entries of one size.  Every byte is
below a CRC-32 (zlib's): that of its head, of a message's head, of its payload, or of an index entry.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

VERSION = 1

DATA = b"HFBSDATA"
INDEX = b"HFBSINDX"
MESSAGE = 0x474D4648
"""What a message begins with: ``HFMG`` in the file."""

IS_KEY = 1
"""Flag of a message that is a random access point."""

LOWEST = -(2**63)
"""Of timestamps: what is before every message."""

NAME_MAX = 200
"""Bytes of a stream's name, percent-encoded: it becomes a directory's."""

MESSAGES = np.dtype(
    [
        ("magic", "<u4"),
        ("length", "<u4"),
        ("ordinal", "<u8"),
        ("timestamp", "<i8"),
        ("flags", "<u4"),
        ("payload_crc", "<u4"),
        ("head_crc", "<u4"),
    ]
)
"""Heads of messages."""

ENTRIES = np.dtype([("ordinal", "<u8"), ("offset", "<u8"), ("timestamp", "<i8"), ("before", "<i8"), ("crc", "<u4")])
"""Entries of an index: ``offset`` is the message's in its data file, ``before`` the highest timestamp before it."""

HEAD_SIZE = MESSAGES.itemsize
ENTRY_SIZE = ENTRIES.itemsize

_FILE = struct.Struct("<8sIIQ")
_MESSAGE = struct.Struct("<IIQqIII")
_ENTRY = struct.Struct("<QQqqI")
_CRC = struct.Struct("<I")
_CHECKED = HEAD_SIZE - _CRC.size


class MessageHead(NamedTuple):
    """What the head of a message says; its ordinal is known to who looks there."""

    length: int
    """Bytes of the payload behind it."""
    timestamp: int
    """Nanoseconds of Unix time, or ticks."""
    is_key: bool
    """Whether it is a random access point."""
    payload_crc: int
    """CRC-32 of the payload."""


@dataclass(frozen=True)
class IndexEntry:
    """One random access point.

    Parameters
    ----------
    ordinal, offset, timestamp : int
        Of the message; the offset is that of its head in the data file.
    before : int
        Highest timestamp of all messages of the stream before it; :data:`LOWEST` when there is none.
    """

    ordinal: int
    offset: int
    timestamp: int
    before: int

    @property
    def highest(self) -> int:
        """Highest timestamp up to it."""
        return max(self.timestamp, self.before)


def file_head(magic: bytes, stream: str, first: int) -> bytes:
    """Return the head of a file.

    Parameters
    ----------
    magic : bytes
        :data:`DATA` or :data:`INDEX`.
    stream : str
        Name of the stream.
    first : int
        Ordinal of the first message.
    """
    name = stream.encode()
    head = _FILE.pack(magic, VERSION, len(name), first) + name
    return head + _CRC.pack(zlib.crc32(head))


def file_head_size(stream: str) -> int:
    """Return the size of :func:`file_head`."""
    return _FILE.size + len(stream.encode()) + _CRC.size


def sealed_heads(heads: np.ndarray) -> memoryview:
    """Return the bytes of heads of messages; their checksums are set."""
    return _sealed(heads, "head_crc")


def sealed_entries(entries: np.ndarray) -> memoryview:
    """Return the bytes of index entries; their checksums are set."""
    return _sealed(entries, "crc")


def _sealed(records: np.ndarray, field: str) -> memoryview:
    size = records.dtype.itemsize
    unsealed = records.tobytes()
    end = size - _CRC.size
    records[field] = [zlib.crc32(unsealed[at : at + end]) for at in range(0, len(unsealed), size)]
    return memoryview(records.tobytes())


def message_head(data: bytes | memoryview, at: int, ordinal: int) -> MessageHead | None:
    """Return the head of a message; None where the bytes are not that of the one with this ordinal."""
    magic, length, number, timestamp, flags, payload_crc, head_crc = _MESSAGE.unpack_from(data, at)
    if magic != MESSAGE or number != ordinal or head_crc != zlib.crc32(data[at : at + _CHECKED]):
        return None
    return MessageHead(length, timestamp, bool(flags & IS_KEY), payload_crc)


def index_entry(data: bytes) -> IndexEntry | None:
    """Return an entry of an index; None where the bytes are none."""
    ordinal, offset, timestamp, before, crc = _ENTRY.unpack(data)
    if crc != zlib.crc32(data[: ENTRY_SIZE - _CRC.size]):
        return None
    return IndexEntry(ordinal, offset, timestamp, before)


def directory_name(stream: str) -> str:
    """Return the name of a stream's directory: percent-encoded, a dot in front too.

    Examples
    --------
    >>> directory_name("front/left"), directory_name(".."), directory_name("Tür")
    ('front%2Fleft', '%2E.', 'T%C3%BCr')
    """
    name = quote(stream, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
