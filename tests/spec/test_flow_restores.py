"""What of a flowgraph is restored, let go and promised, where graphs come and go (design/0045)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import holdfast as hf
from holdfast import flow
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.operators.flow import live
from holdfast.operators.flow.step import _Graphs
from holdfast.testing import drive
from holdfast.testing.given import bound, close
from tests.calculators import Batched, Both, Decoder, Odd, Total
from tests.spec.test_flow_operator import FRAMES, AtEnd, changed, flowed, line, numbers, single

pytestmark = pytest.mark.slow

NOTHING: Any = []


@pytest.fixture(autouse=True)
def _no_graphs_of_others() -> None:
    while live._LIVE:
        live.end(live._LIVE.popitem()[1])


def row(key: str, t: int, value: int = 1) -> dict[str, Any]:
    return {"k": key, "t": t, "v": value}


def counted(stream: hf.Stream) -> hf.Stream:
    """Return how many rows of a stream are in each window of ten."""
    return stream | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count())


def pair(**options: Any) -> Graph:
    """Return a graph of two inputs that meet."""
    graph = Graph("pair")
    left, right = graph.input("left"), graph.input("right")
    graph.output("out", {"left": left, "right": right} | node(Both, **options))
    return graph


# --- restored --------------------------------------------------------------------------------------------------------


class Promising(Calculator):
    """Promises bounds by itself, from the beginning on."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", is_pure=True)

    def open(self, context: Context) -> None:
        context.raise_bound("same", 0)

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])
        context.raise_bound("same", context.timestamp + 1)

    def save(self) -> Mapping[str, Any]:
        return {}


class PromisingDecoder(Decoder):
    """A decoder that does so."""

    contract: ClassVar[Contract] = Contract(inputs={"frame": dict}, outputs={"image": int}, replay_from="is_key")

    def process(self, context: Context) -> None:
        super().process(context)
        context.raise_bound("image", context.timestamp + 1)


@pytest.mark.parametrize("calculator", [Promising, PromisingDecoder])
def test_what_was_promised_before_may_be_promised_again_in_a_restore(
    calculator: type[Calculator], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph("promising")
    graph.output("out", graph.input("rows") | node(calculator))
    inputs = {"rows": "v"} if calculator is Promising else None
    stream = flowed(graph, FRAMES, inputs=inputs)["out"]
    rows: Any = [[{"k": "a", "t": t, "is_key": t == 0, "v": t}] for t in range(4)]
    kept = drive(stream, {"rows": rows})
    monkeypatch.setattr(live, "take", lambda key: None)
    assert drive(stream, {"rows": rows}) == kept
    assert [len(epoch) for epoch in kept] == [1, 1, 1, 1]


def test_a_calculator_that_reads_the_clock_is_not_restored_by_a_replay() -> None:
    class ClockedDecoder(Decoder):
        contract: ClassVar[Contract] = Contract(inputs="frame", outputs="image", replay_from="is_key", reads_clock=True)

    graph = Graph("clocked")
    graph.output("out", graph.input("rows") | node(ClockedDecoder))
    with pytest.raises(hf.InvalidPipeline, match="'clocked_decoder' of graph 'clocked' reads the clock, and is rest"):
        flowed(graph, FRAMES)


def test_another_policy_begins_anew() -> None:
    def graph(policy: Any) -> Graph:
        found = Graph("meets")
        rows = found.input("rows")
        pairs = {"left": rows | node(Odd, name="first"), "right": rows | node(Odd, name="second")}
        found.output("out", pairs | node(Both, name="both", policy=policy))
        return found

    settled, sets = graph(None), graph(hf.policy.sync_sets([["left", "right"]]))
    aligned = graph(hf.policy.timestamp_align(base="left"))
    for old, new in ((settled, sets), (sets, settled), (settled, aligned), (aligned, settled), (sets, aligned)):
        found = changed(old, new)([numbers(1, 2, 3), numbers(5), numbers(7, 9)])
        assert [len(epoch) for epoch in found][-1] == 2, (old, new)


# --- let go ----------------------------------------------------------------------------------------------------------


def test_a_graph_in_memory_keeps_nothing_of_the_epochs_that_it_has_seen() -> None:
    drive(single(line(Total)), {"rows": [[row("a", 1)], [row("b", 1)], [row("c", 1)]]})
    gc.collect()
    assert len(live._LIVE) == 3
    assert not [each for each in gc.get_objects() if isinstance(each, _Graphs)]


class Unsaved(Total):
    """Cannot be saved."""

    def save(self) -> Mapping[str, Any]:
        raise ValueError("no")


def threads() -> int:
    return sum(each.name.startswith("holdfast-flow") for each in threading.enumerate())


def test_a_graph_that_is_made_again_or_fails_leaves_no_threads() -> None:
    for _ in range(3):  # as a task that is repeated
        drive(single_of(Total), {"rows": [[row("a", 1)]]})
        with pytest.raises(hf.InvalidPipeline, match="failed in save"):
            drive(single_of(Unsaved), {"rows": [[row("a", 1)]]})
    assert threads() == 2, "those of one graph in memory"


_STREAMS: dict[type, hf.Stream] = {}


def single_of(calculator: type[Calculator]) -> hf.Stream:
    """Return the same stream for a calculator each time, as the tasks of a run have it."""
    if calculator not in _STREAMS:
        _STREAMS[calculator] = single(line(calculator), threads=2)
    return _STREAMS[calculator]


class Closing(Total):
    """Raises when it is closed before its time."""

    opened: ClassVar[list[object]] = []
    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="total", timestamp_offset=0, process_timestamp_bounds=True
    )

    def open(self, context: Context) -> None:
        self.opened.append(self)

    def process(self, context: Context) -> None:
        if "value" in context:
            super().process(context)

    def close(self, context: Context) -> None:
        self.opened.remove(self)
        if self._total < 5:
            raise ValueError("too few")


