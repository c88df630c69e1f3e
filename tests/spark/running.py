"""What the tests of real runs share: input files, a look into each sink, and waiting for what must come true."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import Unavailable
from holdfast.graph.nodes import SinkNode
from holdfast.spark.spark_versions import running

NAMED = pytest.mark.skipif(not running().names_sources, reason="read.spark needs positions under names (design/0052)")

CARRIED = Settings()
STAGED = Settings(carry_max="0 B", prefetch_max="0 B")
"""Every epoch is read and staged by workers, however small."""

MODES = {"carried": CARRIED, "staged": STAGED}


def die_at(point: str, epoch: int) -> None:
    """Let the run end as if it were killed when an epoch reaches a named point; the fixtures take it back."""

    def hook(reached: str, at: int) -> None:
        if (reached, at) == (point, epoch):
            raise RuntimeError(f"{reached}:{at}")

    faults.install(hook)


def arrive(directory: Path, name: str, lines: Iterable[Any], *, at: int | None = None) -> Path:
    """Put a JSON-lines file into a directory as a careful producer does: by rename, behind all else.

    ``at`` is its modification time in seconds; set later, it would be another file than the one a run has read.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    hidden = directory / f".{name}.tmp"
    hidden.write_text("".join(f"{text}\n" for text in texts))
    if at is not None:
        os.utime(hidden, (at, at))
    hidden.rename(directory / name)
    return directory / name


def numbered(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows with ids from ``first`` to below ``last``, one second apart."""
    return [{"id": i, "at": f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z"} for i in range(first, last)]


def arrive_in_order(directory: Path, count: int, rows_each: int) -> None:
    """Put files of consecutive ids into a directory, with modification times in the same order."""
    for number in range(count):
        rows = numbered(number * rows_each, (number + 1) * rows_each)
        arrive(directory, f"{number:03}.json", rows, at=number)


def eventually(holds: Callable[[], Any], *, within_s: float = 60, what: str = "") -> None:
    """Wait until something holds; fail when it does not come true in time."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s} s: {what or holds}"
        time.sleep(0.01)


def reach(run: Any, epoch: int) -> None:
    """Wait until a run has published an epoch; raise the run's own error if it fails before."""
    eventually(lambda: run.status().epoch >= epoch or run.wait(timeout_s=0), what=f"epoch {epoch}")
    assert run.status().epoch >= epoch, "the run ended before"


def sqlite_rows(path: Path, query: str = "SELECT id FROM rows") -> list[Any]:
    """Return the rows of a query, sorted; a single column as plain values; none while there is no table."""
    try:
        with sqlite3.connect(path) as connection:
            found = connection.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise
    return sorted(row[0] if len(row) == 1 else row for row in found)


def parquet_rows(path: Path, column: str = "id") -> list[Any]:
    """Return a column of a directory as an ordinary reader sees it, sorted; none while there is no file."""
    files = pyarrow.dataset.dataset(path, format="parquet")
    return sorted(files.to_table([column])[column].to_pylist()) if files.files else []


def batches_of_log(directory: Path) -> list[int]:
    """Return the batch numbers in one of Spark's logs."""
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


@dataclass(frozen=True)
class HeldBack:
    """A sink spec whose sink publishes only when the test lets it."""

    spec: Any
    gate: threading.Event = field(compare=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Any:
        """Connect the real sink."""
        return _HeldBackSink(self.spec.connect(name, pipeline, schema), self.gate)


class _HeldBackSink:
    def __init__(self, sink: Any, gate: threading.Event) -> None:
        self._sink = sink
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def publish(self, publications: Sequence[Any], expected: Any) -> None:
        assert self._gate.wait(120), "the test never opened the gate"
        self._sink.publish(publications, expected)


def held_back(node: SinkNode, gate: threading.Event) -> SinkNode:
    """Return the sink node with a sink that waits for the gate before each publish."""
    return replace(node, spec=HeldBack(node.spec, gate))


@dataclass(frozen=True)
class Away:
    """A sink spec whose sink never answers when it is to publish."""

    spec: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Any:
        """Connect the real sink."""
        return _AwaySink(self.spec.connect(name, pipeline, schema))


class _AwaySink:
    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def publish(self, publications: Sequence[Any], expected: Any) -> None:
        raise Unavailable("the table does not answer.", why="it is away.", do="wait.")


def away(node: SinkNode) -> SinkNode:
    """Return the sink node with a sink that cannot publish."""
    return replace(node, spec=Away(node.spec))
