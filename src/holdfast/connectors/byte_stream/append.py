"""Appends messages to a stream: behind what is committed, in files that only this generation writes.

Nothing that is written here counts before a log entry says so.  A file belongs to the generation in its name: a stale
writer can only write where nobody reads, beyond the committed size of its own file.  What a lower generation has left
is finished as it is, or, if it is small, copied into a file of this generation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.connectors.byte_stream.branch import StreamView
from holdfast.connectors.byte_stream.data_file import damaged
from holdfast.connectors.byte_stream.manifest import (
    DATA,
    ENTRIES,
    ENTRY_SIZE,
    HEAD_SIZE,
    INDEX,
    IS_KEY,
    MESSAGE,
    MESSAGES,
    DataFile,
    file_head,
    sealed_entries,
    sealed_heads,
)
from holdfast.connectors.byte_stream.messages import StreamMessages
from holdfast.connectors.byte_stream.staging import write_all
from holdfast.store import durable

COPIED_MAX = 16 * 2**20
"""Bytes of a file of a lower generation that are copied.  So files are not smaller, however often runs start."""

_GROUP_BYTES = 8 * 2**20
"""Written at once, more or less."""


_UNSYNCED_MAX = 16
"""Files that one stream has open at the same time."""


@dataclass(frozen=True)
class StreamRules:
    """How a stream is divided.

    Parameters
    ----------
    target_bytes : int
        A file of this size is followed by another one at the next random access point; one of twice this size anywhere.
    has_keys : bool
        Whether rows say which are random access points.
    index_every : int
        Otherwise every so many messages is one, and the first of each file.
    """

    target_bytes: int
    has_keys: bool
    index_every: int


class StreamAppend:
    """What one publication appends to one stream.

    Parameters
    ----------
    stream : StreamView
        The stream, as the last entry says it.
    generation : int
        Of the writer.
    rules : StreamRules
        How it is divided.
    """

    def __init__(self, stream: StreamView, generation: int, rules: StreamRules) -> None:
        self.stream = stream
        self._generation = generation
        self._rules = rules
        self.next = stream.state.next
        self.highest = stream.state.highest
        self.grows = stream.state.open
        self.finished = list(stream.files if self.grows is None else stream.files[:-1])
        self.replaced: list[DataFile] = []
        """Files whose messages are in another one now."""
        self._fds: tuple[int, int] | None = None
        self._written: list[int] = []
        """Open files that are finished and not synced."""
        self._has_names = False

    def append(self, messages: StreamMessages) -> None:
        """Write messages.  They are durable when :meth:`close` returns."""
        done = 0
        while done < messages.count:
            if self._fds is None:
                self._open()
            last = self._last_of_file(messages, done)
            if last == done:
                self._finish_file()
                continue
            self._write(messages.between(done, last))
            done = last

    def close(self) -> None:
        """Make everything durable.  Touches no other stream: several may be closed at the same time."""
        for fd in (*self._written, *(self._fds or ())):
            os.fsync(fd)
        self.abort()
        if self._has_names:
            durable.sync_directory(self.stream.directory)

    def abort(self) -> None:
        """Release the files."""
        for fd in (*self._written, *(self._fds or ())):
            os.close(fd)
        self._written, self._fds = [], None

    # --- files ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the file that grows, or begin one."""
        grows = self.grows
        if grows is not None and grows.generation != self._generation:
            if grows.size > min(COPIED_MAX, self._rules.target_bytes):
                self.finished.append(grows)
                self.grows = None
            else:
                self.grows = replace(grows, generation=self._generation)
                self._copy(grows, self.grows)
                self.replaced.append(grows)
                return
        if self.grows is None:
            self._begin()
        else:
            self._continue(self.grows)

    def _begin(self) -> None:
        heads = [file_head(magic, self.stream.name, self.next) for magic in (DATA, INDEX)]
        sizes = [len(head) for head in heads]
        self.grows = DataFile(
            self.next, self._generation, 0, sizes[0], sizes[1], self.highest, self.highest, is_start=False
        )
        self._create(self.grows)
        for fd, head in zip(self._fds or (), heads, strict=True):
            write_all(fd, [head])

    def _continue(self, file: DataFile) -> None:
        """Open a file behind what is committed of it; what follows there was never committed."""
        opened: list[int] = []
        try:
            for path, size in _paths(self.stream.directory, file):
                opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                found = os.fstat(opened[-1]).st_size
                if found < size:
                    raise damaged(path, found, f"the file ends there, and {size} bytes are committed")
                os.ftruncate(opened[-1], size)
                os.lseek(opened[-1], size, os.SEEK_SET)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        self._fds = (opened[0], opened[1])

    def _copy(self, old: DataFile, new: DataFile) -> None:
        self._create(new)
        for target, (path, size) in zip(self._fds or (), _paths(self.stream.directory, old), strict=True):
            with open(path, "rb") as source:
                data = source.read(size)
            if len(data) < size:
                raise damaged(path, len(data), f"the file ends there, and {size} bytes are committed")
            write_all(target, [data])

    def _create(self, file: DataFile) -> None:
        durable.make_directory(self.stream.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC  # what is there is of an attempt that was not committed
        (data, _), (index, _) = _paths(self.stream.directory, file)
        first = durable.private_opener(data, flags)
        try:
            self._fds = (first, durable.private_opener(index, flags))
        except BaseException:
            os.close(first)
            raise
        self._has_names = True

    def _finish_file(self) -> None:
        if self.grows is not None:
            self.finished.append(self.grows)
        if len(self._written) >= _UNSYNCED_MAX:
            for fd in self._written:
                os.fsync(fd)
                os.close(fd)
            self._written = []
        self._written += self._fds or ()
        self._fds = self.grows = None

    # --- messages ---------------------------------------------------------------------------------------------------

    def _last_of_file(self, messages: StreamMessages, done: int) -> int:
        """Return the number of the first message that belongs into another file."""
        file = self.grows
        if file is None:
            return done
        sizes = messages.lengths[done:] + HEAD_SIZE
        before = file.size + np.cumsum(sizes) - sizes
        target = self._rules.target_bytes
        is_over = before >= 2 * target
        may_begin = messages.keys[done:] if self._rules.has_keys else np.ones(len(sizes), bool)
        is_over |= (before >= target) & may_begin
        if file.count == 0:
            is_over[0] = False
        return done + int(np.argmax(is_over)) if is_over.any() else messages.count

    def _write(self, messages: StreamMessages) -> None:
        file, fds = self.grows, self._fds
        if file is None or fds is None:
            return
        ordinals = np.arange(self.next, self.next + messages.count)
        keys = messages.keys
        if not self._rules.has_keys:
            keys = (ordinals % self._rules.index_every == 0) | (ordinals == file.first)
        sizes = messages.lengths + HEAD_SIZE
        highest = np.maximum(np.maximum.accumulate(messages.timestamps), self.highest)
        before = np.concatenate([[self.highest], highest[:-1]])

        heads = np.zeros(messages.count, MESSAGES)
        heads["magic"], heads["length"], heads["ordinal"] = MESSAGE, messages.lengths, ordinals
        heads["timestamp"], heads["payload_crc"] = messages.timestamps, messages.checksums
        heads["flags"] = np.where(keys, IS_KEY, 0)
        self._write_messages(fds[0], sealed_heads(heads), messages)

        entries = np.zeros(int(keys.sum()), ENTRIES)
        entries["ordinal"], entries["timestamp"] = ordinals[keys], messages.timestamps[keys]
        entries["offset"], entries["before"] = (file.size + np.cumsum(sizes) - sizes)[keys], before[keys]
        write_all(fds[1], [sealed_entries(entries)])

        self.next += messages.count
        self.highest = int(highest[-1])
        self.grows = replace(
            file,
            count=file.count + messages.count,
            size=file.size + int(sizes.sum()),
            index_size=file.index_size + len(entries) * ENTRY_SIZE,
            highest=self.highest,
            is_start=bool(keys[0]) if file.count == 0 else file.is_start,
        )

    @staticmethod
    def _write_messages(fd: int, heads: memoryview, messages: StreamMessages) -> None:
        group: list[memoryview] = []
        size = 0
        for number, payload in enumerate(messages.views(0, messages.count)):
            group += (heads[number * HEAD_SIZE : (number + 1) * HEAD_SIZE], payload)
            size += len(payload)
            if size >= _GROUP_BYTES or len(group) >= 1024:
                write_all(fd, group)
                group, size = [], 0
        write_all(fd, group)


def _paths(directory: str, file: DataFile) -> Sequence[tuple[str, int]]:
    """Return data file and index, each with its committed size."""
    stem = os.path.join(directory, file.stem)
    return (f"{stem}.data", file.size), (f"{stem}.index", file.index_size)
