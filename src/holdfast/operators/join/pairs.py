"""Pairs of rows of two tables: one key, and times within a range of each other.  Nothing here loops over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import joins, tables
from holdfast.state.timeline import Bools, Ints, shifted

_FEW = 8
"""With so many times fewer rows on one side, those of the other are first sought by their keys."""


def pairs(
    left: pa.Table, left_times: Ints, right: pa.Table, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints]:
    """Return the pairs of two tables.

    Parameters
    ----------
    left, right : pa.Table
        Key columns alone, of the same names and types; a row with a null in one of them is in no pair.
    left_times, right_times : array of int64
        The times of the rows.
    low, high : int
        A pair is one if ``low <= right's time - left's time <= high``.

    Returns
    -------
    (array of int64, array of int64)
        Rows of the left and of the right table, as long as there are pairs; in no particular order.

    Examples
    --------
    >>> orders, payments = pa.table({"k": ["a", "b", None]}), pa.table({"k": ["b", "a", "a", None]})
    >>> found = pairs(orders, np.array([10, 20, 30]), payments, np.array([21, 14, 99, 30]), 0, 5)
    >>> [rows.tolist() for rows in found]
    [[0, 1], [1, 0]]
    """
    ours, theirs = _with_key(left), _with_key(right)
    if not len(ours) or not len(theirs):
        return _none()
    if len(ours) * _FEW < len(theirs):
        theirs = theirs[joins.members(_rows(right, theirs), _rows(left, ours), left.column_names)]
    elif len(theirs) * _FEW < len(ours):
        ours = ours[joins.members(_rows(left, ours), _rows(right, theirs), left.column_names)]
    if not len(ours) or not len(theirs):
        return _none()
    found = _once(left, ours, left_times, right, theirs, right_times, low, high)
    if found is None:
        found = _often(left, ours, left_times, right, theirs, right_times, low, high)
    return ours[found[0]], theirs[found[1]]


def has_partner(left: pa.Table, left_times: Ints, right: pa.Table, right_times: Ints, low: int, high: int) -> Bools:
    """Return for each left row whether there is a right one; the parameters are those of :func:`pairs`."""
    found = np.zeros(left.num_rows, bool)
    found[pairs(left, left_times, right, right_times, low, high)[0]] = True
    return found


def _none() -> tuple[Ints, Ints]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _with_key(table: pa.Table) -> Ints:
    """Return the rows without a null."""
    valid = np.ones(table.num_rows, bool)
    for column in table.columns:
        if column.null_count:
            valid &= np.asarray(pc.is_valid(column))
    return np.flatnonzero(valid)


def _rows(table: pa.Table, rows: Ints) -> pa.Table:
    return table if len(rows) == table.num_rows else table.take(pa.array(rows))


def _once(
    left: pa.Table, ours: Ints, left_times: Ints, right: pa.Table, theirs: Ints, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints] | None:
    """Return the pairs where each right key occurs once: no sorting.  None where one occurs more often."""
    keys, names = _rows(right, theirs), right.column_names
    if len(names) == 1 and pc.count_distinct(keys.column(0)).as_py() < keys.num_rows:
        return None
    if len(names) > 1 and int(joins.key_codes(keys, names).max()) + 1 < keys.num_rows:
        return None
    at = joins.index_in(_rows(left, ours), keys, names)
    mine = np.flatnonzero(at >= 0)
    at = at[mine]
    times = left_times[ours[mine]]
    there = right_times[theirs[at]]
    near = (there >= shifted(times, low)) & (there <= shifted(times, high))
    return (mine, at) if near.all() else (mine[near], at[near])


def _often(
    left: pa.Table, ours: Ints, left_times: Ints, right: pa.Table, theirs: Ints, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints]:
    """Return the pairs where keys occur several times: right rows by key and time, and a span of them for each left."""
    names = left.column_names
    both = tables.united([_rows(right, theirs), _rows(left, ours)])
    codes = joins.key_codes(both, names)
    of_right, of_left = codes[: len(theirs)], codes[len(theirs) :]
    there, times = right_times[theirs], left_times[ours]
    ranks = np.unique(there)
    width = len(ranks) + 1
    line = of_right * width + np.searchsorted(ranks, there)
    order = np.argsort(line, kind="stable")
    line = line[order]
    first = np.searchsorted(line, of_left * width + np.searchsorted(ranks, shifted(times, low), side="left"))
    # One below the first rank that is too high; of a range that ends before all of them, the end of the key before.
    end = np.searchsorted(line, of_left * width + np.searchsorted(ranks, shifted(times, high), side="right"))
    counts = np.maximum(end - first, 0)
    mine = np.repeat(np.arange(len(ours)), counts)
    within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    return mine, order[np.repeat(first, counts) + within]
