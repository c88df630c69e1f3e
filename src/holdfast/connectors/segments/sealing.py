"""Seals segments that are due: reads their pieces, writes one file each, and appends the entry that makes them count.

Invariants.  One seal at a time.  A round works on a copy of the holdings, taken together with the journal's new files:
what comes later waits in ``_queue``, and is of later epochs.  Until the entry is durable nothing has changed but files
below ``sealing/``, and a failure removes these.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.connectors.kit.files.own_files import SmallNeighbours
from holdfast.connectors.segments import control
from holdfast.connectors.segments.entries import Began, JournalFile, SealedSegment, SegmentsEntry
from holdfast.connectors.segments.growth import SHORT, Due, Growth
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import KEEP_ALL, PiecesReader, Retention
from holdfast.connectors.segments.manifest import SegmentsManifest
from holdfast.connectors.segments.places import PartitionRows, Places, rows_of, write_file
from holdfast.connectors.segments.policies import Policy
from holdfast.errors import Fenced, Unavailable
from holdfast.store import durable

log = logging.getLogger("holdfast.connectors.segments")

GROUP_SEGMENTS = 256
GROUP_BYTES = 256 * 2**20
"""Sealed by one entry at most: the journal is looked through once for a group, and its files are there at once."""

JOINS_MAX = 4
"""Files that a round makes of small ones at most: what is due to be sealed does not wait for more."""

JOINED_CHUNKS = 10
"""Of the objects with sealed segments, so many are looked through for small ones when a run starts."""

REPAIRED = "repair"
"""The reason of a segment that a repair wrote."""

BEHIND_BYTES = 2**30
"""Rows that may come while a round of sealing lasts; then the next epoch waits for it."""


class SealingHost(Protocol):
    """The sink, as what seals sees it."""

    name: str
    places: Places

    @property
    def lock(self) -> threading.RLock:
        """Orders appends."""

    @property
    def holdings(self) -> Holdings:
        """The state after the last entry."""

    @property
    def manifest(self) -> SegmentsManifest:
        """Where it is durable."""

    def follow(self) -> SegmentsEntry:
        """Return the last entry, if it is this run's."""

    def append(self, entry: SegmentsEntry) -> bool:
        """Append an entry and do what it says."""

    def fenced_out(self) -> None:
        """Raise why an append found its number taken."""


@dataclass(frozen=True)
class _Came:
    """A journal file of this run, or, with nothing known of its partitions, of an earlier one."""

    file: JournalFile
    partitions: PartitionRows | None
    at_us: int


