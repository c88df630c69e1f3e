"""Staged files: uploads that one task has written and not completed; the handle is all that completes them.

Memory: a part of each open file, and the rows that do not fill a row group yet.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.files.objects.place import BucketPlace, each, named, parsed
from holdfast.connectors.kit import json_lines
from holdfast.connectors.kit.files.rows import EncodedRows, PartitionedRows, RowsForm
from holdfast.errors import HoldfastError, invariant
from holdfast.ports import Staged, Task
from holdfast.store.objects import multipart
from holdfast.store.objects.multipart import MultipartUploads, Upload

OPEN_FILES = 16
"""Open per task: each holds a part, 8 MiB.  Beyond it the one written longest ago is finished, and its partition
continues in another file."""

FILE_BYTES = 64 * 2**30
"""A file that is larger is finished: an upload has at most ten thousand parts."""

_KEY_BYTES_MAX = 1024
_NAME_BYTES = 120
"""Of the name of a file, at most."""


def room_below(address: str) -> int:
    """Return how many bytes the directories of a partition may have together, below an address."""
    return _KEY_BYTES_MAX - _NAME_BYTES - len(address.partition("://")[2].partition("/")[2].encode())


@dataclass(frozen=True)
class UploadedFile:
    """One staged file: its upload, and its rows."""

    upload: Upload
    row_count: int


@dataclass(frozen=True)
class OpenUpload:
    """What the name of an open upload says."""

    name: str
    """Its id."""
    key: str
    task: Task
    token: str

    @property
    def generation(self) -> int:
        """Generation that began it."""
        return self.task.generation

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self.task.epoch


@dataclass(frozen=True)
class UploadStaging:
    """Where and how tasks stage; picklable, so it is the writer factory too.

    Parameters
    ----------
    place : BucketPlace
        The sink's directory.
    form : RowsForm
        How rows become files.
    tag : str
        Part of each file's name that distinguishes pipelines, sinks and addresses.
    """

    place: BucketPlace
    form: RowsForm
    tag: str

    def __call__(self, task: Task) -> UploadsWriter:
        """Open a writer for one attempt of one task."""
        return UploadsWriter(self, task)

    def check(self, rows: pa.Table) -> None:
        """Raise what writing these rows would: they are still in the driver, and nothing is decided.

        Raises
        ------
        BadRow
            If a value cannot name a directory, or cannot be written in the format.
        """
        self.form.check(rows)

    def missing(self, handle: Staged) -> str | None:
        """Say which upload of a handle is not what was staged; None: all of them are."""
        files = files_of(handle)
        for file, is_whole in zip(files, each(lambda one: self.place.uploads.is_whole(one.upload), files), strict=True):
            if not is_whole:
                return f"the upload of {self.place.address}/{file.upload.key} is gone, or has other parts."
        return None

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose uploads are gone, or not what was staged."""
        return [part.name for part in parts if self.missing(part) is not None]

    def orphans(self) -> list[OpenUpload]:
        """Return every open upload of this sink, by its name."""
        found = ((key, upload, parsed(key)) for key, upload in self.place.uploads.all())
        return [
            OpenUpload(upload, key, name.task, name.token)
            for key, upload, name in found
            if name is not None and name.tag == self.tag
        ]

    def abort(self, uploads: Sequence[tuple[str, str]]) -> None:
        """Abort uploads, given by key and id."""
        for _ in each(lambda one: self.place.uploads.abort(*one), uploads):
            pass


def files_of(handle: Staged) -> list[UploadedFile]:
    """Return the files that a handle lists."""
    found = [
        UploadedFile(Upload(key, upload, tuple(etags), size), rows)
        for key, upload, etags, size, rows in json.loads(handle.reference.get("uploads", "[]"))
    ]
    for file in found:
        invariant(
            parsed(file.upload.key) is not None,
            f"the handle {handle.name} names {file.upload.key!r}, which is no staged file.",
        )
    return found


