"""The scheduler of flowgraphs: who is called when and by whom, that it changes no result, and how a run ends.

A defect here is often a run that never ends: each test is stopped after a minute.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast import flow
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.flow import calculators
from tests.everyday import FIRST_SEED
from tests.unit.flow.random_graphs import RandomGraph, outputs, ways

pytestmark = [pytest.mark.timeout(60), pytest.mark.slow]

EXECUTORS: dict[str, Callable[[], flow.Executor]] = {
    "sequential": flow.Sequential,
    "application": flow.Application,
    "seeded": flow.Seeded,
    "one_thread": lambda: flow.Threads(1),
    "four_threads": lambda: flow.Threads(4),
}
BY_EACH = pytest.mark.parametrize("executor", EXECUTORS)


class Numbers(flow.Calculator):
    """A source: 0, 1, 2, ... without an end, or up to one."""

    contract = flow.Contract(outputs=("out",))

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.next = 0

    def process(self, context: flow.Context) -> Any:
        if self.next == self.last():
            return flow.STOP
        context.emit("out", self.next, at=self.next)
        self.next += 1
        return None

    def last(self) -> int | None:
        return None


class ThreeNumbers(Numbers):
    def last(self) -> int | None:
        return 3


def same(data: Any) -> Any:
    return data


def add(left: int, right: int = 0) -> int:
    return left + right


def one(calculator: Any, executor: str = "application", **options: Any) -> tuple[flow.Run, list[tuple[int, Any]]]:
    """Return a run of a graph of one calculator with one input, and what leaves."""
    graph = flow.Graph("one", **options)
    graph.output("out", graph.input("data") | flow.node(calculator))
    run = graph.start(executor=EXECUTORS[executor]())
    return run, run.collect("out")


# --- results -----------------------------------------------------------------------------------------


def check_random_graph(seed: int, sizes: tuple[int, ...] = (1, 2, 100, -1)) -> None:
    graph = RandomGraph(seed)
    packets = graph.packets()
    wanted = outputs(graph.graph(), packets, 0, executor=flow.Application())
    for size in sizes:
        for name, executor in ways(seed):
            got = outputs(graph.graph(size), packets, seed + size, executor=executor)
            assert got == wanted, f"seed {seed}, queues of {size}, {name}"
        mixed = {"a": flow.Threads(2), "b": flow.Application(), "c": flow.Seeded(seed)}
        got = outputs(graph.graph(size, executors=("", "a", "b", "c")), packets, seed - size, executors=mixed)
        assert got == wanted, f"seed {seed}, queues of {size}, several executors"


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 8))
def test_queue_sizes_and_executors_do_not_change_what_a_graph_makes(seed: int) -> None:
    check_random_graph(seed)


def test_a_small_graph_makes_the_same_by_every_executor() -> None:
    check_random_graph(3, sizes=(1,))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_queue_sizes_and_executors_do_not_change_what_hundreds_of_graphs_make() -> None:
    for seed in range(FIRST_SEED + 100, FIRST_SEED + 400):
        check_random_graph(seed)


@BY_EACH
def test_a_limiter_decides_once_for_each_packet_and_lets_in_what_it_says(executor: str) -> None:
    """What it lets in depends on arrival; that it keeps its word does not."""
    graph = flow.Graph(max_queue_size=2)
    frames, finished = graph.input("frames"), graph.back_edge("finished")
    options = calculators.FlowLimiter.Options(max_in_flight=2, max_in_queue=1)
    limited = {"main": frames, "finished": finished} | flow.node(calculators.FlowLimiter, options)
    rendered = limited["main"] | flow.node(same, name="detect") | flow.node(same, name="render")
    finished.comes_from(rendered)
    graph.output("rendered", rendered)
    graph.output("allow", limited["allow"])
    run = graph.start(executor=EXECUTORS[executor]())
    seen, allowed = run.collect("rendered"), run.collect("allow")
    with run:
        for t in range(50):
            run.add("frames", f"frame {t}", t)
    assert [t for t, _ in allowed] == list(range(50))
    assert seen == [(t, f"frame {t}") for t, is_let_in in allowed if is_let_in]
    assert len(seen) >= 2


def test_bounds_wait_for_what_is_in_flight() -> None:
    """With room for another input set a node asks its policy while a call runs: nothing is promised over its head."""
    graph = flow.Graph()
    passed = graph.input("data") | flow.node(flow.function(same, max_in_flight=2))
    graph.output("out", passed | flow.node(same, name="behind"))
    run = graph.start(executor=flow.Application())
    found = run.collect("out")
    with run:
        run.add("data", "x", 1)
        run.raise_bound("data", 9)
    assert found == [(1, "x")]


@pytest.mark.parametrize("executor", ["one_thread", "four_threads"])
def test_calls_that_overlap_leave_in_the_order_of_time(executor: str) -> None:
    first_may_end = threading.Event()

    def uneven(data: int) -> int:
        if data == 0 and executor == "four_threads":
            first_may_end.wait()
        if data == 3:
            first_may_end.set()
        return data

    run, found = one(flow.function(uneven, max_in_flight=4), executor)
    with run:
        for t in range(20):
            run.add("data", t, t)
    assert found == [(t, t) for t in range(20)]


# --- order of calls ----------------------------------------------------------------------------------


def calls(graph: flow.Graph, inputs: dict[str, list[tuple[int, Any]]]) -> list[str]:
    """Return the nodes in the order of their calls, closes left out."""
    run = graph.start(executor=flow.Application(), trace=True)
    with run:
        for name, packets in inputs.items():
            for t, value in packets:
                run.add(name, value, t)
    events = run.trace()["traceEvents"]
    return [event["name"] for event in events if event["args"]["timestamp"] != "DONE"]


def test_nodes_nearer_to_the_outputs_go_first_and_sources_last() -> None:
    graph = flow.Graph()
    source = graph.add(flow.node(ThreeNumbers, name="source"))
    source | flow.node(same, name="first") | flow.node(same, name="last")
    graph.input("data") | flow.node(same, name="other")
    assert calls(graph, {"data": [(0, 0)]}) == ["other", *["source", "first", "last"] * 3, "source"]


def test_a_layer_of_sources_begins_when_those_below_are_closed_and_nothing_is_left() -> None:
    graph = flow.Graph()
    late = graph.add(flow.node(ThreeNumbers, name="late", source_layer=2))
    early = graph.add(flow.node(ThreeNumbers, name="early", source_layer=1))
    {"left": late, "right": early} | flow.node(add, name="sum", policy=hf.policy.immediate())
    found = [name for name in calls(graph, {}) if name != "sum"]
    assert found == ["early"] * 4 + ["late"] * 4


def test_nodes_run_on_the_executor_that_they_name() -> None:
    seen: dict[str, set[int]] = {}

    def here(data: int, name: str) -> int:
        seen.setdefault(name, set()).add(threading.get_ident())
        return data

    graph = flow.Graph()
    stream = graph.input("data")
    for name, executor in (("own", ""), ("gpu", "gpu"), ("app", "app")):
        stream = stream | flow.node(_here(name, here), executor=executor)
    graph.output("out", stream)
    executors = {"gpu": flow.Threads(1), "app": flow.Application()}
    run = graph.start(executor=flow.Threads(1), executors=executors)
    found = run.collect("out")
    with run:
        for t in range(50):
            run.add("data", t, t)
    assert found == [(t, t) for t in range(50)]
    assert seen["app"] == {threading.get_ident()}
    assert seen["app"].isdisjoint(seen["gpu"] | seen["own"])
    assert len(seen["gpu"] | seen["own"]) == 1 + 1


def _here(name: str, here: Callable[[int, str], int]) -> Any:
    def call(data: int) -> int:
        return here(data, name)

    return flow.function(call, name=name)


def test_an_executor_that_is_not_given_is_an_error() -> None:
    graph = flow.Graph()
    graph.input("data") | flow.node(same, executor="gpu")
    with pytest.raises(InvalidPipeline, match="'same' runs on executor 'gpu', which was not given"):
        graph.start()


def test_the_same_seed_calls_in_the_same_order_and_others_in_others() -> None:
    def order(seed: int) -> list[str]:
        graph = flow.Graph()
        source = graph.input("data")
        for n in range(5):
            source | flow.node(same, name=f"node_{n}")
        run = graph.start(executor=flow.Seeded(seed), trace=True)
        with run:
            for t in range(5):
                run.add("data", t, t)
        return [event["name"] for event in run.trace()["traceEvents"]]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_a_seed_also_decides_how_far_the_graph_is_when_the_next_packet_is_added() -> None:
    """Every interleaving has a seed: of arrivals with calls, too."""

    def sizes(seed: int) -> list[int]:
        graph = flow.Graph()
        graph.output("out", {name: graph.input(name) for name in ("left", "right")} | flow.node(_Sizes))
        run = graph.start(executor=flow.Seeded(seed))
        found = run.collect("out")
        with run:
            for t in range(6):
                run.add("left", t, t)
                run.add("right", t, t)
        return [value for _, value in found]

    assert sizes(4) == sizes(4)
    assert len({tuple(sizes(seed)) for seed in range(10)}) > 3


class _Sizes(flow.Calculator):
    """How many packets met, which depends on arrival."""

    contract = flow.Contract(("left", "right"), ("out",), policy=hf.policy.immediate())

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.number = count()

    def process(self, context: flow.Context) -> None:
        context.emit("out", len(context.payloads()), at=next(self.number))


# --- executors together -------------------------------------------------------------------------------


@pytest.mark.parametrize("caller_first", [True, False])
@pytest.mark.parametrize("caller", ["sequential", "application", "seeded"])
@pytest.mark.parametrize("size", [1, 100])
def test_a_caller_that_waits_is_called_for_what_threads_give_it(caller: str, caller_first: bool, size: int) -> None:
    """A task for the caller's executor is added by a thread, while the caller waits for that thread."""
    gate = threading.Event()

    def held(data: int) -> int:
        gate.wait(0.01)  # the caller has nothing to do, and waits
        return data

    graph = flow.Graph(max_queue_size=size)
    stream = graph.input("data")
    if caller_first:
        stream = stream | flow.node(same, name="before", executor="caller")
    stream = stream | flow.node(held) | flow.node(same, name="behind", executor="caller") | flow.node(same, name="end")
    graph.output("out", stream)
    run = graph.start(executor=flow.Threads(2), executors={"caller": EXECUTORS[caller]()})
    found = run.collect("out")
    with run:
        for t in range(4):
            run.add("data", t, t)
    assert found == [(t, t) for t in range(4)]


