"""The graph of a pipeline as data: names, nodes, sinks, and what identifies them.

:class:`holdfast.pipeline.Pipeline` checks one, starts it and explains it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.display import drawing
from holdfast.graph import building, naming
from holdfast.graph.commit_at import CommitAtPts
from holdfast.graph.hooks import NONE, Hooks
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, SinkNode, Stream, in_order
from holdfast.ports import SourceSpec


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A checked graph with a name.

    Parameters
    ----------
    name : str
        The pipeline's identity in its checkpoint and in every sink's ledger.
    sinks : tuple of SinkNode
        The sinks, each attached to its stream.
    nodes : tuple of Node
        Everything upstream of them, inputs before their consumers.
    unused : tuple of Stream
        Streams that intentionally have no sink.
    origin : Origin
        The line that built it.
    hooks : Hooks
        What is called at the beginning and the end of each run, and at checkpoints.  No part of the graph.
    commit_at : CommitAtPts, optional
        What limits a commit to rows before pts.
    shard_by : str, optional
        The column by which rows are held to their segments.  No part of the graph.
    shards : str, optional
        ``"independent"``: each shard gives a result of its own.  No part of the graph.
    """

    name: str
    sinks: tuple[SinkNode, ...]
    nodes: tuple[Node, ...]
    unused: tuple[Stream, ...]
    origin: Origin
    hooks: Hooks
    commit_at: CommitAtPts | None
    shard_by: str | None = None
    shards: str | None = None

    def with_sinks(self, sinks: Sequence[SinkNode]) -> Graph:
        """Return the part of this graph that some sinks need, with others in their places; without hooks.

        Parameters
        ----------
        sinks : sequence of SinkNode
            Attached to streams of this graph.
        """
        of_all = (self.commit_at, self.shard_by, self.shards)
        return Graph(self.name, tuple(sinks), nodes_of(sinks), (), self.origin, NONE, *of_all)

    def with_sources(self, name: str, specs: Mapping[str, SourceSpec]) -> Graph:
        """Return this graph under another name, with other declarations of some sources.

        Parameters
        ----------
        name : str
            The name of the new one.
        specs : mapping of str to SourceSpec
            Source -> its declaration, with the same columns.
        """
        made: dict[Node, Node] = {}
        for node in self.nodes:
            spec = specs.get(node.name, node.spec) if node.is_source else node.spec
            made[node] = replace(node, spec=spec, inputs=tuple(made[each] for each in node.inputs))
        sinks = tuple(replace(sink, stream=Stream(made[sink.inputs[0]])) for sink in self.sinks)
        building.adopt((*made.values(), *sinks))
        of_all = (self.commit_at, self.shard_by, self.shards)
        return Graph(name, sinks, nodes_of(sinks), (), self.origin, self.hooks, *of_all)

    @property
    def sources(self) -> tuple[Node, ...]:
        """The source nodes, in the order of :attr:`nodes`."""
        return tuple(node for node in self.nodes if node.is_source)

    def diagram(self) -> str:
        """Return the pipeline as a drawing: the text of a Mermaid flowchart."""
        return drawing.diagram(self.nodes, self.sinks)

    def spec(self) -> dict[str, Any]:
        """Return the whole graph as a JSON value: names, kinds, arguments, edges; without secrets and line numbers."""
        everything: tuple[Node | SinkNode, ...] = (*self.nodes, *self.sinks)
        described = [
            {
                "name": node.name,
                "kind": node.kind,
                "arguments": dict(node.arguments()),
                "inputs": [before.name for before in node.inputs],
            }
            for node in everything
        ]
        return {
            "pipeline": self.name,
            "format": 1,
            "nodes": sorted(described, key=lambda node: str(node["name"])),
            "sinks": sorted(sink.name for sink in self.sinks),
        }

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that are equal for equal graphs, in whatever order their sinks are listed."""
        return hashlib.sha256(naming.canonical_json(self.spec()).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<pipeline {self.name!r} built at {self.origin}: {len(self.nodes)} nodes, {len(self.sinks)} sinks>"

    def _repr_html_(self) -> str:
        """Return a drawing of the graph: what a notebook shows."""
        return drawing.picture(self.nodes, self.sinks, f"pipeline {self.name}", {})


def nodes_of(sinks: Sequence[SinkNode]) -> tuple[Node, ...]:
    """Return all nodes that the sinks need, inputs before their consumers, in the order of the sinks."""
    return in_order([node for sink in sinks for node in sink.inputs])
