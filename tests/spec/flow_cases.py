"""Recorded cases of a real framework as flowgraphs: all of them, calls without packets, graphs and scheduler too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import flow
from holdfast.errors import HoldfastError
from holdfast.flow import calculators
from holdfast.flow.queues import ABSENT, BrokenContract
from holdfast.flow.timestamps import DONE, MAX, MIN, ONE_OVER_POST_STREAM, POST_STREAM, PRE_STREAM, UNSET, UNSTARTED

CASES = json.loads((Path(__file__).parent / "oracle" / "cases.json").read_text())["cases"]

Case = dict[str, Any]

TIMES = {
    "Unset": UNSET,
    "Unstarted": UNSTARTED,
    "PreStream": PRE_STREAM,
    "Min": MIN,
    "Max": MAX,
    "PostStream": POST_STREAM,
    "OneOverPostStream": ONE_OVER_POST_STREAM,
    "Done": DONE,
}
NAMES = {value: name for name, value in TIMES.items()}


def time_of(told: int | str) -> int:
    """Return a time of a case as a number."""
    return TIMES[told] if isinstance(told, str) else told


def told_of(t: int) -> int | str:
    """Return a number as a case tells it."""
    return NAMES.get(t, t)


@dataclass
class Record:
    """What a case's nodes were called with, and what was seen."""

    event: int | str = 0
    sets: list[dict[str, Any]] = field(default_factory=list)
    close_after_event: int | str | None = None
    runs: list[list[Any]] = field(default_factory=list)
    outputs: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class RecorderOptions:
    """What the recording calculators are made with."""

    record: Record
    name: str
    contract: flow.Contract
    passes: bool = False
    count: int = 0


class Recorder(flow.Calculator):
    """Writes down what it is called with."""

    Options = RecorderOptions

    @classmethod
    def contract_of(cls, options: RecorderOptions) -> flow.Contract:
        return options.contract

    def process(self, context: flow.Context) -> Any:
        record, t = self.options.record, context.timestamp
        inputs = list(self.options.contract.inputs)
        record.sets.append(
            {
                "after_event": record.event,
                "ts": told_of(t),
                "packets": {
                    name: [told_of(context.time_of(name)), context[name]] for name in inputs if name in context
                },
                "empty_at": {name: told_of(context.time_of(name)) for name in inputs if name not in context},
            }
        )
        record.runs.append([self.options.name, told_of(t)])
        if self.options.passes:
            context.emit(next(iter(self.options.contract.outputs)), context[inputs[0]])

    def close(self, context: flow.Context) -> None:
        self.options.record.close_after_event = self.options.record.event
        self.options.record.runs.append([self.options.name, "close"])


class RecordingSource(flow.Calculator):
    """Sends packets at 0, 1, 2, ... and then stops; the number is at the end of its name."""

    Options = RecorderOptions

    @classmethod
    def contract_of(cls, options: RecorderOptions) -> flow.Contract:
        return options.contract

    def __init__(self, options: RecorderOptions) -> None:
        super().__init__(options)
        self._next = 0

    def process(self, context: flow.Context) -> Any:
        t, self._next = self._next, self._next + 1
        self.options.record.runs.append([self.options.name, t])
        if t == self.options.count:
            return flow.STOP
        context.emit(next(iter(self.options.contract.outputs)), t, at=t)
        return None


def policy_of(case: Case) -> Any:
    """Return the policy of a case of one node."""
    match case["policy"]:
        case "default":
            return None
        case "sync_set":
            return hf.policy.sync_sets([group for group in case["sync_sets"] if group])
        case "immediate":
            return hf.policy.immediate()
        case "barrier":
            return hf.policy.barrier()
        case "early_close":
            return hf.policy.early_close()
        case "mux":
            return hf.policy.mux(case["streams"][-1])
        case "timestamp_align":
            return hf.policy.timestamp_align(case["base"])
        case "fixed_size":
            sizes = case["fixed_size"]
            return hf.policy.fixed_size(
                sizes.get("trigger_queue_size", 2),
                sizes.get("target_queue_size", 1),
                sizes.get("fixed_min_size", False),
            )
    raise AssertionError(case["policy"])


def graph_of(case: Case, record: Record) -> flow.Graph:
    """Return the graph of a case."""
    graph = flow.Graph(
        max_queue_size=case.get("max_queue_size") or 100, report_deadlock=case.get("report_deadlock", False)
    )
    streams = {name: graph.input(name) for name in case["streams"]}
    kind = case.get("kind")
    if kind == "flow_limiter":
        _limiter(case, graph, streams)
    elif kind == "graph":
        waiting = [{"name": f"node_{number}", **node} for number, node in enumerate(case["nodes"])]
        for node in waiting:
            for port in node.get("back_edges", ()):
                name = next(each for each in node["in"] if each.startswith(f"{port}:")).partition(":")[2]
                streams[name] = graph.back_edge(name)
        while waiting:  # as listed, but for those whose inputs are made later
            node = next(each for each in waiting if all(name in streams for name in _streams_of(each["in"])))
            waiting.remove(node)
            _add(graph, streams, node, record)
        for name in case["observe"]:
            graph.output(name, streams[name])
    else:
        contract = flow.Contract(
            inputs=case["streams"],
            policy=policy_of(case),
            process_timestamp_bounds=case.get("process_timestamp_bounds", False),
            batch_size=case.get("batch_size", 1),
        )
        streams | flow.node(Recorder, RecorderOptions(record, "node", contract))
    return graph


def _streams_of(ports: list[str]) -> list[str]:
    return [each.rpartition(":")[2] for each in ports]


