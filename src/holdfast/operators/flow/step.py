"""The step of ``flow``: a graph of calculators for each key, whose state is what waits in it and what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.flow import saving
from holdfast.flow.executors import Application, Threads
from holdfast.flow.graph import Graph
from holdfast.flow.queues import Payload
from holdfast.flow.run import Run
from holdfast.flow.saving import SavedNode
from holdfast.operators.flow import live
from holdfast.operators.flow import rows as edge
from holdfast.operators.flow.idle import INPUT, SINCE, WAITS, Silence, WaitedFor, Waiting, runs_on_bounds
from holdfast.operators.flow.intake import Arrived, FedPacket, Intake, known_everywhere, rises, waiting_table
from holdfast.operators.flow.rows import Port
from holdfast.operators.flow.stored import (
    NODE,
    SET,
    STATE,
    ChangedRows,
    key_text,
    replays_of,
    rows_of_key,
    states_by_key,
    with_key,
)
from holdfast.state import checks, growth, joins, keyed, tables
from holdfast.state.call import StepFailed
from holdfast.state.keyed import Ticks
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    CLOSED,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StateTable,
    StepTime,
)
from holdfast.state.timeline import Promise

OUT = "__out__"
WAITING = "__waiting__"
"""Column of the state: how many packets of a key wait in queues and batches."""


@dataclass(frozen=True)
class FlowStep:
    """A graph of calculators for each key.

    State: ``nodes``, for each key and node of the graph what it has waiting and holds; ``replays``, the input sets that
    make the state of a calculator again; ``keys``, the bound of each key's outputs, and whether anything waits;
    ``waits``, since when which input keeps a key waiting, where one may be idle; and the tables of the
    :class:`~holdfast.operators.flow.intake.Intake`.
    """

    graph: Graph
    inputs: Mapping[str, pa.Schema]
    key: pa.Schema
    times: Mapping[str, str]
    ports: Mapping[str, Port]
    schemas: Mapping[str, pa.Schema]
    promises: Mapping[str, Promise]
    side_inputs: Mapping[str, Payload]
    renamed: Mapping[str, str]
    forget_us: int | None
    token: str
    threads: int | None = None
    idle_us: int | None = None
    for_all_keys: ClassVar[Mapping[str, str]] = {"inputs": ""}

    @property
    def intake(self) -> Intake:
        """How rows come to the graphs."""
        return Intake(self.inputs, self.key, self.times, self.ports, self.promises)

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Nodes, replays, keys, waits, waiting rows and bounds."""
        key = self.key.names
        number, text, raw = pa.int64(), pa.string(), pa.binary()
        node = [*self.key, pa.field(NODE, text)]
        keys = [*self.key, pa.field(OUT, number), pa.field(WAITING, number), pa.field(SINCE, number)]
        return {
            "nodes": StateTable(pa.schema([*node, pa.field(STATE, raw)]), (*key, NODE)),
            "replays": StateTable(pa.schema([*node, pa.field(SET, number), pa.field(STATE, raw)]), (*key, NODE, SET)),
            "keys": StateTable(pa.schema(keys), tuple(key)),
            "waits": StateTable(pa.schema([*self.key, *(pa.field(*of) for of in WAITS)]), (*key, INPUT)),
            **self.intake.tables,
        }

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The graph's first output as ``rows``, the others by their names, and late rows."""
        found = {
            name: pa.schema([*self.key, self._time, *self.schemas[output]])
            for name, output in self._graph_outputs.items()
        }
        return found | {"late": keyed.late_schema(self.key, self._time.type, self.inputs)}

    @property
    def _graph_outputs(self) -> Mapping[str, str]:
        """Output of the step -> of the graph."""
        first, *others = self.schemas
        return {"rows": first, **{name: name for name in others}}

    @property
    def _time(self) -> pa.Field:
        name, column = next(iter(self.times.items()))
        field: pa.Field = self.inputs[name].field(column)
        return field

    def by_bounds(self, inputs: Collection[str]) -> FlowStep:
        """Return the step for which rows of these inputs promise nothing: only the bounds that they receive count."""
        promises = {name: one.silent() if name in inputs else one for name, one in self.promises.items()}
        return replace(self, promises=promises)

    def grown(self, table: str, known: pa.Table | None, at: StepTime) -> pa.Table | None:
        """Return the rows of an input that wait, with the columns that it has now; those of a new one."""
        declared = self.tables[table]
        if table not in map(waiting_table, self.inputs):
            return None
        return tables.empty(declared.schema) if known is None else growth.grown(known, declared, growth.nulls)

    def time_of(self, name: str) -> str:
        """Return the timestamp column of an input."""
        return self.times[name]

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many rows wait until nothing can come below them."""
        return sum(state[waiting_table(name)].num_rows for name in self.inputs if waiting_table(name) in state)

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Feed each key's graph what is settled, and keep the rest."""
        for name, given in arrivals.items():
            checks.require_values(given.rows, [*self.key.names, self.times[name]], name)
            edge.require_times(given.rows, self.times[name], name)
        forgotten = self._silent_keys(state, at)
        news = self._news(arrivals)
        waits = joins.anti_join(state["waits"], forgotten, self.key.names)
        groups = self.waited_for.groups
        silence = Silence(self.tables["waits"], self.key.names, waits, arrivals, at, self.idle_us, groups)
        keys = self._keys_to_run(state, arrivals, [news, silence.keys()], forgotten)
        arrived = self.intake.take_in(state, arrivals, keys, forgotten, self.outputs["late"], silence)
        graphs = _Graphs(self, keys, arrived, at)
        changes = {**arrived.changes, **graphs.run(state, arrivals, news, forgotten)}
        changes["waits"], due_us = silence.change(keys, graphs.waits)
        gone = joins.anti_join(forgotten, keys, self.key.names)
        for name in ("nodes", "replays", "keys", "bounds", "waits"):
            self._forget(name, forgotten if name in ("bounds", "waits") else gone, state, changes)
        others = joins.anti_join(joins.anti_join(state["keys"], forgotten, self.key.names), keys, self.key.names)
        counts = {
            **keyed.late_counts(arrived.late_bounds),
            **keyed.counted("dropped", graphs.drops),
            "waiting_rows": graphs.waiting_count(others) + self._held_after(state, changes),
        }
        if self.forget_us is not None:
            counts["forgotten"] = forgotten.num_rows
        outputs = {
            name: edge.table(keys, *graphs.left[output], self.outputs[name], output)
            for name, output in self._graph_outputs.items()
        }
        return Result(
            {**outputs, "late": arrived.late},
            {name: each for name, each in changes.items() if each.upserts.num_rows or each.deletes.num_rows},
            graphs.bounds(joins.anti_join(state["keys"], forgotten, self.key.names)),
            counts,
            due_us,
            fates={ABSORBED: arrived.fed_count, "late": arrived.late.num_rows},
        )

    def _held_after(self, state: Mapping[str, pa.Table], changes: Mapping[str, Change]) -> int:
        """Return how many rows wait after the epoch until nothing can come below them."""
        changed = [changes[waiting_table(name)] for name in self.inputs if waiting_table(name) in changes]
        return self.held(state) + int(sum(each.upserts.num_rows - each.deletes.num_rows for each in changed))

    @cached_property
    def waited_for(self) -> WaitedFor:
        """Which inputs nodes wait for."""
        return WaitedFor(self.graph)

    @cached_property
    def asks_every_key(self) -> bool:
        """Whether a key in which nothing waits may do something where a bound rises."""
        return runs_on_bounds(self.graph)

    def _silent_keys(self, state: Mapping[str, pa.Table], at: StepTime) -> pa.Table:
        """Return the keys that are forgotten: nothing of them came for long, and nothing waits."""
        keys = state["keys"]
        if self.forget_us is None:
            return keys.select(self.key.names).slice(0, 0)
        is_old = pc.less_equal(keys.column(SINCE), at.batch_us - self.forget_us)
        old = keys.filter(pc.and_(is_old, pc.equal(keys.column(WAITING), 0))).select(self.key.names)
        for name in self.inputs:
            if waiting_table(name) in state:
                old = joins.anti_join(old, state[waiting_table(name)], self.key.names)
        return old

    def _news(self, arrivals: Mapping[str, Arrivals]) -> pa.Table:
        """Return the keys of rows and bounds that have come."""
        parts = []
        for given in arrivals.values():
            of_keys = given.bounds.filter(pc.invert(given.bounds.column(ALL_KEYS)))
            parts += [given.rows.select(self.key.names), of_keys.select(self.key.names)]
        return self._distinct(parts)

    def _distinct(self, parts: Sequence[pa.Table]) -> pa.Table:
        schema = pa.schema([each.with_nullable(True) for each in self.key])
        return joins.distinct_keys(tables.united(parts, schema), self.key.names)

    def _keys_to_run(
        self,
        state: Mapping[str, pa.Table],
        arrivals: Mapping[str, Arrivals],
        of: Sequence[pa.Table],
        forgotten: pa.Table,
    ) -> pa.Table:
        """Return the keys for which something may happen: of those that nothing came for, where bounds may matter."""
        names, parts = self.key.names, [*of]
        before, has_risen, has_ended = known_everywhere(state, self.inputs), False, False
        for name, given in arrivals.items():
            has_this_risen, has_this_ended = rises(given, before[name])
            has_risen, has_ended = has_risen or has_this_risen, has_ended or has_this_ended
            if has_this_risen and waiting_table(name) in state:
                parts.append(state[waiting_table(name)].select(names))
        if has_risen:
            keys = joins.anti_join(state["keys"], forgotten, names)
            parts.append((keys if has_ended or self.asks_every_key else _that_wait(keys)).select(names))
        return self._distinct(parts)

    def _forget(self, name: str, gone: pa.Table, state: Mapping[str, pa.Table], changes: dict[str, Change]) -> None:
        if gone.num_rows:
            rows = joins.semi_join(state[name], gone, self.key.names).select(list(self.tables[name].key))
            changes[name] = Change(changes[name].upserts, tables.united([changes[name].deletes, rows]))


