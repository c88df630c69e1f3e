"""Where each operator of a graph with state stands on the line of levels, and which of them Spark's plan evaluates.

A stateful operator begins a level.  So does, behind state, what only Spark evaluates, unless it follows directly on
what Spark evaluates anyway: a *subplan of Spark* is a level without state.  Each branch gets its places for
itself, and branches that need the same level share it, so that there are never more levels with state than a single
branch has::

    sums -> map -> seen          levels: 1 sums, firsts | 2 Spark's plan | 3 seen, last
    firsts -> filter -> last

What stands before all state is stage 0, which Spark's plan computes as a whole or not at all.

The output of the last level: the rows of chunks, for their sinks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.graph.nodes import Node
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.plan.chunks import ROWS, Chunk, decode, in_order
from holdfast.plan.routes import Routes
from holdfast.plan.stages import Stages
from holdfast.types.casting import fitted

_Place = tuple[int, int, int]
"""Levels with state before an operator, subplans since then, and where it is evaluated behind these."""

_IN_SPARK, _IN_ARROW = 0, 1


@dataclass(frozen=True)
class Line:
    """The places of all operators.

    Parameters
    ----------
    depth : mapping of Node to int
        Node -> the level behind which its rows are; 0 before all state.
    through_spark : mapping of int to tuple of Node
        Level -> what Spark's plan evaluates in it, for each subplan.
    levels : int
        How many levels there are.
    """

    depth: Mapping[Node, int]
    through_spark: Mapping[int, tuple[Node, ...]]
    levels: int

    @property
    def in_spark(self) -> frozenset[Node]:
        """Everything that is evaluated in subplans."""
        return frozenset(node for nodes in self.through_spark.values() for node in nodes)


def line_of(nodes: Sequence[Node], needs_spark: Collection[Node]) -> Line:
    """Return the places of operators.

    Parameters
    ----------
    nodes : sequence of Node
        A graph, inputs first.
    needs_spark : collection of Node
        What Arrow does not evaluate.  Others go through Spark's plan only where they stand between two of these.
    """
    between = _before(nodes, needs_spark)
    places: dict[Node, _Place] = {}
    for node in nodes:
        states, subplans, side = max((places[each] for each in node.inputs), default=(0, 0, _IN_ARROW))
        lowering = lowering_of(node)
        if lowering.keeps_state:
            place = (states + 1, 0, _IN_ARROW)
        elif not states:
            place = (0, 0, _IN_ARROW)
        elif node in needs_spark:
            place = (states, subplans + (side == _IN_ARROW), _IN_SPARK)
        elif side == _IN_SPARK and node in between:
            place = (states, subplans, _IN_SPARK)
        else:
            place = (states, subplans, _IN_ARROW)
        places[node] = place
    most = max(states for states, _, _ in places.values())
    found = {(states, subplans) for states, subplans, _ in places.values()}
    levels = {place: number for number, place in enumerate(sorted(found | {(state, 0) for state in range(most + 1)}))}
    through_spark: dict[int, tuple[Node, ...]] = {}
    for node, (states, subplans, side) in places.items():
        if side == _IN_SPARK:
            number = levels[states, subplans]
            through_spark[number] = (*through_spark.get(number, ()), node)
    depth = {node: levels[states, subplans] for node, (states, subplans, _) in places.items()}
    return Line(depth, through_spark, len(levels) - 1)


def _before(nodes: Sequence[Node], needs_spark: Collection[Node]) -> set[Node]:
    """Return what leads to something that needs Spark, through nothing that Spark's plan cannot do between branches."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node in needs_spark or node in found:
            found.update(before for before in node.inputs if _is_either(before))
    return found


def _is_either(node: Node) -> bool:
    lowering = lowering_of(node)
    return not lowering.keeps_state and lowering.in_arrow not in (InArrow.SIDE_OUTPUT, InArrow.CALL)


@dataclass(frozen=True)
class Outlets:
    """The sinks of a pipeline with state.  Picklable.

    Parameters
    ----------
    routes : Routes
        The sinks, with their schemas.
    sinks : mapping of int to str
        Target -> sink.
    """

    routes: Routes
    sinks: Mapping[int, str]

    @classmethod
    def of(cls, stages: Stages) -> Outlets:
        """Return those of a graph that was cut into stages."""
        return cls(stages.routes, stages.sinks)

    def rows(self, chunks: Sequence[Chunk]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each sink, in the order of arrival."""
        schemas = dict(zip(self.routes.sinks, self.routes.schemas, strict=True))
        for chunk in in_order([chunk for chunk in chunks if chunk.kind == ROWS]):
            sink = self.sinks[chunk.target]
            for batch in decode(chunk.data).to_batches():
                yield sink, fitted(batch, schemas[sink])

    def tables(self, chunks: Sequence[Chunk], sinks: Collection[str]) -> dict[str, pa.Table]:
        """Return the rows of some sinks."""
        return self.routes.gathered(self.rows(chunks), sinks)
