"""What makes a directory of segments hold what it should: files that change are written anew.

One entry of the manifest puts them in the place of the former ones.  Partitions whose rows in the journal change, or
that get rows while they grow, are sealed with it: a journal file is never changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import faults
from holdfast.connectors.kit.compared_columns import FoundRows, Moved
from holdfast.connectors.kit.expected import is_moved
from holdfast.connectors.kit.files.content import BATCH_ROWS, FileFormat, FilesContent, parsed_place
from holdfast.connectors.segments.dataset import growing_files, opened, place_of, with_partition
from holdfast.connectors.segments.entries import SealedSegment, SegmentsEntry
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import KEEP_ALL, PiecesReader, Retention
from holdfast.connectors.segments.manifest import SegmentsManifest
from holdfast.connectors.segments.places import Places
from holdfast.connectors.segments.sealing import REPAIRED, Sealing
from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Repair
from holdfast.store import durable
from holdfast.types import partition as files_partition
from holdfast.types.casting import declared
from holdfast.values import Losses

logger = logging.getLogger("holdfast.connectors.segments")

Removed = Mapping[int, int]
"""Number of a row in its file -> its hash."""


class RepairedSegments(Protocol):
    """The sink, as its repair sees it."""

    name: str
    places: Places
    sealing: Sealing

    @property
    def lock(self) -> threading.RLock:
        """Orders appends."""

    @property
    def manifest(self) -> SegmentsManifest:
        """Where it is durable."""

    def follow(self) -> SegmentsEntry:
        """Return the last entry, which is this run's; under :attr:`lock`."""

    def adopt(self, holdings: Holdings) -> None:
        """Take a state that was read from the manifest, and what seals with it; under :attr:`lock`."""

    def append(self, entry: SegmentsEntry) -> bool:
        """Append an entry and do what it says."""


@dataclass(frozen=True)
class SegmentsComparing:
    """What lets a segments sink be compared.

    Parameters
    ----------
    host : RepairedSegments
        The sink.
    format : FileFormat
        How rows lie in its files.
    control : object
        Its control columns, if it has any.
    retention : Retention
        What it drops.
    """

    host: RepairedSegments
    format: FileFormat
    control: object
    retention: Retention

    @contextmanager
    def opened(self) -> Iterator[FilesContent]:
        """Open a view of the rows."""
        self._check()
        with opened(self.host.places, self.format) as content:
            yield content

    def repaired(self, repair: Repair, now_us: int) -> int | None:
        """Remove and write rows; return how many, or None where the directory or its manifest has moved.

        Durable writes: 1. the files that are written anew, below ``sealing/``; after a crash the next start removes
        them.  2. the entry of the manifest: after it renames and removals will be done, by whoever opens the sink or
        appends next.
        """
        self._check()
        host = self.host
        with host.sealing.resting(), host.lock:
            host.follow()
            holdings = host.manifest.holdings()
            if is_moved(holdings.held(), repair.held):
                return None
            if not repair.removed.num_rows and not repair.written.num_rows:
                return 0
            changes = _Changes(host, self.format, holdings, repair.losses | self.format.losses, now_us)
            try:
                changes.take(repair)
                entry = holdings.last.following(**changes.entry())
            except Moved:
                changes.drop()
                return None
            except Exception:
                changes.drop()
                raise
            faults.reach("repair-uncommitted", holdings.last.epoch)
            host.adopt(holdings)
            if not host.append(entry):
                changes.drop()
                return None
            host.adopt(holdings)
        count = int(repair.removed.num_rows + repair.written.num_rows)
        logger.info("sink %s: repaired: %d rows", host.name, count)
        return count

    def _check(self) -> None:
        """Raise :class:`InvalidPipeline` if what the sink lacks may be what it was told to drop."""
        if self.control is not None or self.retention != KEEP_ALL:
            raise InvalidPipeline(
                f"{self.format.node} cannot be compared.",
                why="it drops rows by itself: retain= or commands among its rows say so.",
                do="compare a sink without retain= and control=.",
                participant=self.host.name,
            )


