"""What each source gives to an epoch of a pipeline with state: rows between positions, and what is said beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.spark_log import plain
from holdfast.plan.levels.packing import Packing
from holdfast.ports import Span
from holdfast.positions import Positions, SourcePositions
from holdfast.spark.evaluation import SourcesHere


@dataclass(frozen=True)
class GivenBySource:
    """What one source gives.

    Parameters
    ----------
    name : str
        The source.
    begin, until : mapping of str to Position
        Between which positions its rows are; equal: none.
    has_controls : bool
        Whether operators are told or called, beside rows.
    ended : tuple of str
        The sources that are told to have ended.
    """

    name: str
    begin: SourcePositions
    until: SourcePositions
    has_controls: bool
    ended: tuple[str, ...] = ()

    def size_bytes(self, sources: SourcesHere) -> int | None:
        """Return the size of its rows, as far as it is known; a source that has none is not asked."""
        if self.begin == self.until:
            return 0
        return sources.source(self.name).size_between(self.begin, self.until)

    def spans(self, sources: SourcesHere, parallelism: int) -> list[Span]:
        """Return its rows in pieces for so many readers; a source that has none is not asked."""
        if self.begin == self.until:
            return []
        return list(sources.source(self.name).spans(self.begin, self.until, parallelism=parallelism))


def given(
    sources: SourcesHere, packings: Mapping[str, Packing], start: Positions, end: Positions
) -> Iterator[GivenBySource]:
    """Yield what each source gives to an epoch; where none has moved, operators that watch the clock are called.

    That is a step on the way to what sinks hold.
    """
    moved = [name for name in end if start.get(name) != end[name]]
    if not moved:
        yield GivenBySource(next(iter(packings)), {}, {}, has_controls=True)
    for name in moved:
        (begin, said_before), (until, said) = map(plain, sources.span(name, start, end))
        ended = (name,) if said.get("has_ended") and not said_before.get("has_ended") else ()
        yield GivenBySource(name, begin, until, bool(packings[name].waking or ended), ended)
