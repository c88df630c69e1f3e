"""What a run was told that is in force: which sources are paused, how fast they may be, where they end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.positions import Position, Positions, SourcePositions, covers

SOURCES = "*"
"""Stands for all sources of a run, and what ticks besides them."""


def checked_rate(source: str, rate: Any) -> float:
    """Return a limit of a source, in rows a second.

    Raises
    ------
    InvalidPipeline
        If it is not a number above 0.
    """
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate <= 0:
        raise InvalidPipeline(
            f"source {source!r} is to deliver {rate!r} rows a second.",
            why="a rate is a number above 0.",
            do="give one, or none for no limit; to let a source deliver nothing, pause it.",
            participant=source,
        )
    return float(rate)


@dataclass(frozen=True)
class Controls:
    """What is in force.

    Parameters
    ----------
    paused : tuple of str
        Sources that deliver nothing, or :data:`SOURCES`.
    limits : mapping of str to float
        Source -> rows per second, over all shards.
    ends : mapping, optional
        Where each source ends: the run is being drained.
    """

    paused: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    ends: Positions | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in force."""
        return self == Controls()

    def pause(self, sources: Iterable[str]) -> Controls:
        """Return the controls with these paused, or all where none is named."""
        return replace(self, paused=tuple(sorted({*self.paused, *(set(sources) or {SOURCES})})))

    def resume(self, sources: Iterable[str]) -> Controls:
        """Return the controls with these going on, or all where none is named.

        Examples
        --------
        >>> Controls().pause([]).pause(["rides"]).resume(["rides"]).paused
        ('*',)
        >>> Controls().pause([]).pause(["rides"]).resume([]).paused
        ()
        """
        some = set(sources)
        return replace(self, paused=tuple(each for each in self.paused if some and each not in some))

    def limit(self, source: str, rows_per_s: float | None) -> Controls:
        """Return the controls with a source limited, or not any more."""
        others = {name: rate for name, rate in self.limits.items() if name != source}
        return replace(self, limits=others if rows_per_s is None else {**others, source: rows_per_s})

    def end_at(self, ends: Positions | None) -> Controls:
        """Return the controls with sources that end at positions, or that end no more."""
        return replace(self, ends=ends)

    def is_paused(self, source: str) -> bool:
        """Return whether a source is to deliver nothing."""
        return SOURCES in self.paused or source in self.paused

    def end_of(self, source: str, start: SourcePositions, end: SourcePositions) -> SourcePositions:
        """Return where an epoch ends that would end there, if a run that is drained goes no further.

        Notes
        -----
        What a source has promised holds behind all of the rows before ``end``: where it is cut, the promise stays as
        it was.

        Examples
        --------
        >>> told = Controls(ends={"rides": {"a": 7}})
        >>> told.end_of("rides", {"a": 5, "@bound": 1}, {"a": 9, "b": 3, "@bound": 8})
        {'a': 7, '@bound': 1}
        >>> told.end_of("rides", {"a": 5, "@bound": 1}, {"a": 6, "@bound": 8})
        {'a': 6, '@bound': 8}
        """
        if self.ends is None:
            return end
        last = self.ends.get(source, {})
        rows = {segment: at for segment, at in end.items() if not segment.startswith("@")}
        if covers(last, rows):
            return end
        cut = {segment: _at_most(at, last[segment]) for segment, at in rows.items() if segment in last}
        return {**start, **{segment: at for segment, at in cut.items() if not covers(start, {segment: at})}}

    def shared_by(self, shards: int) -> Controls:
        """Return what one of several shards is told: its share of each rate."""
        return replace(self, limits={name: rate / shards for name, rate in self.limits.items()})

    def lines(self) -> Iterator[str]:
        """Say what is in force.

        Examples
        --------
        >>> list(Controls(("rides",), {"trips": 100.0}).lines())
        ['paused: rides', 'limited: trips to 100 rows/s']
        >>> list(Controls((SOURCES,), ends={"trips": {"log": 3}}).lines())
        ['paused: all sources', 'it is being drained']
        """
        yield "paused: " + ("all sources" if SOURCES in self.paused else ", ".join(self.paused) or "none")
        for source, rate in self.limits.items():
            yield f"limited: {source} to {rate:g} rows/s"
        if self.ends is not None:
            yield "it is being drained"

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        ends = None if self.ends is None else {name: dict(of) for name, of in self.ends.items()}
        return {"paused": [*self.paused], "limits": dict(self.limits), "ends": ends}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Controls:
        """Return the controls from :meth:`as_json`.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is none.

        Examples
        --------
        >>> told = Controls(("rides",), {"trips": 10.0}, {"trips": {"log": 3}})
        >>> Controls.from_json(told.as_json()) == told
        True
        """
        paused, limits, ends = value["paused"], value["limits"], value["ends"]
        return Controls(
            tuple(str(each) for each in paused),
            {str(name): float(rate) for name, rate in limits.items()},
            None if ends is None else {str(name): dict(of) for name, of in ends.items()},
        )


def _at_most(at: Position, last: Position) -> Position:
    return min(at, last) if isinstance(at, int) and isinstance(last, int) else last
