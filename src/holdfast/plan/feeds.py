"""Where the rows of an operator's input come from, and which bounds of the origin still hold at the input.

What a function of a frame, or a statement, does to the timestamp is known from Spark's analysed plan alone, and that
exists only at the start (:class:`Unchanged`); of a statement that Arrow evaluates its program says the same.  While a
graph is built, bounds are assumed to pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.expressions.text import Item
from holdfast.graph.nodes import Node, OperatorSpec, is_stateful
from holdfast.graph.shape import Shape
from holdfast.operators.join.step import JoinStep
from holdfast.operators.lowering import BoundsDownstream, entry_of, lowering_of
from holdfast.operators.stateful.gate_step import GateStep
from holdfast.operators.stateful.merge_step import MergeStep
from holdfast.plan.bounds import Bounding, BoundTarget
from holdfast.plan.stages import ALL_KEYS_ONLY, CLOSED_ONLY, EVERY, Feed, Hosted, RowBounds
from holdfast.state.step import Step

_EVENT_TIME = frozenset(
    {
        *("sync", "merge", "join", "lookup_as_of", "accumulate", "distinct", "limit_in_flight", "aggregate", "flow"),
        "over",
    }
)
"""Stateful operators that report their progress."""

_OF_FUNCTIONS = frozenset({"apply", "stateful"})
"""Those that report it where ``timestamp_offset`` bounds the timestamps that a user's function returns."""

_BY_TIME = frozenset({"tumbling", "sliding", "session"})


@optional(OperatorSpec)
class BoundsEnding(Protocol):
    """What an operator's declaration may have: why bounds of its inputs, except the end, do not hold after it."""

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why, for people; None where they hold."""


@dataclass(frozen=True)
class Unchanged:
    """What an operator leaves of its input's columns as they are, by Spark's plan of it or as that would say it.

    Parameters
    ----------
    columns : tuple of (str, str)
        Those columns: (name downstream of it, name in its input).
    names : tuple of str
        All columns downstream of it.
    beyond : str
        What of its plan is neither a projection, a filter nor a generator; empty where nothing is.
    """

    columns: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    beyond: str = ""

    def why_not(self, timestamp: str) -> str:
        """Return why bounds end, where the timestamp does not pass."""
        if self.beyond:
            return f"Spark makes more of it than projections and filters: {self.beyond}"
        if timestamp in self.names:
            return f"{timestamp!r} is computed"
        return f"{timestamp!r} is left out or renamed"


Analysis = Mapping[str, Unchanged] | None
"""Operator -> what Spark's plan of it leaves as it was; None: there is no plan yet."""


def feeds_of(node: Node, ordinal: int, analysis: Analysis = None) -> list[Feed]:
    """Return the feeds of an operator's input; only their ends where its time column is another than theirs."""
    before = node.inputs[ordinal]
    feeds = feeds_downstream(before, analysis)
    time = node.stateful_spec.time_columns[ordinal]
    if time is None:
        return feeds
    if before.shape.timestamp not in (None, time):
        return [replace(feed, bounds=CLOSED_ONLY) for feed in feeds]
    return [feed if feed.times is None or time in feed.times else replace(feed, bounds=CLOSED_ONLY) for feed in feeds]


def reports_progress(node: Node) -> bool:
    """Return whether an operator reports by event time which of its rows are still to come."""
    if not is_stateful(node) or node.timestamp is None:
        return False
    spec: Any = node.spec
    if node.kind in _OF_FUNCTIONS:
        return spec.output.offset is not None
    return node.kind in _EVENT_TIME and (node.kind != "aggregate" or spec.window.kind in _BY_TIME)


def inputs_by_bounds(nodes: Sequence[Node], analysis: Analysis = None) -> dict[str, frozenset[str]]:
    """Return the inputs of each stateful operator of which bounds alone say what may still come.

    Those are the inputs whose rows come from sources that give bounds by themselves, or from operators of which this
    is so of every input, along paths on which bounds hold.  Rows promise nothing there: those of several partitions
    are read in any order.

    Parameters
    ----------
    nodes : sequence of Node
        A graph, inputs first.
    analysis : mapping of str to Unchanged, optional
        From Spark's plan.
    """
    bounding = {node.name for node in nodes if isinstance(node.spec, MarkedSpec) and node.spec.is_own}
    found = {}
    for node in nodes:
        if not lowering_of(node).keeps_state:
            continue
        names = node.stateful_spec.input_names
        found[node.name] = frozenset(
            name
            for ordinal, name in enumerate(names)
            if all(feed.source in bounding and feed.bounds != CLOSED_ONLY for feed in feeds_of(node, ordinal, analysis))
        )
        if len(found[node.name]) == len(names) and reports_progress(node) and not _ends_bounds(node):
            bounding.add(node.name)
    return found


def _ends_bounds(node: Node) -> bool:
    return offers(node.spec, BoundsEnding) and node.spec.bounds_end([one.shape for one in node.inputs]) is not None


