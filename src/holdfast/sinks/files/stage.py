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
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import faults
from holdfast.errors import invariant
from holdfast.ports import Staged, Task
from holdfast.sinks import json_lines
from holdfast.sinks.files import partition as files_partition
from holdfast.store import durable
from holdfast.types.casting import declared

ROW_GROUP_ROWS = 1_048_576
ROW_GROUP_BYTES = 32 * 2**20
"""A row group is closed at either: large enough to be scanned fast, small enough to be held by every task."""

BUFFER_BYTES = 128 * 2**20
"""Held per task over all partitions; beyond it the largest partition is written."""

OPEN_FILES = 64
"""Open per task; beyond it the one written longest ago is closed, and its partition continues in another file."""

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
        for batch in rows.to_batches():
            batch = declared(batch, self.schema)
            for column in self.partition_by:
                files_partition.partition_names(column, batch.column(column).unique())
            if self.format == "json":
                json_lines.check(batch.drop_columns(list(self.partition_by)))

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
    Memory is bounded by ``BUFFER_BYTES`` and the open files, whatever the epoch holds.  :meth:`stage` syncs every
    file and every directory once.
    """

    def __init__(self, staging: FileStaging, task: Task) -> None:
        self._staging = staging
        self._task = task
        self._token = uuid.uuid4().hex[:12]
        self._name = f"{task.generation}-{task.epoch}-{task.task}-{task.attempt}-{self._token}"
        self._directory = os.path.join(staging.directory, self._name)
        self._held: dict[str, _Held] = {}
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._finished: dict[str, int] = {}
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        if self._staging.format == "json":
            json_lines.check_text(batch)
        is_first, self._row_count = not self._row_count, self._row_count + batch.num_rows
        with durable.explained(f"staging rows in {self._directory}"):
            if is_first:
                durable.make_directory(self._directory, is_synced=False)
            rows = declared(batch, self._staging.schema)
            for partition, of_partition in files_partition.split(rows, self._staging.partition_by):
                self._hold(partition, of_partition)
            while sum(held.size_bytes for held in self._held.values()) > BUFFER_BYTES:
                self._flush(max(self._held, key=lambda partition: self._held[partition].size_bytes))
        if is_first:
            faults.reach("stage-write", self._task.epoch)

    def stage(self) -> Staged:
        """Make everything written durable and return the handle."""
        if not self._row_count:
            return Staged(self._task.name, 0)
        with durable.explained(f"staging rows in {self._directory}"):
            for partition in list(self._held):
                self._flush(partition)
            for partition in list(self._open):
                self._finish(partition)
            for directory, _, _ in os.walk(self._directory):
                durable.sync_directory(directory)
            durable.sync_directory(self._staging.directory)
        reference = {"directory": self._name, "files": json.dumps(self._finished)}
        pa.default_memory_pool().release_unused()  # the worker waits for the next epoch, or is not needed any more
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        for file in self._open.values():
            file.drop()
        self._open.clear()
        self._held.clear()
        self._staging.remove(self._name)

    def _hold(self, partition: str, rows: pa.RecordBatch) -> None:
        held = self._held.setdefault(partition, _Held())
        held.batches.append(rows)
        held.row_count += rows.num_rows
        held.size_bytes += rows.nbytes
        if held.size_bytes >= ROW_GROUP_BYTES or held.row_count >= ROW_GROUP_ROWS:
            self._flush(partition)

    def _flush(self, partition: str) -> None:
        rows = pa.Table.from_batches(self._held.pop(partition).batches)
        self._file(partition, rows.schema).write(rows)

    def _file(self, partition: str, schema: pa.Schema) -> _OpenFile:
        if partition not in self._open:
            while len(self._open) >= OPEN_FILES:
                self._finish(next(iter(self._open)))
            self._open[partition] = self._new_file(partition, schema)
        self._open.move_to_end(partition)
        return self._open[partition]

    def _new_file(self, partition: str, schema: pa.Schema) -> _OpenFile:
        staging, task = self._staging, self._task
        marks = [f"part-{task.epoch:012}-{task.task:05}", staging.tag, self._token, f"{len(self._finished):03}"]
        name = "-".join(filter(None, marks)) + f".{staging.format}{staging.suffix}"
        durable.make_directory(os.path.join(self._directory, partition), is_synced=False)
        path = os.path.join(partition, name)
        return _OpenFile(self._directory, path, schema, staging)

    def _finish(self, partition: str) -> None:
        file = self._open.pop(partition)
        try:
            self._finished[file.path] = file.finish()
        except BaseException:
            file.drop()
            raise


@dataclass
class _Held:
    """Rows of one partition that are not in a file yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0


class _OpenFile:
    """One file being written."""

    def __init__(self, directory: str, path: str, schema: pa.Schema, staging: FileStaging) -> None:
        self.path = path
        # Buffered: Arrow takes a short write of an unbuffered file for a whole one.
        # What a rename will publish has the umask's mode; until then it is in a directory that only this user can
        # enter.
        opener = None if staging.is_published else durable.private_opener
        self._file: BinaryIO = open(os.path.join(directory, path), "xb", 2**20, opener=opener)  # noqa: SIM115
        self._parquet: pq.ParquetWriter | None = None
        if staging.format == "parquet":
            self._parquet = pq.ParquetWriter(self._file, schema, compression=staging.compression or "none")

    def write(self, rows: pa.Table) -> None:
        """Write one row group, or one run of lines."""
        if self._parquet is not None:
            self._parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        else:
            for batch in rows.to_batches():
                self._file.write(json_lines.encode(batch))

    def finish(self) -> int:
        """Close durably; return the size in bytes."""
        if self._parquet is not None:
            self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self._file.tell()
        self._file.close()
        return size_bytes

    def drop(self) -> None:
        """Close, whatever state the file is in."""
        if self._parquet is not None:
            with suppress(Exception):
                self._parquet.close()
            self._parquet.is_open = False  # it failed to close: its destructor must not try again
        with suppress(Exception):
            self._file.close()
