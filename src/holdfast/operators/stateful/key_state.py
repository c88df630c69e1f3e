"""What the function of ``apply`` remembers of one key, and the timers that it sets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.operators.stateful.timers import EVENT, FiredTimer, KeyTimers
from holdfast.state.step import StepTime


class KeyState:
    """What ``fn`` of ``hf.apply`` remembers of one key: named values.

    Parameters
    ----------
    values : dict
        Name -> value; None where nothing was set.
    at : StepTime
        The epoch and the batch time that Spark logged: the only clock there is.
    timers : KeyTimers, optional
        Its timers; None where apply was not given ``timers=``.

    Attributes
    ----------
    fired : FiredTimer, optional
        The timer for which ``fn`` is called; None where it is called for rows.
    """

    __slots__ = ("_bound", "_timers", "_values", "at", "fired")

    def __init__(self, values: dict[str, Any], at: StepTime, timers: KeyTimers | None = None) -> None:
        self._bound: Any = None
        self._values = values
        self._timers = timers
        self.at = at
        self.fired: FiredTimer | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where nothing was set.

        Raises
        ------
        KeyError
            If the state was not declared with this name.
        """
        value = self._values[self._known(name)]
        return default if value is None else value

    def set(self, **values: Any) -> None:
        """Set values: ``state.set(n=3, total=1.5)``.  None sets a value back to nothing.

        Raises
        ------
        KeyError
            If the state was not declared with such a name.
        """
        for name, value in values.items():
            self._values[self._known(name)] = value

    def bound(self, at: Any) -> None:
        """Promise that ``fn`` gives no row of this key below a time any more: downstream operators need not wait.

        The time is one of the declared ``timestamp=``: a datetime, or ticks.  The last call in an epoch counts.
        """
        self._bound = at

    def clear(self) -> None:
        """Forget everything of this key."""
        self._values.update(dict.fromkeys(self._values))

    def timer(self, at: datetime | int, *, clock: str = EVENT) -> None:
        """Ask to be called for this key at a time: once, without rows, and with ``state.fired``.

        Parameters
        ----------
        at : datetime or int
            Event time: when the bound of the key lies above it, so that no row at or before it follows; ticks where
            event time is a BIGINT.  Batch time: in the first later epoch that Spark plans at or after it; a datetime,
            or microseconds of Unix time as in ``state.at.batch_us``.
        clock : str
            ``"event"`` or ``"batch"``.

        Raises
        ------
        ValueError
            If the time is none, ``apply`` was not given this clock, or (event time) it is not later than the timer
            that fires.

        Notes
        -----
        Two timers of one key, clock and time are one.  ``clear`` leaves timers alone.  Once the input has ended, an
        event timer that a firing timer sets is ignored: what fires then is the last.
        """
        self._of_timers().set(at, clock)

    def cancel(self, at: datetime | int, *, clock: str = EVENT) -> None:
        """Remove a timer; one that is not set is no error."""
        self._of_timers().cancel(at, clock)

    def _of_timers(self) -> KeyTimers:
        if self._timers is None:
            raise ValueError('apply was not given timers="event" or timers="batch"')
        return self._timers

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return all(value is None for value in self._values.values())

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise KeyError(f"the state has no {name!r}; it is declared with {', '.join(self._values) or 'nothing'}")
        return name
