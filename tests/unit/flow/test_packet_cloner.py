"""PacketCloner: the latest packets again, at each tick."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT
from holdfast.flow.calculators import PacketCloner
from tests.unit.flow.histories import Event, packets, seen

BOTH = ("a", "b")
EVENTS: tuple[Event, ...] = (
    ("a", 1, "a1"),
    ("b", 4),
    ("tick", 3, "t"),  # a has had a packet, b none
    ("b", 6, "b6"),
    ("a", 6, "a6"),
    ("tick", 6, "t"),  # a packet at the time of the tick counts
    ("a", 20),
    ("b", 20),
    ("tick", 9, "t"),  # the same again
    ("tick", 21),
)


def test_a_tick_sends_the_latest_packet_of_each_input() -> None:
    found = seen(PacketCloner, PacketCloner.Options(BOTH), *EVENTS)
    assert packets(found, "a") == [(3, "a1"), (6, "a6"), (9, "a6")]
    assert packets(found, "b") == [(6, "b6"), (9, "b6")]


def test_bounds_rise_with_what_is_settled_though_there_is_no_tick() -> None:
    found = seen(PacketCloner, PacketCloner.Options("a"), ("a", 5, "a5"), ("tick", 5), ("tick", 6))
    assert found == [[], [("a", 4, ABSENT)], [("a", 5, ABSENT)]]


def test_an_input_without_a_packet_yet_gives_its_bound() -> None:
    found = seen(PacketCloner, PacketCloner.Options(BOTH), *EVENTS[:5])
    assert found[4] == [("a", 3, "a1"), ("b", 3, ABSENT)]


def test_it_waits_for_all_inputs_and_sends_bounds_meanwhile() -> None:
    found = seen(PacketCloner, PacketCloner.Options(BOTH, needs_all=True), *EVENTS)
    assert packets(found, "a") == [(6, "a6"), (9, "a6")]
    assert packets(found, "b") == [(6, "b6"), (9, "b6")]
    assert ("a", 3, ABSENT) in found[4]


def test_it_waits_for_all_inputs_and_sends_no_bounds_meanwhile() -> None:
    options = PacketCloner.Options(BOTH, needs_all=True, bounds_meanwhile=False)
    found = seen(PacketCloner, options, *EVENTS)
    assert not any(found[:5])
    assert packets(found, "a") == [(6, "a6"), (9, "a6")]


def test_a_payload_of_none_is_a_packet() -> None:
    found = seen(PacketCloner, PacketCloner.Options("a", needs_all=True), ("a", 1, None), ("tick", 1, "t"))
    assert packets(found, "a") == [(1, None)]


@pytest.mark.parametrize("options", [{"inputs": ("tick",)}, {"inputs": ()}, {"bounds_meanwhile": False}])
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidPipeline):
        PacketCloner.Options(**options)  # type: ignore[arg-type]
