"""Digests in place of rows: what a task keeps of the rows that it has, and what is kept of them on disk (design/0024).

A task leaves one Arrow file: digests of its rows, or the rows of the buckets that are wanted.  The driver adds that to
tables of a SQLite file.  Of rows that are added these are counts and sums of buckets, in pages of some; their size is
fixed.  Of rows that replace others by a key: a hash of the key and one of the row for each key, as the sum of a bucket
has to lose the hash of the row that is replaced.  Two keys with equal hashes are one here: then a bucket differs that
need not, and its rows are compared.

The caller holds the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit.files.staged import ArrowWriter, ArrowWriterFactory
from holdfast.connectors.kit.sql import TableMode
from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, NO_LOSSES, PLACE_COLUMN, Held, Losses, Staged, Task
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
            return pa.record_batch([pa.array(each) for each in said], schema=KEYS)
        return summed(divided, hashes)

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
        self._sums = self._sums or Digests.empty(BITS)
        buckets, counts, sums = (column.to_numpy() for column in said.columns)
        self._sums.counts[buckets] += counts
        self._sums.sums[buckets] += sums

    def stage(self) -> Staged:
        """Make the file durable.  The handle counts the rows that were given, not what is kept of them."""
        if self._sums is not None:
            self._file.write(said_of(self._sums))
        return replace(self._file.stage(), row_count=self._row_count)

    def abort(self) -> None:
        """Remove what was written."""
        self._file.abort()


_ORDER = "__holdfast_order"


class DigestContent:
    """See :class:`holdfast.ports.Content`: digests of all rows, or the rows of the buckets that are wanted."""

    def __init__(self, connection: sqlite3.Connection, held: Held, schema: pa.Schema, reduction: Reduction) -> None:
        self.held = held
        self.schema = schema
        self.key = reduction.mode.key
        self.losses = reduction.losses
        self._connection = connection
        self._reduction = reduction

    def row_count(self) -> int:
        """Count them."""
        return int(self._digests.counts.sum())

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Return those that are kept, in at most so many buckets."""
        self._check(losses, by)
        return self._digests.coarser(bits)

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of the buckets that are kept."""
        self._check(losses, by)
        wanted = is_wanted(buckets, bits)
        for batch in self._last(wanted, bits) if self.key else self._kept():
            hashes, divided = self._reduction.hashes(batch)
            places = pa.array([b""] * batch.num_rows, pa.binary())
            whole = batch.append_column(PLACE_COLUMN, places).append_column(HASH_COLUMN, pa.array(hashes))
            yield whole.filter(pa.array(wanted[canonical.buckets(divided, bits)]))

    @cached_property
    def _digests(self) -> Digests:
        return read(self._connection)

    def _kept(self) -> Iterator[pa.RecordBatch]:
        for (packed,) in self._connection.execute("SELECT batch FROM rows ORDER BY rowid"):
            yield from pa.ipc.open_stream(packed)

    def _last(self, wanted: np.ndarray, bits: int) -> Iterator[pa.RecordBatch]:
        """Yield of each key of some buckets the last row, unless that deletes it."""
        parts = [
            batch.filter(pa.array(wanted[canonical.buckets(self._reduction.hashes(batch)[1], bits)]))
            for batch in self._kept()
        ]
        if not parts:
            return
        rows = pa.Table.from_batches(parts)
        ordered = rows.select(list(self.key)).append_column(_ORDER, pa.array(np.arange(rows.num_rows)))
        last = ordered.group_by(list(self.key)).aggregate([(_ORDER, "max")])[f"{_ORDER}_max"]
        found = rows.take(last)
        found = found.filter(pa.array(~self._reduction.is_deleted(found)))
        yield from found.select(self.schema.names).combine_chunks().to_batches()

    def _check(self, losses: Losses, by: Collection[str]) -> None:
        known = self._reduction
        if losses - known.losses or tuple(by) != known.by:
            more = ", ".join(f"{loss.column}: {loss.kind.value}" for loss in losses - known.losses)
            raise InvalidPipeline(
                "what a sink should hold was computed for another form of its columns.",
                why=f"its table has changed since: {more or 'rows have another id'}. Digests are of the former form.",
                do="remove the directory in which it was computed: it is computed again.",
            )


BITS = 20
"""Of the number of buckets that are kept: a million of them take some 23 MB, and a row of 10**9 that differs fetches a
thousand.  A comparison that needs fewer adds neighbours up."""

PAGE = 64
"""Buckets in a page: a small epoch rewrites few of them, a large one is few statements."""

_FETCHED = 65_536

SUMS = pa.schema([("bucket", pa.int64()), ("row_count", pa.int64()), ("sum", pa.uint64())])
"""What is said of rows that are added."""

KEYS = pa.schema([("key", pa.int64()), ("hash", pa.int64()), ("is_deleted", pa.bool_())])
"""What is said of rows that replace others: the hashes of SQLite's integers."""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables."""
    connection.execute("CREATE TABLE pages (page INTEGER PRIMARY KEY, counts BLOB NOT NULL, sums BLOB NOT NULL)")
    connection.execute("CREATE TABLE hashes (key INTEGER PRIMARY KEY, hash INTEGER NOT NULL)")


