"""``apply``: a Python function per key with a state of its own, for what column expressions cannot express."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin, callable_text
from holdfast.graph.nodes import Operator, Stream
from holdfast.graph.nodes import apply as applied
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_callable
from holdfast.operators.stateful import own_bounds
from holdfast.operators.stateful.function_output import FunctionOutput
from holdfast.operators.stateful.key_state import KeyState
from holdfast.operators.stateful.timers import BATCH, EVENT, EpochTimers, TimerRules, TimerTable, checked_clocks
from holdfast.ports import SideRows
from holdfast.state import checks, growth, joins, keyed, tables
from holdfast.state.call import StepFailed
from holdfast.state.step import ABSORBED, PLACE, Arrivals, Change, Result, StateTable, StepTime
from holdfast.types.schema import to_arrow

TOUCHED = "__touched_us__"
"""Column of the state: batch time of the last epoch that had rows of the key."""

_TIMED = 'hf.apply(..., event_time="time_hour")'
_RIGHT = 'hf.apply(fn, by="origin", state="n BIGINT", schema="origin STRING, n BIGINT") with def fn(key, rows, state)'

Function = Callable[[Any, list[dict[str, Any]], KeyState], Iterable[Mapping[str, Any]] | None]


@dataclass(frozen=True)
class Apply:
    """Call ``fn(key, rows, state)`` for each key that has rows in an epoch."""

    fn: Function
    output: FunctionOutput
    state: pa.Schema
    is_one_column: bool
    timers: TimerRules | None = None
    kind: ClassVar[str] = "apply"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        """That of event timers, or those of the output; without either only the end is passed downstream."""
        return self.output.time_columns if self.timers is None or not self.timers.time else (self.timers.time,)

    @property
    def wakes(self) -> bool:
        """Whether a timer uses batch time."""
        return self.timers is not None and BATCH in self.timers.clocks

    @property
    def watches_clock(self) -> bool:
        """Whether keys are forgotten, or a timer uses batch time."""
        return bool(self.output.forget_after) or self.wakes

    def arguments(self) -> Mapping[str, Any]:
        """Return the function's name and hash, key, schemas and TTL."""
        return {
            "fn": callable_text(self.fn),
            "by": list(self.output.by),
            "schema": checks.spelled(self.output.schema),
            "state": checks.spelled(self.state),
            "forget_after": self.output.forget_after,
            **self.output.promise,
            **({} if self.timers is None else self.timers.arguments()),
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that of the output."""
        if self.timers is not None and self.timers.time is not None:
            require_columns((self.timers.time,), inputs[0].columns, "event_time=")
        return self.output.shape(inputs)

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
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
        timers = None if self.timers is None else self.timers.table(name, schema, key)
        return ApplyStep(
            self.fn, name, schema, key, out, self.state, self.is_one_column, forget_us, time, offset, timers
        )


@dataclass(frozen=True)
class ApplyStep:
    """The step of :class:`Apply`.

    State: ``keys``, one row per key with the declared columns; ``timers``, and the ``bounds`` that they go by.
    """

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
    timers: TimerTable | None = None

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``keys`` where state is declared, ``timers`` and ``bounds`` where there are timers."""
        of_timers = {} if self.timers is None else self.timers.declared
        if not len(self.state):
            return of_timers
        columns = [*self.key, *(field.with_nullable(True) for field in self.state), pa.field(TOUCHED, pa.int64())]
        return {"keys": StateTable(pa.schema(columns), tuple(self.key.names)), **of_timers}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """What ``fn`` returns."""
        return {"rows": self.out}

    def by_bounds(self, inputs: Collection[str]) -> ApplyStep:
        """Return the step for which rows promise nothing."""
        if self.timers is None or self.name not in inputs:
            return self
        return replace(self, timers=self.timers.by_bounds())

    def time_of(self, name: str) -> str | None:
        """Return the timestamp column of an input."""
        return self.time

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Call the function for each key that has rows, in the order in which they first arrived, then for timers."""
        rows = arrivals[self.name].rows
        timed = [] if self.timers is None or self.timers.time is None else [self.timers.time.name]
        checks.require_values(rows, [*self.key.names, *timed], self.name)
        timers = None if self.timers is None else self.timers.opened(state, arrivals[self.name], at)
        old = self._forgotten(state, at, timers)
        keys = rows if timers is None else timers.keys
        calls = _Calls(self, at, timers, self._remembered(state, old, keys))
        taken = 0
        for key, of_key in _groups(rows, self.key.names):
            calls.rows(key, of_key)
            taken += of_key.num_rows
        if timers is not None:
            calls.fire(timers)
        outputs = {"rows": _table(calls.given, self.out, "what fn returned")}
        bounds = self._bounds(arrivals[self.name].bounds, calls.bounds())
        counts = {} if self.forget_us is None else {"forgotten": 0 if old is None else old.num_rows}
        changes = {} if "keys" not in self.tables else self._changes(calls, old)
        if timers is None:
            return Result(outputs, changes, bounds, counts, fates={ABSORBED: taken})
        due_us, is_done = timers.outlook()
        bounds = own_bounds.with_end(bounds, self.key, is_done=is_done)
        return Result(
            outputs,
            changes | timers.changes(),
            bounds,
            counts | {"fired": calls.fired_count},
            due_us,
            fates={ABSORBED: taken},
        )

    def _bounds(self, given: pa.Table, stated: Sequence[Mapping[str, Any]]) -> pa.Table | None:
        passed = own_bounds.passed_on(given, self.offset)
        if not stated:
            return passed
        own = _table(stated, own_bounds.schema_of(self.key, self.out, self.time), "what fn passed to state.bound")
        return own_bounds.united(self.key, passed, own)

    def _changes(self, calls: _Calls, old: pa.Table | None) -> dict[str, Change]:
        declared = self.tables["keys"]
        values, gone = calls.states()
        deletes = _table(gone, tables.key_schema(declared), "a key")
        if old is not None:
            deletes = tables.united([deletes, old.select(self.key.names)], deletes.schema)
        change = Change(_table(values, declared.schema, "what fn set in the state"), deletes)
        return {"keys": change} if change.upserts.num_rows or change.deletes.num_rows else {}

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return the table with nulls in what was not declared before: ``get`` returns its default."""
        declared = self.tables[table]
        if known is None:
            return declared.schema.empty_table()

        def fill(column: pa.Field, rows: int) -> pa.Array | None:
            now = pa.repeat(pa.scalar(at.batch_us, pa.int64()), rows)
            return now if column.name == TOUCHED else growth.nulls(column, rows)

        return growth.grown(known, declared, fill)

    def called(self, key: tuple[Any, ...], of_key: pa.Table, state: KeyState) -> list[Mapping[str, Any]]:
        """Return the rows that the function returns for a key."""
        shown = key[0] if self.is_one_column else key
        try:
            given = list(self.fn(shown, of_key.to_pylist(), state) or ())
            for row in given:
                if not isinstance(row, Mapping):
                    raise TypeError(f"fn gave {row!r}, a {type(row).__name__}; it must return rows as dicts, or None")
        except Exception as error:
            why = "" if state.fired is None else f" and the timer of {state.fired.at}"
            of = f"function {callable_text(self.fn)!r} for key {shown!r}{why}"
            raise StepFailed(of_key, of, is_of_timer=state.fired is not None) from error
        return given

    def _forgotten(self, state: Mapping[str, pa.Table], at: StepTime, timers: EpochTimers | None) -> pa.Table | None:
        """Return the rows of state that nothing has touched for too long; a key that waits for a timer stays."""
        if self.forget_us is None or "keys" not in self.tables:
            return None
        keys = state["keys"]
        old = keys.filter(pc.less_equal(keys.column(TOUCHED), at.batch_us - self.forget_us))
        return old if timers is None else timers.untimed(old)

    def _remembered(
        self, state: Mapping[str, pa.Table], old: pa.Table | None, rows: pa.Table
    ) -> dict[tuple[Any, ...], dict[str, Any]]:
        if "keys" not in self.tables or not rows.num_rows:
            return {}
        names = self.key.names
        known = joins.semi_join(state["keys"], joins.distinct_keys(rows, names), names)
        if old is not None:
            known = joins.anti_join(known, old, names)
        return {
            tuple(row[name] for name in names): {name: row[name] for name in self.state.names}
            for row in known.to_pylist()
        }


class _Calls:
    """The calls of one epoch, what they returned, and the state of each key that was called."""

    def __init__(
        self,
        step: ApplyStep,
        at: StepTime,
        timers: EpochTimers | None,
        remembered: Mapping[tuple[Any, ...], dict[str, Any]],
    ) -> None:
        self._step = step
        self._at = at
        self._timers = timers
        self._remembered = remembered
        self._states: dict[tuple[Any, ...], KeyState] = {}
        self.given: list[Mapping[str, Any]] = []
        self.fired_count = 0

    def rows(self, key: tuple[Any, ...], of_key: pa.Table) -> None:
        """Call the function for the rows of a key, then for its timers that are due."""
        self.given += self._step.called(key, of_key, self._state(key))
        if self._timers is not None:
            self._fire(key, self._timers)

    def fire(self, timers: EpochTimers) -> None:
        """Call the function for the timers of keys without rows."""
        for key in timers.silent({*self._states}):
            self._fire(key, timers)

    def states(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows of state after the calls, and the keys of which none is left."""
        values, gone = [], []
        for key, state in self._states.items():
            named = dict(zip(self._step.key.names, key, strict=True))
            if not state.is_empty:
                values.append({**named, **state._values, TOUCHED: self._at.batch_us})
            elif key in self._remembered:
                gone.append(named)
        return values, gone

    def bounds(self) -> list[dict[str, Any]]:
        """Return the bounds that the function has set, beside their keys."""
        names = self._step.key.names
        of = self._states.items()
        return [
            {**dict(zip(names, key, strict=True)), own_bounds.COLUMN: state._bound}
            for key, state in of
            if state._bound is not None
        ]

    def _state(self, key: tuple[Any, ...]) -> KeyState:
        values = self._remembered.get(key)
        values = dict.fromkeys(self._step.state.names) if values is None else dict(values)
        self._states[key] = KeyState(values, self._at, None if self._timers is None else self._timers.of(key))
        return self._states[key]

    def _fire(self, key: tuple[Any, ...], timers: EpochTimers) -> None:
        no_rows = self._step.schema.empty_table()
        for fired in timers.of(key).firing():
            state = self._states.get(key) or self._state(key)
            state.fired = fired
            self.given += self._step.called(key, no_rows, state)
            self.fired_count += 1


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


@dataclass(frozen=True)
class ApplyAnywhere:
    """An ``apply`` with event timers that has no input yet: its event time is the stream's."""

    spec: Apply
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the stream of what the function returns."""
        with building(Apply.kind, self.name, self.origin):
            rules = self.spec.timers
            assert rules is not None
            timed = replace(self.spec, timers=replace(rules, time=keyed.timestamp_of(stream, rules.time, here=_TIMED)))
        return applied(timed, (stream,), name=self.name, built_at=self.origin, past=self.past)


def apply(
    fn: Function,
    by: str | Sequence[str],
    *,
    schema: str | pa.Schema | Any,
    state: str | pa.Schema | Any | None = None,
    forget_after: str | None = None,
    timestamp: str | None = None,
    timestamp_offset: str | int | None = None,
    timers: str | Sequence[str] | None = None,
    event_time: str | None = None,
    disorder: str | int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Operator | ApplyAnywhere:
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
        duration, or ticks of a BIGINT; also negative.  Bounds of the input then hold downstream of it, shifted so.
    timers : str or sequence of str, optional
        ``"event"``, ``"batch"`` or both: ``fn`` may call ``state.timer(at)`` to be called again for its key, without
        rows and with ``state.fired``.
    event_time : str, optional
        With event timers, the input's column of event time; by default the one that the source declares.
    disorder : str or int, optional
        With event timers: a row of a key is at most this far behind the key's newest one, so that its own rows let its
        timers fire.  Without it they fire by bounds alone: those that a source declares, those of an operator before,
        and the end.
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
        past = past_of(renamed_from, migrate, kind=Apply.kind, built_at=built_at)
        clocks = () if timers is None else checked_clocks(timers)
        if EVENT not in clocks and (event_time, disorder) != (None, None):
            raise InvalidPipeline(
                "event_time= and disorder= are for event timers.",
                why="without timers='event' nothing uses the event time of the input.",
                do='write timers="event", or leave them out.',
            )
        if disorder is not None:
            keyed.check_duration(disorder, "disorder", least=0)
        rules = TimerRules(clocks, event_time, disorder) if clocks else None
        spec = Apply(fn, output, kept, isinstance(by, str), rules)
        if EVENT in clocks:
            return ApplyAnywhere(spec, name, built_at, past)
        return Operator(spec, name, built_at, past)
