"""The runtime of the files sink: one log entry commits an epoch, the renames that it names make it visible.

Invariants: an entry is followed by another only when its renames are done; nothing is reported as failed after the
entry; what the last entry names is not swept while it is unfinished (design/0005).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import faults
from holdfast.connectors.files.sink.compaction import Compaction, Joining
from holdfast.connectors.files.sink.log import FilesBehind, FilesLog, LogEntry, files_behind, since_repair
from holdfast.connectors.files.sink.renames import Renames, directories
from holdfast.connectors.files.sink.repairing import repaired
from holdfast.connectors.files.sink.view import viewed
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.believed import fresh, rows_gone
from holdfast.connectors.kit.explained import explained_with, lacking
from holdfast.connectors.kit.files import staged as stage
from holdfast.connectors.kit.files.content import FileFormat, FilesContent, check_format
from holdfast.connectors.kit.files.explanations import FileExplanations
from holdfast.connectors.kit.files.log_owner import check_owner, fenced
from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.connectors.kit.files.staged import FileStaging
from holdfast.connectors.kit.files.views import sweep_views
from holdfast.connectors.kit.maintenance import Tending
from holdfast.connectors.kit.rewinds import cannot_go_back
from holdfast.errors import Fenced, InDoubt, InvalidPipeline, Unavailable, invariant
from holdfast.ports import (
    EpochRecord,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Publication,
    Refused,
    Repair,
    RunIdentity,
    Sink,
    Staged,
    Task,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store import durable
from holdfast.store.entry_log import IDLE_KEPT, KEPT
from holdfast.types.schema import encode_schema

log = logging.getLogger("holdfast.connectors.files")

OWN_DIRECTORY = "_holdfast"
"""Everything of ours is below it.  Readers skip names that begin with an underscore."""


class FilesSink:
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    name, pipeline : str
        Identity.
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    directory : str
        Absolute path.
    target_bytes : int, optional
        Size to which small files are joined; None: they are not.
    is_tended : bool
        Whether a thread joins them; else :attr:`compaction` is called by a test.

    Notes
    -----
    A lock orders appends: those of epochs, and those of the thread that joins small files.
    ``publish`` of a carried epoch syncs its files and their directories, the log entry and its directory, and each
    directory that gets files.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "files, renamed when published"

    def __init__(
        self,
        name: str,
        pipeline: str,
        schema: pa.Schema,
        directory: str,
        *,
        format: str,
        partition_by: tuple[str, ...],
        compression: str | None,
        target_bytes: int | None = None,
        is_tended: bool = True,
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._directory = directory
        self._generation = 0
        self._own = own = os.path.join(directory, OWN_DIRECTORY, pipeline, name)
        aside = os.path.join(own, "writing")
        durable.tighten(os.path.join(directory, OWN_DIRECTORY))
        durable.prepare(own, aside=aside, published=directory)
        self._check_directory(directory)
        self._log = FilesLog(os.path.join(own, "log"), aside=aside)
        self._staging = FileStaging(
            directory=os.path.join(own, "staging"),
            schema=schema,
            format=format,
            partition_by=partition_by,
            compression=compression,
            tag=tag_of(pipeline, name),
        )
        self._explanations = FileExplanations(os.path.join(own, "positions"), f"sink {name!r}")
        self._renames = Renames(directory, self._log, pipeline, name)
        self._lock = threading.RLock()
        self._joining = Joining(
            directory, os.path.relpath(own, directory), self._staging.tag, format, compression, target_bytes
        )
        self._compaction = None if target_bytes is None else Compaction(self, self._joining)
        self._tending = None if self._compaction is None or not is_tended else Tending(self._compaction)
        self._besides: list[int] = []
        """Numbers of the entries in the log that do not count towards its history: compactions, and idle epochs."""
        with durable.explained(f"opening {own}"):
            durable.make_directory(self._staging.directory)
            durable.make_directory(os.path.join(own, "log"))

    def __repr__(self) -> str:
        return f"FilesSink({self.name!r}, {self._directory!r})"

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, finish the renames of the last entry, return what is held."""
        with self._lock:
            last = self._fence(run)
            self._joining.sweep(run.generation)
            sweep_views(self._own)
            self._besides = [entry.number for entry in self._log.standing() if entry.is_compaction or entry.is_idle]
            if self._compaction is not None:
                self._compaction.begin(run.generation)
        return last.held()

    def _fence(self, run: RunIdentity) -> LogEntry:
        """Take the log over; return its last entry before that."""
        while True:
            last = self._last()
            if last.generation >= run.generation:  # another run took it between our claim and here
                raise self._fenced(run.generation, last)
            # Before the fence, which carries no renames: the last entry says everything, so its epoch must be whole.
            # A lower generation may do the same renames at the same time; each of them is done once.
            self._finish(last)
            fence = dataclasses.replace(
                last,
                number=last.number + 1,
                generation=run.generation,
                after_epoch=last.epoch,
                renames=(),
                removals=(),
                back_to=None,
                is_repair=False,
                explanations=(),
                schema=encode_schema(self._staging.schema),
            )
            if self._append(fence, last):  # else another process has appended since we read: what it published counts
                break
        self._generation = run.generation
        self._finish(fence)
        self._log.prune_fences()
        return last

    def writer_factory(self) -> FileStaging:
        """Return the factory that executors call."""
        return self._staging

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check what a file or its name could not keep; staged rows are in their files already."""
        refusals.check_carried(publication, self._staging.check)
        return False

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the carried rows that a file or its name could not keep; staged rows are in their files already."""
        return refusals.rejected_carried(publication, self._staging.check)

    def publish(self, publications: Sequence[Publication], believed: Held) -> None:
        """Make the epochs visible: one log entry for all of them, then the renames."""
        with self._lock:
            self._publish(publications, believed)
        if self._tending is not None:
            self._tending.start()

    def _publish(self, publications: Sequence[Publication], believed: Held) -> None:
        last = self._last()
        self._check_generation(last)
        new = fresh(f"sink {self.name!r}", self._pipeline, publications, last.held(), believed)
        self._finish(last)
        if not new:  # the entry was appended, an error followed, and the run publishes again
            return
        carried: list[Staged] = []
        try:
            renames = [rename for publication in new for rename in self._prepare(publication, carried)]
            self.check_destinations(final for _, final in renames)
            for publication in new:
                faults.reach("publish-uncommitted", publication.record.epoch)
            told = lacking(new, last.explained, f"sink {self.name!r}")
            record = new[-1].record
            back = self._back(record)
            entry = dataclasses.replace(
                last,
                number=last.number + 1,
                epoch=record.epoch,
                after_epoch=last.epoch,
                positions=record.positions,
                pts=record.pts,
                renames=tuple(renames),
                removals=() if back is None else back.files,
                back_to=None if back is None else back.epoch,
                recent_ends=record.recent_ends,
                explained=explained_with(last.explained, told),
                explanations=tuple(told),
                is_repair=False,
            )
            # The commit.  A crash right after it leaves the renames to the next open.
            is_ours = self._append(entry, last)
        except InDoubt:
            raise  # the entry may be in place: what it names must stay
        except Exception:
            self._remove(carried)
            raise
        if not is_ours:  # another run opened the sink between our reading of the log and the append
            self._remove(carried)
            self.fenced_out()
        if self._compaction is not None:  # now: whoever makes them visible, a round of it or this, finds them noted
            self._compaction.came(final for _, final in entry.renames)
        for publication in new:
            faults.reach("publish-begun", publication.record.epoch)
        self._finish(entry, is_synced=True)
        if entry.is_idle and len(self._besides) < IDLE_KEPT:
            self._besides.append(entry.number)
        self._log.prune(besides=len(self._besides))
        if self._besides:
            oldest = self._log.numbers()[0]
            self._besides = [number for number in self._besides if number >= oldest]

    def outcome(self, epoch: int) -> Outcome:
        """Ask the log, and for the last entry the directory too."""
        try:
            last = self._last()
            if epoch > last.epoch:
                return Outcome.ABSENT
            if epoch > last.after_epoch and self._renames.is_unfinished(last):
                return Outcome.STAGED
        except (Unavailable, InvalidPipeline, OSError) as error:
            log.warning("sink %s did not answer for epoch %d: %s", self.name, epoch, error)
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return self._staging.expired(parts)

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and the names of staged directories that it does not name."""
        last = self._last()
        named = directories(last) if self._renames.is_unfinished(last) else frozenset()
        staged = [directory.name for directory in self._staging.directories() if directory.name not in named]
        # A directory is named generation-epoch-task-attempt-token.
        names = {"/".join([self._pipeline, *name.split("-")[:4]]) for name in staged}
        return last.held(), sorted(names)

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        last = self._last()
        return self._explanations.all(last.explained, last.explanations)

    @contextmanager
    def content(self) -> Iterator[FilesContent]:
        """Open a view of the rows: what others remove meanwhile stays on the disk until it is closed."""
        check_format(f"sink {self.name!r}", self._staging.format)
        with viewed(self._directory, self._own, self._log) as view:
            yield FilesContent(self._file_format(), view.paths, view.entry.held())

    def repair(self, repair: Repair) -> int | None:
        """Write the files anew whose rows change."""
        check_format(f"sink {self.name!r}", self._staging.format)
        return repaired(self, self._file_format(), self._joining, repair)

    def _file_format(self) -> FileFormat:
        return FileFormat(f"sink {self.name!r}", self._staging.schema, self._staging.partition_by)

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name."""
        last = self._last()
        if last.generation != self._generation:  # fenced: what is staged may be the newer run's
            return 0
        named = directories(last) if self._renames.is_unfinished(last) else frozenset()
        orphans = [
            staged.name
            for staged in self._staging.directories()
            if (staged.generation, staged.epoch) < (self._generation, below_epoch) and staged.name not in named
        ]
        return sum(self._staging.remove(name) for name in orphans)

    def close(self) -> None:
        """End the thread that joins small files, after what it is at."""
        if self._tending is not None:
            self._tending.stop()

    # --- for what joins small files -----------------------------------------------------------------

    @property
    def compaction(self) -> Compaction | None:
        """What joins small files, if anything does."""
        return self._compaction

    @property
    def lock(self) -> threading.RLock:
        """Orders appends."""
        return self._lock

    @property
    def entries(self) -> FilesLog:
        """The log."""
        return self._log

    def follow(self) -> LogEntry:
        """Return the last entry, which is this run's, with its renames done; under :attr:`lock`."""
        last = self._last()
        self._check_generation(last)
        self._finish(last)
        return last

    def caught_up(self) -> LogEntry:
        """Return the last entry, whoever appended it, with its renames done; under :attr:`lock`."""
        last = self._last()
        self._finish(last)
        return last

    def append_joins(self, entry: LogEntry, last: LogEntry) -> bool:
        """Append an entry and carry it out; under :attr:`lock`.  False, with nothing changed, if it is not ours."""
        if not self._append(entry, last):
            return False
        self._besides.append(entry.number)
        if self._compaction is not None and entry.is_repair:
            self._compaction.changed()
        self._finish(entry, is_synced=True)
        return True

    def fenced_out(self) -> None:
        """Raise why an append found its number taken."""
        self._check_generation(self._last())
        raise Unavailable(f"Sink {self.name!r} lost its place in its log to itself.", do="start again.")

    # --- before the commit --------------------------------------------------------------------------

    def _prepare(self, publication: Publication, carried: list[Staged]) -> list[tuple[str, str]]:
        """Return the renames of one epoch; carried rows are staged for it."""
        handles: list[Staged] = []
        for index, part in enumerate(publication.parts):
            if isinstance(part, Staged):
                handles.append(part)
                continue
            writer = self._staging(Task(self._pipeline, self._generation, publication.record.epoch, index, 0))
            try:
                for batch in part.rows.to_batches():
                    writer.write(batch)
                handle = writer.stage()
            except BaseException:
                writer.abort()
                raise
            carried.append(handle)
            handles.append(handle)
        return [rename for handle in handles for rename in self._renames_of(handle)]

    def _append(self, entry: LogEntry, last: LogEntry) -> bool:
        """Append an entry after the last one; see :meth:`~holdfast.store.entry_log.EntryLog.append`."""
        invariant(
            entry.number == last.number + 1 and entry.generation >= last.generation and entry.epoch >= last.epoch,
            f"entry {entry.number} of the log of sink {self.name!r}, of generation {entry.generation} and epoch "
            f"{entry.epoch}, is to follow entry {last.number}, of {last.generation} and {last.epoch}.",
            why="numbers, generations and epochs of a log only grow.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )
        invariant(
            self._renames.are_finished(last),
            f"entry {entry.number} of the log of sink {self.name!r} comes before the renames of the one before.",
            why="the last entry has everything: the one before is never read again.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )
        return self._log.append(entry)

    def _renames_of(self, handle: Staged) -> list[tuple[str, str]]:
        name = stage.directory_of(handle)
        if name is None:
            return []
        missing = self._staging.missing(handle)
        if missing is not None:
            self._check_generation(self._last())  # a newer generation may have swept it
            raise rows_gone(f"sink {self.name!r}", handle.name, missing, pipeline=self._pipeline, participant=self.name)
        above = os.path.join(os.path.relpath(self._staging.directory, self._directory), name)
        suffix = self._staging.suffix
        return [(os.path.join(above, file.path), file.path.removesuffix(suffix)) for file in stage.files_of(handle)]

    def check_destinations(self, paths: Iterable[str]) -> None:
        """Create the directories and see that files can be renamed into them, while nothing is committed yet."""
        for directory in sorted(set(map(os.path.dirname, paths))):
            path = os.path.join(self._directory, directory)
            with durable.explained(f"creating {path}"):
                durable.make_directory(path, is_published=True)
            self._check_directory(path)

    def _check_directory(self, path: str) -> None:
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise InvalidPipeline(
                f"Sink {self.name!r} cannot write to directory {path}.",
                why="this user has no permission, or the file system is read-only.",
                do=f"give this user write permission (chmod u+rwx {path}), or choose another directory.",
                participant=self.name,
            )
        own = os.path.join(self._directory, OWN_DIRECTORY)
        if os.stat(path).st_dev != os.stat(own).st_dev:
            raise InvalidPipeline(
                f"Directory {path} of sink {self.name!r} is on another file system than {own}.",
                why="files become visible by a rename, which cannot cross file systems.",
                do="mount the whole directory, not a part of it.",
                participant=self.name,
            )

    # --- rewinds ------------------------------------------------------------------------------------

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw: the files that the log names after them."""
        entries = self._log.standing()
        back = files_behind(entries, to)
        if back is None:
            ends = sorted({entry.epoch for entry in since_repair(entries) if entry.epoch})
            if not ends:
                return Withdrawal(obstacle="it holds nothing")
            return Withdrawal(
                obstacle=f"none of its log entries ended there; it keeps the last {KEPT}, which can go back to epochs "
                f"{ends[0]} to {ends[-1]}"
            )
        gone = [path for path in back.files if not os.path.lexists(os.path.join(self._directory, path))]
        if gone:
            return Withdrawal(obstacle=f"{gone[0]} was published and has been removed or moved: its rows are not found")
        rows = sum(self._row_count(os.path.join(self._directory, path)) for path in back.files)
        return Withdrawal(back.epoch, back.epoch_count, rows)

    def _back(self, record: EpochRecord) -> FilesBehind | None:
        if record.rewound_to is None:
            return None
        entries = self._log.standing()
        back = files_behind(entries, record.positions)
        if back is None:
            raise cannot_go_back(f"sink {self.name!r}", record, sorted({entry.epoch for entry in entries}))
        return back

    def _row_count(self, path: str) -> int:
        if self._staging.format == "parquet":
            return int(pq.read_metadata(path).num_rows)
        with open(path, "rb") as file:
            return sum(1 for _ in file)

    # --- fence --------------------------------------------------------------------------------------

    def _finish(self, entry: LogEntry, *, is_synced: bool = False) -> None:
        """Carry an entry out, before the next one: its renames, and the copies of what it explains."""
        self._renames.finish(entry, is_synced=is_synced)
        self._explanations.keep(entry.explanations, is_new=is_synced)

    def _last(self) -> LogEntry:
        with durable.explained(f"reading the log of sink {self.name!r}"):
            return self._log.last() or LogEntry()

    def _check_generation(self, last: LogEntry) -> None:
        check_owner(
            self.name,
            self._pipeline,
            self._generation,
            last.held(),
            what="log",
            place=os.path.join(self._directory, OWN_DIRECTORY),
            holder="directory holds",
        )

    def _fenced(self, generation: int, last: LogEntry) -> Fenced:
        return fenced(self.name, self._pipeline, generation, last.held())

    def _remove(self, handles: Iterable[Staged]) -> None:
        for handle in handles:
            name = stage.directory_of(handle)
            if name is not None:
                self._staging.remove(name)
