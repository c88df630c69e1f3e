"""The runtime of the files sink: one log entry commits an epoch, the renames that it names make it visible.

Invariants: an entry is followed by another only when its renames are done; nothing is reported as failed after the
entry; what the last entry names is not swept while it is unfinished (design/0005).
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.files.sink.compaction import Compaction, Joining
from holdfast.connectors.files.sink.log import (
    FilesBehind,
    FilesLog,
    LogEntry,
    Renames,
    directories,
    files_behind,
    since_repair,
)
from holdfast.connectors.files.sink.repairing import repaired
from holdfast.connectors.files.sink.view import viewed
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.explained import explained_with
from holdfast.connectors.kit.files import staged
from holdfast.connectors.kit.files.content import FileFormat, FilesContent, check_format
from holdfast.connectors.kit.files.existing import sweep_views
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.files.own_files import tag_of
from holdfast.connectors.kit.files.staged import FileStaging, StagedDirectory
from holdfast.connectors.kit.log_sink import AttemptName, RewindableLogSink
from holdfast.connectors.kit.maintenance import Tending
from holdfast.errors import InvalidPipeline, invariant
from holdfast.ports import (
    Explanation,
    Held,
    Publication,
    Repair,
    RunIdentity,
    Staged,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store import durable
from holdfast.store.entry_log import IDLE_KEPT
from holdfast.types.schema import encode_schema

log = logging.getLogger("holdfast.connectors.files")

OWN_DIRECTORY = "_holdfast"
"""Everything of ours is below it.  Readers skip names that begin with an underscore."""


class FilesSink(RewindableLogSink[LogEntry, tuple[tuple[str, str], ...], FilesBehind]):
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
    ``publish`` of a carried epoch syncs its files and their directories, the log entry and its directory, and each
    directory that gets files.
    """

    _log = log
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
        super().__init__(name, pipeline)
        self._directory = directory
        self._own = own = os.path.join(directory, OWN_DIRECTORY, pipeline, name)
        aside = os.path.join(own, "writing")
        durable.tighten(os.path.join(directory, OWN_DIRECTORY))
        durable.prepare(own, aside=aside, published=directory)
        self._check_directory(directory)
        self._entries = FilesLog(os.path.join(own, "log"), aside=aside)
        self._staging = FileStaging(
            directory=os.path.join(own, "staging"),
            schema=schema,
            format=format,
            partition_by=partition_by,
            compression=compression,
            tag=tag_of(pipeline, name),
        )
        self._explanations = explanations_in(os.path.join(own, "positions"), f"sink {name!r}")
        self._renames = Renames(directory, self._entries, pipeline, name)
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

    @property
    def place(self) -> str:
        """Where the log lies, in errors."""
        return os.path.join(self._directory, OWN_DIRECTORY)

    def _fence(self, last: LogEntry, run: RunIdentity) -> LogEntry:
        return dataclasses.replace(
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

    def _took_over(self, fence: LogEntry, last: LogEntry) -> Held:
        self._finish(fence)
        self._entries.prune_fences()
        self._joining.sweep(self._generation)
        sweep_views(self._own)
        self._besides = [entry.number for entry in self._entries.standing() if entry.is_compaction or entry.is_idle]
        if self._compaction is not None:
            self._compaction.begin(self._generation)
        return last.held()

    def writer_factory(self) -> FileStaging:
        """Return the factory that executors call."""
        return self._staging

    def _check(self, rows: pa.Table) -> None:
        self._staging.check(rows)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Make the epochs visible: one log entry for all of them, then the renames."""
        super().publish(publications, expected)
        if self._tending is not None:
            self._tending.start()

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return self._staging.expired(parts)

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and the names of staged directories that it does not name."""
        last = self._last()
        named = self._named(last)
        staged = [directory.name for directory in self._staged() if directory.name not in named]
        # A directory is named generation-epoch-task-attempt-token.
        names = {"/".join([self._pipeline, *name.split("-")[:4]]) for name in staged}
        return last.held(), sorted(names)

    @contextmanager
    def content(self) -> Iterator[FilesContent]:
        """Open a view of the rows: what others remove meanwhile stays on the disk until it is closed."""
        check_format(f"sink {self.name!r}", self._staging.format)
        with viewed(self._directory, self._own, self._entries) as view:
            yield FilesContent(self._file_format(), view.paths, view.entry.held())

    def repair(self, repair: Repair) -> int | None:
        """Write the files anew whose rows change."""
        check_format(f"sink {self.name!r}", self._staging.format)
        return repaired(self, self._file_format(), self._joining, repair)

    def _file_format(self) -> FileFormat:
        return FileFormat(f"sink {self.name!r}", self._staging.schema, self._staging.partition_by)

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
    def entries(self) -> FilesLog:
        """The log."""
        return self._entries

    def append_joins(self, entry: LogEntry, last: LogEntry) -> bool:
        """Append an entry and carry it out; under :attr:`lock`.  False, with nothing changed, if it is not ours."""
        if not self._append(entry, last):
            return False
        self._besides.append(entry.number)
        if self._compaction is not None and entry.is_repair:
            self._compaction.changed()
        self._finish(entry, is_new=True)
        return True

    # --- before the commit --------------------------------------------------------------------------

    def _prepare(
        self, new: Sequence[Publication], last: LogEntry, carried: list[Staged]
    ) -> tuple[tuple[str, str], ...]:
        """Return the renames of some epochs, which can be done."""
        handles = [handle for publication in new for handle in self._handles(publication, self._staging, carried)]
        renames = tuple(rename for handle in handles for rename in self._renames_of(handle))
        self.check_destinations(final for _, final in renames)
        return renames

    def _entry(
        self,
        new: Sequence[Publication],
        last: LogEntry,
        prepared: tuple[tuple[str, str], ...],
        told: Sequence[Explanation],
    ) -> LogEntry:
        record = new[-1].record
        back = self._back(record, last)
        return dataclasses.replace(
            last,
            number=last.number + 1,
            epoch=record.epoch,
            after_epoch=last.epoch,
            positions=record.positions,
            pts=record.pts,
            renames=prepared,
            removals=() if back is None else back.files,
            back_to=None if back is None else back.epoch,
            recent_ends=record.recent_ends,
            explained=explained_with(self._explanation_counts(last), told),
            explanations=tuple(told),
            is_repair=False,
        )

    def _check_successor(self, entry: LogEntry, last: LogEntry) -> None:
        invariant(
            self._renames.are_finished(last),
            f"entry {entry.number} of the log of sink {self.name!r} comes before the renames of the one before.",
            why="the last entry has everything: the one before is never read again.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )

    def _try(self, entry: LogEntry) -> bool:
        return self._entries.append(entry)

    def _committed(self, entry: LogEntry, prepared: tuple[tuple[str, str], ...]) -> None:
        if self._compaction is not None:  # now: whoever makes them visible, a round of it or this, finds them noted
            self._compaction.came(final for _, final in entry.renames)

    def _tidy(self, publications: Sequence[Publication], entry: LogEntry | None) -> None:
        if entry is None:
            return
        if entry.is_idle and len(self._besides) < IDLE_KEPT:
            self._besides.append(entry.number)
        self._entries.prune(besides=len(self._besides))
        if self._besides:
            oldest = self._entries.numbers()[0]
            self._besides = [number for number in self._besides if number >= oldest]

    def _staged(self) -> Iterable[StagedDirectory]:
        return self._staging.directories()

    def _remove(self, names: Iterable[AttemptName]) -> int:
        return sum(self._staging.remove(each.name) for each in names)

    def _drop(self, carried: Sequence[Staged]) -> None:
        for name in map(staged.directory_of, carried):
            if name is not None:
                self._staging.remove(name)

    def _explanation_counts(self, last: LogEntry) -> Mapping[str, int]:
        return self._explanations.count(last.held())

    def _is_staged(self, last: LogEntry, epoch: int) -> bool:
        return epoch > last.after_epoch and self._renames.is_unfinished(last)

    def _named(self, last: LogEntry) -> frozenset[str]:
        return directories(last) if self._renames.is_unfinished(last) else frozenset()

    def _renames_of(self, handle: Staged) -> list[tuple[str, str]]:
        name = staged.directory_of(handle)
        if name is None:
            return []
        missing = self._staging.missing(handle)
        if missing is not None:
            self._check_generation(self._last())  # a newer generation may have swept it
            raise rows_gone(f"sink {self.name!r}", handle.name, missing, pipeline=self._pipeline, participant=self.name)
        above = os.path.join(os.path.relpath(self._staging.directory, self._directory), name)
        suffix = self._staging.suffix
        return [(os.path.join(above, file.path), file.path.removesuffix(suffix)) for file in staged.files_of(handle)]

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

    def _standing(self, last: LogEntry) -> Sequence[LogEntry]:
        return self._entries.standing()

    def _behind(self, entries: Sequence[LogEntry], to: Positions) -> FilesBehind | None:
        return files_behind(entries, to)

    def _reachable(self, entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
        return since_repair(entries)

    def _withdrawal(self, back: FilesBehind) -> Withdrawal:
        places = {path: os.path.join(self._directory, path) for path in back.files}
        for before, path in self._last().renames:  # who died among them left files where they were staged
            if path in places and not os.path.lexists(places[path]):
                places[path] = os.path.join(self._directory, before)
        gone = [path for path, place in places.items() if not os.path.lexists(place)]
        if gone:
            return Withdrawal(obstacle=f"{gone[0]} was published and has been removed or moved: its rows are not found")
        return Withdrawal(back.epoch, back.epoch_count, sum(map(self._row_count, places.values())))

    def _row_count(self, path: str) -> int:
        if self._staging.format == "parquet":
            return int(pq.read_metadata(path).num_rows)
        with open(path, "rb") as file:
            return sum(1 for _ in file)

    # --- the log ------------------------------------------------------------------------------------

    def _finish(self, entry: LogEntry, *, is_new: bool = False) -> None:
        """Carry an entry out, before the next one: its renames, and the copies of what it explains."""
        self._renames.finish(entry, is_synced=is_new)
        self._explanations.keep(entry.explanations, is_new=is_new)

    def _last(self) -> LogEntry:
        with durable.explained(f"reading the log of sink {self.name!r}"):
            return self._entries.last() or LogEntry()
