"""What a join gives: pairs, rows of the left input, and rows without a partner; in the order in which they settle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.join.rules import LEFT, RIGHT, JoinRules
from holdfast.operators.join.side import Rise, Side
from holdfast.state import keyed, tables
from holdfast.state.rows import rows_at
from holdfast.state.timeline import Ints


def rows(
    step: JoinRules,
    left: Side,
    right: Side,
    pair: tuple[Ints, Ints],
    gone: Mapping[str, Ints],
    rises: Mapping[str, Rise],
) -> pa.Table:
    """Return the rows that leave in an epoch.

    Parameters
    ----------
    step : JoinRules
        The step.
    left, right : Side
        The rows of the inputs.
    pair : tuple of array of int64
        Rows of both that are pairs.
    gone : mapping of str to array of int64
        Rows of each input that have no partner.
    rises : mapping of str to Rise
        How bounds rise in the epoch: that gives the order, where it is not that of time.
    """
    if step.how == "semi":
        return _plain(step, left, _first_of_each(left, right, pair))
    if step.how == "anti":
        mine = gone[LEFT]
        order = np.lexsort((left.numbers_of(mine), left.times[mine], step.alone_at(left, LEFT, mine, rises)))
        return _plain(step, left, mine[order])
    ours, theirs = pair
    times = np.maximum(left.times[ours], right.times[theirs])
    only_left = gone[LEFT] if step.how in ("left", "full") else np.zeros(0, np.int64)
    only_right = gone[RIGHT] if step.how in ("right", "full") else np.zeros(0, np.int64)
    if not len(only_left) and not len(only_right) and step.how == "inner":
        order = np.lexsort((right.numbers_of(theirs), left.numbers_of(ours), times))
        return _pairs(step, left, right, ours[order], theirs[order], times[order])
    places = np.concatenate([
        step.released_at(left, right, pair, rises),
        step.alone_at(left, LEFT, only_left, rises),
        step.alone_at(right, RIGHT, only_right, rises),
    ])  # fmt: skip
    none_of_left, none_of_right = np.full(len(only_right), -1), np.full(len(only_left), -1)
    times = np.concatenate([times, left.times[only_left], right.times[only_right]])
    numbers_left = np.concatenate([left.numbers_of(ours), left.numbers_of(only_left), none_of_left])
    numbers_right = np.concatenate([right.numbers_of(theirs), none_of_right, right.numbers_of(only_right)])
    order = np.lexsort((numbers_right, numbers_left, times, places))
    ours = np.concatenate([ours, only_left, none_of_left])[order]
    theirs = np.concatenate([theirs, none_of_right, only_right])[order]
    return _pairs(step, left, right, ours, theirs, times[order])


def unmatched(
    step: JoinRules, left: Side, right: Side, gone: Mapping[str, Ints], rises: Mapping[str, Rise]
) -> pa.Table:
    """Return the rows without a partner as rows of the side output."""
    schema = step.outputs["unmatched"]
    parts, orders = [], []
    for name, side in ((LEFT, left), (RIGHT, right)):
        chosen = gone[name]
        why = pa.repeat(_reason(RIGHT if name == LEFT else LEFT), len(chosen))
        parts.append(keyed.side_rows(schema, name, rows_at(side.rows, chosen), step.times[name], why))
        orders.append((side.numbers_of(chosen), side.times[chosen], step.alone_at(side, name, chosen, rises)))
    order = np.lexsort([np.concatenate([one, other]) for one, other in zip(*orders, strict=True)])
    return tables.united(parts).take(pa.array(order))


def _reason(other: str) -> str:
    return f"no row of {other} with its key within the range"


def _first_of_each(left: Side, right: Side, pair: tuple[Ints, Ints]) -> Ints:
    """Return the left rows of pairs, each once, in the order in which they found their first partner."""
    ours, theirs = pair
    times = np.maximum(left.times[ours], right.times[theirs])
    order = np.lexsort((left.numbers_of(ours), times))
    _, first = np.unique(ours[order], return_index=True)
    return np.asarray(ours[order][np.sort(first)], np.int64)


def _plain(step: JoinRules, left: Side, chosen: Ints) -> pa.Table:
    schema = step.outputs["rows"]
    return tables.fitted(rows_at(left.rows.select(schema.names), chosen), schema)


def _pairs(step: JoinRules, left: Side, right: Side, ours: Ints, theirs: Ints, times: Ints) -> pa.Table:
    schema = step.outputs["rows"]
    mine, other = step.inputs[LEFT].names, step.inputs[RIGHT].names
    columns = pair_columns(left.rows.select(mine), right.rows.select(other), step.key.names, ours, theirs)
    columns.append(pa.array(times, pa.int64()).cast(schema.field(step.timestamp).type))
    return pa.Table.from_arrays(columns, schema=schema)


def pair_columns(
    left: pa.Table, right: pa.Table, key: Sequence[str], ours: Ints, theirs: Ints
) -> list[pa.ChunkedArray | pa.Array]:
    """Return the columns of pairs: those of left, those of right without the key.

    Parameters
    ----------
    left, right : pa.Table
        The rows of the inputs.
    key : sequence of str
        Key columns: of a row without one of left they are those of right.
    ours, theirs : array of int64
        Rows of both; -1: none.
    """
    has_left = bool((ours >= 0).all())
    left_rows = _rows(left, ours)
    right_rows = _rows(right.select([name for name in right.column_names if not has_left or name not in key]), theirs)
    columns = []
    for name in left.column_names:
        column = left_rows.column(name)
        if not has_left and name in key:
            column = pc.if_else(pa.array(ours >= 0), column, right_rows.column(name))
        columns.append(column)
    return columns + [right_rows.column(name) for name in right.column_names if name not in key]


def _rows(table: pa.Table, rows: Ints) -> pa.Table:
    """Return rows of a table by their numbers, and nulls for those below zero."""
    if not len(rows) or rows.min() >= 0:
        return rows_at(table, rows)
    there = rows >= 0
    found = rows_at(table, rows[there]).combine_chunks()
    return found.take(pa.array(np.cumsum(there) - 1, mask=~there))
