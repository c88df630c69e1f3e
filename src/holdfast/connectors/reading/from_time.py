"""Sources that begin at a time: at their random access point at or before it, and without the rows before it.

A *random access point* is a place where reading can begin without the rows before it.  Where a source has one at or
before a time is up to it (``from_time`` of its declaration); that no row before the time leaves it is decided
here, by the timestamps of the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.partitioned import beneath
from holdfast.connectors.reading.until import is_from
from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec
from holdfast.ports import REJECT_COLUMN, SeekableSpec, Source, SourceSpec, Span


@optional(SourceSpec)
class StartableSpec(Protocol):
    """What a source's declaration may offer beyond :class:`~holdfast.ports.SourceSpec`: to say where it starts."""

    def from_beginning(self) -> SourceSpec:
        """Return the declaration of the same source that starts with all that is there."""


def from_beginning(spec: SourceSpec) -> SourceSpec:
    """Return the declaration of a source that starts with all that is there; the spec itself where it always does."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=from_beginning(spec.given)))
    return spec.from_beginning() if offers(spec, StartableSpec) else spec


def obstacle(spec: SourceSpec) -> str:
    """Return why a source cannot begin at a time; empty when it can."""
    given = beneath(spec)
    if not offers(given, SeekableSpec):
        return f"a source of kind {spec.kind!r} has no positions that belong to a time."
    if spec.timestamp is None:
        return "it declares no timestamp, so it is unknown which of its rows are before that time."
    return ""


def from_time(spec: SourceSpec, at_us: int | None) -> SourceSpec:
    """Return the declaration of a source that begins at a time; the spec itself where that is None."""
    if at_us is None:
        return spec
    if isinstance(spec, MarkedSpec):
        return cast("SourceSpec", replace(spec, given=from_time(spec.given, at_us)))
    assert offers(spec, SeekableSpec)
    return cast("SourceSpec", ClippedSpec(spec.from_time(at_us), at_us))


@dataclass(frozen=True)
class ClippedSpec(WrappedSpec):
    """Declaration of a source without the rows before a time.

    Parameters
    ----------
    given : SourceSpec
        The source.
    at_us : int
        Microseconds of Unix time; ticks where the timestamps are BIGINTs.
    """

    at_us: int

    def open(self, name: str, workspace: str) -> Source:
        """Open the source."""
        column = self.given.timestamp
        assert column is not None
        return cast("Source", ClippedSource(self.given.open(name, workspace), column, self.at_us))


class ClippedSource(WrappedSource):
    """A source whose :meth:`read` leaves out the rows before a time, and those without one; all else is the source.

    Parameters
    ----------
    source : Source
        The source.
    column : str
        Its timestamp.
    at_us : int
        Microseconds of Unix time; ticks where the timestamps are BIGINTs.
    """

    def __init__(self, source: Source, column: str, at_us: int) -> None:
        super().__init__(source)
        self.column = column
        self.at_us = at_us

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span from the time on."""
        for batch in self.source.read(span):
            stays = pc.fill_null(is_from(batch.column(self.column), self.at_us), False)
            if REJECT_COLUMN in batch.schema.names:
                stays = pc.or_(stays, pc.is_valid(batch.column(REJECT_COLUMN)))
            yield batch if stays.true_count == batch.num_rows else batch.filter(stays)
