"""What a byte stream's log says: for each stream its files, and of each file how much of it is committed.

An entry holds the whole truth and stays small: of a stream it names the file that grows, and a list of the files that
do not grow any more, an object of its own that changes only when a file is finished or dropped.  Bytes beyond the
committed size of a file are nobody's.

The bytes of a byte stream's files: heads of files, messages, index entries.  All numbers are little-endian.

A data file is a head and messages, one after the other; an index file a head and entries of one size.  Every byte is
below a CRC-32 (zlib's): that of its head, of a message's head, of its payload, or of an index entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np

from holdfast.errors import Corrupt
from holdfast.positions import Positions
from holdfast.store.records import without_step_time
from holdfast.values import Explanation, Held

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


FORMAT = 1

Times = Literal["time", "ticks"]
"""What timestamps are: nanoseconds of Unix time, or numbers of the user's own unit."""

STREAMS = "streams"
LOG = "log"


@dataclass(frozen=True)
class DataFile:
    """A data file and its index, as far as they are committed.

    Parameters
    ----------
    first : int
        Ordinal of its first message; the others follow without a gap.
    generation : int
        Generation that made it.
    count : int
        Messages.
    size, index_size : int
        Committed bytes of the data file and of the index, heads included.
    before, highest : int
        Highest timestamp of the stream before its first message, and up to its last one.
    is_start : bool
        Whether its first message is a random access point.
    """

    first: int
    generation: int
    count: int
    size: int
    index_size: int
    before: int
    highest: int
    is_start: bool

    @property
    def end(self) -> int:
        """Ordinal behind its last message."""
        return self.first + self.count

    @property
    def stem(self) -> str:
        """Its name without ``.data`` or ``.index``."""
        return f"{self.first:020}-{self.generation:08}"


@dataclass(frozen=True)
class StreamState:
    """One stream after an entry.

    Parameters
    ----------
    next : int
        Ordinal of the next message.  It never goes back, also not in a rewind: an ordinal is one message for ever.
    begin : int
        Messages below were dropped by retention.
    highest : int
        Highest timestamp so far; :data:`~holdfast.connectors.byte_stream.manifest.LOWEST` without a message.
    list : str, optional
        Name of the list of finished files, in the stream's directory.
    open : DataFile, optional
        The file that grows.
    """

    next: int = 0
    begin: int = 0
    highest: int = LOWEST
    list: str | None = None
    open: DataFile | None = None


@dataclass(frozen=True)
class StreamEntry:
    """What a branch (the part of a store that one sink writes) holds after one append to its log.

    Parameters
    ----------
    number, generation, epoch, positions, pts, back_to, recent_ends
        As of every log: :class:`holdfast.store.entry_log.Entry`.
    times : str
        What timestamps are.
    message_count : int
        Messages that this entry added.
    streams : mapping of str to StreamState
        By name.
    removals : tuple of str
        Files that nothing names any more, relative to the branch: to be removed by who appended it, or opens it next.
    explained : mapping of str to int
        Source of the pipeline -> how many explanations of its positions are kept, those of this entry among them.
    explanations : tuple of Explanation
        Those that come with this entry; they are copied after it.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    back_to: int | None = None
    times: Times = "time"
    message_count: int = 0
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    removals: tuple[str, ...] = ()
    recent_ends: str = ""
    explained: Mapping[str, int] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        known, ends = dict(self.explained), self.recent_ends
        return Held(self.epoch, self.generation, self.positions, self.pts, recent_ends=ends, explained=known)


def encode_entry(entry: StreamEntry) -> bytes:
    """Return the bytes of an entry."""
    body = asdict(entry)
    for name in ("recent_ends", "explained", "explanations"):
        if not body[name]:
            del body[name]
    return _checked({"format": FORMAT, **body})


def decode_entry(data: bytes, number: int) -> StreamEntry:
    """Return an entry; ValueError, KeyError or TypeError where the bytes are not those of this one."""
    body = _body(data)
    streams = {name: _stream(state) for name, state in body.pop("streams").items()}
    removals = tuple(body["removals"])
    told = tuple(Explanation(**one) for one in body.get("explanations", ()))
    plain = {"streams": streams, "removals": removals, "explanations": told}
    entry = StreamEntry(**{**without_step_time(body), **plain})
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def encode_list(files: Sequence[DataFile]) -> bytes:
    """Return the bytes of a list of finished files."""
    return _checked({"format": FORMAT, "files": [asdict(file) for file in files]})


def read_list(directory: str, name: str) -> tuple[DataFile, ...]:
    """Return a list of finished files.

    Raises
    ------
    Corrupt
        If its bytes are not what was written.
    FileNotFoundError
        If it is gone: a newer entry names another one.
    """
    path = os.path.join(directory, name)
    with open(path, "rb") as file:
        data = file.read()
    try:
        return tuple(DataFile(**each) for each in _body(data)["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"The list of files {path} is damaged.",
            why=f"it is not what was written: {error}.",
            do="restore it from a copy; without it, which files the stream has is unknown.",
            participant=path,
        ) from error


def fence_of(entry: StreamEntry, generation: int) -> StreamEntry:
    """Return the entry by which a higher generation takes over: it says what the last one says."""
    number = entry.number + 1
    return replace(
        entry, number=number, generation=generation, message_count=0, removals=(), back_to=None, explanations=()
    )


def stream_directory(branch: str, stream: str) -> str:
    """Return the directory of a stream, below that of its branch."""
    return os.path.join(branch, STREAMS, directory_name(stream))


def _stream(state: Mapping[str, Any]) -> StreamState:
    grows = state["open"]
    return StreamState(**{**state, "open": None if grows is None else DataFile(**grows)})


def _checked(body: Mapping[str, Any]) -> bytes:
    """Return one line of JSON, and below it the line's SHA-256."""
    line = json.dumps(body).encode() + b"\n"
    return line + hashlib.sha256(line).hexdigest().encode() + b"\n"


def _body(data: bytes) -> dict[str, Any]:
    line, newline, check = data.partition(b"\n")
    if check != hashlib.sha256(line + newline).hexdigest().encode() + b"\n":
        raise ValueError("its checksum does not match")
    body: dict[str, Any] = json.loads(line)
    if body.pop("format") != FORMAT:
        raise ValueError("it is of another version of the format")
    return body
