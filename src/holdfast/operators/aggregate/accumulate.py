"""``accumulate``: every row with the running aggregates of its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.graph.building import building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.operators.aggregate.aggregates import Aggregate, no_aggregate
from holdfast.ports import SideRows
from holdfast.state import checks, declared_bounds, growth, keyed, tables
from holdfast.state.keys import Ints, coded, found, numbers
from holdfast.state.step import PLACE, UNBOUNDED, Arrivals, Change, Result, StateTable, StepTime
from holdfast.state.timeline import bounds_before

_KINDS = ("count", "sum", "min", "max")
_RIGHT = 'hf.accumulate(by="account", balance=hf.sum("amount"))'


@dataclass(frozen=True)
class Accumulate:
    """Each row with the count, sum, minimum or maximum of its key's rows up to it, in order of arrival."""

    by: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    timestamp: str | None = None
    kind: ClassVar[str] = "accumulate"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, where rows have a timestamp that bounds speak of."""
        return {} if self.timestamp is None else {"late": SideRows.of_inputs(self.by, self.input_names)}

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """``timestamp``."""
        return (self.timestamp,)

    def arguments(self) -> Mapping[str, Any]:
        """Return key, aggregates and timestamp."""
        aggregates = {name: one.arguments() for name, one in self.aggregates}
        shown = {"by": list(self.by), "aggregates": aggregates}
        return shown if self.timestamp is None else {**shown, "timestamp": self.timestamp}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's columns and the running ones."""
        columns = inputs[0].columns
        require_columns(self.by, columns, "by=")
        for name, one in self.aggregates:
            if one.column is not None:
                require_columns([one.column], columns, f"{name}=hf.{one.kind}")
            if columns is not None and name.lower() in {column.lower() for column in columns}:
                raise InvalidPipeline(
                    f"two columns of the output would be called {name!r}.",
                    why="a row keeps its columns, and the running values are added to them.",
                    do=f"give the running value another name: {name}_so_far=hf....",
                )
        added = tuple(name for name, _ in self.aggregates)
        return Shape(None if columns is None else (*columns, *added), inputs[0].timestamp, inputs[0].ids)

    def step(self, inputs: Mapping[str, pa.Schema]) -> AccumulateStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        fields = []
        for output, one in self.aggregates:
            column = None if one.column is None else keyed.field_of(schema, one.column, output)
            if column is not None and one.kind != "count" and not pa.types.is_integer(column.type):
                raise InvalidPipeline(
                    f"{output}=hf.{one.kind}({one.column!r}) names a column of type {column.type}.",
                    why="running values are of integers.",
                    do="scale it to an integer before (cents, microseconds), or use hf.reduce(...), which takes any.",
                )
            fields.append((output, one.kind, None if column is None else column.name))
        time = None if self.timestamp is None else keyed.time_field(schema, self.timestamp).name
        return AccumulateStep(name, schema, keyed.key_schema(schema, self.by), tuple(fields), time)


