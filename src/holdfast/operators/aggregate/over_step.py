"""The step of ``over``: rows wait until none before them can come, and leave with aggregates over the last ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import present
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.last_rows import RowSpans, over_spans
from holdfast.operators.aggregate.parts import Partial, part_of, values_type
from holdfast.operators.aggregate.ranking import Flags, SortTerm, sort_keys
from holdfast.state import checks, declared_bounds, growth, joins, keyed, tables
from holdfast.state.declared_bounds import DeclaredLimits
from holdfast.state.keys import Ints, by_code, coded, found, numbers, ordinals_from
from holdfast.state.step import PLACE, Arrivals, Change, Result, StateTable, StepTime
from holdfast.state.timeline import Promise

EPOCH = "__epoch__"
"""Column of a waiting row: the epoch in which it came."""

NUMBER = "__number__"
"""Column of a kept row: its number within its key, in the order in which rows leave."""

VALUE = "value__"
_WHY_LATE = "that its key's rows and bounds had reached"


@dataclass(frozen=True)
class OverStep:
    """Each row with aggregates over the last rows of its key, in the order of event time.

    State: ``waiting``, rows before which others can still come; ``kept``, of each key the last rows that left, one
    fewer than aggregates are over; ``bounds``, what is known of rows to come.

    Parameters
    ----------
    name : str
        The input.
    schema, key : pa.Schema
        Its columns, and those of them that are the key.
    time : str
        Its timestamp column.
    rows : int
        Over how many rows aggregates are.
    order : tuple of SortTerm
        What decides between rows of one time; without, arrival.
    aggregates : mapping of str to Aggregate
        Output column -> what it holds; its columns are named as in the schema.
    promise : Promise
        What a key's rows say about those to come.
    max_waiting_rows : int, optional
        Waiting rows of one key from which that is reported.
    """

    name: str
    schema: pa.Schema
    key: pa.Schema
    time: str
    rows: int
    order: tuple[SortTerm, ...]
    aggregates: Mapping[str, Aggregate]
    promise: Promise
    max_waiting_rows: int | None = None
    waiting_tables: ClassVar[tuple[str, ...]] = ("waiting",)

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``waiting``, ``kept`` and ``bounds``."""
        number, names = pa.int64(), self.key.names
        waiting = pa.schema([*self.schema, pa.field(EPOCH, number), pa.field(PLACE, number)])
        values = [pa.field(f"{VALUE}{name}", self.schema.field(name).type) for name in self._read]
        kept = pa.schema([*self.key, pa.field(NUMBER, number), *values])
        return {
            "waiting": StateTable(waiting, (*names, EPOCH, PLACE)),
            "kept": StateTable(kept, (*names, NUMBER)),
            "bounds": declared_bounds.declared(self.key),
        }

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Rows in the order of time, with the aggregates; late ones."""
        results = [pa.field(name, part.result) for name, part in self._parts.items()]
        late = keyed.late_schema(self.key, self.schema.field(self.time).type, {self.name: self._row_schema})
        return {"rows": pa.schema([*self._row_schema, *results]), "late": late}

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.time

    def by_bounds(self, inputs: Collection[str]) -> OverStep:
        """Return the step for which rows promise nothing."""
        return replace(self, promise=self.promise.silent()) if self.name in inputs else self

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many rows wait."""
        return int(state["waiting"].num_rows)

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Add the rows of the epoch to those that wait, and emit those before which none can come."""
        given = arrivals[self.name]
        if not given.rows.num_rows and not given.bounds.num_rows:
            return Result(counts={"waiting_rows": self.held(state)}, fates={})
        checks.require_values(given.rows, [*self.key.names, self.time], self.name)
        limits = declared_bounds.limits(state["bounds"], given, self.key, self.time, promise=self.promise)
        is_late = keyed.ticks(given.rows.column(self.time)) < limits.of_rows
        late_rows = given.rows.filter(pa.array(is_late))
        changes: dict[str, Change] = {} if limits.change is None else {"bounds": limits.change}

        waiting, before = self._waiting(state["waiting"], given.rows.filter(pa.array(~is_late)), at.epoch)
        leaves = self._may_leave(waiting, limits)
        rows = self._in_order(waiting.take(pa.array(np.flatnonzero(leaves))))
        stays, gone = ~leaves, leaves.copy()
        stays[:before], gone[before:] = False, False
        if stays.any() or gone.any():
            key = [*self.tables["waiting"].key]
            changes["waiting"] = Change(waiting.filter(pa.array(stays)), waiting.filter(pa.array(gone)).select(key))
        outputs = {"late": self._late(late_rows, limits.of_rows[is_late])}
        if rows.num_rows:
            outputs["rows"], kept = self._over(rows, state["kept"])
            if kept.upserts.num_rows or kept.deletes.num_rows:
                changes["kept"] = kept
        bounds = given.bounds.drop_columns([PLACE]) if given.bounds.num_rows else None
        counts = keyed.late_counts(limits.of_rows[is_late])
        counts["waiting_rows"] = waiting.num_rows - rows.num_rows
        return Result(outputs, changes, bounds, counts, fates={"late": int(is_late.sum()), "rows": rows.num_rows})

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return a table with other columns: those that are not read are dropped, and new ones are null."""
        if known is None or table == "bounds":
            return None
        declared = self.tables[table]
        stays = [name for name in known.column_names if name in declared.schema.names]
        return growth.grown(known.select(stays), declared, growth.nulls)

    # --- rows that wait -----------------------------------------------------------------------------------------------

    def _waiting(self, known: pa.Table, fresh: pa.Table, epoch: int) -> tuple[pa.Table, int]:
        """Return the rows that wait in the order of arrival, new ones last, and how many are known."""
        schema = self.tables["waiting"].schema
        fresh = fresh.append_column(EPOCH, pa.array(np.full(fresh.num_rows, epoch), pa.int64()))
        if not known.num_rows:
            return tables.fitted(fresh, schema), 0
        arrived = np.lexsort((numbers(known.column(PLACE)), numbers(known.column(EPOCH))))
        return tables.united([known.take(pa.array(arrived)), fresh], schema), known.num_rows

    def _may_leave(self, rows: pa.Table, limits: DeclaredLimits) -> Flags:
        """Return which rows have all before them: rows of one time leave as they came, if nothing else orders them."""
        times = keyed.ticks(rows.column(self.time))
        keys = present(limits.keys, "bounds were looked up without keys.")
        at = joins.index_in(rows, keys, self.key.names)  # -1: a key that nothing was said of
        bounds = np.append(present(limits.of_keys, "keys have no bounds."), limits.everywhere)[at]
        settled: Flags = times < bounds if self.order else times <= bounds
        return settled

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """Return rows by time, then by the columns of the order, then as they came."""
        terms = [key for term in self.order for key in sort_keys(rows.column(term.column), term)]
        times = keyed.ticks(rows.column(self.time))
        if not terms and (times[1:] >= times[:-1]).all():
            return rows
        return rows.take(pa.array(np.lexsort((*reversed(terms), times))))

    def _late(self, rows: pa.Table, limits: Ints) -> pa.Table:
        rows = rows.select([*self._row_schema.names])
        return keyed.late_rows(self.outputs["late"], self.name, rows, self.time, limits, _WHY_LATE)

    # --- rows that leave ----------------------------------------------------------------------------------------------

    def _over(self, rows: pa.Table, kept: pa.Table) -> tuple[pa.Table, Change]:
        """Return rows, in their order, with the aggregates; and how the kept ones change."""
        names = self.key.names
        codes, first = coded(rows.select(names))
        keys, size = rows.select(names).take(pa.array(first)), len(first)
        positions, of_known = found(kept, keys)
        known = kept.take(pa.array(positions))
        by_number = np.argsort(numbers(known.column(NUMBER)), kind="stable")
        known, of_known = known.take(pa.array(by_number)), of_known[by_number]
        count = known.num_rows

        every = np.concatenate([of_known, codes])
        order = by_code(every, size)  # kept rows first: each key's rows are beside each other, in their order
        of_places = every[order]
        ends = np.cumsum(np.bincount(every, minlength=size))
        begins = np.concatenate([[0], ends[:-1]])
        places = np.flatnonzero(order >= count)
        spans = RowSpans(np.maximum(places + 1 - self.rows, begins[of_places[places]]), places + 1)
        beside = {name: _beside(known.column(f"{VALUE}{name}"), rows.column(name), order) for name in self._read}
        read = pa.table({**beside, PLACE: pa.array(order)})
        back = np.empty(len(places), np.int64)
        back[order[places] - count] = np.arange(len(places))
        results = [
            over_spans(self.aggregates[name], part, read, spans).take(pa.array(back))
            for name, part in self._parts.items()
        ]
        out = [*rows.select([*self._row_schema.names]).columns, *results]

        is_last = np.arange(len(order)) > ends[of_places] - self.rows
        bases = np.zeros(size, np.int64)
        bases[of_known] = numbers(known.column(NUMBER)) + 1  # of repeated indices the last assignment stays
        stays = order[is_last & (order >= count)] - count
        put = rows.select([*names, *self._read]).take(pa.array(stays))
        table = self.tables["kept"]
        upserts = [*put.select(range(len(names))).columns, pa.array(ordinals_from(bases, codes, size)[stays])]
        upserts += put.select(range(len(names), put.num_columns)).columns
        gone = known.take(pa.array(np.sort(order[~is_last & (order < count)]))).select([*table.key])
        change = Change(pa.Table.from_arrays(upserts, schema=table.schema), gone)
        return pa.Table.from_arrays(out, schema=self.outputs["rows"]), change

    # --- what follows from the declaration ----------------------------------------------------------------------------

    @property
    def _parts(self) -> dict[str, Partial]:
        found = {name: part_of(name, one, values_type(name, one, self.schema)) for name, one in self.aggregates.items()}
        return {name: present(part, f"{name!r} has no form over rows.") for name, part in found.items()}

    @property
    def _read(self) -> list[str]:
        """The columns that aggregates read, in an order that does not depend on theirs."""
        return sorted({name for one in self.aggregates.values() for name in one.reads})

    @property
    def _row_schema(self) -> pa.Schema:
        """The columns of the rows without those of conditions."""
        conditions = {one.condition for one in self.aggregates.values()}
        return pa.schema([field for field in self.schema if field.name not in conditions])


def _beside(known: pa.ChunkedArray, fresh: pa.ChunkedArray, order: Ints) -> pa.ChunkedArray:
    """Return the values of known and of fresh rows in an order of both."""
    return pa.chunked_array([*known.chunks, *fresh.chunks], known.type).take(pa.array(order))