def with_key(feed: Feed, key: Sequence[str]) -> str:
    """Return which bounds of a feed hold for a key: those of single keys where its columns keep their names."""
    if feed.bounds == EVERY and any(feed.column(name) != name for name in key):
        return ALL_KEYS_ONLY
    return feed.bounds


def feeds_downstream(node: Node, analysis: Analysis = None) -> list[Feed]:
    """Return where a node's rows come from, and which bounds of the origin still hold downstream of the node."""
    return entry_of(WAYS, lowering_of(node).bounds, "holdfast/plan/feeds.py")(node, analysis)


def bounds_ended(nodes: Sequence[Node], analysis: Analysis) -> dict[str, str]:
    """Return the operators upstream of stateful ones at which bounds end by Spark's plan of them, each with why.

    Parameters
    ----------
    nodes : sequence of Node
        A graph, inputs first.
    analysis : mapping of str to Unchanged, optional
        From Spark's plan.
    """
    before_state: set[Node] = set()
    for node in reversed(nodes):
        if node in before_state or lowering_of(node).keeps_state:
            before_state.update(node.inputs)
    found = {}
    for node in nodes:
        is_analysed = lowering_of(node).bounds is BoundsDownstream.ANALYSED or node.name in (analysis or {})
        if node not in before_state or not is_analysed:
            continue
        (before,) = node.inputs
        comes = [feed for feed in feeds_downstream(before, analysis) if feed.bounds != CLOSED_ONLY]
        if comes and all(feed.bounds == CLOSED_ONLY for feed in feeds_downstream(node, analysis)):
            known = (analysis or {}).get(node.name)
            time = node.timestamp or before.timestamp
            if time is not None:
                found[node.name] = "Spark has not analysed it" if known is None else known.why_not(time)
    return found


def bounding_of(
    sources: Sequence[Node], hosted: Sequence[Hosted], operators: Sequence[Node], depth: Mapping[Node, int]
) -> dict[str, Bounding]:
    """Return how the bound rows of each source are read.

    Parameters
    ----------
    sources : sequence of Node
        Those of the pipeline.
    hosted : sequence of Hosted
        Its operators with state, in their places.
    operators : sequence of Node
        The same, by their numbers.
    depth : mapping of Node to int
        Node -> the level behind which its rows are.
    """
    found = {}
    for node in sources:
        if not isinstance(node.spec, MarkedSpec) or node.spec.timestamp is None:
            continue
        targets = [
            BoundTarget(
                one.targets[name],
                feed.key(one.step.key.names),
                depth[before] == 0 and not node.spec.is_own,
                feed.offset,
            )
            for one in hosted
            for (name, feeds), before in zip(one.feeds.items(), operators[one.number].inputs, strict=True)
            for feed in feeds
            if not feed.is_operator and feed.source == node.name and feed.bounds == EVERY
        ]
        others = [name for name in node.spec.schema.names if name != node.spec.timestamp]
        is_known = all(target.key is not None for target in targets)
        scope = {name for target in targets for name in target.key or ()}
        if targets:
            found[node.name] = Bounding(
                node.spec.marker,
                node.spec.timestamp,
                tuple(targets),
                tuple(name for name in others if name in scope or not is_known),
            )
    return found


def row_bounds_of(sources: Sequence[Node], hosted: Sequence[Hosted], operators: Sequence[Node]) -> dict[str, RowBounds]:
    """Return the bounds that the rows of each source give: to joins, look-ups in a table, and by time before a gate.

    Parameters
    ----------
    sources : sequence of Node
        Those of the pipeline.
    hosted : sequence of Hosted
        Its operators with state, in their places.
    operators : sequence of Node
        The same, by their numbers.
    """
    gate = next((one.step for one in hosted if isinstance(one.step, GateStep)), None)
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for one in hosted:
        for (input_, feeds), before in zip(one.feeds.items(), operators[one.number].inputs, strict=True):
            for feed in feeds:
                if feed.is_operator or feed.bounds != EVERY or one.step is gate:
                    continue
                clock = None if gate is None else gate.clocks[feed.source]
                disorder = clock.disorder if clock is not None and clock.by_rows else None
                if _has_every_row(before) and (promised := _promise_of_all(one.step, input_)) is not None:
                    disorder = promised
                if disorder is not None:
                    target = (one.targets[input_], feed.offset - disorder)
                    found[feed.source] = (*found.get(feed.source, ()), target)
    return {node.name: RowBounds(found[node.name]) for node in sources if node.name in found}


def _promise_of_all(step: Step, input_: str) -> int | None:
    """Return by how many ticks a row of an input may be below the newest, whatever their keys; None: not promised."""
    promise = step.promises[input_] if isinstance(step, JoinStep | MergeStep) else None
    return promise.disorder or 0 if promise is not None and promise.is_whole else None


def _has_every_row(node: Node) -> bool:
    """Return whether a stream is a source's, whole: then its rows are in the order in which the source's are."""
    while node.kind in ("select", "row_id"):
        (node,) = node.inputs
    return node.is_source


