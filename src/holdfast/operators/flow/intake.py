"""What an epoch brings to the graphs of a bucket: packets in the order of time, bounds, and rows that are late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.queues import Payload
from holdfast.operators.flow.idle import INPUT, Silence
from holdfast.operators.flow.rows import Port
from holdfast.state import joins, keyed, tables
from holdfast.state.input_bounds import reported
from holdfast.state.keyed import Ticks
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, UNBOUNDED, Arrivals, Change, StateTable
from holdfast.state.timeline import Promise

_REPEATED = "that an earlier row of its key has"

FedPacket = tuple[int, int, Any]
"""Time, place of the input, payload."""


@dataclass(frozen=True)
class Intake:
    """How rows come to graphs.

    Parameters
    ----------
    inputs : mapping of str to pa.Schema
        Graph input -> columns of its rows.
    key : pa.Schema
        Key columns.
    times : mapping of str to str
        Graph input -> its timestamp column.
    ports : mapping of str to Port
        Graph input -> how its rows become payloads.
    promises : mapping of str to Promise
        Graph input -> what its rows say of those to come.
    """

    inputs: Mapping[str, pa.Schema]
    key: pa.Schema
    times: Mapping[str, str]
    ports: Mapping[str, Port]
    promises: Mapping[str, Promise]

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Rows that wait until nothing can come below them, and bounds: of each key, and for all keys."""
        key, text, number = self.key.names, pa.string(), pa.int64()
        return {
            **{
                waiting_table(name): StateTable(schema, (*key, self.times[name]))
                for name, schema in self.inputs.items()
                if self.promises[name].allows_repeats
            },
            "bounds": StateTable(pa.schema([*self.key, pa.field(INPUT, text), pa.field(BOUND, number)]), (*key, INPUT)),
            "inputs": StateTable(pa.schema([pa.field(INPUT, text), pa.field(BOUND, number)]), (INPUT,)),
        }

    def take_in(
        self,
        state: Mapping[str, pa.Table],
        arrivals: Mapping[str, Arrivals],
        keys: pa.Table,
        forgotten: pa.Table,
        late: pa.Schema,
        silence: Silence,
    ) -> Arrived:
        """Return what an epoch brings to some keys.

        Parameters
        ----------
        state : mapping of str to pa.Table
            As it was before.
        arrivals : mapping of str to Arrivals
            What has come.
        keys : pa.Table
            All keys for which something may happen.
        forgotten : pa.Table
            Keys that begin anew.
        late : pa.Schema
            Of late rows.
        silence : Silence
            Which inputs have kept keys waiting for too long.
        """
        everywhere = known_everywhere(state, self.inputs)
        before = self._bounds(joins.anti_join(state["bounds"], forgotten, self.key.names), keys)
        news = {
            name: reported(given, self.times[name], self.promises[name], keys, before[name], everywhere[name])
            for name, given in arrivals.items()
        }
        now = {name: new.everywhere for name, new in news.items()}
        own = {name: new.bounds for name, new in news.items()}
        own = silence.raise_bounds(keys, own, now, self._latest(state, keys))
        bounds = {name: np.maximum(own[name], now[name]) for name in news}
        first = {name: np.full(keys.num_rows, CLOSED, np.int64) for name in news}
        packets: list[list[FedPacket]] = [[] for _ in range(keys.num_rows)]
        missed: list[tuple[pa.Table, Ticks, Ticks]] = []
        changes: dict[str, Change] = {}
        fed_count = 0

        def miss(name: str, rows: pa.Table, limits: Ticks, why: str) -> None:
            if rows.num_rows:
                shown = keyed.late_rows(late, name, rows, self.times[name], limits, why)
                missed.append((shown, limits, keyed.ticks(rows.column(PLACE))))

        for place, (name, given) in enumerate(arrivals.items()):
            new = news[name]
            miss(name, given.rows.filter(pa.array(new.is_late)), new.before[new.is_late], f"of {name}")
            rows = given.rows.filter(pa.array(~new.is_late))
            if self.promises[name].allows_repeats:
                waiting = state[waiting_table(name)]
                rows, repeats, change, first[name] = self._take_settled(name, rows, waiting, keys, bounds[name])
                changes[waiting_table(name)] = change
                miss(name, repeats, keyed.ticks(repeats.column(self.times[name])) + 1, _REPEATED)
            fed_count += rows.num_rows
            codes = joins.index_in(rows, keys, self.key.names).tolist()
            times = keyed.ticks(rows.column(self.times[name])).tolist()
            payloads = self.ports[name].payloads(rows.drop_columns([PLACE]))
            for code, t, payload in zip(codes, times, payloads, strict=True):
                packets[code].append((t, place, payload))
        for each in packets:
            each.sort(key=lambda packet: packet[:2])
        risen = {name: new.everywhere for name, new in news.items() if new.everywhere > everywhere[name]}
        changes |= self._changed_bounds(keys, own, before, risen)
        return Arrived(
            packets,
            bounds,
            now,
            everywhere,
            bool(risen),
            *_by_arrival(missed, late),
            changes,
            fed_count,
            first,
        )

    def _latest(self, state: Mapping[str, pa.Table], keys: pa.Table) -> Ticks:
        """Return for each key the time behind the last row that waits; UNBOUNDED: none does."""
        found = np.full(keys.num_rows, UNBOUNDED, np.int64)
        for name in self.inputs:
            if waiting_table(name) in state:
                rows = joins.semi_join(state[waiting_table(name)], keys, self.key.names)
                codes = joins.index_in(rows, keys, self.key.names)
                np.maximum.at(found, codes, keyed.ticks(rows.column(self.times[name])) + 1)
        return found

    def _changed_bounds(
        self, keys: pa.Table, bounds: Mapping[str, Ticks], before: Mapping[str, Ticks], risen: Mapping[str, int]
    ) -> dict[str, Change]:
        """Return how the tables of bounds change: of each key, and for all keys."""
        raised = [
            {**key, INPUT: name, BOUND: int(of_keys[code])}
            for name, of_keys in bounds.items()
            for code, key in enumerate(keys.to_pylist())
            if of_keys[code] > before[name][code]
        ]
        for_all = [{INPUT: name, BOUND: bound} for name, bound in risen.items()]
        return {
            "bounds": _upserts(self.tables["bounds"], raised),
            "inputs": _upserts(self.tables["inputs"], for_all),
        }

    def _bounds(self, table: pa.Table, keys: pa.Table) -> dict[str, Ticks]:
        known = joins.semi_join(table, keys, self.key.names)
        codes = joins.index_in(known, keys, self.key.names)
        inputs = np.array(known.column(INPUT).to_pylist(), dtype=object)
        values = keyed.ticks(known.column(BOUND))
        found = {}
        for name in self.inputs:
            mine = inputs == name
            found[name] = np.full(keys.num_rows, UNBOUNDED, np.int64)
            found[name][codes[mine]] = values[mine]
        return found

    def _take_settled(
        self, name: str, rows: pa.Table, waiting: pa.Table, keys: pa.Table, bounds: Ticks
    ) -> tuple[pa.Table, pa.Table, Change, Ticks]:
        """Return the rows that are settled, one for each time; those of a time that is taken; and what waits then.

        Of what waits, how the table changes, and for each key the lowest time.
        """
        before = joins.semi_join(waiting, keys, self.key.names)
        first = pa.array(np.full(before.num_rows, -1, np.int64))
        together = tables.united([before.append_column(PLACE, first), rows], rows.schema)
        codes = joins.index_in(together, keys, self.key.names)
        times = keyed.ticks(together.column(self.times[name]))
        order = np.lexsort((keyed.ticks(together.column(PLACE)), times, codes))
        is_repeat = np.zeros(len(order), bool)
        is_repeat[order[1:]] = (np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0)
        goes = (times < bounds[codes]) & ~is_repeat
        declared = self.tables[waiting_table(name)]
        waits = ~goes & ~is_repeat
        stays = together.filter(pa.array(waits)).drop_columns([PLACE])
        lowest = np.full(keys.num_rows, CLOSED, np.int64)
        np.minimum.at(lowest, codes[waits], times[waits])
        gone = together.filter(pa.array(goes))
        key = list(declared.key)
        change = Change(joins.anti_join(stays, before, key), joins.semi_join(before, gone, key).select(key))
        return gone, together.filter(pa.array(is_repeat)), change, lowest


