"""The commit log of a files sink: a put-if-absent sequence of entries whose last one says everything.

Invariants: numbers grow by one; an entry is never changed; of several writers exactly one creates a number,
so a writer that was overtaken learns it from the very write that would have committed.  The entry that
commits an epoch names all its renames: the next run that opens the log can finish them.  That entries grow, and follow
finished renames only, is asserted by who appends them (:mod:`holdfast.connectors.files.sink.sink`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.connectors.kit.believed import went_back
from holdfast.errors import Diverged
from holdfast.ports import Explanation, Held
from holdfast.positions import Positions
from holdfast.store.entry_log import EntryLog


@dataclass(frozen=True)
class LogEntry:
    """What a sink holds after one append.

    Parameters
    ----------
    number : int
        Place in the sequence, from 1; 0 stands for an empty log.
    generation : int
        Generation that appended it: no lower one may append after it.
    epoch : int
        Highest epoch held.
    after_epoch : int
        The renames belong to the epochs above this one.
    positions, pts, recent_ends
        Of ``epoch``, as in :class:`~holdfast.ports.Held`.
    renames : tuple of (str, str)
        Staged file -> final file, both relative to the sink's directory.  Empty for an entry that only fences.
    removals : tuple of str
        Files that a rewind withdraws, or that joined files replace, relative to the sink's directory.
    back_to : int, optional
        The entry is a rewind: the entries above this epoch, and before this one, do not count any more.
    is_repair : bool
        The entry is a repair: what the entries before it name may have been replaced.
    explained : mapping of str to int
        Source -> how many explanations of its positions are kept, those of this entry among them.
    explanations : tuple of Explanation
        Those that come with this entry; they are copied after it.
    schema : str
        Columns of the rows, partition columns included, by :func:`~holdfast.types.schema.encode_schema`.
    """

    number: int = 0
    generation: int = 0
    epoch: int = 0
    after_epoch: int = 0
    positions: Positions = field(default_factory=dict)
    pts: int | None = None
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()
    back_to: int | None = None
    recent_ends: str = ""
    is_repair: bool = False
    explained: Mapping[str, int] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    schema: str = ""

    @property
    def is_compaction(self) -> bool:
        """Whether its renames belong to no new epoch: they take the place of the removals.  A repair's do, too."""
        return bool(self.renames) and self.after_epoch == self.epoch

    @property
    def is_idle(self) -> bool:
        """Whether it is an epoch, and no fence, that neither brought nor took away a file."""
        is_epoch = self.epoch > self.after_epoch and self.back_to is None
        return is_epoch and not (self.renames or self.removals)

    def replaced(self, is_there: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the removals that may be done: what joined files replace, only where these are."""
        if not self.is_compaction:
            return self.removals
        gone = {os.path.dirname(final) for _, final in self.renames if not is_there(final)}
        return tuple(path for path in self.removals if os.path.dirname(path) not in gone)

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        known = dict(self.explained)
        return Held(
            self.epoch, self.generation, self.positions, self.pts, recent_ends=self.recent_ends, explained=known
        )


class FilesLog(EntryLog[LogEntry]):
    """The log in one directory; parameters as those of :class:`~holdfast.store.entry_log.EntryLog`."""

    def __init__(self, directory: str, *, aside: str) -> None:
        super().__init__(directory, aside=aside, encode=_encode, decode=_decode, gap=_gap)


@dataclass(frozen=True)
class FilesBehind:
    """What follows some positions: the last epoch before them, and what was published after it."""

    epoch: int
    epoch_count: int
    files: tuple[str, ...]


def since_repair(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Return the entries from the last repair on: what is named before it may have been replaced."""
    return entries[max((place for place, entry in enumerate(entries) if entry.is_repair), default=0) :]


def files_behind(entries: Sequence[LogEntry], to: Positions) -> FilesBehind | None:
    """Return what was published after some positions; None where no entry since the last repair ended there."""
    entries = since_repair(entries)
    at = max((place for place, entry in enumerate(entries) if entry.epoch and entry.positions == to), default=None)
    if at is None:
        return None
    later = [entry for entry in entries[at + 1 :] if entry.renames and not entry.is_compaction]
    files = tuple(final for entry in later for _, final in entry.renames)
    return FilesBehind(entries[at].epoch, len(later), files)


def _gap(path: str, entry: LogEntry) -> Diverged:
    return went_back(
        f"the log entry before {path} is gone; nothing was published.",
        participant=path,
        epoch=entry.epoch,
        generation=entry.generation,
    )


def _encode(entry: LogEntry) -> bytes:
    body = asdict(entry)
    for name in ("recent_ends", "is_repair", "explained", "explanations"):
        if not body[name]:
            del body[name]
    return (json.dumps({"format": 1, "entry": body, "sha256": _checksum(body)}) + "\n").encode()


def _decode(data: bytes, number: int) -> LogEntry:
    document = json.loads(data)
    body: Mapping[str, Any] = document["entry"]
    if document["sha256"] != _checksum(body):
        raise ValueError("its checksum does not match")
    renames = tuple((staged, final) for staged, final in body["renames"])
    removals = tuple(body.get("removals", ()))
    told = tuple(Explanation(**one) for one in body.get("explanations", ()))
    plain = {"renames": renames, "removals": removals, "explanations": told}
    entry = LogEntry(**{**body, **plain})
    if entry.number != number:
        raise ValueError(f"it carries the number {entry.number}")
    return entry


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
