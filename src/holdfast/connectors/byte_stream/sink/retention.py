"""Which files of a stream are dropped: the oldest ones, beyond an age or a size, and that no reader needs.

A reader that has registered itself says in ``<store>/_readers/`` up to where its own sinks hold everything.  Behind
what is dropped, a stream begins with a random access point.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.connectors.byte_stream.store.manifest import DataFile
from holdfast.connectors.byte_stream.store.readers import READERS
from holdfast.errors import Corrupt
from holdfast.store.sealed import read_sealed

log = logging.getLogger("holdfast.connectors.byte_stream")


@dataclass(frozen=True)
class RetentionRules:
    """How much of each stream stays.

    Parameters
    ----------
    age : int, optional
        Nanoseconds or ticks: files whose messages are all older than this, counted from the stream's highest
        timestamp, go.  No clock is asked: a stream that is silent keeps what it has.
    size_bytes : int, optional
        The oldest files go as long as the others have at least this many bytes.
    """

    age: int | None = None
    size_bytes: int | None = None

    def dropped(self, files: Sequence[DataFile], highest: int, needed: int | None = None) -> int:
        """Return how many of the oldest files go.

        Parameters
        ----------
        files : sequence of DataFile
            Of a stream, oldest first.  The last one always stays.
        highest : int
            Highest timestamp of the stream.
        needed : int, optional
            Messages from this ordinal on are needed.

        Examples
        --------
        >>> files = [DataFile(n, 1, 1, 100, 0, n - 1, n, True) for n in range(5)]
        >>> RetentionRules(size_bytes=250).dropped(files, 4), RetentionRules(age=1).dropped(files, 4, needed=2)
        (2, 2)
        """
        count, size = 0, sum(file.size for file in files)
        for file in files[:-1]:
            is_old = self.age is not None and file.highest < highest - self.age
            is_much = self.size_bytes is not None and size - file.size >= self.size_bytes
            if not (is_old or is_much) or (needed is not None and file.end > needed):
                break
            count, size = count + 1, size - file.size
        while count and not files[count].is_start:
            count -= 1
        return count


def needed(store: str, segment: str) -> int | None:
    """Return the lowest position at which a registered reader needs a segment; None where none does.

    A reader whose mark is damaged needs everything, until somebody removes it: a recording does not stop for that.
    """
    directory = os.path.join(store, READERS)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return None
    lowest: int | None = None
    for name in names:
        if name.endswith(".json"):
            at = _needed_by(os.path.join(directory, name), segment)
            lowest = at if lowest is None or (at is not None and at < lowest) else lowest
    return lowest


def _needed_by(path: str, segment: str) -> int | None:
    try:
        data = read_sealed(path)
        if data is None:
            return None
        said = json.loads(data)
        streams, positions = said["streams"], said["positions"]
        return int(positions.get(segment, 0)) if streams is None or segment.split("/", 2)[2] in streams else None
    except (Corrupt, ValueError, KeyError, TypeError) as error:
        log.warning(
            "%s does not say where its reader is, so all messages stay; remove it if it is gone: %s", path, error
        )
        return 0
