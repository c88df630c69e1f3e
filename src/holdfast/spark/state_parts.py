"""A worker's part of a snapshot: the tables of a bucket, written beside the epochs by a thread of the worker.

In a barrier (:mod:`holdfast.checkpoint.barriers`) a level offers the tables of each bucket that is called.  They are
immutable, and what writes them (Parquet, checksum, disk) leaves Python to others; so the epoch does not wait for it.
The last thing that is written is a note; as long as there is none, the driver does not use the files, and when none
comes it reads the state out of Spark's store.  So it does not matter whether a worker dies over it.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Protocol

from holdfast.checkpoint.snapshot import Bucket, write_part
from holdfast.checkpoint.store import open_store
from holdfast.ports import Store

log = logging.getLogger("holdfast.checkpoint")


class Parts(Protocol):
    """Takes a worker's part of snapshots.  Picklable; used in workers."""

    def offer(self, bucket: Bucket) -> None:
        """Take the tables of a bucket as they are at the end of the epoch that runs."""


@dataclass(frozen=True)
class BackgroundParts:
    """Writes parts into the checkpoint, one after the other, in a thread of the worker.

    Parameters
    ----------
    checkpoint : str
        Our directory, which every worker sees.
    run : str
        Unique for the run, which heeds no other's notes.
    """

    checkpoint: str
    run: str

    def offer(self, bucket: Bucket) -> None:
        """Hand the tables to the thread."""
        _begin()
        _offered.put((self, bucket))


_offered: queue.SimpleQueue[tuple[BackgroundParts, Bucket]] = queue.SimpleQueue()
_begun: list[threading.Thread] = []


def _begin() -> None:
    """Start the thread with the first bucket: a worker is forked, and most of them never need it."""
    if not _begun:
        _begun.append(threading.Thread(target=_write, name="holdfast-parts", daemon=True))
        _begun[0].start()


def _write() -> None:
    opened: dict[str, Store] = {}
    while True:
        parts, bucket = _offered.get()
        try:
            if parts.checkpoint not in opened:
                opened = {parts.checkpoint: open_store(parts.checkpoint)}
            write_part(opened[parts.checkpoint], bucket, parts.run)
        except Exception:  # of whatever kind: the driver misses the note, and reads the store
            opened.clear()
            log.warning("bucket %d of %r was not written for a snapshot", bucket.number, bucket.operator, exc_info=True)
        del bucket
