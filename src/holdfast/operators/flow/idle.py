"""Inputs that keep a key waiting for too long, and what the key does then: it goes on without them, as in ``sync``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.drawing import policy_text
from holdfast.flow.graph import Graph
from holdfast.flow.run import Run
from holdfast.flow.timestamps import DONE
from holdfast.state import joins, keyed, tables, timeline
from holdfast.state.keyed import Ticks
from holdfast.state.step import ALL_KEYS, CLOSED, UNBOUNDED, Arrivals, Change, StateTable, StepTime
from holdfast.state.timeline import Bools

INPUT = "__input__"
SINCE = "__since_us__"
REACH = "__reach__"
"""Column of the state: the time behind the last packet that waits for an input in a graph.

UNBOUNDED: only rows before the graph wait for it.  Null: nothing waits for it any more, and it has been silent since:
who was idle is so until it speaks.
"""

WAITS = ((INPUT, pa.string()), (SINCE, pa.int64()), (REACH, pa.int64()))
"""Columns of the table ``waits``, after the key."""

POLICIES = ("settled", "sync_sets", "early_close")
"""Those that wait for the bounds of all inputs: the idle rule helps them alone."""


Waiting = dict[str, int]
"""Graph input that is waited for -> the time behind the last packet that waits in the graph."""


class WaitedFor:
    """Which inputs of a graph its nodes wait for.

    Parameters
    ----------
    graph : Graph
        The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._feeding = _feeding(graph)
        self.nodes = {name for name, each in graph.nodes.items() if policy_text(graph.policy_of(each)) in POLICIES}
        """Nodes that wait for bounds."""

        self.groups: list[set[str]] = [{name} for name in graph.inputs]
        """Inputs that wait for each other, by what they feed."""

        for name in self.nodes:
            placed = graph.nodes[name]
            policy = graph.policy_of(placed)
            sets = [] if policy is None or isinstance(policy, type) else policy.arguments().get("groups", ())
            others = [port for port in placed.inputs if not any(port in each for each in sets)]
            for ports in (*sets, others):
                self._unite(set().union(*(self._of(graph, placed.inputs[port].name) for port in ports)))

    def by(self, run: Run, first: Mapping[str, int], bounds: Mapping[str, int]) -> Waiting:
        """Return the graph inputs that keep something waiting, in a graph that is idle or before it.

        Parameters
        ----------
        run : Run
            The graph.
        first : mapping of str to int
            Graph input -> the lowest time of a row that waits before it; CLOSED: none does.
        bounds : mapping of str to int
            Graph input -> its bound.
        """
        found: Waiting = {}
        inside = dict.fromkeys(first, CLOSED)
        for node in run.engine.nodes:
            waiting = [queue for queue in node.queues if queue.items]
            if node.name not in self.nodes or not waiting or node.is_closed:
                continue
            lowest, last = min(queue.items[0][0] for queue in waiting), max(queue.items[-1][0] for queue in waiting)
            for queue in node.policy.missing():
                feeding = {name: run.stream_bound(name) for name in self._feeding.get(queue.stream, ())}
                behind = {name for name, bound in feeding.items() if bound <= lowest}
                least = min(feeding.values(), default=DONE)  # where offsets are between: who has come least far
                for name in behind or (each for each, bound in feeding.items() if bound == least < DONE):
                    found[name] = max(last + 1, found.get(name, UNBOUNDED))
                    inside[name] = min(lowest, inside[name])
        for group in self.groups:
            lowest = min(first[name] for name in group)
            if lowest < CLOSED and lowest <= min(inside[name] for name in group):  # else it waits for what is inside
                found |= {name: found.get(name, UNBOUNDED) for name in group if bounds[name] <= lowest}
        return found

    def _of(self, graph: Graph, stream: str) -> set[str]:
        source = graph.loops.get(stream)
        return self._feeding.get(stream if source is None else source.name, set())

    def _unite(self, names: set[str]) -> None:
        together = [group for group in self.groups if group & names]
        if len(together) > 1:
            self.groups = [group for group in self.groups if not group & names] + [set().union(*together)]


def runs_on_bounds(graph: Graph) -> bool:
    """Return whether bounds alone make a graph do or promise something else than one in which nothing waits.

    So where a calculator is called for times without packets, or a policy moves times by what it has seen.
    """
    policies = [graph.policy_of(placed) for placed in graph.nodes.values()]
    return any(placed.node.contract.process_timestamp_bounds for placed in graph.nodes.values()) or any(
        policy is not None and (isinstance(policy, type) or policy.kind == "timestamp_align") for policy in policies
    )


def _feeding(graph: Graph) -> dict[str, set[str]]:
    """Return stream -> the graph inputs from which what it has comes."""
    found = {stream.name: {name} for name, stream in graph.inputs.items()}
    loops = {edge: source.name for edge, source in graph.loops.items() if source is not None}
    is_new = True
    while is_new:  # once through the graph, and again for back edges
        is_new = False
        for placed in graph.nodes.values():
            streams = [loops.get(stream.name, stream.name) for stream in placed.inputs.values()]
            names = set().union(*(found.get(stream, set()) for stream in streams))
            for stream in placed.outputs.values():
                is_new = is_new or found.get(stream.name) != names
                found[stream.name] = names
    return found


