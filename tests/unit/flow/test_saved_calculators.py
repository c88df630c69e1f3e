"""Every calculator of the library, replaced by one that takes its state, between any two packets (design/0045)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast import flow
from holdfast.flow import calculators
from holdfast.flow.calculators import (
    ClockConversion,
    Demux,
    FlowLimiter,
    Gate,
    ImmediateMux,
    Merge,
    Mux,
    PacketCloner,
    PacketResampler,
    PassThrough,
    PreviousLoopback,
    RoundRobinDemux,
    SidePacketToStream,
)
from tests.unit.flow.histories import Event, Seen, history, other_calculator, other_run, seen

LIBRARY: list[tuple[type[flow.Calculator], Any]] = [
    (ClockConversion, ClockConversion.Options("UTC", "NTP")),
    (Demux, Demux.Options(("left", "right"))),
    (FlowLimiter, FlowLimiter.Options()),
    (FlowLimiter, FlowLimiter.Options(max_in_flight=2, max_in_queue=1, in_flight_timeout=9, auxiliary=("x", "y"))),
    (Gate, Gate.Options(("a", "b"), state_change=True)),
    (Gate, Gate.Options("a", empty_packets_as_allow=True)),
    (ImmediateMux, ImmediateMux.Options(("a", "b", "c"))),
    (Merge, Merge.Options(("a", "b"))),
    (Mux, Mux.Options(("a", "b"))),
    (PacketCloner, PacketCloner.Options(("a", "b"))),
    (PacketCloner, PacketCloner.Options(("a", "b"), needs_all=True, bounds_meanwhile=False)),
    (PacketResampler, PacketResampler.Options(period=7)),
    (PacketResampler, PacketResampler.Options(frame_rate=300_000, base_timestamp=-50, jitter=0.7, seed=3)),
    (PassThrough, PassThrough.Options(("a", "b"))),
    (PreviousLoopback, None),
    (RoundRobinDemux, RoundRobinDemux.Options(("a", "b", "c"))),
    (SidePacketToStream, SidePacketToStream.Options(("model",), at="tick")),
]


def test_the_whole_library_is_asked() -> None:
    every = {
        each
        for each in (getattr(calculators, name) for name in dir(calculators))
        if isinstance(each, type) and issubclass(each, flow.Calculator)
    }
    assert {calculator for calculator, _ in LIBRARY} == every


@pytest.mark.slow
@pytest.mark.parametrize("piles_up", [False, True])
@pytest.mark.parametrize(("calculator", "options"), LIBRARY)
def test_a_calculator_that_is_restored_goes_on_as_if_nothing_had_been(
    calculator: type[flow.Calculator], options: Any, piles_up: bool
) -> None:
    inputs = flow.node(calculator, options).contract.inputs
    some = 0
    for seed in (0, 1, 2, 4):
        events = history(seed, inputs, _payload)
        whole = seen(calculator, options, *events, piles_up=piles_up)
        some += sum(map(len, whole))
        for cuts in (*((place,) for place in range(len(events))), range(len(events))):
            found = seen(calculator, options, *events, piles_up=piles_up, cuts=cuts, replace=other_calculator)
            assert found == whole, cuts
    assert some > 5


@pytest.mark.slow
@pytest.mark.parametrize(("calculator", "options"), LIBRARY)
def test_a_graph_that_is_restored_goes_on_as_if_nothing_had_been(
    calculator: type[flow.Calculator], options: Any
) -> None:
    events = history(3, flow.node(calculator, options).contract.inputs, _payload)
    whole = seen(calculator, options, *events)
    for cuts in (*((place,) for place in range(len(events))), range(len(events))):
        assert seen(calculator, options, *events, cuts=cuts, replace=other_run) == whole, cuts


CHANGES: list[tuple[type[flow.Calculator], Any, Any, list[Event], list[Event], list[Seen]]] = [
    (
        PacketCloner,
        PacketCloner.Options(("a", "b")),
        PacketCloner.Options(("b", "c")),
        [("a", 1, "a1"), ("b", 1, "b1"), ("tick", 1, 0)],
        [("b", 5), ("c", 2, "c2"), ("c", 5), ("tick", 3, 0)],
        [("b", 3, "b1"), ("c", 3, "c2")],
    ),
    (
        FlowLimiter,
        FlowLimiter.Options(max_in_queue=1, auxiliary="x"),
        FlowLimiter.Options(max_in_queue=1, auxiliary="y"),
        [("main", 1, "m1"), ("main", 2, "m2"), ("x", 3, "x3")],
        [("y", 2, "y2"), ("finished", 1, 0)],
        [("main", 2, "m2"), ("allow", 2, True), ("y", 2, "y2")],
    ),
    (
        RoundRobinDemux,
        RoundRobinDemux.Options(("a", "b", "c")),
        RoundRobinDemux.Options(("a", "b")),
        [("data", 1, 1), ("data", 2, 2)],
        [("data", 3, 3)],
        [("a", 3, 3), ("select", 3, 0)],
    ),
    (
        PacketResampler,
        PacketResampler.Options(period=10),
        PacketResampler.Options(period=25),
        [("data", 0, "a"), ("data", 12, "b")],
        [("data", 40, "c")],
        [("data", 25, "b")],
    ),
]


@pytest.mark.parametrize(("calculator", "before", "after", "first", "then", "leaves"), CHANGES)
def test_a_calculator_goes_on_with_other_options(
    calculator: type[flow.Calculator],
    before: Any,
    after: Any,
    first: list[Event],
    then: list[Event],
    leaves: list[Seen],
) -> None:
    found = seen(
        calculator, before, *first, *then, cuts=[len(first)], replace=lambda run: other_run(run, options=after)
    )
    packets = [each for event in found[len(first) :] for each in event if each[2] is not flow.ABSENT]
    assert sorted(packets, key=str) == sorted(leaves, key=str)


def _payload(chance: random.Random, name: str) -> Any:
    match name:
        case "allow":
            return chance.random() < 0.5
        case "select":
            return chance.randrange(2)
        case _:
            return f"{name} {chance.randrange(1000)}"
