"""Sources that are read up to a time: of no row at or above it, until another run reads on.

How a source leaves those rows for later is up to it (``up_to`` of its declaration): it cuts at a position where its
rows ascend, or its log says of what it has read whose rows are owed.  Either way a position means the same rows in
every run, with or without a time to end at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

from holdfast.ports import Source, SourceSpec
from holdfast.positions import SourcePositions
from holdfast.sources.bounds import MarkedSpec
from holdfast.sources.identified import IdentifiedSpec
from holdfast.sources.wrapped import innermost


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
    given = spec.given if isinstance(spec, MarkedSpec) else spec
    given = given.given if isinstance(given, IdentifiedSpec) else given
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
    return spec if before is None else _limited(spec, before, None)


def _limited(spec: SourceSpec, before: int, marker: str | None) -> SourceSpec:
    if isinstance(spec, MarkedSpec):
        return cast("SourceSpec", replace(spec, given=_limited(spec.given, before, spec.marker)))
    if isinstance(spec, IdentifiedSpec):
        return cast("SourceSpec", replace(spec, given=_limited(spec.given, before, marker)))
    assert isinstance(spec, LimitableSpec)
    return spec.up_to(before, marker)


def has_passed(source: Source, positions: SourcePositions) -> bool:
    """Return whether a source that is read up to a time has nothing more for this run behind some positions."""
    inner = innermost(source)
    return isinstance(inner, LimitedSource) and inner.has_passed(positions)
