"""Tables out of a sync's decision: the sets, the late and dropped rows, the bounds of the output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.sync.decide import DROP, SetDecision
from holdfast.operators.sync.epoch import Epoch, Late, Pool
from holdfast.operators.sync.rules import SyncRules
from holdfast.state import keyed, tables
from holdfast.state.step import ALL_KEYS, BOUND
from holdfast.state.timeline import Ints


def sets(step: SyncRules, epoch: Epoch, decision: SetDecision) -> pa.Table:
    """Return the input sets, in the order of their ranks."""
    schema = step.outputs["rows"]
    place, count = numbered(decision.ranks)
    if count == 0:
        return tables.empty(schema)
    key, at = np.empty(count, np.int64), np.empty(count, np.int64)
    for pool, rows, times, where in zip(epoch.pools, decision.rows, decision.times, place, strict=True):
        key[where] = pool.key[rows]
        at[where] = times
    columns = [epoch.keys.column(name).take(pa.array(key)) for name in step.key.names]
    columns.append(pa.chunked_array([_time(at, step.time_type)]))
    for name, pool, rows, where in zip(step.inputs, epoch.pools, decision.rows, place, strict=True):
        columns.append(_input_column(schema.field(name).type, pool, rows, where, count))
    return pa.Table.from_arrays(columns, schema=schema)


def _input_column(kind: pa.DataType, pool: Pool, rows: Ints, where: Ints, count: int) -> pa.Array:
    if pa.types.is_struct(kind):
        index = np.full(count, -1, np.int64)
        index[where] = rows
        return _structs(pool.table, index, kind)
    by_set = np.lexsort((pool.order[rows], where))
    values = _structs(pool.table, rows[by_set], kind.value_type)
    counts = np.bincount(where, minlength=count)
    offsets = np.r_[0, np.cumsum(counts)].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=pa.array(counts == 0))


def _structs(table: pa.Table, index: Ints, kind: pa.StructType) -> pa.Array:
    """Return rows of a table as structs; null where the index is -1."""
    is_null = index < 0
    has_null = bool(is_null.any())
    where = pa.array(index, mask=is_null if has_null else None)
    fields = list(kind)
    picked = []
    for member in fields:
        column = table.column(member.name)
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], member.type)
        taken = array.take(where)
        picked.append(taken)
    return pa.StructArray.from_arrays(picked, fields=fields, mask=pa.array(is_null) if has_null else None)


def numbered(ranks: Sequence[tuple[Ints, ...]]) -> tuple[list[Ints], int]:
    """Return for each row the number of its set, and how many sets there are.

    Parameters
    ----------
    ranks : sequence of tuple of array of int64
        For each input and row what identifies its set, the weightiest first; not negative.

    Examples
    --------
    >>> places, count = numbered([(np.array([5, 7]), np.array([0, 0])), (np.array([7]), np.array([0]))])
    >>> [place.tolist() for place in places], count
    ([[0, 1], [1]], 2)
    """
    present = [rank for rank in ranks if len(rank[0])]
    if not present:
        return [np.empty(0, np.int64) for _ in ranks], 0
    row_count = sum(len(rank[0]) for rank in present)
    places, size = _code(ranks, len(present[0]))
    if size > _DENSE * row_count:  # mostly timestamps: far apart and few
        levels = [_rank(ranks, at, row_count) for at in range(len(present[0]))]
        ranks = [tuple(level) for level in zip(*levels, strict=True)]
        places, size = _code(ranks, len(present[0]))
    if 0 < size <= _DENSE * row_count:
        is_there = np.zeros(size, np.bool_)
        for code in places:
            is_there[code] = True
        number = np.cumsum(is_there) - 1
        return [number[code] for code in places], int(number[-1]) + 1
    together = np.sort(np.concatenate(places))
    distinct = together[np.r_[True, together[1:] != together[:-1]]]
    return [np.searchsorted(distinct, code) for code in places], len(distinct)


_DENSE = 8
"""Up to this many possible sets per row, a table of all of them is faster than sorting those that exist."""


def _code(ranks: Sequence[tuple[Ints, ...]], levels: int) -> tuple[list[Ints], int]:
    """Return one number for all levels of each row, and how many there can be; no numbers where these are too many."""
    widths = [max(int(rank[level].max(initial=0)) for rank in ranks) + 1 for level in range(levels)]
    size = math.prod(widths)
    if size >= 2**63:
        return [], size
    codes = []
    for rank in ranks:
        code = rank[0]
        for level, width in zip(rank[1:], widths[1:], strict=True):
            code = code * width + level
        codes.append(code)
    return codes, size


def _rank(ranks: Sequence[tuple[Ints, ...]], level: int, limit: int) -> list[Ints]:
    """Return the values of one level, where they go beyond a limit as ranks among the distinct ones, which are few."""
    values_of = [rank[level] for rank in ranks]
    if all(int(values.max(initial=0)) < limit for values in values_of):
        return values_of
    encoded = pa.array(np.concatenate(values_of)).dictionary_encode()
    values = np.asarray(encoded.dictionary)
    rank_of = np.empty(len(values), np.int64)
    rank_of[np.argsort(values)] = np.arange(len(values))
    ends = np.cumsum([len(rank[level]) for rank in ranks])[:-1]
    return np.split(rank_of[np.asarray(encoded.indices)], ends)


def _time(ticks: Ints, kind: pa.DataType) -> pa.Array:
    array = pa.array(ticks, pa.int64())
    return array if kind == pa.int64() else array.view(kind)


# --- rows that do not reach a set -------------------------------------------------------------------------------


def missed(step: SyncRules, epoch: Epoch, decision: SetDecision) -> pa.Table:
    """Return the late rows, input by input, and then those that the policy dropped."""
    schema = step.outputs["late"]
    parts = []
    for place, late in enumerate(epoch.late):
        if late.rows.num_rows:
            parts.append(_side_rows(step, place, late.rows, _reasons(step, late)))
    for place, (pool, fates) in enumerate(zip(epoch.pools, decision.fates, strict=True)):
        dropped = np.flatnonzero(fates == DROP)
        if len(dropped):
            dropped = dropped[np.argsort(pool.order[dropped], kind="stable")]
            parts.append(side_rows(step, place, pool.table.take(pa.array(dropped)), decision.dropped_because))
    return tables.united(parts) if parts else tables.empty(schema)


def unmatched(step: SyncRules, epoch: Epoch, decision: SetDecision) -> pa.Table:
    """Return the rows that leave without a row of another input: alone in a set, or in none; in the order of time."""
    place, count = numbered(decision.ranks)
    input_count = np.zeros(count, np.int64)
    for where in place:
        input_count[np.unique(where)] += 1
    names, parts = list(step.inputs), [tables.empty(step.outputs["unmatched"])]
    for i, (pool, rows, where) in enumerate(zip(epoch.pools, decision.rows, place, strict=True)):
        others = ", ".join(name for name in names if name != names[i])
        alone = rows[input_count[where] == 1]
        for found, reason in (
            (alone, f"alone in its set: no row of {others}"),
            (np.flatnonzero(decision.fates[i] == DROP), decision.dropped_because),
        ):
            if len(found):
                inorder = found[np.argsort(pool.order[found], kind="stable")]
                parts.append(side_rows(step, i, pool.table.take(pa.array(inorder)), reason))
    return in_time_order(tables.united(parts))


def in_time_order(rows: pa.Table) -> pa.Table:
    """Return rows of ``unmatched`` in the order of time, as sets leave; those of one time as they are.

    Downstream they raise bounds one after the other: in another order, some would be late there.
    """
    order = np.asarray(pc.sort_indices(rows.column(keyed.side_time(rows.schema))))
    is_sorted = bool((order[1:] > order[:-1]).all())
    return rows if is_sorted else rows.take(pa.array(order))


def side_rows(step: SyncRules, place: int, rows: pa.Table, reason: str) -> pa.Table:
    """Return rows of one input as rows of ``late`` or ``unmatched``, all for one reason."""
    return _side_rows(step, place, rows, pa.repeat(reason, rows.num_rows))


def _side_rows(step: SyncRules, place: int, rows: pa.Table, reasons: pa.Array) -> pa.Table:
    return keyed.side_rows(step.outputs["late"], list(step.inputs)[place], rows, step.times[place], reasons)


def _reasons(step: SyncRules, late: Late) -> pa.Array:
    """Return for each late row a text with its time and the bound that it missed."""
    at, below = (pc.cast(_time(ticks, step.time_type), pa.string()) for ticks in (late.at, late.below))
    is_closed = pa.array(late.below == np.int64(2**63 - 1))
    missed_bound = pc.if_else(
        is_closed,
        pc.binary_join_element_wise("timestamp ", at, ": the input has ended", ""),
        pc.binary_join_element_wise("timestamp ", at, " is below the bound ", below, ""),
    )
    repeated = pc.binary_join_element_wise("timestamp ", at, " is there already, and timestamps are strict", "")
    return pc.if_else(pa.array(late.is_repeat), repeated, missed_bound)


# --- bounds after ----------------------------------------------------------------------------------------------


def bounds_rows(step: SyncRules, keys: pa.Table, bounds: Ints, for_all: int | None) -> pa.Table:
    """Return the bounds of the output: one for each key, and one for all keys where there is a new one."""
    schema = tables.bounds_schema(step.key)
    of_keys = pa.Table.from_arrays(
        [
            *(keys.column(name) for name in step.key.names),
            pa.array(np.zeros(len(bounds), bool)),
            pa.array(bounds, pa.int64()),
        ],
        schema=schema,
    )
    if for_all is None:
        return of_keys
    of_all: Mapping[str, list[object]] = {
        **{name: [None] for name in step.key.names},
        ALL_KEYS: [True],
        BOUND: [for_all],
    }
    return tables.united([of_keys, pa.table(of_all, schema=schema)])
