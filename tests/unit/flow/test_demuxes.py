"""Several streams of one: Demux and RoundRobinDemux."""

from __future__ import annotations

import pytest

from holdfast import flow
from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT
from holdfast.flow.calculators import Demux, Mux, PassThrough, RoundRobinDemux
from tests.unit.flow.histories import seen

TWO = Demux.Options(("left", "right"))


def test_demux_sends_by_the_output_that_is_chosen_and_raises_the_bounds_of_the_others() -> None:
    found = seen(
        Demux,
        TWO,
        ("data", 1, "d1"),
        ("select", 1, 1),
        ("data", 2, "d2"),
        ("select", 2, "left"),
        ("data", 3, "nobody chooses"),
        ("select", 4, 0),
        ("data", 5),
    )
    assert [event for event in found if event] == [
        [("right", 1, "d1"), ("left", 1, ABSENT)],
        [("left", 2, "d2"), ("right", 2, ABSENT)],
        [("left", 3, ABSENT), ("right", 3, ABSENT)],
        [("left", 4, ABSENT), ("right", 4, ABSENT)],
    ]


@pytest.mark.parametrize("choice", [2, -1, "up"])
def test_demux_refuses_a_choice_of_nothing(choice: object) -> None:
    with pytest.raises(InvalidPipeline, match=r"chooses .*, at 1\."):
        seen(Demux, TWO, ("data", 1, "d1"), ("select", 1, choice))


def test_round_robin_goes_round_and_says_where_it_is() -> None:
    found = seen(
        RoundRobinDemux, RoundRobinDemux.Options(("a", "b")), *(("data", t, t) for t in (1, 3, 4)), ("data", 9)
    )
    assert found == [
        [("a", 1, 1), ("select", 1, 0), ("b", 1, ABSENT)],
        [("b", 3, 3), ("select", 3, 1), ("a", 3, ABSENT)],
        [("a", 4, 4), ("select", 4, 0), ("b", 4, ABSENT)],
        [("a", 8, ABSENT), ("b", 8, ABSENT), ("select", 8, ABSENT)],
    ]


@pytest.mark.parametrize("seed", range(5))
def test_copies_between_round_robin_and_mux_are_as_one(seed: int) -> None:
    graph = flow.Graph()
    made = graph.input("data") | flow.node(RoundRobinDemux, RoundRobinDemux.Options(("a", "b", "c")))
    copies = {name: made[name] | flow.node(PassThrough, name=name) for name in ("a", "b", "c")}
    graph.output("out", {**copies, "select": made["select"]} | flow.node(Mux, Mux.Options(("a", "b", "c"))))
    packets = [(t, f"packet {t}") for t in (0, 1, 2, 5, 8, 13, 21)]
    assert graph.run({"data": packets}, executor=flow.Seeded(seed)) == {"out": packets}