@dataclass(frozen=True)
class Arrived:
    """What an epoch brings.

    Parameters
    ----------
    packets : sequence of list of FedPacket
        For each key, ascending by time.
    bounds : mapping of str to array of int64
        Graph input -> for each key its bound now.
    everywhere : mapping of str to int
        Graph input -> its bound for all keys now.
    everywhere_before : mapping of str to int
        The same before the epoch.
    has_risen : bool
        Whether one of these has risen.
    late : pa.Table
        Rows that reach no graph, in their order of arrival.
    late_bounds : array of int64
        What each of them was below.
    changes : mapping of str to Change
        Of the tables of the intake.
    fed_count : int
        Rows that reach a graph.
    first : mapping of str to array of int64
        Graph input -> for each key the lowest time of a row that waits; CLOSED: none does.
    """

    packets: Sequence[list[FedPacket]]
    bounds: Mapping[str, Ticks]
    everywhere: Mapping[str, int]
    everywhere_before: Mapping[str, int]
    has_risen: bool
    late: pa.Table
    late_bounds: Ticks
    changes: Mapping[str, Change]
    fed_count: int
    first: Mapping[str, Ticks]

    def bounds_of(self, code: int) -> dict[str, int]:
        """Return graph input -> bound, of a key."""
        return {name: int(of_keys[code]) for name, of_keys in self.bounds.items()}

    def first_of(self, code: int) -> dict[str, int]:
        """Return graph input -> lowest time of a row that waits, of a key."""
        return {name: int(of_keys[code]) for name, of_keys in self.first.items()}


