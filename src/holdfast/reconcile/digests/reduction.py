"""What becomes of rows in the task that has them: what is kept of them, in one Arrow file (design/0024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit.files.staged import ArrowWriter, ArrowWriterFactory
from holdfast.connectors.kit.sql import TableMode
from holdfast.ports import Losses, Staged, Task
from holdfast.reconcile.digests import tables
from holdfast.types import canonical
from holdfast.types.canonical import Digests, is_wanted


@dataclass(frozen=True)
class Wanted:
    """Buckets whose rows are kept.

    Parameters
    ----------
    bits : int
        They are some of ``2**bits``.
    buckets : tuple of int
        Which ones.
    """

    bits: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class Reduction:
    """What becomes of rows.

    Parameters
    ----------
    columns, by : tuple of str
        Those that are compared, and those by which rows are divided.
    losses : frozenset of Loss
        What the sink does not keep of their values.
    mode : TableMode
        How rows meet.
    wanted : Wanted, optional
        Whose rows are kept.
    """

    columns: tuple[str, ...]
    by: tuple[str, ...]
    losses: Losses
    mode: TableMode
    wanted: Wanted | None

    def hashes(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the hash of each row, and the one by which it is divided."""
        return canonical.hashes(rows, self.columns, self.by, self.losses)

    @property
    def keeps_sums(self) -> bool:
        """Whether what is kept are sums of buckets: no rows, and no hashes of keys."""
        return self.wanted is None and not self.mode.key

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is kept of some rows."""
        hashes, divided = self.hashes(rows)
        if self.wanted is not None:
            return rows.filter(pa.array(self._is_wanted[canonical.buckets(divided, self.wanted.bits)]))
        if self.mode.key:
            said = [divided.view(np.int64), hashes.view(np.int64), self.is_deleted(rows)]
            return pa.record_batch([pa.array(each) for each in said], schema=tables.KEYS)
        return tables.summed(divided, hashes)

    def is_deleted(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Return of each row whether it deletes its key."""
        if self.mode.delete is None:
            return np.zeros(rows.num_rows, bool)
        flags: np.ndarray = pc.fill_null(rows.column(self.mode.delete), False).to_numpy(zero_copy_only=False)
        return flags

    @cached_property
    def _is_wanted(self) -> np.ndarray:
        assert self.wanted is not None
        return is_wanted(self.wanted.buckets, self.wanted.bits)


@dataclass(frozen=True)
class ReducingWriterFactory:
    """Picklable factory of :class:`ReducingWriter`."""

    files: ArrowWriterFactory
    reduction: Reduction

    def __call__(self, task: Task) -> ReducingWriter:
        """Open a writer for one attempt of one task."""
        return ReducingWriter(self.files(task), self.reduction)


class ReducingWriter:
    """Writes what is kept of one task's rows to one Arrow file."""

    def __init__(self, file: ArrowWriter, reduction: Reduction) -> None:
        self._file = file
        self._reduction = reduction
        self._sums: Digests | None = None
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows: of those that are added the sums of the task are written once, at its end."""
        if not batch.num_rows:
            return
        self._row_count += batch.num_rows
        said = self._reduction.of(batch)
        if not self._reduction.keeps_sums:
            self._file.write(said)
            return
        self._sums = self._sums or Digests.empty(tables.BITS)
        buckets, counts, sums = (column.to_numpy() for column in said.columns)
        self._sums.counts[buckets] += counts
        self._sums.sums[buckets] += sums

    def stage(self) -> Staged:
        """Make the file durable.  The handle counts the rows that were given, not what is kept of them."""
        if self._sums is not None:
            self._file.write(tables.said_of(self._sums))
        return replace(self._file.stage(), row_count=self._row_count)

    def abort(self) -> None:
        """Remove what was written."""
        self._file.abort()
