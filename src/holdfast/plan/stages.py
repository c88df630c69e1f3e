"""A graph with state, cut into stages: what runs before the first stateful operators, between two, and after the last.

Spark plans are trees: a stateful operator that two branches read would be there twice, with two states.  So the plan
of a pipeline with state is one line::

    stage 0 -> level 1 -> level 2 -> ... -> sinks

A *level* hosts every stateful operator of one depth; chunks for other levels pass through it unchanged.  The
stateless operators after a level (its *stage*) run in the same process, on the batches that the steps returned.
So every stream is computed once, however many read it.

What only Spark evaluates between two levels with state is a level without state, a *subplan*: there the chunks of some
targets are opened into typed rows, Spark's plan computes on these, and what comes of them is closed to chunks again
(:mod:`holdfast.plan.levels.opened`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import invariant
from holdfast.plan.bounds import Bounding
from holdfast.plan.chunks import ChunkTarget, Routing
from holdfast.plan.program import Program
from holdfast.plan.routes import Routes
from holdfast.state.step import Step

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node

CLOSED_ONLY, ALL_KEYS_ONLY, EVERY = "closed", "all-keys", "every"
"""Which bounds hold after a path of stateless operators: only the end of the stream; those for all keys; every one."""

BOUND_ROWS = "bounds/"
"""How Spark's plan of stage 0 calls the end of a source's bound rows: this, and the source."""

ROWS = "rows"
"""The output of an operator that bounds are about."""


def feed_label(operator: str, output: str, bucket: int) -> str:
    """Return the name under which a bucket gives bounds of its rows, or the end of a side output.

    Examples
    --------
    >>> feed_label("aligned", "rows", 3), feed_label("aligned", "late", 3)
    ('aligned/3', 'aligned.late/3')
    """
    return f"{operator if output == ROWS else f'{operator}.{output}'}/{bucket}"


@dataclass(frozen=True)
class Feed:
    """Where an input's rows come from, seen through stateless operators.

    Parameters
    ----------
    source : str
        A source, or a stateful operator.
    is_operator : bool
        Which of them.
    bounds : str
        Which of its bounds hold for the input.
    columns : tuple of (str, str), optional
        The input's columns that are the feed's as they are: (name at the input, name at the feed).  None: every one,
        under its own name.
    offset : int
        Ticks by which its bounds are shifted on the path.
    times : tuple of str, optional
        The columns that its bounds hold for, where Spark's plan shows it; None: the timestamp of the input.
    output : str
        Whose end it gets: that of the operator's rows, or of a side output, which ends when all inputs have ended.
    """

    source: str
    is_operator: bool
    bounds: str
    columns: tuple[tuple[str, str], ...] | None = None
    offset: int = 0
    times: tuple[str, ...] | None = None
    output: str = ROWS

    def labels(self, buckets: int) -> list[str]:
        """Return the names under which bounds for all keys come: the source, or each bucket of the operator."""
        if not self.is_operator:
            return [self.source]
        return [feed_label(self.source, self.output, bucket) for bucket in range(buckets)]

    def column(self, name: str) -> str | None:
        """Return the feed's column that a column of the input equals; None where it is computed."""
        return name if self.columns is None else dict(self.columns).get(name)

    def key(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the feed's columns that the input's key columns equal; None where one of them is computed."""
        found = tuple(column for name in names if (column := self.column(name)) is not None)
        return found if len(found) == len(names) else None


@dataclass(frozen=True)
class Hosted:
    """One stateful operator in its place.  Picklable.

    Parameters
    ----------
    name : str
        The operator: the identity of its state.
    number : int
        Its number among the stateful operators of the pipeline.
    step : Step
        What it does.
    targets : mapping of str to int
        Input -> the target whose chunks it takes.
    feeds : mapping of str to tuple of Feed
        Input -> where its rows come from.
    onward : tuple of (int, str)
        Targets that its bounds hold for, and which of them.
    sources : mapping of str to frozenset of str
        Input -> the sources upstream of it.
    offsets : mapping of int to int
        Target -> ticks by which its bounds are shifted on the path there, where they are.
    ends : tuple of (int, str)
        Targets that get the end of a side output, and of which one.
    """

    name: str
    number: int
    step: Step
    targets: Mapping[str, int]
    feeds: Mapping[str, tuple[Feed, ...]]
    onward: tuple[tuple[int, str], ...] = ()
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    offsets: Mapping[int, int] = field(default_factory=dict)
    ends: tuple[tuple[int, str], ...] = ()

    def active_until(self, of_sources: Mapping[str, int]) -> dict[str, int]:
        """Return for each input the time up to which it counts as active, from those of its sources.

        Examples
        --------
        >>> one = Hosted("seen", 0, None, {}, {}, (), {"main": frozenset("ab"), "slow": frozenset("c")})
        >>> one.active_until({"a": 3, "b": 8})
        {'main': 8}
        """
        found = {name: [of_sources[s] for s in sources if s in of_sources] for name, sources in self.sources.items()}
        return {name: max(times) for name, times in found.items() if times}


@dataclass(frozen=True)
class End:
    """A pseudo sink: where a stage ends, for the compiler of Spark's plans."""

    name: str
    node: Node
    is_bounds: bool = False
    """Whether it takes the bound rows of a source, and not its rows."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The node whose rows it takes."""
        return (self.node,)


@dataclass(frozen=True)
class SparkPart:
    """What Spark's plan computes of a graph, as a pipeline of its own: stage 0, or a subplan between two levels.

    Parameters
    ----------
    nodes : tuple of Node
        Its operators, inputs first; for stage 0 with the sources.
    sinks : tuple of End
        Where it ends.
    heads : mapping of Node to pa.Schema
        For a subplan: the nodes before it, whose rows it takes.
    """

    nodes: tuple[Node, ...]
    sinks: tuple[End, ...]
    heads: Mapping[Node, pa.Schema] = field(default_factory=dict)


@dataclass(frozen=True)
class Subplan:
    """A level in which Spark's plan evaluates what Arrow does not.  Picklable.

    Parameters
    ----------
    heads : tuple of (int, pa.Schema)
        Targets whose chunks are opened into rows, with the schemas of these.
    routes : Routes
        What comes back, by heads of the program behind it.
    """

    heads: tuple[tuple[int, pa.Schema], ...]
    routes: Routes


@dataclass(frozen=True)
class Stage:
    """What is computed between two levels.

    Parameters
    ----------
    program : Program, optional
        Rows of a head to rows of targets, which are named by their numbers.  None: Spark computes it (stage 0 only).
    relays : mapping of int to str
        Target -> head: rows that bypassed a level.
    hosted : mapping of str to Hosted
        The operators of the level before it.
    subplan : Subplan, optional
        What Spark's plan evaluates in the level before it, which then has no operators with state.
    """

    program: Program | None
    relays: Mapping[int, str] = field(default_factory=dict)
    hosted: Mapping[str, Hosted] = field(default_factory=dict)
    subplan: Subplan | None = None


@dataclass(frozen=True)
class RowBounds:
    """Bounds for all keys that a source's rows give after each epoch: to joins, and for a commit at pts.  Picklable.

    Parameters
    ----------
    targets : tuple of (int, int)
        The inputs that they hold for, each with what is added to the highest timestamp: the ticks by which timestamps
        are shifted on the path, less those by which a row may be below the highest timestamp of earlier epochs.
    """

    targets: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stages:
    """A pipeline with state.

    Parameters
    ----------
    stages : tuple of Stage
        Stage 0 first.
    routing : Routing
        All targets.
    sinks : mapping of int to str
        Target -> sink.
    routes : Routes
        The sinks, with their schemas.
    closing : mapping of str to tuple of int
        Source -> the targets that receive its end.
    waking : tuple of int
        One target of each operator that must be called in every epoch, rows or not.
    ticks : bool
        Whether epochs are needed also when nothing arrives.
    bounding : mapping of str to Bounding
        Source -> how its bound rows are read, where it has any and an operator uses them.
    row_bounds : mapping of str to RowBounds
        Source -> the bounds that its rows give: to joins, and where the pipeline commits at pts.
    bounds_end : mapping of str to str
        Operator upstream of a stateful one, analysed by Spark -> why no bound but the end holds downstream of it.
    subplans : mapping of int to SparkPart
        Level -> what Spark's plan evaluates in it, for who compiles that.
    """

    stages: tuple[Stage, ...]
    routing: Routing
    sinks: Mapping[int, str]
    routes: Routes
    closing: Mapping[str, tuple[int, ...]]
    waking: tuple[int, ...]
    ticks: bool
    bounding: Mapping[str, Bounding] = field(default_factory=dict)
    row_bounds: Mapping[str, RowBounds] = field(default_factory=dict)
    bounds_end: Mapping[str, str] = field(default_factory=dict)
    subplans: Mapping[int, SparkPart] = field(default_factory=dict)

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.stages) - 1

    @property
    def operators(self) -> dict[int, tuple[str, ...]]:
        """Level -> its operators with state; without the levels that have none."""
        return {number: tuple(stage.hosted) for number, stage in enumerate(self.stages) if stage.hosted}


def require_one_way(stages: Sequence[Stage], targets: Sequence[ChunkTarget]) -> None:
    """Stop unless targets have their numbers, and each stage sends rows and bounds to later levels only."""
    numbers = [target.number for target in targets]
    invariant(numbers == list(range(len(targets))), f"the targets of a plan are numbered {numbers}.")
    for level, stage in enumerate(stages):
        sends = [] if stage.program is None else [int(name) for name in stage.program.routes.sinks]
        sends += [number for one in stage.hosted.values() for number, _ in one.onward]
        back = [targets[number] for number in sends if targets[number].level <= level]
        invariant(
            not back,
            f"stage {level} of a plan sends to {[(target.operator or target.input, target.level) for target in back]}.",
            why="a plan is one line: levels are passed one after the other.",
        )
