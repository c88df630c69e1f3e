"""Sources that are read up to a time: of no row at or above it, until another run reads on.

How a source leaves those rows for later is up to it (``up_to`` of its declaration): it cuts at a position where its
rows ascend, or its log says of what it has read whose rows are owed.  Either way a position means the same rows in
every run, with or without a time to end at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

import pyarrow as pa

from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.identified import IdentifiedSpec
from holdfast.connectors.reading.partitioned import BoundingSpec, beneath
from holdfast.connectors.reading.wrapped import innermost
from holdfast.errors import InvalidPipeline
from holdfast.ports import Source, SourceSpec
from holdfast.positions import SourcePositions


@runtime_checkable
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


@runtime_checkable
class LimitedSource(Protocol):
    """What a source that is read up to a time knows."""

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return whether no row below the time follows these positions, by what the source promises."""


def obstacle(spec: SourceSpec) -> str:
    """Return why a source cannot be read up to a time; empty when it can."""
    given = beneath(spec)
    if not isinstance(given, LimitableSpec):
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
    assert isinstance(spec, LimitableSpec)
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
    return isinstance(inner, LimitedSource) and inner.has_passed(positions)
