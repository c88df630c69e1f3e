"""The pipeline: a checked graph with a name, which can be started, explained, drawn and fingerprinted.

Building one runs nothing and opens nothing.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.graph import checks, drawing, explain, naming
from holdfast.graph import unused as forgotten
from holdfast.graph.commit_at import CommitAtPts, commit_at_of
from holdfast.graph.hooks import NONE, Hooks
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, SinkNode, Stream, in_order
from holdfast.graph.trigger import Trigger, every

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.run import Run


@dataclass(frozen=True, init=False, eq=False)
class Pipeline:
    """A checked graph with a name: the unit that runs, commits and recovers as a whole.

    Parameters
    ----------
    name : str
        The pipeline's identity in its checkpoint and in every sink's ledger.
    *sinks : SinkNode
        The sinks, each attached to its stream.
    unused : iterable of Stream
        Streams that intentionally have no sink.
    hooks : Hooks
        What is called at the beginning and the end of each run, and at checkpoints.  No part of the graph.
    commit_at : str or CommitAtPts, optional
        ``"pts"`` (or :func:`~holdfast.graph.commit_at.pts`, which says more): commit only what lies strictly before
        pts, the minimum over all inputs of the next timestamp that may still come, and only when pts has changed.
        By default each epoch commits what it gives.

    Raises
    ------
    InvalidPipeline
        If the graph is wrong; names the node and the line that built it.

    Examples
    --------
    ::

        flights = hf.read.files("data/flights", schema="origin STRING, dep_delay INT", name="flights")
        pipeline = hf.Pipeline("trips", flights | hf.write.sqlite("trips.db", table="flights", name="flights_table"))
        pipeline.run(checkpoint="ckpt/trips", trigger=hf.available_now())
    """

    name: str
    sinks: tuple[SinkNode, ...]
    nodes: tuple[Node, ...]
    unused: tuple[Stream, ...]
    origin: Origin
    hooks: Hooks
    commit_at: CommitAtPts | None

    def __init__(
        self,
        name: str,
        *sinks: SinkNode,
        unused: Iterable[Stream] = (),
        hooks: Hooks = NONE,
        commit_at: Literal["pts"] | CommitAtPts | None = None,
    ) -> None:
        built_at = naming.origin()
        listed = tuple(unused)
        checks.check_arguments(name, sinks, built_at, stream_type=Stream, sink_type=SinkNode)
        checks.check_hooks(name, hooks, built_at, hooks_type=Hooks)
        nodes = _nodes_of(sinks)
        checks.check_graph(name, nodes, sinks)
        boundary = commit_at_of(commit_at, name)
        forgotten.adopt(sinks)
        if boundary is not None:
            checks.check_boundary(sinks, name)
            # The second seam, found by name like the engine: what gates a graph knows operators and their bounds.
            gating = importlib.import_module("holdfast.plan.gating")
            sinks = gating.gated(name, nodes, sinks, boundary, built_at)
            nodes = _nodes_of(sinks)
            checks.check_graph(name, nodes, sinks)
        for attribute, value in {
            "name": name,
            "sinks": tuple(sinks),
            "nodes": nodes,
            "unused": listed,
            "origin": built_at,
            "hooks": hooks,
            "commit_at": boundary,
        }.items():
            object.__setattr__(self, attribute, value)
        forgotten.adopt((*nodes, *sinks))

    def with_sinks(self, sinks: Sequence[SinkNode]) -> Pipeline:
        """Return the part of this graph that some sinks need, with others in their places; without hooks.

        Parameters
        ----------
        sinks : sequence of SinkNode
            Attached to streams of this graph.
        """
        other = object.__new__(Pipeline)
        changed = {
            "sinks": tuple(sinks),
            "nodes": _nodes_of(sinks),
            "hooks": NONE,
            "unused": (),
        }
        for attribute, value in {**self.__dict__, **changed}.items():
            object.__setattr__(other, attribute, value)
        return other

    @property
    def sources(self) -> tuple[Node, ...]:
        """The source nodes, in the order of :attr:`nodes`."""
        return tuple(node for node in self.nodes if node.is_source)

    def start(self, *, checkpoint: str, trigger: Trigger | None = None, **options: Any) -> Run:
        """Start the pipeline and return its run.

        Parameters
        ----------
        checkpoint : str
            Directory or URL that belongs to this pipeline alone.
        trigger : Trigger, optional
            ``hf.every("100 ms")`` (the default) or ``hf.available_now()``.
        **options
            Options of the engine, see :func:`holdfast.spark.resume.start.start`.

        Raises
        ------
        InvalidPipeline
            If a stream of this pipeline leads to no sink, or the checkpoint belongs to another pipeline.
        """
        forgotten.check(self)
        # The one seam between the graph and the engine: the graph must be importable, checkable and drawable where
        # there is neither Java nor pyspark, and imports point down the ladder only, so the engine is looked up by name.
        importlib.import_module("holdfast.spark.launch.early").begin(self, options)
        engine = importlib.import_module("holdfast.spark.resume.start")
        run: Run = engine.start(self, checkpoint=checkpoint, trigger=trigger or every("100 ms"), **options)
        return run

    def run(self, *, checkpoint: str, trigger: Trigger | None = None, **options: Any) -> Run:
        """Start the pipeline, wait for its end, and return its run.  Takes what :meth:`start` takes."""
        run = self.start(checkpoint=checkpoint, trigger=trigger, **options)
        run.wait()
        return run

    def explain(self, *, session: SparkSession | None = None) -> str:
        """Return the pipeline in words: every node, its guarantee, what is shared, what to mind.

        Parameters
        ----------
        session : SparkSession, optional
            Asked about what Spark's plan evaluates (``map``, ``sql``); without one the text says what is left to it.

        Raises
        ------
        InvalidPipeline
            What a start would raise about the graph, as far as it can be known: by the same functions.
        """
        unchecked = importlib.import_module("holdfast.plan.cutting").left_to_spark(self)
        if unchecked and session is not None:
            importlib.import_module("holdfast.spark.physical_plan").check_compiled(self, session)
            unchecked = ()
        return explain.explain(self, unchecked)

    def diagram(self) -> str:
        """Return the pipeline as a drawing: the text of a Mermaid flowchart."""
        return drawing.diagram(self)

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


def _nodes_of(sinks: Sequence[SinkNode]) -> tuple[Node, ...]:
    """Return all nodes that the sinks need, inputs before their consumers, in the order of the sinks."""
    return in_order([node for sink in sinks for node in sink.inputs])
