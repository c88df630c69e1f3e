"""Reading one data file and its index: as far as they are committed, every byte against its checksum.

What a reader of a store says of itself: up to where its sinks hold everything, so that retention waits for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from holdfast.connectors.byte_stream.manifest import (
    DATA,
    ENTRY_SIZE,
    HEAD_SIZE,
    INDEX,
    DataFile,
    IndexEntry,
    MessageHead,
    file_head,
    file_head_size,
    index_entry,
    message_head,
)
from holdfast.errors import Corrupt
from holdfast.store import durable, sealed

WINDOW_BYTES = 4 * 2**20
"""Read at once; a message that is longer is read alone."""


@dataclass
class MessageChunk:
    """Consecutive messages of one stream.

    Parameters
    ----------
    first : int
        Ordinal of the first one.
    timestamps, keys, payloads : list
        Of each message; a payload is a view of what was read.
    """

    first: int
    timestamps: list[int] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)
    payloads: list[memoryview] = field(default_factory=list)


class StoredFile:
    """A data file and its index, open for reading: to be used in a ``with`` statement.

    Parameters
    ----------
    directory : str
        That of the stream.
    stream : str
        Its name.
    file : DataFile
        What is committed.

    Raises
    ------
    FileNotFoundError
        If a file is not there: it was dropped, or its messages are in another one now.
    Corrupt
        From here on, where bytes are not those that were written: names the file and the byte.
    """

    def __init__(self, directory: str, stream: str, file: DataFile) -> None:
        self.file = file
        self.path = os.path.join(directory, f"{file.stem}.data")
        self.index_path = os.path.join(directory, f"{file.stem}.index")
        self._start = file_head_size(stream)
        self._stream = stream
        self._data = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._index: int | None = None
        try:
            self._check_head(self._data, self.path, DATA)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both files."""
        os.close(self._data)
        if self._index is not None:
            os.close(self._index)

    # --- messages ---------------------------------------------------------------------------------------------------

    def messages(self, first: int, last: int) -> Iterator[MessageChunk]:
        """Yield the messages from ``first`` to below ``last``, some megabytes at a time."""
        at, ordinal = self.offset_of(first), first
        while ordinal < last:
            window = self._read(at, min(WINDOW_BYTES, self.file.size - at))
            chunk, used = self._chunk(window, at, ordinal, last)
            if not chunk.payloads:  # longer than a window
                head = self._head(window, 0, at, ordinal)
                window = self._read(at, HEAD_SIZE + head.length)
                chunk, used = self._chunk(window, at, ordinal, ordinal + 1)
            at, ordinal = at + used, ordinal + len(chunk.payloads)
            yield chunk

    def _chunk(self, window: memoryview, at: int, ordinal: int, last: int) -> tuple[MessageChunk, int]:
        chunk, used, size = MessageChunk(ordinal), 0, len(window)
        while ordinal < last and used + HEAD_SIZE <= size:
            length, timestamp, is_key, payload_crc = self._head(window, used, at + used, ordinal)
            end = used + HEAD_SIZE + length
            if end > size:
                break
            payload = window[used + HEAD_SIZE : end]
            if zlib.crc32(payload) != payload_crc:
                raise damaged(self.path, at + used, f"the payload of message {ordinal} has another checksum")
            chunk.timestamps.append(timestamp)
            chunk.keys.append(is_key)
            chunk.payloads.append(payload)
            ordinal, used = ordinal + 1, end
        return chunk, used

    def heads(self, first: int) -> Iterator[tuple[int, int, MessageHead]]:
        """Yield ordinal, offset and head of each message from ``first`` on, without reading payloads."""
        at = self.offset_of(first)
        for ordinal in range(first, self.file.end):
            head = self._head(self._read(at, HEAD_SIZE), 0, at, ordinal)
            yield ordinal, at, head
            at += HEAD_SIZE + head.length

    def offset_of(self, ordinal: int) -> int:
        """Return where the message with this ordinal begins."""
        if ordinal == self.file.first:
            return self._start
        if ordinal == self.file.end:
            return self.file.size
        known = self.last_entry(lambda entry: entry.ordinal <= ordinal)
        at, each = (self._start, self.file.first) if known is None else (known.offset, known.ordinal)
        while each < ordinal:
            at += HEAD_SIZE + self._head(self._read(at, HEAD_SIZE), 0, at, each).length
            each += 1
        return at

    def _head(self, data: memoryview, within: int, at: int, ordinal: int) -> MessageHead:
        head = message_head(data, within, ordinal)
        if head is None or at + HEAD_SIZE + head[0] > self.file.size:
            raise damaged(self.path, at, f"the head of message {ordinal} should begin there")
        return head

    # --- index ------------------------------------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        """Random access points in the index."""
        return (self.file.index_size - self._start) // ENTRY_SIZE

    def entry(self, number: int) -> IndexEntry:
        """Return an entry of the index."""
        if self._index is None:
            self._index = os.open(self.index_path, os.O_RDONLY | os.O_CLOEXEC)
            self._check_head(self._index, self.index_path, INDEX)
        at = self._start + number * ENTRY_SIZE
        data = os.pread(self._index, ENTRY_SIZE, at)
        found = index_entry(data) if len(data) == ENTRY_SIZE else None
        if found is None or not self.file.first <= found.ordinal < self.file.end:
            raise damaged(self.index_path, at, f"entry {number} of the index should be there")
        return found

    def last_entry(self, holds: Callable[[IndexEntry], bool]) -> IndexEntry | None:
        """Return the last entry for which something holds; it holds for those from the first to some one."""
        count = bisect_left(range(self.entry_count), True, key=lambda number: not holds(self.entry(number)))
        return self.entry(count - 1) if count else None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check_head(self, fd: int, path: str, magic: bytes) -> None:
        if os.pread(fd, self._start, 0) != file_head(magic, self._stream, self.file.first):
            raise damaged(path, 0, f"the head of a file of stream {self._stream!r} should be there")

    def _read(self, at: int, size: int) -> memoryview:
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._data, size, at)
            if not part:
                raise damaged(self.path, at, f"the file ends there, and {self.file.size} bytes are committed")
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def damaged(path: str, at: int, why: str) -> Corrupt:
    """Return the error of bytes that are not those that were written."""
    return Corrupt(
        f"{path} is damaged at byte {at}.",
        why=f"{why}.",
        do="restore the file from a copy.",
        participant=path,
    )


