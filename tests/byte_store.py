"""Reads a whole store: every committed byte against its checksum, and index, data and log against each other."""

from __future__ import annotations

import os

from holdfast.connectors.byte_stream.branch import Branch, StreamView, branches
from holdfast.connectors.byte_stream.data_file import StoredFile, damaged
from holdfast.connectors.byte_stream.manifest import HEAD_SIZE, DataFile, IndexEntry


def verify(store: str) -> int:
    """Read everything that a store holds, and return the number of messages.

    Parameters
    ----------
    store : str
        The directory of ``write.byte_stream``.

    Raises
    ------
    Corrupt
        At the first byte that is not what was written, or says something else than another: names the file.

    Notes
    -----
    For a store that nobody writes to meanwhile.
    """
    return sum(_verify_branch(branch) for branch in branches(os.path.abspath(store)).values())


def _verify_branch(branch: Branch) -> int:
    for number in branch.log.numbers():
        branch.log.read(number)
    return sum(_verify_stream(stream) for stream in branch.view().streams.values())


def _verify_stream(stream: StreamView) -> int:
    return sum(_verify_file(stream, file) for file in stream.files)


def _verify_file(stream: StreamView, file: DataFile) -> int:
    with StoredFile(stream.directory, stream.name, file) as stored:
        number, before, count, end = 0, file.before, 0, 0
        heads = stored.heads(file.first)
        for chunk in stored.messages(file.first, file.end):
            for timestamp, is_key in zip(chunk.timestamps, chunk.keys, strict=True):
                ordinal, at, head = next(heads)
                if is_key:
                    found = stored.entry(number) if number < stored.entry_count else None
                    if found != IndexEntry(ordinal, at, timestamp, before):
                        raise damaged(stored.index_path, file.index_size, f"message {ordinal} has no such entry")
                    number += 1
                before, count, end = max(before, timestamp), count + 1, at + HEAD_SIZE + head.length
        if number != stored.entry_count:
            raise damaged(stored.index_path, file.index_size, "it has an entry for what is no random access point")
        if (before, count, end) != (file.highest, file.count, file.size):
            raise damaged(stored.path, end, "its messages are not those that the log counts")
        if file.is_start != (stored.entry_count > 0 and stored.entry(0).ordinal == file.first):
            raise damaged(stored.index_path, 0, "the log says otherwise whether it begins with a random access point")
    return count
