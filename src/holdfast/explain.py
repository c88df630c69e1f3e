"""The pipeline in words: every node, what it promises, what is shared, and warnings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.capabilities import offers, optional
from holdfast.graph import checks
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import MayReject, Node, OperatorSpec, SinkNode, is_stateful
from holdfast.graph.row_ids import Identifying
from holdfast.graph.shape import Shape
from holdfast.plan.cutting import in_arrow_behind_state
from holdfast.plan.feeds import BoundsEnding
from holdfast.plan.warnings import waits_to_mind
from holdfast.ports import Guarantee
from holdfast.types.units import duration_text

_TEXT_LENGTH_MAX = 100


def explain(pipeline: Graph, unchecked: Sequence[Node] = ()) -> str:
    """Return the pipeline in words.

    Parameters
    ----------
    pipeline : Graph
        A checked graph.
    unchecked : sequence of Node
        What Spark's plan evaluates, where it has not been asked.

    Returns
    -------
    str
        Lines without secrets; the same text for the same program.
    """
    return "\n".join((*_lines(pipeline), *_unchecked_lines(unchecked))) + "\n"


@optional(OperatorSpec)
class Stated(Protocol):
    """What an operator's declaration may be: a statement, which by its text and its types is Arrow's or Spark's."""

    @property
    def query(self) -> str:
        """The statement."""


_IN_SPARK = "evaluated by Spark's plan, behind state: its rows are copied into the JVM and back"
_IN_ARROW = "evaluated in Arrow, behind state: its rows stay in the worker that holds the state"
_UNDECIDED = (
    "whether Arrow or Spark's plan evaluates it, behind state, is decided at the start, by types that Spark knows; "
    "the log says it"
)


def ways_behind_state(pipeline: Graph) -> dict[str, str]:
    """Return for operators behind state how they are evaluated, where that is worth a line.

    Returns
    -------
    dict of str to str
        Operator -> the line: for what Spark's plan evaluates, and for every statement.
    """
    behind = [node for node in pipeline.nodes if not is_stateful(node) and _is_behind_state(node)]
    if not behind:
        return {}
    in_arrow = in_arrow_behind_state(pipeline)
    said = {True: _IN_ARROW, False: _IN_SPARK, None: _UNDECIDED}
    ways = {node: in_arrow.get(node.name) for node in behind}
    return {node.name: said[way] for node, way in ways.items() if way is False or offers(node.spec, Stated)}


def _is_behind_state(node: Node) -> bool:
    waiting = list(node.inputs)
    while waiting:
        before = waiting.pop()
        if is_stateful(before):
            return True
        waiting += before.inputs
    return False


@optional(OperatorSpec)
class BoundsDeciding(Protocol):
    """What an operator's declaration may say: that only Spark's plan shows what happens to the timestamp."""

    def bounds_decided(self, inputs: Sequence[Shape]) -> bool:
        """Tell whether it is known before the start."""


def bounds_line(node: Node) -> str | None:
    """Return a line about bounds that do not pass an operator, or may not; None where there is nothing to say."""
    shapes = [before.shape for before in node.inputs]
    if all(shape.timestamp is None for shape in shapes):
        return None
    if offers(node.spec, BoundsDeciding) and not node.spec.bounds_decided(shapes):
        return "whether bounds hold downstream of it is decided at the start, by Spark's plan of it"
    why = node.spec.bounds_end(shapes) if offers(node.spec, BoundsEnding) else None
    return None if why is None else f"bounds end here, but for the end itself: {why}"


