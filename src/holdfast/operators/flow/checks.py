"""Checks of what users give to ``hf.flow``, each error with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.flow.building import PlacedNode
from holdfast.flow.drawing import policy_text
from holdfast.flow.graph import Graph
from holdfast.flow.queues import Payload
from holdfast.graph.building import a_type
from holdfast.graph.nodes import Stream
from holdfast.operators.flow.idle import POLICIES, WaitedFor
from holdfast.state import keyed
from holdfast.types import units
from holdfast.types.schema import to_arrow

RIGHT = 'frames | hf.flow(graph, by="camera", schema="boxes ARRAY<STRING>")'

_BY_TIME_OR_ORDER = ("settled", "mux", "barrier")
"""Policies whose input sets follow from the packets of each input alone, whenever they come."""


def checked_threads(graph: Graph, threads: int | None) -> int | None:
    """Return a number of threads, where nothing in the graph depends on the moment.

    Raises
    ------
    InvalidPipeline
        If that cannot be.
    """
    if threads is None:
        return None
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise InvalidPipeline(f"threads={threads!r} is no number of threads.", do="write threads=4, or leave it out.")
    for name, placed in graph.nodes.items():
        if fault := _by_moment(graph, placed):
            raise InvalidPipeline(
                f"threads={threads} is given, and node {name!r} of graph {graph.name!r} {fault}.",
                why="with threads it depends on the moment what it is given, and a replay of an epoch must give the "
                "same.",
                do="leave threads= out; or use policies that go by time: settled, mux, barrier, and calculators that "
                "are not called for bounds, and keep nothing where several calls run at a time.",
            )
    return threads


def _by_moment(graph: Graph, placed: PlacedNode) -> str:
    """Return what of a node depends on the moment where there are threads; nothing where all follows from packets."""
    contract, policy = placed.node.contract, policy_text(graph.policy_of(placed))
    if policy not in _BY_TIME_OR_ORDER:
        return f"has the policy {policy}"
    if contract.process_timestamp_bounds:  # it is told the newest bound, not each
        return "has process_timestamp_bounds=True"
    if contract.max_in_flight > 1 and not contract.is_pure:
        return f"has state, and max_in_flight={contract.max_in_flight}"
    return ""


def checked_idle(graph: Graph, idle_after: str | None) -> str | None:
    """Return after how long an input is idle, where a node waits for bounds.

    Raises
    ------
    InvalidPipeline
        If it is no duration, or nothing waits for bounds.
    """
    if idle_after is None:
        return None
    units.duration_us(idle_after, argument="idle_after")
    if not WaitedFor(graph).nodes:
        raise InvalidPipeline(
            f"idle_after= is given, and no node of graph {graph.name!r} waits for the bounds of its inputs.",
            why=f"the idle rule is for the policies {', '.join(POLICIES)}.",
            do="leave idle_after= out; a source may send bounds instead.",
        )
    return idle_after


def check_graph(graph: Graph, streams: Mapping[str, Stream]) -> None:
    """Check that a graph can run in a pipeline, and that its inputs are filled.

    Raises
    ------
    InvalidPipeline
        If that cannot be.
    """
    source = next((name for name, placed in graph.nodes.items() if not placed.node.contract.inputs), None)
    if source is not None:
        raise InvalidPipeline(
            f"node {source!r} of graph {graph.name!r} is a source.",
            why="in a pipeline packets come from streams, whose positions are committed with the epoch.",
            do="make it a graph input, or a side input where it never changes.",
        )
    for name, placed in graph.nodes.items():
        if placed.node.contract.reads_clock and placed.node.contract.replay_from:
            raise InvalidPipeline(
                f"node {name!r} of graph {graph.name!r} reads the clock, and is restored by a replay.",
                why="a replay has the batch time of the epoch that it is in: it would make another state.",
                do="let a node before it read the clock and send what it says; or write save() and restore().",
            )
    if set(streams) != set(graph.inputs) or not graph.inputs:
        raise InvalidPipeline(
            f"graph {graph.name!r} has the inputs {', '.join(graph.inputs) or '(none)'}, and "
            f"{', '.join(streams) or 'none'} were given.",
            why="each graph input is filled by one stream.",
            do="name each of them once.",
        )
    wrong = next((name for name, stream in streams.items() if not isinstance(stream, Stream)), None)
    if wrong is not None:
        raise InvalidPipeline(f"input {wrong!r} is {a_type(streams[wrong])} and no stream.", do=f"write {RIGHT}")


def check_renames(graph: Graph, renamed: dict[str, str]) -> dict[str, str]:
    """Return which node has the state of which former one.

    Raises
    ------
    InvalidPipeline
        If that cannot be.
    """
    for name, before in renamed.items():
        if name not in graph.nodes:
            raise InvalidPipeline(
                f"renamed_nodes= names {name!r}, which is no node of graph {graph.name!r}.",
                why=f"its nodes are {', '.join(graph.nodes)}.",
                do='write renamed_nodes={"new name": "old name"}.',
            )
        if before in renamed or list(renamed.values()).count(before) > 1:
            raise InvalidPipeline(
                f"renamed_nodes= of graph {graph.name!r} takes the state of {before!r} for {name!r}, and names "
                f"{before!r} a second time.",
                why="a name has the state of one node; and a node that has its new name already was renamed before.",
                do="rename in two steps, with a start between them.",
            )
    return renamed


def output_schemas(
    graph: Graph, schema: Any, outputs: Mapping[str, Payload] | None, taken: Sequence[str]
) -> dict[str, pa.Schema]:
    """Return graph output -> columns of its payloads, the main one first.

    Raises
    ------
    InvalidPipeline
        If that cannot be.
    """
    named = list(graph.outputs)
    if (schema is None) == (outputs is None) or not named:
        said = "neither schema= nor outputs= says" if schema is None else "both schema= and outputs= say"
        raise InvalidPipeline(
            f"graph {graph.name!r} has the outputs {', '.join(named) or '(none)'}, and {said} their columns.",
            why="what leaves becomes rows.",
            do=f'write schema="..." for one output, or outputs={{"{(named or ["boxes"])[0]}": "...", ...}}.',
        )
    given = {named[0]: schema} if outputs is None and len(named) == 1 else dict(outputs or {})
    if set(given) != set(named):
        raise InvalidPipeline(
            f"graph {graph.name!r} has the outputs {', '.join(named)}, and outputs= names "
            f"{', '.join(given) or 'none'}.",
            why="each output is a stream of its own.",
            do="name each of them once, with its columns.",
        )
    found = {name: to_arrow(columns, argument=f"outputs[{name!r}]") for name, columns in given.items()}
    for name, each in found.items():
        used = {column.lower() for column in taken}
        if twice := [column for column in each.names if column.lower() in used]:
            raise InvalidPipeline(
                f"output {name!r} declares the column {twice[0]!r}, which stands before its columns already.",
                why=f"each row has {', '.join(taken)} first.",
                do="leave it out, or give it another name.",
            )
        if name == "late":
            raise InvalidPipeline(
                "an output of the graph is named 'late'.", why="the operator has one of its own.", do="rename it."
            )
    return found


def disorder_by_input(given: str | int | Mapping[str, str | int] | None, names: Sequence[str]) -> dict[str, str | int]:
    """Return graph input -> how far its rows may be behind.

    Raises
    ------
    InvalidPipeline
        If that cannot be.
    """
    if given is None:
        return {}
    each = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if unknown := [name for name in each if name not in names]:
        raise InvalidPipeline(
            f"disorder= names {unknown[0]!r}, which is no input.",
            why=f"they are {', '.join(names)}.",
            do="use one of these.",
        )
    for value in each.values():
        keyed.check_duration(value, "disorder", least=0)
    return each
