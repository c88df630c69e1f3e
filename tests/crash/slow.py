"""A sink whose writers take their time: so that a kill falls into the middle of their work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.graph import SinkNode
from holdfast.ports import Staged, Task, Writer, WriterFactory


def slowed(node: SinkNode, delay_s: float) -> SinkNode:
    """Return the sink node with writers that wait before each batch and before they stage."""
    return (
        SinkNode(SlowSpec(node.spec, delay_s), node.stream, node.name, node.is_named, node.origin) if delay_s else node
    )


@dataclass(frozen=True)
class SlowSpec:
    """A spec whose sink is slow."""

    spec: Any
    delay_s: float

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> SlowSink:
        """Connect the real sink."""
        return SlowSink(self.spec.connect(name, pipeline, schema), self.delay_s)


class SlowSink:
    """The real sink, with slow writers."""

    def __init__(self, sink: Any, delay_s: float) -> None:
        self._sink = sink
        self._delay_s = delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def writer_factory(self) -> WriterFactory:
        """Return a factory of slow writers."""
        return SlowFactory(self._sink.writer_factory(), self._delay_s)


@dataclass(frozen=True)
class SlowFactory:
    """Picklable; opens slow writers."""

    factory: WriterFactory
    delay_s: float

    def __call__(self, task: Task) -> Writer:
        """Open a slow writer."""
        return SlowWriter(self.factory(task), self.delay_s)


class SlowWriter:
    """The real writer, late."""

    def __init__(self, writer: Writer, delay_s: float) -> None:
        self._writer = writer
        self._delay_s = delay_s

    def write(self, batch: pa.RecordBatch) -> None:
        """Wait, then write: in two halves, so that a batch can be cut."""
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            time.sleep(self._delay_s)
            self._writer.write(part)

    def stage(self) -> Staged:
        """Wait, then stage."""
        time.sleep(self._delay_s)
        return self._writer.stage()

    def abort(self) -> None:
        """Drop what was written."""
        self._writer.abort()
