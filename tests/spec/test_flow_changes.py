"""A changed flowgraph goes on from the state of the one before, whatever its new nodes send and streams say (0045)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.operators.flow import live
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import Result, StepTime
from holdfast.testing import drive
from holdfast.testing.given import Bound, bound
from holdfast.testing.step_contract import arrivals_of, step_of
from tests.calculators import Both, Odd, Total
from tests.spec.test_flow_operator import flowed, line, single

pytestmark = pytest.mark.slow

Epoch = Sequence[tuple[str, dict[str, Any] | Bound]]


def row(t: int, value: int = 1) -> dict[str, Any]:
    return {"k": "a", "t": t, "v": value}


def epoch(stream: hf.Stream, state: Any, number: int, items: Epoch) -> tuple[Any, Result]:
    """Return state and result after an epoch of a worker that has no graph in memory."""
    live._LIVE.clear()
    step = step_of(stream)
    state = tables.empty_state(step) if state is None else state
    result = call(step, state, arrivals_of(step, list(items)), StepTime(number, 0), operator="flow")
    return tables.apply_changes(state, step.tables, result.changes), result


def changed(old: Graph, new: Graph, *epochs: Epoch) -> list[list[tuple[int, int]]]:
    """Return what leaves, epoch by epoch, where a graph has the first one and another graph the others."""
    state: Any = None
    found = []
    for number, items in enumerate(epochs):
        graph = old if number == 0 else new
        stream = next(iter(flowed(graph, inputs=dict.fromkeys(graph.inputs, "v")).values()))
        state, result = epoch(stream, state, number, items)
        found.append([(each["t"], each["out"]) for each in result.outputs["rows"].to_pylist()])
    return found


class Header(Calculator):
    """Passes numbers, and sends one of its own when it is opened."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", timestamp_offset=0, is_pure=True)

    def open(self, context: Context) -> None:
        context.emit("same", 1000, at=0)

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])


def test_what_a_new_node_sends_in_open_is_dropped_where_a_kept_one_has_gone_beyond() -> None:
    old, new = line(node(Total, name="total")), line(node(Header, name="header"), node(Total, name="total"))
    found = changed(old, new, [("rows", row(5)), ("rows", row(6))], [("rows", row(7))], [("rows", row(8))])
    assert found == [[(5, 1), (6, 2)], [(7, 3)], [(8, 4)]]
    assert changed(new, new, [("rows", row(5))], [("rows", row(6))]) == [[(0, 1000), (5, 1001)], [(6, 1002)]]


class Optional(Both):
    """Has a second input from some day on."""

    identity: ClassVar[str] = "tests.Optional"


