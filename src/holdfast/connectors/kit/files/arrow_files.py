"""Arrow files in a directory that driver and executors share: rows that tasks staged, found again by their names.

A name is ``pipeline.generation.epoch.task.attempt.nonce.sink.arrow``; while it is being written it ends in
``.tmp``.  The nonce keeps two writers of one task apart, so a name is never used twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit.believed import rows_gone
from holdfast.connectors.kit.staging import Staging
from holdfast.errors import invariant
from holdfast.ports import Part, Staged, Task
from holdfast.store import durable

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
        faults.reach("stage-write", self._task.epoch)

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
