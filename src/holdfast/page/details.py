"""What is known of one epoch: what happened to it, and what it read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceSpan:
    """What an epoch read of one source.

    Parameters
    ----------
    source : str
        Its name.
    start, end : mapping of str to str
        Segment -> the position where the epoch begins, and where it ends; only those that moved.
    places : tuple of str
        Files, or what else its rows are from, where the source can tell; :data:`PLACES_MAX` at most.
    place_count : int
        How many there are.
    """

    source: str
    start: Mapping[str, str]
    end: Mapping[str, str]
    places: tuple[str, ...] = ()
    place_count: int = 0


PLACES_MAX = 100


@dataclass(frozen=True)
class StoryLine:
    """One transition of an epoch: when, from which state to which by what, of which sink, and details in words."""

    at_us: int
    before: str
    event: str
    after: str
    participant: str = ""
    detail: str = ""


@dataclass(frozen=True)
class EpochDetails:
    """What is known of one epoch.

    Parameters
    ----------
    story : tuple of StoryLine
        What happened, the oldest first; empty where no live run has it.
    spans : tuple of SourceSpan
        What it read.
    planned_us : int, optional
        Its batch time.
    """

    story: tuple[StoryLine, ...] = ()
    spans: tuple[SourceSpan, ...] = ()
    planned_us: int | None = None