def _of_source(node: Node, analysis: Analysis) -> list[Feed]:
    return [Feed(node.name, False, EVERY)]  # whatever it gives, by bound rows or for a commit at pts: often nothing


def _of_step(node: Node, analysis: Analysis) -> list[Feed]:
    return [Feed(node.name, True, EVERY)]


def _of_side_output(node: Node, analysis: Analysis) -> list[Feed]:
    spec: Any = node.spec
    feed = Feed(node.inputs[0].name, True, EVERY)
    return [feed if spec.rows.keeps_bounds else replace(feed, bounds=CLOSED_ONLY, output=spec.output)]


Passed = Callable[[Feed, Node, Node, Analysis], Feed]
"""Returns a feed of an input of a node as it holds downstream of the node."""


def _through(passed: Passed) -> Callable[[Node, Analysis], list[Feed]]:
    """Return what gives the feeds of a stateless operator: those of its inputs, as they hold downstream of it."""

    def feeds(node: Node, analysis: Analysis) -> list[Feed]:
        found: dict[tuple[str, bool, str], Feed] = {}
        for before in node.inputs:
            for feed in feeds_downstream(before, analysis):
                after = passed(feed, before, node, analysis)
                of = (feed.source, feed.is_operator, feed.output)
                known = found.get(of)
                if known is not None and known != after:  # two paths from one feed that differ: only its end is sure
                    after = replace(after, bounds=CLOSED_ONLY)
                found[of] = after
        return list(found.values())

    return feeds


def _same(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    """Return the feed as it is; only its end where the timestamp is another column from here on (a clip can say so)."""
    carries = (before.timestamp,) if feed.times is None else feed.times
    is_same = node.timestamp in (None, *carries) or carries == (None,)
    return feed if is_same else _end(feed, before, node, analysis)


def _added(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    """Return the feed with the columns that the operator has from its input; where these are unknown, with none."""
    same = [(name, origin) for name in before.shape.columns or () if (origin := feed.column(name)) is not None]
    return replace(_same(feed, before, node, analysis), columns=tuple(same))


def _where_timed(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    return feed if node.shape.timestamp is not None else _end(feed, before, node, analysis)


def _selected(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    spec: Any = node.spec
    items = spec.items_read()
    is_read = items is not None and before.shape.columns is not None
    if node.name in (analysis or {}) or (analysis is None and not is_read):
        return _analysed(feed, before, node, analysis)
    if node.shape.timestamp is None or before.shape.columns is None or items is None:
        return _end(feed, before, node, analysis)
    chosen = columns_passed(items, before.shape.columns)
    return replace(
        feed,
        columns=tuple((name, origin) for name, of in chosen if (origin := feed.column(of)) is not None),
        times=_times(feed, chosen),
    )


def _analysed(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    if analysis is None:
        return feed
    known = analysis.get(node.name)
    carries = (before.timestamp,) if feed.times is None else feed.times
    times = () if known is None else tuple(name for name, of in known.columns if of in carries)
    if known is None or not times or node.timestamp not in (None, *times):
        return _end(feed, before, node, analysis)
    columns = tuple((name, origin) for name, of in known.columns if (origin := feed.column(of)) is not None)
    return replace(feed, columns=columns, times=times)


def _moved(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    spec: Any = node.spec
    offset = spec.offset(node.shape.timestamp)
    if offset is None or before.shape.timestamp is None:
        return _end(feed, before, node, analysis)
    return replace(feed, columns=(), offset=feed.offset + offset, times=None)  # nothing is declared about the keys


def _end(feed: Feed, before: Node, node: Node, analysis: Analysis) -> Feed:
    return replace(feed, bounds=CLOSED_ONLY)


def _times(feed: Feed, chosen: Sequence[tuple[str, str]]) -> tuple[str, ...] | None:
    return None if feed.times is None else tuple(name for name, of in chosen if of in feed.times)


def columns_passed(items: Sequence[Item], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns that select items pass on as they are: (new name, old name)."""
    by_name = {column.lower(): column for column in columns}
    found = []
    for item in items:
        if item.is_star:
            found += [(column, column) for column in columns if column.lower() not in item.excluded]
        elif item.source is not None and item.names and (old := by_name.get(item.source.lower())) is not None:
            found.append((item.names[0], old))
    return found


WAYS: Mapping[BoundsDownstream, Callable[[Node, Analysis], list[Feed]]] = {
    BoundsDownstream.OF_SOURCE: _of_source,
    BoundsDownstream.OF_STEP: _of_step,
    BoundsDownstream.SAME: _through(_same),
    BoundsDownstream.WHERE_TIMED: _through(_where_timed),
    BoundsDownstream.ADDED: _through(_added),
    BoundsDownstream.SELECTED: _through(_selected),
    BoundsDownstream.ANALYSED: _through(_analysed),
    BoundsDownstream.MOVED: _through(_moved),
    BoundsDownstream.SIDE_OUTPUT: _of_side_output,
    BoundsDownstream.END: _through(_end),
}
"""Which bounds hold downstream -> a node's feeds."""
