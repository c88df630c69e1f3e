"""State tables that get columns: existing rows keep their values, and get a neutral one in the new columns.

A step whose tables may grow is :class:`holdfast.state.step.Growable`; what is here does it for those of any step.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.state.step import StateTable

Fill = Callable[[pa.Field, int], "pa.Array | None"]
"""A new column and a number of rows -> its values; None where that is not known."""


def grown(known: pa.Table, table: StateTable, fill: Fill) -> pa.Table | None:
    """Return a state table under a schema that has more columns.

    Parameters
    ----------
    known : pa.Table
        As it was.
    table : StateTable
        The new one.
    fill : callable
        Returns the new columns.

    Returns
    -------
    pa.Table, optional
        None where columns are gone or of another type, a key column is new, or ``fill`` does not know.

    Examples
    --------
    >>> table = StateTable(pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
    >>> grown(pa.table({"k": ["a"]}), table, nulls).to_pylist()
    [{'k': 'a', 'n': None}]
    >>> grown(pa.table({"k": ["a"], "m": [1]}), table, nulls) is None
    True
    """
    there = {field.name: field.type for field in known.schema}
    wanted = {field.name: field.type for field in table.schema}
    if any(wanted.get(name) != kind for name, kind in there.items()) or not set(table.key) <= there.keys():
        return None
    columns = []
    for field in table.schema:
        column = known.column(field.name) if field.name in there else fill(field, known.num_rows)
        if column is None:
            return None
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema)


def nulls(field: pa.Field, rows: int) -> pa.Array | None:
    """Return this many nulls, if the column may hold them."""
    return pa.nulls(rows, field.type) if field.nullable else None
