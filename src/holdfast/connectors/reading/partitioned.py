"""Bounds that a source gives by itself, of its partitions: in its positions, and as a row behind the rows of an epoch.

The bound that holds after some positions is planned with them and logged with them, under a segment of its own: so a
replay has the same one, and asks nobody.  It never falls.  Where it has risen, the last span of an epoch ends with a
bound row.

How the limit of an epoch is shared among the partitions of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.bounds import OWN, MarkedSpec, unmarked
from holdfast.connectors.reading.identified import (
    IdentifiedSpec,
    KnownPlace,
    Numbered,
    NumberedSpec,
    PlaceRun,
    TraceableSpec,
)
from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec, innermost
from holdfast.errors import InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, SeekableSpec, Source, SourceSpec, Span
from holdfast.positions import SourcePositions

BOUND = "@bound"
"""The segment of positions under which the bound stands."""

BOUND_ROW_SIZE = 64
"""What a bound row takes, in bytes, about."""


def of_partitions(positions: SourcePositions) -> dict[str, int]:
    """Return positions without the bound.

    Examples
    --------
    >>> of_partitions({"flights@28LoSSUP/3": 7, "@bound": 90})
    {'flights@28LoSSUP/3': 7}
    """
    return {segment: int(at) for segment, at in positions.items() if segment != BOUND}


def with_bound(found: SourcePositions, start: SourcePositions, bound: int | None) -> SourcePositions:
    """Return the positions of an epoch's end with the bound that holds after them: that of its start, or a higher one.

    Examples
    --------
    >>> with_bound({"log": 3}, {"log": 2, "@bound": 9}, 7), with_bound({"log": 3}, {"log": 2}, None)
    ({'log': 3, '@bound': 9}, {'log': 3})
    """
    known = start.get(BOUND)
    bounds = [int(each) for each in (known, bound) if each is not None]
    return {**found, BOUND: max(bounds)} if bounds else dict(found)


def bound_row(schema: pa.Schema, timestamp: str | None, bound: int) -> pa.RecordBatch:
    """Return a bound row that holds for all keys."""
    said = {OWN: pa.array([True]), timestamp: pa.array([bound], pa.int64())}
    arrays = [said[each.name].cast(each.type) if each.name in said else pa.nulls(1, each.type) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@optional(Source)
class Partitioned(Protocol):
    """What a source offers beside :class:`~holdfast.ports.Source` that knows the times of its partitions."""

    def bound_after(self, positions: SourcePositions, disorder: int) -> int | None:
        """Return the time below which no row follows positions, where a row is at most ``disorder`` ticks below the
        highest before it; None where that is not known.
        """


@dataclass(frozen=True)
class BoundingSpec(WrappedSpec):
    """Declaration of a source that gives bounds, around one that knows the times of its partitions.

    Parameters
    ----------
    given : SourceSpec
        That one.
    disorder : int
        Ticks by which a row may be below the highest before it.
    """

    disorder: int

    @property
    def schema(self) -> pa.Schema:
        """Its columns, of which a bound row has only one; and what marks bound rows."""
        return pa.schema([*(field.with_nullable(True) for field in self.given.schema), pa.field(OWN, pa.bool_())])

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        return {**self.given.arguments(), **({"disorder": self.disorder} if self.disorder else {})}

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        return cast("Source", BoundingSource(self.given.open(name, workspace), self))

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return why reading cannot continue at these positions."""
        ends = None if until is None else of_partitions(until)
        return self.given.obstacle(name, workspace, of_partitions(positions), ends)

    @property
    def numbering(self) -> str:
        """What of a row its number is."""
        assert offers(self.given, NumberedSpec)
        return self.given.numbering

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the places of its rows."""
        assert offers(self.given, TraceableSpec)
        return self.given.places(name, workspace, of_partitions(until))

    def from_time(self, at_us: int) -> BoundingSpec:
        """Return the declaration of the same source that begins at a time."""
        assert offers(self.given, SeekableSpec)
        return replace(self, given=self.given.from_time(at_us))


class _BoundSpan(NamedTuple):
    """What a span is of that ends with a bound: rows before it, if there are any.  A task for one row costs more."""

    bound: int
    rows: Span | None

    @staticmethod
    def behind(rows: Span | None, bound: int) -> Span:
        """Return the span of some rows and a bound."""
        own = Span(None, 0, 0) if rows is None else rows
        count = None if own.row_count is None else own.row_count + 1
        size_bytes = None if own.size_bytes is None else own.size_bytes + BOUND_ROW_SIZE
        return Span(_BoundSpan(bound, rows), count, size_bytes)


class BoundingSource(WrappedSource):
    """A source whose positions and epochs have bounds.

    Parameters
    ----------
    source : Source
        Knows the times of its partitions.
    spec : BoundingSpec
        The declaration.
    """

    def __init__(self, source: Source, spec: BoundingSpec) -> None:
        super().__init__(source)
        self.spec = spec

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch, with the bound that holds after it."""
        found = self.source.latest(of_partitions(start), bounded=bounded, limit=limit)
        knows = innermost(self.source)
        assert offers(knows, Partitioned)
        return with_bound(found, start, knows.bound_after(found, self.spec.disorder))

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Return the spans of the rows; where the bound has risen it is behind the last one."""
        found = list(self.source.spans(of_partitions(start), of_partitions(end), parallelism=parallelism))
        if end.get(BOUND) != start.get(BOUND):
            found[-1:] = [_BoundSpan.behind(found[-1] if found else None, int(end[BOUND]))]
        return found

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span, and its bound."""
        rows, bound = _parts(span)
        for batch in self.source.read(rows) if rows is not None else ():
            yield self._marked(batch)
        if bound is not None:
            yield bound_row(self._read_schema, self.spec.timestamp, bound)

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the same, with the numbers of the rows."""
        rows, bound = _parts(span)
        source: Any = self.source
        for runs, batch in source.read_numbered(rows) if rows is not None else ():
            yield Numbered(runs, self._marked(batch))
        if bound is not None:
            number = np.array([bound], np.int64).view(np.uint64)
            yield Numbered((PlaceRun(BOUND, number),), bound_row(self._read_schema, self.spec.timestamp, bound))

    @property
    def _read_schema(self) -> pa.Schema:
        rejects = [pa.field(REJECT_COLUMN, REJECT_TYPE)] if self.spec.rejects else []
        return pa.schema([*self.spec.schema, *rejects])

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        none = pa.nulls(batch.num_rows, pa.bool_())
        schema = self._read_schema
        arrays = [none if field.name == OWN else batch.column(field.name) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions."""
        return self.source.size_between(of_partitions(start), of_partitions(end))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions."""
        return self.source.rows_between(of_partitions(start), of_partitions(end))

    def committed(self, end: SourcePositions) -> None:
        """Let go what every sink holds."""
        self.source.committed(of_partitions(end))


def _parts(span: Span) -> tuple[Span | None, int | None]:
    """Return the rows of a span, and its bound."""
    of = span.value
    return (of.rows, of.bound) if isinstance(of, _BoundSpan) else (span, None)


def own_bounds(spec: SourceSpec, disorder: str | int, bounds: str | None = None) -> SourceSpec:
    """Return the declaration of a source that gives bounds, around one that knows the times of its partitions.

    Parameters
    ----------
    spec : SourceSpec
        That one.
    disorder : str or int
        How far a row may be below the highest before it.
    bounds : str, optional
        What the user has named as the column that marks bound rows.

    Raises
    ------
    InvalidPipeline
        If it has no timestamp, the duration does not fit it, or its rows are to be bounds besides.
    """
    from holdfast.state.keyed import duration_ticks  # only declaring needs it

    if bounds is not None or spec.timestamp is None:
        raise InvalidPipeline(
            f"read.{spec.kind}: disorder= {'without timestamp=' if bounds is None else f'with bounds={bounds!r}'}.",
            why="with it the source gives bounds by itself, from the times of its rows; rows that are bounds are "
            "another way.",
            do='write timestamp="<column>", and leave bounds= out.',
        )
    if spec.timestamp not in spec.schema.names:
        raise InvalidPipeline(
            f"timestamp={spec.timestamp!r} is not a column.",
            why=f"the columns are {', '.join(map(repr, spec.schema.names))}.",
            do="name one of them.",
        )
    ticks = duration_ticks(disorder, spec.schema.field(spec.timestamp), "disorder")
    return cast("SourceSpec", MarkedSpec(cast("SourceSpec", BoundingSpec(spec, ticks)), OWN))


def beneath(spec: SourceSpec) -> SourceSpec:
    """Return the declaration of the source itself, beneath its ids, its bounds and what marks bound rows."""
    given = unmarked(spec)
    given = given.given if isinstance(given, IdentifiedSpec) else given
    return given.given if isinstance(given, BoundingSpec) else given


def share(counts: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return how many messages of each stream an epoch takes: all, or of a limit each stream the same share.

    What a stream does not need of its share the others get; where there are more streams than messages to take, those
    with the most messages have precedence.

    Examples
    --------
    >>> share({"a": 9, "b": 1, "c": 9}, 8), share({"a": 5, "b": 9}, 1), share({"a": 5}, None)
    ({'b': 1, 'a': 3, 'c': 4}, {'a': 0, 'b': 1}, {'a': 5})
    """
    if limit is None:
        return dict(counts)
    found, left = {}, limit
    in_order = sorted(counts, key=lambda name: (counts[name], name))
    for place, name in enumerate(in_order):
        found[name] = min(counts[name], left // (len(in_order) - place))
        left -= found[name]
    return found
