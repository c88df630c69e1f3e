"""Checks of a whole graph before anything runs; each error names the node and the line that built it.

Streams that were built with a pipeline and lead to no sink: almost always a forgotten line.

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
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.capabilities import offers
from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.building import Ordered, by_this_thread, called, upwards
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import Hooks
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, SinkNode, Stream
from holdfast.graph.row_ids import EARLY, EarlySpec
from holdfast.ports import OverlappingSpec, StatefulSpec
from holdfast.store import encodings

logger = logging.getLogger("holdfast.graph")


def check_arguments(name: Any, sinks: Sequence[Any], built_at: Origin) -> None:
    """Check what was given to ``Pipeline``: a name, and at least one sink, each attached."""
    right = 'hf.Pipeline("trips", stream | hf.write.files("out"))'
    if not isinstance(name, str):
        raise InvalidPipeline(
            f"the pipeline built at {built_at} has no name.",
            why=f"a {type(name).__name__} comes first.",
            do=f"give the name first, then the sinks: {right}",
        )
    naming.checked_name(name, of="pipeline", built_at=built_at)
    if not sinks:
        raise InvalidPipeline(
            f"pipeline {name!r}, built at {built_at}, has no sink.",
            why="a pipeline without a sink has no effect.",
            do=f"give it at least one: {right}",
            pipeline=name,
        )
    for place, given in enumerate(sinks, start=1):
        if isinstance(given, Stream):
            raise InvalidPipeline(
                f"argument {place} of pipeline {name!r}, built at {built_at}, is not a sink but the stream "
                f"{given.name!r}, built at {given.origin}.",
                why="a pipeline is given its sinks; the streams follow from them.",
                do=f"end the stream with a sink: {right}; wrong: hf.Pipeline({name!r}, stream)",
                pipeline=name,
                participant=given.name,
            )
        if not isinstance(given, SinkNode):
            raise InvalidPipeline(
                f"argument {place} of pipeline {name!r}, built at {built_at}, is not a sink but {called(given)}.",
                why="a pipeline is given its sinks; the streams follow from them."
                + (" Several sinks are several arguments." if isinstance(given, list | tuple | set) else ""),
                do=f"write {right}"
                if not isinstance(given, list | tuple | set)
                else f"write hf.Pipeline({name!r}, *sinks)",
                pipeline=name,
            )
        if given.stream is None:
            raise InvalidPipeline(
                f"sink {given.name!r}, built at {given.origin}, takes no stream.",
                why="it was given to the pipeline without a stream.",
                do=f"write stream | hf.write....; right: {right}",
                pipeline=name,
                participant=given.name,
            )


def check_hooks(name: str, hooks: Any, built_at: Origin) -> None:
    """Check that ``hooks=`` of ``Pipeline`` is valid: it is used only when a run begins."""
    if not isinstance(hooks, Hooks):
        raise InvalidPipeline(
            f"hooks= of pipeline {name!r}, built at {built_at}, is {called(hooks)}.",
            why="hooks are functions, each under the name of the moment at which it is called.",
            do=f"write hf.Pipeline({name!r}, ..., hooks=hf.Hooks(on_start=function)).",
            pipeline=name,
        )


def check_shards(name: str, shards: Any, built_at: Origin) -> None:
    """Check that ``shards=`` of ``Pipeline`` is valid: it is used only when the pipeline runs in shards."""
    if shards not in (None, "independent"):
        raise InvalidPipeline(
            f"shards={shards!r} of pipeline {name!r}, built at {built_at}.",
            why="of a graph it says that each shard gives a result of its own; how many there are is said at a start.",
            do=f'write hf.Pipeline({name!r}, ..., shards="independent"), or start it with shards=4.',
            pipeline=name,
        )


def check_graph(pipeline: str, nodes: Sequence[Node], sinks: Sequence[SinkNode]) -> None:
    """Check the graph as a whole: no target is written twice, no name is used twice, now or as a former one."""
    _check_targets(pipeline, sinks)
    _check_names(pipeline, nodes, sinks)
    _check_pasts(pipeline, nodes, sinks)
    _check_early(pipeline, sinks)
    _check_paths((*(node for node in nodes if node.is_source), *sinks))
    _warn_of_varying(pipeline, nodes)


def _check_paths(ends: Iterable[Node | SinkNode]) -> None:
    """Raise :class:`InvalidPipeline` if this process cannot name the files that a source or a sink is about."""
    for node in ends:
        for path in naming.local_paths(node.spec.arguments()):
            encodings.check_path(f"{node.name!r}, built at {node.origin},", path)


def _warn_of_varying(pipeline: str, nodes: Sequence[Node]) -> None:
    """Log where state is built of values that need not be the same when an epoch is evaluated again."""
    reaching: dict[Node, tuple[Node, str]] = {}
    for node in nodes:
        found = next((reaching[before] for before in node.inputs if before in reaching), None)
        if found is not None and offers(node.spec, StatefulSpec):
            logger.warning(
                "pipeline %r: %s() of %s %r varies, and %s %r keeps state of it: where its journal is lost, a replay "
                "computes other values than sinks hold.  Use it downstream of the last operator with state.",
                pipeline, found[1], found[0].kind, found[0].name, node.kind, node.name,
            )  # fmt: skip
        if found is None and (function := _varying(node)) is not None:
            found = (node, function)
        if found is not None:
            reaching[node] = found


def _varying(node: Node) -> str | None:
    """Return the function in a node's expressions that gives another value each time; None where there is none."""
    if node.kind not in ("select", "filter", "sql"):
        return None
    texts = list(_texts(node.arguments()))
    if not any("(" in text for text in texts):
        return None
    from holdfast.expressions import text as expressions  # workers load this module, and parse no expressions

    return next((function for text in texts if (function := expressions.varying(text)) is not None), None)


