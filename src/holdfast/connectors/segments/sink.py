"""The runtime of the segments sink: an entry of its manifest commits an epoch; what seals, seals beside that.

Invariants.  One lock orders appends: those of epochs and those of seals.  An entry is appended only when the renames
of the one before are done, so that only the last can have some left.  What an entry names stays until one that frees
it is durable.  A seal takes rows of whole epochs of its partition, all up to some epoch (design/0016).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.expected import rows_gone, went_back
from holdfast.connectors.kit.files import existing as check
from holdfast.connectors.kit.files.content import FileFormat
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.files.staged import missing_bytes
from holdfast.connectors.kit.log_sink import AttemptName, LogSink
from holdfast.connectors.kit.maintenance import Tending
from holdfast.connectors.segments import places, refill
from holdfast.connectors.segments.control import CutEpochs, SegmentsControl
from holdfast.connectors.segments.entries import Began, JournalFile, SegmentsEntry
from holdfast.connectors.segments.growth import check_change
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import KEEP_ALL, JournalStaging, PiecesReader, Retention, file_of, task_of
from holdfast.connectors.segments.manifest import SegmentsManifest, as_opened
from holdfast.connectors.segments.places import PartitionRows, Places
from holdfast.connectors.segments.policies import Policy
from holdfast.connectors.segments.repairing import SegmentsComparing
from holdfast.connectors.segments.sealing import Sealing
from holdfast.ports import (
    Content,
    Explanation,
    Held,
    Publication,
    Refused,
    Repair,
    RunIdentity,
    Sink,
    Staged,
    WriterFactory,
)
from holdfast.store import durable
from holdfast.types.schema import decode_schema, encode_schema

log = logging.getLogger("holdfast.connectors.segments")


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True)
class _Cut:
    """What an entry will name: journal files, the rows of each by partition, and what of them is there already."""

    epochs: CutEpochs
    partitions: Sequence[PartitionRows]
    skips: Mapping[str, int]


class SegmentsSink(LogSink[SegmentsEntry, _Cut]):
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    name, pipeline : str
        Identity.
    schema : pyarrow.Schema
        Columns of the rows of data, partition columns included.
    directory : str
        Absolute path.
    policies : sequence of Policy
        In the order in which they are asked.
    control : ControlColumns, optional
        Which columns of the rows are not data.
    is_tended : bool
        Whether a thread seals what is due; else :attr:`sealing` is called by a test.
    now_us : callable
        The clock.

    Notes
    -----
    ``publish`` of a carried epoch syncs the journal's file and directory, and the entry and its directory.
    """

    _log = log
    log_name = "manifest"

    def __init__(
        self,
        name: str,
        pipeline: str,
        schema: pa.Schema,
        directory: str,
        *,
        partition_by: tuple[str, ...],
        policies: Sequence[Policy],
        target_bytes: int,
        sort_by: tuple[str, ...] = (),
        compression: str | None = "zstd",
        retention: Retention = KEEP_ALL,
        joins_small: bool = True,
        control: ControlColumns | None = None,
        is_tended: bool = True,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        super().__init__(name, pipeline)
        self._now_us = now_us
        self._schema = schema
        self._comparing = SegmentsComparing(
            self, FileFormat(f"sink {name!r}", schema, partition_by), control, retention
        )
        self.places = Places(directory, pipeline, name)
        durable.tighten(os.path.join(directory, places.OWN_DIRECTORY))
        durable.prepare(self.places.own, aside=self.places.aside, published=directory)
        with durable.explained(f"opening {self.places.own}"):
            for below in (self.places.manifest, self.places.journal, self.places.sealing):
                durable.make_directory(below)
        self._manifest = SegmentsManifest(self.places.manifest, aside=self.places.aside)
        self._staging = JournalStaging(self.places.journal, schema, partition_by)
        self._control = (
            SegmentsControl(name, pipeline, self.places.own, control, schema, self._staging) if control else None
        )
        self._check_past(partition_by)
        self._explanations = explanations_in(self.places.explanations, f"sink {name!r}")
        self._holdings = Holdings()
        self.sealing = Sealing(
            self,
            policies,
            target_bytes=target_bytes,
            sort_by=sort_by,
            compression=compression,
            schema=None if control else pa.schema([field for field in schema if field.name not in partition_by]),
            now_us=now_us,
            retention=retention,
            joins_small=joins_small,
        )
        self._tending = Tending(self.sealing) if is_tended else None
        self._is_at_work = False
        self._written: list[str] = []
        """Journal files that were written for an entry which is not appended yet."""

    @property
    def staging(self) -> str:
        """How large epochs are staged."""
        if self._control is not None:
            return "Arrow files (control rows have an order, so the driver writes)"
        return "journal files, one for each task"

    def __repr__(self) -> str:
        return f"SegmentsSink({self.name!r}, {self.places.directory!r})"

    @property
    def place(self) -> str:
        """Where the manifest lies, in errors."""
        return self.places.own

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, finish the renames of the last entry, return what is held."""
        held = super().open(run)
        if self._holdings.growing and self._tending is not None:
            self._tending.start()
        return held

    def _fence(self, last: SegmentsEntry, run: RunIdentity) -> SegmentsEntry:
        if self._holdings.last.number != last.number:  # opened once more, after others have appended
            self._holdings = self._manifest.holdings()
        holdings = self._holdings
        is_lost = refill.is_journal_lost(self.name, holdings, self._staging.names())
        epoch, positions = holdings.lost() if is_lost else (last.epoch, last.positions)
        schema = encode_schema(self._schema_behind([each for each in holdings.changes if each[0] <= epoch]))
        return SegmentsEntry(
            number=last.number + 1,
            generation=run.generation,
            epoch=epoch,
            positions=positions,
            pts=None if is_lost else last.pts,
            recent_ends="" if is_lost else last.recent_ends,
            freed=tuple(holdings.files) if is_lost else (),
            is_lost=is_lost,
            schema=schema if schema != holdings.schema else "",
        )

    def _may_follow(self, entry: SegmentsEntry, last: SegmentsEntry) -> bool:
        return entry.is_lost or super()._may_follow(entry, last)

    def _took_over(self, fence: SegmentsEntry, last: SegmentsEntry) -> Held:
        self.places.sweep_sealing(self._generation)
        self.adopt(self._holdings)
        return dataclasses.replace(self._holdings.held(), generation=last.generation)

    def writer_factory(self) -> WriterFactory:
        """Return the factory that executors call."""
        return self._staging if self._control is None else self._control.staging.factory()

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check what could not name a directory; staged rows are in the journal already."""
        if self._control is not None:
            with self._lock:
                holdings = self._holdings.copy()
            return self._control.admit(publication, holdings)
        return super().admit(publication, earlier)

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the carried rows whose partition could not be named; staged rows are in the journal already."""
        if self._control is not None:
            control, before = self._control, [self._control.columns(self._manifest.holdings().changes)]
            return refusals.rejected(publication, lambda part: control.rows_of(part, before))
        return super().reject(publication, earlier)

    def _check(self, rows: pa.Table) -> None:
        self._staging.check(rows)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Hold the epochs: one entry for all of them."""
        self.sealing.check()
        super().publish(publications, expected)
        if self._is_at_work and self._tending is not None:
            self._tending.start()

    def _tidy(self, publications: Sequence[Publication], entry: SegmentsEntry | None) -> None:
        if entry is None:
            return
        if self._control is not None:
            self._control.staging.remove([part for publication in publications for part in publication.parts])
        self._is_at_work = True

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose journal files are gone."""
        if self._control is not None:
            return self._control.staging.expired(parts)
        files = {part.name: file_of(part) for part in parts}
        return [name for name, file in files.items() if file is not None and self._missing(file) is not None]

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what an opening would find, and the names of journal files that the manifest does not name."""
        staged = [each.name for each in self._staging.names()]
        arriving = self._control.staging.names() if self._control is not None else ()
        named, holdings = self._manifest.holdings().files, as_opened(self._manifest, self.places.journal)
        staged = [name for name in staged if name not in named]
        return holdings.held(), sorted({f"{self._pipeline}/{task_of(name)}" for name in staged} | {*arriving})

    def control_counts(self) -> dict[str, int]:
        """Return how many control rows of each kind were carried out."""
        holdings = self._manifest.holdings()
        return {"schema": len(holdings.changes), "partition": holdings.dropped_count} if self._control else {}

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        holdings = self._manifest.holdings()
        return self._explanations.all(self._explanations.count(holdings.held()), holdings.last.explanations)

    def content(self) -> AbstractContextManager[Content]:
        """Open a view of the rows."""
        return self._comparing.opened()

    def repair(self, repair: Repair) -> int | None:
        """Write the files anew whose rows change, and seal what grows beside them."""
        return self._comparing.repaired(repair, self._now_us())

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name."""
        with self._lock:
            if self._last().generation != self._generation:  # fenced: what is staged may be the newer run's
                return 0
            count = super().sweep(below_epoch=below_epoch)
            return count + (self._control.staging.sweep(self._generation, below_epoch) if self._control else 0)

    def close(self) -> None:
        """Seal what policies say at the end of a run that published, if this one is still the owner."""
        if self._tending is not None:
            self._tending.stop()
        if self._is_at_work:
            self._is_at_work = False
            self.sealing.close()

    # --- for what seals -----------------------------------------------------------------------------------------

    @property
    def holdings(self) -> Holdings:
        """The state after the last entry; read and changed under :attr:`lock` only."""
        return self._holdings

    @property
    def manifest(self) -> SegmentsManifest:
        """Where it is durable."""
        return self._manifest

    def adopt(self, holdings: Holdings) -> None:
        """Take a state that was read from the manifest; under :attr:`lock`."""
        self._holdings = holdings
        self.sealing.begin(holdings)

    def append(self, entry: SegmentsEntry) -> bool:
        """Append an entry and do what it says; under :attr:`lock`.  False, with nothing changed, if it is not ours."""
        last = self._holdings.last
        self._finish(last)
        if not self._append(entry, last):
            return False
        self._finish(entry, is_new=True)
        return True

    def _finish(self, entry: SegmentsEntry, *, is_new: bool = False) -> None:
        if not self.places.is_finished(entry) and entry.renamed and not is_new:
            self._manifest.sync()  # its writer may have died before: no file may outlive the entry that names it
        self.places.finish(entry, self._pipeline, self.name)
        self._explanations.keep(entry.explanations, is_new=is_new)

    # --- before the commit --------------------------------------------------------------------------------------

    def _prepare(self, new: Sequence[Publication], last: SegmentsEntry, carried: list[Staged]) -> _Cut:
        self._written = []
        epochs = self._cut(new, carried)
        partitions = [self._partitions(file) for file in epochs.files]
        skips = refill.skips(self.name, self._pipeline, self._holdings, new, epochs.files, partitions)
        return _Cut(epochs, partitions, skips)

    def _entry(
        self, new: Sequence[Publication], last: SegmentsEntry, prepared: _Cut, told: Sequence[Explanation]
    ) -> SegmentsEntry:
        record, epochs = new[-1].record, prepared.epochs
        return SegmentsEntry(
            number=last.number + 1,
            generation=self._generation,
            epoch=record.epoch,
            positions=record.positions,
            pts=record.pts,
            recent_ends=record.recent_ends,
            ends=tuple((each.record.epoch, each.record.positions) for each in new),
            files=tuple(epochs.files),
            began=self._began(epochs.files, prepared.partitions, epochs.dropped),
            skips=prepared.skips,
            controls=epochs.controls,
            dropped=epochs.dropped,
            removed=epochs.removed,
            schema=epochs.schema,
            explanations=tuple(told),
        )

    def _committed(self, entry: SegmentsEntry, prepared: _Cut) -> None:
        if entry.dropped or entry.removed:
            self.sealing.begin(self._holdings)
        else:
            self.sealing.came(prepared.epochs.files, prepared.partitions)

    def _cut(self, new: Sequence[Publication], carried: list[Staged]) -> CutEpochs:
        if self._control is None:
            return CutEpochs([file for publication in new for file in self._files(publication, carried)])
        return self._control.prepare(new, self._holdings, self._manifest.sealed(self._holdings), self._written)

    def _schema_behind(self, changes: Sequence[tuple[int, str]]) -> pa.Schema:
        return self._schema if self._control is None else self._control.columns(changes).schema

    def _files(self, publication: Publication, carried: list[Staged]) -> list[JournalFile]:
        """Return the journal files of one epoch; carried rows are staged for it."""
        handles = self._handles(publication, self._staging, carried)
        files = [file for file in map(file_of, handles) if file is not None]
        for file in files:
            why = self._missing(file)
            if why is not None:
                self._check_generation(self._last())  # a newer generation may have swept it
                raise rows_gone(
                    f"sink {self.name!r}",
                    f"{self._pipeline}/{task_of(file.name)}",
                    why,
                    pipeline=self._pipeline,
                    participant=self.name,
                )
        return files

    def _missing(self, file: JournalFile) -> str | None:
        return missing_bytes(os.path.join(self.places.journal, file.name), file.size_bytes)

    def _partitions(self, file: JournalFile) -> PartitionRows:
        with durable.explained(f"reading {file.name} of sink {self.name!r}"):
            return PiecesReader(os.path.join(self.places.journal, file.name)).partitions()

    def _began(
        self, files: Sequence[JournalFile], partitions: Sequence[PartitionRows], dropped: Collection[str]
    ) -> dict[str, Began]:
        """Return the partitions that do not grow yet, or are dropped before they do, and where they begin to."""
        now_us = self._now_us()
        growing, names = self._holdings.growing, self._holdings.growing_names()
        found: dict[str, Began] = {}
        for file, each in zip(files, partitions, strict=True):
            for partition in [*each.unknown(growing, names), *(each.among(dropped) if dropped else ())]:
                found.setdefault(partition, Began(file.epoch, now_us))
        return found

    def _check_past(self, partition_by: tuple[str, ...]) -> None:
        """Compare columns and layout with what is there: with the manifest, or where there is none, with the files.

        Files of the pipeline's other shards and backfills are as its own earlier ones: columns may have changed since.
        """
        with durable.explained(f"reading the manifest of sink {self.name!r}"):
            holdings = self._manifest.holdings()
        if holdings.schema:
            partitions = [*holdings.growing, *(segment.partition for segment in holdings.recent)]
            after = self._schema_behind(holdings.changes)
            check_change(self.name, decode_schema(holdings.schema), after, partition_by, partitions)
            return
        directory, shards = self.places.directory, self.places.tags_of_shards()
        for path in check.newest_files(directory):
            if check.tag_in(path) in shards:
                with suppress(FileNotFoundError):  # removed meanwhile: retention, a seal
                    partition = os.path.relpath(os.path.dirname(path), directory).removeprefix(".")
                    check_change(self.name, pq.read_schema(path), self._schema, partition_by, [partition])
            else:
                check.check_file(
                    self.name, directory, path, self._schema, format_name="parquet", partition_by=partition_by
                )

    # --- the manifest -------------------------------------------------------------------------------------------

    def _try(self, entry: SegmentsEntry) -> bool:
        if not self._manifest.append(entry):
            return False
        self._holdings.apply(entry)
        return True

    def _peek(self) -> SegmentsEntry:
        return self._manifest.last()

    def _explanation_counts(self, last: SegmentsEntry) -> Mapping[str, int]:
        return self._explanations.count(self._holdings.held())

    def _named(self, last: SegmentsEntry) -> Collection[str]:
        return self._holdings.files

    def _staged(self) -> Iterable[AttemptName]:
        return self._staging.names()

    def _remove(self, names: Iterable[AttemptName]) -> int:
        return sum(self._staging.remove(each.name) for each in names)

    def _drop(self, carried: Sequence[Staged]) -> None:
        files = [file.name for file in map(file_of, carried) if file is not None]
        for name in (*files, *self._written):
            self._staging.remove(name)

    def _last(self) -> SegmentsEntry:
        """Return the last entry in the directory; where it is this run's, it is also the last one known here."""
        if self._generation == 0:  # not opened yet
            with durable.explained(f"reading the manifest of sink {self.name!r}"):
                self._holdings = self._manifest.holdings()
            return self._holdings.last
        known = self._holdings.last
        with durable.explained(f"reading the manifest of sink {self.name!r}"):
            last = self._manifest.last(known.number)
            if last.generation == self._generation and last.number > known.number:
                # Our own: it was in doubt whether it would last.  The next append makes it durable.
                self.adopt(self._manifest.holdings())
                return self._holdings.last
        if last.generation == self._generation and last.number < known.number:
            raise went_back(
                f"sink {self.name!r} holds entry {last.number} of its manifest, and this run had appended "
                f"{known.number}.",
                pipeline=self._pipeline,
                participant=self.name,
                epoch=last.epoch,
                generation=self._generation,
            )
        return last
