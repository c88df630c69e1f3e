"""What a segments sink holds: its manifest's entries, folded.  No I/O.

Invariants.  A partition's rows up to ``sealed_through`` are in sealed files, those of later epochs in the journal.
Only a seal moves a partition's ``sealed_through``, or what drops it, and only forwards.  ``growing`` names exactly the
partitions with rows in the journal that are not sealed, each with the epoch in which the first of them came.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.connectors.control.commands import is_schema_change
from holdfast.connectors.kit.explained import explained_with
from holdfast.connectors.segments.entries import Began, JournalFile, SealedSegment, SegmentsEntry
from holdfast.errors import invariant
from holdfast.ports import Explanation, Held
from holdfast.positions import Holding, Positions, covers_all
from holdfast.store.records import without_step_time

CHUNK_SEGMENTS = 1000
"""Sealed segments in one object that bases refer to."""


@dataclass(frozen=True)
class SegmentList:
    """An object with sealed segments, oldest first; of how many of them the data still consists."""

    name: str
    count: int
    size_bytes: int


@dataclass
class Holdings:
    """The state after an entry; :meth:`apply` moves it on.

    Parameters
    ----------
    last : SegmentsEntry
        The last entry: number, generation, and what is held.
    files : dict of str to JournalFile
        The journal, by name.
    growing : dict of str to Began
        By partition.
    sealed_through : dict of str to int
        Partition -> last epoch of which its rows are sealed, where the journal still has a file that old.
    starts : dict of int to Positions
        Where epochs begin: those in which something that grows began, and the last ones.
    chunks : tuple of SegmentList
        Objects with the sealed segments before ``recent``.
    recent : list of SealedSegment
        Those sealed last, in the order in which they were.
    removed : set of str
        Paths that are in a chunk and no longer part of the data.
    schema : str
        As in an entry.
    sealed_bytes : int
        Of the sealed files that the data consists of.
    refill : Holding, optional
        Up to where sealed files hold the rows of each partition, while rows of a lost journal come again.
    changes : list of (int, str)
        Epoch and text of each control row that has changed the columns.
    dropped_count : int
        Control rows that have dropped partitions.
    explained : dict of str to int
        Source -> how many explanations of its positions are kept.
    """

    last: SegmentsEntry = field(default_factory=SegmentsEntry)
    files: dict[str, JournalFile] = field(default_factory=dict)
    growing: dict[str, Began] = field(default_factory=dict)
    sealed_through: dict[str, int] = field(default_factory=dict)
    starts: dict[int, Positions] = field(default_factory=dict)
    chunks: tuple[SegmentList, ...] = ()
    recent: list[SealedSegment] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    schema: str = ""
    sealed_bytes: int = 0
    refill: Holding | None = None
    changes: list[tuple[int, str]] = field(default_factory=list)
    dropped_count: int = 0
    explained: dict[str, int] = field(default_factory=dict)
    _growing_names: pa.StringArray | None = None

    def apply(self, entry: SegmentsEntry) -> None:
        """Fold the next entry in."""
        last = self.last
        invariant(
            entry.number == last.number + 1
            and entry.generation >= last.generation
            and (entry.epoch >= last.epoch or entry.is_lost),
            f"entry {entry.number} of a manifest, of generation {entry.generation} and epoch {entry.epoch}, follows "
            f"entry {last.number}, of {last.generation} and {last.epoch}.",
            why="numbers, generations and epochs only grow.",
        )
        if entry.is_lost or entry.seals or entry.began or entry.dropped:
            self._growing_names = None
        if entry.is_lost:
            self.refill = self.holding(is_journal_lost=True)
            for each in (self.files, self.growing, self.sealed_through, self.starts):
                each.clear()
            self.changes = [each for each in self.changes if each[0] <= entry.epoch]  # the others come again
        start = last.positions
        for epoch, end in entry.ends:
            self.starts[epoch] = start
            start = end
        self.files |= {file.name: file for file in entry.files}
        for segment in entry.seals:
            self.growing.pop(segment.partition, None)
            self.sealed_through[segment.partition] = segment.last_epoch
        self.recent += entry.renamed
        self.sealed_bytes += sum(segment.size_bytes for segment in entry.renamed) - sum(entry.removed.values())
        for partition in entry.dropped:
            self.growing.pop(partition, None)
        self.sealed_through.update(entry.dropped)
        self.sealed_through.update(entry.skips)
        self.growing.update(entry.began)
        for name in entry.freed:
            self.files.pop(name, None)
        if entry.removed:
            gone = set(entry.removed)
            self.removed |= gone - {segment.path for segment in self.recent}
            self.recent = [segment for segment in self.recent if segment.path not in gone]
        self.schema = entry.schema or self.schema
        for control in entry.controls:
            if is_schema_change(control[1]):
                self.changes.append(control)
            else:
                self.dropped_count += 1
        self.explained = explained_with(self.explained, entry.explanations)
        self.last = entry
        if self.refill is not None and covers_all(entry.positions, self.refill.positions):
            self.refill = None

    def tidy(self) -> None:
        """Forget what only rows that are sealed needed.  Costs O(what grows).

        Not while a segment is being sealed: a later one of its partition begins in an epoch since.
        """
        first = min((file.epoch for file in self.files.values()), default=self.last.epoch + 1)
        self.sealed_through = {name: epoch for name, epoch in self.sealed_through.items() if epoch >= first}
        self.starts = {epoch: self.starts[epoch] for epoch in {began.epoch for began in self.growing.values()}}

    def growing_names(self) -> pa.StringArray:
        """Return the keys of ``growing`` as a column."""
        if self._growing_names is None:
            self._growing_names = pa.array(self.growing, pa.string())
        return self._growing_names

    def start_of(self, partition: str) -> Positions:
        """Return where a growing segment begins."""
        return self.starts[self.growing[partition].epoch]

    def holding(self, *, is_journal_lost: bool = False) -> Holding:
        """Return up to where each segment is held: everywhere, while there is a journal; else in sealed files only."""
        now = self.last.positions
        if not is_journal_lost:
            return Holding(now)
        began = {partition: self.start_of(partition) for partition in self.growing}
        if self.refill is None:
            return Holding(now, began)
        # Lost again before everything had come: what has not come yet is held as far as it was before.
        before = {name: at if covers_all(at, now) else now for name, at in self.refill.segments.items()}
        return Holding(self.refill.positions, before | began)

    def lost(self) -> tuple[int, Positions]:
        """Return the last epoch, and its end, of which every row is in a sealed file."""
        if not self.growing:
            return self.last.epoch, self.last.positions
        first = min(began.epoch for began in self.growing.values())
        return first - 1, self.starts[first]

    def lose(self) -> None:
        """Go on without the journal, as the entry of the next opening will say."""
        epoch, positions = self.lost()
        last = self.last
        self.apply(SegmentsEntry(last.number + 1, last.generation, epoch, positions, is_lost=True))

    def missing(self, there: Collection[str]) -> list[str]:
        """Return the journal files that are needed and not among those that are there: then none of it counts."""
        return [name for name in self.files if name not in there]

    def held(self) -> Held:
        """Return what is held, as the coordinator sees it."""
        return replace(self.last.held(), stops=self.stops(), explained=dict(self.explained))

    def stops(self) -> tuple[Positions, ...]:
        """Return where the epochs must end that bring what a lost journal had."""
        if self.refill is None:
            return ()
        found = [self.refill.positions, *self.refill.segments.values()]
        different = {json.dumps(each, sort_keys=True): each for each in found}  # many partitions, and few positions
        return tuple(each for each in different.values() if not covers_all(self.last.positions, each))

    def journal_bytes(self) -> int:
        """Return the size of the journal."""
        return sum(file.size_bytes for file in self.files.values())

    def copy(self) -> Holdings:
        """Return a copy that does not follow further entries."""
        return Holdings(
            self.last,
            dict(self.files),
            dict(self.growing),
            dict(self.sealed_through),
            dict(self.starts),
            self.chunks,
            list(self.recent),
            set(self.removed),
            self.schema,
            self.sealed_bytes,
            self.refill,
            list(self.changes),
            self.dropped_count,
            dict(self.explained),
        )

    # --- as bytes -----------------------------------------------------------------------------------------------

    def as_body(self) -> dict[str, Any]:
        """Return it as a JSON object: that of a base."""
        last = {name: getattr(self.last, name) for name in ("number", "generation", "epoch", "positions", "pts")}
        if self.last.recent_ends:
            last["recent_ends"] = self.last.recent_ends
        if self.last.explanations:  # they may not be copied yet: the next opening does it
            last["explanations"] = [vars(each) for each in self.last.explanations]
        return {
            "last": last,
            "files": [list(vars(file).values()) for file in self.files.values()],
            "growing": {partition: [began.epoch, began.at_us] for partition, began in self.growing.items()},
            "sealed_through": self.sealed_through,
            "starts": [[epoch, start] for epoch, start in self.starts.items()],
            "chunks": [[chunk.name, chunk.count, chunk.size_bytes] for chunk in self.chunks],
            "recent": [vars(segment) for segment in self.recent],
            "removed": sorted(self.removed),
            "schema": self.schema,
            "sealed_bytes": self.sealed_bytes,
            "refill": None if self.refill is None else [self.refill.positions, self.refill.segments],
            "changes": [list(each) for each in self.changes],
            "dropped_count": self.dropped_count,
            "explained": self.explained,
        }


def from_body(body: dict[str, Any]) -> Holdings:
    """Return what :meth:`Holdings.as_body` was called on."""
    files = [JournalFile(*each) for each in body["files"]]
    told = tuple(Explanation(**each) for each in body["last"].get("explanations", ()))
    return Holdings(
        SegmentsEntry(**{**without_step_time(body["last"]), "explanations": told}),
        {file.name: file for file in files},
        {partition: Began(*each) for partition, each in body["growing"].items()},
        dict(body["sealed_through"]),
        dict(body["starts"]),
        tuple(SegmentList(*each) for each in body["chunks"]),
        [SealedSegment(**each) for each in body["recent"]],
        set(body["removed"]),
        body["schema"],
        body["sealed_bytes"],
        None if body["refill"] is None else Holding(*body["refill"]),
        [(epoch, text) for epoch, text in body.get("changes", ())],
        body.get("dropped_count", 0),
        dict(body.get("explained", {})),
    )


def folded(base: Holdings, entries: Iterable[SegmentsEntry]) -> Holdings:
    """Return a base with the entries behind it."""
    for entry in entries:
        base.apply(entry)
    return base
