"""``distinct``: rows without duplicates within a horizon of event time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.building import building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import checked_limit, limit_of
from holdfast.ports import SideRows
from holdfast.state import checks, declared_bounds, joins, keyed, tables
from holdfast.state.keyed import Ticks
from holdfast.state.step import PLACE, UNBOUNDED, Arrivals, Change, Result, StateTable, StepTime

_ROUNDS = 32
"""Up to this many kept rows of one key in one epoch are found for all keys together; the rest goes row by row."""

_CLOCK = StateTable(pa.schema([("clock", pa.int8()), ("newest", pa.int64())]), ("clock",))


@dataclass(frozen=True)
class Distinct:
    """Keep a row unless one of its key, less than ``horizon`` away in event time, was kept before."""

    by: tuple[str, ...]
    timestamp: str
    horizon: str | int
    disorder: str | int
    max_waiting_rows: int | None = None
    kind: ClassVar[str] = "distinct"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``."""
        return {"late": SideRows.of_inputs(self.by, self.input_names)}

    @property
    def time_columns(self) -> tuple[str, ...]:
        """``timestamp``."""
        return (self.timestamp,)

    def arguments(self) -> Mapping[str, Any]:
        """Return key, timestamp, horizon and disorder."""
        return {
            "by": list(self.by),
            "timestamp": self.timestamp,
            "horizon": self.horizon,
            "disorder": self.disorder,
            **({} if self.max_waiting_rows is None else {"max_waiting_rows": self.max_waiting_rows}),
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's shape, after checking the columns."""
        require_columns(self.by, inputs[0].columns, "by=")
        require_columns([self.timestamp], inputs[0].columns, "timestamp=")
        return inputs[0]

    def step(self, inputs: Mapping[str, pa.Schema]) -> DistinctStep:
        """Return the step for rows of a schema."""
        ((name, schema),) = inputs.items()
        time = keyed.time_field(schema, self.timestamp)
        return DistinctStep(
            name,
            schema,
            keyed.key_schema(schema, self.by),
            time.name,
            keyed.duration_ticks(self.horizon, time, "horizon"),
            keyed.duration_ticks(self.disorder, time, "disorder"),
            limit_of(self.max_waiting_rows),
        )


@dataclass(frozen=True)
class DistinctStep:
    """The step of :class:`Distinct`.

    State: ``kept``, the key and time of each row that a later one can still be a duplicate of; ``clock``, the newest
    timestamp; ``bounds``, the declared ones.
    """

    name: str
    schema: pa.Schema
    key: pa.Schema
    time: str
    horizon: int
    disorder: int | None
    max_waiting_rows: int | None = None
    for_all_keys: ClassVar[Mapping[str, str]] = {"clock": ""}
    waiting_tables: ClassVar[tuple[str, ...]] = ("kept",)

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {self.name: self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """``kept``, ``clock`` and ``bounds``."""
        kept = StateTable(pa.schema([*self.key, pa.field("__ticks__", pa.int64())]), (*self.key.names, "__ticks__"))
        return {"kept": kept, "clock": _CLOCK, "bounds": declared_bounds.declared(self.key)}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Rows as they arrived, and late ones."""
        late = keyed.late_schema(self.key, self.schema.field(self.time).type, self.inputs)
        return {"rows": self.schema, "late": late}

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.time

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Drop late rows and duplicates; remember what was kept as long as it can matter."""
        given = arrivals[self.name]
        if given.rows.num_rows == 0 and given.bounds.num_rows == 0:
            return Result(fates={})
        checks.require_values(given.rows, [*self.key.names, self.time], self.name)
        before = _newest(state["clock"])
        times = keyed.ticks(given.rows.column(self.time))
        declared_limits = declared_bounds.limits(state["bounds"], given, self.key, self.time, self._reached(before))
        in_time = times[times >= declared_limits.of_rows]
        newest = max(before, int(in_time.max())) if len(in_time) else before
        promised = self._promised(np.where(times < declared_limits.of_rows, UNBOUNDED, times), before)
        limits = np.maximum(promised, declared_limits.of_rows)
        is_late = times < limits
        fresh = given.rows.filter(pa.array(~is_late))
        keep = self._first(fresh, times[~is_late], state["kept"])
        kept = fresh.filter(pa.array(keep))
        oldest = max(self._reached(newest), declared_limits.everywhere)
        changes = self._changes(state["kept"], kept, times[~is_late][keep], oldest - self.horizon)
        if declared_limits.change is not None:
            changes["bounds"] = declared_limits.change
        if newest > before:
            clock = pa.Table.from_arrays([[0], [newest]], schema=_CLOCK.schema)
            changes["clock"] = Change(clock, tables.empty(tables.key_schema(_CLOCK)))
        late = self._late(given.rows, is_late, promised >= declared_limits.of_rows, limits)
        return Result(
            {"rows": kept.drop_columns([PLACE]), "late": late},
            changes,
            given.bounds.drop_columns([PLACE]) if given.bounds.num_rows else None,
            {
                **keyed.late_counts(limits[is_late]),
                **keyed.counted("dropped", {keyed.DUPLICATE: fresh.num_rows - kept.num_rows}),
            },
            fates={"late": int(is_late.sum()), "rows": int(keep.sum()), "dropped": int((~keep).sum())},
        )

    def by_bounds(self, inputs: Collection[str]) -> DistinctStep:
        """Return the step for which rows promise nothing."""
        return replace(self, disorder=None) if self.name in inputs else self

    def _reached(self, newest: int) -> int:
        """Return the bound that follows from the newest timestamp."""
        return UNBOUNDED if self.disorder is None else max(UNBOUNDED, newest - self.disorder)

    def _promised(self, times: Ticks, newest: int) -> Ticks:
        """Return for each row the bound that follows from the rows before it."""
        if self.disorder is None:
            return np.full(len(times), UNBOUNDED, np.int64)
        before = np.maximum.accumulate(np.concatenate([[np.int64(newest)], times]))[:-1]
        return np.where(before < UNBOUNDED + self.disorder, UNBOUNDED, before - self.disorder)

    def _late(
        self, rows: pa.Table, is_late: npt.NDArray[np.bool_], is_own: npt.NDArray[np.bool_], limits: Ticks
    ) -> pa.Table:
        """Return late rows in the order of arrival: those below what rows promise, and those below a declared bound."""
        schema, late = self.outputs["late"], rows.filter(pa.array(is_late))
        own = np.where(is_own[is_late], "of the input", declared_bounds.WHY)
        return keyed.late_rows(schema, self.name, late, self.time, limits[is_late], pa.array(own, pa.string()))

    def _first(self, rows: pa.Table, times: Ticks, kept: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows stay, in the order of arrival."""
        key = self.key.names
        codes = joins.key_codes(rows, key)
        keys = joins.distinct_keys(rows, key)
        known = joins.semi_join(kept, keys, key)
        of_known = joins.index_in(known, keys, key)
        stays = np.zeros(len(times), bool)
        left = np.flatnonzero(~_near(codes, times, of_known, keyed.ticks(known.column("__ticks__")), self.horizon))
        left = left[np.argsort(codes[left], kind="stable")]
        latest = np.zeros(keys.num_rows, np.int64)
        for _ in range(_ROUNDS):
            if not len(left):
                return stays
            is_first = np.concatenate([[True], codes[left][1:] != codes[left][:-1]])
            first = left[is_first]
            stays[first] = True
            latest[codes[first]] = times[first]
            left = left[np.abs(times[left] - latest[codes[left]]) >= self.horizon]
        _row_by_row(stays, left, codes, times, self.horizon)
        return stays

    def _changes(self, known: pa.Table, kept: pa.Table, times: Ticks, oldest: int) -> dict[str, Change]:
        """Return what changes in the table of kept rows; a row at or before ``oldest`` matters no more."""
        declared = self.tables["kept"]
        upserts = kept.select(self.key.names).append_column("__ticks__", pa.array(times, pa.int64()))
        upserts = upserts.filter(pc.greater(upserts.column("__ticks__"), oldest)) if oldest > UNBOUNDED else upserts
        deletes = tables.empty(declared.schema)
        if oldest > UNBOUNDED:
            deletes = known.filter(pc.less_equal(known.column("__ticks__"), oldest))
        if not upserts.num_rows and not deletes.num_rows:
            return {}
        return {"kept": Change(tables.fitted(upserts, declared.schema), deletes)}


def _newest(clock: pa.Table) -> int:
    return int(clock.column("newest")[0].as_py()) if clock.num_rows else UNBOUNDED


def _near(codes: Ticks, times: Ticks, of_known: Ticks, known: Ticks, horizon: int) -> npt.NDArray[np.bool_]:
    """Return for each row whether a known one of its key is less than the horizon away."""
    if not len(known):
        return np.zeros(len(times), bool)
    # Key and time as one sortable number: times by their rank, which leaves room for the key.
    ranks = np.unique(np.concatenate([times, known]))
    places = of_known * len(ranks) + np.searchsorted(ranks, known)
    order = np.argsort(places)
    at = np.searchsorted(places[order], codes * len(ranks) + np.searchsorted(ranks, times))
    near = np.zeros(len(times), bool)
    for neighbour in (at - 1, at):
        valid = (neighbour >= 0) & (neighbour < len(known))
        one = order[np.clip(neighbour, 0, len(known) - 1)]
        near |= valid & (of_known[one] == codes) & (np.abs(times - known[one]) < horizon)
    return near


def _row_by_row(stays: npt.NDArray[np.bool_], left: Ticks, codes: Ticks, times: Ticks, horizon: int) -> None:
    """Decide the rows of keys of which very many stay: all of them are further than the horizon from those before."""
    kept: list[int] = []
    code = -1
    for row in left.tolist():
        if codes[row] != code:
            code, kept = int(codes[row]), []
        time = int(times[row])
        place = bisect_left(kept, time)
        if (place < len(kept) and kept[place] - time < horizon) or (place and time - kept[place - 1] < horizon):
            continue
        insort(kept, time)
        stays[row] = True


@dataclass(frozen=True)
class DistinctAnywhere:
    """A distinct that has no input yet: what ``hf.distinct(...)`` returns."""

    by: tuple[str, ...]
    timestamp: str | None
    horizon: str | int
    disorder: str | int
    name: str | None
    origin: Origin
    past: Evolution = NOTHING
    max_waiting_rows: int | None = None

    def attach(self, stream: Stream) -> Stream:
        """Return the stream without duplicates."""
        with building(Distinct.kind, self.name, self.origin):
            timestamp = keyed.timestamp_of(stream, self.timestamp, here='hf.distinct(..., timestamp="time_hour")')
            spec = Distinct(self.by, timestamp, self.horizon, self.disorder, self.max_waiting_rows)
        return apply(spec, (stream,), name=self.name, built_at=self.origin, past=self.past)


def distinct(
    by: str | Sequence[str],
    horizon: str | int,
    *,
    disorder: str | int | None = None,
    timestamp: str | None = None,
    max_waiting_rows: int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> DistinctAnywhere:
    """Drop duplicates within a horizon of event time; the first to arrive is kept.

    Parameters
    ----------
    by : str or sequence of str
        Columns that make two rows duplicates.
    horizon : str or int
        A row is dropped when a row of its key was kept less than this away from it, before or after; text with a unit
        (``"1 h"``), or ticks for a BIGINT timestamp.
    disorder : str or int, optional
        How far below the newest timestamp of the whole input a row may be.  One that is further below goes to
        ``late``.  By default the horizon.
    timestamp : str, optional
        The column of event time; by default the one that the source declares.
    max_waiting_rows : int, optional
        Number of kept rows of one key from which the sources are throttled where that helps; by default 1,000,000.  A
        kept row waits for its own source to go on, so here it never helps: the limit is relaxed and reported (the
        log, and ``limit_relaxed`` of the status).  Nothing is dropped.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    DistinctAnywhere
        To be used to the right of ``stream |``.  Rows are emitted immediately, in the order of their arrival; dropped
        ones are counted as ``dropped``, late ones as ``late``.

    Raises
    ------
    InvalidPipeline
        If a duration cannot be read, or (when attached) a column does not exist.

    Notes
    -----
    State is one row for each row kept in the last ``horizon + disorder`` of event time; it is forgotten after that.

    Examples
    --------
    ::

        once = events | hf.distinct(by="event_id", horizon="1 h", name="once")
    """
    with building(Distinct.kind, name) as built_at:
        keys = keyed.key_names(by)
        keyed.check_duration(horizon, "horizon")
        if disorder is not None:
            keyed.check_duration(disorder, "disorder", least=0)
        allowed = horizon if disorder is None else disorder
        past = past_of(renamed_from, migrate, kind=Distinct.kind, built_at=built_at)
        limit = checked_limit(max_waiting_rows)
        return DistinctAnywhere(keys, timestamp, horizon, allowed, name, built_at, past, limit)
