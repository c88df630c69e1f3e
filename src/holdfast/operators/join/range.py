"""The range of a left row: the times at which a row of right may be its partner.

Its limits are distances from the row's own time, columns of the row, or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import keyed
from holdfast.state.timeline import CLOSED, UNBOUNDED, Bools, Ints, shifted

NEWEST = CLOSED - 1
"""The last time that a row can have: the end of a stream is above it."""


@dataclass(frozen=True)
class PairRange:
    """Which times of right a left row's partners have.

    Parameters
    ----------
    low, high : int, optional
        Ticks: right's time minus left's time lies between them, both included; None: no limit.
    begin, end : str, optional
        Columns of left: right's time, besides, lies between them, both included.
    """

    low: int | None
    high: int | None
    begin: str | None = None
    end: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of left that it reads."""
        return [name for name in dict.fromkeys((self.begin, self.end)) if name is not None]

    def limits(self, rows: pa.Table, times: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last time that a partner of each left row may have.

        Parameters
        ----------
        rows : pa.Table
            Left rows; of them :attr:`columns`.
        times : array of int64
            Their times.

        Returns
        -------
        (array of int64, array of int64)
            Where there is no limit, the lowest and the highest time.  Of a row whose range contains nothing the first
            is above every time, and the last is the row's own.

        Examples
        --------
        >>> rows = pa.table({"ends": [30, None, 3]})
        >>> [each.tolist() for each in PairRange(0, None, end="ends").limits(rows, np.array([10, 20, 30]))][1]
        [30, 20, 30]
        """
        first = _at_distance(times, self.low, UNBOUNDED)
        last = _at_distance(times, self.high, NEWEST)
        if not self.columns:
            return first, last
        nothing = np.zeros(len(times), bool)
        if self.begin is not None:
            given, is_null = _limit_ticks(rows, self.begin)
            first, nothing = np.maximum(first, given), nothing | is_null
        if self.end is not None:
            given, is_null = _limit_ticks(rows, self.end)
            last, nothing = np.minimum(last, given), nothing | is_null
        nothing |= first > last
        return np.where(nothing, CLOSED, first), np.where(nothing, times, np.minimum(last, NEWEST))

    def last_of_left(self, times: Ints) -> Ints:
        """Return the last time of a left row that may have rows of right at these times as partners."""
        return _at_distance(times, None if self.low is None else -self.low, NEWEST)


def _at_distance(times: Ints, by: int | None, otherwise: int) -> Ints:
    return np.broadcast_to(np.int64(otherwise), len(times)) if by is None else shifted(times, by)


def _limit_ticks(rows: pa.Table, name: str) -> tuple[Ints, Bools]:
    column = rows.column(name)
    if not column.null_count:
        return keyed.ticks(column), np.zeros(len(column), bool)
    return keyed.ticks(pc.fill_null(column.cast(pa.int64()), 0)), np.asarray(pc.is_null(column)).astype(bool)
