"""The events of Nexmark as sources of a pipeline: one for each table, all of one sequence.

A position is the number of events of the whole sequence that were read, whichever table they are of, so the same
positions are the same rows on every machine and in every replay.  Rows are made where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from bench.nexmark.events import AUCTIONS, BLOCK, PERSONS, SCHEMAS, Events
from holdfast.connectors.reading.partitioned import own_bounds
from holdfast.graph.building import building
from holdfast.graph.nodes import Stream, stream_from
from holdfast.limits import ReadLimit, rows_within
from holdfast.ports import Span
from holdfast.positions import SourcePositions

SEGMENT = "events"
_ROW_SIZES = {"person": 200, "auction": 500, "bid": 150}
_OF_A_BLOCK = {"person": PERSONS, "auction": AUCTIONS, "bid": BLOCK - PERSONS - AUCTIONS}
_BATCH_EVENTS = 65_536
_SPAN_EVENTS_MIN = 100_000


@dataclass(frozen=True)
class NexmarkSpec:
    """Declaration of one table of the sequence.

    Parameters
    ----------
    table : str
        ``person``, ``auction`` or ``bid``.
    events : Events
        The sequence.
    count : int
        With how many of its events it ends.
    max_events_per_epoch : int, optional
        Limit of one epoch, in events of the sequence.
    columns : collection of str, optional
        Those that are made, the others are null; None: all.
    """

    table: str
    events: Events
    count: int
    max_events_per_epoch: int | None = None
    columns: Collection[str] | None = None
    kind: str = field(default="nexmark", init=False)
    timestamp: str | None = field(default="dateTime", init=False)
    rejects: bool = field(default=False, init=False)
    bounded: bool = field(default=True, init=False)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return SCHEMAS[self.table]

    def narrowed(self, columns: Collection[str]) -> NexmarkSpec:
        """Return the table with nulls in columns that nothing uses: they are not made."""
        return replace(self, columns=frozenset(columns).union(("dateTime",)))

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        events = self.events
        return {
            "table": self.table,
            "rate": events.rate,
            "seed": events.seed,
            "out_of_order": events.out_of_order,
            "count": self.count,
        }

    def open(self, name: str, workspace: str) -> NexmarkSource:
        """Return the source."""
        return NexmarkSource(self)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return nothing: what was made can be made again."""
        return ""

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: a position means the same rows whatever is kept."""
        return {}


class NexmarkSource:
    """One table, read."""

    def __init__(self, spec: NexmarkSpec) -> None:
        self.spec = spec

    def initial(self) -> SourcePositions:
        """Before the first event."""
        return {SEGMENT: 0}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: all that is left, within the limit."""
        begin = int(start[SEGMENT])
        left = self.spec.count - begin
        most = rows_within(self.spec.max_events_per_epoch, limit, left, lambda: self._size(left))
        return {SEGMENT: begin + (left if most is None else min(left, most))}

    def freeze(self) -> None:
        """Do nothing: there is one end."""

    def newest(self) -> SourcePositions | None:
        """After the last event."""
        return {SEGMENT: self.spec.count}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions."""
        return int(positions[SEGMENT]) >= self.spec.count

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the event time below which no event follows: that of the first of the group that comes next."""
        events, number = self.spec.events, int(positions[SEGMENT])
        return events.time_of(number // events.out_of_order * events.out_of_order) - disorder

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut into one span for each core; few events into one."""
        begin, count = int(start[SEGMENT]), int(end[SEGMENT]) - int(start[SEGMENT])
        if count <= 0:
            return []
        parts = max(1, min(parallelism, count // _SPAN_EVENTS_MIN))
        cuts = pairwise(begin + count * part // parts for part in range(parts + 1))
        return [Span((low, high), self._rows(high - low), self._size(high - low)) for low, high in cuts]

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions, about."""
        return self._size(int(end[SEGMENT]) - int(start[SEGMENT]))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Return nothing: how many of some events are of the table is known where they are made."""
        return None

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        begin, end = span.value
        for low in range(begin, end, _BATCH_EVENTS):
            high = min(end, low + _BATCH_EVENTS)
            made = self.spec.events.make(self.spec.table, low, high, self.spec.columns)
            yield made if self.spec.columns is None else completed(made, self.spec.schema)

    def committed(self, end: SourcePositions) -> None:
        """Do nothing: nothing is kept."""

    def _rows(self, events: int) -> int:
        return events * _OF_A_BLOCK[self.spec.table] // BLOCK

    def _size(self, events: int) -> int:
        return self._rows(events) * _ROW_SIZES[self.spec.table]


def completed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with all columns of a schema; those that they lack are null."""
    there = set(rows.schema.names)
    columns = [rows.column(of.name) if of.name in there else pa.nulls(rows.num_rows, of.type) for of in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def nexmark(table: str, events: Events, count: int, *, max_events_per_epoch: int | None = None) -> Stream:
    """Return a table of a sequence of events as a stream, named as the table is.

    Parameters
    ----------
    table : str
        ``person``, ``auction`` or ``bid``.
    events : Events
        The sequence; several tables of one pipeline have the same.
    count : int
        How many of its events there are, of all tables together.
    max_events_per_epoch : int, optional
        Limit of one epoch.
    """
    with building("source", table):
        spec = own_bounds(NexmarkSpec(table, events, count, max_events_per_epoch), 0)
    return stream_from(spec, name=table)
