"""Receives what a camera sends into the journal of a feed, in threads of the process that plans epochs.

One thread reads the connection, and connects again when it breaks; the other one writes what has come, all that waits
in one entry.  Only one process receives into a journal: it holds a lock that the kernel releases when it dies.

What a death leaves: what was received and was not in the journal is lost; the journal has whole entries.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.connectors.camera.connection import CameraAddress, Reached, Received, received_from
from holdfast.connectors.camera.inbox import Inbox
from holdfast.connectors.files import journal
from holdfast.connectors.files.callback import CallbackFeed
from holdfast.errors import HoldfastError, InDoubt, InternalError, Unavailable
from holdfast.masking import masked
from holdfast.ports import Clock
from holdfast.store import durable, sealed
from holdfast.video.packets import EncodedPacket
from holdfast.video.timing import utc

log = logging.getLogger("holdfast.connectors.camera")

INBOX_BYTES = 64 * 2**20
ENTRY_BYTES = 16 * 2**20
"""Of one entry of the journal, about."""

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Receiving:
    """What is received, and into which journal.

    Parameters
    ----------
    address : CameraAddress
        The camera.
    feed : CallbackFeed
        Into which rows are pushed.
    stream : str
        Value of the column ``stream``.
    gap : str or None
        Column for the length of gaps.
    first_pause_s : float
        Before the first attempt to connect again; each one that fails doubles it, up to half a minute.
    """

    address: CameraAddress
    feed: CallbackFeed
    stream: str
    gap: str | None = None
    first_pause_s: float = _FIRST_PAUSE_S


class CameraReceiver:
    """The threads that receive.

    Parameters
    ----------
    of : Receiving
        What is received.
    clock : Clock, optional
        When packets arrive.
    """

    def __init__(self, of: Receiving, clock: Clock | None = None) -> None:
        self._of = of
        self._camera = of.address.masked_address
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._inbox: Inbox[Received] = Inbox(INBOX_BYTES)
        self._reached: Reached | None = None
        self.failure: HoldfastError | None = None
        """What ended it: of a file that cannot be read."""
        self.gap_count = 0
        names = (("receive", self._receive), ("journal", self._journal))
        self._threads = [
            threading.Thread(target=run, name=f"holdfast-{of.stream}-{name}", daemon=True) for name, run in names
        ]

    def start(self) -> None:
        """Begin, and return at once."""
        for thread in reversed(self._threads):  # the first one waits for the other to end
            thread.start()

    def stop(self) -> None:
        """Stop, and write what was received; waits for the connection's next packet, or its timeout."""
        self._stopping.set()
        self.join()

    def join(self) -> None:
        """Wait until it has ended: a file has been read."""
        for thread in self._threads:
            thread.join()

    # --- receiving ----------------------------------------------------------------------------------

    def _receive(self) -> None:
        lock = None
        try:
            while lock is None and not self._stopping.is_set():
                lock = self._lock()
            if lock is not None:
                self._reached = end_of_journal(self._of.feed.directory)
                self._connect_again_and_again()
        except Exception as error:
            self._fail(error)
        finally:
            self._inbox.close()
            self._threads[1].join()
            if lock is not None:
                os.close(lock)

    def _fail(self, error: Exception) -> None:
        """Keep what ends it, for who plans epochs: a thread that dies in silence would be waited for."""
        self.failure = self.failure or self._as_error(error)
        log.error("%s: %s", self._camera, self.failure, exc_info=not isinstance(error, HoldfastError))

    def _as_error(self, error: Exception) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        return InternalError(
            f"receiving from {self._camera} ended by {type(error).__name__}: {masked(str(error))}.",
            why="nothing of it was expected there.",
            do="please report this with the log; starting the pipeline again is safe.",
            participant=self._of.stream,
        )

    def _connect_again_and_again(self) -> None:
        pause = self._of.first_pause_s
        while not self._stopping.is_set() and self.failure is None:
            before = self._reached
            try:
                self._take_all()
                if self._of.address.is_file:
                    if not self._stopping.is_set():
                        self._inbox.close()
                        self._threads[1].join()
                        self._of.feed.close()
                    return
                why = "it ended."
            except Exception as error:
                if self._of.address.is_file:
                    raise
                why = self._as_error(error).message
            if self._reached != before:
                pause = self._of.first_pause_s
            log.warning("%s: no connection; it is tried again in %.1f s: %s", self._camera, pause, why)
            self._stopping.wait(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _take_all(self) -> None:
        for one in received_from(self._of.address, self._reached, self._clock):
            if self._stopping.is_set() or not self._inbox.put(one, len(one.packet.data)):
                return
            if one.gap is not None:
                self.gap_count += 1
                log.warning("%s: nothing was received for %.3f s before %s.", *self._shown_gap(one))
            self._reached = Reached(one.at, max(one.at, one.packet.pts + one.packet.duration))

    def _shown_gap(self, one: Received) -> tuple[str, float, str]:
        return self._camera, (one.gap or 0) / 1e9, utc(one.at)

    def _lock(self) -> int | None:
        """Return the lock of the journal's only receiver; None while another process has it."""
        sealed.prepare(self._of.feed.directory)
        path = os.path.join(self._of.feed.directory, "receiver")
        with durable.explained(f"locking {path}"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                self._stopping.wait(self._of.first_pause_s)
                return None
        return descriptor

    # --- writing ------------------------------------------------------------------------------------

    def _journal(self) -> None:
        try:
            while several := self._inbox.take():
                for entry in entries_of(several):
                    self._push(self._table(entry))
        except Exception as error:
            self._fail(error)
        finally:
            self._inbox.close()

    def _push(self, table: pa.Table) -> None:
        pause = self._of.first_pause_s
        while True:
            try:
                self._of.feed.push(table)
            except InDoubt as error:  # it is there, and read: written again it would be doubled
                log.warning("%s: %s", self._camera, error)
            except Unavailable as error:
                log.warning("%s: the journal cannot be written; it is tried again: %s", self._camera, error)
                if self._stopping.wait(pause):
                    raise  # what comes behind it is left out, too: else it would lack without a gap
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            return

    def _table(self, rows: Sequence[Received]) -> pa.Table:
        columns: dict[str, object] = {
            "stream": [self._of.stream] * len(rows),
            "timestamp": [row.at for row in rows],
            "is_key": [row.packet.is_key for row in rows],
            "data": [row.packet.to_bytes() for row in rows],
        }
        if self._of.gap is not None:
            columns[self._of.gap] = [row.gap for row in rows]
        return pa.table(columns, schema=self._of.feed.schema)


def entries_of(rows: Sequence[Received], limit_bytes: int = ENTRY_BYTES) -> list[list[Received]]:
    """Divide what was received into entries of about so many bytes."""
    found: list[list[Received]] = []
    size = limit_bytes
    for row in rows:
        if size >= limit_bytes:
            found.append([])
            size = 0
        found[-1].append(row)
        size += len(row.packet.data)
    return found


def end_of_journal(directory: str) -> Reached | None:
    """Return how far the journal is, by its newest entry, which is never removed; None where it has none."""
    begin, end = journal.bounds(directory)
    if begin == end:
        return None
    *_, batch = journal.read(journal.path(directory, end - 1))
    last = batch.num_rows - 1
    at = batch.column("timestamp")[last].as_py()
    packet = EncodedPacket.from_bytes(batch.column("data")[last].as_py())
    return Reached(at, max(at, packet.pts + packet.duration))