class Sealing:
    """What seals the segments of one sink; parameters as those of the sink, ``schema`` None where control rows change
    it: then a file has that of its rows.
    """

    what = "sealing segments"

    def __init__(
        self,
        host: SealingHost,
        policies: Sequence[Policy],
        *,
        target_bytes: int,
        sort_by: Sequence[str],
        compression: str | None,
        schema: pa.Schema | None,
        now_us: Callable[[], int],
        retention: Retention = KEEP_ALL,
        joins_small: bool = True,
    ) -> None:
        self._host = host
        self._policies = policies
        self._target_bytes = target_bytes
        self._sort_by = sort_by
        self._compression = compression
        self._schema = schema
        self._now_us = now_us
        self._retention = retention
        self._small: SmallNeighbours[SealedSegment] | None = None
        self._joins_small = joins_small
        self._versions: dict[str, int] = {}
        """Of the last segment in the small ones, by partition."""
        self._round = threading.Lock()
        self._queue: list[_Came] = []
        self._uncounted: deque[_Came] = deque()
        """What a round has taken from the queue, and not counted yet."""
        self._behind_bytes = 0
        self._growth = Growth()
        self._error: Exception | None = None
        self._is_doubtful = False
        """Whether the last entry may be in place, and is not counted here."""

    # --- called by the sink -------------------------------------------------------------------------------------

    def begin(self, holdings: Holdings) -> None:
        """Start from a state that was read; under the sink's lock."""
        self._is_doubtful = False
        self._queue = []
        self._small = None
        self._uncounted = deque(_Came(file, None, 0) for file in holdings.files.values())
        self._growth = Growth()
        for segment in holdings.recent:
            self._growth.learn(segment)

    def came(self, files: Sequence[JournalFile], partitions: Sequence[PartitionRows]) -> None:
        """Note what an epoch added; under the sink's lock."""
        now_us = self._now_us()
        self._queue += [_Came(file, each, now_us) for file, each in zip(files, partitions, strict=True)]
        self._behind_bytes += sum(file.size_bytes for file in files)

    def check(self) -> None:
        """Before an epoch: raise if sealing fails, and wait for it if it is far behind.

        What failed because something did not answer is tried again here: who publishes tries again in his turn, as
        often as with any failure to publish, and then the run stops.
        """
        error = self._error
        if isinstance(error, Unavailable):
            self.tend()
        elif error is not None:
            raise error
        elif self._behind_bytes > BEHIND_BYTES:
            self.tend()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let no round run meanwhile; entered before the sink's lock."""
        with self._round:
            yield

    def close(self) -> None:
        """Seal what policies say at the end of a run.  Does not raise: what is not sealed grows on."""
        try:
            if self._error is None:
                self.tend(is_closing=True)
        except Exception as error:
            log.warning("sink %s: not everything was sealed at the end: %s", self._host.name, error)

    # --- a round ------------------------------------------------------------------------------------------------

    def tend(self, *, is_closing: bool = False) -> int:
        """Seal everything that is due, and keep the manifest short; return how many segments were sealed."""
        with self._round:
            try:
                count = self._tend(is_closing)
            except Exception as error:
                self._error = error
                raise
            self._error = None
            return count

    def _tend(self, is_closing: bool) -> int:
        host = self._host
        asked = control.pending(host.places.own)
        with host.lock:
            if self._is_doubtful:  # else what the entry has sealed or joined would be sealed or joined once more
                host.follow()
                self.begin(host.holdings)
            growth = self._growth
            uncounted = self._uncounted
            uncounted += self._queue
            self._queue = []
            self._behind_bytes = 0
            holdings = host.holdings.copy()
        while uncounted:
            each = uncounted[0]
            partitions = each.partitions
            if partitions is None:
                partitions = PiecesReader(os.path.join(host.places.journal, each.file.name)).partitions()
            growth.add(each.file, partitions, holdings)
            uncounted.popleft()
        due = growth.due(
            holdings,
            self._policies,
            target_bytes=self._target_bytes,
            now_us=self._now_us(),
            flushed=control.wanted(asked),
            is_closing=is_closing,
        )
        count = sum(self._seal(group, holdings, growth) for group in _groups(due))
        control.obeyed(asked)
        self._drop_expired()
        if self._joins_small:
            self._join()
        self._keep_short()
        return count

    def _seal(self, group: Sequence[Due], holdings: Holdings, growth: Growth) -> int:
        """Seal a group of segments up to the last epoch of the state; return how many."""
        host = self._host
        pieces, per_file = self._pieces(group, holdings)
        written: list[SealedSegment] = []
        is_sent = False
        try:
            for due in group:
                for version, rows in pieces.pop(due.segment.partition).items():
                    written.append(self._write(due, version, rows))
                    growth.learn(written[-1])
                if due.reason == "size" and written[-1].size_bytes < SHORT * self._target_bytes:
                    self._drop([written.pop()])  # compressed better than was known: it is to grow on
            if not written:
                return 0
            durable.sync_directory(host.places.sealing)
            for path in {os.path.dirname(segment.path): segment.path for segment in written}.values():
                host.places.make_room(path, host.name)
            partitions = {segment.partition for segment in written}
            left = {name: len(found & partitions) for name, found in per_file.items() if found & partitions}
            with host.lock:
                last = host.follow()
                if growth is not self._growth:  # the manifest was read anew: the state may be another one
                    raise Unavailable(f"Sink {host.name!r} was opened anew while it sealed.", do="try again.")
                freed = growth.free(left)
                entry = last.following(
                    began=self._grow_on(partitions),
                    seals=tuple(written),
                    freed=freed,
                )
                is_sent = True
                if not host.append(entry):
                    host.fenced_out()
        except Exception as error:
            self._undo(written, error, is_sent=is_sent)
            raise
        growth.sealed(partitions, left)
        if self._small is not None:
            self._add_small(self._small, written)
        for name in freed:
            holdings.files.pop(name, None)
        for segment in written:
            log.info("sink %s: sealed %s (%s)", host.name, segment.path, segment.reason)
        return len(written)

    def _pieces(
        self, group: Sequence[Due], holdings: Holdings
    ) -> tuple[dict[str, dict[int, list[pa.RecordBatch]]], dict[str, set[str]]]:
        """Return the rows of segments, by version, and which partitions of them each journal file has."""
        first = {due.segment.partition: due.segment.first_epoch for due in group}
        since = min(first.values())
        found: dict[str, dict[int, list[pa.RecordBatch]]] = {partition: {} for partition in first}
        per_file: dict[str, set[str]] = {}
        for file in holdings.files.values():
            if file.epoch < since:
                continue
            path = os.path.join(self._host.places.journal, file.name)
            with durable.explained(f"reading {path}"):
                for partition, rows in PiecesReader(path).pieces(first):
                    if file.epoch >= first[partition]:
                        found[partition].setdefault(file.version, []).append(rows)
                        per_file.setdefault(file.name, set()).add(partition)
        return found, per_file

    def _write(self, due: Due, version: int, pieces: Sequence[pa.RecordBatch]) -> SealedSegment:
        host, segment = self._host, due.segment
        generation = host.holdings.last.generation
        staged, path = host.places.new_file(generation, segment.partition, segment.first_epoch, segment.last_epoch)
        size_bytes = self.write_file(staged, pieces)
        row_count = sum(piece.num_rows for piece in pieces)
        return SealedSegment(
            segment.partition,
            path,
            staged,
            row_count,
            segment.row_bytes * row_count // segment.rows,
            size_bytes,
            segment.first_epoch,
            segment.last_epoch,
            segment.start,
            segment.end,
            segment.began_us,
            segment.now_us,
            due.reason,
            version,
        )

    def _grow_on(self, partitions: set[str]) -> dict[str, Began]:
        """Return where partitions grow again: with what came since the round began."""
        found: dict[str, Began] = {}
        for each in self._queue:
            for partition in () if each.partitions is None else each.partitions.among(partitions):
                found.setdefault(partition, Began(each.file.epoch, each.at_us))
        return found

    def _undo(self, segments: Sequence[SealedSegment], error: Exception, *, is_sent: bool) -> None:
        """Drop files that no entry names; where the entry may be in place, the next round begins from the manifest."""
        if not is_sent or isinstance(error, Fenced | Unavailable):
            self._drop(segments)
        else:
            self._is_doubtful = True

    def _drop(self, segments: Sequence[SealedSegment]) -> None:
        for segment in segments:
            with suppress(OSError):
                os.unlink(self._host.places.path(segment.staged))

    def _drop_expired(self) -> None:
        """Drop old segments, as far as nothing that grows began before they ended."""
        host = self._host
        if self._retention == KEEP_ALL:
            return
        with host.lock:
            holdings, growth = host.holdings.copy(), self._growth
        began = min((began.epoch for began in holdings.growing.values()), default=holdings.last.epoch + 1)
        expired = self._retention.expired(
            host.manifest.sealed(holdings),
            total_bytes=holdings.sealed_bytes,
            now_us=self._now_us(),
            before_epoch=began,
        )
        removed = {segment.path: segment.size_bytes for segment in expired}
        if not removed:
            return
        with host.lock:
            last = host.follow()
            if growth is not self._growth:  # a control row may have dropped some of them: in the next round
                return
            entry = last.following(
                removed=removed,
            )
            if not host.append(entry):
                host.fenced_out()
        if self._small is not None:
            self._small.remove(removed)
        log.info("sink %s: dropped %d old segments", host.name, len(removed))

    def _join(self) -> None:
        """Join small segments to larger ones, as many as belong together."""
        host = self._host
        small = self._small
        if small is None:
            with host.lock:
                holdings, growth = host.holdings.copy(), self._growth
            holdings.chunks = holdings.chunks[-JOINED_CHUNKS:]
            small, self._versions = SmallNeighbours(self._target_bytes), {}
            self._add_small(small, host.manifest.sealed(holdings))
            with host.lock:
                if growth is not self._growth:
                    return
                self._small = small
        for _ in range(JOINS_MAX):
            run = small.due()
            if not run or small is not self._small:
                return
            try:
                pieces = [rows for each in run for rows in rows_of(host.places.path(each.path))]
            except FileNotFoundError as error:
                log.warning("sink %s: %s was sealed and has been removed", host.name, error.filename)
                small.forget(run[0].partition)
                continue
            segment = self._write_joined(run, pieces)
            is_sent = False
            try:
                with host.lock:
                    last = host.follow()
                    if small is not self._small:  # a control row or a repair may have dropped what is joined
                        self._drop([segment])
                        return
                    entry = last.following(
                        joins=(segment,),
                        removed={each.path: each.size_bytes for each in run},
                    )
                    is_sent = True
                    if not host.append(entry):
                        host.fenced_out()
            except Exception as error:
                self._undo([segment], error, is_sent=is_sent)
                raise
            small.joined(run, segment)
            log.info("sink %s: joined %d files to %s", host.name, len(run), segment.path)

    def _add_small(self, small: SmallNeighbours[SealedSegment], segments: Iterable[SealedSegment]) -> None:
        """Note what was sealed, in its order; files of several versions of the columns are no neighbours.

        One that a repair wrote anew comes behind younger ones: it is not joined, nor is what comes before it.
        """
        for segment in segments:
            if segment.reason == REPAIRED:
                small.forget(segment.partition)
                continue
            if self._versions.setdefault(segment.partition, segment.version) != segment.version:
                small.forget(segment.partition)
                self._versions[segment.partition] = segment.version
            small.add([segment])

    def _write_joined(self, run: Sequence[SealedSegment], pieces: Sequence[pa.RecordBatch]) -> SealedSegment:
        first, last = run[0], run[-1]
        host = self._host
        generation = host.holdings.last.generation
        staged, path = host.places.new_file(generation, first.partition, first.first_epoch, last.last_epoch)
        size_bytes = self.write_file(staged, pieces)
        durable.sync_directory(host.places.sealing)
        return SealedSegment(
            first.partition,
            path,
            staged,
            sum(each.row_count for each in run),
            sum(each.row_bytes for each in run),
            size_bytes,
            first.first_epoch,
            last.last_epoch,
            first.start,
            last.end,
            first.began_us,
            last.sealed_us,
            "compaction",
            first.version,
        )

    def write_file(self, staged: str, pieces: Sequence[pa.RecordBatch]) -> int:
        """Write the file of a segment below ``sealing/``; return its size."""
        host = self._host
        path = host.places.path(staged)
        schema = pieces[0].schema if self._schema is None else self._schema
        with durable.explained(f"sealing a segment of sink {host.name!r}"):
            try:
                return write_file(path, pieces, schema, sort_by=self._sort_by, compression=self._compression)
            except BaseException:
                with suppress(OSError):
                    os.unlink(path)
                raise

    def _keep_short(self) -> None:
        host = self._host
        with host.lock:
            growth = self._growth
            if not host.manifest.is_base_due(host.holdings):
                return
            host.holdings.tidy()
            holdings = host.holdings.copy()
            if self._schema is None:  # an epoch may drop what would be written meanwhile
                holdings = host.manifest.write_base(holdings)
                host.holdings.recent, host.holdings.chunks = holdings.recent, holdings.chunks
                host.holdings.removed = holdings.removed
                return
        count = len(holdings.recent)
        holdings = host.manifest.write_base(holdings)
        with host.lock:
            if growth is self._growth and holdings.chunks != host.holdings.chunks:
                if len(holdings.recent) < count:
                    del host.holdings.recent[:count]
                host.holdings.chunks = holdings.chunks
                host.holdings.removed = holdings.removed


def _groups(due: Sequence[Due]) -> Iterator[list[Due]]:
    """Yield what one entry seals, in order."""
    group: list[Due] = []
    size = 0
    for each in due:
        if group and (len(group) >= GROUP_SEGMENTS or size + each.segment.row_bytes > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(each)
        size += each.segment.row_bytes
    if group:
        yield group
