"""The rows of one task on their way into files: divided by partition, held until they fill a row group, encoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.kit import json_lines
from holdfast.types import partition as files_partition
from holdfast.types.casting import declared

ROW_GROUP_ROWS = 1_048_576
ROW_GROUP_BYTES = 32 * 2**20
"""A row group is closed at either: large enough to be scanned fast, small enough to be held by every task."""

BUFFER_BYTES = 128 * 2**20
"""Held per task over all partitions; beyond it the largest partition is written."""

OPEN_FILES = 64
"""Open per task; beyond it the one written longest ago is closed, and its partition continues in another file."""


@dataclass(frozen=True)
class RowsForm:
    """How rows become files.

    Parameters
    ----------
    schema : pyarrow.Schema
        Columns of the rows, partition columns included.
    format : str
        "parquet" or "json".
    partition_by : tuple of str
        Partition columns, outermost first.
    compression : str or None
        Of Parquet.
    room_bytes : int
        How long the directories of a partition may be together.
    """

    schema: pa.Schema
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str | None = "zstd"
    room_bytes: int = files_partition.room_below("")

    def check(self, rows: pa.Table) -> None:
        """Raise what writing these rows would: they are still in the driver, and nothing is decided.

        Raises
        ------
        BadRow
            If a value cannot name a directory, or cannot be written in the format.
        """
        for batch in rows.to_batches():
            batch = declared(batch, self.schema)
            files_partition.check(batch, self.partition_by, self.room_bytes)
            if self.format == "json":
                json_lines.check(batch.drop_columns(list(self.partition_by)))


class RowsFile(Protocol):
    """One file being written."""

    @property
    def is_full(self) -> bool:
        """Whether the rows that follow must go to another one."""

    def write(self, rows: pa.Table) -> None:
        """Write one row group, or one run of lines."""

    def finish(self) -> None:
        """Close durably."""

    def drop(self) -> None:
        """Close, whatever state the file is in."""


class EncodedRows:
    """Rows that are written to an open file as Parquet, or as lines of JSON.

    Parameters
    ----------
    file : binary file
        Takes what it is given as a whole: Arrow takes a short write for a whole one.
    schema : pyarrow.Schema
        Columns of the file.
    form : RowsForm
        How.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema, form: RowsForm) -> None:
        self._file = file
        self._parquet: pq.ParquetWriter | None = None
        if form.format == "parquet":
            self._parquet = pq.ParquetWriter(file, schema, compression=form.compression or "none")

    def write(self, rows: pa.Table) -> None:
        """Write one row group, or one run of lines."""
        if self._parquet is not None:
            self._parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        else:
            for batch in rows.to_batches():
                self._file.write(json_lines.encode(batch))

    def end(self) -> None:
        """Write what comes behind the rows."""
        if self._parquet is not None:
            self._parquet.close()

    def drop(self) -> None:
        """End, whatever state the file is in."""
        if self._parquet is not None:
            with suppress(Exception):
                self._parquet.close()
            self._parquet.is_open = False  # it failed to close: its destructor must not try again


class PartitionedRows:
    """Holds rows until they fill a row group, and gives each partition's to its own file.

    Parameters
    ----------
    form : RowsForm
        How.
    new_file : callable
        Opens the next file of a partition, whose columns are given.
    open_files : int, optional
        How many are open at a time; default :data:`OPEN_FILES`.

    Notes
    -----
    Memory is bounded by ``BUFFER_BYTES`` and the open files, whatever the epoch holds.
    """

    def __init__(
        self, form: RowsForm, new_file: Callable[[str, pa.Schema], RowsFile], *, open_files: int | None = None
    ) -> None:
        self._form = form
        self._new_file = new_file
        self._open_files = OPEN_FILES if open_files is None else open_files
        self._held: dict[str, _Held] = {}
        self._open: OrderedDict[str, RowsFile] = OrderedDict()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        rows = declared(batch, self._form.schema)
        for partition, of_partition in files_partition.split(rows, self._form.partition_by, self._form.room_bytes):
            self._hold(partition, of_partition)
        while sum(held.size_bytes for held in self._held.values()) > BUFFER_BYTES:
            self._flush(max(self._held, key=lambda partition: self._held[partition].size_bytes))

    def finish(self) -> None:
        """Write what is held, and finish every file."""
        for partition in list(self._held):
            self._flush(partition)
        for partition in list(self._open):
            self._finish(partition)

    def drop(self) -> None:
        """Drop everything that is not finished."""
        for file in self._open.values():
            file.drop()
        self._open.clear()
        self._held.clear()

    def _hold(self, partition: str, rows: pa.RecordBatch) -> None:
        held = self._held.setdefault(partition, _Held())
        held.batches.append(rows)
        held.row_count += rows.num_rows
        held.size_bytes += rows.nbytes
        if held.size_bytes >= ROW_GROUP_BYTES or held.row_count >= ROW_GROUP_ROWS:
            self._flush(partition)

    def _flush(self, partition: str) -> None:
        rows = pa.Table.from_batches(self._held.pop(partition).batches)
        file = self._file(partition, rows.schema)
        file.write(rows)
        if file.is_full:
            self._finish(partition)

    def _file(self, partition: str, schema: pa.Schema) -> RowsFile:
        if partition not in self._open:
            while len(self._open) >= self._open_files:
                self._finish(next(iter(self._open)))
            self._open[partition] = self._new_file(partition, schema)
        self._open.move_to_end(partition)
        return self._open[partition]

    def _finish(self, partition: str) -> None:
        file = self._open.pop(partition)
        try:
            file.finish()
        except BaseException:
            file.drop()
            raise


def file_name(epoch: int, task: int, marks: Sequence[str], format_name: str) -> str:
    """Return the name of a file of an epoch: names sort by epoch.

    Examples
    --------
    >>> file_name(41, 1, ["3f2a9c51", "d02f61c79a3e", "000"], "parquet")
    'part-000000000041-00001-3f2a9c51-d02f61c79a3e-000.parquet'
    """
    return "-".join(filter(None, [f"part-{epoch:012}-{task:05}", *marks])) + f".{format_name}"


@dataclass
class _Held:
    """Rows of one partition that are not in a file yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0