class Silence:
    """Since when keys wait for inputs, in one epoch.

    Parameters
    ----------
    declared : StateTable
        The table ``waits``: key, input, and the batch time since which it is waited for.
    key : sequence of str
        Key columns.
    table : pa.Table
        Its rows before the epoch.
    arrivals : mapping of str to Arrivals
        What has come: who has spoken is waited for anew.
    at : StepTime
        The time of the epoch.
    idle_us : int, optional
        After which an input that is waited for is idle; None: never, and nothing is kept.
    groups : sequence of set of str
        Inputs that wait for each other.
    """

    def __init__(
        self,
        declared: StateTable,
        key: Sequence[str],
        table: pa.Table,
        arrivals: Mapping[str, Arrivals],
        at: StepTime,
        idle_us: int | None,
        groups: Sequence[set[str]],
    ) -> None:
        self._groups = groups
        self._declared = declared
        self._key = list(key)
        self._table = table
        self._at = at
        self._idle_us = idle_us
        self._inputs = np.array(table.column(INPUT).to_pylist(), dtype=object)
        self._since = keyed.ticks(table.column(SINCE))
        self._is_awaited = np.asarray(table.column(REACH).is_valid()).astype(bool)
        self._reach = keyed.ticks(table.column(REACH).fill_null(UNBOUNDED))
        self._has_spoken = np.zeros(table.num_rows, bool)
        self._due = np.full(table.num_rows, CLOSED, np.int64)
        for name, given in arrivals.items():
            mine = self._inputs == name
            self._has_spoken[mine] = self._speaks(given, table.filter(pa.array(mine)))
            if idle_us is not None:
                self._due[mine] = at.silent_since(name, self._since[mine]) + idle_us
        self._is_idle = ~self._has_spoken & (self._due <= at.batch_us)

    def _speaks(self, given: Arrivals, waits: pa.Table) -> Bools:
        if pc.any(given.bounds.column(ALL_KEYS)).as_py():
            return np.ones(waits.num_rows, bool)
        of_keys = tables.united([given.rows.select(self._key), given.bounds.select(self._key)])
        return np.asarray(joins.member_mask(waits, of_keys, self._key)).astype(bool)

    def keys(self) -> pa.Table:
        """Return the keys for which something changes: that have waited long enough, or wait anew."""
        is_new = self._is_awaited & (self._is_idle | self._has_spoken)
        return self._table.filter(pa.array(is_new)).select(self._key)

    def raise_bounds(
        self,
        keys: pa.Table,
        own: dict[str, Ticks],
        everywhere: Mapping[str, int],
        latest: Ticks,
    ) -> dict[str, Ticks]:
        """Return the bounds of keys, those of idle inputs raised to the lowest that the others have.

        Parameters
        ----------
        keys : pa.Table
            Keys.
        own : mapping of str to array of int64
            Input -> for each key its own bound.
        everywhere : mapping of str to int
            Input -> its bound for all keys.
        latest : array of int64
            For each key the time behind the last row that waits; UNBOUNDED: none does.
        """
        if not self._is_idle.any():
            return own
        found = dict(own)
        codes = joins.index_in(self._table, keys, self._key)
        idle = self._is_idle & (codes >= 0)
        for group in self._groups:
            names = [name for name in own if name in group]
            bounds = np.column_stack([np.maximum(own[name], everywhere[name]) for name in names])
            is_idle = np.zeros(bounds.shape, bool)
            for place, name in enumerate(names):
                is_idle[codes[idle & (self._inputs == name)], place] = True
            reached = latest.copy()
            np.maximum.at(reached, codes[idle], self._reach[idle])
            raised = timeline.idle_raised(bounds, is_idle, reached)
            # Silence is no end: rows below are late then, but the input goes on.
            raised = np.where(raised == CLOSED, np.maximum(bounds, reached[:, None]), raised)
            for place, name in enumerate(names):
                found[name] = np.where(is_idle[:, place], np.maximum(own[name], raised[:, place]), own[name])
        return found

    def change(self, keys: pa.Table, waits: Sequence[Waiting]) -> tuple[Change, int | None]:
        """Return how the table changes, and when the next input has kept a key waiting for too long.

        Parameters
        ----------
        keys : pa.Table
            Keys that ran.
        waits : sequence of Waiting
            For each of them the inputs that it waits for.
        """
        if self._idle_us is None:
            return Change(self._table.slice(0, 0), self._table.select(list(self._declared.key))), None
        codes = joins.index_in(self._table, keys, self._key)
        runs = codes >= 0
        dues = self._due[~runs & self._is_awaited & ~self._has_spoken].tolist()
        rows: dict[int, dict[str, int]] = {}
        for row in np.flatnonzero(runs & ~self._has_spoken).tolist():
            rows.setdefault(int(codes[row]), {})[str(self._inputs[row])] = row
        upserts = []
        for code, key in enumerate(keys.to_pylist()):
            silent = rows.get(code, {})
            for name in sorted(silent.keys() | waits[code].keys()):
                row, reach = silent.get(name, -1), waits[code].get(name)
                since = self._at.batch_us if row < 0 else int(self._since[row])
                if row < 0 or reach != (int(self._reach[row]) if self._is_awaited[row] else None):
                    upserts.append({**key, INPUT: name, SINCE: since, REACH: reach})
                if reach is not None and (row < 0 or not self._is_idle[row]):
                    dues.append(int(self._at.silent_since(name, np.array([since]))[0]) + self._idle_us)
        gone = self._table.filter(pa.array(self._has_spoken)).select(list(self._declared.key))
        change = Change(pa.Table.from_pylist(upserts, self._declared.schema), gone)
        return change, min(dues, default=None)
