"""What a stream knows of the files that were imported into it: kept by the sink, with the positions of each commit.

Invariants: files are numbered from 1, in the order in which they were begun; a file's packets lie together; what is
said of a file when it is begun never changes.  So an import that is repeated finds what it has done in the sink alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from holdfast.ports import Explanation, Held
from holdfast.positions import Positions
from holdfast.video.containers import is_address

SOURCE = "files"
"""The source that positions of an import are of."""

HEAD_BYTES = 64 * 2**10
"""By which a file is known again, with its name: it may have grown since, or be whole now."""


@dataclass(frozen=True)
class Progress:
    """How far a stream's imports are: what its positions say.

    Parameters
    ----------
    number : int
        Of the file that was imported last; 0: none was.
    packets : int
        Packets of all files.
    finished : int
        The same number where that file was read to its end.
    end : int
        Where the pictures so far end, nanoseconds of Unix time.
    """

    number: int = 0
    packets: int = 0
    finished: int = 0
    end: int = 0

    @property
    def positions(self) -> Positions:
        """As a sink keeps it."""
        return {SOURCE: {name: int(value) for name, value in asdict(self).items()}}

    @classmethod
    def of(cls, held: Held) -> Progress:
        """Return what a sink holds."""
        return cls(**{name: int(value) for name, value in held.positions.get(SOURCE, {}).items()})


@dataclass(frozen=True)
class FileRecord:
    """What is noted of a file when it is begun.

    Parameters
    ----------
    name : str
        Its name, without its directory; of an address all of it, without secrets.
    digest : str
        Of its first bytes; empty for an address.
    size_bytes : int
        When it was begun.
    origin : int
        Time of its first picture, nanoseconds of Unix time.
    after : int or None
        Highest time in the stream before.
    before : Progress
        How far imports were before.
    """

    name: str
    digest: str
    size_bytes: int
    origin: int = 0
    after: int | None = None
    before: Progress = Progress()

    def is_of(self, other: FileRecord) -> bool:
        """Return whether two records are of the same file."""
        return (self.name, self.digest) == (other.name, other.digest)

    def explanation(self, number: int) -> Explanation:
        """Return it as a sink keeps it."""
        return Explanation(SOURCE, number, json.dumps(asdict(self), separators=(",", ":")))

    @classmethod
    def read(cls, text: str) -> FileRecord:
        """Return what a sink kept."""
        fields = json.loads(text)
        return cls(**{**fields, "before": Progress(**fields["before"])})


def record_of(path: str, shown: str) -> FileRecord:
    """Return what a file is known again by.

    Parameters
    ----------
    path : str
        A file or an address.
    shown : str
        The same without secrets.
    """
    if is_address(path):
        return FileRecord(shown, "", 0)
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    # Of the head alone: a file that is recorded still, or that was copied in part, goes on when it is longer.
    return FileRecord(os.path.basename(path), hashlib.sha256(head).hexdigest()[:32], size)


@dataclass(frozen=True)
class KnownFile:
    """A file that was begun: its number, how many packets of it are in the stream, and whether that is all."""

    number: int
    record: FileRecord
    packet_count: int
    is_finished: bool


def known_file(records: Sequence[FileRecord], progress: Progress, wanted: FileRecord) -> KnownFile | None:
    """Return what the stream has of a file; None where it was never begun.

    Parameters
    ----------
    records : sequence of FileRecord
        Of all files, in order.
    progress : Progress
        How far imports are.
    wanted : FileRecord
        The file, as :func:`record_of` finds it.
    """
    for number, record in reversed(list(enumerate(records, 1))):
        if record.is_of(wanted):
            later = records[number].before if number < len(records) else progress
            is_same = record.size_bytes == wanted.size_bytes
            return KnownFile(
                number, record, later.packets - record.before.packets, is_same and later.finished == number
            )
    return None


def file_to_begin(record: FileRecord, *, origin: int, after: int | None, before: Progress) -> FileRecord:
    """Return the record of a file that is begun now."""
    return replace(record, origin=origin, after=after, before=before)
