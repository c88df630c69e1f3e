"""``flow_contract`` passes what a pipeline can restore, and finds what it cannot."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.flow.calculators import FlowLimiter
from holdfast.testing import flow_contract
from tests.calculators import Batched, Both, Decoder, Later, Odd, Total, Tracker, camera_graph, frames_of, random_graph

NUMBERS = [(t, (7 * t) % 11) for t in range(20)]
FRAMES = [(row["t"], {"is_key": row["is_key"], "v": row["v"]}) for row in frames_of("a", 30, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("calculator", [Total, Tracker, Odd, Batched, lambda value: value + 1])
def test_what_saves_its_state_or_has_none_passes(calculator: Any) -> None:
    flow_contract(calculator, NUMBERS)


@pytest.mark.slow
def test_so_does_what_is_replayed_and_what_has_options_or_several_inputs() -> None:
    flow_contract(Decoder, FRAMES)
    flow_contract(Later, NUMBERS, options=Later.Options(by=4))
    flow_contract(node(Later, Later.Options(by=4), name="later"), NUMBERS)
    flow_contract(Both, {"left": NUMBERS, "right": NUMBERS[::3]})


@pytest.mark.slow
def test_so_do_whole_graphs() -> None:
    flow_contract(camera_graph(has_count=True), FRAMES, seeds=2)
    for seed in range(3):
        graph = random_graph(seed, 2)
        flow_contract(graph, {"in0": NUMBERS[:12], "in1": NUMBERS[::2]}, seeds=2)


def test_a_calculator_that_keeps_nothing_for_a_restore_is_refused() -> None:
    class Unsaved(Total):
        def save(self) -> Any:
            return None

    with pytest.raises(hf.InvalidPipeline, match="'unsaved' has state that nobody can keep"):
        flow_contract(Unsaved, NUMBERS)


class Forgetful(Calculator):
    """Forgets in save() how many there were."""

    contract = Contract(inputs="value", outputs="mean", timestamp_offset=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._sum = self._count = 0

    def process(self, context: Context) -> None:
        self._sum, self._count = self._sum + context["value"], self._count + 1
        context.emit("mean", self._sum / self._count)

    def save(self) -> Mapping[str, Any]:
        return {"sum": self._sum}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._sum = saved["sum"]


def test_what_save_forgets_is_found_with_its_output_and_where() -> None:
    said = (
        r"restored before the packet of input 'value' at 1, output 'mean' gives other packets: number 2 was \(1, 3.5\)"
    )
    with pytest.raises(AssertionError, match=said):
        flow_contract(Forgetful, NUMBERS)


def test_what_restore_forgets_is_found_with_its_node() -> None:
    class Blank(Total):
        def restore(self, saved: Mapping[str, Any]) -> None:
            """Do nothing."""

    with pytest.raises(AssertionError, match=r"node 'blank': what is saved directly behind a restore, before .* at 2"):
        flow_contract(Blank, NUMBERS)


def test_state_of_what_says_that_it_is_pure_is_found() -> None:
    class Impure(Total):
        contract = Contract(inputs="value", outputs="total", timestamp_offset=0, is_pure=True)

        def save(self) -> Mapping[str, Any]:
            return {}

        def restore(self, saved: Mapping[str, Any]) -> None:
            """Do nothing."""

    with pytest.raises(AssertionError, match="output 'total' gives other packets"):
        flow_contract(Impure, NUMBERS)


class Unmarked(Decoder):
    """Needs more than the packets since a mark: the number of the mark."""

    _marks = 0

    def process(self, context: Context) -> None:
        self._marks += context["frame"]["is_key"]
        context.emit("image", self._marks)


def test_a_mark_from_which_on_not_all_can_be_made_again_is_found() -> None:
    with pytest.raises(AssertionError, match="output 'image' gives other packets"):
        flow_contract(Unmarked, FRAMES)


@pytest.mark.slow
def test_what_depends_on_which_input_comes_first_is_found_unless_it_may() -> None:
    graph = Graph("first")
    left, right = graph.input("left"), graph.input("right")
    graph.output("both", {"left": left, "right": right} | node(Both, policy=hf.policy.fixed_size(2, 1)))
    packets = {"left": NUMBERS, "right": NUMBERS}
    with pytest.raises(AssertionError, match=r"in another order \(depends_on_arrival=True"):
        flow_contract(graph, packets)
    flow_contract(graph, packets, depends_on_arrival=True)


@pytest.mark.slow
def test_a_limiter_with_its_loop_passes() -> None:
    graph = Graph("limited")
    finished = graph.back_edge("finished")
    limited = {"main": graph.input("main"), "finished": finished} | node(FlowLimiter)
    late = graph.input("late")
    out = {"left": limited["main"], "right": late} | node(Both)
    finished.comes_from(out)
    graph.output("out", out)
    chance = random.Random(1)
    packets = {"main": NUMBERS, "late": [each for each in NUMBERS if chance.random() < 0.5]}
    flow_contract(graph, packets, depends_on_arrival=True)


def test_packets_are_of_the_inputs_and_sources_are_none_of_a_pipeline() -> None:
    with pytest.raises(hf.InvalidPipeline, match="the inputs are left, right"):
        flow_contract(Both, NUMBERS)

    class Source(Calculator):
        contract = Contract(outputs="value")

    with pytest.raises(hf.InvalidPipeline, match="'source' of graph 'source' is a source"):
        flow_contract(Source, {})
