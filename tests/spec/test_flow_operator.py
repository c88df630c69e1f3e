"""``hf.flow`` in a pipeline gives what its graph gives alone, however rows are cut into epochs, and without Spark."""

from __future__ import annotations

import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.flow.building import NodeSpec
from holdfast.flow.calculators import FlowLimiter
from holdfast.flow.codec import Codec
from holdfast.operators.flow import live
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing import drive
from holdfast.testing.drive import Drive
from holdfast.testing.given import Item, bound, close
from holdfast.testing.step_contract import arrivals_of, step_of
from tests.calculators import (
    Batched,
    Both,
    Clock,
    Decoder,
    Failing,
    Later,
    Odd,
    Total,
    Tracker,
    camera_graph,
    frames_of,
    random_graph,
)

pytestmark = pytest.mark.slow

FEW, MANY = 6, 60
FRAMES = "k STRING, t BIGINT, is_key BOOLEAN, v BIGINT"
NUMBERS = "k STRING, t BIGINT, v BIGINT"

Given = Mapping[str, Sequence[Sequence[Item]]]


# --- help ------------------------------------------------------------------------------------------------------------


def source(name: str, schema: str = NUMBERS) -> hf.Stream:
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def flowed(graph: Graph, schema: str = NUMBERS, **options: Any) -> dict[str, hf.Stream]:
    """Return the outputs of a graph whose inputs are sources of these names."""
    streams = {name: source(name, schema) for name in graph.inputs}
    outputs = {name: f"{name} BIGINT" for name in graph.outputs}
    found = hf.flow(streams, graph, by="k", outputs=outputs, name="flow", **options)
    return dict(found) if isinstance(found, Mapping) else {next(iter(graph.outputs)): found}


def single(graph: Graph, **options: Any) -> hf.Stream:
    """Return the only output of a graph of numbers."""
    options.setdefault("inputs", dict.fromkeys(graph.inputs, "v"))
    return next(iter(flowed(graph, **options).values()))


def line(*nodes: Any) -> Graph:
    """Return a graph of calculators one behind the other."""
    graph = Graph("line")
    stream = graph.input("rows")
    for each in nodes:
        stream = stream | (each if isinstance(each, NodeSpec) else node(each))
    graph.output("out", stream)
    return graph


