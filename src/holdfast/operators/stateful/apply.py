"""``apply``: a Python function per key with a state of its own, for what column expressions cannot express."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.graph.checks import building
from holdfast.graph.evolution import Migration, past_of
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator, Shape
from holdfast.operators.arguments import check_callable
from holdfast.operators.stateful import own_bounds
from holdfast.operators.stateful.function_output import FunctionOutput
from holdfast.state import checks, growth, joins, keyed, tables
from holdfast.state.call import StepFailed
from holdfast.state.step import PLACE, Arrivals, Change, Result, StateTable, StepTime
from holdfast.types.schema import to_arrow

TOUCHED = "__touched_us__"
"""Column of the state: batch time of the last epoch that had rows of the key."""

_RIGHT = 'hf.apply(fn, by="origin", state="n BIGINT", schema="origin STRING, n BIGINT") with def fn(key, rows, state)'

Function = Callable[[Any, list[dict[str, Any]], "KeyState"], Iterable[Mapping[str, Any]] | None]


class KeyState:
    """What ``fn`` of ``hf.apply`` remembers of one key: named values.

    Parameters
    ----------
    values : dict
        Name -> value; None where nothing was set.
    at : StepTime
        The epoch and the batch time that Spark logged: the only clock there is.
    """

    __slots__ = ("_bound", "_values", "at")

    def __init__(self, values: dict[str, Any], at: StepTime) -> None:
        self._bound: Any = None
        self._values = values
        self.at = at

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where nothing was set.

        Raises
        ------
        KeyError
            If the state was not declared with this name.
        """
        value = self._values[self._known(name)]
        return default if value is None else value

    def set(self, **values: Any) -> None:
        """Set values: ``state.set(n=3, total=1.5)``.  None sets a value back to nothing.

        Raises
        ------
        KeyError
            If the state was not declared with such a name.
        """
        for name, value in values.items():
            self._values[self._known(name)] = value

    def bound(self, at: Any) -> None:
        """Promise that ``fn`` gives no row of this key below a time any more: operators behind need not wait for it.

        The time is one of the declared ``timestamp=``: a datetime, or ticks.  The last call in an epoch counts.
        """
        self._bound = at

    def clear(self) -> None:
        """Forget everything of this key."""
        self._values.update(dict.fromkeys(self._values))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return all(value is None for value in self._values.values())

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise KeyError(f"the state has no {name!r}; it is declared with {', '.join(self._values) or 'nothing'}")
        return name


@dataclass(frozen=True)
class Apply:
    """Call ``fn(key, rows, state)`` for each key that has rows in an epoch."""

    fn: Function
    output: FunctionOutput
    state: pa.Schema
    is_one_column: bool
    kind: ClassVar[str] = "apply"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)
    side_outputs: ClassVar[tuple[str, ...]] = ()
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
            "fn": callable_text(self.fn),
            "by": list(self.output.by),
            "schema": checks.spelled(self.output.schema),
            "state": checks.spelled(self.state),
            "forget_after": self.output.forget_after,
            **self.output.promise,
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that of the output."""
        return self.output.shape(inputs)

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds behind it."""
        return self.output.bounds_end("state.bound")

    def step(self, inputs: Mapping[str, pa.Schema]) -> ApplyStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        key = keyed.key_schema(schema, self.output.by)
        if twice := [column for column in self.state.names if column.lower() in {k.lower() for k in key.names}]:
            raise InvalidPipeline(
                f"state= names the column {twice[0]!r}, which is part of the key.",
                why="state is kept by key.",
                do="leave it out: fn receives the key.",
            )
        out, forget_us = self.output.schema, self.output.forget_us
        time, offset = self.output.timestamp, self.output.offset
        return ApplyStep(self.fn, name, schema, key, out, self.state, self.is_one_column, forget_us, time, offset)


