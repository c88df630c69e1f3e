"""Random flowgraphs whose outputs depend on the packets alone, and never on who calls the calculators, or when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast import flow
from holdfast.flow import calculators

Packets = dict[str, list[tuple[int, Any]]]


@dataclass(frozen=True)
class MixOptions:
    """What a calculator of a random graph does: its kind, a number of its own, and how long a call may take."""

    kind: str
    contract: flow.Contract
    salt: int
    delay_s: float


class Mix(flow.Calculator):
    """Makes a number of those of an input set and of its own one; some kinds remember earlier sets."""

    Options = MixOptions

    @classmethod
    def contract_of(cls, options: MixOptions) -> flow.Contract:
        return options.contract

    def __init__(self, options: MixOptions) -> None:
        super().__init__(options)
        self._count = 0

    def process(self, context: flow.Context) -> None:
        kind, t = self.options.kind, context.timestamp
        if self.options.delay_s and random.random() < 0.3:
            time.sleep(random.random() * self.options.delay_s)
        value = self.options.salt
        for name in self.options.contract.inputs:
            value = (value * 31 + context.get(name, 7)) % 1_000_003
        match kind:
            case "some":
                if value % 3:
                    context.emit("out", value)
            case "later":
                context.emit("out", value, at=t + 2)
            case "several":
                for n in range(value % 3):
                    context.emit("out", value + n, at=10 * t + n)
            case "tally":
                self._count += value
                context.emit("out", self._count)
            case "barrier":
                self._count += 1
                context.emit("out", value, at=self._count)
            case "groups":
                context.emit("out" if "in_0" in context else "other", value)
            case "choose":
                context.emit("out", value % 2)
            case _:
                context.emit("out", value)


KINDS: dict[str, dict[str, Any]] = {
    "sum": {"timestamp_offset": 0, "is_pure": True},
    "some": {"timestamp_offset": 0, "is_pure": True},
    "later": {"timestamp_offset": 2, "is_pure": True},
    "several": {"is_pure": True},
    "silent": {"is_pure": True},
    "tally": {"timestamp_offset": 0},
    "batch": {"timestamp_offset": 0, "batch_size": 3},
    "flight": {"timestamp_offset": 0, "max_in_flight": 3, "is_pure": True},
    "both": {"timestamp_offset": 0, "max_in_flight": 2, "batch_size": 2, "is_pure": True},
    "barrier": {"policy": hf.policy.barrier()},
    "groups": {"policy": hf.policy.sync_sets([["in_0"]])},
    "mux": {"policy": hf.policy.mux("in_2"), "timestamp_offset": 0},
}


@dataclass(frozen=True)
class RandomGraph:
    """A graph of a seed, and what is put into it."""

    seed: int
    size: int = 12

    def graph(self, max_queue_size: int = -1, *, executors: Sequence[str] = ("",), delay_s: float = 0.0) -> flow.Graph:
        """Return the graph; its nodes are given the executors by chance."""
        chance, of_executors = random.Random(self.seed), random.Random(self.seed)
        graph = flow.Graph(f"random_{self.seed}", max_queue_size=max_queue_size)
        streams: list[flow.Stream] = [graph.input(f"source_{n}") for n in range(chance.randint(1, 3))]

        def add(kind: str, inputs: Sequence[flow.Stream]) -> Any:
            ports = [f"in_{n}" for n in range(len(inputs))]
            outputs = ("out", "other") if kind == "groups" else ("out",)
            declared = {"timestamp_offset": 0} if kind == "choose" else KINDS[kind]
            options = MixOptions(kind, flow.Contract(ports, outputs, **declared), chance.randrange(1000), delay_s)
            made = flow.node(Mix, options, name=f"{kind}_{len(graph.nodes)}", executor=of_executors.choice(executors))
            return graph.add(made, dict(zip(ports, inputs, strict=True)))

        while len(graph.nodes) < self.size:
            kind = chance.choice([*KINDS, "loop"])
            if kind == "loop":
                main = chance.choice(streams)
                edge = graph.back_edge(f"edge_{len(graph.nodes)}")
                previous = {"main": main, "loop": edge} | flow.node(
                    calculators.PreviousLoopback, executor=of_executors.choice(executors)
                )
                made = add("sum", [main, previous])
                edge.comes_from(made)
                streams.append(made)
                continue
            least = {"groups": 2, "mux": 2, "barrier": 2}.get(kind, 1)
            inputs = [chance.choice(streams) for _ in range(2 if kind == "mux" else chance.randint(least, 3))]
            if kind == "mux":
                inputs.append(add("choose", [chance.choice(streams)]))
            made = add(kind, inputs)
            streams += [made] if isinstance(made, flow.Stream) else made.values()
        for stream in streams:
            if "." in stream.name:
                graph.output(stream.name, stream)
        return graph

    def packets(self, count: int = 30) -> Packets:
        """Return what is put into it: input -> (time, value)."""
        chance = random.Random(f"packets {self.seed}")
        found: Packets = {}
        for name in self.graph().inputs:
            t, found[name] = chance.randint(-3, 3), []
            for _ in range(chance.randint(0, count)):
                found[name].append((t, chance.randrange(100)))
                t += chance.choice((1, 1, 2, 5))
        return found


def fed(
    run: flow.Run, packets: Mapping[str, Sequence[tuple[int, Any]]], seed: int, *, now_and_then: Callable[[], Any]
) -> None:
    """Add packets, ascending on each input, with the inputs mixed by chance; with bounds and ends on the way."""
    chance = random.Random(seed)
    ahead = {name: list(reversed(each)) for name, each in packets.items()}
    while ahead:
        name = chance.choice(list(ahead))
        if not ahead[name]:
            if chance.random() < 0.5:
                run.close(name)
            del ahead[name]
            continue
        t, value = ahead[name].pop()
        if chance.random() < 0.2:
            run.raise_bound(name, t)
        run.add(name, value, t)
        if chance.random() < 0.05:
            now_and_then()


def outputs(
    graph: flow.Graph,
    packets: Mapping[str, Sequence[tuple[int, Any]]],
    seed: int,
    *,
    now_and_then: Callable[[flow.Run], Any] = lambda run: run.wait_until_idle(),
    **how: Any,
) -> Packets:
    """Return what a graph makes of packets: output -> (time, value)."""
    run = graph.start(**how)
    found = {name: run.collect(name) for name in graph.outputs}
    with run:
        fed(run, packets, seed, now_and_then=lambda: now_and_then(run))
    return found


def ways(seed: int) -> Iterator[tuple[str, flow.Executor]]:
    """Yield executors."""
    yield "sequential", flow.Sequential()
    yield "application", flow.Application()
    yield "one thread", flow.Threads(1)
    yield "four threads", flow.Threads(4)
    for n in range(3):
        yield f"seed {seed + n}", flow.Seeded(seed + n)