@dataclass
class _Changes:
    """What a repair changes: files that are written and not visible yet."""

    host: RepairedSegments
    format: FileFormat
    holdings: Holdings
    losses: Losses
    now_us: int
    seals: list[SealedSegment] = field(default_factory=list)
    joins: list[SealedSegment] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def take(self, repair: Repair) -> None:
        """Write the files."""
        places = self.host.places
        segments = {segment.path: segment for segment in self.host.manifest.sealed(self.holdings)}
        gone = {path for path, each in segments.items() if not os.path.lexists(place_of(places.directory, each))}
        above = os.path.relpath(places.journal, places.directory)
        grown = {os.path.join(above, name): sealed for name, sealed in growing_files(self.holdings)}
        removed: dict[str, dict[int, int]] = {}
        if repair.removed.num_rows:
            found, hashes = (repair.removed.column(name).to_pylist() for name in (PLACE_COLUMN, HASH_COLUMN))
            for place, hash_ in zip(found, hashes, strict=True):
                path, number = parsed_place(place)
                removed.setdefault(path, {})[number] = hash_
        written = self._written(repair.written.select(self.format.schema.names).to_batches())
        for path in sorted(removed.keys() - segments.keys() - grown.keys()):
            self._take_over(path, removed[path], written)
        of_journal = {path: removed[path] for path in removed.keys() & grown.keys()}
        self._seal(of_journal, grown, written)
        taking = self._taking(segments.values(), gone, written)
        for path in sorted((removed.keys() & segments.keys()) | taking.keys()):
            segment = segments[path]
            rows = written.pop(segment.partition) if path in taking else []
            source = place_of(places.directory, segment)
            kept = [*self._left(source, segment.path, removed.get(path, {})), *rows]
            self._write(self.joins, kept, segment)
            self.removed[path] = segment.size_bytes
        for partition, rows in written.items():
            last = self.holdings.last
            new = SealedSegment(
                partition, "", "", 0, 0, 0, last.epoch, last.epoch, last.positions, last.positions, self.now_us, 0, ""
            )
            self._write(self.joins, rows, new)
        self.removed |= {path: segments[path].size_bytes for path in gone}

    def entry(self) -> dict[str, Any]:
        """Return what the entry says; directories are synced."""
        places = self.host.places
        for path in {os.path.dirname(segment.path): segment.path for segment in (*self.seals, *self.joins)}.values():
            places.make_room(path, self.host.name)
        durable.sync_directory(places.sealing)
        return {
            "seals": tuple(self.seals),
            "joins": tuple(self.joins),
            "removed": self.removed,
            "dropped": self.dropped,
            "freed": tuple(self._freed()),
        }

    def drop(self) -> None:
        """Remove what was written."""
        for segment in (*self.seals, *self.joins):
            with suppress(OSError):
                os.unlink(self.host.places.path(segment.staged))

    def _written(self, batches: Sequence[pa.RecordBatch]) -> defaultdict[str, list[pa.RecordBatch]]:
        found: defaultdict[str, list[pa.RecordBatch]] = defaultdict(list)
        for batch in batches:
            rows = declared(batch, self.format.schema)
            for partition, of_partition in files_partition.split(rows, self.format.partition_by):
                found[partition].append(of_partition)
        return found

    def _take_over(self, path: str, removed: Removed, written: dict[str, list[pa.RecordBatch]]) -> None:
        """Let rows of a file of somebody else, of which some go, be rows of a segment."""
        constants = self.format.constants(path)
        for batch in self._left(self.host.places.path(path), path, removed):
            found = FoundRows.of(batch, self.format.schema, constants)
            rows = found.rows(self.losses, [b""] * found.row_count)
            for partition, several in self._written([rows.select(self.format.schema.names)]).items():
                written.setdefault(partition, []).extend(several)
        self.removed[path] = 0

    def _seal(
        self,
        removed: Mapping[str, Removed],
        grown: Mapping[str, frozenset[str]],
        written: dict[str, list[pa.RecordBatch]],
    ) -> None:
        """Seal the partitions whose rows in the journal change, and those that grow and get rows."""
        holdings = self.holdings
        touched = {partition for partition in written if partition in holdings.growing}
        for path, numbers in removed.items():
            touched |= set(self._journal_rows(path, grown[path], numbers))
        kept: dict[str, list[pa.RecordBatch]] = {partition: [] for partition in sorted(touched)}
        for path, sealed in grown.items():
            if touched:
                for partition, rows in self._journal_pieces(path, sealed, removed.get(path, {})):
                    if partition in touched:
                        kept[partition].append(rows)
        for partition, pieces in kept.items():
            last, began = holdings.last, holdings.growing[partition]
            segment = SealedSegment(
                partition, "", "", 0, 0, 0, began.epoch, last.epoch, holdings.start_of(partition), last.positions,
                began.at_us, 0, "",
            )  # fmt: skip
            if not self._write(self.seals, [*pieces, *written.pop(partition, [])], segment):
                self.dropped[partition] = last.epoch

    def _journal_rows(self, path: str, sealed: frozenset[str], removed: Removed) -> Iterator[str]:
        """Yield the partitions of rows that go; check that they are what they were."""
        first, count = 0, 0
        numbers = np.array(sorted(removed), np.int64)
        for partition, rows in PiecesReader(self.host.places.path(path)).pieces():
            if partition in sealed:
                continue
            here = numbers[(numbers >= first) & (numbers < first + rows.num_rows)]
            if len(here):
                chosen = with_partition(rows.take(pa.array(here - first)), partition, self.format.schema)
                self._check(FoundRows.of(chosen, self.format.schema, {}), [removed[at] for at in here.tolist()])
                count += len(here)
                yield partition
            first += rows.num_rows
        if count != len(numbers):
            raise Moved

    def _journal_pieces(
        self, path: str, sealed: frozenset[str], removed: Removed
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a journal file that are not sealed, without those that go."""
        first = 0
        for partition, rows in PiecesReader(self.host.places.path(path)).pieces():
            if partition in sealed:
                continue
            yield partition, _without(rows, first, removed)
            first += rows.num_rows

    def _left(self, source: str, path: str, removed: Removed) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a sealed file, or of one of somebody else, without those that go."""
        constants = self.format.constants(path)
        numbers = np.array(sorted(removed), np.int64)
        first = 0
        try:
            with pq.ParquetFile(source) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    here = numbers[(numbers >= first) & (numbers < first + batch.num_rows)]
                    if len(here):
                        found = FoundRows.of(batch.take(pa.array(here - first)), self.format.schema, constants)
                        self._check(found, [removed[at] for at in here.tolist()])
                    yield _without(batch, first, removed).replace_schema_metadata(None)
                    first += batch.num_rows
        except FileNotFoundError as error:
            raise Moved from error
        if len(numbers) and numbers[-1] >= first:
            raise Moved

    def _check(self, found: FoundRows, hashes: Sequence[int]) -> None:
        if found.hashes(self.losses)[0].tolist() != list(hashes):
            raise Moved

    def _taking(
        self, segments: Iterable[SealedSegment], gone: set[str], written: Mapping[str, object]
    ) -> dict[str, SealedSegment]:
        """Return the newest sealed file of each partition that gets rows."""
        newest: dict[str, SealedSegment] = {}
        for segment in segments:
            known = newest.get(segment.partition)
            is_taking = segment.partition in written and segment.path not in gone
            if is_taking and (known is None or segment.last_epoch >= known.last_epoch):
                newest[segment.partition] = segment
        return {segment.path: segment for segment in newest.values()}

    def _write(self, among: list[SealedSegment], pieces: Sequence[pa.RecordBatch], like: SealedSegment) -> bool:
        """Write a segment, if it has a row."""
        row_count = sum(piece.num_rows for piece in pieces)
        if not row_count:
            return False
        generation = self.holdings.last.generation
        staged, path = self.host.places.new_file(generation, like.partition, like.first_epoch, like.last_epoch)
        size_bytes = self.host.sealing.write_file(staged, pieces)
        among.append(
            replace(
                like,
                path=path,
                staged=staged,
                row_count=row_count,
                row_bytes=sum(piece.nbytes for piece in pieces),
                size_bytes=size_bytes,
                sealed_us=self.now_us,
                reason=REPAIRED,
            )
        )
        return True

    def _freed(self) -> Iterator[str]:
        """Yield the journal files of which every piece is sealed now."""
        done = {segment.partition for segment in self.seals} | self.dropped.keys()
        for name, sealed in growing_files(self.holdings) if done else ():
            reader = PiecesReader(os.path.join(self.host.places.journal, name))
            if {*reader.index["partition"].unique().to_pylist()} <= done | sealed:
                yield name


def _without(rows: pa.RecordBatch, first: int, removed: Removed) -> pa.RecordBatch:
    """Return rows but for those that go; they are numbered from ``first`` on."""
    here = [number - first for number in removed if first <= number < first + rows.num_rows]
    if not here:
        return rows
    is_kept = np.ones(rows.num_rows, bool)
    is_kept[here] = False
    return rows.filter(pa.array(is_kept))
