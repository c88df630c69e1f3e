"""The step of the gate before the sinks: rows wait until pts has passed them (design/0015).

Rules.  A row leaves when its timestamp lies below pts, and only in an epoch in which pts has changed.  pts is the
minimum of the bounds of all inputs; like each of them it only grows.  Rows leave in the order of time, those of one
timestamp in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import invariant
from holdfast.state import checks, keyed, tables
from holdfast.state.keyed import Ticks
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    CLOSED,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StateTable,
    StepTime,
)
from holdfast.state.timeline import Bools, shifted

INPUT = "input"
PTS = ""
"""The row of the state table ``bounds`` that is pts: no input has this name."""

SEQ = "__seq__"
"""Column of waiting rows: the order in which they came."""

_BOUNDS = StateTable(pa.schema([(INPUT, pa.string()), (BOUND, pa.int64())]), (INPUT,))


@dataclass(frozen=True)
class InputClock:
    """How a source, or an operator by event time, says which rows are still to come.

    Parameters
    ----------
    column : str
        Its timestamp column.
    disorder : int
        Ticks by which a row may be below the highest timestamp of earlier epochs.
    by_rows : bool
        Whether its rows give bounds: those of a source without bound rows do.  Else only bounds that it receives.
    below : int
        Ticks by which rows of a sink may be below the bounds of the input that they come from.
    """

    column: str
    disorder: int
    by_rows: bool
    below: int = 0


@dataclass(frozen=True)
class GateStep:
    """Keeps the rows of all sinks of a pipeline until pts has passed them.

    State: ``waiting_<sink>``, rows with the order in which they came; ``bounds``, the bound of each input, and pts.

    Parameters
    ----------
    inputs : mapping of str to pa.Schema
        A sink's name -> its rows; the name of a source, or of an operator, -> its timestamps.
    times : mapping of str to str, optional
        Sink -> timestamp column of its rows.  None: rows without a time, which go with the next commit.
    clocks : mapping of str to InputClock
        Source, or operator by event time -> how its bound is known.  Never empty.
    max_waiting_rows : int
        How many may wait before sources are held.
    """

    inputs: Mapping[str, pa.Schema]
    times: Mapping[str, str | None]
    clocks: Mapping[str, InputClock]
    max_waiting_rows: int
    key: pa.Schema = field(default_factory=lambda: pa.schema([]))
    for_all_keys: ClassVar[Mapping[str, str]] = {"bounds": ""}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """What waits for each sink, and the bounds."""
        order = pa.field(SEQ, pa.int64())
        waiting = {waiting_for(sink): StateTable(pa.schema([*self.inputs[sink], order]), (SEQ,)) for sink in self.times}
        return {**waiting, "bounds": _BOUNDS}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The rows of each sink; ``rows`` is empty."""
        released = {output_for(sink): self.inputs[sink] for sink in self.times}
        return {"rows": pa.schema([("pts", pa.int64())]), **released}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Take in what has come, find out how far pts is, and let go what lies below it."""
        known = bounds_in(state)
        bounds = {name: max(known.get(name, UNBOUNDED), self._said(name, arrivals[name])) for name in self.clocks}
        before = known.get(PTS, UNBOUNDED)
        pts = max(before, min(bounds.values()))
        outputs: dict[str, pa.Table] = {}
        changes: dict[str, Change] = {}
        late = waiting = 0
        fates = {ABSORBED: sum(arrivals[name].rows.num_rows for name in self.clocks)}
        for sink, time in self.times.items():
            held = _Rows.of(state[waiting_for(sink)], arrivals[sink].rows, time, sink)
            late += int((held.arrived_ticks < before).sum()) if time is not None else 0
            leaves = held.leaving(pts) if pts > before else np.zeros(held.size, bool)
            outputs[output_for(sink)] = held.released(leaves, self.inputs[sink], pts)
            changes[waiting_for(sink)] = held.change(leaves)
            waiting += int((~leaves).sum())
            fates[output_for(sink)] = int(leaves.sum())
        risen = {name: bound for name, bound in {**bounds, PTS: pts}.items() if bound > known.get(name, UNBOUNDED)}
        if risen:
            upserts = pa.table({INPUT: list(risen), BOUND: list(risen.values())}, schema=_BOUNDS.schema)
            changes["bounds"] = Change(upserts, tables.empty(tables.key_schema(_BOUNDS)))
        counts = {"late": late, "waiting_rows": waiting}
        return Result(outputs, changes, None, counts, pts=None if pts == UNBOUNDED else pts, fates=fates)

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many rows wait for the sinks."""
        return sum(state[waiting_for(sink)].num_rows for sink in self.times)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return what waits under the present columns: nothing for a new sink, null in a new column."""
        schema = self.tables[table].schema
        if known is None:
            return schema.empty_table()
        kept = set(known.schema.names)
        is_there = all(
            name in schema.names and schema.field(name).type == known.schema.field(name).type for name in kept
        )
        if not is_there or any(column.name not in kept and not column.nullable for column in schema):
            return None
        columns = [
            known.column(column.name) if column.name in kept else pa.nulls(known.num_rows, column.type)
            for column in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _said(self, name: str, given: Arrivals) -> int:
        """Return the highest bound that an input received in an epoch, or that its rows give."""
        highest_given = pc.max(given.bounds.column(BOUND).filter(given.bounds.column(ALL_KEYS))).as_py()
        highest = UNBOUNDED if highest_given is None else int(highest_given)
        clock = self.clocks[name]
        if clock.by_rows and given.rows.num_rows:
            latest = keyed.ticks(given.rows.column(clock.column).drop_null())
            if len(latest):
                highest = max(highest, int(shifted(latest, -clock.disorder).max()))
        return int(shifted(np.array([highest], np.int64), -clock.below)[0])


@dataclass(frozen=True)
class _Rows:
    """The rows of one sink in an epoch: those that waited, in the order in which they came, then those that came."""

    rows: pa.Table
    ticks: Ticks
    waited: int

    @classmethod
    def of(cls, waiting: pa.Table, arrived: pa.Table, time: str | None, sink: str) -> _Rows:
        waiting = waiting.sort_by(SEQ)
        plain = arrived.drop_columns([PLACE])
        if time is not None:
            checks.require_values(plain, [time], sink)
        first = int(waiting.column(SEQ)[-1].as_py()) + 1 if waiting.num_rows else 0
        order = pa.array(np.arange(first, first + plain.num_rows, dtype=np.int64))
        came = pa.Table.from_arrays([*plain.columns, order], schema=waiting.schema)
        rows = tables.united([waiting, came])
        ticks = np.full(rows.num_rows, UNBOUNDED, np.int64) if time is None else keyed.ticks(rows.column(time))
        return cls(rows, ticks, waiting.num_rows)

    @property
    def size(self) -> int:
        return int(self.rows.num_rows)

    @property
    def arrived_ticks(self) -> Ticks:
        return self.ticks[self.waited :]

    def leaving(self, pts: int) -> Bools:
        """Return which rows go: all, where every input has ended."""
        return np.ones(self.size, bool) if pts == CLOSED else self.ticks < pts

    def released(self, leaves: Bools, schema: pa.Schema, pts: int) -> pa.Table:
        """Return the rows that go, in the order of time, then of arrival."""
        chosen = np.flatnonzero(leaves)
        chosen = chosen[np.argsort(self.ticks[chosen], kind="stable")]
        invariant(
            pts == CLOSED or not len(chosen) or int(self.ticks[chosen[-1]]) < pts,
            "a row at or above pts was to become visible.",
            why="whatever a commit shows lies strictly below its pts.",
        )
        return tables.fitted(self.rows.drop_columns([SEQ]).take(pa.array(chosen)), schema)

    def change(self, leaves: Bools) -> Change:
        """Return how the rows that wait have changed: one that comes and goes at once was never among them."""
        gone, stays = leaves[: self.waited], ~leaves[self.waited :]
        deletes = self.rows.slice(0, self.waited).select([SEQ]).filter(pa.array(gone))
        return Change(self.rows.slice(self.waited).filter(pa.array(stays)), deletes)


def output_for(sink: str) -> str:
    """Return the output with the rows that go to a sink, which may be called ``rows``."""
    return f"to_{sink}"


def waiting_for(sink: str) -> str:
    """Return the state table of the rows that wait for a sink."""
    return f"waiting_{sink}"


def bounds_in(state: Mapping[str, pa.Table]) -> dict[str, int]:
    """Return what a bucket knows: input -> bound, and pts under :data:`PTS`."""
    table = state["bounds"]
    return dict(zip(table.column(INPUT).to_pylist(), table.column(BOUND).to_pylist(), strict=True))