class _Graphs:
    """The graphs of some keys in one epoch: what leaves, what is kept, and what is promised."""

    def __init__(self, step: FlowStep, keys: pa.Table, arrived: Arrived, at: StepTime) -> None:
        self._step = step
        self._keys = keys
        self._arrived = arrived
        self._at = at
        now = at.batch_us
        self._clock = lambda: now  # a graph that stays in memory keeps it, and nothing else of the epoch
        self._out: Ticks = np.full(keys.num_rows, UNBOUNDED, np.int64)
        self._waiting = np.zeros(keys.num_rows, np.int64)
        self.left: dict[str, tuple[list[int], list[int], list[Payload]]] = {name: ([], [], []) for name in step.schemas}
        """Graph output -> key, time and payload of each packet that left."""

        self.waits: list[Waiting] = [{} for _ in range(keys.num_rows)]
        """For each key the inputs that keep something waiting, where that matters."""

        self.drops: Counter[str] = Counter()
        """Node -> packets that it has dropped."""

    def run(
        self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], news: pa.Table, forgotten: pa.Table
    ) -> dict[str, Change]:
        """Run the graph of each key, and return how its state changes."""
        step, names = self._step, self._step.key.names
        nodes = states_by_key(state["nodes"], self._keys, names)
        replays = joins.semi_join(state["replays"], self._keys, names)
        begins = np.asarray(joins.member_mask(self._keys, forgotten, names)).astype(bool)
        has_news = np.asarray(joins.member_mask(self._keys, news, names)).astype(bool)
        keys = joins.semi_join(state["keys"], self._keys, names)
        were = dict(zip(joins.index_in(keys, self._keys, names).tolist(), keys.to_pylist(), strict=True))
        changed = {name: ChangedRows(step.tables[name]) for name in ("nodes", "replays", "keys")}
        has_ended = all(bound == CLOSED for bound in self._arrived.everywhere_before.values())
        for code, key in enumerate(self._keys.to_pylist()):
            known = nodes.get(code, {})
            before = {} if begins[code] and not has_ended else known
            if has_ended and not before:  # of a late row: a graph that began now would send below what is promised
                continue
            try:
                after = self._one(code, key, before, partial(replays_of, replays, self._keys.slice(code, 1), names))
            except HoldfastError as error:
                raise with_key(error, _graph_text(step, key)) from error
            except Exception as error:
                rows = rows_of_key(arrivals, self._keys.slice(code, 1), names)
                raise StepFailed(rows, _graph_text(step, key)) from error
            for name, each in after.items():
                if known.get(name) != each.state:
                    changed["nodes"].upserts.append({**key, NODE: name, STATE: each.state})
                for number, data in enumerate(each.replay, each.first):
                    changed["replays"].upserts.append({**key, NODE: name, SET: number, STATE: data})
                if name in known:
                    gone = range(each.count, self._replay_count(known[name]))
                    changed["replays"].deletes += [{**key, NODE: name, SET: number} for number in gone]
            for name in known.keys() - after.keys():
                changed["nodes"].deletes.append({**key, NODE: name})
                numbers = range(self._replay_count(known[name]))
                changed["replays"].deletes += [{**key, NODE: name, SET: number} for number in numbers]
            out = int(self._out[code])
            was = were.get(code)
            since = was[SINCE] if was is not None and not has_news[code] else self._at.batch_us
            row = {OUT: None if out == UNBOUNDED else out, WAITING: int(self._waiting[code]), SINCE: since}
            if was is None or was != {**key, **row}:
                changed["keys"].upserts.append({**key, **row})
        return {name: each.change() for name, each in changed.items()}

    def _one(
        self, code: int, key: Mapping[str, Payload], before: Mapping[str, bytes], replays: Any
    ) -> dict[str, SavedNode]:
        """Run the graph of a key; return its state."""
        step = self._step
        of = f"key {key_text(key)}"
        token = f"{step.token} {of}"
        run = live.take(live.digest(token, before)) if before else None
        is_new = run is None
        run = run if run is not None else self._fresh()
        try:
            if is_new:
                saving.restore(run, before, replays() if before else {}, step.renamed, of)
            run.engine.clock = self._clock
            self._feed(run, self._arrived.packets[code], self._arrived.bounds_of(code))
            for name, (places, times, values) in self.left.items():
                packets = run.collected[name]
                places += [code] * len(packets)
                times += [edge.row_time(t, name) for t, _ in packets]
                values += [value for _, value in packets]
                packets.clear()
            self._count(code, run)
            self._out[code] = self._bound_of(run)
            waiting = sum(run.queue_lengths().values()) + sum(len(node.batch) for node in run.engine.nodes)
            self._waiting[code] = waiting
            after = saving.save(run, of)
        except BaseException:
            live.end(run)
            raise
        if not run.engine.is_over:
            live.keep(live.digest(token, {name: each.state for name, each in after.items()}), run)
        return after

    def _count(self, code: int, run: Run) -> None:
        """Note what a graph has dropped, and what it waits for."""
        for node in run.engine.nodes:
            self.drops[node.name] += node.drop_count
            node.drop_count = 0
        if self._step.idle_us is not None and not run.engine.is_over:
            first, bounds = self._arrived.first_of(code), self._arrived.bounds_of(code)
            self.waits[code] = self._step.waited_for.by(run, first, bounds)

    def _bound_of(self, run: Run) -> int:
        """Return the bound of a graph's outputs.  Of one that has ended nothing leaves, closed or not."""
        return CLOSED if run.engine.is_over else min(edge.ticks_of(run.bound_of(name)) for name in self._step.schemas)

    def _fresh(self) -> Run:
        """Return a graph that has not begun."""
        run = Run(
            self._step.graph,
            side_inputs=self._step.side_inputs,
            executor=Application() if self._step.threads is None else Threads(self._step.threads),
            clock=self._clock,
            starts=False,
        )
        for name in self._step.schemas:
            run.collect(name)
        return run

    def _feed(self, run: Run, packets: Sequence[FedPacket], bounds: Mapping[str, int]) -> None:
        """Give a graph its packets, and then what is promised.

        A packet is given when the one before has gone as far as it can; with threads nobody waits for that.
        """
        names = list(self._step.inputs)
        for t, place, payload in packets:
            run.add(names[place], payload, t)
            if self._step.threads is None and not run.engine.is_idle():
                run.wait_until_idle()
        edge.promise(run, bounds)
        run.wait_until_idle()
        if all(bound == CLOSED for bound in bounds.values()) and not run.engine.is_over:
            run.finish()

    def _replay_count(self, state: bytes) -> int:
        decoded = self._step.graph.codec.decode(state, of="a node")
        return int(decoded["replay"][0]) if "replay" in decoded else 0

    def bounds(self, known: pa.Table) -> pa.Table | None:
        """Return the bounds of the outputs: of each key that was asked, and for all keys.

        Parameters
        ----------
        known : pa.Table
            The table ``keys`` before the epoch, without keys that are forgotten.
        """
        key = self._step.key
        everywhere = self._for_all(known) if key.names else int(self._out.min(initial=CLOSED))
        is_known = self._out > UNBOUNDED if key.names else np.zeros(len(self._out), bool)
        keys = self._keys.filter(pa.array(is_known))
        of_keys = [*keys.columns, pa.repeat(pa.scalar(False), keys.num_rows), pa.array(self._out[is_known])]
        schema = tables.bounds_schema(key)
        parts = [pa.Table.from_arrays(of_keys, schema=schema)]
        if everywhere > UNBOUNDED and (key.names or len(self._out)):
            nulls = [pa.nulls(1, each.type) for each in key]
            parts.append(pa.Table.from_arrays([*nulls, pa.array([True]), pa.array([everywhere])], schema=schema))
        found = tables.united(parts)
        return found if found.num_rows else None

    def waiting_count(self, others: pa.Table) -> int:
        """Return how many packets wait, in these graphs and in those of other keys, given their rows of ``keys``."""
        return int(self._waiting.sum()) + int(pc.sum(others.column(WAITING)).as_py() or 0)

    def _for_all(self, known: pa.Table) -> int:
        """Return the bound that holds for every key: of a graph that has no packets, or of one in which some wait."""
        if not (self._arrived.has_risen or self._has_let_go(known)):
            return UNBOUNDED
        reached = self._reached_without_packets()
        others = joins.anti_join(known, self._keys, self._step.key.names)
        held = others if self._step.asks_every_key else _that_wait(others)
        is_held = (self._waiting > 0) | self._step.asks_every_key
        asked: list[int] = self._out[is_held].tolist()
        return int(min([reached, *held.column(OUT).fill_null(UNBOUNDED).to_pylist(), *asked]))

    def _has_let_go(self, known: pa.Table) -> bool:
        """Return whether one of these keys held back a bound for all keys, and does so no longer, or less."""
        if max(self._arrived.everywhere.values()) == UNBOUNDED:
            return False
        names = self._step.key.names
        were = _that_wait(joins.semi_join(known, self._keys, names))
        codes = joins.index_in(were, self._keys, names)
        before = keyed.ticks(were.column(OUT).fill_null(UNBOUNDED))
        return bool(((self._waiting[codes] == 0) | (self._out[codes] > before)).any())

    def _reached_without_packets(self) -> int:
        """Return the bound of a graph that was given the bounds for all keys alone: one from memory, or a new one.

        Where bounds make calculators run it is a new one, for it must not matter which bounds came before.  What it
        sends, a key that comes later sends too, when its graph is opened: so the bound is no higher.
        """
        token, now = f"{self._step.token} for all keys", self._arrived.everywhere
        is_kept = not self._step.asks_every_key
        run = live.take(_digest(token, self._arrived.everywhere_before)) if is_kept else None
        is_new = run is None
        run = run if run is not None else self._fresh()
        try:
            run.engine.clock = self._clock
            if is_new:
                run.begin()
            self._feed(run, (), now)
            reached = self._bound_of(run)
            sent = [edge.ticks_of(t) for packets in run.collected.values() for t, _ in packets[:1]]
        except BaseException:
            live.end(run)
            raise
        if is_kept and not run.engine.is_over:
            live.keep(_digest(token, now), run)
        else:
            live.end(run)
        return reached if reached == CLOSED else min([reached, *sent])


def _digest(token: str, bounds: Mapping[str, int]) -> bytes:
    return live.digest(token, {name: str(bound).encode() for name, bound in bounds.items()})


def _that_wait(keys: pa.Table) -> pa.Table:
    """Return the rows of the table ``keys`` of which packets wait."""
    return keys.filter(pc.greater(keys.column(WAITING), 0))


def _graph_text(step: FlowStep, key: Mapping[str, Payload]) -> str:
    return f"flowgraph {step.graph.name!r} for key {key_text(key)}"
