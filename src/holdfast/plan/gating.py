"""``commit_at="pts"``: the graph with a gate before its sinks (design/0015); and with changes in order before tables.

The setting becomes part of the graph here, so that everything else (state, snapshots, graph change, explain,
simulation) sees one more operator and needs to know nothing about commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.changes import is_table
from holdfast.graph.commit_at import CommitAtPts
from holdfast.graph.event_time import common_unit
from holdfast.graph.evolution import Evolution
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, SinkNode, Stream, is_stateful
from holdfast.graph.side_outputs import SideOutput
from holdfast.operators.join.change_order import ChangeOrder
from holdfast.operators.stateful.gate import NAME, ClockArguments, ClockSpec, Gate, Released
from holdfast.operators.stateful.gate_step import output_for
from holdfast.plan.feeds import Analysis, bounds_ended, feeds_downstream, feeds_of, reports_progress
from holdfast.plan.stages import CLOSED_ONLY


def in_order(sink: SinkNode) -> SinkNode:
    """Return a sink that takes changes in order, where it is a table and those of its stream are not (design/0065)."""
    (before,) = sink.inputs
    changes = before.shape.changes
    if changes is None or changes.key is None or not changes.is_scattered or not is_table(sink.kind):
        return sink
    spec = ChangeOrder(changes.key, changes.column)
    shape = replace(before.shape, changes=spec.changes([before.shape]))
    name = naming.extended(sink.name, "order")
    return replace(sink, stream=Stream(Node(spec, (before,), name, sink.is_named, sink.origin, shape)))


def gated(
    pipeline: str, nodes: Sequence[Node], sinks: Sequence[SinkNode], commit_at: CommitAtPts, built_at: Origin
) -> tuple[SinkNode, ...]:
    """Return the sinks of a pipeline, downstream of its gate.

    Parameters
    ----------
    pipeline : str
        Its name.
    nodes : sequence of Node
        Its graph, inputs first.
    sinks : sequence of SinkNode
        As the user built them.
    commit_at : CommitAtPts
        The setting.
    built_at : Origin
        The pipeline's line.

    Raises
    ------
    InvalidPipeline
        If pts is not known: a source, or the rows of a sink, have no timestamp, or an operator cannot know
        the progress of its sources.
    """
    sources = [node for node in nodes if node.is_source]
    _check_sources(pipeline, sources, commit_at)
    clocks: dict[str, ClockArguments] = {}
    clock_nodes: list[Node] = []
    offsets = _offsets(sinks)
    for node in nodes:
        by_rows = node.is_source and not isinstance(node.spec, MarkedSpec)
        if reports_progress(node):
            _check_progress_arrives(pipeline, node)
        elif not node.is_source:
            continue
        disorder = _disorder(commit_at, node.name) if by_rows else 0  # others report their progress themselves
        clocks[node.name] = ClockArguments(str(node.timestamp), disorder, by_rows, offsets.get(node.name, 0))
        clock_nodes.append(_clock(node, clocks[node.name], built_at))
    times = {sink.name: _time_of(pipeline, sink) for sink in sinks}
    spec = Gate(times, clocks, commit_at.max_waiting_rows)
    # The rows that wait for a sink go with it when it is removed: no migration is needed.
    past = Evolution(migrate={})
    before = tuple(sink.inputs[0] for sink in sinks)
    gate = Node(spec, (*before, *clock_nodes), NAME, True, built_at, spec.shape([]), past)
    return tuple(_behind(gate, sink) for sink in sinks)


def check_gated(pipeline: str, nodes: Sequence[Node], analysis: Analysis) -> None:
    """Check a graph with a gate once Spark's plan shows what happens to timestamps in its part.

    Parameters
    ----------
    pipeline : str
        Its name.
    nodes : sequence of Node
        Its graph, inputs first.
    analysis : mapping of str to Unchanged, optional
        From Spark's plan.

    Raises
    ------
    InvalidPipeline
        If pts is not known: rows of a sink have computed timestamps, or an operator cannot know the progress of
        a source.
    """
    gate = gate_of(nodes)
    if gate is None:
        return
    ended = bounds_ended(nodes, analysis)
    for node in nodes:
        if reports_progress(node):
            _check_progress_arrives(pipeline, node, analysis, ended)
    for name, before in zip(gate.stateful_spec.input_names, gate.inputs, strict=True):
        if at := next((each for each in _without_state(before) if each.name in ended), None):
            raise InvalidPipeline(
                f'commit_at="pts" of pipeline {pipeline!r}: it would be unknown whether a row of sink {name!r} is '
                "below pts.",
                why=f"{at.kind} {at.name!r}, upstream of it, built at {at.origin}: {ended[at.name]}.",
                do="pass the timestamp on as it is (or renamed, with map(timestamp=)), or write it as map_batches with "
                "timestamp_offset=; or leave commit_at out.",
                pipeline=pipeline,
                participant=at.name,
            )


def gate_of(nodes: Sequence[Node]) -> Node | None:
    """Return the gate of a graph; None where it commits at the end of each epoch."""
    return next((node for node in nodes if isinstance(node.spec, Gate)), None)


def _behind(gate: Node, sink: SinkNode) -> SinkNode:
    before = sink.inputs[0]
    spec = Released(output_for(sink.name), before.columns, before.timestamp)
    released = Node(spec, (gate,), naming.extended(sink.name, "rows"), True, sink.origin, spec.shape([]))
    return replace(sink, stream=Stream(released))


def _clock(node: Node, clock: ClockArguments, built_at: Origin) -> Node:
    spec = ClockSpec(clock.column, is_silent=not clock.by_rows)
    return Node(spec, (node,), naming.extended(node.name, "clock"), True, built_at, spec.shape([]))


def _offsets(sinks: Sequence[SinkNode]) -> dict[str, int]:
    """Return by how many ticks rows of sinks may be below the bounds of their sources and operators, where they may."""
    found: dict[str, int] = {}
    for sink in sinks:
        for feed in feeds_downstream(sink.inputs[0]):
            if feed.offset < 0:
                found[feed.source] = max(-feed.offset, found.get(feed.source, 0))
    return found


def _disorder(commit_at: CommitAtPts, source: str) -> str | int:
    return commit_at.disorder.get(source, 0) if isinstance(commit_at.disorder, Mapping) else commit_at.disorder


def _check_sources(pipeline: str, sources: Sequence[Node], commit_at: CommitAtPts) -> None:
    untimed = [source for source in sources if source.timestamp is None]
    if untimed:
        raise InvalidPipeline(
            f'commit_at="pts" of pipeline {pipeline!r} needs timestamps, and source {untimed[0].name!r}, built at '
            f"{untimed[0].origin}, declares none.",
            why="pts is the minimum over all inputs of the next timestamp that may still come.",
            do=f'declare timestamp="<column>" on {", ".join(repr(each.name) for each in untimed)}, '
            "or leave commit_at out.",
            pipeline=pipeline,
            participant=untimed[0].name,
        )
    if common_unit(sources) is None:
        raise InvalidPipeline(
            f'commit_at="pts" of pipeline {pipeline!r}: some sources have BIGINT timestamps, others TIMESTAMPs.',
            why="pts is the minimum over all inputs, and these have no unit in common.",
            do="declare all of them as TIMESTAMP, or all as BIGINT; or leave commit_at out.",
            pipeline=pipeline,
        )
    known = [source.name for source in sources]
    unknown = (
        [name for name in commit_at.disorder if name not in known] if isinstance(commit_at.disorder, Mapping) else []
    )
    if unknown:
        raise InvalidPipeline(
            f"disorder= names {unknown[0]!r}, which is no source of pipeline {pipeline!r}.",
            why=f"its sources are {', '.join(known)}.",
            do=f'name one of them: hf.pts(disorder={{"{known[0]}": "5 s"}}).',
            pipeline=pipeline,
        )


def _check_progress_arrives(
    pipeline: str, node: Node, analysis: Analysis = None, ended: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse an operator by event time that cannot know the progress of its sources: pts would never advance."""
    for ordinal, before in enumerate(node.inputs):
        for feed in feeds_of(node, ordinal, analysis):
            if feed.bounds == CLOSED_ONLY or (feed.is_operator and not _gets_progress_from(before, feed.source)):
                between = [each.name for each in _without_state(before) if each.name in ended]
                reasons = [f" {name!r}: {ended[name]}." for name in between]
                raise InvalidPipeline(
                    f'commit_at="pts" of pipeline {pipeline!r}: {node.kind} {node.name!r}, built at {node.origin}, '
                    f"cannot know the progress of {feed.source!r}.",
                    why="something between them may change timestamps (map_batches, a computed time column), is a "
                    "function of yours with state, or is a side output whose rows can have any timestamp (late); "
                    f"so rows below pts could follow.{''.join(reasons)}",
                    do=f"move it downstream of {node.name!r}, or write it as filter, select, split, clip or union, or "
                    "with timestamp_offset=; or leave commit_at out.",
                    pipeline=pipeline,
                    participant=node.name,
                )


