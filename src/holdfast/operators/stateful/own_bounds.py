"""Bounds of what a user's function returns: those of its input, shifted as it promises, and those that it sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.state import checks, tables
from holdfast.state.input_bounds import end_of
from holdfast.state.step import BOUND, CLOSED, PLACE
from holdfast.state.timeline import shifted

COLUMN = "bound"
"""Column of the bounds that a function sets, beside the key: no further row of the key is below it."""


def schema_of(key: pa.Schema, out: pa.Schema, timestamp: str | None) -> pa.Schema:
    """Return the schema of the bounds that a function sets.

    Raises
    ------
    InvalidPipeline
        If its rows have no timestamp.
    """
    if timestamp is None:
        raise InvalidPipeline(
            "it returned a bound, but its rows have no timestamp.",
            why="a bound is the lowest timestamp that its rows may still have.",
            do='declare the column that holds event time: timestamp="...".',
        )
    return pa.schema([*key, pa.field(COLUMN, out.field(timestamp).type)])


def passed_on(bounds: pa.Table, offset: int | None) -> pa.Table | None:
    """Return the bounds of an input as they hold downstream of the function; without an offset only its end."""
    if offset is None:
        return end_of(bounds)
    if not bounds.num_rows:
        return None
    ticks = pa.array(shifted(np.asarray(bounds.column(BOUND)), offset))
    plain = bounds.drop_columns([PLACE])
    return plain.set_column(plain.schema.get_field_index(BOUND), plain.schema.field(BOUND), ticks)


def united(key: pa.Schema, passed: pa.Table | None, own: pa.Table | None) -> pa.Table | None:
    """Return both kinds of bounds as a step returns them; None where there are none.

    Raises
    ------
    BadRow
        If one that the function sets has no key or no value.
    """
    if own is None or not own.num_rows:
        return passed
    checks.require_values(own, own.schema.names, "bounds")
    schema = tables.bounds_schema(key)
    columns: Sequence[Any] = [
        *(own.column(name) for name in key.names),
        pa.array(np.zeros(own.num_rows, np.bool_)),
        own.column(COLUMN).cast(pa.int64()),
    ]
    own = pa.Table.from_arrays(columns, schema=schema)
    return own if passed is None else tables.united([passed, own], schema)


def with_end(bounds: pa.Table | None, key: pa.Schema, *, is_done: bool) -> pa.Table | None:
    """Return bounds with the end of everything if nothing follows, and without any end as long as a timer may fire.

    Parameters
    ----------
    bounds : pyarrow.Table, optional
        As a step returns them; None where there are none.
    key : pyarrow.Schema
        Of the step.
    is_done : bool
        Whether the input has ended and no timer is left.
    """
    kept = None if bounds is None else bounds.filter(pc.not_equal(bounds.column(BOUND), CLOSED))
    if not is_done:
        return kept if kept is not None and kept.num_rows else None
    end = tables.end_for_all(key)
    return end if kept is None else tables.united([kept, end], end.schema)