class Optional1(Optional):
    """The same before that."""

    identity: ClassVar[str] = "tests.Optional"
    contract: ClassVar[Contract] = Contract(inputs=("left",), outputs="both", timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        context.emit("both", 2 * context["left"] + 1)


def test_what_a_new_node_sends_in_open_to_a_new_input_of_a_kept_one_is_dropped_below_its_time() -> None:
    old = Graph("one")
    old.output("out", old.input("rows") | node(Optional1, name="both"))
    new = Graph("two")
    rows = new.input("rows")
    new.output("out", {"left": rows, "right": rows | node(Header)} | node(Optional, name="both"))
    assert changed(old, new, [("rows", row(5))], [("rows", row(6))]) == [[(5, 3)], [(6, 6)]]


def test_a_kept_node_that_is_moved_to_a_slower_stream_waits_until_that_has_caught_up() -> None:
    def graph(of: str) -> Graph:
        found = Graph("moved")
        inputs = {name: found.input(name) for name in ("fast", "slow")}
        found.output("out", inputs[of] | node(Total, name="total"))
        return found

    first: list[Any] = [("fast", row(50)), ("slow", row(10))]
    then: list[Any] = [("slow", row(20)), ("slow", bound(40, {"k": "a"})), ("slow", row(50)), ("slow", row(51, 5))]
    for epochs in ([first, then], [first, then[:1], then[1:]], [first, then[:3], then[3:]]):
        found = changed(graph("fast"), graph("slow"), *epochs)
        assert [each for rows in found for each in rows] == [(50, 1), (51, 6)]


def test_a_stream_that_goes_back_is_an_error_after_a_change_too() -> None:
    new = line(node(Header, name="header"), node(Back, name="back"), node(Total, name="total"))
    with pytest.raises(hf.InvalidPipeline, match=r"stream 'back.same' at 6 comes too late"):
        changed(line(node(Total, name="total")), new, [("rows", row(5))], [("rows", row(7)), ("rows", row(8))])


class Back(Header):
    """Sends what is too late."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", is_pure=True)

    def open(self, context: Context) -> None:
        """Send nothing."""

    def process(self, context: Context) -> None:
        if context.timestamp > 5:
            context.emit("same", 1, at={7: 7, 8: 6}[context.timestamp])


# --- the code that changes, and the graph ----------------------------------------------------------------------------


def test_what_is_built_on_after_the_call_is_another_graph() -> None:
    graph = line(Odd)
    stream = source_of("rows") | hf.flow(graph, by="k", inputs={"rows": "v"}, schema="out BIGINT", name="flow")
    later = hf.flow(graph, by="k", inputs={"rows": "v"}, schema="out BIGINT", name="later")
    graph.output("more", graph.outputs["out"] | node(Total))
    graph.keeps[int] = (str, int)
    for each in (stream, source_of("rows") | later):
        assert [found["out"] for found in drive(each, {"rows": [[row(1, 7)]]})[0]] == [7]
    with pytest.raises(hf.InvalidPipeline, match="has the outputs out, more"):
        source_of("rows") | hf.flow(graph, by="k", schema="out BIGINT")


def source_of(name: str) -> hf.Stream:
    return hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name=name)


class Moved(Total):
    """The same calculator, after its code has moved."""

    identity: ClassVar[str] = "tests.calculators.Total"


class Other(Moved):
    """Another one: what is declared is of the class that declares it."""


def test_a_calculator_that_has_moved_keeps_its_state_by_its_identity() -> None:
    epochs = [[("rows", row(5))], [("rows", row(6))]]
    old = line(node(Total, name="n"))
    assert changed(old, line(node(Moved, name="n")), *epochs) == [[(5, 1)], [(6, 2)]]
    with pytest.raises(hf.InvalidPipeline, match=r"identity = 'tests.calculators.Total'"):
        changed(old, line(node(Other, name="n")), *epochs)


# --- queues that are full --------------------------------------------------------------------------------------------


def test_a_deadlock_in_a_pipeline_is_no_reason_to_try_again() -> None:
    """What would be tried again fails again: the graph, or its limit, is to be changed."""
    graph = Graph("full", max_queue_size=2, report_deadlock=True)
    left, right = graph.input("left"), graph.input("right")
    graph.output("out", {"left": left, "right": right} | node(Both))
    with pytest.raises(hf.InvalidPipeline, match="Nothing can go on: full queues"):
        drive(single(graph), {"left": [[row(t) for t in range(5)]], "right": [[]]})


# --- replays ---------------------------------------------------------------------------------------------------------


class Spoiling(Calculator):
    """A decoder that changes what it is given, and asks how far its output is known."""

    contract: ClassVar[Contract] = Contract(inputs={"frame": dict}, outputs={"image": int}, replay_from="is_key")

    def open(self, context: Context) -> None:
        self._seen = [context.output_bound("image") - hf.flow.PRE_STREAM]

    def process(self, context: Context) -> None:
        frame = context["frame"]
        if frame.pop("is_key"):
            self._seen = self._seen[:1]
        frame["v"] += 1
        self._seen.append(context.output_bound("image"))
        context.raise_bound("image", context.timestamp)
        self._seen.append(context.output_bound("image"))
        context.emit("image", hash((frame["v"], *self._seen)))

    def save(self) -> Mapping[str, Any]:
        raise AssertionError("it is replayed")


def test_a_replay_gives_what_was_given_and_tells_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("spoiling")
    graph.output("out", graph.input("rows") | node(Spoiling))
    stream = flowed(graph, "k STRING, t BIGINT, is_key BOOLEAN, v BIGINT")["out"]
    rows: Any = [[{"k": "a", "t": t, "is_key": t in (1, 5), "v": t}] for t in range(1, 9)]
    kept = drive(stream, {"rows": rows})
    monkeypatch.setattr(live, "take", lambda key: None)
    assert drive(stream, {"rows": rows}) == kept
    assert [len(each) for each in kept] == [1] * 8


def test_what_is_replayed_is_not_kept_of_a_graph_that_runs_alone() -> None:
    graph = Graph("alone")
    graph.output("out", graph.input("rows") | node(Spoiling))
    with graph.start(executor=hf.flow.Sequential()) as run:
        run.add("rows", {"is_key": True, "v": 1, "open": open}, 1)  # it could not be kept
