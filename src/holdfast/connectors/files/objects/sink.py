"""The runtime of the files sink in S3: one log entry commits an epoch, then the uploads that it names are completed.

Invariants: an entry is followed by another only when it is carried out; nothing is reported as failed after the entry;
what the last entry names is not swept while it is unfinished (design/0040).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from threading import RLock

from holdfast import faults
from holdfast.connectors.files.objects.completing import Completing
from holdfast.connectors.files.objects.explanations import ObjectExplanations
from holdfast.connectors.files.objects.log import KEPT, ObjectLog, UploadsBehind, UploadsEntry, files_behind
from holdfast.connectors.files.objects.names import OWN, tag_at
from holdfast.connectors.files.objects.place import BucketPlace
from holdfast.connectors.files.objects.staging import UploadedFile, UploadStaging, files_of
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.believed import fresh, rows_gone
from holdfast.connectors.kit.explained import explained_with, lacking
from holdfast.connectors.kit.files.log_owner import check_owner, fenced
from holdfast.connectors.kit.files.rows import RowsForm
from holdfast.connectors.kit.rewinds import cannot_go_back
from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable, invariant
from holdfast.ports import (
    EpochRecord,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Publication,
    Refused,
    RunIdentity,
    Sink,
    Staged,
    Task,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store.objects.errors import StoreAnswer
from holdfast.store.objects.requests import refused_answer
from holdfast.types.schema import encode_schema

log = logging.getLogger("holdfast.connectors.files")

_PROBE = "probe"
"""Name of an upload that is begun and aborted when the sink is opened."""


class ObjectFilesSink:
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

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "multipart uploads, completed when published"

    def __init__(self, name: str, pipeline: str, place: BucketPlace, form: RowsForm) -> None:
        self.name = name
        self._pipeline = pipeline
        self._generation = 0
        self._place = place
        self._log = ObjectLog(place.log(pipeline, name))
        self._explanations = ObjectExplanations(place.positions(pipeline, name), f"sink {name!r}")
        self._staging = UploadStaging(place, form, tag_at(place.address, pipeline, name))
        self._completing = Completing(place, self._log, self._explanations, pipeline, name)
        self._lock = RLock()
        self._known = UploadsEntry()

    def __repr__(self) -> str:
        return f"ObjectFilesSink({self.name!r}, {self._place.address!r})"

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, carry out the last entry, return what is held."""
        with self._lock:
            last = self._fence(run)
        return last.held()

    def _fence(self, run: RunIdentity) -> UploadsEntry:
        """Take the log over; return its last entry before that."""
        self._known = self._log.last()
        self._check_uploads()
        while True:
            last = self._last()
            if last.generation >= run.generation:  # another run took it between our claim and here
                raise fenced(self.name, self._pipeline, run.generation, last.held())
            # Before the fence, which names no upload: the last entry says everything, so its epoch must be whole.
            self._completing.finish(last)
            fence = dataclasses.replace(
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
            if self._append(fence):  # else another process has appended since we read: what it published counts
                break
        if not self._log.is_refused_again(fence):
            raise InvalidPipeline(
                f"Sink {self.name!r} cannot write to {self._place.address}.",
                why="the store created an object that was there already: it does not know conditional puts "
                "(If-None-Match), without which two runs would publish the same epoch.",
                do="choose a store that knows them (S3, MinIO and Cloudflare R2 do), or update the server.",
                participant=self.name,
            )
        self._generation = run.generation
        self._log.begin(fence)
        return last

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

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check what a file or its name could not keep; staged rows are in their uploads already."""
        refusals.check_carried(publication, self._staging.check)
        return False

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the carried rows that a file or its name could not keep; staged rows are in their uploads already."""
        return refusals.rejected_carried(publication, self._staging.check)

    def publish(self, publications: Sequence[Publication], believed: Held) -> None:
        """Make the epochs visible: one log entry for all of them, then their uploads are completed."""
        with self._lock:
            self._publish(publications, believed)

    def _publish(self, publications: Sequence[Publication], believed: Held) -> None:
        last = self._last()
        self._check_generation(last)
        new = fresh(f"sink {self.name!r}", self._pipeline, publications, last.held(), believed)
        self._completing.finish(last)
        if not new:  # the entry was appended, an error followed, and the run publishes again
            return
        carried: list[Staged] = []
        try:
            files = [file for publication in new for file in self._prepare(publication, carried)]
            for publication in new:
                faults.reach("publish-uncommitted", publication.record.epoch)
            told = lacking(new, last.explained, f"sink {self.name!r}")
            record = new[-1].record
            back = self._back(record)
            entry = UploadsEntry(
                number=last.number + 1,
                generation=self._generation,
                epoch=record.epoch,
                after_epoch=last.epoch,
                positions=record.positions,
                pts=record.pts,
                files=tuple(files),
                removals=() if back is None else tuple(file.upload.key for file in back.files),
                back_to=None if back is None else back.epoch,
                recent_ends=record.recent_ends,
                at_us=_now_us(),
                explained=explained_with(last.explained, told),
                explanations=tuple(told),
                schema=last.schema,
            )
        except Exception:
            self._drop(carried)
            raise
        # The commit.  A crash right after it leaves the uploads to the next open.  After an error the entry may be in
        # place, whatever was answered: what it names must stay, and is swept where it is not.
        if not self._append(entry):  # another run opened the sink between our reading of the log and the append
            self._drop(carried)
            self._check_generation(self._last())
            raise Unavailable(f"Sink {self.name!r} lost its place in its log to itself.", do="start again.")
        for publication in new:
            faults.reach("publish-begun", publication.record.epoch)
        self._completing.finish(entry, is_new=True)
        self._log.prune(entry)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the log, and for the last entry its uploads too."""
        try:
            last = self._last()
            if epoch > last.epoch:
                return Outcome.ABSENT
            if epoch > last.after_epoch and self._completing.is_unfinished(last):
                return Outcome.STAGED
        except (Unavailable, InvalidPipeline, InDoubt) as error:
            log.warning("sink %s did not answer for epoch %d: %s", self.name, epoch, error)
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose uploads are gone."""
        return self._staging.expired(parts)

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what the last log entry says, and whose uploads are open that it does not name."""
        last = self._last()
        named = self._named(last)
        tasks = {
            dataclasses.replace(task, pipeline=self._pipeline).name
            for _, upload, task, _ in self._staging.orphans()
            if upload not in named
        }
        return last.held(), sorted(tasks)

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        last = self._last()
        return self._explanations.all(last.explained, last.explanations)

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name; return of how many attempts of tasks."""
        last = self._last()
        if last.generation != self._generation:  # fenced: what is staged may be the newer run's
            return 0
        named = self._named(last)
        found = [
            (key, upload, token)
            for key, upload, task, token in self._staging.orphans()
            if (task.generation, task.epoch) < (self._generation, below_epoch) and upload not in named
        ]
        self._staging.abort([(key, upload) for key, upload, _ in found])
        return len({token for _, _, token in found})

    def close(self) -> None:
        """Nothing is held open."""

    def _named(self, last: UploadsEntry) -> set[str]:
        """Return the ids of the uploads that the last entry names, which may still have to be completed."""
        return {file.upload.upload_id for file in last.files}

    # --- before the commit --------------------------------------------------------------------------

    def _prepare(self, publication: Publication, carried: list[Staged]) -> list[UploadedFile]:
        """Return the files of one epoch; carried rows are staged for it."""
        handles: list[Staged] = []
        for index, part in enumerate(publication.parts):
            if isinstance(part, Staged):
                self._check_there(part)
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
        return [file for handle in handles for file in files_of(handle)]

    def _check_there(self, handle: Staged) -> None:
        missing = self._staging.missing(handle)
        if missing is not None:
            self._check_generation(self._last())  # a newer generation may have swept it
            raise rows_gone(f"sink {self.name!r}", handle.name, missing, pipeline=self._pipeline, participant=self.name)

    def _append(self, entry: UploadsEntry) -> bool:
        last = self._known
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
        if not self._log.append(entry):
            return False
        self._known = entry
        return True

    def _drop(self, carried: Iterable[Staged]) -> None:
        uploads = [(file.upload.key, file.upload.upload_id) for handle in carried for file in files_of(handle)]
        try:
            self._staging.abort(uploads)
        except HoldfastError as error:
            log.info("sink %s: %s They are swept later.", self.name, error.what)

    # --- rewinds ------------------------------------------------------------------------------------

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw: the files that the log names after them."""
        entries = self._log.standing(self._last())
        back = files_behind(entries, to)
        if back is None:
            ends = sorted({entry.epoch for entry in entries if entry.epoch})
            if not ends:
                return Withdrawal(obstacle="it holds nothing")
            return Withdrawal(
                obstacle=f"none of its log entries ended there; it keeps the last {KEPT}, which can go back to epochs "
                f"{ends[0]} to {ends[-1]}"
            )
        gone = self._completing.gone(back.files)
        if gone:
            return Withdrawal(
                obstacle=f"{self._place.address}/{gone[0]} was published and has been removed: its rows are not found"
            )
        return Withdrawal(back.epoch, back.epoch_count, sum(file.row_count for file in back.files))

    def _back(self, record: EpochRecord) -> UploadsBehind | None:
        if record.rewound_to is None:
            return None
        entries = self._log.standing(self._known)
        back = files_behind(entries, record.positions)
        if back is None:
            raise cannot_go_back(f"sink {self.name!r}", record, sorted({entry.epoch for entry in entries}))
        return back

    # --- fence --------------------------------------------------------------------------------------

    def _last(self) -> UploadsEntry:
        self._known = self._log.follow(self._known)
        return self._known

    def _check_generation(self, last: UploadsEntry) -> None:
        check_owner(
            self.name,
            self._pipeline,
            self._generation,
            last.held(),
            what="log",
            place=f"{self._place.address}/{OWN}",
            holder="sink holds",
        )


def _now_us() -> int:
    return time.time_ns() // 1000