def by_key(epochs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each key in their order, over all epochs."""
    found = defaultdict(list)
    for rows in epochs:
        for row in rows:
            found[row["k"]].append(tuple(row.values())[1:])
    return dict(found)


Event = tuple[str, Item]


def cut(events: Sequence[Event], borders: Sequence[int], names: Sequence[str]) -> dict[str, list[list[Item]]]:
    """Return the events of each source, epoch by epoch."""
    epochs = [events[start:end] for start, end in pairwise([0, *sorted(borders), len(events)])]
    return {name: [[item for of, item in epoch if of == name] for epoch in epochs] for name in names}


def cuts(chance: random.Random, count: int) -> list[list[int]]:
    """Return some ways to cut events: not at all, here and there, and behind each."""
    few, many = (sorted(chance.randint(0, count) for _ in range(times)) for times in (3, 9))
    return [[], few, many, list(range(1, count))]


def events_of(chance: random.Random, names: Sequence[str], count: int, disorder: int = 0) -> list[Event]:
    """Return rows of three keys on some inputs, bounds of a key and of all between them, and the end of each."""
    events: list[Event] = []
    now = defaultdict(int)
    for number in range(count):
        name, key = chance.choice(names), chance.choice("abc")
        at = (name, key)
        if chance.random() < 0.08:  # behind no row that comes, whatever the disorder
            highest = min(now[name, each] for each in "abc")
            events.append((name, bound(highest + 1 - disorder)))
            continue
        if chance.random() < 0.08:
            now[at] += 4
            events.append((name, bound(now[at] - disorder, {"k": key})))
            continue
        now[at] += chance.choice((0, 1, 1, 2, 5))
        t = now[at] - (chance.randint(0, disorder + 2) if disorder and chance.random() < 0.5 else 0)
        events.append((name, {"k": key, "t": t, "v": number}))
    return [*events, *((name, close()) for name in names)]


def alone(graph: Graph, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, list[tuple[int, Any]]]]:
    """Return key -> output -> what a graph makes of its rows, without a pipeline."""
    keys = {row["k"] for given in rows.values() for row in given}
    return {
        key: graph.run({name: sorted((row["t"], row["v"]) for row in given if row["k"] == key)
                        for name, given in rows.items()})
        for key in keys
    }  # fmt: skip


# --- the same rows, however they are cut -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(FEW, MANY))]
)
def test_random_graphs_give_the_same_however_rows_are_cut_and_the_same_as_alone(seed: int) -> None:
    chance = random.Random(seed)
    inputs = chance.choice((1, 1, 2, 3))
    graph = random_graph(seed, inputs)
    names = list(graph.inputs)
    disorder = chance.choice((0, 0, 3))
    events = events_of(chance, names, 60, disorder)
    streams = flowed(graph, inputs=dict.fromkeys(names, "v"), disorder=disorder or None)
    first = next(iter(streams.values()))
    for name, stream in {**streams, "late": first.late}.items():
        found = [
            by_key(drive(stream, cut(events, borders, names), buckets=buckets))
            for buckets, borders in zip((1, 1, 3, 2), cuts(chance, len(events)), strict=True)
        ]
        if name == "late":  # the sources of an epoch arrive one after the other
            found = [{key: sorted(rows, key=lambda row: str(row[1])) for key, rows in each.items()} for each in found]
            missed = {key: {row[:2] for row in rows} for key, rows in found[0].items()}
        assert found[0] == found[1] == found[2] == found[3], name
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in names}
    taken = set()
    for name, item in events:
        if not isinstance(item, Mapping):
            continue
        place = (item["k"], name, item["t"])
        if place not in taken and (item["t"], name) not in missed.get(item["k"], ()):
            taken.add(place)
            rows[name].append(item)
    expected = alone(graph, rows)
    for name, stream in streams.items():
        got = by_key(drive(stream, cut(events, [20, 40], names)))
        for key, outputs in expected.items():
            assert got.get(key, []) == outputs[name] or missed.get(key), (name, key)


def test_late_rows_and_repeated_times_leave_by_late() -> None:
    stream = single(line(Total), disorder=2)
    rows = [{"k": "a", "t": t, "v": number} for number, t in enumerate((10, 10, 12, 13, 9, 12, 20))]
    for borders in ([], [1], [3, 4], range(1, 7)):
        given = cut([("rows", row) for row in rows], list(borders), ["rows"])
        late = [row for epoch in drive(stream.late, given) for row in epoch]
        assert [(row["timestamp"], row["input"]) for row in late] == [(10, "rows"), (9, "rows"), (12, "rows")], borders
        reasons = [row["reason"] for row in late]
        assert "an earlier row of its key has" in reasons[0], reasons
        assert "of rows" in reasons[1], reasons
        kept = [row for epoch in drive(stream, given) for row in epoch]
        assert [(row["t"], row["out"]) for row in kept] == [(10, 0), (12, 2), (13, 5)], "the last one waits"


def test_a_graph_goes_on_with_what_bounds_say_and_ends_with_its_streams() -> None:
    graph = Graph("pair")
    left, right = graph.input("left"), graph.input("right")
    graph.output("out", {"left": left, "right": right} | node(Both))
    stream = single(graph)
    row = {"k": "a", "t": 5, "v": 1}
    other = {"k": "b", "t": 5, "v": 1}
    nothing: Any = []
    found = drive(stream, {"left": [[row, other], nothing, nothing, [{"k": "a", "t": 9, "v": 1}], nothing],
                           "right": [nothing, [bound(6, {"k": "a"})], [bound(6)], nothing, [close()]]})  # fmt: skip
    assert [[(each["k"], each["t"]) for each in epoch] for epoch in found] == [
        [], [("a", 5)], [("b", 5)], [], [("a", 9)],
    ]  # fmt: skip


class AtEnd(Calculator):
    """Says at the end how many there were."""

    contract = Contract(inputs="value", outputs="count")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._count, self._last = 0, 0

    def process(self, context: Context) -> None:
        self._count, self._last = self._count + 1, context.timestamp

    def close(self, context: Context) -> None:
        context.emit("count", self._count, self._last + 1)

    def save(self) -> Mapping[str, Any]:
        return {"count": [self._count, self._last]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._count, self._last = saved["count"]


def test_at_the_end_of_the_streams_calculators_are_closed_once() -> None:
    stream = single(line(AtEnd))
    rows = [{"k": key, "t": t, "v": 0} for t, key in enumerate("aabab")]
    late = {"k": "a", "t": 99, "v": 0}
    given: Any = {"rows": [rows[:2], rows[2:], [close()], [late], []]}
    found = drive(stream, given, buckets=2)
    assert [[(row["k"], row["out"]) for row in sorted(epoch, key=str)] for epoch in found] == [
        [], [], [("a", 3), ("b", 2)], [], [],
    ]  # fmt: skip


def test_a_batch_that_is_not_full_and_a_packet_that_waits_are_state() -> None:
    stream = single(line(Batched, Total, Batched))
    rows = [("rows", {"k": "a", "t": t, "v": t}) for t in range(8)]
    found = drive(stream, cut([*rows, ("rows", close())], range(1, 9), ["rows"]))
    assert [len(epoch) for epoch in found] == [0, 0, 3, 0, 0, 3, 0, 0, 2]
    assert [row["out"] for epoch in found for row in epoch] == [0, 1, 3, 6, 10, 15, 21, 28]


def test_what_waits_is_counted_of_all_keys_and_in_the_intake_too() -> None:
    """Of keys that nothing came for in the epoch, too: the status says how much waits, not how much began to."""
    step = step_of(single(line(Batched), disorder=2))
    state = tables.empty_state(step)
    found = []
    for number, rows in enumerate([[("a", 1), ("b", 5)], [("a", 9)], [("c", 1)], [("b", 20)]]):
        events: Any = [("rows", {"k": k, "t": t, "v": t}) for k, t in rows]
        result = call(step, state, arrivals_of(step, events), StepTime(number, 0), operator="flow")
        state = tables.apply_changes(state, step.tables, result.changes)
        found.append(result.counts["waiting_rows"])
    # Each key's last row can have others below it; the one before waits for its batch of three.
    assert found == [2, 3, 4, 5]


def test_with_threads_the_outputs_are_those_of_the_policies() -> None:
    rows = [("rows", {"k": k, "t": t, "v": t}) for t in range(60) for k in "abc"]
    given = cut([*rows, ("rows", close())], [30, 31, 100], ["rows"])
    wanted = drive(single(line(Batched, Total, Odd)), given)
    found = drive(single(line(Batched, Total, Odd), threads=3), given)
    assert [by_key([epoch]) for epoch in found] == [by_key([epoch]) for epoch in wanted]


def test_threads_are_refused_where_a_policy_goes_by_arrival() -> None:
    with pytest.raises(InvalidPipeline, match=r"node 'odd' of graph .* has the policy immediate"):
        single(line(node(Odd, name="odd", policy=hf.policy.immediate())), threads=2)
    with pytest.raises(InvalidPipeline, match="threads=0 is no number of threads"):
        single(line(Odd), threads=0)


# --- what is downstream ----------------------------------------------------------------------------------------------


def test_bounds_of_a_graph_go_on_to_what_is_downstream() -> None:
    """Of an aggregate by time a window closes as soon as the graph says that nothing below its end comes."""
    graph = line(Odd, node(Later, Later.Options(by=10)))
    windows = single(graph) | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count())
    rows: Any = [{"k": "a", "t": 1, "v": 1}, {"k": "a", "t": 9, "v": 2}, {"k": "a", "t": 10, "v": 2}, bound(21)]
    given: Any = {"rows": [[each] for each in rows]}
    found = drive(windows, given)
    assert [len(epoch) for epoch in found] == [0, 1, 0, 0], "9 is 19: nothing below 20 comes"


def test_a_flow_stands_behind_sync_and_before_it() -> None:
    graph = Graph("sums")
    rows = graph.input("rows")
    graph.output("sum", rows | node(_sum))
    other = line(Total)
    pairs = hf.sync({"a": source("a"), "b": source("b")}, by="k", timestamps="ascending")
    sums = pairs | hf.flow(graph, by="k", schema="sum BIGINT", name="sums")
    totals = source("c") | hf.flow(other, by="k", inputs={"rows": "v"}, schema="out BIGINT", name="totals")
    both = hf.sync({"sums": sums, "totals": totals}, by="k", timestamps="ascending")
    chance = random.Random(3)
    events = events_of(chance, ["a", "b", "c"], 60)
    found = [by_key(drive(both, cut(events, borders, "abc"))) for borders in cuts(chance, len(events))]
    assert found[0] == found[1] == found[2] == found[3]
    assert sum(len(rows) for rows in found[0].values()) > 10


def _sum(row: Any) -> int:
    return sum(each["v"] for name in ("a", "b") for each in row[name] or ())


# --- state -----------------------------------------------------------------------------------------------------------


def frames_given(seed: int, borders: Sequence[int]) -> dict[str, list[list[Item]]]:
    rows = [("frames", row) for row in frames_of("ab", 80, seed)]
    return cut([*rows, ("frames", close())], borders, ["frames"])


@pytest.mark.parametrize("output", ["tracks", "thumbs"])
def test_a_graph_that_is_dropped_from_memory_gives_the_same_rows_and_bytes(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(output)
    for seed, borders in enumerate(cuts(chance, 80)):
        stream = flowed(camera_graph(), FRAMES)[output]
        given = frames_given(seed, borders)
        kept = Drive(stream, given)
        rows = kept.tables()
        with monkeypatch.context() as patched:
            patched.setattr(live, "take", lambda key: None)
            dropped = Drive(stream, given)
            assert dropped.tables() == rows
        assert dropped.states == kept.states
        whole = drive(stream, frames_given(seed, []))
        assert by_key([table.to_pylist() for table in rows]) == by_key(whole)


def test_a_decoder_is_not_fed_twice_while_its_graph_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    process = Decoder.process
    monkeypatch.setattr(Decoder, "process", lambda self, context: calls.append(1) or process(self, context))
    stream = flowed(camera_graph(), FRAMES)["tracks"]
    drive(stream, frames_given(1, range(1, 80)))
    assert len(calls) == 80
    monkeypatch.setattr(live, "take", lambda key: None)
    calls.clear()
    drive(stream, frames_given(1, range(1, 80)))
    assert len(calls) > 160, "it was restored"


def test_calculators_are_not_opened_anew_at_each_bound_for_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    monkeypatch.setattr(Total, "open", lambda self, context: opened.append(1))
    stream = single(line(Total))
    rows: Any = {"k": "a", "t": 1, "v": 1}
    drive(stream, {"rows": [[rows], *([bound(t)] for t in range(10, 20))]})
    assert len(opened) == 2, "once for the key, once for all keys"


def test_only_the_frames_since_the_last_key_frame_are_kept() -> None:
    graph = Graph("decoding")
    graph.output("image", graph.input("frames") | node(Decoder))
    stream = flowed(graph, FRAMES)["image"]
    rows = [{"k": "a", "t": t, "is_key": t in (0, 5, 6), "v": t} for t in range(10)]
    for borders, counts in (([10], [4]), (range(1, 10), [1, 2, 3, 4, 5, 1, 1, 2, 3, 4]), ([4, 8], [4, 2, 4])):
        for epochs, count in enumerate(counts, 1):
            given = {"frames": cut([("frames", row) for row in rows], list(borders), ["frames"])["frames"][:epochs]}
            driven = Drive(stream, given)
            driven.tables()
            assert _table(driven, "replays").num_rows == count, (borders, epochs)


def _table(driven: Drive, name: str) -> Any:
    (state,) = (tables.decode(each) for each in driven.states["flow"])
    return state[name]


@dataclass(frozen=True)
class Held:
    """A class of the user's."""

    value: int


class Holder(Calculator):
    """Sends objects on, which a node behind keeps waiting."""

    contract = Contract(inputs="value", outputs={"made": Held}, timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        context.emit("made", Held(context["value"]))


def test_objects_of_a_class_wait_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "take", lambda key: None)
    graph = Graph("objects")
    held = graph.input("rows") | node(Holder)
    other = graph.input("other") | node(Odd)
    graph.output("value", {"left": held, "right": other} | node(_both))
    stream = single(graph)
    nothing: Any = []
    given: Any = {
        "rows": [[{"k": "a", "t": t, "v": t}] for t in range(3)] + [nothing],
        "other": [*[nothing] * 3, [bound(3)]],
    }
    assert [row["value"] for row in drive(stream, given)[-1]] == [0, 1, 2]


@hf.flow.function(outputs="value")
def _both(left: Held, right: int = 0) -> int:
    return left.value + right


def test_a_text_that_is_no_unicode_is_kept() -> None:
    codec = Codec()
    assert codec.decode(codec.encode("a\ud800", of=""), of="") == "a\ud800"


def test_a_silent_key_is_forgotten_and_begins_anew() -> None:
    graph = Graph("pair")
    graph.output("out", {"left": graph.input("left") | node(Total), "right": graph.input("right")} | node(Both))
    stream = single(graph, forget_after="10 s")
    second = 1_000_000
    nothing: Any = []
    rows: Any = [[{"k": "a", "t": 50, "v": 5}], nothing, [{"k": "a", "t": 3, "v": 1}], nothing]
    others: Any = [[{"k": "a", "t": 50, "v": 0}], nothing, nothing, [{"k": "a", "t": 3, "v": 0}]]
    for middle, forgets in ((5, False), (20, True)):
        times = [0, middle * second, (middle + 1) * second, (middle + 2) * second]
        driven = drive(stream, {"left": rows, "right": others}, batch_times=times)
        late = drive(stream.late, {"left": rows, "right": others}, batch_times=times)
        found = [[(row["t"], row["out"]) for row in epoch] for epoch in driven]
        if forgets:
            assert found == [[(50, 11)], [], [], [(3, 3)]]
            assert late == [[], [], [], []]
        else:
            assert found == [[(50, 11)], [], [], []]
            assert [len(epoch) for epoch in late] == [0, 0, 1, 1]


def test_a_bound_for_all_keys_is_no_news_of_a_silent_key() -> None:
    """A graph whose calculators run on bounds is asked for all keys at each: that does not keep a key alive."""
    graph = Graph("limited")
    finished = graph.back_edge("finished")
    limited = {"main": graph.input("rows"), "finished": finished} | node(FlowLimiter)
    out = limited["main"] | node(Total)
    finished.comes_from(out)
    graph.output("out", out)
    stream = single(graph, forget_after="10 s")
    given: Any = {
        "rows": [[{"k": "a", "t": 1, "v": 1}], *([bound(10 + n)] for n in range(5)), [{"k": "a", "t": 90, "v": 1}]]
    }
    found = drive(stream, given, batch_times=[n * 4_000_000 for n in range(7)])
    assert [row["out"] for epoch in found for row in epoch] == [1, 1]


def test_now_is_the_batch_time_of_the_epoch() -> None:
    stream = single(line(Clock))
    given: Any = {"rows": [[{"k": "a", "t": 1, "v": 0}], [{"k": "a", "t": 2, "v": 0}]]}
    found = drive(stream, given, batch_times=["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
    times = [datetime.fromtimestamp(row["out"] / 1e6, UTC).day for epoch in found for row in epoch]
    assert times == [1, 2]


def test_payloads_are_columns_or_rows_without_their_key() -> None:
    seen: list[Any] = []

    def spy(rows: Any) -> int:
        seen.append(rows)
        return 0

    given: Any = {"rows": [[{"k": "a", "t": 1, "v": 7}]]}
    drive(single(line(spy)), given)
    drive(single(line(spy), inputs={}), given)
    assert seen == [7, {"t": 1, "v": 7}]


def test_a_node_that_names_an_executor_runs_in_a_pipeline_too() -> None:
    stream = single(line(node(Total, executor="gpu")))
    assert [row["out"] for row in drive(stream, {"rows": [[{"k": "a", "t": 1, "v": 7}]]})[0]] == [7]


def test_a_bound_for_all_keys_is_no_higher_than_what_a_shifted_input_may_still_give() -> None:
    """By timestamp_align an input is moved to the base's time: a key that has met is behind one that has not."""
    graph = Graph("aligned")
    base, other = graph.input("base"), graph.input("other")
    graph.output("out", {"left": base, "right": other} | node(Both, policy=hf.policy.timestamp_align(base="left")))
    windows = single(graph) | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count())
    nothing: Any = []
    given: Any = {
        "base": [nothing, [{"k": "a", "t": 5, "v": 0}], [bound(40)], nothing, [close()]],
        "other": [[{"k": "a", "t": 25, "v": 0}], nothing, [bound(40)], [{"k": "a", "t": 41, "v": 0}], [close()]],
    }  # other is moved by -20: 41 is 21
    found = drive(windows, given)
    assert sum(row["n"] for epoch in found for row in epoch) == 2
    assert not [row for epoch in drive(windows.late, given) for row in epoch]


# --- changed graphs --------------------------------------------------------------------------------------------------


def changed(old: Graph, new: Graph, **options: Any) -> Callable[[list[list[Item]]], list[Any]]:
    """Return what runs the first epoch by a graph and the others by another one; each behind a restart."""
    first = next(iter(flowed(old, inputs={"rows": "v"}).values()))
    then = next(iter(flowed(new, inputs={"rows": "v"}, **options).values()))

    def run(epochs: list[list[Item]]) -> list[Any]:
        state: Any = None
        found = []
        for number, rows in enumerate(epochs):
            live._LIVE.clear()
            step = step_of(first if number == 0 else then)
            state = tables.empty_state(step) if state is None else state
            result = call(
                step, state, arrivals_of(step, [("rows", row) for row in rows]), StepTime(number, 0), operator="flow"
            )
            state = tables.apply_changes(state, step.tables, result.changes)
            found.append([row["out"] for row in result.outputs["rows"].to_pylist()])
        return found

    return run


def numbers(*values: int) -> list[Item]:
    return [{"k": "a", "t": value, "v": value} for value in values]


def test_a_node_is_kept_by_its_name_and_a_new_one_begins() -> None:
    run = changed(line(node(Total, name="total")), line(Batched, node(Total, name="total"), node(Total, name="again")))
    assert run([numbers(1, 2), numbers(3, 4, 5), numbers(6, 7, 8)]) == [[1, 3], [6, 16, 31], [52, 80, 116]]


def test_a_node_that_is_gone_is_forgotten() -> None:
    old = line(node(Total, name="total"), node(Total, name="again"))
    run = changed(old, line(node(Total, name="total")))
    assert run([numbers(1, 2), numbers(3), numbers(4)]) == [[1, 4], [6], [10]]


def test_a_renamed_node_keeps_its_state_for_good() -> None:
    """The declaration stays in the code when the state is already kept under the new name."""
    run = changed(line(node(Total, name="a")), line(node(Total, name="b")), renamed_nodes={"b": "a"})
    assert run([numbers(1, 2), numbers(3), numbers(4), numbers(5)]) == [[1, 3], [6], [10], [15]]


def test_a_new_node_under_the_name_that_a_renamed_one_had_begins_without_state() -> None:
    old = line(node(Total, name="a"))
    run = changed(old, line(node(Total, name="b"), node(Total, name="a")), renamed_nodes={"b": "a"})
    assert run([numbers(1, 2), numbers(3), numbers(4)]) == [[1, 3], [6], [16]]


def test_a_renamed_decoder_keeps_its_frames() -> None:
    def graph(name: str) -> Graph:
        found = Graph("decoding")
        found.output("out", found.input("rows") | node(Frame, name=f"{name}frame") | node(Decoder, name=name))
        return found

    epochs = [numbers(1, 2), numbers(3), numbers(5), numbers(6)]
    kept = changed(graph("a"), graph("a"))(epochs)
    assert changed(graph("a"), graph("b"), renamed_nodes={"b": "a"})(epochs) == kept
    assert all(kept)


class Frame(Calculator):
    """Makes frames of numbers: 1 is a key frame."""

    contract = Contract(inputs="value", outputs={"frame": dict}, timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        context.emit("frame", {"is_key": context["value"] == 1, "v": context["value"]})


def test_another_calculator_under_an_old_name_is_refused() -> None:
    run = changed(line(node(Total, name="n")), line(node(Tracker, name="n")))
    with pytest.raises(hf.InvalidPipeline, match=r"Node 'n' was .*Total, and is .*Tracker now"):
        run([numbers(1), numbers(2)])


# --- errors ----------------------------------------------------------------------------------------------------------


def failure(stream: hf.Stream, *rows: Mapping[str, Any]) -> str:
    with pytest.raises(hf.InvalidPipeline) as failed:
        drive(stream, {"rows": [list(rows), []]})
    return str(failed.value)


ROW = {"k": "cam", "t": 41, "v": 13}


class Unsaved(Calculator):
    """Has neither save() nor what it could be replayed from."""

    contract = Contract(inputs="value", outputs="same")

    def process(self, context: Context) -> None:
        """Do nothing."""


class Unsavable(Unsaved):
    """Raises when it is saved."""

    def save(self) -> Mapping[str, Any]:
        return {"x": 1 // 0}


class NoMapping(Unsaved):
    """Saves what is no mapping."""

    def save(self) -> Any:
        return 7


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (line(Unsaved), r"key 'cam': Calculator 'unsaved' has state that nobody can keep"),
        (line(Odd, Unsavable), r"key 'cam': Calculator 'unsavable' failed in save: ZeroDivisionError"),
        (line(Odd, NoMapping), r"key 'cam': save\(\) of calculator 'no_mapping' returned int"),
        (line(lambda rows: threading.Lock(), Batched), r"A lock of node 'batched' of key 'cam' cannot be kept"),
        (line(Failing), r"'cam'.*Calculator 'failing' failed at 41: ValueError: thirteen"),
        (line(lambda rows: "text"), r"output 'out' .*no int64, for column 'out'"),
    ],
    ids=["unsaved", "unsavable", "no mapping", "no bytes", "raises", "type"],
)
def test_an_error_of_a_calculator_names_it_its_key_and_its_time(graph: Graph, said: str) -> None:
    assert re.search(said, failure(single(graph), ROW), re.DOTALL)


def test_what_is_not_reachable_now_may_be_so_at_the_next_attempt() -> None:
    def ask(rows: Any) -> int:
        raise ConnectionError("refused")

    with pytest.raises(hf.Unavailable, match=r"key 'cam': Calculator 'ask' failed at 41: ConnectionError: refused"):
        drive(single(line(ask)), {"rows": [[ROW]]})


def test_a_payload_with_other_columns_is_refused_with_the_columns_that_there_are() -> None:
    graph = line(lambda rows: {"box": 1, "speed": 2})
    stream = source("rows") | hf.flow(graph, by="k", schema="box BIGINT, score DOUBLE", name="flow")
    said = failure(stream, ROW)
    assert re.search(
        r"output 'out' of the graph gave dict .*speed.*its rows have the columns box, score", said, re.DOTALL
    )


def sourced() -> Graph:
    graph = line(Odd)
    graph.output("more", graph.add(node(Source)))
    return graph


class Source(Calculator):
    """Has no input."""

    contract = Contract(outputs="value")


def sided() -> Graph:
    graph = Graph("sided")
    graph.side_input("model")
    graph.output("out", graph.input("rows") | node(Odd))
    return graph


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (sourced, {}, "node 'source' of graph 'line' is a source"),
        (sided, {}, "graph 'sided' lacks the side input 'model'"),
        (lambda: line(Odd), {"renamed_nodes": {"even": "o"}}, "names 'even', which is no node of graph 'line'"),
        (lambda: line(Odd, Total), {"renamed_nodes": {"odd": "total", "total": "odd"}}, "'total' a second time"),
        (lambda: line(Odd, Total), {"renamed_nodes": {"odd": "x", "total": "x"}}, "'x' a second time"),
        (lambda: line(Odd), {"inputs": {"frames": "v"}}, "names 'frames', which is no input"),
        (lambda: line(Odd), {"disorder": {"frames": 1}}, "names 'frames', which is no input"),
        (lambda: line(Odd), {"schema": None}, "neither schema= nor outputs= says"),
        (lambda: line(Odd), {"outputs": {"x": "x INT"}, "schema": None}, "outputs= names x"),
        (lambda: line(Odd), {"schema": "k INT"}, "declares the column 'k', which stands before"),
        (lambda: Graph("none"), {}, "'none' has 0 inputs"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_before_it_runs(
    make: Callable[[], Graph], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(hf.InvalidPipeline, match=re.escape(said)):
        source("rows") | hf.flow(make(), by="k", **{"schema": "n BIGINT", **options})


def test_streams_are_named_as_the_inputs_are() -> None:
    with pytest.raises(hf.InvalidPipeline, match="has the inputs rows, and other were given"):
        hf.flow({"other": source("a")}, line(Odd), by="k", schema="n BIGINT")
    with pytest.raises(hf.InvalidPipeline, match=r"hf.flow got"):
        hf.flow(cast(Any, source("a")), line(Odd), by="k", schema="n BIGINT")
    with pytest.raises(hf.InvalidPipeline, match=r"input 'rows' is .* and no stream"):
        hf.flow(cast(Any, {"rows": 3}), line(Odd), by="k", schema="n BIGINT")
    text = hf.read.rows([], schema="k INT, t BIGINT, v BIGINT", timestamp="t", name="b")
    graph = Graph("pair")
    graph.output("out", {"left": graph.input("left"), "right": graph.input("right")} | node(Both))
    stream = hf.flow({"left": source("a"), "right": text}, graph, by="k", schema="n BIGINT")
    with pytest.raises(hf.InvalidPipeline, match="input 'right' does not fit input 'left'"):
        drive(stream, {"a": [], "b": []})