def _limiter(case: Case, graph: flow.Graph, streams: dict[str, flow.Stream]) -> None:
    auxiliary = tuple(name for name in case["streams"] if name not in ("in", "finished"))
    options = calculators.FlowLimiter.Options(**case["flow_limiter"], auxiliary=auxiliary)
    inputs = {"main" if name == "in" else name: stream for name, stream in streams.items()}
    made = inputs | flow.node(calculators.FlowLimiter, options)
    graph.output("o_in", made["main"])
    graph.output("allow", made["allow"])
    for name in auxiliary:
        graph.output(f"o_{name}", made[name])


def _add(graph: flow.Graph, streams: dict[str, Any], node: dict[str, Any], record: Record) -> None:
    name, ins, outs = node["name"], _streams_of(node["in"]), _streams_of(node["out"])
    given = [streams[each] for each in ins]
    offset = None if node["calculator"] == "RecSource" else 0
    contract = flow.Contract(inputs=[f"in_{n}" for n in range(len(ins))], outputs=outs, timestamp_offset=offset)
    inputs = dict(zip(contract.inputs, given, strict=True))
    match node["calculator"]:
        case "Recorder" | "RecorderPass":
            made = inputs | flow.node(
                Recorder, RecorderOptions(record, name, contract, node["calculator"] == "RecorderPass"), name=name
            )
        case "RecSource":
            options = RecorderOptions(record, name, contract, count=int(name[-1]))
            made = graph.add(flow.node(RecordingSource, options, name=name, source_layer=node.get("source_layer", 0)))
        case "PassThroughCalculator":
            passing = flow.node(calculators.PassThrough, calculators.PassThrough.Options(tuple(inputs)), name=name)
            if "batch_size" in node:
                passing = replace(passing, contract=replace(passing.contract, batch_size=node["batch_size"]))
            made = inputs | passing
        case "GateCalculator":
            made = {"allow": given[0], "data": given[1]} | flow.node(calculators.Gate, name=name)
        case "PreviousLoopbackCalculator":
            made = {"main": given[0], "loop": given[1]} | flow.node(calculators.PreviousLoopback, name=name)
    several = [made] if isinstance(made, flow.Stream) else list(made.values())
    for out, stream in zip(outs, several, strict=True):
        if out in streams:
            streams[out].comes_from(stream)
        streams[out] = stream


def ran(case: Case, executor: flow.Executor | None = None) -> dict[str, Any]:
    """Return what a case's graph does, as the case tells what it expects."""
    record = Record()
    graph = graph_of(case, record)
    refused: list[int] = []
    error: dict[str, Any] | None = None
    run = graph.start(executor=executor or flow.Application())
    for name in graph.outputs:
        run.observe(name, _observer(record, name), bounds=True)
    try:
        for number, event in enumerate(case["events"]):
            record.event = number
            if not _feed(run, event, case):
                refused.append(number)
                run.wait_until_idle()
            if case["drain"] == "each":
                run.wait_until_idle()
        if not case["events"] or case["drain"] == "end":
            record.event = "end"
            run.wait_until_idle()
    except HoldfastError as raised:
        error = {"event": record.event, "kind": _kind(raised)}
    if case.get("kind") == "graph" and "runs" in case["expected"] and error is None:
        run.finish()
    found: dict[str, Any] = {
        "sets": record.sets,
        "close_after_event": record.close_after_event,
        "error": error,
        "runs": record.runs,
        "outputs": record.outputs,
    }
    if refused:
        found["refused_events"] = refused
    return found


def _observer(record: Record, name: str) -> Callable[[int, Any], None]:
    return lambda t, value: record.outputs.append([record.event, name, told_of(t), None if value is ABSENT else value])


def _feed(run: flow.Run, event: list[Any], case: Case) -> bool:
    name, what, *rest = event
    if what in ("packet", "packet_bool"):
        return run.add(name, rest[1], time_of(rest[0]), wait=case.get("add_mode") != "if_not_full")
    if what == "bound":
        run.raise_bound(name, time_of(rest[0]))
    else:
        run.close(name)
    return True


def _kind(error: HoldfastError) -> str:
    if isinstance(error, BrokenContract):
        return {"post_stream_not_alone": "poststream_not_alone"}.get(error.rule, error.rule)
    return "deadlock" if error.what.startswith("Nothing can go on") else repr(error)


def differences(case: Case, executor: flow.Executor | None = None) -> Iterator[str]:
    """Yield in which parts the graph does not do what was recorded."""
    found, expected = ran(case, executor), case["expected"]
    for part, wanted in expected.items():
        got = found.get(part)
        if part == "error" and wanted is not None:
            wanted = {"event": wanted["event"], "kind": wanted["kind"]}
        if part == "outputs":
            got, wanted = _by_stream(got or []), _by_stream(wanted)
        if part == "sets":
            got = [_as_told(*each) for each in zip_longest(got or [], wanted, fillvalue={})]
        if got != wanted:
            yield f"{part}:\n   got    {got}\n   wanted {wanted}"


def _as_told(got: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a call without what the case does not tell: what is known of some inputs that have no packet."""
    known = {name: t for name, t in got.get("empty_at", {}).items() if name in wanted.get("empty_at", {})}
    return {**got, "empty_at": known} if got else got


def _by_stream(outputs: list[list[Any]]) -> dict[str, list[list[Any]]]:
    """Group outputs by stream: the order of several streams within an event means nothing."""
    found: dict[str, list[list[Any]]] = {}
    for event, stream, t, value in outputs:
        found.setdefault(stream, []).append([event, t, value])
    return found
