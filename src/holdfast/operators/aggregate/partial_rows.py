"""Partial rows: what a task sends in place of its rows, one for each key, where that is exact and pays (design/0064).

The parts of aggregates are merged exactly, whoever has made them.  So a task may make them of its rows before they go
to the buckets of their keys.  Only where nothing depends on the order in which rows arrive, nor on bounds: these are
known to the bucket alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.counting import flags
from holdfast.operators.aggregate.open import WindowsTable
from holdfast.operators.aggregate.parts import RowGroups, state_fields
from holdfast.operators.aggregate.shared_set import SharedSet
from holdfast.state.keys import Ints, by_code, coded, one
from holdfast.state.step import ROW_COUNT

ROWS_MIN = 1024
"""Fewer rows are not worth the calls."""

SAMPLED = 1024
"""Rows that show whether keys, and the values of distinct counts, come again and again."""

_ORDERLESS = frozenset(("count", "sum", "mean", "variance", "min", "max", "quantiles", "approx_count_distinct"))
"""Aggregates that are functions of the set of values, each as often as it comes."""


@dataclass(frozen=True)
class PartialRows:
    """Makes partial rows for a table of windows.

    Parameters
    ----------
    table : WindowsTable
        What the state holds; of distinct counts it has no other values.
    required : sequence of str
        Columns without which a row is refused: a chunk with such a row is sent as it is.
    """

    table: WindowsTable
    required: Sequence[str]

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """Key, number of rows, parts as in the state table, and a list of values for each table of them."""
        keys = [column.with_nullable(True) for column in self.table.key]
        lists = [pa.field(kept.table, pa.list_(kept.type)) for kept in self.table.kept]
        lists += [pa.field(shared.table, pa.list_(pa.struct(shared.fields()))) for shared in self.table.sets]
        return pa.schema([*keys, pa.field(ROW_COUNT, pa.int64()), *state_fields(self.table.parts), *lists])

    def combine(self, rows: pa.Table) -> pa.Table | None:
        """Return a partial row for each key, in the order of their first rows; None where it does not pay."""
        if rows.num_rows < ROWS_MIN or any(rows.column(name).null_count for name in self.required):
            return None
        if not self._repeats(rows.slice(0, SAMPLED)):
            return None
        codes, first = self._key_codes(rows)
        if len(first) > rows.num_rows // 2:
            return None
        size = len(first)
        keys = [one(rows.column(name)).take(pa.array(first)) for name in self.table.key.names]
        counts = pa.array(np.bincount(codes, minlength=size).astype(np.int64))
        made = self.table.parts_of_rows(rows, RowGroups(codes, size, np.zeros(len(codes), np.int64)))
        parts = [array for name in self.table.parts for array in made[name]]
        lists = [_lists_of(values, codes[counting], size) for counting, values in self._values(rows)]
        return pa.Table.from_arrays([*keys, counts, *parts, *lists], schema=self.partial_schema)

    def _key_codes(self, rows: pa.Table) -> tuple[Ints, Ints]:
        if not self.table.key.names:
            return np.zeros(rows.num_rows, np.int64), np.zeros(min(1, rows.num_rows), np.int64)
        return coded(rows.select(self.table.key.names))

    def _repeats(self, sample: pa.Table) -> bool:
        """Return whether keys come several times each, and with each key the values of distinct counts."""
        codes, first = self._key_codes(sample)
        if len(first) > sample.num_rows // 2:
            return False
        return all(
            len(_pairs(values, codes[counting])[1]) <= len(counting) // 2 for counting, values in self._values(sample)
        )

    def _values(self, rows: pa.Table) -> Iterator[tuple[Ints, pa.Array]]:
        """Yield for each table of values which rows have some for it, and these: of shared ones with their flags."""
        for kept in self.table.kept:
            yield kept.fresh(rows)
        for shared in self.table.sets:
            counting, every = shared.fresh(one(rows.column(shared.column)), rows)
            columns = [one(column).take(pa.array(counting)) for column in every.columns]
            yield counting, pa.StructArray.from_arrays(columns, fields=shared.fields())


def _pairs(values: pa.Array, groups: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values of each group, as :func:`coded` does; flags beside a value are of no account."""
    values = values.field(0) if pa.types.is_struct(values.type) else values
    return coded(pa.table({"group": groups, "value": values}))


def _lists_of(values: pa.Array, groups: Ints, size: int) -> pa.Array:
    """Return the distinct values of each group as a list, each with the flags that any of its rows has."""
    codes, first = _pairs(values, groups)
    order = by_code(groups[first], size)
    chosen = values.take(pa.array(first[order]))
    if pa.types.is_struct(values.type):
        met = [np.bincount(codes[flags(flag)], minlength=len(first)) > 0 for flag in values.flatten()[1:]]
        columns = [chosen.field(0), *(pa.array(flag[order]) for flag in met)]
        chosen = pa.StructArray.from_arrays(columns, fields=list(values.type))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups[first], minlength=size))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), chosen)


def partial_rows(
    table: WindowsTable, aggregates: Iterable[Aggregate], required: Sequence[str]
) -> PartialRows | None:  # fmt: skip
    """Return what makes partial rows; None where state or output could depend on it.

    Parameters
    ----------
    table : WindowsTable
        What the state holds, of rows that only come and are not ranked.
    aggregates : iterable of Aggregate
        The aggregates.
    required : sequence of str
        Columns without which a row is refused.
    """
    if table.cut.kind != "total" and (table.cut.kind != "timer" or table.cut.counts):
        return None
    if not {one.kind for one in aggregates} <= _ORDERLESS | {"distinct_count"}:
        return None
    sets = [shared for shared in table.sets if isinstance(shared, SharedSet)]
    types = [*table.key.types, *(kept.type for kept in table.kept), *(shared.type for shared in sets)]
    made = PartialRows(table, required)
    has_one_form = not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in types)
    return made if has_one_form and len(set(made.partial_schema.names)) == len(made.partial_schema) else None