@dataclass(frozen=True)
class ApplyStep:
    """The step of :class:`Apply`.  State: ``keys``, one row per key with the declared columns."""

    fn: Function
    name: str
    schema: pa.Schema
    key: pa.Schema
    out: pa.Schema
    state: pa.Schema
    is_one_column: bool
    forget_us: int | None
    time: str | None = None
    offset: int | None = None

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``keys``; none where no state is declared."""
        if not len(self.state):
            return {}
        columns = [*self.key, *(field.with_nullable(True) for field in self.state), pa.field(TOUCHED, pa.int64())]
        return {"keys": StateTable(pa.schema(columns), tuple(self.key.names))}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """What ``fn`` returns."""
        return {"rows": self.out}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Call the function for each key that has rows, in the order in which the keys first arrived."""
        rows = arrivals[self.name].rows
        checks.require_values(rows, self.key.names, self.name)
        old = self._forgotten(state, at)
        given: list[Mapping[str, Any]] = []
        values: list[dict[str, Any]] = []
        gone: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        remembered = self._remembered(state, old, rows)
        for key, of_key in _groups(rows, self.key.names):
            named = dict(zip(self.key.names, key, strict=True))
            one = KeyState(remembered.get(key) or dict.fromkeys(self.state.names), at)
            given += self._called(key, of_key, one)
            if one._bound is not None:
                told.append({**named, own_bounds.COLUMN: one._bound})
            if not one.is_empty:
                values.append({**named, **one._values, TOUCHED: at.batch_us})
            elif key in remembered:
                gone.append(named)
        outputs = {"rows": _table(given, self.out, "what fn returned")}
        bounds = self._bounds(arrivals[self.name].bounds, told)
        if not self.tables:
            return Result(outputs, bounds=bounds)
        declared = self.tables["keys"]
        deletes = _table(gone, tables.key_schema(declared), "a key")
        if old is not None:
            deletes = pa.concat_tables([deletes, tables.fitted(old.select(self.key.names), deletes.schema)])
        change = Change(_table(values, declared.schema, "what fn set in the state"), deletes)
        is_change = change.upserts.num_rows or change.deletes.num_rows
        forgotten = {} if self.forget_us is None else {"forgotten": 0 if old is None else old.num_rows}
        return Result(outputs, {"keys": change} if is_change else {}, bounds, forgotten)

    def _bounds(self, given: pa.Table, told: Sequence[Mapping[str, Any]]) -> pa.Table | None:
        passed = own_bounds.passed_on(given, self.offset)
        if not told:
            return passed
        own = _table(told, own_bounds.schema_of(self.key, self.out, self.time), "what fn told by state.bound")
        return own_bounds.united(self.key, passed, own)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return the table with nulls in what was not declared before: ``get`` returns its default."""
        declared = self.tables[table]
        if known is None:
            return declared.schema.empty_table()

        def fill(column: pa.Field, rows: int) -> pa.Array | None:
            now = pa.repeat(pa.scalar(at.batch_us, pa.int64()), rows)
            return now if column.name == TOUCHED else growth.nulls(column, rows)

        return growth.grown(known, declared, fill)

    def _called(self, key: tuple[Any, ...], of_key: pa.Table, state: KeyState) -> list[Mapping[str, Any]]:
        shown = key[0] if self.is_one_column else key
        try:
            given = list(self.fn(shown, of_key.to_pylist(), state) or ())
            for row in given:
                if not isinstance(row, Mapping):
                    raise TypeError(f"fn gave {row!r}, a {type(row).__name__}; it must return rows as dicts, or None")
        except Exception as error:
            raise StepFailed(of_key, f"function {callable_text(self.fn)!r} for key {shown!r}") from error
        return given

    def _forgotten(self, state: Mapping[str, pa.Table], at: StepTime) -> pa.Table | None:
        """Return the rows of state that nothing has touched for too long."""
        if self.forget_us is None or not self.tables:
            return None
        keys = state["keys"]
        return keys.filter(pc.less_equal(keys.column(TOUCHED), at.batch_us - self.forget_us))

    def _remembered(
        self, state: Mapping[str, pa.Table], old: pa.Table | None, rows: pa.Table
    ) -> dict[tuple[Any, ...], dict[str, Any]]:
        if not self.tables or not rows.num_rows:
            return {}
        names = self.key.names
        known = joins.semi_join(state["keys"], joins.distinct_keys(rows, names), names)
        if old is not None:
            known = joins.anti_join(known, old, names)
        return {
            tuple(row[name] for name in names): {name: row[name] for name in self.state.names}
            for row in known.to_pylist()
        }


def _groups(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield each key with its rows: keys in the order of their first row, rows in the order of arrival."""
    if not rows.num_rows:
        return
    codes = joins.key_codes(rows, key)
    order = np.argsort(codes, kind="stable")
    together = rows.drop_columns([PLACE]).take(pa.array(order))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    keys = [tuple(row.values()) for row in joins.distinct_keys(rows, key).to_pylist()]
    for one, start, end in zip(keys, starts, [*starts[1:], len(order)], strict=True):
        yield one, together.slice(int(start), int(end - start))


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, what: str) -> pa.Table:
    known = set(schema.names)
    for row in rows:
        if not row.keys() <= known:
            odd = next(name for name in row if name not in known)
            raise InvalidPipeline(
                f"{what} has the column {odd!r}, which is not declared.",
                why=f"declared: {checks.spelled(schema)}; returned: {', '.join(map(str, row))}.",
                do="declare it in schema=, or leave it out.",
            )
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
            raise InvalidPipeline(
                f"{what} does not fit the declared column {field.name} {field.type}.",
                why=f"{error}; declared: {checks.spelled(schema)}; the values begin {values[:3]!r}.",
                do="give a value of that type, or declare the type of the value.",
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def apply(
    fn: Function,
    by: str | Sequence[str],
    *,
    schema: str | pa.Schema | Any,
    state: str | pa.Schema | Any | None = None,
    forget_after: str | None = None,
    timestamp: str | None = None,
    timestamp_offset: str | int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Operator:
    """Call a Python function for each key that has rows in an epoch, with a state of its own.

    Parameters
    ----------
    fn : function of key, rows and state, giving dicts
        ``key`` is the key's value, or a tuple of values when ``by`` is a list; ``rows`` the key's rows of this epoch
        as dicts, in the order of their arrival; ``state`` a :class:`KeyState` with ``get``, ``set`` and ``clear``.
        It returns rows as dicts, or None.  It must depend only on its arguments: an epoch may be replayed.
    by : str or sequence of str
        Key columns.
    schema : str, StructType or pyarrow.Schema
        Of what ``fn`` returns.  A column that a row omits is null.
    state : str, StructType or pyarrow.Schema, optional
        Columns of the state, for instance ``"n BIGINT, total DOUBLE"``.
    forget_after : str, optional
        Forget a key without rows for this long, measured in logged batch time: choose it longer than the longest
        time that the pipeline may be stopped.
    timestamp : str, optional
        Column of ``schema`` that holds the event time of what ``fn`` returns.
    timestamp_offset : str or int, optional
        A promise: what ``fn`` returns for a key lies at or above the bounds that its input had before, plus this: a
        duration, or ticks of a BIGINT; also negative.  Bounds of the input then hold behind it, shifted so.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Raises
    ------
    InvalidPipeline
        If ``fn`` does not take three arguments, a schema cannot be read, or (in a run) ``fn`` raises or returns what
        does not fit; the error names operator, bucket, epoch, key and the key's first rows.

    Notes
    -----
    Runs on executors, in Python workers, one call per key and epoch: the cost is in the keys (about 15
    microseconds each) rather than in the rows.  Where column expressions suffice, use
    ``aggregate``, ``accumulate`` or ``stateful``.

    Epochs have arbitrary boundaries. What must not depend on them is kept in ``state``.

    Examples
    --------
    ::

        def running(key, rows, state):
            n = state.get("n", 0) + len(rows)
            state.set(n=n)
            yield {"origin": key, "n": n}

        counts = flights | hf.apply(running, by="origin", state="n BIGINT", schema="origin STRING, n BIGINT")
    """
    with building(Apply.kind, name) as built_at:
        check_callable(fn, "fn", ["key", "rows", "state"], right=_RIGHT)
        output = FunctionOutput.of(by, schema, forget_after, timestamp, timestamp_offset)
        kept = pa.schema([]) if state is None else to_arrow(state, argument="state")
        spec = Apply(fn, output, kept, isinstance(by, str))
        return Operator(spec, name, built_at, past_of(renamed_from, migrate, kind=Apply.kind, built_at=built_at))
