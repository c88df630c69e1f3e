"""What the tests of byte streams share: a sink that publishes messages, and looks into the store."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.connectors.byte_stream.branch import StreamView, branches
from holdfast.connectors.byte_stream.log_target import ByteStreamSink
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Staged, Task

SCHEMA = pa.schema([("at", pa.int64()), ("camera", pa.string()), ("is_key", pa.bool_()), ("frame", pa.binary())])
COLUMNS = MessageColumns("at", "frame", "camera", "is_key")
PIPELINE = "cameras"

Message = tuple[int, str, bool, bytes]
"""Timestamp, stream, whether it is a random access point, payload."""


def record(epoch: int, generation: int = 1, back_to: int | None = None) -> EpochRecord:
    """Return the record of an epoch, or of a rewind."""
    end = epoch if back_to is None else back_to
    return EpochRecord(PIPELINE, epoch, generation, {"given": {"log": end}}, rewound_to=back_to)


def stream_of(path: str, name: str = "front") -> StreamView:
    """Return a stream of a store as readers see it."""
    return branches(path)[f"{PIPELINE}/out"].view().streams[name]


def table(messages: Sequence[Message]) -> pa.Table:
    """Return rows as the sink takes them."""
    columns = zip(*messages, strict=True) if messages else ([], [], [], [])
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)


@dataclass
class Writing:
    """A sink in use; each call of :meth:`opened` stands for a new process."""

    directory: Path
    options: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    epochs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    sink: ByteStreamSink = field(init=False)

    def __post_init__(self) -> None:
        self.opened()

    @property
    def path(self) -> str:
        """The store."""
        return os.fspath(self.directory)

    def opened(self) -> ByteStreamSink:
        """Start again: with a higher generation."""
        self.generation += 1
        self.sink = ByteStreamSinkSpec(self.path, COLUMNS, **self.options).connect("out", PIPELINE, SCHEMA)
        self.sink.open(RunIdentity(PIPELINE, self.generation))
        return self.sink

    def publish(self, *messages: Message, staged: bool = False) -> int:
        """Publish an epoch; return its number."""
        epoch = next(self.epochs)
        part = self.staged(messages, epoch) if staged else Carried(table(messages))
        self.sink.publish([Publication(self.record(epoch), (part,))], Held())
        return epoch

    def staged(self, messages: Sequence[Message], epoch: int, task: int = 0) -> Staged:
        """Stage messages as a task does."""
        writer = self.sink.writer_factory()(Task(PIPELINE, self.generation, epoch, task, 0))
        for batch in table(messages).to_batches():
            writer.write(batch)
        return writer.stage()

    def record(self, epoch: int, back_to: int | None = None) -> EpochRecord:
        """Return the record of an epoch, or of a rewind."""
        return record(epoch, self.generation, back_to)

    def rewind(self, to: int) -> None:
        """Go back to the end of an epoch."""
        self.sink.publish([Publication(self.record(next(self.epochs), to), ())], Held())

    def stream(self, name: str = "front") -> StreamView:
        """Return a stream as readers see it."""
        return stream_of(self.path, name)

    def messages(self, name: str = "front") -> list[Message]:
        """Return what can be read of a stream."""
        stream = self.stream(name)
        return [
            (at, name, is_key, bytes(payload))
            for chunk in stream.read(0, stream.end)
            for at, is_key, payload in zip(chunk.timestamps, chunk.keys, chunk.payloads, strict=True)
        ]


def frames(first: int, last: int, *, each: int = 5, size: int = 20, camera: str = "front") -> list[Message]:
    """Return messages with timestamps from ``first`` to below ``last``; every so many begin a group of pictures."""
    return [(at, camera, at % each == 0, f"{at:06}".encode() * (size // 6)) for at in range(first, last)]
