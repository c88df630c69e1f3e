"""Random graphs with state: of every operator, behind every other; and graphs of one pair of operators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.ports import REJECT_COLUMN
from holdfast.testing.simulation.levels import Event
from tests.sim.flows import FAR, KEYS, OUTPUT, SIDES, Flow, Graph, Lines, Row
from tests.sim.operator_makers import MAKERS, OF_TIMED, PLAIN

STATELESS = frozenset(kind for kind, maker in MAKERS.items() if not maker.keeps_state)


def random_graph(seed: int) -> Graph:
    """Return a graph of one to three sources and two to four operators with state, others between them."""
    graph = Graph(random.Random(seed))
    chance = graph.chance
    interleave(graph, [add_source(graph, f"s{number}") for number in range(chance.randint(1, 3))])
    kinds = [kind for kind, maker in MAKERS.items() for _ in range(maker.weight)]
    wanted = chance.randint(2, 4)
    while sum(MAKERS[kind].keeps_state for kind in graph.kinds) < wanted and len(graph.flows) < 12:
        maker = MAKERS[chance.choice(kinds)]
        fitting = [flow for flow in graph.flows if maker.fits(flow)]
        if fitting:  # rather a late one, so that graphs grow deep
            maker.make(graph, chance.choice([*fitting, *fitting[-2:]]))
        if graph.sides and chance.random() < 0.15:
            graph.flows.append(graph.sides.pop(chance.choice(sorted(graph.sides))))
    if not any(MAKERS[kind].keeps_state for kind in graph.kinds):
        MAKERS["aggregate"].make(graph, chance.choice(graph.flows))
    used = {before for flow in graph.flows for before in flow.stream.node.inputs}
    written = {sink.stream for sink in graph.sinks}
    for flow in graph.flows:
        if flow.stream not in written and (flow.stream.node not in used or chance.random() < 0.2):
            graph.write(flow)
    return graph


# --- graphs of one pair ----------------------------------------------------------------------------------------------

BEFORE = ("source", *SIDES, OUTPUT, *MAKERS)
"""What an operator can stand behind."""

PAIRS = [
    (kind, before, is_deep)
    for before in BEFORE
    if before != "rejects"  # its rows have no key and no time
    for kind in MAKERS
    for is_deep in (False, True)
    if not (is_deep and before == "source") and not (before in ("over_changes", "join_changes") and kind in OF_TIMED)
]
"""Every operator behind every other, before all state, if it has none, and between two operators with state."""

SIDE_OF = {"late": ("aggregate", "sync", "merge", "limit_in_flight"), "shed": ("limit_in_flight",),
           "unmatched": ("sync", "merge"), OUTPUT: ("flow",)}  # fmt: skip


def pair_graph(kind: str, before: str, *, is_deep: bool = False) -> Graph:
    """Return a graph in which one operator stands directly behind another, and one with state behind both.

    Parameters
    ----------
    kind, before : str
        The operator, and what it stands behind; there are rows between them.
    is_deep : bool
        Whether another operator with state stands before them.
    """
    for seed in range(1000):
        graph = Graph(random.Random(f"{seed} {kind} {before}"))
        interleave(graph, [add_source(graph, f"s{number}", row_count=16) for number in range(2)])
        first = graph.flows[0]
        if is_deep:
            MAKERS["accumulate"].make(graph, first)
            first = graph.flows[-1]
        flow = _made(graph, before, first)
        if flow is None or not flow.row_count or not MAKERS[kind].fits(flow):
            continue
        MAKERS[kind].make(graph, flow)
        graph.write(graph.flows[-1])
        MAKERS["aggregate"].make(graph, graph.flows[-1])
        graph.write(graph.flows[-1])
        if (kind, before) in graph.pairs():
            return graph
    raise AssertionError(f"no graph has {kind} behind {before}")


def _made(graph: Graph, before: str, first: Flow) -> Flow | None:
    if before == "source":
        return first
    if before not in SIDE_OF:
        MAKERS[before].make(graph, first)
        return graph.flows[-1]
    MAKERS[graph.chance.choice(SIDE_OF[before])].make(graph, first)
    return graph.sides.get(before)


# --- sources ------------------------------------------------------------------------------------------------------


def add_source(graph: Graph, name: str, row_count: int | None = None) -> Sequence[Event]:
    """Add a source: keys with gaps, disorder within the promise, a few late rows; or bound rows in between."""
    chance = graph.chance
    gives_bounds, is_strict = chance.random() < 0.3, chance.random() < 0.4
    disorder = 0 if is_strict or gives_bounds else chance.choice((0, 0, 3, 8))
    rejects = row_count is None and chance.random() < 0.15
    at = dict.fromkeys(KEYS, chance.randint(0, 5))
    lines: Lines = {}
    bad: list[Row] = []
    events: list[Event] = []
    mark = {"is_bound": False} if gives_bounds else {}
    for number in range(row_count or chance.randint(4, 18)):
        key = chance.choice(KEYS)
        at[key] += chance.choice((1, 1, 1, 2, 5, 12)) if is_strict else chance.choice((0, 1, 1, 2, 5, 12))
        back = chance.randint(0, disorder)
        if not is_strict and not gives_bounds and chance.random() < 0.12:
            back = disorder + chance.randint(1, 6)  # late, unless nothing is known of the key yet
        if rejects and chance.random() < 0.2:
            bad.append({"reason": "it is bad", "raw": f"{key} {at[key]} {number}", "position": f"{number}"})
            events.append((name, {"k": None, "t": None, "v": None, REJECT_COLUMN: bad[-1], **mark}))
            continue
        row = {"k": key, "t": at[key] - back, "v": 100 * number + int(name[1:])}
        lines.setdefault(key, []).append(row)
        events.append((name, {**row, **mark}))
        if gives_bounds and chance.random() < 0.3:
            told = chance.choice((None, key))
            least = min(at.values()) if told is None else at[key] + is_strict
            events.append((name, {"k": told, "t": least, "v": None, "is_bound": True}))
    events.append((name, None))
    schema = PLAIN + (", is_bound BOOLEAN" if gives_bounds else "")
    given: dict[str, Any] = {"schema": schema, "timestamp": "t", "name": name, "bounded": True}
    given |= {"bounds": "is_bound"} if gives_bounds else {}
    stream = hf.read.files("nowhere", on_bad_row="reject", **given) if rejects else hf.read.rows([], **given)
    graph.flows.append(Flow(stream, lines, disorder=disorder, is_strict=is_strict))
    if rejects:
        _add_rejects(graph, stream, bad)
    return events


def _add_rejects(graph: Graph, stream: hf.Stream, bad: Sequence[Row]) -> None:
    """Note the rows that a source could not read: written, and read again by a function, as a flow like any other."""
    lines: Lines = {}
    for row in bad:
        key, at, value = row["raw"].split()
        lines.setdefault(key, []).append({"k": key, "t": int(at), "v": int(value)})
    raw = Flow(stream.rejects, {"": list(bad)}, ("reason", "raw", "position"))
    graph.write(raw)
    read = stream.rejects | hf.map_batches(_read_again, PLAIN, timestamp="t", name=graph.name("map_batches"))
    graph.flows.append(replace(raw, stream=read, lines=lines, columns=("k", "t", "v"), disorder=FAR))


def _read_again(batch: pa.RecordBatch) -> pa.RecordBatch:
    parts = [text.split() for text in batch.column("raw").to_pylist()]
    columns = [[k for k, _, _ in parts], [int(t) for _, t, _ in parts], [int(v) for _, _, v in parts]]
    types = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["k", "t", "v"])


def interleave(graph: Graph, sources: Sequence[Sequence[Event]]) -> None:
    """Put the events of sources in one line."""
    left = [list(events) for events in sources]
    while any(left):
        graph.events.append(graph.chance.choice([events for events in left if events]).pop(0))
