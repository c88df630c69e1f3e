"""``read.rows``: rows listed in the program itself, epoch by epoch, for tests and examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from holdfast.connectors.reading import deferred_log as owing
from holdfast.connectors.reading.bounds import with_bounds
from holdfast.connectors.reading.deferred import OwingSource
from holdfast.connectors.reading.identified import ROWS_MAX, KnownPlace, Numbered, numbered
from holdfast.connectors.reading.row_batches import Row, to_batch
from holdfast.connectors.rows_given import Given
from holdfast.limits import ReadLimit
from holdfast.ports import Explanation, Source, Span
from holdfast.positions import SourcePositions

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream

SEGMENT = "rows"
_SPAN_ROWS_MIN = 50_000


@dataclass(frozen=True)
class RowsSpec:
    """Declaration of ``read.rows``: one Arrow IPC stream for each epoch."""

    epochs: tuple[bytes, ...]
    schema: pa.Schema
    timestamp: str | None = None
    bounded: bool = False
    before: int | None = None
    """No row at or above this time is wanted yet, microseconds or ticks; no argument of users."""
    marker: str | None = None
    """Where a time is set to end at: the column that marks bound rows; no argument of users."""
    kind: str = field(default="rows", init=False)
    rejects: bool = field(default=False, init=False)
    numbering: ClassVar[str] = "the number of its list, and of the row in it"

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: the rows by their digest."""
        digest = hashlib.sha256(b"".join(self.epochs)).hexdigest()[:16]
        shown = {"epochs": len(self.epochs), "columns": self.schema.names, "digest": digest}
        return {**shown, "bounded": True} if self.bounded else shown

    def from_time(self, at_us: int) -> RowsSpec:
        """Return the source itself: its beginning is its one random access point."""
        return self

    def up_to(self, before: int, marker: str | None) -> RowsSpec:
        """Return the source without the rows at or above a time, which it then owes."""
        return replace(self, before=before, marker=marker)

    def open(self, name: str, workspace: str) -> Source:
        """Return the source; in the workspace are the digests of the rows that it delivered, and what it owes."""
        source = RowsSource(self, name, workspace)
        return source if self.timestamp is None else OwingSource(source, self, SEGMENT, name, workspace)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return whether it is lost which rows positions are; the rows themselves are in the program."""
        return owing.obstacle(workspace, positions, SEGMENT)

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the lists."""
        for position, index, since, before in owing.entries_before(workspace, until, SEGMENT):
            yield KnownPlace(str(index), 0, ROWS_MAX, SEGMENT, position, f"list {index}", since, before)

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: the rows are in the program."""
        return {}

    def explanations(self, name: str, workspace: str, after: int) -> list[Explanation]:
        """Return what its positions mean where it was read up to a time."""
        return owing.explanations(workspace, name, after)

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Note it again."""
        owing.restore(workspace, name, explanations)


class RowsSource:
    """Position = next epoch's index; each epoch has one list of rows."""

    def __init__(self, spec: RowsSpec, name: str, workspace: str) -> None:
        self.spec = spec
        self._given = Given(spec.epochs, name, workspace)

    def initial(self) -> SourcePositions:
        """Positions before the first epoch."""
        return {SEGMENT: 0}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: one list of rows further, until there are no more."""
        self._given.check(_index(start))
        end = min(_index(start) + 1, len(self.spec.epochs))
        self._given.note(end)
        return {SEGMENT: end}

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether these positions are after the last list of a bounded source."""
        return self.spec.bounded and _index(positions) >= len(self.spec.epochs)

    def freeze(self) -> None:
        """Do nothing: all rows are there from the beginning."""

    def newest(self) -> SourcePositions | None:
        """Position after the last epoch."""
        return {SEGMENT: len(self.spec.epochs)}

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions."""
        return sum(len(epoch) for epoch in self.spec.epochs[_index(start) : _index(end)])

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions."""
        return sum(int(self._table(index).num_rows) for index in range(_index(start), _index(end)))

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut each epoch into one span per core; small ones into one."""
        self._given.check(_index(end))
        spans = []
        for index in range(_index(start), _index(end)):
            count = self._table(index).num_rows
            parts = max(1, min(parallelism, count // _SPAN_ROWS_MIN))
            cuts = [count * number // parts for number in range(parts + 1)]
            size = len(self.spec.epochs[index]) // parts
            spans += [Span((index, a, b), b - a, size) for a, b in pairwise(cuts) if b > a]
        return spans

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        for _, batch in self.read_numbered(span):
            yield batch

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span with their numbers."""
        index, first, last = span.value
        for batch in self._table(index).slice(first, last - first).to_batches():
            yield numbered(str(index), first, batch)
            first += batch.num_rows

    def committed(self, end: SourcePositions) -> None:
        """Do nothing: the rows are part of the program."""

    def _table(self, index: int) -> pa.Table:
        return pa.ipc.open_stream(self.spec.epochs[index]).read_all()


def _index(positions: SourcePositions) -> int:
    return int(positions.get(SEGMENT, 0))


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow IPC stream."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(buffer.getvalue())


def rows(
    epochs_or_rows: Sequence[Row] | Sequence[Sequence[Row]],
    *,
    schema: Any,
    timestamp: str | None = None,
    name: str | None = None,
    bounded: bool = False,
    bounds: str | None = None,
) -> Stream:
    """Read the rows that are listed in the program: a list of dicts as one epoch, a list of lists as one epoch each.

    Parameters
    ----------
    epochs_or_rows : list of dict, or list of list of dict
        The rows.  A value of a TIMESTAMP column is a datetime, or ISO 8601 text (without a zone it is UTC).
    schema : str, StructType or pyarrow.Schema
        Their columns.
    timestamp : str, optional
        Column that holds event time.
    name : str, optional
        The source's name.
    bounded : bool
        Whether no further rows will follow: operators that wait for more receive the end.  Otherwise
        the program may get more lists before its next start.
    bounds : str, optional
        BOOLEAN column of the schema: a row in which it is true is not data but a bound.  No row below its timestamp
        comes any more, for the key that it names, or for all keys where the key columns are null.  Not a column of the
        stream.

    Examples
    --------
    ::

        flights = hf.read.rows([[{"id": 1}], [{"id": 2}, {"id": 3}]], schema="id BIGINT", name="flights")  # two epochs
    """
    from holdfast.graph.building import building
    from holdfast.graph.nodes import stream_from
    from holdfast.types.schema import to_arrow

    with building("source", name):
        columns = to_arrow(schema)
        given: list[Any] = list(epochs_or_rows)
        epochs = given if given and not isinstance(given[0], Mapping) else [given] if given else []
        packed = tuple(to_ipc(to_batch(list(epoch), columns)) for epoch in epochs)
        spec = with_bounds(RowsSpec(packed, columns, timestamp, bounded), bounds)
    return stream_from(spec, name=name)
