"""A sink that takes its time and says where it is: so that a kill falls into the middle of its work.

Each step leaves an empty file, a *mark*, in a directory; a test waits for the n-th of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.graph.nodes import SinkNode
from holdfast.ports import Held, Publication, Staged, Task, Writer, WriterFactory


def slowed(node: SinkNode, delay_s: float, marks: str = "") -> SinkNode:
    """Return the sink node with a sink that waits: before each half of a batch, before staging, before publishing.

    Parameters
    ----------
    node : SinkNode
        The real one.
    delay_s : float
        Each wait; 0 returns the node as it is.
    marks : str
        Directory for the marks; empty for none.
    """
    if not delay_s:
        return node
    return SinkNode(SlowSpec(node.spec, delay_s, marks), node.stream, node.name, node.is_named, node.origin)


@dataclass(frozen=True)
class SlowSpec:
    """A spec whose sink is slow."""

    spec: Any
    delay_s: float
    marks: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> SlowSink:
        """Connect the real sink."""
        return SlowSink(self.spec.connect(name, pipeline, schema), self.delay_s, self.marks)


class SlowSink:
    """The real sink, slow."""

    def __init__(self, sink: Any, delay_s: float, marks: str) -> None:
        self._sink = sink
        self._delay_s = delay_s
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def writer_factory(self) -> WriterFactory:
        """Return a factory of slow writers."""
        return SlowFactory(self._sink.writer_factory(), self._delay_s, self._marks, self._sink.name)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Wait, then publish."""
        epoch = publications[-1].record.epoch
        _mark(self._marks, f"{epoch}.{self._sink.name}.publishing")
        time.sleep(self._delay_s)
        self._sink.publish(publications, expected)
        _mark(self._marks, f"{epoch}.{self._sink.name}.published")


@dataclass(frozen=True)
class SlowFactory:
    """Picklable; opens slow writers."""

    factory: WriterFactory
    delay_s: float
    marks: str
    sink: str

    def __call__(self, task: Task) -> Writer:
        """Open a slow writer."""
        label = f"{task.epoch}.{self.sink}.{task.task}-{task.attempt}"
        return SlowWriter(self.factory(task), self.delay_s, self.marks, label)


class SlowWriter:
    """The real writer, late."""

    def __init__(self, writer: Writer, delay_s: float, marks: str, label: str) -> None:
        self._writer = writer
        self._delay_s = delay_s
        self._marks = marks
        self._label = label
        self._written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Wait, then write: in two halves, so that a batch can be cut."""
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            time.sleep(self._delay_s)
            self._writer.write(part)
            self._written += 1
            _mark(self._marks, f"{self._label}.write{self._written}")

    def stage(self) -> Staged:
        """Wait, then stage."""
        _mark(self._marks, f"{self._label}.staging")
        time.sleep(self._delay_s)
        staged = self._writer.stage()
        _mark(self._marks, f"{self._label}.staged")
        return staged

    def abort(self) -> None:
        """Drop what was written."""
        self._writer.abort()


def _mark(directory: str, name: str) -> None:
    if directory:
        (Path(directory) / name).touch()