def sinks_behind(pipeline: Graph) -> dict[Node, tuple[str, ...]]:
    """Return, for each node, the names of the sinks that its rows reach, in the pipeline's order."""
    reached: dict[Node, list[str]] = {node: [] for node in pipeline.nodes}
    for sink in pipeline.sinks:
        waiting = list(sink.inputs)
        while waiting:
            node = waiting.pop()
            if sink.name not in reached[node]:
                reached[node].append(sink.name)
                waiting.extend(node.inputs)
    return {node: tuple(names) for node, names in reached.items()}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as users write them, long ones shortened; empty and missing ones are omitted.

    Examples
    --------
    >>> arguments_text({"path": "out", "key": [], "delete": None, "limit": 20})
    'path="out", limit=20'
    """
    return ", ".join(
        f"{name}={_cut(json.dumps(value, ensure_ascii=False))}"
        for name, value in arguments.items()
        if value not in (None, [], {}, "")
    )


def warnings(pipeline: Graph) -> list[str]:
    """Return what to mind about a pipeline, each in a sentence or two."""
    return list(_warnings(pipeline))


def derived_names(pipeline: Graph) -> list[str]:
    """Return warnings about derived names: the identity of state, of ledgers and of positions."""
    return list(_derived(pipeline))


def _lines(pipeline: Graph) -> Iterator[str]:
    operators = [node for node in pipeline.nodes if not node.is_source]
    reached = sinks_behind(pipeline)
    feeding = _before_state(pipeline)
    ways = ways_behind_state(pipeline)
    followed = {before for node in pipeline.nodes for before in node.inputs}
    yield f"pipeline {pipeline.name!r}, built at {pipeline.origin}, fingerprint {pipeline.fingerprint()}"
    yield f"  guarantee: {_whole_guarantee(pipeline)}"
    if pipeline.commit_at is not None:
        yield "  commits at pts: each sink holds exactly what lies before it, of every input; later rows wait"
    if pipeline.shard_by is not None:
        yield f"  rows of one {pipeline.shard_by!r} are in one segment: others are rejected, or end the run"
    for title, nodes in (("sources", pipeline.sources), ("operators", operators)):
        if nodes:
            yield ""
            yield title
        for node in nodes:
            is_followed = node in followed
            yield from _node_lines(
                node, reached[node], ways.get(node.name), feeds_state=node in feeding, is_followed=is_followed
            )
    yield ""
    yield "sinks"
    for sink in pipeline.sinks:
        yield from _sink_lines(sink)
    minded = warnings(pipeline)
    if minded:
        yield ""
        yield "mind"
        yield from (f"  - {warning}" for warning in minded)


def _whole_guarantee(pipeline: Graph) -> str:
    weak = [node.name for node in pipeline.nodes if node.guarantee is Guarantee.AT_LEAST_ONCE]
    weak += [sink.name for sink in pipeline.sinks if sink.guarantee is Guarantee.AT_LEAST_ONCE]
    if not weak:
        return "exactly-once in every sink"
    return f"exactly-once, except at-least-once where {_list(weak)} takes part"


def _node_lines(
    node: Node, sinks: tuple[str, ...], way: str | None, *, feeds_state: bool, is_followed: bool
) -> Iterator[str]:
    yield _head(node)
    if text := arguments_text(node.arguments()):
        yield f"      {text}"
    if node.inputs:
        yield f"      takes {_list(before.name for before in node.inputs)}"
    columns = "not known before the run" if node.columns is None else ", ".join(node.columns)
    yield f"      columns {columns}" + (f"; timestamp {node.timestamp}" if node.timestamp else "")
    ids = node.shape.ids
    if ids is not None and all(before.shape.ids != ids for before in node.inputs):
        yield f"      row ids in {ids.column}, made of {ids.made_of}"
    if is_stateful(node):
        yield "      keeps state under its name"
        yield from _poison_lines(node, is_followed=is_followed)
    if way is not None:
        yield f"      {way}"
    if feeds_state and (line := bounds_line(node)) is not None:
        yield f"      {line}"
    if len(sinks) > 1:
        yield f"      shared by the sinks {_list(sinks)}: computed once for all of them"


def _poison_lines(node: Node, *, is_followed: bool) -> Iterator[str]:
    """Yield what becomes of rows behind state, and of timers, that fail whenever they are evaluated."""
    if is_followed:
        yield '      a row of it that operators downstream refuse is left out there (on_poison="isolate"), not replayed'
    if node.arguments().get("timers"):
        yield "      a timer whose call fails stops the run each time: no row can be left out for it"


def _unchecked_lines(nodes: Sequence[Node]) -> Iterator[str]:
    if nodes:
        yield ""
        yield "not checked"
        yield (
            f"  - Spark's plan evaluates {_list(node.name for node in nodes)}. Whether it can, and everything that "
            "follows from the types there, is checked at the start, or now: holdfast explain --spark."
        )


def _before_state(pipeline: Graph) -> set[Node]:
    """Return the nodes upstream of operators with state, which use their bounds."""
    found: set[Node] = set()
    for node in reversed(pipeline.nodes):  # inputs come first
        if is_stateful(node) or node in found:
            found.update(node.inputs)
    return found


def _sink_lines(sink: SinkNode) -> Iterator[str]:
    yield _head(sink)
    if text := arguments_text(sink.arguments()):
        yield f"      {text}"
    yield f"      takes {_list(before.name for before in sink.inputs)}"
    if sink.freshness_us is not None:
        yield f"      is unhealthy while it lacks a row that is older than {duration_text(sink.freshness_us)}"
    if sink.pace is not None:
        yield f"      commits every {sink.pace}: epochs that only it lacks are decided, and wait in the checkpoint"
        if sink.pace.key:
            yield "      of what waits, the last row of each key is written"
    if (column := _id_column(sink)) is not None:
        yield f"      rows are identified by {column}"


def _id_column(sink: SinkNode) -> str | None:
    return sink.spec.id_column if offers(sink.spec, Identifying) else None


def _head(node: Node | SinkNode) -> str:
    derived = "" if node.is_named else " (derived name)"
    return f"  {node.name}{derived}: {node.kind}, {node.guarantee.value}, built at {node.origin}"


def _warnings(pipeline: Graph) -> Iterator[str]:
    yield from _derived(pipeline)
    yield from waits_to_mind(pipeline)
    for source in pipeline.sources:
        if source.source_spec.rejects and not _is_rejects_written(pipeline, source):
            yield (
                f"source {source.name!r} ({source.origin}) counts malformed rows and writes them nowhere. "
                f"Give {source.name}.rejects a sink to keep them."
            )
        if source.guarantee is Guarantee.AT_LEAST_ONCE:
            yield f"source {source.name!r} ({source.origin}) is at-least-once: after a crash rows can occur twice."
    for each in pipeline.nodes:
        rejects = offers(each.spec, MayReject) and each.spec.failing() is not None
        if rejects and each.side_outputs.get("rejects") not in pipeline.nodes:
            yield (
                f"{each.kind} {each.name!r} ({each.origin}) writes the rows that it rejects nowhere. "
                f"Give {each.name}.rejects a sink to keep them."
            )
    for sink in pipeline.sinks:
        if sink.guarantee is Guarantee.AT_LEAST_ONCE:
            column = _id_column(sink)
            told = f", with the same {column} each time: exactly-once in effect where one id is taken once"
            told = "" if column is None else told
            yield f"sink {sink.name!r} ({sink.origin}) is at-least-once: after a crash it can receive rows twice{told}."
    for node in checks.find(pipeline):
        yield checks.describe(node, pipeline).what + " The pipeline will not start."


def _derived(pipeline: Graph) -> Iterator[str]:
    for source in pipeline.sources:
        if not source.is_named:
            yield (
                f"source {source.name!r} ({source.origin}) has no name of its own: another path gives it another, and "
                'then it starts from its beginning. Write name="...".'
            )
    for operator in pipeline.nodes:
        if is_stateful(operator) and not operator.is_named:
            yield (
                f"{operator.kind} {operator.name!r} ({operator.origin}) keeps state and has no name of its own: "
                'other arguments give it another, and then it has no state. Write name="...".'
            )
    for sink in pipeline.sinks:
        if not sink.is_named:
            yield (
                f"sink {sink.name!r} ({sink.origin}) has no name of its own: its ledger is kept under the derived "
                'one, which changes with its target. Write name="...".'
            )


def _is_rejects_written(pipeline: Graph, source: Node) -> bool:
    return any(node.kind == "rejects" and source in node.inputs for node in pipeline.nodes)


def _list(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH_MAX else text[: _TEXT_LENGTH_MAX - 3] + "..."
