"""The journal of a segments sink: one file for each task and epoch, its rows in the order of their partitions.

A file is an Arrow IPC file, the index of its pieces (an Arrow IPC stream), and a trailer that says how long these are.
It ends in :data:`TRAILER`: a file that a crash cut is recognised, and no name is given to a piece.  What it costs to
write hardly depends on the number of partitions: there is one record batch for up to 128 MB of rows, and one index.

Which sealed segments are dropped: ``retain="30 d"`` or ``retain="500 GB"``.  Pure.

Never one of an epoch in which something that grows now had begun: what is sealed from there on is what a recovery would
filter out, and stays until nothing needs it.
"""

from __future__ import annotations

import os
import re
import struct
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import faults
from holdfast.connectors.segments.entries import JournalFile, SealedSegment
from holdfast.connectors.segments.places import PartitionRows, partition_rows
from holdfast.errors import Corrupt, invariant
from holdfast.ports import Staged, Task
from holdfast.store import durable
from holdfast.types import partition as files_partition
from holdfast.types.casting import declared
from holdfast.types.units import duration_us, size_bytes

BUFFER_BYTES = 128 * 2**20
"""Held by each task; beyond it the rows are sorted and written, as one record batch."""

TRAILER = struct.Struct("<QQQI4s")
"""Length of the rows, length of the index, bytes of the rows in memory, CRC-32 of the index, and a mark."""
_MARK = b"HFSG"

INDEX = pa.schema([("partition", pa.string()), ("batch", pa.int32()), ("first", pa.int32()), ("rows", pa.int32())])

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)-[0-9a-f]+\.rows")


@dataclass(frozen=True)
class JournalName:
    """What the name of a journal file says."""

    name: str
    generation: int
    epoch: int


@dataclass(frozen=True)
class JournalStaging:
    """Where and how tasks stage; picklable, so it is the writer factory too.

    Parameters
    ----------
    directory : str
        Absolute path, seen under the same name by every executor.
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    partition_by : tuple of str
        Partition columns, outermost first.
    """

    directory: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()

    @property
    def room_bytes(self) -> int:
        """How long the directories of a partition may be together: those of its sealed files, which come later."""
        return files_partition.room_below(self.directory)

    def __call__(self, task: Task) -> JournalWriter:
        """Open a writer for one attempt of one task."""
        return JournalWriter(self, task)

    def check(self, rows: pa.Table) -> None:
        """Raise :class:`BadRow` if a value cannot name a directory: nothing is decided yet."""
        for batch in rows.to_batches():
            batch = declared(batch, self.schema)
            files_partition.check(batch, self.partition_by, self.room_bytes)

    def names(self) -> list[JournalName]:
        """Return what is in the journal, by name; foreign names are skipped."""
        return journal_names(self.directory)

    def remove(self, name: str) -> bool:
        """Remove a file; return whether it is gone."""
        path = os.path.join(self.directory, name)
        with suppress(OSError):
            os.unlink(path)
        return not os.path.lexists(path)