def test_a_graph_for_which_there_is_no_room_does_not_fail_the_one_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIVE_MAX", 2)
    found = drive(single(line(Closing)), {"rows": [[row(key, 1)] for key in "abcd"]})
    assert [len(epoch) for epoch in found] == [1, 1, 1, 1]


def test_a_graph_that_tells_a_bound_for_all_keys_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "opened", [])
    drive(single(line(Closing)), {"rows": [[row("a", 1)], *([bound(t)] for t in range(10, 20))]})
    assert len(Closing.opened) == 1, "that of the key"


class SlowTotal(Total):
    """Is called several times at once."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="total", timestamp_offset=0, max_in_flight=4)

    def process(self, context: Context) -> None:
        time.sleep(0.001 * (context["value"] % 3))
        super().process(context)


def test_threads_are_refused_where_a_replay_could_give_something_else() -> None:
    with pytest.raises(hf.InvalidPipeline, match=r"node 'slow_total' .* has state, and max_in_flight=4"):
        single(line(SlowTotal), threads=4)
    with pytest.raises(hf.InvalidPipeline, match=r"node 'closing' .* has process_timestamp_bounds=True"):
        single(line(Closing), threads=4)


# --- promised --------------------------------------------------------------------------------------------------------


class Opening(Calculator):
    """Sends something when it is opened, for each key."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", timestamp_offset=0, is_pure=True)

    def open(self, context: Context) -> None:
        context.emit("same", 0, at=0)

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])

    def save(self) -> Mapping[str, Any]:
        return {}


class Ticking(Opening):
    """Sends something for bounds."""

    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="same", timestamp_offset=0, process_timestamp_bounds=True, is_pure=True
    )

    def open(self, context: Context) -> None:
        """Send nothing."""

    def process(self, context: Context) -> None:
        context.emit("same", context.get("value", 0))


@pytest.mark.parametrize(("calculator", "sent"), [(Opening, [0, 0, 150]), (Ticking, [99, 150])])
def test_what_a_graph_sends_by_itself_for_a_new_key_is_not_late(calculator: type[Calculator], sent: list[int]) -> None:
    stream = single(line(calculator))
    given: Any = {"rows": [[row("a", 5)], [bound(100)], [bound(7, {"k": "b"})], [row("c", 150)], [close()]]}
    found = [each for epoch in drive(stream, given) for each in epoch if each["k"] != "a"]
    assert sorted(each["t"] for each in found) == sent
    assert not [each for epoch in drive(counted(stream).late, given) for each in epoch]


def test_a_late_row_after_the_end_begins_no_graph() -> None:
    stream = single(line(AtEnd))
    given: Any = {"rows": [[row("a", 5)], [close()], [row("z", 3), row("a", 4)], NOTHING]}
    assert [[each["k"] for each in epoch] for epoch in drive(stream, given)] == [[], ["a"], [], []]
    assert [len(epoch) for epoch in drive(stream.late, given)] == [0, 0, 2, 0]
    assert not [each for epoch in drive(counted(stream).late, given) for each in epoch]


def test_a_graph_that_has_ended_promises_so_although_a_node_never_began() -> None:
    """By timestamp_align nothing is closed for a key of which the base has no packet: the others still end."""
    stream = single(pair(policy=hf.policy.timestamp_align(base="left")))
    given: Any = {"left": [[row("a", 5)], [close()]], "right": [[row("a", 25), row("b", 7)], [row("a", 26), close()]]}
    found = drive(counted(stream), given)
    assert [(each["k"], each["n"]) for epoch in found for each in epoch] == [("a", 1)]


def test_a_key_that_waits_no_longer_lets_the_bound_for_all_keys_go() -> None:
    """Else what is downstream of another key waits until the source sends the next bound."""
    stream = counted(single(line(Batched)))
    rows: Any = [[row("a", 1), *(row("b", t) for t in (1, 2, 3))], [bound(40)], [row("a", 41), row("a", 42)]]
    found = drive(stream, {"rows": rows})
    assert [sorted(each["k"] for each in epoch) for epoch in found] == [[], [], ["a", "b"]]


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A payload of one column."""

    out: int


def test_a_dataclass_is_a_row_of_one_column_too() -> None:
    stream = single(line(lambda rows: Found(rows)))
    assert [each["out"] for each in drive(stream, {"rows": [[row("a", 1, 7)]]})[0]] == [7]


@pytest.mark.parametrize(
    ("t", "is_bad"), [(flow.MIN - 1, True), (flow.MIN, False), (flow.MAX, False), (flow.MAX + 1, True)]
)
def test_a_timestamp_that_is_a_special_time_is_a_bad_row(t: int, is_bad: bool) -> None:
    """Not an error of the graph, which would end the run: the row is what is wrong (BIGINT, at its very ends)."""
    stream = single(line(Total))
    if is_bad:
        with pytest.raises(hf.BadRow, match=rf"input 'rows' have a 't' that no packet may have(?s:.)*t={t}"):
            drive(stream, {"rows": [[row("a", t)]]})
    else:
        found = drive(stream, {"rows": [[row("a", t)], [close()]]})
        assert [each["t"] for epoch in found for each in epoch] == [t]
