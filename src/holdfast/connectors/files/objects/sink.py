"""The runtime of the files sink in S3: one log entry commits an epoch, then the uploads that it names are completed.

Invariants: an entry is followed by another only when it is carried out; nothing is reported as failed after the entry;
what the last entry names is not swept while it is unfinished (design/0040).

Carries out a log entry: its uploads are completed, what it withdraws is removed, what it explains is copied.

The next run that opens the sink does what a crash has left.  An upload is completed once, in whatever process: then its
object is there, and its name is no other's.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.files.objects.log import DONE, KEPT, ObjectLog, UploadsBehind, UploadsEntry, files_behind
from holdfast.connectors.files.objects.place import OWN, BucketPlace, each, tag_at
from holdfast.connectors.files.objects.staging import OpenUpload, UploadedFile, UploadStaging, files_of
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.explained import explained_with
from holdfast.connectors.kit.files.rows import RowsForm
from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.connectors.kit.log_sink import AttemptName, RewindableLogSink
from holdfast.errors import Diverged, HoldfastError, InDoubt, InvalidPipeline
from holdfast.ports import (
    Explanation,
    Held,
    Publication,
    RunIdentity,
    Staged,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store.objects.errors import StoreAnswer, refused_answer
from holdfast.store.objects.multipart import UploadState
from holdfast.types.schema import encode_schema

log = logging.getLogger("holdfast.connectors.files")

_PROBE = "probe"
"""Name of an upload that is begun and aborted when the sink is opened."""


class ObjectFilesSink(RewindableLogSink[UploadsEntry, tuple[UploadedFile, ...], UploadsBehind]):
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    name, pipeline : str
        Identity.
    place : BucketPlace
        The directory.
    form : RowsForm
        How rows become files.

    Notes
    -----
    ``publish`` of an epoch asks for the last entry and the one after it, and for each file whether its upload is whole;
    puts the entry, completes each upload, and puts a note.
    """

    _log = log
    holder = "sink holds"
    kept = KEPT
    staging = "multipart uploads, completed when published"

    def __init__(self, name: str, pipeline: str, place: BucketPlace, form: RowsForm) -> None:
        super().__init__(name, pipeline)
        self._place = place
        self._entries = ObjectLog(place.log(pipeline, name))
        self._explanations = KeptExplanations(place.positions(pipeline, name), f"sink {name!r}", may_lag=True)
        self._staging = UploadStaging(place, form, tag_at(place.address, pipeline, name))
        self._completing = Completing(place, self._entries, self._explanations, pipeline, name)
        self._known = UploadsEntry()

    def __repr__(self) -> str:
        return f"ObjectFilesSink({self.name!r}, {self._place.address!r})"

    @property
    def place(self) -> str:
        """Where the log lies, in errors."""
        return f"{self._place.address}/{OWN}"

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, carry out the last entry, return what is held."""
        with self._lock:
            self._known = self._entries.last()
            self._check_uploads()
            return super().open(run)

    def _fence(self, last: UploadsEntry, run: RunIdentity) -> UploadsEntry:
        return dataclasses.replace(
            last,
            number=last.number + 1,
            generation=run.generation,
            after_epoch=last.epoch,
            files=(),
            removals=(),
            explanations=(),
            back_to=None,
            at_us=_now_us(),
            schema=encode_schema(self._staging.form.schema),
        )

    def _took_over(self, fence: UploadsEntry, last: UploadsEntry) -> Held:
        if not self._entries.is_refused_again(fence):
            raise InvalidPipeline(
                f"Sink {self.name!r} cannot write to {self._place.address}.",
                why="the store created an object that was there already: it does not know conditional puts "
                "(If-None-Match), without which two runs would publish the same epoch.",
                do="choose a store that knows them (S3, MinIO and Cloudflare R2 do), or update the server.",
                participant=self.name,
            )
        self._entries.begin(fence)
        return last.held()

    def _check_uploads(self) -> None:
        """See that the store takes multipart uploads, lists and aborts them, while nothing depends on it."""
        uploads, key = self._place.uploads, f"{OWN}/{self._pipeline}/{self.name}/{_PROBE}"
        try:
            ours = (key, uploads.create(key))
            probes = [found for found in uploads.all() if found[0] == key]  # those of runs that died here, too
            self._staging.abort(sorted({ours, *probes}))
        except InvalidPipeline as error:
            if refused_answer(error) not in (StoreAnswer.REFUSED, StoreAnswer.FORBIDDEN):
                raise
            raise InvalidPipeline(
                f"Sink {self.name!r} cannot write to {self._place.address}.",
                why=f"an epoch is staged as multipart uploads, which are begun, listed and aborted there: {error.why}",
                do=f"{error.do.removesuffix(': nothing was lost.')}; for S3 these credentials need s3:PutObject, "
                "s3:AbortMultipartUpload and s3:ListBucketMultipartUploads. A store that has no multipart uploads "
                "cannot be written to: choose another, or a mounted path.",
                participant=self.name,
            ) from error
        if not probes:
            log.warning("sink %s: an upload that was begun is not listed by %s yet", self.name, self._place.address)

    def writer_factory(self) -> UploadStaging:
        """Return the factory that executors call."""
        return self._staging

    def _check(self, rows: pa.Table) -> None:
        self._staging.check(rows)

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose uploads are gone."""
        return self._staging.expired(parts)

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and whose uploads are open that it does not name."""
        last = self._last()
        named = self._named(last)
        tasks = {
            dataclasses.replace(upload.task, pipeline=self._pipeline).name
            for upload in self._staged()
            if upload.name not in named
        }
        return last.held(), sorted(tasks)

    # --- before the commit --------------------------------------------------------------------------

    def _prepare(
        self, new: Sequence[Publication], last: UploadsEntry, carried: list[Staged]
    ) -> tuple[UploadedFile, ...]:
        """Return the files of some epochs."""
        given = [part for publication in new for part in publication.parts if isinstance(part, Staged)]
        for handle in given:
            self._check_there(handle)
        handles = [handle for publication in new for handle in self._handles(publication, self._staging, carried)]
        return tuple(file for handle in handles for file in files_of(handle))

    def _entry(
        self,
        new: Sequence[Publication],
        last: UploadsEntry,
        prepared: tuple[UploadedFile, ...],
        told: Sequence[Explanation],
    ) -> UploadsEntry:
        record = new[-1].record
        back = self._back(record, last)
        return UploadsEntry(
            number=last.number + 1,
            generation=self._generation,
            epoch=record.epoch,
            after_epoch=last.epoch,
            positions=record.positions,
            pts=record.pts,
            files=prepared,
            removals=() if back is None else tuple(file.upload.key for file in back.files),
            back_to=None if back is None else back.epoch,
            recent_ends=record.recent_ends,
            at_us=_now_us(),
            explained=explained_with(last.explained, told),
            explanations=tuple(told),
            schema=last.schema,
        )

    def _check_there(self, handle: Staged) -> None:
        missing = self._staging.missing(handle)
        if missing is not None:
            self._check_generation(self._last())  # a newer generation may have swept it
            raise rows_gone(f"sink {self.name!r}", handle.name, missing, pipeline=self._pipeline, participant=self.name)

    def _try(self, entry: UploadsEntry) -> bool:
        if not self._entries.append(entry):
            return False
        self._known = entry
        return True

    def _is_in_place(self, error: Exception) -> bool:
        """Whatever was answered: what is not in place is swept."""
        return True

    def _tidy(self, publications: Sequence[Publication], entry: UploadsEntry | None) -> None:
        if entry is not None:
            self._entries.prune(entry)

    def _staged(self) -> Iterable[OpenUpload]:
        return self._staging.orphans()

    def _remove(self, names: Iterable[AttemptName]) -> int:
        found = [each for each in names if isinstance(each, OpenUpload)]
        self._staging.abort([(each.key, each.name) for each in found])
        return len({each.token for each in found})

    def _drop(self, carried: Sequence[Staged]) -> None:
        uploads = [(file.upload.key, file.upload.upload_id) for handle in carried for file in files_of(handle)]
        try:
            self._staging.abort(uploads)
        except HoldfastError as error:
            log.info("sink %s: %s They are swept later.", self.name, error.what)

    def _is_staged(self, last: UploadsEntry, epoch: int) -> bool:
        return epoch > last.after_epoch and self._completing.is_unfinished(last)

    def _named(self, last: UploadsEntry) -> set[str]:
        """Return the ids of the uploads that the last entry names, which may still have to be completed."""
        return {file.upload.upload_id for file in last.files}

    # --- rewinds ------------------------------------------------------------------------------------

    def _standing(self, last: UploadsEntry) -> Sequence[UploadsEntry]:
        return self._entries.standing(last)

    def _behind(self, entries: Sequence[UploadsEntry], to: Positions) -> UploadsBehind | None:
        return files_behind(entries, to)

    def _withdrawal(self, back: UploadsBehind) -> Withdrawal:
        gone = self._completing.gone(back.files)
        if gone:
            return Withdrawal(
                obstacle=f"{self._place.address}/{gone[0]} was published and has been removed: its rows are not found"
            )
        return Withdrawal(back.epoch, back.epoch_count, sum(file.row_count for file in back.files))

    # --- the log ------------------------------------------------------------------------------------

    def _finish(self, entry: UploadsEntry, *, is_new: bool = False) -> None:
        self._completing.finish(entry, is_new=is_new)

    def _last(self) -> UploadsEntry:
        self._known = self._entries.follow(self._known)
        return self._known


def _now_us() -> int:
    return time.time_ns() // 1000


class Completing:
    """The uploads and removals of one sink's log entries.

    Parameters
    ----------
    place : BucketPlace
        The sink's directory.
    log : ObjectLog
        Its log.
    explanations : KeptExplanations
        Where those of its entries are copied.
    pipeline, sink : str
        For errors.
    """

    def __init__(
        self, place: BucketPlace, log: ObjectLog, explanations: KeptExplanations, pipeline: str, sink: str
    ) -> None:
        self._uploads = place.uploads
        self._files = place.files
        self._log = log
        self._explanations = explanations
        self._pipeline = pipeline
        self._sink = sink
        self._finished = 0
        """Number of the last entry that is known to be carried out."""

    def finish(self, entry: UploadsEntry, *, is_new: bool = False) -> None:
        """Carry out what is not done yet of an entry.  Idempotent; several processes may do it concurrently.

        Parameters
        ----------
        entry : UploadsEntry
            The last one.
        is_new : bool
            It was appended by this call's caller: nothing of it is done, so nobody has to be asked.

        Raises
        ------
        InDoubt
            If an upload could not be completed: the epoch is committed, and not all of it is visible.
        Diverged
            If an upload is gone that was not completed.
        """
        if not _asks(entry) if is_new else not self._has_work(entry):
            return
        try:
            gone = []
            for file, is_there in zip(entry.files, each(self._complete, entry.files), strict=True):
                if not is_there:
                    gone.append(file)
                faults.reach("publish-begun", entry.epoch, self._pipeline)
            if gone and not self._log.is_done(entry.number):  # else a newer run was faster, and readers after it
                raise self._lost(entry, gone)
            if entry.removals:
                self._files.delete_several(entry.removals)
                faults.reach("publish-begun", entry.epoch, self._pipeline)
            self._explanations.keep(entry.explanations)
            self._log.note_done(entry.number)
        except Diverged:
            raise
        except HoldfastError as error:
            raise InDoubt(
                f"Epoch {entry.epoch} is committed in sink {self._sink!r}, but not all of its files are visible.",
                why=f"{error.what} {error.why}".strip(),
                do="see that the store answers and takes requests, then start again: opening the sink finishes it.",
                pipeline=self._pipeline,
                participant=self._sink,
                epoch=entry.epoch,
                generation=entry.generation,
            ) from error
        self._finished = entry.number

    def is_unfinished(self, entry: UploadsEntry) -> bool:
        """Ask whether a file of an entry is not visible, or one that it removes still is."""
        if not self._has_work(entry):
            return False
        states = each(lambda file: self._uploads.state(file.upload), entry.files)
        return any(state is not UploadState.DONE for state in states) or bool(entry.removals)

    def gone(self, files: Sequence[UploadedFile]) -> list[str]:
        """Return the keys of published files that are not there any more."""
        states = each(lambda file: self._uploads.state(file.upload), files)
        return [file.upload.key for file, state in zip(files, states, strict=True) if state is UploadState.GONE]

    def _has_work(self, entry: UploadsEntry) -> bool:
        if entry.number <= self._finished or not _asks(entry):
            return False
        if self._log.is_done(entry.number):
            self._finished = entry.number
        return entry.number > self._finished

    def _complete(self, file: UploadedFile) -> bool:
        return self._uploads.complete(file.upload)

    def _lost(self, entry: UploadsEntry, gone: Sequence[UploadedFile]) -> Diverged:
        count, place = len(entry.files), self._files.address
        names = ", ".join(file.upload.key for file in gone[:5]) + (", ..." if len(gone) > 5 else "")
        path = f"{self._log.address}/{entry.number:012}"
        taken = f"If readers have taken them away, after they were visible: create {path}{DONE}, empty."
        if len(gone) == count:
            cure = (
                f"Else nothing of the epoch was ever visible: remove {path}, and start again: the "
                "epoch is read again, if the sources can still deliver it."
            )
        else:
            cure = (
                f"Else put files with these names, and the rows of the epoch that are missing, in their place, and "
                f"create {path}{DONE}, empty."
            )
        return Diverged(
            f"Epoch {entry.epoch} is committed in sink {self._sink!r}, and {len(gone)} of its {count} files "
            f"({sum(file.row_count for file in gone)} rows) are not in {place}: {names}.",
            why="the log entry that names them was written, and neither they nor their uploads are there: somebody, or "
            "a lifecycle rule of the bucket, has aborted the uploads before they were completed"
            + ("." if len(gone) == count else "; the others of the epoch are visible, or were."),
            do=f"{taken} {cure}",
            pipeline=self._pipeline,
            participant=self._sink,
            epoch=entry.epoch,
            generation=entry.generation,
        )


def _asks(entry: UploadsEntry) -> bool:
    """Return whether there is anything to carry out."""
    return bool(entry.files or entry.removals or entry.explanations)
