"""A worker's part of a snapshot: the tables of a bucket, written beside the epochs by a thread of the worker.

In a barrier (:mod:`holdfast.checkpoint.barriers`) a level offers the tables of each bucket that is called.  They are
immutable, and writing them (Parquet, checksum, disk) releases the interpreter lock; so the epoch does not wait for it.
A note is written last; as long as there is none, the driver does not use the files, and if none arrives it reads the
state from the journal.  So a worker may die at any point of it.

At most one offer of each bucket waits, the newest: with a disk that is slower than barriers come, tables would
otherwise pile up in memory.  The offer that it replaces was of an older barrier, whose snapshot was made or given up
before the next one was requested, or of another attempt.  If a snapshot waits for it all the same, no note arrives, and
the store is read.

When an epoch without rows can release something: a file that the driver writes, and one planning process reads.

It is a hint only: what an epoch decides follows from what is logged with it, and without the file one epoch is planned
that finds out.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.checkpoint.snapshot import Bucket, write_part
from holdfast.ports import Store
from holdfast.state.bucket_report import BucketReport
from holdfast.store.notes import write_note
from holdfast.store.paths import open_store

log = logging.getLogger("holdfast.checkpoint")


class SnapshotParts(Protocol):
    """Takes a worker's part of snapshots.  Picklable; used in workers."""

    def offer(self, bucket: Bucket) -> None:
        """Take the tables of a bucket as they are at the end of the epoch that runs.

        They need not be written: those of an older barrier are dropped where newer ones come first.
        """


@dataclass(frozen=True)
class BackgroundParts:
    """Writes parts into the checkpoint, one after the other, in a thread of the worker.

    Parameters
    ----------
    checkpoint : str
        Our directory, which every worker sees.
    run : str
        Unique for the run, which ignores the notes of others.
    """

    checkpoint: str
    run: str

    def offer(self, bucket: Bucket) -> None:
        """Hand the tables to the thread."""
        _begin()
        with _changed:
            _offered[self, bucket.operator, bucket.number] = bucket  # keeps the turn of the one that it replaces
            _changed.notify()


_offered: dict[tuple[BackgroundParts, str, int], Bucket] = {}
"""The newest offer of each bucket that is not being written yet, by its run: a worker serves several."""
_changed = threading.Condition()
_begun: list[threading.Thread] = []


def _begin() -> None:
    """Start the thread with the first bucket: a worker is forked, and most of them never need it."""
    if not _begun:
        _begun.append(threading.Thread(target=_write, name="holdfast-parts", daemon=True))
        _begun[0].start()


def _next() -> tuple[BackgroundParts, Bucket]:
    with _changed:
        _changed.wait_for(lambda: _offered)
        first = next(iter(_offered))
        return first[0], _offered.pop(first)


def _write() -> None:
    opened: dict[str, Store] = {}
    while True:
        parts, bucket = _next()
        try:
            if parts.checkpoint not in opened:
                opened = {parts.checkpoint: open_store(parts.checkpoint)}
            write_part(opened[parts.checkpoint], bucket, parts.run)
        except Exception:  # of any kind: the driver finds no note, and reads the store
            opened.clear()
            log.warning("bucket %d of %r was not written for a snapshot", bucket.number, bucket.operator, exc_info=True)
        del bucket


class DueTimes:
    """When rows are released next, by bucket: an epoch need not call all of them."""

    def __init__(self) -> None:
        self._of_bucket: dict[str, int] = {}

    @property
    def next_us(self) -> int | None:
        """When rows are released next although none arrive; None: never."""
        return min(self._of_bucket.values(), default=None)

    def take(self, reports: Mapping[str, BucketReport]) -> dict[str, BucketReport]:
        """Take in an epoch's reports; return them without the due times."""
        for bucket, report in reports.items():
            self._of_bucket.pop(bucket, None)
            if report.due_us is not None:
                self._of_bucket[bucket] = report.due_us
        return {bucket: replace(report, due_us=None) for bucket, report in reports.items()}

    def forget(self) -> None:
        """Forget all due times."""
        self._of_bucket.clear()


class Dues:
    """Writes into a file when the next epoch is needed.  Lives on the driver.

    Parameters
    ----------
    path : str
        The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._times = DueTimes()

    def take(self, reports: Mapping[str, BucketReport]) -> dict[str, BucketReport]:
        """Write when the next epoch is needed; return the reports of an epoch's buckets without the due times."""
        left = self._times.take(reports)
        write_due(self._path, self._times.next_us)
        return left

    def forget(self) -> None:
        """Forget all due times: an epoch that is repeated, and held by every sink, reports nothing."""
        self._times.forget()
        with suppress(OSError):
            os.unlink(self._path)


def write_due(path: str, due_us: int | None) -> None:
    """Write when the next epoch is needed, with or without rows; None: when rows arrive."""
    with suppress(OSError):  # a full disk: the epochs that it asks for come late, or find nothing
        write_note(path, due_us)
