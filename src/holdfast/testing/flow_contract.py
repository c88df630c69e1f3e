"""The contract of calculators in a pipeline: what a graph makes does not depend on where epochs end."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.flow import saving, timestamps
from holdfast.flow.building import NodeSpec, node
from holdfast.flow.executors import Application
from holdfast.flow.graph import Graph
from holdfast.flow.queues import Payload
from holdfast.flow.run import Run

Packets = Sequence[tuple[int, Payload]]
"""Times and payloads of one input, ascending."""

_Step = tuple[str, int, Payload]
_Made = Mapping[str, list[tuple[int, Payload]]]
_SINGLE_MAX = 60
_OF = "the contract"


def flow_contract(
    calculator: Any,
    packets: Mapping[str, Packets] | Packets,
    *,
    options: Any = None,
    side_inputs: Mapping[str, Payload] | None = None,
    depends_on_arrival: bool = False,
    seeds: int = 5,
) -> None:
    """Hold a calculator, or a graph of calculators, to what a pipeline needs of it.

    It is run over packets undisturbed; then it is saved and restored between any two packets, between all of them, and
    at random cuts into epochs.  The state goes through its bytes each time.  What leaves must be the same, and what is
    saved directly behind a restore must be what was saved before.

    Parameters
    ----------
    calculator : subclass of Calculator, function, node or Graph
        What is tried.
    packets : mapping of str to sequence of (int, object), or sequence
        Input -> (time, payload), ascending; of a single input its packets alone.  A few dozen that reach every part of
        the state: for a calculator that is replayed with several marks, and with none for a while.
    options : object, optional
        Of the calculator.
    side_inputs : mapping of str to object, optional
        Name -> value.
    depends_on_arrival : bool
        Whether what leaves depends on which input's packets come first, as documented: a flow limiter, the policies
        ``immediate`` and ``fixed_size``.  Otherwise packets of several inputs are also mixed anew.
    seeds : int
        How many random cuts are tried.

    Raises
    ------
    InvalidPipeline
        If a calculator has neither ``save`` nor ``replay_from``, and does not say that it is pure; if it cannot run in
        a pipeline at all; or what it raises itself.
    AssertionError
        If something else leaves, or is saved: says where the graph was restored, and which output or node differs.

    Examples
    --------
    >>> import holdfast as hf
    >>> class Total(hf.flow.Calculator):
    ...     contract = hf.flow.Contract(inputs="value", outputs="total", timestamp_offset=0)
    ...     total = 0
    ...     def process(self, context):
    ...         self.total += context["value"]
    ...         context.emit("total", self.total)
    ...     def save(self):
    ...         return {"total": self.total}
    ...     def restore(self, saved):
    ...         self.total = saved["total"]
    >>> flow_contract(Total, [(1, 10), (2, 20), (5, 50)])
    """
    graph = _graph_of(calculator, options)
    _refuse_sources(graph)
    given = _packets_of(graph, packets)
    trial = _Trial(graph, dict(side_inputs or {}))
    steps = _in_order(given)
    whole = trial.run(steps, ())
    for place in _spread(len(steps)):
        _same(whole, trial.run(steps, {place}), f"restored before {_text_of(steps[place])}")
    _same(whole, trial.run(steps, range(len(steps))), "restored before each packet")
    for seed in range(seeds):
        chance = random.Random(seed)
        order = steps if depends_on_arrival else _mix(given, chance)
        borders = {chance.randrange(len(order)) for _ in range(4)} if order else ()
        mixed = "" if depends_on_arrival or len(given) < 2 else (
            ", and packets of its inputs came in another order (depends_on_arrival=True, if that may matter)"
        )  # fmt: skip
        _same(whole, trial.run(order, borders), f"restored {len(borders)} times{mixed}")


@dataclass
class _Kept:
    """What is kept of a graph, as the state tables of a pipeline keep it."""

    states: dict[str, bytes] = field(default_factory=dict)
    replays: dict[str, list[bytes]] = field(default_factory=dict)

    def take(self, run: Run) -> None:
        for name, each in saving.save(run, _OF).items():
            self.states[name] = each.state
            self.replays[name] = [*self.replays.get(name, ())[: each.first], *each.replay]


@dataclass(frozen=True)
class _Trial:
    graph: Graph
    side_inputs: Mapping[str, Payload]

    def run(self, steps: Sequence[_Step], restores: Collection[int]) -> _Made:
        """Return what leaves, where the graph is saved and restored before packets of these places."""
        kept = _Kept()
        made: dict[str, list[tuple[int, Payload]]] = {name: [] for name in self.graph.outputs}
        run = self._begin(kept, made)
        for place, (name, t, payload) in enumerate(steps):
            if place in restores:
                kept.take(run)
                run = self._begin(kept, made)
                _same_states(kept, run, f"before {_text_of((name, t, payload))}")
            run.add(name, payload, t)
            run.wait_until_idle()
        kept.take(run)
        if restores:
            run = self._begin(kept, made)
        run.close()
        run.finish()
        return made

    def _begin(self, kept: _Kept, made: Mapping[str, list[tuple[int, Any]]]) -> Run:
        graph = self.graph
        executors = dict.fromkeys({placed.node.executor for placed in graph.nodes.values()}, Application())
        run = Run(graph, side_inputs=self.side_inputs, executors=executors, clock=lambda: 0, starts=False)
        for name, packets in made.items():
            run.observe(name, lambda t, value, packets=packets: packets.append((t, value)))  # type: ignore[misc]
        saving.restore(run, kept.states, kept.replays, {}, _OF)
        return run


def _graph_of(calculator: Any, options: Any) -> Graph:
    if isinstance(calculator, Graph):
        return calculator
    made = calculator if isinstance(calculator, NodeSpec) else node(calculator, options)
    graph = Graph(made.name or made.kind.name)
    for name in made.contract.side_inputs:
        graph.side_input(made.side_inputs.get(name, name))
    inputs = {name: graph.input(name, types) for name, types in made.contract.inputs.items()}
    graph.add(made, inputs)
    for name, stream in graph.nodes[next(iter(graph.nodes))].outputs.items():
        graph.output(name, stream)
    return graph


def _refuse_sources(graph: Graph) -> None:
    for name, placed in graph.nodes.items():
        if not placed.node.contract.inputs:
            raise InvalidPipeline(
                f"node {name!r} of graph {graph.name!r} is a source.",
                why="in a pipeline packets come from streams, so there is nothing to hold it to.",
                do="make it a graph input.",
            )


def _packets_of(graph: Graph, packets: Mapping[str, Packets] | Packets) -> dict[str, Packets]:
    given = dict(packets) if isinstance(packets, Mapping) else dict.fromkeys(graph.inputs, packets)
    if given.keys() != graph.inputs.keys() or (len(given) > 1 and not isinstance(packets, Mapping)):
        raise InvalidPipeline(
            f"packets of {', '.join(given) or 'no input'} were given.",
            why=f"the inputs are {', '.join(graph.inputs)}.",
            do="give a mapping of input to its packets.",
        )
    return given


def _in_order(given: Mapping[str, Packets]) -> list[_Step]:
    """Return all packets in the order of their times, as a pipeline feeds those of one epoch."""
    steps = [(name, t, payload) for name, packets in given.items() for t, payload in packets]
    return sorted(steps, key=lambda step: step[1])


def _mix(given: Mapping[str, Packets], chance: random.Random) -> list[_Step]:
    """Return all packets in any order that keeps that of each input."""
    left = {name: list(packets) for name, packets in given.items() if packets}
    steps: list[_Step] = []
    while left:
        name = chance.choice(sorted(left))
        steps.append((name, *left[name].pop(0)))
        if not left[name]:
            del left[name]
    return steps


def _spread(count: int) -> Iterator[int]:
    """Yield places, all of them where they are not many."""
    yield from sorted({count * number // min(count, _SINGLE_MAX) for number in range(min(count, _SINGLE_MAX))})


def _same_states(kept: _Kept, run: Run, where: str) -> None:
    again = _Kept(replays=dict(kept.replays))
    again.take(run)
    for name, state in kept.states.items():
        if again.states[name] != state:
            raise AssertionError(
                f"node {name!r}: what is saved directly behind a restore, {where}, is not what was saved before: "
                "restore() leaves something out, or save() gives what is no state."
            )


def _same(expected: _Made, found: _Made, where: str) -> None:
    for name, packets in expected.items():
        if packets == found[name]:
            continue
        place = next((n for n, (one, other) in enumerate(zip(packets, found[name], strict=False)) if one != other),
                     min(len(packets), len(found[name])))  # fmt: skip
        one, other = (repr(each[place])[:300] if place < len(each) else "nothing" for each in (packets, found[name]))
        raise AssertionError(
            f"{where}, output {name!r} gives other packets: number {place + 1} was {one}, and is {other}."
        )


def _text_of(step: _Step) -> str:
    return f"the packet of input {step[0]!r} at {timestamps.text(step[1])}"
