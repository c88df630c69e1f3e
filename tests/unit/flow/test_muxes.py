"""One stream of several: Mux, ImmediateMux and Merge."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT, POST_STREAM, PRE_STREAM
from holdfast.flow.calculators import ImmediateMux, Merge, Mux
from tests.unit.flow.histories import packets, seen

TWO = Mux.Options(("a", "b"))


def test_mux_sends_what_is_chosen_at_the_time_of_the_choice() -> None:
    found = seen(
        Mux,
        TWO,
        ("a", 1, "a1"),
        ("b", 1, "b1"),
        ("select", 1, 1),
        ("select", 2, "a"),  # waits for a
        ("b", 2, "b2"),
        ("a", 3),  # a has none at 2: the bound
        ("select", 5, 0),
        ("a", 4, "a4"),  # not chosen
        ("a", 5, "a5"),
        ("select",),
    )
    assert found[:7] == [[], [], [("out", 1, "b1")], [], [], [("out", 2, ABSENT)], [("out", 4, ABSENT)]]
    assert packets(found, "out") == [(1, "b1"), (5, "a5")]


def test_mux_ends_with_its_select() -> None:
    found = seen(Mux, TWO, ("a", 1, "a1"), ("select", 1, 0), ("select",), ("a", 2, "lost"), ("b", 1, "lost"))
    assert packets(found, "out") == [(1, "a1")]


@pytest.mark.parametrize("choice", [2, -1, "c"])
def test_mux_refuses_a_choice_of_nothing(choice: object) -> None:
    with pytest.raises(InvalidPipeline, match="chooses"):
        seen(Mux, TWO, ("a", 1, "a1"), ("select", 1, choice))


def test_merge_sends_the_first_inputs_packet_of_each_time() -> None:
    found = seen(
        Merge,
        Merge.Options(("a", "b")),
        ("b", 1, "b1"),
        ("a", 1, "a1"),
        ("a", 3),
        ("b", 2, "b2"),
        ("b", 7),
        ("a",),
        ("b", 8, "b8"),
    )
    assert found == [
        [],
        [("out", 1, "a1")],
        [],
        [("out", 2, "b2")],
        [],
        [("out", 6, ABSENT)],
        [("out", 8, "b8")],
    ]


THREE = ImmediateMux.Options(("a", "b", "c"))


def test_immediate_mux_sends_what_comes_and_drops_what_is_older() -> None:
    found = seen(
        ImmediateMux,
        THREE,
        ("b", 5, "b5"),
        ("a", 3, "old"),
        ("c", 5, "as old as the last"),
        ("a", 6, "a6"),
        ("b", 9, "b9"),
        ("c", 8, "old"),
    )
    assert packets(found, "out") == [(5, "b5"), (6, "a6"), (9, "b9")]
    assert found[0] == [("out", 5, "b5")]  # at once, whatever the others will bring


def test_of_packets_that_come_together_the_first_inputs_is_sent() -> None:
    found = seen(ImmediateMux, THREE, ("c", 9, "later"), ("b", 5, "b5"), ("a", 5, "a5"), (), piles_up=True)
    assert packets(found, "out") == [(9, "later")]
    found = seen(ImmediateMux, THREE, ("c", 1, "c1"), ("b", 5, "b5"), ("a", 5, "a5"), (), piles_up=True)
    assert packets(found, "out") == [(1, "c1"), (5, "a5")]


def test_the_bound_of_an_immediate_mux_is_the_lowest_of_its_inputs() -> None:
    found = seen(ImmediateMux, THREE, ("a", 4), ("b", 7), ("c", 6), ("a",), ("c",), ("b", 8), ("b",))
    assert found == [[], [], [("out", 3, ABSENT)], [("out", 5, ABSENT)], [("out", 6, ABSENT)], [("out", 7, ABSENT)], []]


def test_the_end_of_one_input_takes_nothing_from_another() -> None:
    """An offset would promise the time of the call that tells the end, at which another input may still have one."""
    found = seen(ImmediateMux, ImmediateMux.Options(("a", "b")), ("a", 6, "a6"), ("b",), ("a", 7, "a7"), ("a",))
    assert packets(found, "out") == [(6, "a6"), (7, "a7")]


@pytest.mark.parametrize("t", [PRE_STREAM, POST_STREAM])
@pytest.mark.parametrize(("calculator", "options"), [(ImmediateMux, THREE), (Merge, Merge.Options("a"))])
def test_packets_outside_of_time_pass(calculator: type, options: object, t: int) -> None:
    assert packets(seen(calculator, options, ("a", t, "special"), ("a",)), "out") == [(t, "special")]
