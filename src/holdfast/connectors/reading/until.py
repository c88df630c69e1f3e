"""Sources that are read up to a time: of no row at or above it, until another run reads on.

How a source leaves those rows for later is up to it (``up_to`` of its declaration): it cuts at a position where its
rows ascend, or its log says of what it has read whose rows are owed.  Either way a position means the same rows in
every run, with or without a time to end at.

Rows of a time: what a first reading gives, and what a later one gives that was left.

A row below ``before`` belongs to the first reading, one at or above it to the next; so does every row to exactly one of
them.  A row without a timestamp, or that is rejected, belongs to the first.

Runs that end at a time: which sources can, and how the driver learns that all of them have passed it.

A source is asked for its latest position in a process of its own.  When that finds nothing more below the time, it
leaves a mark in the temporary directory of the run; once every source has left one, the run stops as if it was told
to, at an epoch's boundary.  Marks are of one run: a source that has passed a time says so again in the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.identified import IdentifiedSpec, Numbered, NumberedSource
from holdfast.connectors.reading.partitioned import BoundingSpec, beneath
from holdfast.connectors.reading.wrapped import innermost
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import end_at
from holdfast.ports import REJECT_COLUMN, Source, SourceSpec, Span
from holdfast.positions import SourcePositions

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph


@optional(SourceSpec)
class LimitableSpec(Protocol):
    """What a source's declaration may offer beyond :class:`~holdfast.ports.SourceSpec`: to be read up to a time."""

    @property
    def timestamp(self) -> str | None:
        """The column that holds event time."""

    def up_to(self, before: int, marker: str | None) -> SourceSpec:
        """Return the declaration of the same source without its rows at or above a time, which stay for a later run:
        microseconds of Unix time, or ticks.  ``marker``: the column that marks bound rows, where there are any.  Its
        source is a :class:`LimitedSource`.
        """


@optional(Source)
class LimitedSource(Protocol):
    """What a source that is read up to a time knows."""

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether no row below the time follows these positions, by what the source promises."""


def obstacle(spec: SourceSpec) -> str:
    """Return why a source cannot be read up to a time; empty when it can."""
    given = beneath(spec)
    if not offers(given, LimitableSpec):
        return f"a source of kind {spec.kind!r} cannot leave rows for a later run."
    if given.timestamp is None:
        return "it declares no timestamp, so it is unknown which of its rows are at or above that time."
    return ""


def up_to(spec: SourceSpec, before: int | None) -> SourceSpec:
    """Return the declaration of a source that is read up to a time; the spec itself where that is None.

    Parameters
    ----------
    spec : SourceSpec
        The source.
    before : int, optional
        Microseconds of Unix time, or ticks; exclusive.
    """
    return spec if before is None else _limit(spec, before, None)


def _limit(spec: SourceSpec, before: int, marker: str | None) -> SourceSpec:
    if isinstance(spec, MarkedSpec):
        # A source that gives bounds itself has none among its rows.
        return cast("SourceSpec", replace(spec, given=_limit(spec.given, before, None if spec.is_own else spec.marker)))
    if isinstance(spec, IdentifiedSpec | BoundingSpec):
        return cast("SourceSpec", replace(spec, given=_limit(spec.given, before, marker)))
    assert offers(spec, LimitableSpec)
    return spec.up_to(before, marker)


class Timestamped(Protocol):
    """What is asked of a source's declaration here."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def timestamp(self) -> str | None:
        """The column that holds event time; None when there is none."""


def shown_timestamp(spec: Timestamped) -> str:
    """Return a source's timestamp and its unit, by which rows are owed; empty where it has none."""
    if spec.timestamp is None:
        return ""
    is_time = pa.types.is_timestamp(spec.schema.field(spec.timestamp).type)
    return f"{spec.timestamp} {'TIMESTAMP' if is_time else 'BIGINT'}"


def check_timestamp(spec: Timestamped, name: str, owed_by: str) -> None:
    """Refuse another timestamp than the one by which a source owes rows.

    Raises
    ------
    InvalidPipeline
        If it is another one, or there is none any more.
    """
    now = shown_timestamp(spec)
    if now != owed_by:
        raise InvalidPipeline(
            f"source {name!r} owes rows by the timestamp {owed_by}, and now has {now or 'none'}.",
            why="a run that ended at a time has left rows; they are told from those that it read by that column.",
            do="restore it, let a run without until= read what is left, and change it then.",
            participant=name,
        )


def has_passed(source: Source, positions: SourcePositions) -> bool:
    """Return whether a source that is read up to a time has nothing more for this run behind some positions."""
    inner = innermost(source)
    return offers(inner, LimitedSource) and inner.has_passed(positions)


