"""What is dropped is counted where it is dropped: by policies, by calculators of the library, by a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast import flow
from holdfast.flow.building import NodeSpec
from holdfast.flow.calculators import Demux, FlowLimiter, Gate, ImmediateMux, Merge, Mux, PassThrough

Packets = Mapping[str, Sequence[tuple[int, Any]]]


class Every(flow.Calculator):
    """Takes what the policy gives, and drops what it is told to."""

    contract = flow.Contract(inputs=("a", "b"), outputs="out", is_pure=True)

    def process(self, context: flow.Context) -> None:
        if context.get("a") == "two":
            context.drop(2)


CASES: list[tuple[Any, Packets, int]] = [
    (flow.node(Every, policy=hf.policy.fixed_size()), {"a": [(1, 0), (2, 0), (3, 0)], "b": [(9, 0)]}, 2),
    (flow.node(Every, policy=hf.policy.early_close()), {"a": [(1, 0)], "b": [(1, 0), (2, 0), (3, 0)]}, 2),
    (flow.node(Every, policy=hf.policy.barrier()), {"a": [(1, 0), (2, 0)], "b": [(7, 0)]}, 1),
    (flow.node(Every), {"a": [(1, 0), (2, "two")], "b": [(1, 0)]}, 2),
    (flow.node(Every), {"a": [(1, 0), (2, 0)], "b": [(1, 0)]}, 0),
    (flow.node(Mux, Mux.Options(("a", "b"))), {"a": [(1, 0), (2, 0)], "b": [(1, 0)], "select": [(1, 0)]}, 2),
    (flow.node(Merge, Merge.Options(("a", "b"))), {"a": [(1, 0), (2, 0)], "b": [(1, 0), (3, 0)]}, 1),
    (flow.node(ImmediateMux, ImmediateMux.Options(("a", "b"))), {"a": [(1, 0), (2, 0)], "b": [(2, 0), (3, 0)]}, 1),
    (flow.node(Demux, Demux.Options(("x", "y"))), {"data": [(1, 0), (2, 0)], "select": [(1, 0), (3, 1)]}, 1),
    (flow.node(Gate), {"data": [(1, 0), (2, 0), (3, 0)], "allow": [(1, True), (2, False)]}, 2),
    (flow.node(PassThrough, PassThrough.Options(("a", "b"))), {"a": [(1, 0)], "b": [(2, 0)]}, 0),
]


@pytest.mark.parametrize(("made", "packets", "count"), CASES)
def test_what_a_node_drops_is_counted(made: NodeSpec, packets: Packets, count: int) -> None:
    graph = flow.Graph("one")
    graph.add(made.with_name("one"), {name: graph.input(name) for name in packets})
    run = graph.start(executor=flow.Sequential())
    steps = sorted((t, name, value) for name, each in packets.items() for t, value in each)
    for t, name, value in steps:
        run.add(name, value, t)
    run.close()
    run.wait_until_idle()
    assert run.drops() == ({"one": count} if count else {})
    run.stop()


def test_a_limiter_counts_what_it_has_not_let_in_and_what_shares_its_fate() -> None:
    graph = flow.Graph("limited")
    inputs = {name: graph.input(name) for name in ("main", "x", "finished")}
    graph.add(flow.node(FlowLimiter, FlowLimiter.Options(auxiliary="x"), name="limiter"), inputs)
    run = graph.start(executor=flow.Sequential())
    for t in (1, 2, 3):
        run.add("main", 0, t)
        run.add("x", 0, t)
    run.raise_bound("main", 9)
    assert run.drops() == {"limiter": 4}, "2 and 3, of both"
    run.stop()
