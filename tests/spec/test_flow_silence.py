"""A key of a flow goes on without a silent input where ``idle_after`` says so, as one of ``sync`` does (0045)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast.flow import Graph, node
from holdfast.operators.flow import live
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing import drive
from holdfast.testing.given import bound, close
from holdfast.testing.step_contract import arrivals_of, step_of
from tests.calculators import Batched, Both, Later, Odd
from tests.spec.test_flow_operator import flowed, single, source

pytestmark = pytest.mark.slow

SECOND = 1_000_000
NOTHING: Any = []


def row(t: int, key: str = "a", value: int = 1) -> dict[str, Any]:
    return {"k": key, "t": t, "v": value}


def pair(**options: Any) -> Graph:
    """Return a graph of two inputs that meet."""
    graph = Graph("pair")
    left, right = graph.input("left"), graph.input("right")
    graph.output("out", {"left": left, "right": right} | node(Both, **options))
    return graph


def times_of(stream: hf.Stream, given: Any, at_s: Sequence[float]) -> list[list[tuple[str, int]]]:
    """Return key and time of what leaves in each epoch; epochs have these batch times."""
    found = drive(stream, given, batch_times=[int(each * SECOND) for each in at_s])
    return [[(each["k"], each["t"]) for each in epoch] for epoch in found]


def test_a_silent_input_holds_its_key_up_no_longer_than_it_may() -> None:
    given = {
        "left": [[row(1), row(1, "b")], [row(2)], NOTHING, [row(3)], NOTHING],
        "right": [[row(1)], [row(1, "b")], NOTHING, NOTHING, [row(2)]],
    }
    stream = single(pair(), idle_after="10 s")
    at_s = [0, 4, 13, 14, 15]
    # 2 of a waits since 4: at 13 not for long enough, at 14 it has been, and then it is idle until it speaks.
    assert times_of(stream, given, at_s) == [[("a", 1)], [("b", 1)], [], [("a", 2), ("a", 3)], []]
    late = drive(stream.late, given, batch_times=[each * SECOND for each in at_s])
    assert [[(each["timestamp"], each["input"]) for each in epoch] for epoch in late] == [
        [],
        [],
        [],
        [],
        [(2, "right")],
    ]


def test_without_it_the_key_waits() -> None:
    given = {"left": [[row(1)], NOTHING], "right": [NOTHING, NOTHING]}
    assert times_of(single(pair()), given, [0, 1_000_000]) == [[], []]


def test_it_is_the_idle_rule_of_sync() -> None:
    """Rows of two or three inputs, at random, some of them silent: the same times leave in the same epochs."""
    for seed in range(30):
        chance = random.Random(seed)
        names = ["left", "right", "third"][: chance.choice((2, 2, 3))]
        disorder = chance.choice((None, None, 3))
        given: dict[str, list[list[Any]]] = {name: [] for name in names}
        at_s, now, t = [], 0, 0
        for _ in range(25):
            now += chance.choice((1, 1, 3, 6))
            at_s.append(now)
            for name in names:
                some = [] if chance.random() < 0.6 else sorted({t + chance.randrange(4) for _ in range(2)})
                items: list[Any] = [row(each, key) for each in some for key in chance.choice(("a", "b", "ab"))]
                if chance.random() < 0.1:
                    items.append(bound(t))
                given[name].append(items)
            t += chance.randrange(3)
        graph = Graph("all")
        streams = {name: graph.input(name) for name in names}
        graph.output("out", streams | node(all_of(names)))
        stream = single(graph, idle_after="5 s", disorder=disorder)
        synced = hf.sync({name: source(name) for name in names}, by="k", idle_after="5 s", disorder=disorder)
        wanted = drive(synced, given, batch_times=[each * SECOND for each in at_s])
        times = [sorted((each["k"], each["timestamp"]) for each in epoch) for epoch in wanted]
        assert [sorted(each) for each in times_of(stream, given, at_s)] == times, seed
        assert sum(map(len, times)) > 5, seed


def all_of(names: Sequence[str]) -> Any:
    """Return a calculator of these inputs, which sends something at each time."""

    def call(left: Any = None, right: Any = None, third: Any = None) -> int:
        return 1

    def two(left: Any = None, right: Any = None) -> int:
        return 1

    return call if len(names) == 3 else two


def test_an_input_that_nobody_waits_for_is_not_idle() -> None:
    """Its rows are not late: what is behind another part of the graph, and what another group waits for."""
    graph = Graph("parts")
    inputs = {name: graph.input(name) for name in ("left", "right", "other")}
    graph.output("out", {name: inputs[name] for name in ("left", "right")} | node(Both))
    graph.output("more", inputs["other"] | node(Odd))
    streams = hf.flow(
        {name: source(name) for name in inputs}, graph, by="k", outputs={"out": "out BIGINT", "more": "more BIGINT"},
        inputs=dict.fromkeys(inputs, "v"), idle_after="5 s",
    )  # fmt: skip
    given = {
        "left": [[row(50)], NOTHING, NOTHING],
        "right": [[row(7)], NOTHING, NOTHING],
        "other": [[row(8)], NOTHING, [row(9)]],
    }
    found = drive(streams["more"], given, batch_times=[0, 9 * SECOND, 10 * SECOND])
    assert [[each["t"] for each in epoch] for epoch in found] == [[8], [], [9]]
    assert drive(streams["out"].late, given, batch_times=[0, 9 * SECOND, 10 * SECOND]) == [[], [], []]


def test_it_reaches_through_calculators_that_move_times_and_through_loops() -> None:
    graph = Graph("moved")
    left, right = graph.input("left"), graph.input("right")
    later = right | node(Later, Later.Options(by=-20))
    graph.output("out", {"left": left, "right": later} | node(Both))
    stream = single(graph, idle_after="5 s")
    given = {"left": [[row(50)], NOTHING, NOTHING], "right": [[row(60)], NOTHING, NOTHING]}
    assert times_of(stream, given, [0, 5, 6])[0] == [("a", 40)]


def test_an_epoch_is_made_when_an_input_has_been_silent_for_long_enough() -> None:
    step = step_of(single(pair(), idle_after="10 s"))
    state = tables.empty_state(step)
    found = []
    epochs: Any = [(0, [("left", row(1))]), (3, [("left", row(5, "b"))]), (10, []), (13, []), (14, [])]
    for number, (at, events) in enumerate(epochs):
        live._LIVE.clear()
        result = call(step, state, arrivals_of(step, events), StepTime(number, at * SECOND), operator="flow")
        state = tables.apply_changes(state, step.tables, result.changes)
        found.append((result.due_us, result.outputs["rows"].column("t").to_pylist(), state["waits"].num_rows))
    assert found == [(10 * SECOND, [], 1), (10 * SECOND, [], 2), (13 * SECOND, [1], 2), (None, [5], 2), (None, [], 2)]


def test_a_backlog_is_no_silence() -> None:
    step = step_of(single(pair(), idle_after="10 s"))
    state = tables.empty_state(step)
    found = []
    for number, (at, heard) in enumerate([(0, 0), (11, 8), (17, 8), (18, 8)]):
        events: Any = [("left", row(1))] if number == 0 else []
        time = StepTime(number, at * SECOND, {"right": heard * SECOND})
        result = call(step, state, arrivals_of(step, events), time, operator="flow")
        state = tables.apply_changes(state, step.tables, result.changes)
        found.append((result.due_us, result.outputs["rows"].num_rows))
    assert found == [(10 * SECOND, 0), (18 * SECOND, 0), (18 * SECOND, 0), (None, 1)]


def test_silence_is_no_end() -> None:
    given = {"left": [[row(1)], [close()], NOTHING], "right": [NOTHING, NOTHING, [row(9), row(10)]]}
    found = times_of(single(pair(), idle_after="5 s"), given, [0, 5, 6])
    assert found == [[], [("a", 1)], [("a", 9), ("a", 10)]]


def test_where_nothing_waits_for_bounds_it_is_refused() -> None:
    with pytest.raises(hf.InvalidPipeline, match="no node of graph 'pair' waits for the bounds"):
        single(pair(policy=hf.policy.barrier()), idle_after="5 s")
    with pytest.raises(hf.InvalidPipeline, match="idle_after"):
        single(pair(), idle_after="soon")


# --- drops -----------------------------------------------------------------------------------------------------------


def test_what_calculators_and_policies_drop_is_counted_by_node() -> None:
    calculators = hf.flow.calculators
    graph = Graph("drops")
    left, right = graph.input("left"), graph.input("right")
    gate = {"data": left, "allow": right | node(hf.flow.function(lambda v: v > 1, name="allow"))}
    merge = calculators.Merge.Options(("a", "b"))
    graph.output("out", {"a": left, "b": right} | node(calculators.Merge, merge, name="merge"))
    graph.output("open", gate | node(calculators.Gate, name="gate"))
    graph.output("batched", left | node(Batched))
    step = step_of(flowed(graph, inputs={"left": "v", "right": "v"})["out"])
    state = tables.empty_state(step)
    counts = []
    for number, rows in enumerate([(1, 2), (3,), (4, 5, 6)]):
        live._LIVE.clear()
        events: Any = [(name, row(t, key, t % 3)) for name in ("left", "right") for t in rows for key in "ab"]
        result = call(step, state, arrivals_of(step, events), StepTime(number, 0), operator="flow")
        state = tables.apply_changes(state, step.tables, result.changes)
        counts.append({name: count for name, count in result.counts.items() if name.startswith("dropped")})
    assert counts == [
        {"dropped": 6, "dropped: gate": 2, "dropped: merge": 4},
        {"dropped": 4, "dropped: gate": 2, "dropped: merge": 2},
        {"dropped": 10, "dropped: gate": 4, "dropped: merge": 6},
    ]
