"""Pairs of rows of two tables: one key, and the time of right in the range of the left row.  No loop goes over rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import joins, tables
from holdfast.state.rows import rows_at
from holdfast.state.timeline import Ints

Limits = Callable[[Ints], tuple[Ints, Ints]]
_FEW = 8
"""With so many times fewer rows on one side, those of the other are first sought by their keys."""


def pairs(left: pa.Table, limits: Limits, right: pa.Table, right_times: Ints) -> tuple[Ints, Ints]:
    """Return the pairs of two tables.

    Parameters
    ----------
    left, right : pa.Table
        Key columns alone, of the same names and types; a row with a null in one of them is in no pair.
    limits : callable
        Returns for some left rows the first and the last time of a partner.
    right_times : array of int64
        The times of the right rows.

    Returns
    -------
    (array of int64, array of int64)
        Rows of the left and of the right table, as long as there are pairs; in no particular order.

    Examples
    --------
    >>> orders, payments = pa.table({"k": ["a", "b", None]}), pa.table({"k": ["b", "a", "a", None]})
    >>> ordered = np.array([10, 20, 30])
    >>> found = pairs(orders, lambda rows: (ordered[rows], ordered[rows] + 5), payments, np.array([21, 14, 99, 30]))
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
    first, last = limits(ours)
    left, right, there = _rows(left, ours), _rows(right, theirs), right_times[theirs]
    found = _once(left, first, last, right, there)
    if found is None:
        found = _often(left, first, last, right, there)
    return ours[found[0]], theirs[found[1]]


def _none() -> tuple[Ints, Ints]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _with_key(table: pa.Table) -> Ints:
    """Return the rows without a null."""
    with_nulls = [column for column in table.columns if column.null_count]
    if not with_nulls:
        return np.arange(table.num_rows)
    return np.flatnonzero(np.logical_and.reduce([np.asarray(pc.is_valid(column)) for column in with_nulls]))


def _rows(table: pa.Table, rows: Ints) -> pa.Table:
    return table if len(rows) == table.num_rows else rows_at(table, rows)


def _once(left: pa.Table, first: Ints, last: Ints, right: pa.Table, there: Ints) -> tuple[Ints, Ints] | None:
    """Return the pairs where each right key occurs once: no sorting.  None where one occurs more often."""
    names = right.column_names
    if len(names) == 1 and pc.count_distinct(right.column(0)).as_py() < right.num_rows:
        return None
    if len(names) > 1 and int(joins.key_codes(right, names).max()) + 1 < right.num_rows:
        return None
    at = joins.index_in(left, right, names)
    mine = np.flatnonzero(at >= 0)
    at = at[mine]
    near = (there[at] >= first[mine]) & (there[at] <= last[mine])
    return (mine, at) if near.all() else (mine[near], at[near])


def _often(left: pa.Table, first: Ints, last: Ints, right: pa.Table, there: Ints) -> tuple[Ints, Ints]:
    """Return the pairs where keys occur several times: right rows by key and time, and a span of them for each left."""
    codes = joins.key_codes(tables.united([right, left]), left.column_names)
    of_right, of_left = codes[: len(there)], codes[len(there) :]
    ranks = np.unique(there)
    width = len(ranks) + 1
    line = of_right * width + np.searchsorted(ranks, there)
    order = np.argsort(line, kind="stable")
    line = line[order]
    start = np.searchsorted(line, of_left * width + np.searchsorted(ranks, first, side="left"))
    # One below the first rank that is too high; of a range that ends before all of them, the end of the key before.
    end = np.searchsorted(line, of_left * width + np.searchsorted(ranks, last, side="right"))
    counts = np.maximum(end - start, 0)
    mine = np.repeat(np.arange(len(of_left)), counts)
    within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    return mine, order[np.repeat(start, counts) + within]