READERS = "_readers"
"""Directory of a store; one object for each reader.  Who is gone for good is removed by hand."""

OF_SEGMENT = "@"
"""What the name of an object has that is of one stream of a reader; no name of a source has it."""


class ReaderMark:
    """What one reader has said: of all its streams in one object, and in others of streams that a part of it reads.

    What is said of a stream alone counts for it: its positions only grow, whoever reads it next.

    Parameters
    ----------
    store : str
        The store's directory.
    name, workspace : str
        The source, and its place in the checkpoint of its pipeline.
    streams : collection of str, optional
        The streams that it reads; None for all.
    """

    def __init__(self, store: str, name: str, workspace: str, streams: Collection[str] | None) -> None:
        tag = hashlib.sha256(f"{name}\n{os.path.abspath(workspace)}".encode()).hexdigest()[:12]
        self._directory = os.path.join(store, READERS)
        self._path = os.path.join(self._directory, f"{name}-{tag}.json")
        self._said = {"source": name, "workspace": workspace, "streams": None if streams is None else sorted(streams)}

    @property
    def is_there(self) -> bool:
        """Whether the reader is registered."""
        return os.path.exists(self._path)

    def put(self, positions: Mapping[str, int | str]) -> None:
        """Say that nothing before these positions is needed."""
        aside = os.path.join(self._directory, "writing")
        durable.prepare(self._directory, aside=aside)
        data = json.dumps({**self._said, "positions": dict(positions)}).encode()
        durable.replace(self._path, sealed.seal(data), aside=aside)
        self._forget_segments()

    def put_segment(self, segment: str, at: int | None) -> None:
        """Say of one stream that nothing before a position is needed; None: nothing of it."""
        aside = os.path.join(self._directory, "writing")
        data = json.dumps({**self._said, "segment": segment, "at": at}).encode()
        durable.replace(mark_of_segment(self._path, segment), sealed.seal(data), aside=aside)

    def is_released(self, segment: str) -> bool:
        """Return whether nothing of a stream is needed, as was said of it alone."""
        data = sealed.read_sealed(mark_of_segment(self._path, segment))
        return data is not None and json.loads(data)["at"] is None

    def remove(self) -> None:
        """Take the mark away: the reader needs nothing any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._forget_segments()

    def _forget_segments(self) -> None:
        """Remove what was said of streams alone; what a crash leaves of it holds more than is needed, or nothing."""
        begin = os.path.basename(self._path).removesuffix(".json") + OF_SEGMENT
        for name in os.listdir(self._directory) if os.path.isdir(self._directory) else ():
            if name.startswith(begin):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, name))


def mark_of_segment(path: str, segment: str) -> str:
    """Return where the mark of a reader says something of one stream alone."""
    return f"{path.removesuffix('.json')}{OF_SEGMENT}{hashlib.sha256(segment.encode()).hexdigest()[:16]}.json"
