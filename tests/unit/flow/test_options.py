"""Options of the library's calculators: what they refuse, and how they say it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.flow.calculators import (
    Demux,
    FlowLimiter,
    Gate,
    ImmediateMux,
    Merge,
    Mux,
    PacketCloner,
    PassThrough,
    RoundRobinDemux,
    SidePacketToStream,
)

NAMED: list[tuple[Callable[..., Any], str, str]] = [
    (Demux.Options, "outputs", ""),
    (FlowLimiter.Options, "auxiliary", "main"),
    (FlowLimiter.Options, "auxiliary", "finished"),
    (FlowLimiter.Options, "auxiliary", "allow"),
    (Gate.Options, "inputs", "allow"),
    (Gate.Options, "inputs", "state_change"),
    (ImmediateMux.Options, "inputs", ""),
    (Merge.Options, "inputs", ""),
    (Mux.Options, "inputs", "select"),
    (PacketCloner.Options, "inputs", "tick"),
    (PassThrough.Options, "inputs", ""),
    (RoundRobinDemux.Options, "outputs", "select"),
    (SidePacketToStream.Options, "names", ""),
]


@pytest.mark.parametrize(("options", "field", "taken"), NAMED)
def test_names_that_are_no_ports_are_refused(options: Callable[..., Any], field: str, taken: str) -> None:
    for wrong in (("a", "a"), ("a b",), (1,), 5, ("",), *([("a", taken)] if taken else [])):
        with pytest.raises(InvalidPipeline, match=re.escape(f"{field}={wrong!r} of ")) as raised:
            options(**{field: wrong})
        assert raised.value.do
        assert not taken or taken in raised.value.why


@pytest.mark.parametrize(("options", "field", "taken"), NAMED)
def test_names_are_kept_as_a_tuple_and_one_may_be_a_text(options: Callable[..., Any], field: str, taken: str) -> None:
    assert getattr(options(**{field: ["a", "b"]}), field) == ("a", "b")
    assert getattr(options(**{field: "one"}), field) == ("one",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options(**{field: "one"}), field, ("two",))


@pytest.mark.parametrize(("options", "field", "taken"), NAMED)
def test_only_a_limiter_does_without_names(options: Callable[..., Any], field: str, taken: str) -> None:
    if field == "auxiliary":
        assert options(auxiliary=()) == FlowLimiter.Options()
    else:
        with pytest.raises(InvalidPipeline, match="does not name ports"):
            options(**{field: ()})


@pytest.mark.parametrize(
    "wrong", [{"max_in_flight": 0}, {"max_in_queue": -1}, {"in_flight_timeout": -1}, {"max_in_flight": 1.5}]
)
def test_a_limiter_takes_whole_numbers(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidPipeline, match=f"{name}=.* no whole number from [01] on"):
        FlowLimiter.Options(**wrong)
