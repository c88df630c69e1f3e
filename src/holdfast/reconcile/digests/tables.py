"""Digests on disk: what is kept of rows that are not, in tables of a SQLite file.

Of rows that are added: counts and sums of buckets, in pages of some; their size is fixed.  Of rows that replace others
by a key: a hash of the key and one of the row for each key, as the sum of a bucket has to lose the hash of the row that
is replaced.  Two keys with equal hashes are one here: then a bucket differs that need not, and its rows are compared.

The caller holds the transaction.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa

from holdfast.types import canonical
from holdfast.types.canonical import Digests

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
