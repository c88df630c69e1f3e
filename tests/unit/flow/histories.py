"""What a calculator of the library does with what comes, alone in a graph; and with its state saved and restored."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from holdfast import flow
from holdfast.flow import saving
from holdfast.flow.building import Structure

Event = tuple[Any, ...]
"""(input, time, payload): a packet; (input, time): a bound; (input,): the end; (): all that waits is worked on."""

Seen = tuple[str, int, Any]
"""(output, time, payload), with ABSENT where only the bound has risen."""


def seen(
    calculator: type[flow.Calculator],
    options: Any,
    *events: Event,
    cuts: Collection[int] = (),
    replace: Callable[[flow.Run], flow.Run] | None = None,
    piles_up: bool = False,
) -> list[list[Seen]]:
    """Return what leaves after each event; side inputs have their own names as values.

    Parameters
    ----------
    calculator : subclass of Calculator
        Of the library.
    options : object
        Its options.
    *events : Event
        What comes, one after the other.
    cuts : collection of int
        Before which events ``replace`` is called.
    replace : callable, optional
        Returns what runs from there on: :func:`other_calculator`, :func:`other_run`.
    piles_up : bool
        Whether work is done only at the events ``()``, and not after each one.
    """
    graph = graph_of(calculator, options)
    found: list[list[Seen]] = []
    run = _observed(graph.start(executor=flow.Application(), side_inputs=_sides(graph)), found)
    for number, event in enumerate(events):
        if number in cuts and replace is not None:
            other = replace(run)
            run = run if other is run else _observed(other, found)
        found.append([])
        if len(event) == 3:
            run.add(event[0], event[2], event[1])
        elif len(event) == 2:
            run.raise_bound(*event)
        elif event:
            run.close(*event)
        if not piles_up or not event:
            run.wait_until_idle()
    return found


def graph_of(calculator: type[flow.Calculator], options: Any) -> flow.Graph:
    """Return a graph of one calculator, whose inputs and outputs are the graph's."""
    graph = flow.Graph()
    node = flow.node(calculator, options, name="one")
    for name in node.contract.side_inputs:
        graph.side_input(name)
    inputs = {name: graph.input(name) for name in node.contract.inputs}
    made = graph.add(node, inputs)
    for name in node.contract.outputs:
        graph.output(name, made if isinstance(made, flow.Stream) else made[name])
    return graph


def other_calculator(run: flow.Run) -> flow.Run:
    """Put another calculator in the place of the only one: a new one, with what this one has saved."""
    (node,) = run.engine.nodes
    old = node.calculator
    saved = old.save()
    assert saved is not None
    new = type(old)(old.options)
    new.open(flow.Context(node))
    new.restore(pa.array([saved]).to_pylist()[0] if saved else {})
    node.calculator = new
    return run


def other_run(run: flow.Run, options: Any = None) -> flow.Run:
    """Return another run, of other options where they are given, with what this one has saved; it must be idle."""
    saved = saving.save(run, "a test")
    graph = run.graph if options is None else graph_of(type(run.engine.nodes[0].calculator), options)
    other = flow.Run(graph, executor=flow.Application(), side_inputs=_sides(graph), starts=False)
    saving.restore(other, {name: each.state for name, each in saved.items()}, {}, {}, "a test")
    return other


def _sides(graph: Structure) -> dict[str, str]:
    return {name: name for name in graph.side_inputs}


def _observed(run: flow.Run, found: list[list[Seen]]) -> flow.Run:
    for name in run.graph.outputs:
        run.observe(name, _observer(found, name), bounds=True)
    return run


def _observer(found: list[list[Seen]], name: str) -> Callable[[int, Any], None]:
    return lambda t, value: found[-1].append((name, t, value))


def packets(found: Sequence[Sequence[Seen]], output: str) -> list[tuple[int, Any]]:
    """Return the packets of one output."""
    return [(t, value) for each in found for name, t, value in each if name == output and value is not flow.ABSENT]


def history(seed: int, inputs: Collection[str], payload: Callable[[random.Random, str], Any]) -> list[Event]:
    """Return packets and bounds in random order, ascending for each input, then the ends."""
    chance = random.Random(seed)
    times = dict.fromkeys(inputs, 0)
    events: list[Event] = []
    for _ in range(14):
        name = chance.choice(list(inputs))
        times[name] += chance.choice((1, 1, 2, 5, 20))
        events.append((name, times[name]) if chance.random() < 0.25 else (name, times[name], payload(chance, name)))
        if len(events[-1]) == 3:
            times[name] += 1
        if chance.random() < 0.3:
            events.append(())
    return [*events, *((name,) for name in chance.sample(list(inputs), len(inputs))), ()]
