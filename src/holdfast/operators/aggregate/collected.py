"""Values that the state keeps one by one: those of ``collect`` and ``distinct_count``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregate.counting import flags
from holdfast.state import joins, tables
from holdfast.state.keys import Ints, coded, numbers, one
from holdfast.state.step import Change, StateTable

START = "window_start"


@dataclass(frozen=True)
class CollectedValues:
    """How one aggregate keeps values.

    Parameters
    ----------
    name : str
        The aggregate's name.
    column : str
        Whose values.
    type : pa.DataType
        Of the values.
    is_distinct : bool
        Whether each value is kept once and only counted.
    condition : str, optional
        The Boolean column that says which rows count.
    """

    name: str
    column: str
    type: pa.DataType
    is_distinct: bool
    condition: str | None = None

    @property
    def table(self) -> str:
        """Name of the state table."""
        return f"{self.name}__values" if self.condition is None else f"{self.name}__{self.condition}__values"

    @property
    def result(self) -> pa.DataType:
        """Type of the aggregate."""
        return pa.int64() if self.is_distinct else pa.list_(self.type)

    def fields(self) -> list[pa.Field]:
        """Return the columns of the state table after key and start; all but a collected value identify a row."""
        value = pa.field("value", self.type)
        if self.is_distinct:
            return [value]
        return [pa.field(name, pa.int64()) for name in ("time", "epoch", "place")] + [value]

    def fresh(self, rows: pa.Table) -> tuple[Ints, pa.Array]:
        """Return which of some rows count, and their values."""
        column = one(rows.column(self.column))
        counts = np.asarray(column.is_valid())
        if self.condition is not None:
            counts &= flags(rows.column(self.condition))
        counting = np.flatnonzero(counts)
        return counting, column.take(pa.array(counting))


def listed_values(lists: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Return the values of a column of lists, and the row of each."""
    column = one(lists)
    return column.flatten(), np.asarray(pc.list_parent_indices(column)).astype(np.int64)


def moved_rows(known: pa.Table, windows: Ints, starts: Ints) -> npt.NDArray[np.bool_]:
    """Return of which known rows the window has another start than they have."""
    moved: npt.NDArray[np.bool_] = numbers(known.column(START)) != starts[windows[: known.num_rows]]
    return moved


def coded_values(known: pa.Table, fresh: pa.Table, windows: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values of each window, as :func:`coded` does.

    Parameters
    ----------
    known, fresh : pa.Table
        Rows of the state table, and new values.
    windows : ndarray of int64
        Window of each known and then of each fresh row.

    Notes
    -----
    The state has a value of a window once, so only new ones are compared with each other and looked for in it; but for
    windows that were several before, as sessions are.
    """
    count, starts = known.num_rows, numbers(known.column(START))
    mine = pa.table({"window": windows[:count], "value": known.column("value")})
    new = pa.table({"window": windows[count:], "value": fresh.column("value")})
    start_of = np.zeros(int(windows.max(initial=-1)) + 1, np.int64)
    start_of[windows[:count]] = starts
    if (start_of[windows[:count]] != starts).any():
        return coded(tables.united([mine, new]))
    codes, first = coded(new)
    same = joins.index_in(mine, new.take(pa.array(first)), ["window", "value"])
    there = np.flatnonzero(same >= 0)
    number = np.full(len(first), -1)
    number[same[there]] = there
    added = np.flatnonzero(number < 0)
    number[added] = count + np.arange(len(added))
    every = np.arange(count)
    return np.concatenate([every, number[codes]]), np.concatenate([every, count + first[added]])


def change_of(
    known: pa.Table, gone: npt.NDArray[np.bool_], owners: Ints, starts: Ints, keys: Sequence[pa.Array],
    values: Sequence[pa.Array], table: StateTable,
) -> Change:  # fmt: skip
    """Return a change of a table of what windows keep.

    Parameters
    ----------
    known : pa.Table
        Its rows.
    gone : ndarray of bool
        Which of them are removed.
    owners : ndarray of int64
        The window of each row that is put.
    starts : ndarray of int64
        Start of each window.
    keys : sequence of pa.Array
        Key columns of each window.
    values : sequence of pa.Array
        The other columns of the rows that are put.
    table : StateTable
        The table.
    """
    picked = pa.array(owners)
    arrays = [*(array.take(picked) for array in keys), pa.array(starts[owners]), *values]
    upserts = pa.Table.from_arrays(arrays, schema=table.schema)
    return Change(upserts, known.select(table.key).filter(pa.array(gone)))


def followed(
    kept: CollectedValues,
    known: pa.Table,
    fresh: pa.Table,
    windows: Ints,
    starts: Ints,
    closing: npt.NDArray[np.bool_],
    keys: Sequence[pa.Array],
    table: StateTable,
) -> tuple[pa.Array, Change]:
    """Return the aggregate of each window, and what changes in the table of values.

    Parameters
    ----------
    kept : CollectedValues
        The aggregate.
    known : pa.Table
        Rows of the state table, of these windows.
    fresh : pa.Table
        The new values, with the columns of :meth:`CollectedValues.fields`.
    windows : ndarray of int64
        Window of each known and then of each fresh row.
    starts : ndarray of int64
        Start of each window.
    closing : ndarray of bool
        For each window whether it is final.
    keys : sequence of pa.Array
        Key columns of each window.
    table : StateTable
        The table of values.
    """
    size = len(starts)
    names = [field.name for field in kept.fields()]
    entries = tables.united([known.select(names), fresh.select(names)]).combine_chunks()
    rows = np.arange(entries.num_rows)
    if kept.is_distinct and len(rows):
        _, rows = coded_values(known, fresh, windows)
    owners = windows[rows]
    if kept.is_distinct:
        result = pa.array(np.bincount(owners, minlength=size).astype(np.int64))
    else:
        order = np.lexsort([*(np.asarray(entries.column(name)) for name in ("place", "epoch", "time")), owners])
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=size))]).astype(np.int32)
        values = entries.column("value").combine_chunks()
        values = values.chunk(0) if isinstance(values, pa.ChunkedArray) and values.num_chunks else values
        values = values if isinstance(values, pa.Array) else pa.array([], kept.type)
        result = pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(order)))

    moved = moved_rows(known, windows, starts)
    gone = closing[windows[: len(moved)]] | moved
    is_put = np.concatenate([moved, np.ones(fresh.num_rows, np.bool_)])
    stays = rows[~closing[owners] & is_put[rows]]
    put = [entries.column(name).take(pa.array(stays)) for name in names]
    return result, change_of(known, gone, windows[stays], starts, keys, put, table)
