"""Staged files: what one task writes for one epoch, durable, found by name, with names that no reader opens.

A task's files are in ``<staging>/<generation>-<epoch>-<task>-<attempt>-<random>/``.  The handle lists each of them
with its size: the driver publishes what was reported to it, never what happens to be there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import json_lines
from holdfast.connectors.kit.files.rows import EncodedRows, PartitionedRows, RowsForm, file_name
from holdfast.errors import invariant
from holdfast.ports import Staged, Task
from holdfast.store import durable
from holdfast.types.partition import room_below

_DIRECTORY = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


@dataclass(frozen=True)
class StagedDirectory:
    """What the name of a staged directory says."""

    name: str
    generation: int
    epoch: int


@dataclass(frozen=True)
class StagedFile:
    """One staged file: its path inside its directory, and its size."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class FileStaging:
    """Where and how tasks stage; picklable, so it is the writer factory too.

    Parameters
    ----------
    directory : str
        Absolute path, seen under the same name by every executor.
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    format : str
        "parquet" or "json".
    partition_by : tuple of str
        Partition columns, outermost first.
    compression : str or None
        Of Parquet.
    tag : str
        Part of each file's name that distinguishes pipelines and sinks.
    suffix : str
        Appended to the final name while staged, so that ``**/*.parquet`` does not match.
    is_published : bool
        Whether files are renamed into place, readable by others if the umask allows.
    """

    directory: str
    schema: pa.Schema
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str | None = "zstd"
    tag: str = ""
    suffix: str = ".staged"
    is_published: bool = True

    def __call__(self, task: Task) -> FilesWriter:
        """Open a writer for one attempt of one task."""
        return FilesWriter(self, task)

    def check(self, rows: pa.Table) -> None:
        """Raise what writing these rows would: they are still in the driver, and nothing is decided.

        Raises
        ------
        BadRow
            If a value cannot name a directory, or cannot be written in the format.
        """
        self.form.check(rows)

    @property
    def form(self) -> RowsForm:
        """How rows become files."""
        room_bytes = room_below(self.directory)
        return RowsForm(self.schema, self.format, self.partition_by, self.compression, room_bytes)

    def directories(self) -> list[StagedDirectory]:
        """Return what is staged, by name; foreign names are skipped."""
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []
        matches = ((name, _DIRECTORY.fullmatch(name)) for name in names)
        return [StagedDirectory(name, int(match[1]), int(match[2])) for name, match in matches if match]

    def missing(self, handle: Staged) -> str | None:
        """Say which file of a handle is not what was staged; None: all of them are."""
        name = directory_of(handle)
        for file in files_of(handle) if name is not None else ():
            path = os.path.join(self.directory, name or "", file.path)
            why = missing_bytes(path, file.size_bytes)
            if why is not None:
                return why
        return None

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone, or not what was staged."""
        return [part.name for part in parts if self.missing(part) is not None]

    def remove(self, name: str) -> bool:
        """Remove a staged directory; return whether it is gone (a live writer may still put files into it)."""
        path = os.path.join(self.directory, name)
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)


def missing_bytes(path: str, size_bytes: int) -> str | None:
    """Say that a file has not the size it was staged with; None where it has."""
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        return f"{path} is not there."
    return None if found == size_bytes else f"{path} should have {size_bytes} bytes and has {found}."


def directory_of(handle: Staged) -> str | None:
    """Return the name of the directory that a handle refers to; None for a task that wrote no row."""
    name = handle.reference.get("directory")
    is_ours = name is None or _DIRECTORY.fullmatch(name)
    invariant(is_ours, f"the handle {handle.name} names {name!r}, which is no staged directory.")
    return name


def files_of(handle: Staged) -> list[StagedFile]:
    """Return the files that a handle lists."""
    return [StagedFile(path, size) for path, size in json.loads(handle.reference.get("files", "{}")).items()]


class FilesWriter:
    """Writes one task's rows; see :class:`holdfast.ports.Writer`.

    Notes
    -----
    Memory is bounded, whatever the epoch holds.  :meth:`stage` syncs every file and every directory once.
    """

    def __init__(self, staging: FileStaging, task: Task) -> None:
        self._staging = staging
        self._task = task
        self._token = uuid.uuid4().hex[:12]
        self._name = f"{task.generation}-{task.epoch}-{task.task}-{task.attempt}-{self._token}"
        self._directory = os.path.join(staging.directory, self._name)
        self._rows = PartitionedRows(staging.form, self._new_file)
        self._file_count = 0
        self._finished: dict[str, int] = {}
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        if self._staging.format == "json":
            json_lines.check(batch)
        is_first, self._row_count = not self._row_count, self._row_count + batch.num_rows
        with durable.explained(f"staging rows in {self._directory}"):
            if is_first:
                durable.make_directory(self._directory, is_synced=False)
            self._rows.write(batch)
        if is_first:
            faults.reach("stage-write", self._task.epoch)

    def stage(self) -> Staged:
        """Make everything written durable and return the handle."""
        if not self._row_count:
            return Staged(self._task.name, 0)
        with durable.explained(f"staging rows in {self._directory}"):
            self._rows.finish()
            for directory, _, _ in os.walk(self._directory):
                durable.sync_directory(directory)
            durable.sync_directory(self._staging.directory)
        reference = {"directory": self._name, "files": json.dumps(self._finished)}
        pa.default_memory_pool().release_unused()  # the worker waits for the next epoch, or is not needed any more
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        self._rows.drop()
        self._staging.remove(self._name)

    def _new_file(self, partition: str, schema: pa.Schema) -> _OpenFile:
        staging, task = self._staging, self._task
        marks = [staging.tag, self._token, f"{self._file_count:03}"]
        self._file_count += 1
        durable.make_directory(os.path.join(self._directory, partition), is_synced=False)
        path = os.path.join(partition, file_name(task.epoch, task.task, marks, staging.format) + staging.suffix)
        return _OpenFile(self._directory, path, schema, staging, self._finished)


class _OpenFile:
    """One file being written; finished, its size is noted under its path."""

    is_full = False

    def __init__(
        self, directory: str, path: str, schema: pa.Schema, staging: FileStaging, finished: dict[str, int]
    ) -> None:
        self._path = path
        self._finished = finished
        # Buffered: Arrow takes a short write of an unbuffered file for a whole one.
        # What a rename will publish has the umask's mode; until then it is in a directory that only this user can
        # enter.
        opener = None if staging.is_published else durable.private_opener
        self._file: BinaryIO = open(os.path.join(directory, path), "xb", 2**20, opener=opener)  # noqa: SIM115
        self._rows = EncodedRows(self._file, schema, staging.form)

    def write(self, rows: pa.Table) -> None:
        """Write one row group, or one run of lines."""
        self._rows.write(rows)

    def finish(self) -> None:
        """Close durably."""
        self._rows.end()
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self._file.tell()
        self._file.close()
        self._finished[self._path] = size_bytes

    def drop(self) -> None:
        """Close, whatever state the file is in."""
        self._rows.drop()
        with suppress(Exception):
            self._file.close()