def rows_between(
    batches: Iterable[pa.RecordBatch], column: str, since: int | None, before: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one reading.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        All rows.
    column : str
        The timestamp.
    since : int, optional
        What an earlier reading has given up to, exclusive: microseconds of Unix time, or ticks where the timestamps are
        integers.  None: nothing was read.
    before : int, optional
        Where this reading ends, exclusive; None: nowhere.

    Examples
    --------
    >>> batch = pa.record_batch({"t": [4, None, 7, 9]})
    >>> [batch.column(0).to_pylist() for batch in rows_between([batch], "t", None, 7)]
    [[4, None]]
    >>> [batch.column(0).to_pylist() for batch in rows_between([batch], "t", 7, 9)]
    [[7]]
    """
    for batch in batches:
        stays = _stays(batch, column, since, before)
        yield batch if stays.true_count == batch.num_rows else batch.filter(stays)


def numbered_between(
    several: Iterable[Numbered], column: str, since: int | None, before: int | None
) -> Iterator[Numbered]:
    """Yield the rows of one reading, as :func:`rows_between` does, each with the number that it has among all rows."""
    for runs, batch in several:
        stays = _stays(batch, column, since, before)
        mask = stays.to_numpy(zero_copy_only=False)
        left, first = [], 0
        for run in runs:
            left.append(run._replace(numbers=run.numbers[mask[first : first + len(run.numbers)]]))
            first += len(run.numbers)
        yield Numbered([run for run in left if len(run.numbers)] or left[:1], batch.filter(stays))


@dataclass(frozen=True)
class SpanBetween:
    """Value of a span of which the rows of one reading are wanted."""

    span: Span
    since: int | None
    before: int | None


def read_between(source: Source, span: Span, column: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span, of one reading where it is of one."""
    of = span.value
    if isinstance(of, SpanBetween):
        yield from rows_between(source.read(of.span), column, of.since, of.before)
    else:
        yield from source.read(span)


def read_numbered_between(source: Source, span: Span, column: str) -> Iterator[Numbered]:
    """Yield the same with the numbers of the rows: those of all rows, whichever of them are wanted."""
    of, numbered = span.value, cast("NumberedSource", source)
    if isinstance(of, SpanBetween):
        yield from numbered_between(numbered.read_numbered(of.span), column, of.since, of.before)
    else:
        yield from numbered.read_numbered(span)


def _stays(batch: pa.RecordBatch, column: str, since: int | None, before: int | None) -> pa.BooleanArray:
    values, is_first = batch.column(column), since is None
    stays = pa.repeat(pa.scalar(True), batch.num_rows)
    for border, is_inside in ((since, is_from), (before, is_below)):
        if border is not None:
            stays = pc.and_(stays, pc.fill_null(is_inside(values, border), is_first))
    if REJECT_COLUMN in batch.schema.names:
        is_reject = pc.is_valid(batch.column(REJECT_COLUMN))
        stays = pc.or_(stays, is_reject) if is_first else pc.and_(stays, pc.invert(is_reject))
    return stays


def is_below(values: pa.Array, at: int) -> pa.BooleanArray:
    """Return which timestamps are below a time; null where there is none."""
    return pc.invert(is_from(values, at))


def is_from(values: pa.Array, at: int) -> pa.BooleanArray:
    """Return which timestamps are not before a time: microseconds of Unix time, or ticks where they are integers.

    Times without a zone are UTC.  Null where there is none.

    Examples
    --------
    >>> is_from(pa.array([4, 5, None]), 5).to_pylist()
    [False, True, None]
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        border = pa.scalar(at, pa.timestamp("us", kind.tz))
        values = values if kind.unit == "us" else pc.cast(values, border.type, safe=False)
    else:
        values = pc.cast(values, pa.int64())
        border = pa.scalar(at, pa.int64())
    return pc.greater_equal(values, border)


def ends_at(pipeline: Graph, until: str | datetime | int | None, *, at: int | None) -> int | None:
    """Return the time at which a run of a pipeline ends, in the unit of its timestamps; None where it does not.

    Raises
    ------
    InvalidPipeline
        If it is no time, not after the beginning, or a source cannot be read up to a time: names it.
    """
    end = end_at(until, pipeline.sources, at=at)
    for node in pipeline.sources if end is not None else ():
        why = obstacle(cast("SourceSpec", node.spec))
        if why:
            raise InvalidPipeline(
                f"source {node.name!r} cannot be read up to a time.",
                why=why,
                do='declare timestamp="<column>" at the source; or leave until= out, and filter its rows.',
                pipeline=pipeline.name,
                participant=node.name,
            )
    return end


def passed_mark(stop_file: str, source: str) -> str:
    """Return the file that says that a source has passed the time at which its run ends."""
    return os.path.join(os.path.dirname(stop_file), f"{source}.passed")


def have_passed(stop_file: str, sources: Iterable[str]) -> bool:
    """Return whether every source has left its mark."""
    return all(os.path.exists(passed_mark(stop_file, source)) for source in sources)
