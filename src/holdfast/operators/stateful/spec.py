"""``stateful``: a step of the user's own, over all rows of a bucket at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building
from holdfast.graph.evolution import Migration, past_of
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_callable
from holdfast.operators.stateful import own_bounds
from holdfast.operators.stateful.function_output import FunctionOutput
from holdfast.ports import SideRows
from holdfast.state import checks, growth, joins, keyed, tables
from holdfast.state.call import StepFailed
from holdfast.state.step import ABSORBED, PLACE, Arrivals, Change, Result, StateTable, StepTime
from holdfast.types.schema import to_arrow

TOUCHED = "__touched_us__"
"""Column that ``forget_after`` adds to each table: batch time of the last epoch that wrote the row."""

_RIGHT = 'hf.stateful(step, by="origin", schema="...", state={"totals": "origin STRING, n BIGINT"})'

Tables = Mapping[str, pa.Table]
Function = Callable[[Tables | None, pa.Table, StepTime], Any]


@dataclass(frozen=True)
class Stateful:
    """Call ``step(tables, rows, at)`` once per bucket and epoch."""

    fn: Function
    output: FunctionOutput
    state: Mapping[str, StateTable]
    kind: ClassVar[str] = "stateful"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}
    wakes: ClassVar[bool] = False

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """Those of the output."""
        return self.output.time_columns

    @property
    def watches_clock(self) -> bool:
        """Whether keys are forgotten."""
        return bool(self.output.forget_after)

    def arguments(self) -> Mapping[str, Any]:
        """Return the function's name and hash, key, schemas and TTL."""
        return {
            "step": callable_text(self.fn),
            "by": list(self.output.by),
            "schema": checks.spelled(self.output.schema),
            "state": {
                name: {"schema": checks.spelled(table.schema), "key": list(table.key)}
                for name, table in self.state.items()
            },
            "forget_after": self.output.forget_after,
            **self.output.promise,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that of the output."""
        return self.output.shape(inputs)

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        return self.output.bounds_end("a third table that it returns")

    def step(self, inputs: Mapping[str, pa.Schema]) -> StatefulStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        key = keyed.key_schema(schema, self.output.by)
        out, time, offset = self.output.schema, self.output.timestamp, self.output.offset
        return StatefulStep(self.fn, name, schema, key, out, self.state, self.output.forget_us, time, offset)


@dataclass(frozen=True)
class StatefulStep:
    """The step of :class:`Stateful`: the user's function between tables as they are stored and as it sees them."""

    fn: Function
    name: str
    schema: pa.Schema
    key: pa.Schema
    out: pa.Schema
    state: Mapping[str, StateTable]
    forget_us: int | None
    time: str | None = None
    offset: int | None = None

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """The user's tables; with ``forget_after`` each has one column more."""
        if self.forget_us is None:
            return self.state
        touched = pa.field(TOUCHED, pa.int64())
        return {name: replace(table, schema=table.schema.append(touched)) for name, table in self.state.items()}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """What the function returns."""
        return {"rows": self.out}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Call the function where there are rows, and find out what it changed."""
        rows = arrivals[self.name].rows.drop_columns([PLACE])
        checks.require_values(rows, self.key.names, self.name)
        old = self._forgotten(state, at)
        counts = {} if self.forget_us is None else {"forgotten": sum(table.num_rows for table in old.values())}
        changes = {name: self._delete(name, table) for name, table in old.items() if table.num_rows}
        passed = own_bounds.passed_on(arrivals[self.name].bounds, self.offset)
        if rows.num_rows == 0:
            return Result({}, changes, passed, counts, fates={})
        seen = {name: self._seen(name, state[name], old.get(name)) for name in self.state}
        has_seen = any(table.num_rows for table in seen.values())
        given, out, own = self._called(seen if has_seen else None, rows, at)
        for name, after in given.items():
            change = self._change(name, seen[name], after, at)
            if name in changes:  # what was forgotten and written again is written: deletes come first
                change = Change(change.upserts, tables.united([changes[name].deletes, change.deletes]))
            if change.upserts.num_rows or change.deletes.num_rows:
                changes[name] = change
        bounds = own_bounds.united(self.key, passed, own)
        return Result({"rows": out}, changes, bounds, counts, fates={ABSORBED: rows.num_rows})

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return a table with nulls in columns that it did not have; a table that was not there is empty."""
        declared = self.tables[table]
        if known is None:
            return declared.schema.empty_table()

        def fill(column: pa.Field, rows: int) -> pa.Array | None:
            if column.name == TOUCHED and self.forget_us is not None:
                return pa.array(np.full(rows, at.batch_us, np.int64))
            return growth.nulls(column, rows)

        return growth.grown(known, declared, fill)

    def _called(self, seen: Tables | None, rows: pa.Table, at: StepTime) -> tuple[dict[str, Any], pa.Table, Any]:
        try:
            given = self.fn(seen, rows, at)
        except Exception as error:
            raise StepFailed(rows, f"step {callable_text(self.fn)!r}") from error
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise InvalidPipeline(
                f"the step returned {a_type(given)}.",
                why="a step returns two things: its tables (or None when none changed), and its rows (or None); "
                "and bounds as a third where it has any.",
                do="write return {'totals': totals}, rows",
            )
        changed, out, *bounds = given
        if changed is not None and not isinstance(changed, Mapping):
            raise InvalidPipeline(
                f"the step returned {a_type(changed)} for its tables.",
                why="they are a mapping of names to tables, or None when none changed.",
                do="write return {'totals': totals}, rows",
            )
        found = dict(changed or {})
        if unknown := [name for name in found if name not in self.state]:
            raise InvalidPipeline(
                f"the step returned the table {unknown[0]!r}, which is not declared.",
                why=f"declared: {', '.join(self.state) or 'none'}.",
                do=f"declare it: state={{{unknown[0]!r}: ...}}.",
            )
        own = None
        if bounds and bounds[0] is not None:
            own = converted(bounds[0], own_bounds.schema_of(self.key, self.out, self.time), "its bounds")
        return found, converted(out, self.out, "its rows"), own

    def _change(self, name: str, before: pa.Table, after: Any, at: StepTime) -> Change:
        declared = self.state[name]
        if isinstance(after, Change):
            upserts = converted(after.upserts, declared.schema, f"the upserts of table {name!r}")
            deletes = converted(after.deletes, tables.key_schema(declared), f"the deletes of table {name!r}")
        else:
            after = converted(after, declared.schema, f"table {name!r}")
            deletes = joins.anti_join(before, after, declared.key).select(list(declared.key))
            upserts = after.filter(pa.array(_differs(before, after, declared.key)))
        if joins.distinct_keys(upserts, declared.key).num_rows < upserts.num_rows:
            raise InvalidPipeline(
                f"the step returned table {name!r} with two rows of one key.",
                why=f"its key is {', '.join(declared.key) or 'empty: it holds one row'}.",
                do="return one row for each key, or declare a longer key: "
                f"state={{{name!r}: hf.StateTable(schema, key=[...])}}.",
            )
        if self.forget_us is not None:
            upserts = upserts.append_column(TOUCHED, pa.repeat(pa.scalar(at.batch_us), upserts.num_rows))
        return Change(upserts, deletes)

    def _forgotten(self, state: Mapping[str, pa.Table], at: StepTime) -> dict[str, pa.Table]:
        if self.forget_us is None:
            return {}
        last = at.batch_us - self.forget_us
        return {name: table.filter(pc.less_equal(table.column(TOUCHED), last)) for name, table in state.items()}

    def _delete(self, name: str, rows: pa.Table) -> Change:
        declared = self.tables[name]
        return Change(tables.empty(declared.schema), rows.select(list(declared.key)))

    def _seen(self, name: str, table: pa.Table, old: pa.Table | None) -> pa.Table:
        if old is not None and old.num_rows:
            table = joins.anti_join(table, old, self.state[name].key)
        return table.select(self.state[name].schema.names)


def converted(value: Any, schema: pa.Schema, what: str, who: str = "the step") -> pa.Table:
    """Return what a user's function returned under the declared schema; frames of other libraries become tables.

    Only the form may differ (``large_string`` for ``string``, the order of columns, nullability), not the type.
    """
    if value is None:
        return tables.empty(schema)
    if not isinstance(value, pa.Table):
        if not hasattr(value, "__arrow_c_stream__") and not isinstance(value, pa.RecordBatch):
            raise InvalidPipeline(
                f"{who} returned {a_type(value)} for {what}.",
                why="tables go in and out as Arrow.",
                do="return a pyarrow.Table or a polars.DataFrame.",
            )
        value = pa.table(value)
    if sorted(value.schema.names) == sorted(schema.names):
        value = value.select(schema.names)
        fits = [is_alike(found, wanted) for found, wanted in zip(value.schema.types, schema.types, strict=True)]
        if all(fits):
            columns = [column.cast(field.type) for column, field in zip(value.columns, schema, strict=True)]
            return pa.Table.from_arrays(columns, schema=schema)
    raise InvalidPipeline(
        f"{who} returned {what} with another schema than declared.",
        why=f"declared: {checks.spelled(schema)}; returned: {checks.spelled(value.schema)}.",
        do=f"return the declared columns, or declare what {who} returns.",
    )


def is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether two types hold the same values: only their form in memory may differ."""
    if found == wanted or pa.types.is_null(found):
        return True
    texts = (pa.string(), pa.large_string(), pa.string_view())
    blobs = (pa.binary(), pa.large_binary(), pa.binary_view())
    if (found in texts and wanted in texts) or (found in blobs and wanted in blobs):
        return True
    if (pa.types.is_list(found) or pa.types.is_large_list(found)) and pa.types.is_list(wanted):
        return is_alike(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return [field.name for field in found] == [field.name for field in wanted] and all(
            is_alike(one.type, other.type) for one, other in zip(found, wanted, strict=True)
        )
    return False


def _differs(before: pa.Table, after: pa.Table, key: Sequence[str]) -> Any:
    """Return for each row of ``after`` whether it is not in ``before`` exactly so."""
    at = joins.index_in(after, before, key)
    differs = at < 0
    if differs.all():
        return differs
    there = np.flatnonzero(~differs)
    ours, theirs = after.take(pa.array(there)), before.take(pa.array(at[there]))
    changed = np.zeros(len(there), bool)
    for name in after.schema.names:
        if name in key:
            continue
        mine, other = ours.column(name), theirs.column(name)
        if pa.types.is_nested(mine.type):  # Arrow does not compare these: written again, which changes nothing
            changed |= True
            continue
        differ = pc.fill_null(pc.not_equal(mine, other), False)
        nulls = pc.not_equal(pc.is_null(mine), pc.is_null(other))
        changed |= np.asarray(pc.or_(differ, nulls)).astype(bool)
    differs[there] = changed
    return differs


def stateful(
    step: Function,
    by: str | Sequence[str],
    *,
    schema: str | pa.Schema | Any,
    state: Mapping[str, str | pa.Schema | StateTable | Any],
    forget_after: str | None = None,
    timestamp: str | None = None,
    timestamp_offset: str | int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Operator:
    """Run a step of your own over all rows of a bucket at once: tables in, tables out.

    Parameters
    ----------
    step : function of tables, rows and at, giving (tables, rows)
        ``tables`` maps names to Arrow tables, or is None where this bucket has none yet; ``rows`` is an Arrow table of
        this epoch's rows in the order of their arrival; ``at`` has ``epoch`` and ``batch_us``, the only clock.  It
        returns the tables that changed, each whole or as a ``Change`` (None: none changed), and its output rows (or
        None); and, as a third, bounds of its output: key columns and ``bound``, the lowest timestamp that rows of the
        key may still have.  Polars frames are accepted, too. It must depend only on its arguments: an epoch may be
        replayed.
    by : str or sequence of str
        Key columns.  All rows of a key are in one bucket; a bucket holds many keys.
    schema : str, StructType or pyarrow.Schema
        Of the output rows.
    state : mapping of str to schema or StateTable
        Table name -> its columns.  Rows are identified by the columns ``by``; a ``StateTable`` says otherwise.
    forget_after : str, optional
        Forget a row of state that has not been written for this long, measured in logged batch time.
    timestamp : str, optional
        Column of ``schema`` that holds the event time of the output rows.
    timestamp_offset : str or int, optional
        A promise: output rows of a key lie at or above the bounds that its input had before, plus this: a duration, or
        ticks of a BIGINT; also negative.  Bounds of the input then hold downstream of it, shifted so.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Raises
    ------
    InvalidPipeline
        If an argument cannot work, or (in a run) the step raises or returns another schema than declared; the error
        names the operator and both schemas, or bucket, epoch and the first rows.

    Notes
    -----
    Runs on executors, in Python workers, once per bucket and epoch that has rows.  A table that is returned whole is
    compared with what was there, a scan of the state; a ``Change`` costs what changed.

    Examples
    --------
    ::

        def last_seen(tables, rows, at):
            latest = rows.group_by("origin").aggregate([("time_hour", "max")]).rename_columns(["origin", "seen"])
            return {"seen": Change(latest, latest.select(["origin"]).slice(0, 0))}, latest

        seen = flights | hf.stateful(last_seen, by="origin", schema="origin STRING, seen TIMESTAMP",
                                     state={"seen": "origin STRING, seen TIMESTAMP"})
    """
    with building(Stateful.kind, name) as built_at:
        check_callable(step, "step", ["tables", "rows", "at"], right=_RIGHT)
        output = FunctionOutput.of(by, schema, forget_after, timestamp, timestamp_offset)
        declared = _declare(state, output.by)
        past = past_of(renamed_from, migrate, kind=Stateful.kind, built_at=built_at)
        return Operator(Stateful(step, output, declared), name, built_at, past)


def _declare(state: Any, by: Sequence[str]) -> dict[str, StateTable]:
    if not isinstance(state, Mapping) or not state:
        raise InvalidPipeline(
            f"state={state!r} declares no table.",
            why="a stateful operator has one or more named tables.",
            do=f"write {_RIGHT}",
        )
    declared = {}
    for name, table in state.items():
        if not isinstance(table, StateTable):
            table = StateTable(to_arrow(table, argument=f"state[{name!r}]"), tuple(by))
        fields = [keyed.field_of(table.schema, column, f"the key of state table {name!r}") for column in table.key]
        declared[name] = StateTable(table.schema, tuple(field.name for field in fields))
    return declared