def waiting_table(name: str) -> str:
    """Return the state table of an input's rows that wait."""
    return f"waiting_{name}"


def known_everywhere(state: Mapping[str, pa.Table], names: Mapping[str, Payload]) -> dict[str, int]:
    """Return graph input -> its bound for all keys, before the epoch."""
    known = {row[INPUT]: row[BOUND] for row in state["inputs"].to_pylist()}
    return {name: known.get(name, UNBOUNDED) for name in names}


def rises(given: Arrivals, before: int) -> tuple[bool, bool]:
    """Return whether an input's bound for all keys rises in an epoch, and whether it ends."""
    highest = pc.max(given.bounds.filter(given.bounds.column(ALL_KEYS)).column(BOUND)).as_py()
    return highest is not None and highest > before, highest == CLOSED and before < CLOSED


def _by_arrival(missed: Sequence[tuple[pa.Table, Ticks, Ticks]], late: pa.Schema) -> tuple[pa.Table, Ticks]:
    """Return late rows of several inputs, and what they were below, in the order of their places."""
    order = np.argsort(_concatenate([places for _, _, places in missed]), kind="stable")
    rows = tables.united([tables.empty(late), *(rows for rows, _, _ in missed)], late)
    return rows.take(pa.array(order)), _concatenate([limits for _, limits, _ in missed])[order]


def _concatenate(parts: Sequence[Ticks]) -> Ticks:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _upserts(declared: StateTable, rows: Sequence[Mapping[str, Payload]]) -> Change:
    return Change(pa.Table.from_pylist(list(rows), declared.schema), tables.no_change(declared).deletes)