@dataclass(frozen=True)
class AccumulateStep:
    """The step of :class:`Accumulate`.

    State: ``running``, one row per key with its values so far; ``bounds``, where rows have a timestamp: the declared
    ones.
    """

    name: str
    schema: pa.Schema
    key: pa.Schema
    columns: tuple[tuple[str, str, str | None], ...]
    time: str | None = None

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``running``; a value is null until the key had one.  And ``bounds``."""
        own = [pa.field(name, pa.int64()) for name, _, _ in self.columns]
        running = {"running": StateTable(pa.schema([*self.key, *own]), tuple(self.key.names))}
        return running if self.time is None else {**running, "bounds": declared_bounds.declared(self.key)}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Rows as they arrived, with the running values; late rows where rows have a timestamp."""
        rows = {"rows": pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name, _, _ in self.columns)])}
        if self.time is None:
            return rows
        return {**rows, "late": keyed.late_schema(self.key, self.schema.field(self.time).type, self.inputs)}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Continue the running values of each key that has rows, without those that are late."""
        given = arrivals[self.name]
        bounds = given.bounds.drop_columns([PLACE]) if given.bounds.num_rows else None
        if not given.rows.num_rows and bounds is None:
            return Result(fates={})
        if self.time is None:
            rows, changes = self._with_running(given.rows, state["running"])
            return Result({"rows": rows}, changes, bounds, fates={"rows": given.rows.num_rows})
        checks.require_values(given.rows, [*self.key.names, self.time], self.name)
        limits = declared_bounds.limits(state["bounds"], given, self.key, self.time)
        is_late = keyed.ticks(given.rows.column(self.time)) < limits.of_rows
        rows, changes = self._with_running(given.rows.filter(pa.array(~is_late)), state["running"])
        if limits.change is not None:
            changes["bounds"] = limits.change
        late = declared_bounds.late_rows(
            self.outputs["late"], self.name, given.rows.filter(pa.array(is_late)), self.time, limits.of_rows[is_late]
        )
        fates = {"late": int(is_late.sum()), "rows": int((~is_late).sum())}
        counts = keyed.late_counts(limits.of_rows[is_late])
        return Result({"rows": rows, "late": late}, changes, bounds, counts, fates=fates)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return ``running`` with values that it did not have: no key had one yet.  And no declared bounds."""
        if known is None:
            return self.tables[table].schema.empty_table() if table == "bounds" else None
        return growth.grown(known, self.tables[table], growth.nulls)

    def _with_running(self, rows: pa.Table, running: pa.Table) -> tuple[pa.Table, dict[str, Change]]:
        """Return rows with the running values, and what changes in the table of these."""
        if not rows.num_rows:
            return tables.empty(self.outputs["rows"]), {}
        checks.require_values(rows, self.key.names, self.name)
        codes, first = coded(rows.select(self.key.names))
        size = len(first)
        keys = rows.select(self.key.names).take(pa.array(first))
        positions, of_known = found(running, keys)
        order = np.argsort(codes, kind="stable")
        outputs, upserts = [], []
        last = np.concatenate([np.flatnonzero(np.diff(codes[order])), [len(codes) - 1]])
        for name, kind, column in self.columns:
            start, is_set = np.zeros(size, np.int64), np.zeros(size, np.bool_)
            known = running.column(name).take(pa.array(positions))
            start[of_known] = numbers(known.fill_null(0))
            is_set[of_known] = np.asarray(known.combine_chunks().is_valid())
            valid = np.ones(len(codes), np.bool_)
            given_values = np.ones(len(codes), np.int64)
            if column is not None:
                source = rows.column(column).combine_chunks()
                valid = np.asarray(source.is_valid())
                given_values = (
                    valid.astype(np.int64) if kind == "count" else numbers(source.cast(pa.int64()).fill_null(0))
                )
            value, has = _running_values(kind, codes[order], given_values[order], valid[order], start, is_set, name)
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            outputs.append(pa.array(value[back], mask=~has[back]))
            upserts.append(pa.array(value[last], mask=~has[last]))
        out = [*rows.select(self.schema.names).columns, *outputs]
        table = self.tables["running"]
        kept = pa.Table.from_arrays([*keys.columns, *upserts], schema=table.schema)
        change = Change(kept, tables.key_schema(table).empty_table())
        return pa.Table.from_arrays(out, schema=self.outputs["rows"]), {"running": change}