_SAME_AGAIN = frozenset(
    {
        *("files", "rows", "rate", "callback", "camera", "byte_stream"),
        *("filter", "select", "split", "clip", "union", "row_id", "distinct", "merge", "join", "accumulate"),
        *("aggregate", "lookup_as_of", "expect", "unmet", "over", "join_changes", "change_order"),
    }
)
"""Kinds of sources and operators that give the same rows when an epoch is evaluated again: none calls a function of the
user's, and none is Spark's own source."""


def _check_early(pipeline: str, sinks: Sequence[SinkNode]) -> None:
    """Raise :class:`InvalidPipeline` if a sink is to have rows early that might not be there when it is replayed."""
    for sink in sinks:
        if not offers(sink.spec, EarlySpec) or sink.spec.send != EARLY:
            continue
        for node in upwards(sink.stream.node) if sink.stream is not None else ():
            if (why := _not_again(node)) is not None:
                raise InvalidPipeline(
                    f'sink {sink.name!r}, built at {sink.origin}, has send="early", and {node.kind} {node.name!r} need '
                    "not give it the same rows again.",
                    why=f"{why}; a row that was sent early, and is not there when the epoch is evaluated again, would "
                    "stay in the target.",
                    do="leave send= out: then rows are sent when their epoch is decided.",
                    pipeline=pipeline,
                    participant=sink.name,
                )


def _not_again(node: Node) -> str | None:
    """Say why a node need not give the same rows when an epoch is evaluated again; None where it does."""
    if node.kind not in _SAME_AGAIN:
        return f"{node.kind} computes what Holdfast cannot see"
    if node.watches_clock:
        return "it decides by the time of the batch, and another batch is planned where Spark's log is lost"
    from holdfast.expressions import text as expressions  # workers load this module, and parse no expressions

    for text in _texts(node.arguments()):
        if (function := expressions.varying(text)) is not None:
            return f"{function}() varies"
        if (function := expressions.clocked(text)) is not None:
            return f"{function}() is the time of the batch, and another batch is planned where Spark's log is lost"
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _check_overlaps(pipeline: str, sink: SinkNode, others: Sequence[SinkNode]) -> None:
    for one, other in (pair for each in others for pair in ((sink, each), (each, sink))):
        why = one.spec.overlap(other.spec) if offers(one.spec, OverlappingSpec) else ""
        if why:
            raise InvalidPipeline(
                f"rows of sink {one.name!r}, built at {one.origin}, may go where sink {other.name!r}, built at "
                f"{other.origin}, has its own.",
                why=f"{why}.",
                do="give one of them another target.",
                pipeline=pipeline,
                participant=one.name,
            )


