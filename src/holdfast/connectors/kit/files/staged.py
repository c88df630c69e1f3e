"""Staged files: what one task writes for one epoch, durable, found by name, with names that no reader opens.

A task's files are in ``<staging>/<generation>-<epoch>-<task>-<attempt>-<random>/``.  The handle lists each of them
with its size: the driver publishes what was reported to it, never what happens to be there.

Arrow files in a directory that driver and executors share: rows that tasks staged, found again by their names.

A name is ``pipeline.generation.epoch.task.attempt.nonce.sink.arrow``; while it is being written it ends in
``.tmp``.  The nonce keeps two writers of one task apart, so a name is never used twice.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import json_lines
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.files.rows import EncodedRows, PartitionedRows, RowsForm, file_name
from holdfast.connectors.kit.staging import Staging
from holdfast.errors import invariant
from holdfast.ports import Part, Staged, Task
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
            faults.reach("stage-write", self._task.epoch, self._task.pipeline)

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


Check: TypeAlias = Callable[[pa.RecordBatch], None]


def unchecked(rows: pa.RecordBatch) -> None:
    """Take all rows: what is wrong with one is found out where they are published."""


_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")  # the disk is slower than LZ4


@dataclass(frozen=True)
class ArrowWriterFactory:
    """Picklable factory of :class:`ArrowWriter`."""

    directory: str
    sink: str
    check: Check

    def __call__(self, task: Task) -> ArrowWriter:
        """Open a writer for one attempt of one task.  Nothing is created before the first row."""
        return ArrowWriter(self.directory, self.sink, task, self.check)


class ArrowWriter:
    """Writes one task's rows to one Arrow file."""

    def __init__(self, directory: str, sink: str, task: Task, check: Check) -> None:
        self._task = task
        self._sink = sink
        self._check = check
        self._directory = directory
        numbers = f"{task.generation}.{task.epoch}.{task.task}.{task.attempt}"
        self._file = f"{task.pipeline}.{numbers}.{secrets.token_hex(4)}.{sink}.arrow"
        self._path = os.path.join(directory, self._file)
        self._row_count = 0
        self._out: pa.OSFile | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if not batch.num_rows:
            return
        self._check(batch)  # here, and not when the epoch is decided
        with durable.explained(f"staging {self._path}"):
            if self._stream is None:
                durable.make_directory(self._directory)
                # Made here: Arrow would ask the umask who may read it.
                os.close(os.open(self._path + ".tmp", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, durable.PRIVATE_FILE))
                self._out = pa.OSFile(self._path + ".tmp", "wb")
                self._stream = pa.ipc.new_stream(self._out, batch.schema, options=_OPTIONS)
            self._stream.write_batch(batch)
        self._row_count += batch.num_rows
        faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Make the file durable under its final name."""
        if self._stream is None or self._out is None:
            return Staged(self._task.name, 0)
        with durable.explained(f"staging {self._path}"):
            self._stream.close()
            self._out.close()
            with open(self._path + ".tmp", "rb") as written:
                os.fsync(written.fileno())
            invariant(
                not os.path.lexists(self._path),
                f"{self._path} is to be staged, and is there.",
                why="a name is never used twice: two attempts of one task have two.",
                participant=self._sink,
                epoch=self._task.epoch,
                generation=self._task.generation,
            )
            os.rename(self._path + ".tmp", self._path)
            durable.sync_directory(self._directory)
        return Staged(self._task.name, self._row_count, {"file": self._file})

    def abort(self) -> None:
        """Remove what was written."""
        for opened in (self._stream, self._out):
            if opened is not None:
                with suppress(Exception):
                    opened.close()
        for path in (self._path + ".tmp", self._path):
            with suppress(OSError):
                os.unlink(path)


@dataclass(frozen=True)
class ArrowStaging(Staging):
    """The directory as the driver sees it.

    Parameters
    ----------
    directory : str
        Absolute path.
    pipeline, sink : str
        Identity.
    check : callable
        Raises :class:`~holdfast.errors.BadRow` for rows that the sink cannot keep; picklable: tasks call it.
    """

    directory: str
    pipeline: str
    sink: str
    check: Check

    @property
    def node(self) -> str:
        """The sink, in errors."""
        return f"sink {self.sink!r}"

    def factory(self) -> ArrowWriterFactory:
        """Return the factory that executors call."""
        return ArrowWriterFactory(self.directory, self.sink, self.check)

    def whole(self, part: Staged) -> Iterator[pa.RecordBatch]:
        """Read the file of a staged part, whatever its handle promises."""
        file = part.reference.get("file")
        if file is None:
            return
        try:
            with pa.memory_map(os.path.join(self.directory, os.path.basename(file))) as mapped:
                yield from pa.ipc.open_stream(mapped)
        except (OSError, pa.ArrowInvalid) as error:
            raise rows_gone(self.node, part.name, f"{file} cannot be read: {error}.") from error

    def remove(self, parts: Sequence[Part]) -> None:
        """Remove the files of staged parts; absent is fine."""
        for part in parts:
            if isinstance(part, Staged) and "file" in part.reference:
                self._remove(os.path.basename(part.reference["file"]))

    def sweep(self, generation: int, below_epoch: int) -> int:
        """Remove what lower generations left, and this one below an epoch; return how many files."""
        orphans = [name for name in self._files() if self._is_orphan(name, generation, below_epoch)]
        return sum(self._remove(name) for name in orphans)

    def names(self) -> list[str]:
        """Return :attr:`Task.name` of everything staged, once."""
        return sorted({task.name for task in map(self._task, self._files()) if task is not None})

    def _files(self) -> list[str]:
        if not os.path.isdir(self.directory):
            return []
        with durable.explained(f"listing {self.directory}"):
            return os.listdir(self.directory)

    def _is_orphan(self, name: str, generation: int, below_epoch: int) -> bool:
        task = self._task(name)
        return task is not None and (task.generation, task.epoch) < (generation, below_epoch)

    def _task(self, name: str) -> Task | None:
        """Return whose rows a file holds; None if they are not of this pipeline and sink."""
        parts = name.removesuffix(".tmp").split(".")
        if len(parts) != 8 or parts[0] != self.pipeline or parts[6:] != [self.sink, "arrow"]:
            return None
        generation, epoch, task, attempt = map(int, parts[1:5])
        return Task(self.pipeline, generation, epoch, task, attempt)

    def _remove(self, name: str) -> bool:
        with durable.explained(f"removing {name} in {self.directory}"):
            try:
                os.unlink(os.path.join(self.directory, name))
            except FileNotFoundError:
                return False
        return True
