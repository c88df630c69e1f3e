"""When an epoch begins: at an interval, or immediately until everything available at the start is processed."""

from __future__ import annotations

from dataclasses import dataclass

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
