"""What the newest rows of sources have otherwise than ``schema=`` says, by a sample, for ``holdfast plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.capabilities import offers
from holdfast.connectors.reading.drift import problem_of
from holdfast.connectors.reading.wrapped import innermost_spec
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.ports import SampledSpec, SourceDrift

_WORDS = {"ignore": "left out", "fail": "a bad row each", "rescue": "rescued", "add": "the run adds it"}


def drifts(pipeline: Graph) -> list[SourceDrift]:
    """Look at a sample of each source that has one; return what differs, and why others have none.  Changes nothing."""
    found = (_drift_of(node.name, innermost_spec(node.source_spec)) for node in pipeline.sources)
    return [each for each in found if each is not None and each.is_any]


def _drift_of(name: str, spec: object) -> SourceDrift | None:
    if not offers(spec, SampledSpec):
        return None
    try:
        return spec.drift(name)
    except HoldfastError as error:
        return SourceDrift(name, problem=problem_of(error, name))


def drift_lines(found: Sequence[SourceDrift]) -> Iterator[str]:
    """Say it to people, with what to do.

    Examples
    --------
    >>> of = SourceDrift("rides", "7.json", 90, members={"tip": 12}, types={"tip": "tip BIGINT"}, absent=("km",))
    >>> for line in drift_lines([of]): print(line)
    ~ source rides: 12 of 90 rows of 7.json have the member 'tip', which is no column (left out); add: tip BIGINT
    ~ source rides: no row of 90 of 7.json has the column 'km'; correct its name, or leave it out of schema=
    """
    for each in found:
        source, of = f"source {each.source}", f"{each.rows:,} rows of {each.place}"
        if each.problem:
            yield f"  {source}: {'the sample is not whole' if each.rows else 'no sample of its rows'}: {each.problem}"
        for name, count in each.members.items():
            becomes = _WORDS[each.on_new]
            declared = f"add: {each.types[name]}" if name in each.types else "correct the name, or add it to its STRUCT"
            yield f"~ {source}: {count:,} of {of} have the member {name!r}, which is no column ({becomes}); {declared}"
        for name in each.absent:
            no = f"no row of {each.rows:,} of {each.place}"
            yield f"~ {source}: {no} has the column {name!r}; correct its name, or leave it out of schema="
        for why, count in each.bad.items():
            becomes = "would be rejected" if each.rejects else "would stop the run"
            yield f"! {source}: {count:,} of {of} {becomes}: {why}; correct schema=, or who writes them"
