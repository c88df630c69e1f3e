"""Streams that were built with a pipeline and lead to no sink: almost always a forgotten line.

A Python object does not know who uses it.  So each node is noted, weakly, when it is built; when a pipeline starts,
by when a script has built all its pipelines, the live nodes that are attached to its own are examined.  The rule:

    A stream or sink that was built from a stream of this pipeline, by a function (or a script's top level) that
    built part of this pipeline, is an error when it belongs to no pipeline and nothing attached to it does.

It must not raise false alarms, so these are accepted: whatever Python has freed; what another thread or another
function built; what was typed at a prompt, where ``_`` keeps the last value; what a line built that has also built a
node of the same name for some pipeline (a function called again); and what ``Pipeline(..., unused=[stream])`` lists.
"""

from __future__ import annotations

import gc

from holdfast.errors import InvalidPipeline
from holdfast.graph.built import by_this_thread
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode


def find(pipeline: Graph) -> list[Node | SinkNode]:
    """Return the forgotten ends of streams of a pipeline, in the order of the code."""
    if not _candidates(pipeline):
        return []
    gc.collect()  # a node in a cycle of dead objects (a traceback that was kept and dropped) is unreferenced
    return sorted(_candidates(pipeline), key=lambda node: (node.origin.file, node.origin.line, node.name))


def check(pipeline: Graph) -> None:
    """Check that a pipeline about to start has no forgotten streams.

    Raises
    ------
    InvalidPipeline
        Naming the stream or sink and the line that built it.
    """
    for node in find(pipeline):
        raise describe(node, pipeline)


def describe(node: Node | SinkNode, pipeline: Graph) -> InvalidPipeline:
    """Return the error for a forgotten stream or sink."""
    if isinstance(node, SinkNode):
        return InvalidPipeline(
            f"sink {node.name!r}, built at {node.origin}, was given to no pipeline.",
            why=f"its stream is of pipeline {pipeline.name!r}, built at {pipeline.origin}, and is not among its sinks.",
            do=f"write hf.Pipeline({pipeline.name!r}, ..., sink); when it belongs to another pipeline, build that one "
            "before the first is started.",
            pipeline=pipeline.name,
            participant=node.name,
        )
    return InvalidPipeline(
        f"{node.kind} {node.name!r}, built at {node.origin}, leads to no sink.",
        why=f"it is attached to a stream of pipeline {pipeline.name!r}, built at {pipeline.origin}; its rows go "
        "nowhere.",
        do="give it a sink (stream | hf.write....), remove the line, or list the stream: "
        f"hf.Pipeline({pipeline.name!r}, ..., unused=[stream]).  When it belongs to another pipeline, build that one "
        "before the first is started.",
        pipeline=pipeline.name,
        participant=node.name,
    )


def _candidates(pipeline: Graph) -> list[Node | SinkNode]:
    mine, adopted = by_this_thread()
    own = set(pipeline.nodes)
    origins = [pipeline.origin, *(node.origin for node in pipeline.nodes), *(sink.origin for sink in pipeline.sinks)]
    scopes = {(origin.file, origin.scope) for origin in origins}
    known = {(node.origin, node.name) for node in adopted}
    listed = {stream.node for stream in pipeline.unused}
    outside = [node for node in mine if node not in adopted and own & _before(node)]
    inner = {before for node in outside for before in node.inputs}
    return [
        node
        for node in outside
        if node not in inner
        and node not in listed
        and (node.origin.file, node.origin.scope) in scopes
        and (node.origin, node.name) not in known
        and not node.origin.file.startswith("<")
    ]


def _before(node: Node | SinkNode) -> set[Node | SinkNode]:
    found: set[Node | SinkNode] = set()
    waiting: list[Node | SinkNode] = [*node.inputs]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting.extend(current.inputs)
    return found
