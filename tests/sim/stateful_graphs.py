"""Random graphs with state, what their sources give, and, in plain Python over all rows at once, what must come out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.graph.nodes import SinkNode, Stream, is_stateful
from holdfast.operators.aggregate.accumulate import accumulate
from holdfast.operators.aggregate.aggregates import count, max, sum
from holdfast.operators.aggregate.spec import aggregate
from holdfast.operators.aggregate.window import session, tumbling
from holdfast.operators.stateful.apply import apply
from holdfast.operators.stateful.distinct import distinct
from holdfast.operators.stateful.limit_in_flight import limit_in_flight
from holdfast.operators.stateful.merge import merge
from holdfast.operators.stateful.spec import stateful
from holdfast.operators.sync import policy
from holdfast.operators.sync.spec import sync
from holdfast.testing.simulation.levels import Event
from holdfast.testing.stand_in import StandIn

Row = dict[str, Any]
Lines = dict[str, list[Row]]
"""Key -> its rows, in the order in which they come."""

STATELESS = frozenset({"filter", "select", "union", "map", "sql", "explode"})
KEYS = "abc"
FAR = 10**6
"""Disorder that nothing exceeds."""


@dataclass(frozen=True)
class Flow:
    """A stream, and what it must give.

    Parameters
    ----------
    stream : Stream
        Of rows with the columns ``k``, ``time`` and ``value``.
    lines : mapping
        Its rows.
    time, value : str
        The column of event time; a BIGINT column to compute with.
    disorder : int
        What its rows promise; one that breaks the promise is late.
    is_ordered : bool
        Whether the order of ``lines`` is certain.  A union has none.
    is_strict : bool
        Whether no key has a time twice and none goes back.
    """

    stream: Stream
    lines: Lines
    time: str = "t"
    value: str = "v"
    disorder: int = 0
    is_ordered: bool = True
    is_strict: bool = False

    @property
    def promise(self) -> int:
        """The disorder that a consumer must allow."""
        return self.disorder if self.is_ordered else FAR

    def judged(self) -> tuple[Lines, Lines]:
        """Return the rows in time, and those that a consumer must find late."""
        good: Lines = {}
        late: Lines = {}
        for key, rows in self.lines.items():
            newest = -FAR * 2
            for row in rows:
                is_late = row[self.time] < newest - self.promise
                (late if is_late else good).setdefault(key, []).append(row)
                newest = row[self.time] if row[self.time] > newest else newest
        return good, late


Expected = Callable[[Sequence[Mapping[str, Any]]], list[str]]


@dataclass
class Graph:
    """A graph under construction: flows to build on, sinks with what they must show, and the events of the sources."""

    chance: random.Random
    flows: list[Flow] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)
    expected: dict[str, list[Row]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    stand_ins: dict[str, StandIn] = field(default_factory=dict)
    count: int = 0
    late_count: int = 0

    @property
    def state_count(self) -> int:
        """How many operators have state."""
        return len([kind for kind in self.kinds if kind not in STATELESS])

    def name(self, kind: str) -> str:
        """Return a name that is not taken."""
        self.count += 1
        self.kinds.append(kind)
        return f"{kind}{self.count}"

    def write(self, flow: Flow) -> None:
        """Put a sink behind a flow."""
        name = f"sink{len(self.sinks)}"
        self.sinks.append(flow.stream | hf.write.console(name=name))
        self.expected[name] = [row for rows in flow.lines.values() for row in rows]

    def write_late(self, stream: Stream, late: Mapping[str, tuple[Flow, Lines]]) -> None:
        """Put a sink behind the late rows of an operator: by input, the flow and its late rows."""
        name = f"sink{len(self.sinks)}"
        self.sinks.append(stream.late | hf.write.console(name=name))
        self.expected[name] = []
        for of, (flow, lines) in late.items():
            for key, rows in lines.items():
                for row in rows:
                    given = {other: row if other == of else None for other in late}
                    self.expected[name].append({"k": key, "timestamp": row[flow.time], "input": of, **given})
        self.late_count += len(self.expected[name])

    def problems(self, visible: Mapping[str, Sequence[Sequence[object]]]) -> list[str]:
        """Say what the sinks show and should not, and the other way round."""
        found = []
        for name, rows in visible.items():
            wanted = Counter(_told(row.values()) for row in self.expected[name])
            shown = Counter(_told(value for value in row if not _is_reason(value)) for row in rows)
            found += [f"{name}: {number} times too few: {row}" for row, number in (wanted - shown).items()]
            found += [f"{name}: {number} times too often: {row}" for row, number in (shown - wanted).items()]
        return found


def _rest(row: Row, flow: Flow) -> Row:
    return {column: value for column, value in row.items() if column not in ("k", flow.time)}


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and value.startswith("timestamp ")


def _told(values: Any) -> str:
    return repr(tuple(values))


def random_graph(seed: int) -> Graph:
    """Return a graph of one to three sources and two to four operators with state, others between them."""
    graph = Graph(random.Random(seed))
    chance = graph.chance
    sources = [_source(graph, f"s{number}") for number in range(chance.randint(1, 3))]
    _interleave(graph, sources)
    wanted = chance.randint(2, 4)
    while graph.state_count < wanted and len(graph.flows) < 12:
        chance.choice(MAKERS)(graph)
    used = {before for flow in graph.flows for before in flow.stream.node.inputs}
    for flow in graph.flows:
        if flow.stream.node not in used or chance.random() < 0.2:
            graph.write(flow)
    return graph


# --- sources ------------------------------------------------------------------------------------------------------


def _source(graph: Graph, name: str) -> Sequence[Event]:
    """Add a source: keys with gaps, disorder within the promise, a few late rows; or bound rows in between."""
    chance = graph.chance
    gives_bounds, is_strict = chance.random() < 0.3, chance.random() < 0.4
    disorder = 0 if is_strict or gives_bounds else chance.choice((0, 0, 3, 8))
    at = dict.fromkeys(KEYS, chance.randint(0, 5))
    lines: Lines = {}
    events: list[Event] = []
    mark = {"is_bound": False} if gives_bounds else {}
    for number in range(chance.randint(4, 18)):
        key = chance.choice(KEYS)
        at[key] += chance.choice((1, 1, 1, 2, 5, 12)) if is_strict else chance.choice((0, 1, 1, 2, 5, 12))
        back = chance.randint(0, disorder)
        if not is_strict and not gives_bounds and chance.random() < 0.12:
            back = disorder + chance.randint(1, 6)  # late, unless nothing is known of the key yet
        row = {"k": key, "t": at[key] - back, "v": 100 * number + int(name[1:])}
        lines.setdefault(key, []).append(row)
        events.append((name, {**row, **mark}))
        if gives_bounds and chance.random() < 0.3:
            told = chance.choice((None, key))
            least = min(at.values()) if told is None else at[key] + is_strict
            events.append((name, {"k": told, "t": least, "v": None, "is_bound": True}))
    events.append((name, None))
    schema = "k STRING, t BIGINT, v BIGINT" + (", is_bound BOOLEAN" if gives_bounds else "")
    bounds = {"bounds": "is_bound"} if gives_bounds else {}
    stream = hf.read.rows([], schema=schema, timestamp="t", name=name, bounded=True, **bounds)
    graph.flows.append(Flow(stream, lines, disorder=disorder, is_strict=is_strict))
    return events


def _interleave(graph: Graph, sources: Sequence[Sequence[Event]]) -> None:
    left = [list(events) for events in sources]
    while any(left):
        graph.events.append(graph.chance.choice([events for events in left if events]).pop(0))


# --- operators without state -----------------------------------------------------------------------------------------


def _is_any(flow: Flow) -> bool:
    return True


def _is_ordered(flow: Flow) -> bool:
    return flow.is_ordered


def _pick(graph: Graph, wanted: Callable[[Flow], bool] = _is_any, *, is_known: bool = True) -> Flow | None:
    """Choose a flow, rather a late one, so that graphs grow deep; one whose columns are known, where that matters."""
    fitting = [flow for flow in graph.flows if wanted(flow) and not (is_known and flow.stream.columns is None)]
    return graph.chance.choice([*fitting, *fitting[-2:]]) if fitting else None


def _filter(graph: Graph) -> None:
    flow = _pick(graph, is_known=False)
    assert flow is not None
    least = graph.chance.choice((2, 100, 300))
    lines = {key: [row for row in rows if row[flow.value] >= least] for key, rows in flow.lines.items()}
    stream = flow.stream | hf.filter(f"{flow.value} >= {least}", name=graph.name("filter"))
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _select(graph: Graph) -> None:
    flow = _pick(graph)
    assert flow is not None
    stream = flow.stream | hf.select("k", t=flow.time, v=flow.value, name=graph.name("select"))
    lines = {
        key: [{"k": key, "t": row[flow.time], "v": row[flow.value]} for row in rows] for key, rows in flow.lines.items()
    }
    if stream.timestamp is None:  # it keeps the column's name only where the column keeps its own
        return
    graph.flows.append(replace(flow, stream=stream, lines=lines, time="t", value="v"))


def _union(graph: Graph) -> None:
    def is_plain(flow: Flow) -> bool:
        return flow.time == "t" and all(list(row) == ["k", "t", "v"] for rows in flow.lines.values() for row in rows)

    one, other = _pick(graph, is_plain), _pick(graph, is_plain)
    if one is None or other is None or one.stream.node is other.stream.node or _is_wide(one) or _is_wide(other):
        return
    lines = {key: [*one.lines.get(key, []), *other.lines.get(key, [])] for key in KEYS}
    stream = hf.union(one.stream, other.stream, name=graph.name("union"))
    graph.flows.append(Flow(stream, lines, is_ordered=False))


def _is_behind_state(flow: Flow) -> bool:
    waiting = [flow.stream.node]
    while waiting:
        node = waiting.pop()
        if is_stateful(node):
            return True
        waiting += node.inputs
    return False


def _kept(value: str, least: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater_equal(batch.column(value), least))


def _sql(graph: Graph) -> None:
    """A statement, which Arrow evaluates or, by turns, only Spark; it says what becomes of columns and timestamp."""
    flow = _pick(graph, _is_behind_state)
    if flow is None:
        return
    least, name = graph.chance.choice((2, 100)), graph.name("sql")
    lines = {key: [row for row in rows if row[flow.value] >= least] for key, rows in flow.lines.items()}
    is_sparks = graph.count % 2 == 0
    border = f"abs({least})" if is_sparks else f"{least}"
    stream = flow.stream | hf.sql(f"select * from input where {flow.value} >= {border}", name=name)
    if is_sparks:
        graph.stand_ins[name] = StandIn(partial(_kept, flow.value, least), lambda schema: schema, leaves_columns=True)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _twice(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.take(pa.array([row for row in range(batch.num_rows) for _ in (0, 1)], pa.int64()))
    return rows.append_column(column, pa.array([0, 1] * batch.num_rows, pa.int32()))


def _explode(graph: Graph) -> None:
    """Every row becomes two."""
    flow = _pick(graph, _is_behind_state)
    if flow is None or graph.kinds.count("explode") > 1:
        return
    name = graph.name("explode")
    column = f"copy_{name}"
    lines = {key: [{**row, column: copy} for row in rows for copy in (0, 1)] for key, rows in flow.lines.items()}
    stream = flow.stream | hf.select("*", **{column: "explode(array(0, 1))"}, name=name)
    graph.stand_ins[name] = StandIn(
        partial(_twice, column), lambda schema: schema.append(pa.field(column, pa.int32())), leaves_columns=True
    )
    graph.flows.append(replace(flow, stream=stream, lines=lines, is_strict=False))


def _map(graph: Graph) -> None:
    """A function of a frame: nothing is known of its columns before the run, and only the end passes it."""
    flow = _pick(graph, _is_behind_state, is_known=False)
    if flow is None:
        return
    least, name = graph.chance.choice((2, 100)), graph.name("map")
    lines = {key: [row for row in rows if row[flow.value] >= least] for key, rows in flow.lines.items()}
    stream = flow.stream | hf.map(lambda frame: frame.filter(f"{flow.value} >= {least}"), name=name)
    graph.stand_ins[name] = StandIn(partial(_kept, flow.value, least), lambda schema: schema, leaves_columns=True)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _is_wide(flow: Flow) -> bool:
    return flow.stream.columns is None or tuple(flow.stream.columns) != ("k", "t", "v")


# --- operators with state --------------------------------------------------------------------------------------------


def _aggregate(graph: Graph) -> None:
    flow = _pick(graph, is_known=False)
    assert flow is not None
    chance = graph.chance
    size = chance.choice((2, 5, 11))
    is_session = chance.random() < 0.3
    stream = flow.stream | aggregate(
        by="k",
        window=session(size) if is_session else tumbling(size),
        timestamp=flow.time,
        disorder=flow.promise,
        name=graph.name("aggregate"),
        n=count(),
        total=sum(flow.value),
        top=max(flow.value),
    )
    good, late = flow.judged()
    frame = _frame(flow, good).sort("k", "t")
    if is_session:
        begins = (pl.col("t").diff().over("k") >= size).fill_null(True)
        frame = frame.with_columns(part=begins.cum_sum().over("k"))
        start, end = pl.col("t").min(), pl.col("t").max() + size
    else:
        frame = frame.with_columns(part=pl.col("t").floordiv(size))
        start, end = pl.col("part").first() * size, pl.col("part").first() * size + size
    windows = frame.group_by("k", "part").agg(
        start.alias("window_start"), end.alias("window_end"), pl.len().alias("n"), pl.col("v").sum().alias("total"),
        pl.col("v").max().alias("top"),
    )  # fmt: skip
    rows = windows.sort("k", "window_start").drop("part").to_dicts()
    graph.write_late(stream, {"rows": (flow, late)})
    graph.flows.append(Flow(stream, _by_key(rows), time="window_start", value="total", is_strict=True))


def _frame(flow: Flow, lines: Lines) -> pl.DataFrame:
    rows = [{"k": key, "t": row[flow.time], "v": row[flow.value]} for key, of in lines.items() for row in of]
    return pl.DataFrame(rows, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64})


def _by_key(rows: Sequence[Row]) -> Lines:
    lines: Lines = {}
    for row in rows:
        lines.setdefault(row["k"], []).append(row)
    return lines


def _sync(graph: Graph) -> None:
    one, other = _pick(graph, _is_ordered), _pick(graph, _is_ordered)
    if one is None or other is None or one.stream.node is other.stream.node:
        return
    inputs = {"a": one, "b": other}
    stream = sync(
        {name: flow.stream for name, flow in inputs.items()},
        by="k",
        policy=policy.settled(),
        timestamps={name: "strict" if flow.is_strict else "ascending" for name, flow in inputs.items()},
        disorder={name: flow.disorder or None for name, flow in inputs.items()},
        name=graph.name("sync"),
    )
    judged = {name: flow.judged() for name, flow in inputs.items()}
    sets: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for name, flow in inputs.items():
        for key, rows in judged[name][0].items():
            for row in rows:
                sets.setdefault((key, row[flow.time]), {}).setdefault(name, []).append(_rest(row, flow))
    rows = []
    for (key, at), found in sorted(sets.items()):
        given = {name: found.get(name) for name in inputs}
        shown = {name: of[0] if of and inputs[name].is_strict else of for name, of in given.items()}
        rows.append({"k": key, "timestamp": at, **shown})
    graph.write_late(stream, {name: (flow, judged[name][1]) for name, flow in inputs.items()})
    graph.flows.append(Flow(stream, _by_key(rows), time="timestamp", value="timestamp", is_strict=True))


def _merge(graph: Graph) -> None:
    main, slow = _pick(graph), _pick(graph, _is_ordered)
    taken = main is not None and any("m" in row for rows in main.lines.values() for row in rows)
    if (
        main is None
        or slow is None
        or main.stream.node is slow.stream.node
        or taken
        or "m" in (main.stream.columns or "m")
    ):
        return
    tolerance = graph.chance.choice((None, 0, 4))
    stream = merge(
        main.stream,
        {"m": slow.stream},
        by="k",
        tolerance=tolerance,
        disorder={"main": main.promise, "m": slow.disorder},
        name=graph.name("merge"),
    )
    (good, late), (known, missed) = main.judged(), slow.judged()
    lines: Lines = {}
    for key, rows in good.items():
        for row in sorted(rows, key=lambda row: row[main.time]):
            at = row[main.time]
            before = [other for other in known.get(key, []) if other[slow.time] <= at]
            latest = None
            for other in before:
                if latest is None or other[slow.time] >= latest[slow.time]:
                    latest = other
            if latest is not None and tolerance is not None and latest[slow.time] < at - tolerance:
                latest = None
            rest = latest and {name: value for name, value in latest.items() if name != "k"}
            lines.setdefault(key, []).append({**row, "m": rest})
    graph.write_late(stream, {"main": (main, late), "m": (slow, missed)})
    graph.flows.append(Flow(stream, lines, main.time, main.value, is_ordered=main.is_ordered, is_strict=main.is_strict))


def _distinct(graph: Graph) -> None:
    flow = _pick(graph, _is_ordered, is_known=False)
    if flow is None:
        return
    horizon = graph.chance.choice((2, 6))
    stream = flow.stream | distinct(
        by="k", horizon=horizon, timestamp=flow.time, disorder=FAR, name=graph.name("distinct")
    )
    lines: Lines = {}
    for key, rows in flow.lines.items():
        kept: list[Row] = []
        for row in rows:
            if all(abs(row[flow.time] - other[flow.time]) >= horizon for other in kept):
                kept.append(row)
        lines[key] = kept
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _accumulate(graph: Graph) -> None:
    flow = _pick(graph, _is_ordered)
    if flow is None or flow.stream.columns is None or "seen" in flow.stream.columns:
        return
    stream = flow.stream | accumulate(by="k", seen=count(), top_so_far=max(flow.value), name=graph.name("accumulate"))
    lines = {}
    for key, rows in flow.lines.items():
        tops = [_highest(flow, rows[: place + 1]) for place in range(len(rows))]
        lines[key] = [
            {**row, "seen": place, "top_so_far": top}
            for place, (row, top) in enumerate(zip(rows, tops, strict=True), 1)
        ]
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _highest(flow: Flow, rows: Sequence[Row]) -> int:
    return int(sorted(row[flow.value] for row in rows)[-1])


def _difference(time: str, value: str, tables: Any, rows: Any, at: Any) -> Any:
    """A step of the user's own: how much the value grew since the key's last row."""
    last = {} if tables is None else {row["k"]: row["v"] for row in tables["last"].to_pylist()}
    made = []
    for row in rows.to_pylist():
        made.append({"k": row["k"], "t": row[time], "v": row[value] - last.get(row["k"], 0)})
        last[row["k"]] = row[value]
    known = pl.DataFrame([{"k": key, "v": v} for key, v in last.items()], schema={"k": pl.String, "v": pl.Int64})
    return {"last": known}, pl.DataFrame(made, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64})


def _stateful(graph: Graph) -> None:
    flow = _pick(graph, _is_ordered, is_known=False)
    if flow is None:
        return
    stream = flow.stream | stateful(
        partial(_difference, flow.time, flow.value),
        "k",
        schema="k STRING, t BIGINT, v BIGINT",
        state={"last": "k STRING, v BIGINT"},
        timestamp="t",
        name=graph.name("stateful"),
    )
    graph.flows.append(replace(flow, stream=stream, lines=_grown(flow), time="t", value="v"))


def _growth(time: str, value: str, key: Any, rows: Any, state: Any) -> list[Row]:
    """A function of the user's own, key by key: how much the value grew since the key's last row."""
    made = []
    for row in rows:
        made.append({"k": row["k"], "t": row[time], "v": row[value] - (state.get("last") or 0)})
        state.set(last=row[value])
    return made


def _apply(graph: Graph) -> None:
    flow = _pick(graph, _is_ordered)
    if flow is None:
        return
    stream = flow.stream | apply(
        partial(_growth, flow.time, flow.value),
        by="k",
        schema="k STRING, t BIGINT, v BIGINT",
        state="last BIGINT",
        timestamp="t",
        name=graph.name("apply"),
    )
    graph.flows.append(replace(flow, stream=stream, lines=_grown(flow), time="t", value="v"))


def _grown(flow: Flow) -> Lines:
    lines: Lines = {}
    for key, rows in flow.lines.items():
        before = 0
        for row in rows:
            lines.setdefault(key, []).append({"k": key, "t": row[flow.time], "v": row[flow.value] - before})
            before = row[flow.value]
    return lines


def _alarm(graph: Graph) -> None:
    """A function that asks to be called again some time behind each row, and says when it is."""
    flow = _pick(graph, _is_ordered)
    if flow is None:
        return
    gap = graph.chance.choice((0, 1, 4))
    # A late row would ask for a time that is over, maybe once more: then rows must promise nothing.
    promises = not flow.judged()[1] and graph.chance.random() < 0.6
    stream = flow.stream | apply(
        partial(_ring, flow.time, gap),
        by="k",
        schema="k STRING, t BIGINT, v BIGINT",
        state="rung BIGINT" if graph.chance.random() < 0.5 else None,
        timestamp="t",
        timers="event",
        disorder=flow.disorder if promises else None,
        name=graph.name("alarm"),
    )
    lines = {
        key: [{"k": key, "t": at, "v": at} for at in sorted({row[flow.time] + gap for row in rows})]
        for key, rows in flow.lines.items()
    }
    graph.flows.append(Flow(stream, lines, is_strict=True))


def _ring(time: str, gap: int, key: str, rows: list[Row], state: hf.KeyState) -> list[Row]:
    for row in rows:
        state.timer(row[time] + gap)
    return [] if state.fired is None else [{"k": key, "t": state.fired.at, "v": state.fired.at}]


def _limit(graph: Graph) -> None:
    flow = _pick(graph, _is_ordered)
    if flow is None:
        return
    n, timeout = graph.chance.choice((1, 2)), graph.chance.choice((3, 9))
    stream = flow.stream | limit_in_flight(n, "k", timeout=timeout, name=graph.name("limit_in_flight"))
    lines: Lines = {}
    shed: list[Row] = []
    late: Lines = {}
    for key, rows in flow.lines.items():
        newest, flying, is_admitted = -FAR, list[int](), False
        for row in rows:
            at = row[flow.time]
            if at < newest:
                late.setdefault(key, []).append(row)
                continue
            if at > newest:
                flying = [other for other in flying if other >= at - timeout]
                newest, is_admitted = at, len(flying) < n
                flying += [at] * is_admitted
            if is_admitted:
                lines.setdefault(key, []).append(row)
            else:
                shed.append(row)
    graph.write_late(stream, {"rows": (flow, late)})
    graph.flows.append(replace(flow, stream=stream, lines=lines, disorder=0))
    graph.sinks.append(stream.shed | hf.write.console(name=f"sink{len(graph.sinks)}"))
    graph.expected[graph.sinks[-1].name] = shed


MAKERS: Sequence[Callable[[Graph], None]] = (
    _filter,
    _select,
    _union,
    _sql,
    _sql,
    _explode,
    _map,
    _aggregate,
    _aggregate,
    _sync,
    _sync,
    _merge,
    _merge,
    _distinct,
    _accumulate,
    _stateful,
    _apply,
    _alarm,
    _limit,
)
"""Operators with state more often than those without."""
