"""A flowgraph as a text, and as a Mermaid diagram."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.flow.building import PlacedNode, PolicyGiven, Structure
from holdfast.flow.queues import type_text


def explain(graph: Structure) -> str:
    """Return a graph as a text: each node with its policy, what fills its inputs, and what its outputs fill."""
    lines = [f"flowgraph {graph.name}: {len(graph.nodes)} calculators, queues of {_limit(graph.max_queue_size)}"]
    lines += [f"  input {name}: {type_text(stream.types)}" for name, stream in graph.inputs.items()]
    lines += [f"  side input {name}: {type_text(types)}" for name, types in graph.side_inputs.items()]
    for name in graph.order():
        lines += _node(graph, graph.nodes[name])
    lines += [f"  back edge {name} <- {stream.name if stream else '?'}" for name, stream in graph.loops.items()]
    lines += [f"  output {name} <- {stream.name}" for name, stream in graph.outputs.items()]
    return "\n".join(lines)


def _node(graph: Structure, placed: PlacedNode) -> Iterator[str]:
    contract = placed.node.contract
    facts = [policy_text(graph.policy_of(placed)) if contract.inputs else f"source, layer {placed.node.source_layer}"]
    if contract.timestamp_offset is not None:
        facts.append(f"offset {contract.timestamp_offset}")
    if contract.batch_size > 1:
        facts.append(f"batches of {contract.batch_size}")
    if contract.max_in_flight > 1:
        facts.append(f"{contract.max_in_flight} in flight")
    if contract.process_timestamp_bounds:
        facts.append("runs on bounds")
    if placed.node.executor:
        facts.append(f"executor {placed.node.executor}")
    yield f"  {placed.name}: {placed.node.kind.name} ({', '.join(facts)})"
    for port, stream in placed.inputs.items():
        yield f"    {port} <- {stream.name}"


def policy_text(policy: PolicyGiven) -> str:
    """Return a policy for readers."""
    if policy is None:
        return "settled"
    return policy.__name__ if isinstance(policy, type) else policy.kind


def _limit(size: int) -> str:
    return "any length" if size < 0 else f"{size} packets"


def mermaid(graph: Structure) -> str:
    """Return a graph as the text of a Mermaid flowchart; back edges are dotted."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Structure) -> Iterator[str]:
    yield "flowchart LR"
    boxes: dict[str, str] = {}
    for stream in graph.inputs.values():
        boxes[stream.name] = f"in{len(boxes)}"
        yield f'  {boxes[stream.name]}(["{stream.name}"])'
    numbers = {name: f"n{place}" for place, name in enumerate(graph.nodes)}
    for name, number in numbers.items():
        yield f'  {number}["{name}<br/>{graph.nodes[name].node.kind.name}"]'
        boxes |= {stream.name: number for stream in graph.nodes[name].outputs.values()}
    for name, number in numbers.items():
        for port, stream in graph.nodes[name].inputs.items():
            source = graph.loops.get(stream.name)
            arrow = "-->" if source is None else "-.->"
            yield f'  {boxes[(source or stream).name]} {arrow}|"{port}"| {number}'
    for place, (name, stream) in enumerate(graph.outputs.items()):
        yield f'  out{place}(["{name}"])'
        yield f"  {boxes[stream.name]} --> out{place}"
