"""Parts of a source: its declaration narrowed to some segments, whatever is wrapped around it.

Invariant: each segment is in one part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from holdfast.capabilities import offers
from holdfast.connectors.reading.wrapped import WrappedSpec, innermost_spec
from holdfast.ports import Divisible, SourceSpec
from holdfast.positions import SegmentSet


def divisible(spec: SourceSpec) -> Divisible | None:
    """Return the declaration beneath its wrappers where it can be divided, else None."""
    found = innermost_spec(spec)
    return found if offers(found, Divisible) else None


def is_divided(spec: SourceSpec) -> bool:
    """Return whether a source has a position for each segment that can be read alone: nothing is left to be divided."""
    found = divisible(spec)
    again: object = None if found is None else found.in_parts(found.parts or 1)
    return found is not None and again == found


def in_parts(spec: SourceSpec, parts: int) -> SourceSpec:
    """Return a declaration with a position for each segment; itself where it cannot be divided."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=in_parts(spec.given, parts)))
    return spec.in_parts(parts) if offers(spec, Divisible) else spec


def part_of(spec: SourceSpec, segments: SegmentSet) -> SourceSpec:
    """Return the declaration of the part that reads some segments."""
    if isinstance(spec, WrappedSpec):
        return cast("SourceSpec", replace(spec, given=part_of(spec.given, segments)))
    assert offers(spec, Divisible)
    return spec.of_segments(segments)