@BY_EACH
def test_two_threads_add_at_once(executor: str) -> None:
    graph = flow.Graph(max_queue_size=3)
    made = {"left": graph.input("left"), "right": graph.input("right")} | flow.node(add)
    graph.output("out", made | flow.node(same))
    run = graph.start(executor=EXECUTORS[executor]())
    found = run.collect("out")

    def feed(name: str) -> None:
        for t in range(200):
            run.add(name, t, t)
        run.close(name)

    threads = [threading.Thread(target=feed, args=(name,), daemon=True) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.finish()
    assert found == [(t, 2 * t) for t in range(200)]


# --- back-pressure ------------------------------------------------------------------------------------


def two_inputs(*, report: bool) -> flow.Graph:
    graph = flow.Graph("two", max_queue_size=2, report_deadlock=report)
    graph.output("out", {"left": graph.input("left"), "right": graph.input("right")} | flow.node(add))
    return graph


@BY_EACH
def test_full_queues_grow_where_nothing_else_can_go_on(executor: str) -> None:
    run = two_inputs(report=False).start(executor=EXECUTORS[executor]())
    found = run.collect("out")
    with run:
        for t in range(50):
            run.add("left", t, t)
        for t in range(50):
            run.add("right", t, t)
    assert found == [(t, 2 * t) for t in range(50)]


@BY_EACH
def test_or_that_is_an_error_that_names_the_inputs(executor: str) -> None:
    run = two_inputs(report=True).start(executor=EXECUTORS[executor]())

    def feed() -> None:
        with run:
            for t in range(50):
                run.add("left", t, t)

    with pytest.raises(InvalidPipeline, match=r"input 'left' of 'add' \(2 packets\)"):
        feed()


def test_a_packet_is_refused_where_it_would_have_to_wait() -> None:
    run = two_inputs(report=False).start(executor=flow.Application())
    taken = [run.add("left", t, t, wait=False) for t in range(4)]
    assert taken == [True, True, False, False]
    run.wait_until_idle()  # an idle graph refuses nothing
    assert run.add("left", 2, 2, wait=False)
    run.stop()


@BY_EACH
def test_a_source_is_held_back_by_what_it_fills(executor: str) -> None:
    seen = []
    is_started = threading.Event()

    def slow(data: int) -> int:
        is_started.wait()
        seen.append(max(run.queue_lengths().values()))
        return data

    graph = flow.Graph(max_queue_size=2)

    class Twenty(Numbers):
        def last(self) -> int | None:
            return 20

    graph.output("out", graph.add(flow.node(Twenty)) | flow.node(slow) | flow.node(same))
    run = graph.start(executor=EXECUTORS[executor]())
    found = run.collect("out")
    is_started.set()
    run.finish()
    assert found == [(t, t) for t in range(20)]
    assert max(seen) <= 3


# --- errors -------------------------------------------------------------------------------------------


class Faulty(flow.Calculator):
    """Does one thing wrong."""

    wrong = ""
    contract = flow.Contract({"data": int}, {"out": int, "more": None}, timestamp_offset=0)

    def open(self, context: flow.Context) -> None:
        if self.wrong == "open":
            raise KeyError("model")
        if self.wrong == "emit in open":
            context.emit("out", 1)

    def process(self, context: flow.Context) -> Any:
        match self.wrong:
            case "process":
                raise ValueError("no such camera")
            case "type":
                context.emit("out", "text")
            case "output":
                context.emit("boxes", 1)
            case "input":
                return context["frame"]
            case "late":
                context.emit("out", 1, at=context.timestamp - 5)
            case "time":
                context.emit("out", 1, at=flow.DONE)
            case "text as time":
                context.emit("out", 1, at=cast(Any, "noon"))
            case "bound":
                context.raise_bound("out", context.timestamp - 5)
            case "bound of nothing":
                context.raise_bound("boxes", 1)
            case "closed":
                context.close_output("out")
                if context.timestamp > 7:
                    context.emit("out", 1)
            case "clock":
                context.now()
        return None

    def close(self, context: flow.Context) -> None:
        if self.wrong == "close":
            raise RuntimeError("flush")
        if self.wrong == "emit in close":
            context.emit("out", 1)


WRONG = {
    "process": r"Calculator 'faulty' failed at 7: ValueError: no such camera",
    "type": r"Calculator 'faulty' sends str to output 'out', at 7",
    "output": r"Calculator 'faulty' has no output 'boxes'",
    "input": r"Calculator 'faulty' has no input 'frame'",
    "late": r"packet of stream 'faulty.out' at 2 comes too late for input 'data' of calculator 'behind'",
    "time": r"packet of stream 'faulty.out' has the time DONE",
    "text as time": r"Calculator 'faulty' sends a packet to output 'out' at 'noon'",
    "bound": r"bound of stream 'faulty.out' goes back from 7 to 2",
    "bound of nothing": r"Calculator 'faulty' has no output 'boxes'",
    "closed": r"packet of stream 'faulty.out' at 8 comes too late for everybody.\n.*the stream is closed",
    "clock": r"Calculator 'faulty' asks for real time",
    "close": r"Calculator 'faulty' failed in close: RuntimeError: flush",
    "emit in close": r"Calculator 'faulty' sends a packet to output 'out' without a time",
}


def faulty(wrong: str, *, is_read: bool = True) -> flow.Graph:
    graph = flow.Graph("faulty")
    kind = type("Faulty", (Faulty,), {"wrong": wrong})
    made = graph.input("data", int) | flow.node(kind)
    graph.output("out", made["out"] | flow.node(same, name="behind") if is_read else made["out"])
    return graph


@BY_EACH
@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_calculator_does_wrong_is_one_error_that_names_it(wrong: str, executor: str) -> None:
    run = faulty(wrong).start(executor=EXECUTORS[executor]())

    def feed() -> None:
        with run:
            run.raise_bound("data", 7)
            run.wait_until_idle()
            for t in (7, 8, 9):
                run.add("data", t, t)

    with pytest.raises(HoldfastError, match=WRONG[wrong]) as raised:
        feed()
    assert isinstance(raised.value, InvalidPipeline)
    with pytest.raises(HoldfastError, match=WRONG[wrong]):  # and it stays
        run.wait_until_idle()
    with pytest.raises(HoldfastError, match=WRONG[wrong]):
        run.add("data", 10, 10)


@pytest.mark.parametrize("wrong", ["late", "closed"])
def test_a_late_packet_is_an_error_too_where_only_the_outside_reads_it(wrong: str) -> None:
    with pytest.raises(InvalidPipeline, match=r"packet of stream 'faulty.out' at [28] comes too late"):
        _late_to_outside(wrong)


def _late_to_outside(wrong: str) -> None:
    run = faulty(wrong, is_read=False).start(executor=flow.Application())
    run.collect("out")
    with run:
        run.raise_bound("data", 7)
        run.wait_until_idle()
        for t in (7, 8, 9):
            run.add("data", t, t)


@BY_EACH
def test_a_payload_that_an_input_does_not_take_is_an_error_where_its_stream_says_nothing_of_it(executor: str) -> None:
    def untyped(data: Any) -> Any:
        return data

    def doubled(data: int) -> int:
        return 2 * data

    graph = flow.Graph()
    graph.output("out", graph.input("data") | flow.node(untyped) | flow.node(doubled))
    run = graph.start(executor=EXECUTORS[executor]())

    def feed() -> None:
        with run:
            run.add("data", "text", 7)

    message = "packet of stream 'untyped.untyped' at 7 is str.\n.*input 'data' of calculator 'doubled' takes int"
    with pytest.raises(InvalidPipeline, match=message):
        feed()


def test_what_open_does_wrong_is_raised_at_the_start() -> None:
    with pytest.raises(InvalidPipeline, match="Calculator 'faulty' failed: KeyError: 'model'"):
        faulty("open").start()
    with pytest.raises(InvalidPipeline, match="sends a packet to output 'out' without a time"):
        faulty("emit in open").start()


@BY_EACH
def test_what_is_added_wrong_is_one_error(executor: str) -> None:
    def started() -> flow.Run:
        return faulty("").start(executor=EXECUTORS[executor]())

    for call, message in [
        (lambda run: run.add("data", "text", 1), "Graph input 'data' is given str, at 1"),
        (lambda run: run.add("dato", 1, 1), "has no input 'dato'"),
        (lambda run: run.add("data", 1, "noon"), "Graph input 'data' is given a packet at 'noon'"),
        (lambda run: run.add("data", 1, 1.5), "Graph input 'data' is given a packet at 1.5"),
        (lambda run: run.add("data", 1, 1) and run.add("data", 1, 1), "stream 'data' at 1 comes too late"),
        (
            lambda run: (run.raise_bound("data", 5), run.raise_bound("data", 4)),
            "bound of stream 'data' goes back from 5 to 4",
        ),
        (lambda run: run.raise_bound("data", "noon"), "Graph input 'data' is given the bound 'noon'"),
        (lambda run: run.observe("outt", print), "has no output 'outt'"),
    ]:
        run = started()
        with pytest.raises(InvalidPipeline, match=message):
            call(run)
        run.stop()


def test_an_input_that_does_not_exist_is_an_error_without_packets_too() -> None:
    with pytest.raises(InvalidPipeline, match="has no input 'dato'"):
        faulty("").run({"dato": []})


@BY_EACH
@pytest.mark.parametrize("bounds", [False, True])
def test_an_observer_that_raises_ends_the_run(executor: str, bounds: bool) -> None:
    def fails(t: int, value: Any) -> None:
        if bounds == (value is flow.ABSENT):
            raise OSError("disk full")

    graph = flow.Graph()
    graph.output("out", graph.input("data") | flow.node(same))
    run = graph.start(executor=EXECUTORS[executor]())
    run.observe("out", fails, bounds=True)

    def feed() -> None:
        with run:
            run.raise_bound("data", 3)
            run.add("data", 1, 3)

    with pytest.raises(InvalidPipeline, match=r"An observer of stream 'same.same' failed at \d: OSError: disk full"):
        feed()


@BY_EACH
def test_a_policy_that_raises_ends_the_run(executor: str) -> None:
    class Broken(flow.Policy):
        def next_set(self) -> Any:
            if self.queues[0].items:
                raise ZeroDivisionError("rate")
            return None

    graph = flow.Graph()
    first = graph.input("data") | flow.node(same)
    graph.output("out", first | flow.node(same, name="behind", policy=Broken))
    run = graph.start(executor=EXECUTORS[executor]())

    def feed() -> None:
        with run:
            run.add("data", 1, 1)

    with pytest.raises(InvalidPipeline, match="The policy of calculator 'behind' failed: ZeroDivisionError: rate"):
        feed()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@BY_EACH
def test_an_exit_inside_a_calculator_ends_the_run(executor: str, error: type[BaseException]) -> None:
    def leave(data: int) -> int:
        raise error("enough")

    run, _ = one(leave, executor)
    raised = (error, HoldfastError)

    def feed() -> None:
        run.add("data", 1, 1)
        run.wait_until_idle()

    with pytest.raises(raised, match="enough"):
        feed()
    with pytest.raises(HoldfastError, match="enough"):
        run.wait_until_idle()
    run.stop()


# --- the end ------------------------------------------------------------------------------------------


@BY_EACH
def test_a_source_that_stops_closes(executor: str) -> None:
    graph = flow.Graph()
    graph.output("out", graph.add(flow.node(ThreeNumbers)) | flow.node(same))
    assert graph.run(executor=EXECUTORS[executor]()) == {"out": [(0, 0), (1, 1), (2, 2)]}


@BY_EACH
def test_another_calculator_that_stops_closes_all_sources(executor: str) -> None:
    def until_five(data: int) -> Any:
        return flow.STOP if data == 5 else data

    graph = flow.Graph(max_queue_size=1)
    graph.output("out", graph.add(flow.node(Numbers)) | flow.node(until_five))
    graph.add(flow.node(Numbers, name="of_a_later_layer", source_layer=1))
    found = graph.run(executor=EXECUTORS[executor]())["out"]
    assert found[:5] == [(t, t) for t in range(5)]


class Closing(flow.Calculator):
    """Counts how often it is opened and closed."""

    contract = flow.Contract(("data",), ("out",), timestamp_offset=0)
    opened = closed = 0

    def open(self, context: flow.Context) -> None:
        type(self).opened += 1

    def process(self, context: flow.Context) -> None:
        context.emit("out", context["data"])
        if context["data"] == "bad":
            raise ValueError("bad")

    def close(self, context: flow.Context) -> None:
        type(self).closed += 1


@pytest.fixture
def closing() -> type[Closing]:
    return type("Closing", (Closing,), {"opened": 0, "closed": 0})


@BY_EACH
@pytest.mark.parametrize("end", ["finish", "stop", "error", "late", "raise in the with"])
def test_a_calculator_that_was_opened_is_closed_however_the_run_ends(
    executor: str, end: str, closing: type[Closing]
) -> None:
    """It may hold a file, a device, a process."""
    graph = flow.Graph()
    first = graph.input("data") | flow.node(closing)
    graph.output("out", first | flow.node(closing, name="behind"))
    run = graph.start(executor=EXECUTORS[executor]())
    run.add("data", 1, 1)
    match end:
        case "finish":
            run.finish()
            run.finish()
        case "stop":
            run.stop()
            run.stop()
        case "error":
            with pytest.raises(InvalidPipeline, match="failed at 2: ValueError: bad"), run:
                run.add("data", "bad", 2)
        case "late":
            with pytest.raises(InvalidPipeline, match="comes too late"):
                run.add("data", 1, 1)
            run.stop()
        case _:
            with pytest.raises(KeyError), run:
                raise KeyError("mine")
    assert (closing.opened, closing.closed) == (2, 2)


def test_what_was_opened_is_closed_where_another_cannot_be_opened(closing: type[Closing]) -> None:
    graph = flow.Graph()
    graph.input("data") | flow.node(closing) | flow.node(type("Faulty", (Faulty,), {"wrong": "open"}))
    with pytest.raises(InvalidPipeline, match="KeyError: 'model'"):
        graph.start()
    assert (closing.opened, closing.closed) == (1, 1)


@BY_EACH
@pytest.mark.parametrize("who", ["outside", "observer", "calculator"])
def test_a_run_is_stopped_in_the_middle(who: str, executor: str) -> None:
    """Also by an observer, or a calculator, that has seen enough of a source without an end."""
    enough, is_started = threading.Event(), threading.Event()

    def stops(data: int) -> int:
        is_started.wait()
        if data == 20:
            enough.set()
            if who == "calculator":
                run.stop()
        return data

    def observer(t: int, value: int) -> None:
        if t == 20 and who == "observer":
            run.stop()

    graph = flow.Graph(max_queue_size=4)
    graph.output("out", graph.add(flow.node(Numbers)) | flow.node(stops) | flow.node(same))
    run = graph.start(executor=EXECUTORS[executor](), observers={"out": observer})
    is_started.set()
    if who == "outside":
        stopper = threading.Thread(target=lambda: (enough.wait(), run.stop()), daemon=True)
        stopper.start()
    run.wait_until_idle()
    run.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-flow")]


@BY_EACH
def test_an_observer_of_an_input_stops_the_run(executor: str) -> None:
    """It is called while a packet is added, by the thread that adds."""
    graph = flow.Graph()
    graph.output("data", graph.input("data"))
    graph.input("more") | flow.node(same)
    run = graph.start(executor=EXECUTORS[executor]())
    run.observe("data", lambda t, value: run.stop())
    run.add("more", 1, 1)
    run.add("data", 1, 1)
    with pytest.raises(InvalidPipeline, match="has ended"):
        run.add("data", 2, 2)


@BY_EACH
@pytest.mark.parametrize("end", ["finish", "stop"])
def test_nothing_is_taken_after_the_end(executor: str, end: str) -> None:
    run, _ = one(same, executor)
    run.add("data", 1, 1)
    getattr(run, end)()
    with pytest.raises(InvalidPipeline, match="The run of graph 'one' has ended"):
        run.add("data", 2, 2)
    with pytest.raises(InvalidPipeline, match="The run of graph 'one' has ended"):
        run.raise_bound("data", 2)
    run.wait_until_idle()
    run.finish()
    run.stop()


@pytest.mark.parametrize("executor", ["one_thread", "four_threads"])
def test_who_waits_for_room_is_woken_by_the_end(executor: str) -> None:
    is_called, may_end = threading.Event(), threading.Event()

    def stuck(data: int) -> int:
        is_called.set()
        may_end.wait()
        return data

    run, _ = one(stuck, executor, max_queue_size=1)
    run.add("data", 0, 0)
    is_called.wait()
    run.add("data", 1, 1)
    stopper = threading.Timer(0.02, run.stop)  # sooner than the packet is added: the same error
    stopper.start()
    with pytest.raises(InvalidPipeline, match="has ended"):
        run.add("data", 2, 2)
    may_end.set()
    stopper.join()


def test_a_graph_is_started_again_and_again() -> None:
    graph = flow.Graph()
    executor = flow.Threads(2)
    tally = type("Tally", (_Tally,), {})
    graph.output("out", graph.input("data") | flow.node(tally))
    runs = [graph.start(executor=executor) for _ in range(3)]
    founds = [run.collect("out") for run in runs]
    for t in range(5):
        for run in runs:
            run.add("data", t, t)
    for run in runs:
        run.finish()
    assert founds == [[(0, 0), (1, 1), (2, 3), (3, 6), (4, 10)]] * 3
    assert graph.run({"data": [(0, 1), (1, 1)]}) == {"out": [(0, 1), (1, 2)]}


class _Tally(flow.Calculator):
    contract = flow.Contract(("data",), ("out",), timestamp_offset=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.sum = 0

    def process(self, context: flow.Context) -> None:
        self.sum += context["data"]
        context.emit("out", self.sum)


# --- from inside --------------------------------------------------------------------------------------


@BY_EACH
@pytest.mark.parametrize("size", [1, 100])
def test_a_calculator_adds_packets_itself(size: int, executor: str) -> None:
    """It is inside the graph: it is never held back, for that could only wait for itself."""

    def again(data: int) -> int:
        if data < 5:
            for n in range(3):
                run.add("more", data, 3 * data + n)
        return data

    graph = flow.Graph(max_queue_size=size)
    graph.input("data") | flow.node(again)
    graph.output("more", graph.input("more") | flow.node(same))
    run = graph.start(executor=EXECUTORS[executor]())
    found = run.collect("more")
    with run:
        for t in range(10):
            run.add("data", t, t)
        run.wait_until_idle()
    assert found == [(t, t // 3) for t in range(15)]


@BY_EACH
def test_an_observer_adds_packets_itself(executor: str) -> None:
    """A loop through the outside, each packet smaller than the last."""

    def observer(t: int, value: int) -> None:
        if value:
            run.add("data", value - 1, t + 1)

    run, found = one(same, executor)
    run.observe("out", observer)
    run.add("data", 3, 0)
    run.wait_until_idle()
    run.finish()
    assert found == [(0, 3), (1, 2), (2, 1), (3, 0)]


@BY_EACH
def test_a_calculator_cannot_wait_for_itself(executor: str) -> None:
    def waits(data: int) -> int:
        run.wait_until_idle()
        return data

    run, _ = one(waits, executor)

    def feed() -> None:
        with run:
            run.add("data", 1, 1)

    with pytest.raises(InvalidPipeline, match="waits for its own graph"):
        feed()


# --- form ---------------------------------------------------------------------------------------------


@BY_EACH
def test_a_chain_of_a_thousand_calculators(executor: str) -> None:
    graph = flow.Graph()
    stream = graph.input("data")
    for n in range(1000):
        stream = stream | flow.node(same, name=f"node_{n}")
    graph.output("out", {"left": stream, "right": graph.input("right")} | flow.node(add))
    run = graph.start(executor=EXECUTORS[executor]())
    found = run.collect("out")
    with run:
        run.add("right", 1, 2)
        run.raise_bound("data", 2)  # goes the whole way at once
        run.add("data", 2, 2)
        run.add("right", 4, 4)
        run.raise_bound("data", 9)
    assert found == [(2, 3)]
    assert len(graph.explain().splitlines()) > 1000


def test_a_bound_goes_a_long_way_without_a_stack() -> None:
    graph = flow.Graph()
    stream = graph.input("data")
    for n in range(sys.getrecursionlimit()):
        stream = stream | flow.node(same, name=f"node_{n}")
    engine_bounds = []
    graph.output("out", stream)
    run = graph.start(executor=flow.Application())
    run.observe("out", lambda t, value: engine_bounds.append(t), bounds=True)
    run.raise_bound("data", 9)
    run.stop()
    assert engine_bounds == [8]


def _inner() -> flow.Graph:
    """A part with a loop: each value beside the sum before."""
    inner = flow.Graph("inner", max_queue_size=1)
    values, edge = inner.input("values"), inner.back_edge("sums")
    previous = {"main": values, "loop": edge} | flow.node(calculators.PreviousLoopback)
    sums = {"left": values, "right": previous} | flow.node(add)
    edge.comes_from(sums)
    inner.output("sums", sums)
    return inner


@BY_EACH
def test_loops_within_parts_within_parts(executor: str) -> None:
    middle = flow.Graph("middle")
    values = middle.input("values")
    middle.output("one", values | _inner())
    middle.output("two", values | _inner().with_name("second") | _inner().with_name("third"))
    graph = flow.Graph("outer")
    made = graph.input("values") | middle
    again = made["two"] | middle.with_name("again")
    for name, stream in (("one", made["one"]), ("two", made["two"]), ("again", again["one"])):
        graph.output(name, stream)
    run = graph.start(executor=EXECUTORS[executor]())
    found = {name: run.collect(name) for name in graph.outputs}
    with run:
        for t in range(6):
            run.add("values", 1, t)
    assert [value for _, value in found["one"]] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in found["two"]] == [1, 3, 6, 10, 15, 21]
    assert [value for _, value in found["again"]] == [1, 4, 10, 20, 35, 56]
    assert "middle/inner/add" in graph.nodes
    assert "again/third/previous_loopback" in graph.nodes


# --- what it shows ------------------------------------------------------------------------------------


def test_it_says_who_waits_for_what() -> None:
    graph = flow.Graph()
    made = {"left": graph.input("a"), "right": graph.input("b")} | flow.node(add)
    graph.output("out", made)
    run = graph.start(executor=flow.Application())
    assert run.waits() == []
    run.raise_bound("b", 3)
    for t in (5, 6):
        run.add("a", 1, t)
    run.wait_until_idle()
    assert run.waits() == ["add waits for input right (b), which is known below 3, since 5: 2 packets wait"]
    assert run.queue_lengths() == {"add.left": 2, "add.right": 0}
    run.add("b", 1, 5)
    run.wait_until_idle()
    assert run.waits() == ["add waits for input right (b), which is known below 6, since 6: 1 packet waits"]
    run.finish()
    assert run.waits() == []
    assert run.queue_lengths() == {"add.left": 0, "add.right": 0}


@pytest.mark.parametrize(
    ("policy", "fed", "wanted"),
    [
        (hf.policy.barrier(), {"a": [9]}, ["b", "c"]),
        (hf.policy.barrier(), {"a": [9], "b": [1, 2]}, ["c"]),
        (hf.policy.sync_sets([["a", "b"]]), {"a": [1]}, ["b"]),
        (hf.policy.sync_sets([["a", "b"]]), {"a": [1], "c": [5]}, ["b"]),
        (hf.policy.mux("c"), {"a": [1], "b": [2]}, ["c"]),
        (hf.policy.mux("c"), {"b": [2], "c": [2]}, ["a"]),
        (hf.policy.timestamp_align("c"), {"a": [1], "b": [2]}, ["c"]),
        (hf.policy.timestamp_align("c"), {"a": [1], "b": [102], "c": [11, 15]}, ["a", "b"]),
        (hf.policy.immediate(), {"a": [1]}, []),
        (hf.policy.fixed_size(), {"a": [1, 2, 3]}, ["b", "c"]),
    ],
)
def test_each_policy_says_what_it_waits_for(policy: Any, fed: dict[str, list[int]], wanted: list[str]) -> None:
    class Three(flow.Calculator):
        contract = flow.Contract(("a", "b", "c"), policy=policy)

        def process(self, context: flow.Context) -> None:
            pass

    graph = flow.Graph()
    {name: graph.input(name) for name in ("a", "b", "c")} | flow.node(Three)
    run = graph.start(executor=flow.Application())
    for name, times in fed.items():
        for t in times:
            run.add(name, 0, t)
            run.wait_until_idle()
    assert [text.split(" waits for input ")[1].split()[0] for text in run.waits()] == wanted
    run.stop()


@BY_EACH
def test_it_counts_calls_and_their_times(executor: str, tmp_path: Any) -> None:
    graph = flow.Graph()
    graph.output("out", graph.input("data") | flow.node(flow.function(same, max_in_flight=3)))
    run = graph.start(executor=EXECUTORS[executor](), trace=True)
    with run:
        for t in range(200):
            run.add("data", t, t)
            assert run.times().keys() <= {"same"}
    times = run.times()["same"]
    assert times.count == 200 + 1  # and close
    assert 0 < times.p50_us <= times.p99_us <= times.total_us
    trace = run.trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text().startswith('{"traceEvents": [')
    events = trace["traceEvents"]
    assert sorted(event["args"]["timestamp"] for event in events[:-1]) == list(range(200))
    assert events[-1]["args"]["timestamp"] == "DONE"
    assert {event["ph"] for event in events} == {"X"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    assert sum(event["dur"] for event in events) == pytest.approx(times.total_us)