def _gets_progress_from(before: Node, operator: str) -> bool:
    waiting = [before]
    while waiting:
        node = waiting.pop()
        if node.name == operator:
            return reports_progress(node)
        waiting += node.inputs
    return False


def _without_state(node: Node) -> list[Node]:
    """Return a node and those upstream of it, up to the operators with state."""
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += () if is_stateful(each) else each.inputs
    return found


def _time_of(pipeline: str, sink: SinkNode) -> str | None:
    """Return the timestamp column of a sink's rows; None of rows that keep no bounds: bad ones, late ones."""
    node = sink.inputs[0]
    first = node
    while first.inputs and first.kind in ("filter", "expect", "unmet", "select", "split", "answered", "unanswered"):
        first = first.inputs[0]
    if first.kind == "rejects" or (isinstance(first.spec, SideOutput) and not first.spec.rows.keeps_bounds):
        return None
    if node.timestamp is not None:
        return node.timestamp
    raise InvalidPipeline(
        f'commit_at="pts" of pipeline {pipeline!r}: the rows of sink {sink.name!r}, built at {sink.origin}, have no '
        "known timestamp column.",
        why=f"{node.kind} {node.name!r}, upstream of it, does not pass it on: it would be unknown whether a row is "
        "below pts.",
        do="keep the source's timestamp column: name it with map(timestamp=), write sql as select, or map_batches "
        "with that column in its schema; or leave commit_at out.",
        pipeline=pipeline,
        participant=sink.name,
    )
