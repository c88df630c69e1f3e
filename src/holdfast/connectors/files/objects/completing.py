"""Carries out a log entry: its uploads are completed, what it withdraws is removed, what it explains is copied.

The next run that opens the sink does what a crash has left.  An upload is completed once, in whatever process: then its
object is there, and its name is no other's.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import faults
from holdfast.connectors.files.objects.explanations import ObjectExplanations
from holdfast.connectors.files.objects.log import DONE, ObjectLog, UploadsEntry
from holdfast.connectors.files.objects.parallel import each
from holdfast.connectors.files.objects.place import BucketPlace
from holdfast.connectors.files.objects.staging import UploadedFile
from holdfast.errors import Diverged, HoldfastError, InDoubt
from holdfast.store.objects.multipart import UploadState


class Completing:
    """The uploads and removals of one sink's log entries.

    Parameters
    ----------
    place : BucketPlace
        The sink's directory.
    log : ObjectLog
        Its log.
    explanations : ObjectExplanations
        Where those of its entries are copied.
    pipeline, sink : str
        For errors.
    """

    def __init__(
        self, place: BucketPlace, log: ObjectLog, explanations: ObjectExplanations, pipeline: str, sink: str
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
                faults.reach("publish-begun", entry.epoch)
            if gone and not self._log.is_done(entry.number):  # else a newer run was faster, and readers after it
                raise self._lost(entry, gone)
            if entry.removals:
                self._files.delete_several(entry.removals)
                faults.reach("publish-begun", entry.epoch)
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
