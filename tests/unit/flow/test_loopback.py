"""PreviousLoopback: what was made of the packet before; and FlowLimiter with it in one graph."""

from __future__ import annotations

from holdfast import flow
from holdfast.flow import ABSENT, MAX
from holdfast.flow.calculators import PreviousLoopback
from tests.unit.flow.histories import Event, packets, seen


def test_the_loops_packet_of_the_time_before_comes_at_the_time_of_the_next() -> None:
    events: list[Event] = [
        ("main", 1, "m1"),
        ("loop", 1, "l1"),
        ("main", 5, "m5"),
        ("main", 6, "m6"),
        ("loop", 5, "l5"),
    ]
    assert seen(PreviousLoopback, None, *events) == [
        [("previous", 1, ABSENT)],
        [],
        [("previous", 5, "l1")],
        [],
        [("previous", 6, "l5")],
    ]


def test_where_the_loop_has_nothing_only_the_bound_rises() -> None:
    events: list[Event] = [("main", 1, "m1"), ("loop", 2), ("main", 5, "m5"), ("loop", 5, "l5"), ("main", 9, "m9")]
    assert seen(PreviousLoopback, None, *events) == [
        [("previous", 1, ABSENT)],
        [],
        [("previous", 5, ABSENT)],
        [],
        [("previous", 9, "l5")],
    ]


def test_a_packet_of_the_loop_that_no_packet_of_main_had_is_passed_over() -> None:
    events: list[Event] = [("main", 2, "m2"), ("loop", 1, "l1"), ("loop", 2, "l2"), ("main", 4, "m4")]
    assert packets(seen(PreviousLoopback, None, *events), "previous") == [(4, "l2")]


def test_a_bound_of_main_passes_when_something_of_the_loop_is_known_behind_it() -> None:
    events: list[Event] = [
        ("main", 1, "m1"),
        ("main", 7),
        ("main", 9),
        ("loop", 1, "l1"),
        ("main", 12),
        ("main", 15, "m15"),
    ]
    assert seen(PreviousLoopback, None, *events) == [
        [("previous", 1, ABSENT)],
        [],
        [],
        [("previous", 8, ABSENT)],
        [("previous", 11, ABSENT)],
        [("previous", 15, "l1")],
    ]


def test_bounds_that_wait_do_not_pile_up() -> None:
    calculator = PreviousLoopback()
    graph = flow.Graph()
    streams = {name: graph.input(name) for name in ("main", "loop")}
    graph.output("previous", streams | flow.node(PreviousLoopback))
    run = graph.start(executor=flow.Sequential())
    (node,) = run.engine.nodes
    node.calculator = calculator
    run.add("main", "m", 0)
    for t in range(1, 50):
        run.raise_bound("main", t)
    for t in range(1, 50):
        run.raise_bound("loop", t)
    assert sum(map(len, (calculator.save()["main"], calculator.save()["nothing"]))) < 4


def test_the_end_of_main_ends_the_output() -> None:
    graph = flow.Graph()
    streams = {name: graph.input(name) for name in ("main", "loop")}
    previous = streams | flow.node(PreviousLoopback)
    graph.output("previous", previous)
    run = graph.start(executor=flow.Sequential())
    run.add("main", "m", 3)
    run.add("loop", "l", 3)
    run.close("main")
    assert run._streams[previous.name].bound == flow.DONE
    assert packets(
        seen(PreviousLoopback, None, ("main", 1, "m"), ("loop", 1, "l"), ("main", MAX, "m")), "previous"
    ) == [(MAX, "l")]


def test_a_sum_goes_round_its_loop() -> None:
    graph = flow.Graph()
    numbers = graph.input("n", int)
    edge = graph.back_edge("sum")
    before = {"main": numbers, "loop": edge} | flow.node(PreviousLoopback)

    def add(n: int, before: int = 0) -> int:
        return n + before

    total = {"n": numbers, "before": before} | flow.node(add)
    edge.comes_from(total)
    graph.output("sum", total)
    assert graph.run({"n": [(1, 1), (2, 10), (5, 100)]}) == {"sum": [(1, 1), (2, 11), (5, 111)]}
