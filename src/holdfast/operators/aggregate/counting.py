"""The rows that count for an aggregate with a condition: taken once for each, and each of their columns once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.parts import RowGroups
from holdfast.state.keys import Ints, one

_STATE_COLUMN = re.compile(
    r"(?P<name>.+?)(?:__(?P<condition>where_[0-9a-f]{8}))?__"
    r"(?:count|upper|lower|sum|squares|min|max|value|order|time|is_set|histogram|registers_\d+)"
)
"""A column of the windows table: :meth:`holdfast.operators.aggregate.parts.Partial.under`."""


@dataclass(frozen=True)
class CountingRows:
    """The rows for which a condition is true.

    Parameters
    ----------
    rows : pa.Table
        All rows.
    which : ndarray of int64, optional
        Which of them count; None: all do.
    groups : RowGroups
        The group of each that counts.
    """

    rows: pa.Table
    which: Ints | None
    groups: RowGroups
    _taken: dict[str, pa.Array] = field(default_factory=dict)

    def values(self, columns: Sequence[str]) -> pa.Array | None:
        """Return a column of the rows that count, or several as a struct; None of none."""
        if len(columns) > 1:
            return pa.StructArray.from_arrays([self._values(column) for column in columns], names=[*columns])
        return self._values(columns[0]) if columns else None

    def _values(self, column: str) -> pa.Array:
        if column not in self._taken:
            every = one(self.rows.column(column))
            self._taken[column] = every if self.which is None else every.take(pa.array(self.which))
        return self._taken[column]


def counting_rows(rows: pa.Table, condition: str | None, groups: RowGroups) -> CountingRows:
    """Return the rows for which a column is true, or all.

    Parameters
    ----------
    rows : pa.Table
        The rows.
    condition : str, optional
        The Boolean column.
    groups : RowGroups
        The group of each row.
    """
    if condition is None:
        return CountingRows(rows, None, groups)
    which = np.flatnonzero(flags(rows.column(condition)))
    retracted = None if groups.retracted is None else groups.retracted[which]
    return CountingRows(rows, which, RowGroups(groups.groups[which], groups.size, groups.ticks[which], retracted))


def flags(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return a Boolean column; null is false.

    Examples
    --------
    >>> flags(pa.chunked_array([[True, None, False]])).tolist()
    [True, False, False]
    """
    return np.asarray(one(column).fill_null(False))


def earlier_conditions(
    columns: Iterable[str], aggregates: Mapping[str, Aggregate], wanted: Collection[str]
) -> list[str]:
    """Return the state columns of aggregates that are still there, with another condition or with none.

    Parameters
    ----------
    columns : iterable of str
        Those of the state.
    aggregates : mapping of str to Aggregate
        The present ones.
    wanted : collection of str
        The state columns that these have.
    """
    found = []
    for column in columns:
        was = _STATE_COLUMN.fullmatch(column)
        if was is None or column in wanted or (one := aggregates.get(was["name"])) is None:
            continue
        if was["condition"] != one.condition:
            found.append(column)
    return found