def journal_names(directory: str) -> list[JournalName]:
    """Return the files of a journal, by name; foreign names are skipped."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return [JournalName(name, int(match[1]), int(match[2])) for name, match in matches if match]


def task_of(name: str) -> str:
    """Return generation, epoch, task and attempt of a journal file, as :attr:`Task.name` spells them."""
    return "/".join(name.split("-")[:4])


def file_of(handle: Staged) -> JournalFile | None:
    """Return the file that a handle refers to; None for a task that wrote no row."""
    reference = handle.reference
    if "file" not in reference:
        return None
    name = reference["file"]
    match = _NAME.fullmatch(name)
    invariant(match is not None, f"the handle {handle.name} names {name!r}, which is no journal file.")
    assert match is not None
    return JournalFile(name, int(match[2]), handle.row_count, int(reference["row_bytes"]), int(reference["size"]))


class JournalWriter:
    """Writes one task's rows; see :class:`holdfast.ports.Writer`.

    Notes
    -----
    Holds ``BUFFER_BYTES`` of rows, and sorts them by partition.  :meth:`stage` syncs one file and one directory.
    """

    def __init__(self, staging: JournalStaging, task: Task) -> None:
        self._staging = staging
        self._task = task
        self._file_name = f"{task.generation}-{task.epoch}-{task.task}-{task.attempt}-{uuid.uuid4().hex[:12]}.rows"
        self._path = os.path.join(staging.directory, self._file_name)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._file: BinaryIO | None = None
        self._rows: pa.RecordBatchFileWriter | None = None
        self._index: list[pa.RecordBatch] = []
        self._row_count = 0
        self._row_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        is_first, self._row_count = not self._row_count, self._row_count + batch.num_rows
        batch = declared(batch, self._staging.schema)
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > BUFFER_BYTES:
            self._flush()
        if is_first:
            faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Make everything written durable and return the handle."""
        if not self._row_count:
            return Staged(self._task.name, 0)
        with durable.explained(f"staging rows in {self._path}"):
            self._flush()
            size_bytes = self._finish()
            durable.sync_directory(self._staging.directory)
        reference = {"file": self._file_name, "size": str(size_bytes), "row_bytes": str(self._row_bytes)}
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        self._held.clear()
        if self._rows is not None:
            with suppress(Exception):
                self._rows.close()
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
            self._staging.remove(self._file_name)

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held).combine_chunks().to_batches()
        self._held, self._held_bytes = [], 0
        for batch in rows:  # several where texts are larger than offsets can tell
            names, firsts, ordered = grouped(batch, self._staging.partition_by, self._staging.room_bytes)
            self._row_bytes += ordered.nbytes
            if self._rows is None:
                with durable.explained(f"staging rows in {self._path}"):
                    self._open(ordered.schema)
                assert self._rows is not None
            with durable.explained(f"staging rows in {self._path}"):
                self._rows.write_batch(ordered)
            self._index.append(_index(names, firsts, ordered.num_rows, len(self._index)))

    def _open(self, schema: pa.Schema) -> None:
        durable.make_directory(self._staging.directory)
        self._file = open(self._path, "xb", 2**20, opener=durable.private_opener)  # noqa: SIM115
        self._rows = pa.ipc.new_file(self._file, schema)

    def _finish(self) -> int:
        assert self._rows is not None
        assert self._file is not None
        self._rows.close()
        length = self._file.tell()
        index = pa.BufferOutputStream()
        with pa.ipc.new_stream(index, INDEX) as writer:
            writer.write_table(pa.Table.from_batches(self._index, INDEX).combine_chunks())
        data = index.getvalue().to_pybytes()
        self._file.write(data)
        self._file.write(TRAILER.pack(length, len(data), self._row_bytes, zlib.crc32(data), _MARK))
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self._file.tell()
        self._file.close()
        return size_bytes


def grouped(
    batch: pa.RecordBatch, columns: Collection[str], room_bytes: int
) -> tuple[pa.StringArray, np.ndarray[Any, Any], pa.RecordBatch]:
    """Return the directories of a batch's partitions, where the rows of each begin, and the rows in that order.

    Without the partition columns, as sealed files are.  Rows of one partition keep their order.
    """
    if not columns:
        return pa.array([""]), np.zeros(1, dtype=np.int64), batch
    names, firsts, order = files_partition.groups(batch, list(columns), room_bytes)
    rest = batch.drop_columns(list(columns))
    if len(names) > 1:
        rest = rest.take(pa.array(order))
    return names, firsts, rest


