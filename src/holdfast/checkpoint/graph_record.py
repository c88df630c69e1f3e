"""The graph as a checkpoint remembers it: its nodes, what each operator keeps, and the fingerprint of its state.

Beside it, ``graph/<fingerprint>.json`` describes a graph for people, by its ``spec()``.  Nothing reads that back, so a
damaged one is ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.manifest import StateSchema
from holdfast.connectors import spark_options
from holdfast.errors import Corrupt, InvalidPipeline, invariant
from holdfast.graph.graph import Graph
from holdfast.graph.naming import canonical_json
from holdfast.graph.nodes import Node, SinkNode, is_stateful
from holdfast.ports import Store
from holdfast.store import sealed

GRAPH = "graph.json"
"""Record of the graph in a Spark directory: what each node was, and what it keeps."""


class Role(Enum):
    """What a node is in the graph."""

    SOURCE = "source"
    OPERATOR = "operator"
    STATEFUL = "stateful operator"
    SINK = "sink"


@dataclass(frozen=True)
class Described:
    """A node as a checkpoint remembers it.

    Parameters
    ----------
    role : Role
        What it is.
    kind, arguments : str
        Kind, and arguments as canonical JSON.
    inputs : tuple of str
        Names of the nodes that it reads.
    """

    role: Role
    kind: str
    arguments: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class GraphRecord:
    """A graph as a checkpoint remembers it.

    Parameters
    ----------
    fingerprint : str
        Equal for equal graphs.
    nodes : mapping of str to Described
        All nodes, sinks included.
    state_schemas : mapping of str to StateSchema
        What each stateful operator keeps.
    buckets : int
        Into how many the state of each operator is divided; 0 without state.
    left_out : mapping of str to Described
        Sinks that the last rewind has left as they were, until a graph is started: each of them is new to it.
    """

    fingerprint: str
    nodes: Mapping[str, Described]
    state_schemas: Mapping[str, StateSchema]
    buckets: int = 0
    left_out: Mapping[str, Described] = field(default_factory=dict)

    def rewound(self, sinks: Collection[str]) -> GraphRecord:
        """Return the graph as a rewind of some of its sinks leaves it: the others are left out."""
        known = {**self.nodes, **self.left_out}
        left_out = {name: node for name, node in known.items() if node.role is Role.SINK and name not in sinks}
        return replace(self, nodes={n: of for n, of in known.items() if n not in left_out}, left_out=left_out)

    def to_json(self) -> bytes:
        """Return the bytes of the record."""
        state_schemas = {name: of.to_json() for name, of in self.state_schemas.items()}
        value: dict[str, Any] = {"fingerprint": self.fingerprint, "nodes": _nodes_json(self.nodes)}
        left_out = {"left_out": _nodes_json(self.left_out)} if self.left_out else {}
        return sealed.dump({**value, "keeps": state_schemas, "buckets": self.buckets, **left_out})

    @staticmethod
    def from_json(data: bytes, key: str) -> GraphRecord:
        """Return what :meth:`to_json` wrote.

        Raises
        ------
        Corrupt
            If it cannot be read.
        """
        try:
            value: dict[str, Any] = sealed.load(data)
            nodes, left_out = _nodes(value["nodes"]), _nodes(value.get("left_out", {}))
            state_schemas = {name: StateSchema.from_json(of) for name, of in value["keeps"].items()}
            return GraphRecord(value["fingerprint"], nodes, state_schemas, int(value["buckets"]), left_out)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise unreadable(key, error, "it says what each operator of the graph that ran here keeps") from error


def _nodes_json(nodes: Mapping[str, Described]) -> dict[str, Any]:
    return {
        name: {"role": node.role.name, "kind": node.kind, "arguments": node.arguments, "inputs": list(node.inputs)}
        for name, node in nodes.items()
    }


def _nodes(value: Mapping[str, Any]) -> dict[str, Described]:
    return {
        name: Described(Role[of["role"]], of["kind"], _hiding(of["kind"], of["arguments"]), tuple(of["inputs"]))
        for name, of in value.items()
    }


def read_graph(store: Store, below: str) -> GraphRecord:
    """Return the graph that ran in a directory last.

    Raises
    ------
    InvalidPipeline
        If it was not noted: an older version of Holdfast made the directory.
    Corrupt
        If the record is damaged.
    """
    key = f"{below}/{GRAPH}"
    data = store.get(key)
    if data is not None:
        return GraphRecord.from_json(data, key)
    if store.get(f"{below}/state.json") is None:
        return GraphRecord("", {}, {})  # without state there is nothing to compare
    raise InvalidPipeline(
        f"what the operators keep in {below} is not known.",
        why=f"the graph has changed, and there is no {key} in the checkpoint: it was made by an older version.",
        do="start the unchanged graph once with this version.",
        participant=key,
    )


def write_graph(store: Store, below: str, graph: GraphRecord) -> None:
    """Note the graph that runs in a directory."""
    key, data = f"{below}/{GRAPH}", graph.to_json()
    if store.get(key) != data:
        store.put(key, data)


def _hiding(kind: str, arguments: str) -> str:
    """Return recorded arguments without what a record of an older version shows in clear."""
    if kind != "spark":
        return arguments
    value = json.loads(arguments)
    if has_options(kind, value):
        value["options"] = spark_options.shown(value["options"])
    return canonical_json(value)


def unreadable(key: str, error: Exception, says: str) -> Corrupt:
    """Return the error of a damaged record in one of Spark's directories, whose loss costs no row."""
    return Corrupt(
        f"{key!r} in the checkpoint cannot be read.",
        why=f"{error}; {says}.",
        do=f"restore it from a copy of the checkpoint; or move the directory {key.rpartition('/')[0]!r} out of the "
        "checkpoint: the next start then takes the state from the newest snapshot.",
        participant=key,
    )


