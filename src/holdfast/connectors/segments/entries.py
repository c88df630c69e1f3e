"""What the manifest of a segments sink is made of: entries, and the records in them, as values and as bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from holdfast.ports import Explanation, Held
from holdfast.positions import Positions
from holdfast.store.records import without_step_time

T = TypeVar("T")


@dataclass(frozen=True)
class JournalFile:
    """Rows of one task and epoch, in the journal: it counts once an entry names it.

    Parameters
    ----------
    name : str
        In the journal's directory.
    epoch : int
        The epoch that it belongs to.
    row_count, row_bytes : int
        Rows, and their bytes in memory.
    size_bytes : int
        Of the file.
    version : int
        How often control rows had changed the columns before its rows.
    """

    name: str
    epoch: int
    row_count: int
    row_bytes: int
    size_bytes: int
    version: int = 0


@dataclass(frozen=True)
class SealedSegment:
    """One sealed segment: a file, and which rows of its partition it holds.

    Parameters
    ----------
    partition : str
        Its directory below the sink's: ``day=mo/route=LHR%2FJFK``; empty where nothing is partitioned.
    path : str
        The file, relative to the sink's directory.
    staged : str
        Where it is until it is renamed, relative to the sink's directory.
    row_count, row_bytes, size_bytes : int
        Rows, their bytes in the journal, and the file's.
    first_epoch, last_epoch : int
        It holds all rows of its partition of these epochs and those between them: those of its version.
    start, end : Positions
        Before the first of them, and after the last.
    began_us, sealed_us : int
        When it began to grow, and when it was sealed; Unix time.
    reason : str
        The policy's word.
    version : int
        How often control rows had changed the columns before its rows.
    """

    partition: str
    path: str
    staged: str
    row_count: int
    row_bytes: int
    size_bytes: int
    first_epoch: int
    last_epoch: int
    start: Positions
    end: Positions
    began_us: int
    sealed_us: int
    reason: str
    version: int = 0


@dataclass(frozen=True)
class Began:
    """Where a partition's growing segment began: in this epoch, at this time."""

    epoch: int
    at_us: int


@dataclass(frozen=True)
class SegmentsEntry:
    """What one append to the manifest changed.

    Parameters
    ----------
    number : int
        Place in the sequence, from 1.
    generation : int
        Generation that appended it.
    epoch, positions, pts, recent_ends
        What the sink holds after it, as in :class:`~holdfast.ports.Held`.
    ends : tuple of (int, Positions)
        Each epoch that it publishes, and where that ends.
    files : tuple of JournalFile
        Of these epochs.
    began : mapping of str to Began
        Partitions whose segment begins to grow.
    seals : tuple of SealedSegment
        Segments that end here: what of their partitions is later grows on as another one.
    joins : tuple of SealedSegment
        Segments that take the place of several which were sealed before: these are in ``removed``.
    freed : tuple of str
        Journal files of which every piece is sealed now.
    removed : mapping of str to int
        Sealed files that are no longer part of the data: path -> size.
    is_lost : bool
        The journal is lost: what grew begins again where it began, and positions and epoch go back to the first such
        place.
    skips : mapping of str to int
        Partition -> epoch of which its rows are not taken: sealed files have them, from before the journal was lost.
    schema : str
        Columns of the rows from now on, partition columns included: Arrow's message, base64.  Empty: as before.
    controls : tuple of (int, str)
        Epoch and text of each control row that was carried out.
    dropped : mapping of str to int
        Partition -> epoch up to which its rows in the journal are no longer part of the data.
    explanations : tuple of Explanation
        What the positions mean, as far as the sink lacked it; copied after the entry.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    ends: tuple[tuple[int, Positions], ...] = ()
    files: tuple[JournalFile, ...] = ()
    began: Mapping[str, Began] = field(default_factory=dict)
    seals: tuple[SealedSegment, ...] = ()
    joins: tuple[SealedSegment, ...] = ()
    freed: tuple[str, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)
    is_lost: bool = False
    skips: Mapping[str, int] = field(default_factory=dict)
    schema: str = ""
    controls: tuple[tuple[int, str], ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    recent_ends: str = ""
    explanations: tuple[Explanation, ...] = ()

    @property
    def renamed(self) -> tuple[SealedSegment, ...]:
        """The segments whose files it makes visible."""
        return (*self.seals, *self.joins)

    def following(self, **changes: Any) -> SegmentsEntry:
        """Return the next entry of the same generation, after which the sink holds the same epochs."""
        return SegmentsEntry(
            number=self.number + 1,
            generation=self.generation,
            epoch=self.epoch,
            positions=self.positions,
            pts=self.pts,
            recent_ends=self.recent_ends,
            **changes,
        )

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return Held(self.epoch, self.generation, self.positions, self.pts, recent_ends=self.recent_ends)


_EMPTY = SegmentsEntry()


def encode_entry(entry: SegmentsEntry) -> bytes:
    """Return the bytes of an entry; what it does not change is not in them."""
    values = {each.name: getattr(entry, each.name) for each in fields(entry)}
    body = {name: value for name, value in values.items() if value != getattr(_EMPTY, name)}
    body["files"] = [_compact(each) for each in entry.files]
    body["seals"] = [vars(each) for each in entry.seals]
    body["joins"] = [vars(each) for each in entry.joins]
    body["explanations"] = [vars(each) for each in entry.explanations]
    body["began"] = {partition: [began.epoch, began.at_us] for partition, began in entry.began.items()}
    return seal({name: value for name, value in body.items() if value not in ([], {})})


def decode_entry(data: bytes, number: int) -> SegmentsEntry:
    """Return the entry; raise ValueError, KeyError or TypeError where the bytes are not what was written."""
    body = unseal(data)
    entry = SegmentsEntry(
        **{
            **without_step_time(body),
            "ends": tuple((epoch, end) for epoch, end in body.get("ends", ())),
            "files": tuple(JournalFile(*each) for each in body.get("files", ())),
            "began": {partition: Began(*each) for partition, each in body.get("began", {}).items()},
            "seals": tuple(SealedSegment(**each) for each in body.get("seals", ())),
            "joins": tuple(SealedSegment(**each) for each in body.get("joins", ())),
            "freed": tuple(body.get("freed", ())),
            "explanations": tuple(Explanation(**each) for each in body.get("explanations", ())),
            "controls": tuple((epoch, text) for epoch, text in body.get("controls", ())),
        }
    )
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def seal(body: Mapping[str, Any]) -> bytes:
    """Return an object's bytes, with a checksum."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f'{{"format":1,"sha256":"{_checksum(text)}","body":{text}}}\n'.encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return what :func:`seal` was given; raise ValueError, KeyError or TypeError where it is damaged."""
    document = json.loads(data)
    body: dict[str, Any] = document["body"]
    if document["sha256"] != _checksum(json.dumps(body, sort_keys=True, separators=(",", ":"))):
        raise ValueError("its checksum does not match")
    return body


def _compact(file: JournalFile) -> list[Any]:
    return [getattr(file, each.name) for each in fields(file)]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