def _index(names: pa.StringArray, firsts: np.ndarray[Any, Any], row_count: int, batch: int) -> pa.RecordBatch:
    rows = np.diff(firsts, append=row_count)
    columns = [
        names,
        pa.array(np.full(len(names), batch, np.int32)),
        pa.array(firsts.astype(np.int32)),
        pa.array(rows.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INDEX)


class PiecesReader:
    """A journal file, mapped into memory; what it returns stays valid when the file is removed.

    Parameters
    ----------
    path : str
        The file.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    Corrupt
        If it is not what was written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = pa.memory_map(path).read_buffer()
        if self._data.size < TRAILER.size:
            raise _damage(path, "it is cut")
        length, index_length, self.row_bytes, checksum, mark = TRAILER.unpack(self._data[-TRAILER.size :].to_pybytes())
        if mark != _MARK or length + index_length + TRAILER.size != self._data.size:
            raise _damage(path, "its trailer is not what was written")
        index = self._data.slice(length, index_length)
        if zlib.crc32(index) != checksum:
            raise _damage(path, "the checksum of its index does not match")
        self._length = length
        self._batches: pa.RecordBatchFileReader | None = None
        self.index = pa.ipc.open_stream(index).read_all().combine_chunks()

    @property
    def schema(self) -> pa.Schema:
        """Of its rows."""
        return self._reader().schema

    @property
    def row_count(self) -> int:
        """Rows of all partitions."""
        return int(pc.sum(self.index["rows"]).as_py() or 0)

    def partitions(self) -> PartitionRows:
        """Return the rows of each partition."""
        return partition_rows(self.index)

    def pieces(self, partitions: Collection[str] | None = None) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield partition and rows of each piece; of these partitions only."""
        index = self.index
        if partitions is not None:
            index = index.filter(pc.is_in(index["partition"], pa.array(list(partitions), pa.string())))
        reader = self._reader()
        columns = [index[name].to_pylist() for name in INDEX.names]
        loaded: tuple[int, pa.RecordBatch | None] = (-1, None)
        for partition, number, first, rows in zip(*columns, strict=True):
            if loaded[0] != number:
                loaded = (number, reader.get_batch(number))
            assert loaded[1] is not None
            yield partition, loaded[1].slice(first, rows)

    def batches(self) -> Iterator[tuple[pa.Table, pa.RecordBatch]]:
        """Yield each record batch with the index of its pieces, which are its rows in their order."""
        reader = self._reader()
        for number in range(reader.num_record_batches):
            yield self.index.filter(pc.equal(self.index["batch"], number)), reader.get_batch(number)

    def _reader(self) -> pa.RecordBatchFileReader:
        if self._batches is None:
            self._batches = pa.ipc.open_file(self._data.slice(0, self._length))
        return self._batches


def _damage(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"The journal file {path} is damaged.",
        why=f"{why}.",
        do="restore it from a copy; without it, the rows of its epoch that are not sealed are lost.",
        participant=path,
    )


_SIZE = re.compile(r"[\d.\s]*([kmgtp]i?)?b", re.IGNORECASE)

REMOVED_MAX = 1000
"""By one entry of the manifest."""


@dataclass(frozen=True)
class Retention:
    """How much is kept: segments sealed since, or so many bytes; None: no limit of this kind."""

    age_us: int | None = None
    bytes: int | None = None

    def expired(
        self, segments: Iterable[SealedSegment], *, total_bytes: int, now_us: int, before_epoch: int
    ) -> Iterator[SealedSegment]:
        """Yield what is to be dropped, oldest first.

        Parameters
        ----------
        segments : iterable of SealedSegment
            In the order in which they were sealed; read as far as is needed.
        total_bytes : int
            Of all of them.
        now_us : int
            Unix time.
        before_epoch : int
            Only those whose epochs are all before this one.
        """
        for _, segment in zip(range(REMOVED_MAX), segments, strict=False):
            is_old = self.age_us is not None and now_us - segment.sealed_us > self.age_us
            is_too_much = self.bytes is not None and total_bytes > self.bytes
            if not (is_old or is_too_much) or segment.last_epoch >= before_epoch:
                return
            total_bytes -= segment.size_bytes
            yield segment


KEEP_ALL = Retention()
"""No limit."""


def retention(retain: str | None) -> Retention:
    """Return what ``retain=`` says: a duration or a size.

    Examples
    --------
    >>> retention("2 d").age_us == 2 * 86_400_000_000, retention("5 GB").bytes, retention(None).bytes
    (True, 5000000000, None)
    """
    if retain is None:
        return KEEP_ALL
    if _SIZE.fullmatch(retain.strip()):
        return Retention(bytes=size_bytes(retain, argument="retain"))
    return Retention(age_us=duration_us(retain, argument="retain"))