def described(pipeline: Graph, state_schemas: Mapping[str, StateSchema], buckets: int = 0) -> GraphRecord:
    """Return a pipeline as a checkpoint remembers it."""
    everything: Sequence[Node | SinkNode] = (*pipeline.nodes, *pipeline.sinks)
    nodes = {
        node.name: Described(
            _role(node),
            node.kind,
            canonical_json(dict(node.arguments())),
            tuple(before.name for before in node.inputs),
        )
        for node in everything
    }
    invariant(len(nodes) == len(everything), "two nodes of a graph have one name: one would get the other's state.")
    invariant(
        state_schemas.keys() <= nodes.keys(), f"no node keeps the state of {state_schemas.keys() - nodes.keys()}."
    )
    return GraphRecord(pipeline.fingerprint(), nodes, state_schemas, buckets)


def state_fingerprint(pipeline: Graph) -> str:
    """Return 16 hexadecimal digits that are equal for graphs whose state is the same, rows given; empty without state.

    What is downstream of the last stateful operator, sinks, and the arguments of sources (limits, for instance) have no
    part in it: rows between two positions are the same for ever.

    Examples
    --------
    >>> import holdfast as hf
    >>> rows = hf.read.rows([[{"k": 1}]], schema="k BIGINT", name="rows")
    >>> state_fingerprint(hf.Pipeline("plain", rows | hf.write.memory(name="shown")))
    ''
    """
    needed: set[Node] = set()
    waiting = [node for node in pipeline.nodes if is_stateful(node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.inputs
    if not needed:
        return ""
    described_nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "arguments": {} if node.is_source else dict(node.arguments()),
            "inputs": [before.name for before in node.inputs],
        }
        for node in pipeline.nodes
        if node in needed
    ]
    value = {"nodes": described_nodes, "sources": [node.name for node in pipeline.sources]}
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def _role(node: Node | SinkNode) -> Role:
    if isinstance(node, SinkNode):
        return Role.SINK
    if node.is_source:
        return Role.SOURCE
    return Role.STATEFUL if is_stateful(node) else Role.OPERATOR


def has_options(kind: str, arguments: Mapping[str, Any]) -> bool:
    """Tell whether a node's arguments hold options of Spark's readers."""
    return kind == "spark" and isinstance(arguments.get("options"), dict)


def note_description(store: Store, pipeline: Graph) -> None:
    """Record the graph of a pipeline; cover what older versions noted in clear."""
    key = f"graph/{pipeline.fingerprint()}.json"
    store.put(key, _text(pipeline.spec()))
    for other in store.keys("graph/"):
        if other != key:
            _cover(store, other)


def _cover(store: Store, key: str) -> None:
    data = store.get(key)
    try:
        spec = json.loads(data or b"")
        for node in spec["nodes"]:
            if node["kind"] == "spark":
                node["arguments"]["options"] = spark_options.shown(node["arguments"]["options"])
        covered = _text(spec)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    if covered != data:
        store.put(key, covered)


def _text(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec).encode()