class UploadsWriter:
    """Writes one task's rows; see :class:`holdfast.ports.Writer`.

    Notes
    -----
    Requests: for each file one that begins its upload, and one for each 8 MiB of it, begun.
    """

    def __init__(self, staging: UploadStaging, task: Task) -> None:
        self._staging = staging
        self._task = task
        self._token = uuid.uuid4().hex[:12]
        self._rows = PartitionedRows(staging.form, self._new_file, open_files=OPEN_FILES)
        self._begun: list[tuple[str, str]] = []
        self._finished: list[UploadedFile] = []
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        if self._staging.form.format == "json":
            json_lines.check(batch)
        is_first, self._row_count = not self._row_count, self._row_count + batch.num_rows
        self._rows.write(batch)
        if is_first:
            faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Make everything written durable and return the handle."""
        self._rows.finish()
        files = [
            (file.upload.key, file.upload.upload_id, file.upload.etags, file.upload.size_bytes, file.row_count)
            for file in self._finished
        ]
        pa.default_memory_pool().release_unused()  # the worker waits for the next epoch, or is not needed any more
        reference = {"uploads": json.dumps(files)} if files else {}
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        self._rows.drop()
        for key, upload in self._begun:
            with suppress(HoldfastError):  # it is an orphan, and found by its name
                self._staging.place.uploads.abort(key, upload)

    def _new_file(self, partition: str, schema: pa.Schema) -> _OpenUpload:
        staging = self._staging
        key = named(partition, self._task, staging.tag, self._token, len(self._begun), staging.form.format)
        upload_id = staging.place.uploads.create(key)
        self._begun.append((key, upload_id))
        return _OpenUpload(_Parts(staging.place.uploads, key, upload_id), schema, staging.form, self._finished.append)


class _OpenUpload:
    """One file being uploaded; finished, it is told."""

    def __init__(
        self, parts: _Parts, schema: pa.Schema, form: RowsForm, on_finished: Callable[[UploadedFile], None]
    ) -> None:
        self._parts = parts
        self._rows = EncodedRows(cast("IO[bytes]", parts), schema, form)
        self._row_count = 0
        self._on_finished = on_finished

    @property
    def is_full(self) -> bool:
        """Whether another row group may be too much."""
        return self._parts.tell() >= FILE_BYTES

    def write(self, rows: pa.Table) -> None:
        """Write one row group, or one run of lines."""
        self._rows.write(rows)
        self._row_count += rows.num_rows

    def finish(self) -> None:
        """Upload what is left."""
        self._rows.end()
        self._on_finished(UploadedFile(self._parts.finished(), self._row_count))

    def drop(self) -> None:
        """Close, whatever state the file is in."""
        self._parts.is_dropped = True
        self._rows.drop()


class _Parts(io.RawIOBase):
    """A file that is only written: each full part is uploaded at once."""

    def __init__(self, uploads: MultipartUploads, key: str, upload_id: str) -> None:
        super().__init__()
        self._uploads = uploads
        self._key = key
        self._upload_id = upload_id
        self._held = bytearray()
        self._etags: list[str] = []
        self._size_bytes = 0
        self.is_dropped = False
        """Whether nothing more is uploaded."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any) -> int:
        """Take all of it."""
        view = memoryview(data).cast("B")
        self._held += view
        self._size_bytes += len(view)
        while len(self._held) >= multipart.PART_BYTES and not self.is_dropped:
            self._put(bytes(self._held[: multipart.PART_BYTES]))
            del self._held[: multipart.PART_BYTES]
        return len(view)

    def finished(self) -> Upload:
        """Upload the last part, which may be small."""
        if self._held or not self._etags:
            self._put(bytes(self._held))
            self._held.clear()
        return Upload(self._key, self._upload_id, tuple(self._etags), self._size_bytes)

    def _put(self, data: bytes) -> None:
        self._etags.append(self._uploads.put_part(self._key, self._upload_id, len(self._etags) + 1, data))
