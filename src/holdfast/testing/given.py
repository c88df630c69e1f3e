"""What a test gives to the sources of a driven graph: rows as dicts, and between them what a source says besides.

Cells of buckets in a dictionary: what keeps state where there is no store of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.identified import IdentifiedSpec, Numbered, numbered
from holdfast.connectors.reading.row_batches import to_batch
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Node
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, Source, SourceSpec, Span
from holdfast.positions import SourcePositions
from holdfast.state import checks
from holdfast.state.step import CLOSED

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARKER = "__holdfast_bound"
"""Marks bounds among the rows of a source that has no column of its own for them."""

Time = int | str | datetime


@dataclass(frozen=True)
class Bound:
    """A control row: what an input promises from here on.

    Parameters
    ----------
    ticks : int
        No row below it comes any more.
    key : mapping, optional
        The key it holds for, as ``{column: value}``; None for all keys.
    """

    ticks: int
    key: Mapping[str, Any] | None = None

    @property
    def is_end(self) -> bool:
        """Whether it is the end of the source."""
        return self.ticks == CLOSED and self.key is None


@dataclass(frozen=True)
class Malformed:
    """A row that a source cannot read: what its ``rejects`` show of it."""

    raw: str
    reason: str
    position: str


Item = Mapping[str, Any] | Bound | Malformed


def bound(t: Time, key: Mapping[str, Any] | None = None) -> Bound:
    """Return a control row for :func:`~holdfast.testing.drive.drive`: no row below ``t`` comes any more.

    Parameters
    ----------
    t : int, str or datetime
        Ticks (microseconds of Unix time for a TIMESTAMP), ISO 8601 text or a datetime; without a zone UTC.
    key : mapping, optional
        ``{"origin": "JFK"}``: the key it holds for, by columns of the source.  Without it, all keys.

    Examples
    --------
    >>> bound(20), bound("1970-01-01T00:00:01", {"origin": "JFK"})
    (Bound(ticks=20, key=None), Bound(ticks=1000000, key={'origin': 'JFK'}))
    """
    return Bound(ticks_of(t), key)


def close(key: Mapping[str, Any] | None = None) -> Bound:
    """Return a control row for :func:`~holdfast.testing.drive.drive`: the input has ended (for one key, or altogether).

    As in a run, the end of a source follows all rows of its epoch.
    """
    return Bound(CLOSED, key)


def malformed(raw: str, reason: str = "it is malformed", position: str = "") -> Malformed:
    """Return a row that a source with ``on_bad_row="reject"`` cannot read: it goes to ``rejects``."""
    return Malformed(raw, reason, position)


def ticks_of(t: Time) -> int:
    """Return a time as ticks: microseconds of Unix time where it is no number."""
    if isinstance(t, int):
        return t
    moment = datetime.fromisoformat(t) if isinstance(t, str) else t
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class GivenSpec:
    """A source whose rows stand in a test: it has the columns of the one that it stands for.

    Parameters
    ----------
    schema : pa.Schema
        Of its rows; with the column that marks bounds where it gives any.
    timestamp : str, optional
        The column that holds event time.
    rejects : bool
        Whether malformed rows become rows of the side output.
    batches : tuple of tuple of pa.RecordBatch
        What it gives in each epoch.
    """

    schema: pa.Schema
    timestamp: str | None
    rejects: bool
    batches: tuple[tuple[pa.RecordBatch, ...], ...]
    kind: str = "rows"

    def arguments(self) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def open(self, name: str, workspace: str) -> Source:
        """Return the source."""
        return cast("Source", GivenSource(self.batches))

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return nothing: the rows are here."""
        return ""

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: the rows are here."""
        return {}


@dataclass(frozen=True)
class GivenSource:
    """The source of a :class:`GivenSpec`.  A span is an epoch; it is never planned, so this is all that it does."""

    batches: tuple[tuple[pa.RecordBatch, ...], ...]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield what is given in an epoch."""
        for _, batch in self.read_numbered(span):
            yield batch

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield what is given in an epoch, numbered over all of them: a test may cut its rows otherwise."""
        first = sum(batch.num_rows for batches in self.batches[: span.value] for batch in batches)
        for batch in self.batches[span.value] if span.value < len(self.batches) else ():
            yield numbered("given", first, batch)
            first += batch.num_rows


def given_spec(node: Node, epochs: Sequence[Sequence[Item]]) -> SourceSpec:
    """Return what stands in a driven graph for one of its sources.

    Parameters
    ----------
    node : Node
        The source.
    epochs : sequence of sequence of Item
        What it gives in each epoch.

    Raises
    ------
    InvalidPipeline
        If a row does not fit its schema, or the source cannot give what stands among its rows.
    """
    return _Giving(node, epochs).spec()


def ends_in(epochs: Sequence[Sequence[Item]], epoch: int) -> bool:
    """Tell whether a source says in an epoch that it has ended."""
    items = epochs[epoch] if epoch < len(epochs) else ()
    return any(isinstance(item, Bound) and item.is_end for item in items)


class _Giving:
    """Makes batches of the items of one source."""

    def __init__(self, node: Node, epochs: Sequence[Sequence[Item]]) -> None:
        self._name = node.name
        self._epochs = [_without_end(items) for items in epochs]
        spec: Any = node.spec
        self._marker: str | None = None
        if isinstance(spec, MarkedSpec):
            spec, self._marker = spec.given, spec.marker
        self._identified: IdentifiedSpec | None = None
        if isinstance(spec, IdentifiedSpec):
            spec, self._identified = spec.given, spec
        if spec.schema is None:
            raise InvalidPipeline(
                f"source {node.name!r}, built at {node.origin}, has no schema: only Spark would know its columns.",
                do="give it one where it is built: schema=...",
                participant=node.name,
            )
        self._timestamp: str | None = spec.timestamp
        self._rejects: bool = spec.rejects
        self._schema: pa.Schema = spec.schema
        self._plain = pa.schema([field for field in spec.schema if field.name != self._marker])
        if self._marker is None and any(isinstance(item, Bound) for items in self._epochs for item in items):
            self._marker = _MARKER
            self._schema = self._schema.append(pa.field(_MARKER, pa.bool_()))
        nullable = [field.with_nullable(True) for field in self._schema]
        self._read_schema = pa.schema([*nullable, pa.field(REJECT_COLUMN, REJECT_TYPE)])
        if not self._rejects:
            self._read_schema = self._schema

    def spec(self) -> SourceSpec:
        batches = tuple(self._batches(items) for items in self._epochs)
        given: Any = GivenSpec(self._schema, self._timestamp, self._rejects, batches)
        spec = given if self._identified is None else replace(self._identified, given=given)
        return cast("SourceSpec", spec if self._marker is None else MarkedSpec(spec, self._marker))

    def _batches(self, items: Sequence[Item]) -> tuple[pa.RecordBatch, ...]:
        """Return an epoch as one batch; none without items."""
        if not items:
            return ()
        kinds: list[list[int]] = [[], [], []]
        for place, item in enumerate(items):
            kinds[isinstance(item, Bound) + 2 * isinstance(item, Malformed)].append(place)
        chosen: list[list[Any]] = [[items[place] for place in places] for places in kinds]
        parts = [self._rows(chosen[0]), self._bounds(chosen[1]), self._malformed(chosen[2])]
        order = pa.array([place for places in kinds for place in places])
        table = pa.Table.from_batches(parts, self._read_schema)
        in_place = table.take(pc.sort_indices(order)).combine_chunks()
        return tuple(in_place.to_batches())

    def _rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        unknown = [name for row in rows for name in row if name not in self._schema.names]
        if unknown:
            raise InvalidPipeline(
                f"a row of source {self._name!r} has the key {unknown[0]!r}, which is no column.",
                do=f"use the columns of the schema: {', '.join(self._plain.names)}.",
            )
        try:
            batch = to_batch(rows, self._schema)
        except InvalidPipeline as error:
            raise InvalidPipeline(
                f"rows of source {self._name!r} do not fit its schema.",
                why=error.what,
                do=f"its columns are {checks.spelled(self._plain)}.",
            ) from error
        return self._with(dict(zip(self._schema.names, batch.columns, strict=True)), batch.num_rows)

    def _bounds(self, bounds: Sequence[Bound]) -> pa.RecordBatch:
        if not bounds:
            return self._with({}, 0)
        if self._timestamp is None:
            raise InvalidPipeline(
                f"source {self._name!r} has no timestamp, and is given a bound.",
                why="a bound says something of timestamps to come; without one a source can only end.",
                do="name the column where the source is built: timestamp=..., or give close() after its rows.",
                participant=self._name,
            )
        keys = [dict(each.key or {}) for each in bounds]
        for name in (name for key in keys for name in key):
            if name not in self._plain.names or name == self._timestamp:
                raise InvalidPipeline(
                    f"a bound of source {self._name!r} is for the key {name!r}, which is no column that can be one.",
                    do=f"use the columns of the source: {', '.join(self._plain.names)}.",
                )
        columns: dict[str, pa.Array] = {}
        for field in self._schema:
            columns[field.name] = pa.array([key.get(field.name) for key in keys], field.type)
        assert self._marker is not None
        kind = self._schema.field(self._timestamp).type
        columns[self._timestamp] = pa.array([each.ticks for each in bounds], pa.int64()).cast(kind)
        columns[self._marker] = pa.array([True] * len(bounds), pa.bool_())
        return self._with(columns, len(bounds))

    def _malformed(self, rows: Sequence[Malformed]) -> pa.RecordBatch:
        if rows and not self._rejects:
            raise InvalidPipeline(
                f"source {self._name!r} is given a malformed row, and stops at the first one.",
                do='write on_bad_row="reject" where it is built.',
                participant=self._name,
            )
        shown = [{"reason": row.reason, "raw": row.raw, "position": row.position} for row in rows]
        return self._with({REJECT_COLUMN: pa.array(shown, REJECT_TYPE)}, len(rows))

    def _with(self, columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        """Return a batch as the source is read; columns that are not given are null."""
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in self._read_schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._read_schema)


def _without_end(items: Sequence[Item]) -> list[Item]:
    """Leave out the end of a source where nothing follows it: it is passed on after all rows of the epoch.

    One with rows after it stays: they are late, where a real source would not deliver them.
    """
    left = list(items)
    last = max((place for place, item in enumerate(left) if not _is_end(item)), default=-1)
    return [item for place, item in enumerate(left) if place < last or not _is_end(item)]


def _is_end(item: Item) -> bool:
    return isinstance(item, Bound) and item.is_end


Stored = dict[tuple[Any, ...], Any]
"""(key of a bucket, "record") -> the record; (key, "piece", part, number) -> a piece of a part."""


@dataclass(frozen=True)
class DictionaryCells:
    """The cells of one bucket (:class:`holdfast.plan.levels.store.Cells`).

    Parameters
    ----------
    stored : dict
        Of all buckets.
    key : (str, int)
        The bucket: operator and label.
    """

    stored: Stored
    key: tuple[str, int]

    def record(self) -> str | None:
        """Return the record; None when there is none."""
        found: str | None = self.stored.get((self.key, "record"))
        return found

    def put_record(self, record: str) -> None:
        """Replace the record."""
        self.stored[self.key, "record"] = record

    def piece(self, part: int, number: int) -> bytes:
        """Return a piece of a part."""
        found: bytes = self.stored[self.key, "piece", part, number]
        return found

    def put_piece(self, part: int, number: int, data: pa.Buffer) -> None:
        """Store a piece of a part."""
        self.stored[self.key, "piece", part, number] = bytes(data)

    def drop_piece(self, part: int, number: int) -> None:
        """Remove a piece of a part."""
        del self.stored[self.key, "piece", part, number]
