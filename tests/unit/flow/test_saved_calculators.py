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
from tests.unit.flow.histories import history, other_calculator, other_run, seen

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


@pytest.mark.parametrize("piles_up", [False, True])
@pytest.mark.parametrize(("calculator", "options"), LIBRARY)
def test_a_calculator_that_is_restored_goes_on_as_if_nothing_had_been(
    calculator: type[flow.Calculator], options: Any, piles_up: bool
) -> None:
    inputs = flow.node(calculator, options).contract.inputs
    some = 0
    for seed in range(3):
        events = history(seed, inputs, _payload)
        whole = seen(calculator, options, *events, piles_up=piles_up)
        some += sum(map(len, whole))
        for cuts in (*((place,) for place in range(len(events))), range(len(events))):
            found = seen(calculator, options, *events, piles_up=piles_up, cuts=cuts, replace=other_calculator)
            assert found == whole, cuts
    assert some > 5


@pytest.mark.parametrize(("calculator", "options"), LIBRARY)
def test_a_graph_that_is_restored_goes_on_as_if_nothing_had_been(
    calculator: type[flow.Calculator], options: Any
) -> None:
    events = history(3, flow.node(calculator, options).contract.inputs, _payload)
    whole = seen(calculator, options, *events)
    for cuts in (*((place,) for place in range(len(events))), range(len(events))):
        assert seen(calculator, options, *events, cuts=cuts, replace=other_run) == whole, cuts


def _payload(chance: random.Random, name: str) -> Any:
    match name:
        case "allow":
            return chance.random() < 0.5
        case "select":
            return chance.randrange(2)
        case _:
            return f"{name} {chance.randrange(1000)}"
