"""Gate: what passes, bounds of what does not, and changes."""

from __future__ import annotations

import pytest

from holdfast import flow
from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT
from holdfast.flow.calculators import Gate
from tests.unit.flow.histories import Event, packets, seen

EVENTS: tuple[Event, ...] = (
    ("data", 1, "d1"),
    ("allow", 1, True),
    ("data", 2, "d2"),
    ("allow", 2, False),
    ("data", 3, "d3"),
    ("allow", 4),  # no packet at 3
    ("allow", 5, True),
    ("data", 6),  # no data at 5
    ("data", 6, "d6"),
    ("allow", 6, True),
)


def test_packets_pass_where_allow_is_true_and_refused_times_raise_the_bound() -> None:
    found = seen(Gate, None, *EVENTS)
    assert [event for event in found if event] == [
        [("data", 1, "d1")],
        [("data", 2, ABSENT)],
        [("data", 3, ABSENT)],
        [("data", 5, ABSENT)],
        [("data", 6, "d6")],
    ]


def test_disallow_inverts() -> None:
    assert packets(seen(Gate, Gate.Options(disallow=True), *EVENTS), "data") == [(2, "d2")]


@pytest.mark.parametrize("disallow", [False, True])
def test_a_time_without_allow_is_open_where_empty_packets_allow(disallow: bool) -> None:
    options = Gate.Options(empty_packets_as_allow=True, disallow=disallow)
    assert (3, "d3") in packets(seen(Gate, options, *EVENTS), "data")


def test_state_change_tells_changes_only_and_not_the_first_state() -> None:
    found = seen(Gate, Gate.Options(state_change=True), *EVENTS)
    assert packets(found, "state_change") == [(2, False), (5, True)]


def test_state_change_of_empty_packets_as_allow() -> None:
    found = seen(Gate, Gate.Options(state_change=True, empty_packets_as_allow=True), *EVENTS)
    assert packets(found, "state_change") == [(2, False), (3, True)]


def test_several_inputs_pass_together() -> None:
    found = seen(Gate, Gate.Options(("a", "b")), ("a", 1, "a1"), ("b", 1, "b1"), ("allow", 1, True))
    assert found[2] == [("a", 1, "a1"), ("b", 1, "b1")]


def test_only_a_gate_that_tells_changes_has_a_state() -> None:
    assert flow.node(Gate).contract.is_pure
    assert not flow.node(Gate, Gate.Options(state_change=True)).contract.is_pure


def test_a_stream_that_is_not_of_bools_is_refused() -> None:
    graph = flow.Graph()
    streams = {"allow": graph.input("allow", str), "data": graph.input("data")}
    with pytest.raises(InvalidPipeline, match="takes bool"):
        streams | flow.node(Gate)
