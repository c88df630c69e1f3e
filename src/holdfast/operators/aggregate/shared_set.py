"""The set of values that distinct counts of one column with conditions share: a row each, a flag for each count."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.operators.aggregate.collected import change_of, coded_values, moved_rows
from holdfast.operators.aggregate.counting import flags
from holdfast.state import growth, tables
from holdfast.state.keys import Ints
from holdfast.state.step import Change, StateTable

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def table_name(column: str) -> str:
    """Return what the table of a column's values is called after: the column, or a digest of one with an odd name."""
    digest = hashlib.sha256(column.encode()).hexdigest()[:8]
    return column if _PLAIN.fullmatch(column) else f"column_{digest}"


@dataclass(frozen=True)
class SharedSet:
    """The distinct counts of one column that have conditions.

    Parameters
    ----------
    column : str
        Whose values.
    type : pa.DataType
        Of the values.
    conditions : mapping of str to str
        Aggregate -> the Boolean column of its condition.
    """

    column: str
    type: pa.DataType
    conditions: Mapping[str, str]

    @property
    def table(self) -> str:
        """Name of the state table."""
        return f"{table_name(self.column)}__distinct"

    @property
    def flags(self) -> dict[str, str]:
        """Aggregate -> the column of the state table that says whether it counts a value."""
        return {name: f"{name}__{condition}" for name, condition in self.conditions.items()}

    def fields(self) -> list[pa.Field]:
        """Return the columns of the state table after key and start; the value identifies a row."""
        return [pa.field("value", self.type), *(pa.field(name, pa.bool_()) for name in self.flags.values())]

    def results(self) -> dict[str, pa.DataType]:
        """Return the type of each aggregate."""
        return dict.fromkeys(self.conditions, pa.int64())

    def fresh(self, values: pa.Array, rows: pa.Table) -> tuple[Ints, pa.Table]:
        """Return the rows that count for any of the aggregates, and value and flags of all rows."""
        met = {flag: flags(rows.column(self.conditions[name])) for name, flag in self.flags.items()}
        counts = np.asarray(values.is_valid()) & np.logical_or.reduce([*met.values()])
        return np.flatnonzero(counts), pa.table({"value": values, **met})

    def follow(
        self, known: pa.Table, fresh: pa.Table, windows: Ints, starts: Ints, closing: npt.NDArray[np.bool_],
        keys: Sequence[pa.Array], table: StateTable,
    ) -> tuple[dict[str, pa.Array], Change]:  # fmt: skip
        """Return each aggregate of each window, and what changes in the table of values.

        Parameters
        ----------
        known : pa.Table
            Rows of the state table, of these windows.
        fresh : pa.Table
            The new values and their flags.
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
        size, count = len(starts), known.num_rows
        names = [field.name for field in self.fields()]
        entries = tables.united([known.select(names), fresh.select(names)]).combine_chunks()
        codes, first = coded_values(known, fresh, windows)
        owners = windows[first]
        moved = moved_rows(known, windows, starts)
        differs = np.concatenate([moved, np.ones(fresh.num_rows, np.bool_)])[first]
        results: dict[str, pa.Array] = {}
        upserts: list[pa.Array] = []
        for name, flag in self.flags.items():
            given = flags(entries.column(flag))
            met = np.zeros(len(first), np.bool_)
            met[codes[given]] = True
            differs = differs | (met != given[first])
            results[name] = pa.array(np.bincount(owners[met], minlength=size).astype(np.int64))
            upserts.append(pa.array(met))
        gone = closing[windows[:count]] | moved
        stays = np.flatnonzero(~closing[owners] & differs)
        where = pa.array(stays)
        put = [entries.column("value").take(pa.array(first[stays])), *(array.take(where) for array in upserts)]
        return results, change_of(known, gone, owners[stays], starts, keys, put, table)

    def grow(self, known: pa.Table | None, table: StateTable, aggregates: Collection[str]) -> pa.Table | None:
        """Return the table with flags for other counts: false for all values; None where that is impossible.

        Parameters
        ----------
        known : pa.Table, optional
            As it was.
        table : StateTable
            The new one.
        aggregates : collection of str
            Those that there are: flags of an earlier condition of theirs are dropped.
        """
        if known is None:
            return table.schema.empty_table()
        past = [
            column
            for column in known.column_names
            if column not in table.schema.names and column.rpartition("__where_")[0] in aggregates
        ]
        return growth.grown(known.drop_columns(past), table, lambda field, rows: pa.array(np.zeros(rows, np.bool_)))


def shared_sets(counts: Sequence[tuple[str, str, pa.DataType, str]]) -> list[SharedSet]:
    """Return the sets of some distinct counts: one for each column.

    Parameters
    ----------
    counts : sequence of (str, str, pa.DataType, str)
        Aggregate, column, its type, and the column of the condition.
    """
    conditions: dict[str, dict[str, str]] = {}
    types: dict[str, pa.DataType] = {}
    for name, column, kind, condition in counts:
        conditions.setdefault(column, {})[name] = condition
        types[column] = kind
    return [SharedSet(column, types[column], of) for column, of in conditions.items()]
