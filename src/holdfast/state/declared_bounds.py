"""Declared bounds of an input, for operators whose rows promise nothing by themselves: which rows are late.

A bound of a key, and one for all keys, holds from its place in the input on.  Both stay in the state table ``bounds``;
the row for all keys has null key columns.  A bound that a higher one for all keys has overtaken is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state import keyed, tables
from holdfast.state.input_bounds import reported
from holdfast.state.keyed import Ticks
from holdfast.state.keys import coded, found, numbers
from holdfast.state.step import ALL_KEYS, BOUND, UNBOUNDED, Arrivals, Change, StateTable
from holdfast.state.timeline import Promise

WHY = "that was declared before"
"""What the bound of a late row follows from."""


@dataclass(frozen=True)
class DeclaredLimits:
    """What the declared bounds say about an epoch's rows.

    Parameters
    ----------
    of_rows : numpy array of int64
        For each row the bound at its arrival; a row below it is late.
    everywhere : int
        The bound for all keys after the epoch.
    change : Change, optional
        How the table ``bounds`` changes.
    keys : pa.Table, optional
        The keys that rows or bound rows are of; None where nothing was looked at.
    of_keys : numpy array of int64, optional
        The bound of each of these keys after the epoch.
    """

    of_rows: Ticks
    everywhere: int
    change: Change | None
    keys: pa.Table | None = None
    of_keys: Ticks | None = None


def declared(key: pa.Schema) -> StateTable:
    """Return the state table ``bounds`` of an operator with this key."""
    fields = [field.with_nullable(True) for field in key]
    schema = pa.schema([*fields, pa.field(ALL_KEYS, pa.bool_()), pa.field(BOUND, pa.int64())])
    return StateTable(schema, (*key.names, ALL_KEYS))


def limits(
    table: pa.Table,
    given: Arrivals,
    key: pa.Schema,
    time: str,
    needless: int = UNBOUNDED,
    promise: Promise | None = None,
) -> DeclaredLimits:
    """Return what the declared bounds say about an epoch's rows.

    Parameters
    ----------
    table : pa.Table
        State.
    given : Arrivals
        Rows and bound rows of the input; no row without a key or a timestamp.
    key : pa.Schema
        Key columns; one or more.
    time : str
        Timestamp column.
    needless : int
        Bounds of keys up to this need not be kept: something else holds all keys to it.
    promise : Promise, optional
        What a key's rows say about those to come; None: nothing.
    """
    if not table.num_rows and not given.bounds.num_rows and promise is None:
        return DeclaredLimits(np.full(given.rows.num_rows, UNBOUNDED, np.int64), UNBOUNDED, None)
    names = key.names
    everywhere = pc.max(table.column(BOUND).filter(table.column(ALL_KEYS))).as_py()
    everywhere = UNBOUNDED if everywhere is None else int(everywhere)
    fields = pa.schema([field.with_nullable(True) for field in key])
    of_keys = given.bounds.filter(pc.invert(given.bounds.column(ALL_KEYS)))
    pool = tables.united([part.select(names) for part in (given.rows, of_keys)], fields)
    keys = pool.take(pa.array(coded(pool)[1]))
    before = np.full(keys.num_rows, UNBOUNDED, np.int64)
    positions, codes = found(table, keys)
    is_own = ~np.asarray(table.column(ALL_KEYS).take(pa.array(positions))).astype(bool)
    before[codes[is_own]] = numbers(table.column(BOUND).take(pa.array(positions[is_own])))
    news = reported(given, time, promise, keys, before, everywhere)
    floor = max(news.everywhere, needless)
    risen = np.flatnonzero((news.bounds > before) & (news.bounds > floor))
    change = _change(table, keys, news.bounds, risen, everywhere, news.everywhere, floor)
    of_keys = np.maximum(news.bounds, news.everywhere)
    return DeclaredLimits(news.before, news.everywhere, change, keys, of_keys)


def _change(
    table: pa.Table, keys: pa.Table, bounds: Ticks, risen: Ticks, before: int, everywhere: int, floor: int
) -> Change | None:
    """Return the bounds that have risen, without those that are no longer needed."""
    state = StateTable(table.schema, tuple(name for name in table.schema.names if name != BOUND))
    flags = pa.array(np.zeros(len(risen), np.bool_))
    columns = [*keys.take(pa.array(risen)).columns, flags, pa.array(bounds[risen])]
    upserts = pa.Table.from_arrays(columns, schema=table.schema)
    if everywhere > before:
        row = pa.Table.from_pylist([{ALL_KEYS: True, BOUND: everywhere}], schema=table.schema)
        upserts = tables.united([upserts, row])
    gone = tables.empty(tables.key_schema(state))
    if floor > UNBOUNDED and table.num_rows:
        is_gone = pc.and_(pc.invert(table.column(ALL_KEYS)), pc.less_equal(table.column(BOUND), floor))
        gone = table.filter(is_gone).select(list(state.key))
    return Change(upserts, gone) if upserts.num_rows or gone.num_rows else None


def late_rows(schema: pa.Schema, source: str, rows: pa.Table, time: str, of_rows: Ticks) -> pa.Table:
    """Return rows below a declared bound as rows of the output ``late``."""
    return keyed.late_rows(schema, source, rows, time, of_rows, WHY)
