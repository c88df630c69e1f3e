"""Staged messages: the payloads of one task in one file, and what else is known of them in another.

A task's files are in ``<staging>/<generation>-<epoch>-<task>-<attempt>-<random>/``, named as those of a files sink.
Payloads lie grouped by stream, some megabytes at a time: the driver copies stream by stream.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast import faults
from holdfast.connectors.byte_stream.messages import (
    MessageColumns,
    MessagePart,
    Messages,
    StagedPayloads,
    by_stream,
    messages_of,
)
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.files.staged import FileStaging, directory_of, missing_bytes
from holdfast.ports import Staged, Task
from holdfast.store import durable

BUFFER_BYTES = 32 * 2**20
"""Held by a task before it writes."""

_VIEWS_MAX = os.sysconf("SC_IOV_MAX")
_PAYLOADS = "payloads"
_MESSAGES = "messages.arrow"
_SCHEMA = pa.schema(
    [
        ("stream", pa.dictionary(pa.int32(), pa.string())),
        ("timestamp", pa.int64()),
        ("key", pa.bool_()),
        ("length", pa.int64()),
        ("checksum", pa.uint32()),
        ("arrival", pa.int64()),
    ]
)
"""One row for each message, in the order of the payloads."""


@dataclass(frozen=True)
class MessageStaging:
    """Where and how tasks stage; picklable, so it is the writer factory too.

    Parameters
    ----------
    places : FileStaging
        The directory; it names and finds what is staged.
    columns : MessageColumns
        Which columns are stored.
    """

    places: FileStaging
    columns: MessageColumns

    def __call__(self, task: Task) -> MessageWriter:
        """Open a writer for one attempt of one task."""
        return MessageWriter(self, task)

    def missing(self, handle: Staged) -> str | None:
        """Say which file of a handle is not what was staged; None: both are, or it has none."""
        name = directory_of(handle)
        directory = os.path.join(self.places.directory, name or "")
        for file in (_PAYLOADS, _MESSAGES) if name is not None else ():
            why = missing_bytes(os.path.join(directory, file), int(handle.reference[file]))
            if why is not None:
                return why
        return None

    def part(self, sink: str, epoch: int, handle: Staged) -> tuple[MessagePart, StagedPayloads] | None:
        """Return what a task staged; None where it had no rows.

        Raises
        ------
        Diverged
            If it is gone, or not what the handle says.
        """
        name = directory_of(handle)
        if name is None:
            return None
        directory = os.path.join(self.places.directory, name)
        why = self.missing(handle)
        if why is not None:
            raise rows_gone(f"sink {sink!r}", handle.name, why, participant=sink, epoch=epoch)
        with pa.OSFile(os.path.join(directory, _MESSAGES)) as source, pa.ipc.open_file(source) as stored:
            messages = _messages(stored.read_all())
        payloads = StagedPayloads(os.path.join(directory, _PAYLOADS))
        return MessagePart(epoch, messages, payloads), payloads


class MessageWriter:
    """Writes one task's messages; see :class:`holdfast.ports.Writer`.

    Notes
    -----
    Memory is bounded by :data:`BUFFER_BYTES` and the last batch.  :meth:`stage` syncs two files and two directories.
    """

    def __init__(self, staging: MessageStaging, task: Task) -> None:
        self._staging = staging
        self._task = task
        self._name = f"{task.generation}-{task.epoch}-{task.task}-{task.attempt}-{uuid.uuid4().hex[:12]}"
        self._directory = os.path.join(staging.places.directory, self._name)
        self._held: list[MessagePart] = []
        self._held_bytes = 0
        self._written: list[pa.Table] = []
        self._fd: int | None = None
        self._size = 0
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        messages, payloads = messages_of(self._staging.columns, self._staging.places.schema, batch)
        is_first = not self._row_count
        messages = replace(messages, arrival=messages.arrival + self._row_count)
        self._held.append(MessagePart(self._task.epoch, messages, payloads))
        self._held_bytes += batch.nbytes
        self._row_count += batch.num_rows
        with durable.explained(f"staging messages in {self._directory}"):
            if is_first:
                durable.make_directory(self._directory, is_synced=False)
                path = os.path.join(self._directory, _PAYLOADS)
                self._fd = durable.private_opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            if self._held_bytes >= BUFFER_BYTES:
                self._flush()
        if is_first:
            faults.reach("stage-write", self._task.epoch, self._task.pipeline)

    def stage(self) -> Staged:
        """Make everything written durable and return the handle."""
        if self._fd is None:
            return Staged(self._task.name, 0)
        with durable.explained(f"staging messages in {self._directory}"):
            self._flush()
            os.fsync(self._fd)
            path = os.path.join(self._directory, _MESSAGES)
            with open(path, "xb", opener=durable.private_opener) as file:
                with pa.ipc.new_file(file, _SCHEMA) as out:
                    out.write_table(pa.concat_tables(self._written).unify_dictionaries())
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            durable.sync_directory(self._directory)
            durable.sync_directory(self._staging.places.directory)
        os.close(self._fd)
        self._fd = None
        reference = {"directory": self._name, _PAYLOADS: str(self._size), _MESSAGES: str(size)}
        return Staged(self._task.name, self._row_count, reference)

    def abort(self) -> None:
        """Drop everything written."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._held.clear()
        self._staging.places.remove(self._name)

    def _flush(self) -> None:
        """Write what is held, stream by stream."""
        if not self._held or self._fd is None:
            return
        for stream, messages in by_stream(self._held).items():
            write_all(self._fd, list(messages.views(0, messages.count)))
            self._written.append(
                pa.table(
                    [
                        pa.DictionaryArray.from_arrays(
                            pa.array(np.zeros(messages.count, np.int32)), pa.array([stream])
                        ),
                        pa.array(messages.timestamps),
                        pa.array(messages.keys),
                        pa.array(messages.lengths),
                        pa.array(messages.checksums),
                        pa.array(messages.arrival),
                    ],
                    schema=_SCHEMA,
                )
            )
            self._size += int(messages.lengths.sum())
        self._held.clear()
        self._held_bytes = 0


def write_all(fd: int, views: Sequence[memoryview | bytes]) -> None:
    """Write buffers one after the other, as few calls as the system takes."""
    for at in range(0, len(views), _VIEWS_MAX):
        waiting = views[at : at + _VIEWS_MAX]
        left = sum(map(len, waiting)) - os.writev(fd, waiting)
        if left:  # a short write: the disk is full, or somebody has interrupted it
            rest = memoryview(b"".join(waiting))[-left:]
            while rest:
                rest = rest[os.write(fd, rest) :]


def _messages(rows: pa.Table) -> Messages:
    rows = rows.combine_chunks()
    coded = rows.column("stream").combine_chunks()
    coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
    lengths = rows.column("length").to_numpy()
    return Messages(
        tuple(coded.dictionary.to_pylist()),
        np.asarray(coded.indices, np.int32),
        rows.column("timestamp").to_numpy(),
        rows.column("key").to_numpy(),
        lengths,
        np.cumsum(lengths) - lengths,
        rows.column("checksum").to_numpy(),
        rows.column("arrival").to_numpy(),
    )
