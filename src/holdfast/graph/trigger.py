"""When an epoch begins: at an interval, or immediately until everything available at the start is processed.

A sink's pace: how long, or for how many epochs, it lets rows wait that the other sinks already have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidPipeline
from holdfast.types import units
from holdfast.types.units import duration_us


@dataclass(frozen=True)
class Trigger:
    """When an epoch begins.

    Parameters
    ----------
    interval_us : int, optional
        Shortest time between the beginnings of two epochs, microseconds; None drains what is there now and stops.
    """

    interval_us: int | None

    @property
    def is_bounded(self) -> bool:
        """Whether the run ends by itself, once everything available at its start is published."""
        return self.interval_us is None

    def __str__(self) -> str:
        return "available_now()" if self.interval_us is None else f'every("{self.interval_us / 1000:g} ms")'


def every(interval: str) -> Trigger:
    """Begin an epoch at most once per interval, without end; an interval without new rows has no epoch.

    Parameters
    ----------
    interval : str
        A number and a unit, for instance ``"100 ms"``.  ``"0 s"``: as soon as the last epoch ends.

    Examples
    --------
    >>> every("100 ms").interval_us
    100000
    """
    return Trigger(duration_us(interval, argument="interval"))


def available_now() -> Trigger:
    """Process everything that is available now, in as many epochs as the limits of the sources require, and stop.

    Examples
    --------
    >>> available_now().is_bounded
    True
    """
    return Trigger(None)


@dataclass(frozen=True)
class SinkPace:
    """How seldom a sink commits.

    Parameters
    ----------
    every_us : int, optional
        When the oldest epoch that it lacks has waited for so long, by the clock: microseconds.
    every_epochs : int, optional
        When it lacks so many epochs.  One of the two is given.
    key : tuple of str
        Columns of which the last row alone counts: of what waits, earlier rows of a key are not written.
    """

    every_us: int | None = None
    every_epochs: int | None = None
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.every_epochs is not None:
            return f"{self.every_epochs} epochs"
        amount, unit = self.every_us or 0, "us"
        for size, name in ((1_000, "ms"), (1_000, "s"), (60, "min"), (60, "h")):
            if amount % size:
                break
            amount, unit = amount // size, name
        return f"{amount} {unit}"


def pace(commit_every: str | int | None, *, node: str, key: Sequence[str] = ()) -> SinkPace | None:
    """Return the pace that a user has declared; None: the sink commits with the others.

    Parameters
    ----------
    commit_every : str or int, optional
        A duration of clock time, or a number of epochs.
    node : str
        The function that the user called, for the error.
    key : sequence of str
        The key of an upsert.

    Raises
    ------
    InvalidPipeline
        If it is neither, or not positive.

    Examples
    --------
    >>> str(pace("90 s", node="write.sqlite")), str(pace("2 min", node="write.sqlite"))
    ('90 s', '2 min')
    >>> pace(10, node="write.sqlite").every_epochs
    10
    """
    if commit_every is None:
        return None
    is_count = isinstance(commit_every, int) and not isinstance(commit_every, bool)
    if isinstance(commit_every, str):
        amount = units.duration_us(commit_every, argument="commit_every")
    else:
        amount = commit_every if is_count else 0
    if amount < 1:
        raise InvalidPipeline(
            f"{node}: commit_every={commit_every!r} is no pace.",
            why="it says for how long, or for how many epochs, the sink lets rows wait.",
            do='write a duration: commit_every="30 s"; or a number of epochs: commit_every=10; or leave it out.',
        )
    return SinkPace(None, amount, tuple(key)) if is_count else SinkPace(amount, None, tuple(key))


def freshness_us(text: str | None) -> int | None:
    """Return how old the oldest row may be that a sink lacks, microseconds; None where nothing is declared.

    Raises
    ------
    InvalidPipeline
        If it is no duration above 0.
    """
    found = None if text is None else units.duration_us(text, argument="freshness")
    if found is not None and found <= 0:
        raise InvalidPipeline(
            f"freshness={text!r} is no time that a row may have.",
            why="every row is older than that when a sink gets it.",
            do='write how old rows may become before a person should know: freshness="5 min"; or leave it out.',
        )
    return found
