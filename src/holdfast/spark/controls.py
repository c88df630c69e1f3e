"""Control chunks beside Spark's plan: where Spark computes stage 0, a separate source reports ends, and wakes steps.

In such a pipeline only rows pass through Spark's plan.  So the planning process of a source that has ended leaves a
mark in Spark's checkpoint directory, once all its rows are in epochs that Spark has logged; this source finds the mark,
logs the end as an offset of its own, and delivers the chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.spark_log import CONTROLS
from holdfast.limits import ReadLimit
from holdfast.plan.chunks import SCHEMA
from holdfast.ports import Span
from holdfast.positions import SourcePositions
from holdfast.store import durable

NAME = CONTROLS
"""The source's name in Spark's offset log."""


def mark_end(path: str) -> None:
    """Leave the mark of a source that has ended.  A mark that a power cut loses is left again."""
    durable.make_directory(os.path.dirname(path), is_synced=False)
    with open(path, "ab", opener=durable.private_opener):
        pass


def end_of_range(start: Mapping[str, Any], end_mark: str) -> dict[str, Any]:
    """Return the end of an epoch without rows that reports the end of a backfill's range, also without state."""
    if end_mark:
        mark_end(end_mark)
    return {**start, "has_ended": True}


def mark_of(directory: str, source: str) -> str:
    """Return the path of a source's mark, in the directory of marks."""
    return os.path.join(directory, f"{source}.ended")


@dataclass(frozen=True)
class ControlSpec:
    """Declaration of the source of control chunks.

    Parameters
    ----------
    directory : str
        Where marks are left.
    sources : tuple of str
        The sources that can end.
    """

    directory: str
    sources: tuple[str, ...]
    schema: pa.Schema = SCHEMA
    timestamp: str | None = None
    kind: str = field(default="controls", init=False)
    rejects: bool = field(default=False, init=False)

    def arguments(self) -> Mapping[str, Any]:
        """Return none: it is part of no graph."""
        return {}

    def open(self, name: str, workspace: str) -> ControlSource:
        """Open it."""
        return ControlSource(self)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return nothing: it has no rows."""
        return ""

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: it has no rows."""
        return {}


class ControlSource:
    """Position = for each source that has ended, 1.  It has no rows."""

    def __init__(self, spec: ControlSpec) -> None:
        self._spec = spec

    def initial(self) -> SourcePositions:
        """No source has ended."""
        return {}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """Return the sources that have ended."""
        ended = [name for name in self._spec.sources if os.path.exists(mark_of(self._spec.directory, name))]
        return {**start, **dict.fromkeys(ended, 1)}

    def freeze(self) -> None:
        """Do nothing."""

    def newest(self) -> SourcePositions | None:
        """Return that nothing is known."""
        return None

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Return none."""
        return []

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Return 0."""
        return 0

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Return 0."""
        return 0

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        yield from ()

    def committed(self, end: SourcePositions) -> None:
        """Do nothing."""