def exist(connection: sqlite3.Connection) -> bool:
    """Return whether the tables have been created."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'hashes'").fetchone() is not None


def take(connection: sqlite3.Connection, said: pa.RecordBatch) -> None:
    """Count in what is said of rows, of either schema."""
    if said.schema.names == SUMS.names:
        _add(connection, *(column.to_numpy() for column in said.columns))
    else:
        _replace(connection, *(column.to_numpy(zero_copy_only=False) for column in said.columns))


def summed(divided: np.ndarray, hashes: np.ndarray) -> pa.RecordBatch:
    """Return what is to be said of rows that are added, by their hashes; of few rows at the cost of few."""
    buckets, of_rows = np.unique(canonical.buckets(divided, BITS), return_inverse=True)
    sums = np.zeros(len(buckets), np.uint64)
    np.add.at(sums, of_rows, hashes)
    return _said(buckets, np.bincount(of_rows, minlength=len(buckets)), sums)


def said_of(digests: Digests) -> pa.RecordBatch:
    """Return the same by digests in ``2**BITS`` buckets."""
    at = np.flatnonzero(digests.counts)
    return _said(at, digests.counts[at], digests.sums[at])


def _said(buckets: np.ndarray, counts: np.ndarray, sums: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch([pa.array(each) for each in (buckets, counts, sums)], schema=SUMS)


def read(connection: sqlite3.Connection) -> Digests:
    """Return the digests of all rows, in ``2**BITS`` buckets."""
    found = Digests.empty(BITS)
    for page, *kept in connection.execute("SELECT page, counts, sums FROM pages"):
        part = slice(page * PAGE, (page + 1) * PAGE)
        found.counts[part], found.sums[part] = _page(*kept)
    cursor = connection.execute("SELECT key, hash FROM hashes")
    while rows := cursor.fetchmany(_FETCHED):
        keys, hashes = np.array(rows, np.int64).view(np.uint64).T
        found.add(canonical.buckets(keys, BITS), hashes)
    return found


def _add(connection: sqlite3.Connection, buckets: np.ndarray, counts: np.ndarray, sums: np.ndarray) -> None:
    pages, firsts = np.unique(buckets // PAGE, return_index=True)
    for page, first, last in zip(pages.tolist(), firsts, [*firsts[1:], len(buckets)], strict=True):
        row = connection.execute("SELECT counts, sums FROM pages WHERE page = ?", (page,)).fetchone()
        kept = _page(*row) if row else (np.zeros(PAGE, np.int64), np.zeros(PAGE, np.uint64))
        at = buckets[first:last] % PAGE
        kept[0][at] += counts[first:last]
        kept[1][at] += sums[first:last]
        connection.execute("INSERT OR REPLACE INTO pages VALUES (?, ?, ?)", (page, *(each.tobytes() for each in kept)))


def _page(counts: bytes, sums: bytes) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(counts, np.int64).copy(), np.frombuffer(sums, np.uint64).copy()


def _replace(connection: sqlite3.Connection, keys: np.ndarray, hashes: np.ndarray, is_deleted: np.ndarray) -> None:
    _, from_end = np.unique(keys[::-1], return_index=True)  # the last row of a key is the one that counts
    last = len(keys) - 1 - from_end
    kept, gone = last[~is_deleted[last]], last[is_deleted[last]]
    pairs = zip(keys[kept].tolist(), hashes[kept].tolist(), strict=True)
    connection.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?)", pairs)
    connection.executemany("DELETE FROM hashes WHERE key = ?", ((key,) for key in keys[gone].tolist()))