def _running_values(
    kind: str, codes: Ints, given: Ints, valid: np.ndarray[Any, np.dtype[np.bool_]], start: Ints,
    is_set: np.ndarray[Any, np.dtype[np.bool_]], name: str,
) -> tuple[Ints, np.ndarray[Any, np.dtype[np.bool_]]]:  # fmt: skip
    """Return for each row, ordered by key, the running value and whether there is one."""
    begins = np.concatenate([[True], codes[1:] != codes[:-1]])
    firsts = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    seen = np.cumsum(valid)
    has = is_set[codes] | (seen - seen[firsts] + valid[firsts] > 0)
    if kind in ("count", "sum"):
        # in two halves, each far from overflow; together they show whether the whole fits
        upper, lower = np.cumsum(given >> 32), np.cumsum(given & 0xFFFFFFFF)
        upper = upper - (upper - (given >> 32))[firsts] + (start >> 32)[codes]
        lower = lower - (lower - (given & 0xFFFFFFFF))[firsts] + (start & 0xFFFFFFFF)[codes]
        upper, lower = upper + (lower >> 32), lower & 0xFFFFFFFF
        if ((upper < -(2**31)) | (upper >= 2**31)).any():
            raise BadRow(
                f"the running sum {name!r} of a key does not fit in BIGINT.",
                why="it is exact up to there and is not rounded or wrapped.",
                do="accumulate smaller units, or use hf.reduce(...) with a DECIMAL.",
            )
        return (upper << 32) + lower, has if kind == "sum" else np.ones(len(codes), np.bool_)
    # the complement (-1 - x) turns the order around without overflow, so that a minimum is a maximum
    if kind == "min":
        given, start = ~given, ~start
    values = np.where(valid, given, UNBOUNDED)
    begun = np.where(is_set, start, UNBOUNDED)
    highest = np.maximum(values, bounds_before(codes, values, begun[codes]))
    return ~highest if kind == "min" else highest, has


@dataclass(frozen=True)
class AccumulateAnywhere:
    """An accumulation that has no input yet: what ``hf.accumulate(...)`` returns."""

    spec: Accumulate
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the stream with running values."""
        spec = replace(self.spec, timestamp=stream.timestamp)
        return apply(spec, (stream,), name=self.name, built_at=self.origin, past=self.past)


def accumulate(
    *,
    by: str | Sequence[str],
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
    **aggregates: Aggregate,
) -> AccumulateAnywhere:
    """Add to every row the running aggregates of its key, in order of arrival.

    Parameters
    ----------
    by : str or sequence of str
        Key columns.
    name : str, optional
        The node's name.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.
    **aggregates : Aggregate
        New column -> ``hf.count(...)``, ``hf.sum``, ``hf.min`` or ``hf.max`` of an integer column; each BIGINT.

    Raises
    ------
    InvalidPipeline
        If nothing is computed, or an aggregate or a type is used that has no running form.

    Notes
    -----
    State is one row per key, kept permanently.  Rows are emitted as they arrived.  Where the stream has a timestamp, a
    row below a bound that was declared before is late: it changes nothing and goes to ``late``.

    Examples
    --------
    ::

        bookings | hf.accumulate(by="account", balance=hf.sum("cents"), name="balances")
    """
    with building(Accumulate.kind, name) as built_at:
        keys = keyed.key_names(by)
        for output, one in aggregates.items():
            if not isinstance(one, Aggregate) or one.kind not in _KINDS:
                if not isinstance(one, Aggregate):
                    raise no_aggregate(output, one, "accumulate")
                raise InvalidPipeline(
                    f"{output}= was given hf.{one.kind}.",
                    why=f"there are running forms of {', '.join(_KINDS)}.",
                    do=f"write for instance {_RIGHT}; hf.reduce(...) takes every aggregate, once per epoch.",
                )
            if one.where is not None:
                raise InvalidPipeline(
                    f"{output}=hf.{one.kind}(...) has where={one.where!r}.",
                    why="running values are of all rows: every row leaves with them.",
                    do="make a column that is null elsewhere: "
                    f'stream | hf.select("*", x="CASE WHEN {one.where} THEN {one.column or 1} END") '
                    f'| hf.accumulate(..., {output}=hf.{one.kind}("x"))',
                )
        if not aggregates:
            raise InvalidPipeline("it computes nothing.", why="no aggregate is given.", do=f"write {_RIGHT}")
        past = past_of(renamed_from, migrate, kind=Accumulate.kind, built_at=built_at)
        return AccumulateAnywhere(Accumulate(keys, tuple(aggregates.items())), name, built_at, past)
