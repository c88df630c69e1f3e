"""Bound rows: promises of a source about later rows, placed among its rows and marked by a BOOLEAN column.

A row in which the column is true is not data.  Its timestamp is a promise: no row below it follows.  It holds for
the key that its columns name, and for all keys where they are null.  The column itself is not part of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec
from holdfast.errors import InvalidPipeline
from holdfast.ports import Source, SourceSpec, Span

OWN = "__bound__"
"""The column that marks them where the source makes them itself, and not whoever wrote its rows."""


@dataclass(frozen=True)
class MarkedSpec(WrappedSpec):
    """Declaration of a source with bound rows among its rows.

    Parameters
    ----------
    given : SourceSpec
        The source as it reads: with the column that marks bounds.
    marker : str
        That column.
    """

    marker: str

    @property
    def is_own(self) -> bool:
        """Whether the source gives the bounds itself, of its partitions: then its rows promise nothing besides."""
        return self.marker == OWN

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows: without the mark."""
        return pa.schema([field.remove_metadata() for field in self.given.schema if field.name != self.marker])

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        return {**self.given.arguments(), "bounds": "its own" if self.is_own else self.marker}

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        return cast("Source", MarkedSource(self.given.open(name, workspace), self.marker))


def unmarked(spec: SourceSpec) -> SourceSpec:
    """Return the declaration as the source reads: with the column that marks bound rows, where there is one."""
    return spec.given if isinstance(spec, MarkedSpec) else spec


class MarkedSource(WrappedSource):
    """A source whose :meth:`read` leaves bound rows out; all else is the source itself.

    Parameters
    ----------
    source : Source
        Its rows have the mark.
    marker : str
        The column.
    """

    def __init__(self, source: Source, marker: str) -> None:
        super().__init__(source)
        self.marker = marker

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span."""
        for batch in self.source.read(span):
            marks = marks_of(batch, self.marker)
            rows = batch.drop_columns([self.marker])
            yield rows.filter(pc.invert(marks)) if marks.true_count else rows

    def read_marked(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield rows and bound rows of a span in their order, with the mark."""
        yield from self.source.read(span)


def marks_of(batch: pa.RecordBatch, marker: str) -> pa.BooleanArray:
    """Return which rows of a batch are bounds."""
    return pc.fill_null(batch.column(marker), False)


def bounds_for_all(batch: pa.RecordBatch, column: str, marker: str) -> list[int]:
    """Return the highest bound of a batch that holds for all keys: nothing but the timestamp stands in its row."""
    is_bound = marks_of(batch, marker)
    for name in batch.schema.names:
        if name not in (column, marker):
            is_bound = pc.and_(is_bound, pc.is_null(batch.column(name)))
    highest = pc.max(batch.column(column).filter(is_bound).cast(pa.int64()))
    return [highest.as_py()] if highest.is_valid else []


def with_bounds(spec: SourceSpec, bounds: str | None) -> SourceSpec:
    """Return the declaration of a source that gives bound rows; the spec itself where ``bounds`` is None.

    Raises
    ------
    InvalidPipeline
        If the column is not there, is not BOOLEAN, or the source has no timestamp.
    """
    if bounds is None:
        return spec
    names = ", ".join(map(repr, spec.schema.names))
    if bounds not in spec.schema.names:
        raise InvalidPipeline(
            f"bounds={bounds!r} is not a column.",
            why=f"the columns are {names}.",
            do='add it to the schema: "..., is_bound BOOLEAN", and write bounds="is_bound".',
        )
    kind = spec.schema.field(bounds).type
    if kind != pa.bool_():
        raise InvalidPipeline(
            f"bounds={bounds!r} is a column of type {kind}.",
            why="it distinguishes bound rows (true) from rows (false or null).",
            do=f'declare "{bounds} BOOLEAN".',
        )
    if spec.timestamp is None:
        raise InvalidPipeline(
            "bounds= needs timestamp=.",
            why="the timestamp of a bound row is the bound.",
            do='write timestamp="<column>" too.',
        )
    return cast("SourceSpec", MarkedSpec(spec, bounds))