def _check_targets(pipeline: str, sinks: Sequence[SinkNode]) -> None:
    seen: dict[str, SinkNode] = {}
    for place, sink in enumerate(sinks):
        if sink in sinks[:place]:
            raise InvalidPipeline(
                f"sink {sink.name!r}, built at {sink.origin}, is given twice.",
                why="each of its rows would occur twice.",
                do="give it once.",
                pipeline=pipeline,
                participant=sink.name,
            )
        target = naming.where(sink.arguments())
        if not target:
            continue
        _check_overlaps(pipeline, sink, sinks[:place])
        other = seen.setdefault(naming.canonical_json([sink.kind, _absolute(target)]), sink)
        if other is not sink:
            raise InvalidPipeline(
                f"sinks {other.name!r}, built at {other.origin}, and {sink.name!r}, built at {sink.origin}, write to "
                "the same target.",
                why=f"both are {sink.kind} with {', '.join(f'{k}={v!r}' for k, v in target.items())}.",
                do="unite the streams first, hf.union(left, right) | hf.write....; or give them two targets.",
                pipeline=pipeline,
                participant=sink.name,
            )


def _absolute(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return a target with one spelling for each local path."""
    return {
        name: os.path.abspath(value) if name == "path" and "://" not in str(value) else value
        for name, value in target.items()
    }


def _check_names(pipeline: str, nodes: Sequence[Node], sinks: Sequence[SinkNode]) -> None:
    everything: tuple[Node | SinkNode, ...] = (*nodes, *sinks)
    seen: dict[str, Node | SinkNode] = {}
    for node in everything:
        # Without regard to case: names become files and tables, and not every system distinguishes `a` and `A`.
        other = seen.setdefault(node.name.lower(), node)
        if other is node:
            continue
        if not node.inputs and node.origin == other.origin:
            why = "one of them is the source with row ids, the other one without: a source is read once."
            do = "use the stream behind hf.row_id() everywhere: flights = hf.read.files(...) | hf.row_id()."
        elif node.is_named or other.is_named:
            why = "a name is the identity of a node in the checkpoint and in the sinks' ledgers."
            do = "give one of them another name."
        else:
            why = "neither was given a name, and their kind, arguments and place are the same."
            do = 'use one of them for both purposes, or give one a name: name="..."'
        raise InvalidPipeline(
            f"two nodes of pipeline {pipeline!r} have the name {node.name!r}: {other.kind}, built at {other.origin}, "
            f"and {node.kind}, built at {node.origin}.",
            why=why,
            do=do,
            pipeline=pipeline,
            participant=node.name,
        )


def _check_pasts(pipeline: str, nodes: Sequence[Node], sinks: Sequence[SinkNode]) -> None:
    """Check that every ``renamed_from=`` names what is no longer in the graph, and no two the same."""
    everything: tuple[Node | SinkNode, ...] = (*nodes, *sinks)
    here = {node.name: node for node in everything}
    seen: dict[str, Node] = {}
    for node in nodes:
        old = node.past.renamed_from
        if not old:
            continue
        if old in here:
            raise InvalidPipeline(
                f"{node.kind} {node.name!r}, built at {node.origin}, says renamed_from={old!r}, and the graph has a "
                f"node of that name, built at {here[old].origin}.",
                why="what is in the graph keeps its state under its own name.",
                do="remove renamed_from=, or give the other node another name.",
                pipeline=pipeline,
                participant=node.name,
            )
        other = seen.setdefault(old, node)
        if other is not node:
            raise InvalidPipeline(
                f"{other.name!r}, built at {other.origin}, and {node.name!r}, built at {node.origin}, both say "
                f"renamed_from={old!r}.",
                why="one state cannot go to two operators.",
                do="say it of one of them; the other begins without state.",
                pipeline=pipeline,
                participant=node.name,
            )


def check_boundary(sinks: tuple[SinkNode, ...], pipeline: str) -> None:
    """Raise :class:`InvalidPipeline` if rows of a sink with commands would wait for their time."""
    for sink in sinks:
        if offers(sink.spec, Ordered) and sink.spec.control is not None:
            raise InvalidPipeline(
                f"sink {sink.name!r} of pipeline {pipeline!r}, built at {sink.origin}, has control="
                f"{sink.spec.control.control!r}, and the pipeline commits at pts.",
                why="rows then wait for their time: a command would overtake those before it.",
                do="leave commit_at out, or write the stream with commands in a pipeline of its own.",
                pipeline=pipeline,
                participant=sink.name,
            )


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
