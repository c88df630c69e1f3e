"""Cuts a graph with state into stages and levels (:mod:`holdfast.plan.stages`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from holdfast.capabilities import offers, optional
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, OperatorSpec, SinkNode
from holdfast.graph.side_outputs import SIDE_OUTPUTS, SideOutput
from holdfast.operators.lookup.spec import TableLookup
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.operators.stateful.gate import Released
from holdfast.plan.chunks import ChunkTarget, Routing
from holdfast.plan.feeds import (
    Unchanged,
    bounding_of,
    bounds_ended,
    feeds_of,
    inputs_by_bounds,
    row_bounds_of,
    with_key,
)
from holdfast.plan.gating import check_gated
from holdfast.plan.levels.line import line_of
from holdfast.plan.program import Program
from holdfast.plan.program_build import Builder, as_it_is, build_program, has_user_code
from holdfast.plan.routes import Routes
from holdfast.plan.stages import (
    BOUND_ROWS,
    ROWS,
    End,
    Feed,
    Hosted,
    SparkPart,
    Stage,
    Stages,
    Subplan,
    require_one_way,
)
from holdfast.ports import ClockDriven, SelectiveSpec
from holdfast.state import checks
from holdfast.state.step import PLACE, Combining, Promising, Selective, Step

Prefix = Callable[[SparkPart], Sequence[pa.Schema]]
"""Compiles a part through Spark's plan; returns the schemas of its ends.  It may be asked for a part again."""


@optional(OperatorSpec)
class OnFrames(Protocol):
    """What an operator's declaration may say: that Spark alone evaluates it, whatever the types are."""

    is_of_frames: bool
    """Whether it does."""


def has_state(pipeline: Graph) -> bool:
    """Tell whether any operator keeps state."""
    return bool(stateful_names(pipeline))


def stateful_names(pipeline: Graph) -> list[str]:
    """Return the names of the operators that keep state."""
    return [node.name for node in pipeline.nodes if _keeps_state(node)]


def epoch_driven(pipeline: Graph) -> list[str]:
    """Return the names of the operators whose state depends on what an epoch decided: batch time, a table's version."""
    found: set[str] = set()
    for node in pipeline.nodes:
        decides = isinstance(node.spec, TableLookup) or node.watches_clock
        if decides or any(before.name in found for before in node.inputs):
            found.add(node.name)
    return [name for name in stateful_names(pipeline) if name in found]


def has_idle_rule(pipeline: Graph) -> bool:
    """Return whether any operator has a rule about how long no row arrived."""
    return any(_wakes(node) for node in pipeline.nodes)


def build_stages(
    pipeline: Graph,
    normal: Callable[[pa.Schema], pa.Schema],
    token: str,
    *,
    buckets: int,
    partitions: int,
    prefix: Prefix,
    is_columnar: bool = True,
    analysis: Mapping[str, Unchanged] = MappingProxyType({}),
) -> Stages:
    """Cut a pipeline with state into stages.

    Parameters
    ----------
    pipeline : Graph
        The checked graph.
    normal : callable
        Returns a schema as it comes back from Spark.
    token : str
        Unique for the run.
    buckets, partitions : int
        How many buckets each operator's state has, and how many tasks a level.
    prefix : callable
        Called for what Arrow cannot evaluate, stage 0 or what stands behind state: compiles it through Spark's plan.
    is_columnar : bool
        False lets Spark compute stage 0 in any case.
    analysis : mapping of str to Unchanged
        What Spark's plan of an operator leaves as it was; ``prefix`` puts in what it finds out.

    Raises
    ------
    InvalidPipeline
        If a step refuses its inputs; or if pts cannot be known, because Spark's plan computes timestamps.
    """
    needs_spark = _of_frames(pipeline)
    while True:  # whether Arrow evaluates an expression is known once the types before it are
        try:
            return _Cutting(
                pipeline, normal, token, buckets, partitions, prefix, is_columnar, needs_spark, analysis
            ).cut()
        except _NotInArrow as found:
            needs_spark.add(found.node)


def in_arrow_behind_state(pipeline: Graph) -> dict[str, bool]:
    """Return for operators behind state whether Arrow evaluates them, as far as that is known without Spark.

    Of what is downstream of Spark's plan, Spark alone knows the types.
    """
    needs_spark = _of_frames(pipeline)
    while True:
        cutting = _Cutting(pipeline, as_it_is, "", 1, 1, _refuse, True, needs_spark, {})
        try:
            cutting.cut()
        except _NotInArrow as found:
            needs_spark.add(found.node)
            continue
        except (_NeedsSpark, HoldfastError):  # what refuses its input says so at the start
            pass
        return {node.name: True for node in cutting.in_arrow} | {node.name: False for node in needs_spark}


def _of_frames(pipeline: Graph) -> set[Node]:
    """Return what Arrow does not evaluate, whatever the types are."""
    return {node for node in pipeline.nodes if offers(node.spec, OnFrames) and node.spec.is_of_frames}


class _NotInArrow(Exception):
    """An operator behind state turned out to be Spark's to evaluate."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


class _NeedsSpark(Exception):
    """A part of a graph, its argument, can only be compiled through Spark's plan."""


def _refuse(part: SparkPart) -> Sequence[pa.Schema]:
    raise _NeedsSpark(part)


def first_in_spark(pipeline: Graph) -> SparkPart | None:
    """Return the first part of a pipeline with state that Spark's plan computes: stage 0, else what stands behind it.

    None where there is none.
    """
    try:
        build_stages(pipeline, as_it_is, "", buckets=1, partitions=1, prefix=_refuse)
    except _NeedsSpark as found:
        part: SparkPart = found.args[0]
        return part
    return None


def left_to_spark(pipeline: Graph) -> tuple[Node, ...]:
    """Check a graph as a start does, as far as it can be checked without Spark; return what cannot.

    Returns
    -------
    tuple of Node
        The operators, and sources, that Spark's plan evaluates first.  None: a start refuses nothing of the graph.

    Raises
    ------
    InvalidPipeline
        What a start would raise.
    """
    nodes: Sequence[Node] = ()
    if has_state(pipeline):
        part = first_in_spark(pipeline)
        nodes = () if part is None else part.nodes
    elif build_program(pipeline, as_it_is, "") is None:
        nodes = pipeline.nodes
    return tuple(node for node in nodes if not node.is_source or node.kind == "spark")


class _Way(NamedTuple):
    """What rows of a stage are needed for: an input of an operator, a sink, or what stands further down."""

    to: Node | SinkNode
    """The operator or sink; for rows that go past levels the node that they come from."""
    ordinal: int
    """Which input; for rows that go past levels -1 - the level behind which, or in which, they are needed."""
    is_opened: bool = False
    """Whether Spark's plan takes them in that level."""


class _Cutting:
    def __init__(
        self,
        pipeline: Graph,
        normal: Callable[[pa.Schema], pa.Schema],
        token: str,
        buckets: int,
        partitions: int,
        prefix: Prefix,
        is_columnar: bool,
        needs_spark: Collection[Node],
        analysis: Mapping[str, Unchanged],
    ) -> None:
        self._pipeline = pipeline
        self._normal = normal
        self._token = token
        self._buckets = buckets
        self._partitions = partitions
        self._prefix = prefix
        self._is_columnar = is_columnar
        self._given_analysis = analysis
        self._seen: dict[str, Unchanged] = {}
        self.in_arrow: set[Node] = set()
        self._line = line_of(pipeline.nodes, needs_spark)
        self._depth = self._line.depth
        self._levels = self._line.levels
        self._ends = [self._ends_of(stage) for stage in range(self._levels + 1)]
        self._numbers = {way: number for number, (way, _) in enumerate(end for ends in self._ends for end in ends)}
        """What rows are needed for -> target."""
        self._targets: dict[int, ChunkTarget] = {}
        self._parts: dict[int, SparkPart] = {}
        self._operators = [node for node in pipeline.nodes if _keeps_state(node)]
        self._sources: dict[str, frozenset[str]] = {}
        """Stateful operator -> the sources upstream of it."""

    @property
    def _analysis(self) -> Mapping[str, Unchanged]:
        """What operators leave as it was, by Spark's plan of them or by the program that stands for that."""
        return {**self._given_analysis, **self._seen}

    def cut(self) -> Stages:
        stages: list[Stage] = []
        for number in range(self._levels + 1):
            hosted = {node.name: self._hosted(node) for node in self._operators if self._depth[node] == number}
            stages.append(self._compiled(number, hosted))
        check_gated(self._pipeline.name, self._pipeline.nodes, self._analysis)
        stages = [self._with_onward(stage) for stage in stages]
        targets = tuple(self._targets[number] for number in range(len(self._numbers)))
        require_one_way(stages, targets)
        by_name = {node.name: node for node in self._operators}
        hosts = [one for stage in stages for one in stage.hosted.values()]
        sinks = {self._numbers[_Way(sink, 0)]: sink.name for sink in self._pipeline.sinks}
        schemas = [targets[self._numbers[_Way(sink, 0)]].schema for sink in self._pipeline.sinks]
        return Stages(
            tuple(stages),
            Routing(targets, self._buckets, self._partitions),
            sinks,
            Routes(tuple(sink.name for sink in self._pipeline.sinks), tuple(schemas)),
            {
                node.name: tuple(
                    one.targets[name]
                    for one in hosts
                    for name, feeds in one.feeds.items()
                    if any(not feed.is_operator and feed.source == node.name for feed in feeds)
                )
                for node in self._pipeline.sources
            },
            tuple(next(iter(one.targets.values())) for one in hosts if by_name[one.name].watches_clock),
            any(_wakes(by_name[one.name]) for one in hosts),
            bounding_of(self._pipeline.sources, hosts, self._operators, self._depth),
            row_bounds_of(self._pipeline.sources, hosts, self._operators),
            bounds_ended(self._pipeline.nodes, self._analysis),
            self._parts,
        )

    # --- where rows go ------------------------------------------------------------------------------------------

    def _ends_of(self, stage: int) -> list[tuple[_Way, Node]]:
        """Return what the rows of a stage are needed for, each with the node whose rows it takes."""
        in_spark = self._line.in_spark
        ends: dict[_Way, Node] = {}
        for node in self._pipeline.nodes:
            for ordinal, before in enumerate(node.inputs):
                if self._depth[before] != stage or _is_side_output(node):
                    continue
                if _keeps_state(node):
                    ends[_Way(node, ordinal)] = before
                elif self._depth[node] > stage:
                    ends[_Way(before, -1 - self._depth[node], node in in_spark)] = before
        for sink in self._pipeline.sinks:
            if self._depth[sink.inputs[0]] == stage:
                ends[_Way(sink, 0)] = sink.inputs[0]
        return list(ends.items())

    def _target(self, way: _Way, schema: pa.Schema) -> ChunkTarget:
        node, ordinal, is_opened = way
        number = self._numbers[way]
        if isinstance(node, SinkNode):
            return ChunkTarget(number, self._levels + 1, "", node.name, schema)
        if ordinal < 0:
            name = _opened(node) if is_opened else _relay(node)
            return ChunkTarget(number, -1 - ordinal, "", name, schema)
        return ChunkTarget(number, self._depth[node], node.name, node.stateful_spec.input_names[ordinal], schema)

    # --- stages -------------------------------------------------------------------------------------------------

    def _compiled(self, stage: int, hosted: Mapping[str, Hosted]) -> Stage:
        """Compile a stage; note the schemas of its ends."""
        in_spark = self._line.in_spark
        nodes = [node for node in self._pipeline.nodes if self._depth[node] == stage and node not in in_spark]
        ends = self._ends[stage]
        if stage == 0 and not (self._is_columnar and all(node.kind != "spark" for node in self._pipeline.sources)):
            return self._through_spark(nodes, ends)
        builder = Builder(self._normal, self._token, is_behind_state=stage > 0)
        heads: dict[str, pa.Schema] = {}
        relays: dict[int, str] = {}
        if stage == 0:
            for node in self._pipeline.sources:
                heads[node.name] = builder.steps[builder.source(node)].schema
        for (passing, ordinal, is_opened), number in self._numbers.items():
            if stage and ordinal == -1 - stage and isinstance(passing, Node) and not is_opened:
                relays[number] = _relay(passing)
                heads[_relay(passing)] = builder.steps[builder.head(passing, self._targets[number].schema)].schema
        subplan = self._subplan(stage) if stage in self._line.through_spark else None
        if subplan is not None:
            for end, schema in zip(self._parts[stage].sinks, subplan.routes.schemas, strict=True):
                heads[end.name] = builder.steps[builder.head(end.node, schema)].schema
        for node in nodes:
            if _keeps_state(node) or _is_side_output(node):
                operator = hosted[(node if _keeps_state(node) else node.inputs[0]).name]
                schema = self._output(operator, node)
                heads[f"{operator.name}/{_output_name(node)}"] = builder.steps[builder.head(node, schema)].schema
        for node in nodes:
            if _keeps_state(node) or _is_side_output(node) or builder.add(node):
                continue
            if stage == 0:
                return self._through_spark(nodes, ends)
            raise _NotInArrow(node)
        self._seen |= builder.unchanged
        self.in_arrow.update(nodes if stage else ())
        numbers = tuple(self._input_step(builder, way, builder.number_of(before)) for way, before in ends)
        schemas = tuple(builder.steps[number].schema for number in numbers)
        self._note(ends, schemas)
        routes = Routes(tuple(str(self._numbers[way]) for way, _ in ends), schemas)
        program = Program(heads, tuple(builder.steps), numbers, routes, has_user_code(nodes))
        return Stage(program, relays, hosted, subplan)

    def _input_step(self, builder: Builder, way: _Way, number: int) -> int:
        """Return the step of what is taken of some rows: of an operator's input not the columns that it has no use for.

        They would be packed, moved and unpacked for nothing; and a source need not read them (:meth:`Program.reads`).
        """
        to = way.to
        if isinstance(to, SinkNode) or way.ordinal < 0 or not offers(to.spec, SelectiveSpec):
            return number
        columns = to.spec.reads(self._outputs_read(to))
        return number if columns is None else builder.project(number, columns)

    def _through_spark(self, nodes: Sequence[Node], ends: Sequence[tuple[_Way, Node]]) -> Stage:
        own = [End(str(self._numbers[way]), before) for way, before in ends]
        marked = [node for node in nodes if isinstance(node.spec, MarkedSpec)]
        bounds = [End(f"{BOUND_ROWS}{node.name}", node, is_bounds=True) for node in marked]
        self._note(ends, self._prefix(SparkPart(tuple(nodes), (*own, *bounds)))[: len(own)])
        return Stage(None)

    def _subplan(self, stage: int) -> Subplan:
        """Compile what Spark's plan evaluates in a level."""
        nodes = self._line.through_spark[stage]
        heads = {
            way.to: number
            for way, number in self._numbers.items()
            if way.ordinal == -1 - stage and way.is_opened and isinstance(way.to, Node)
        }
        taken = {before for node in self._pipeline.nodes if node not in nodes for before in node.inputs}
        taken.update(sink.inputs[0] for sink in self._pipeline.sinks)
        ends = tuple(End(_behind(node), node) for node in nodes if node in taken)
        schemas = {node: self._targets[number].schema for node, number in heads.items()}
        self._parts[stage] = SparkPart(nodes, ends, schemas)
        routes = Routes(tuple(end.name for end in ends), tuple(self._prefix(self._parts[stage])))
        return Subplan(tuple(zip(heads.values(), schemas.values(), strict=True)), routes)

    def _note(self, ends: Sequence[tuple[_Way, Node]], schemas: Sequence[pa.Schema]) -> None:
        for (way, _), schema in zip(ends, schemas, strict=True):
            self._targets[self._numbers[way]] = self._target(way, schema)

    def _output(self, hosted: Hosted, node: Node) -> pa.Schema:
        output = _output_name(node)
        if output not in hosted.step.outputs:
            what = SIDE_OUTPUTS.get(output, (output,))[0]
            raise InvalidPipeline(
                f"{node.inputs[0].kind} {hosted.name!r} has no {what}; asked for at {node.origin}.",
                why=f"as it is declared its step gives {', '.join(hosted.step.outputs)}.",
                do=f"leave .{output} out.",
                participant=hosted.name,
            )
        return self._normal(hosted.step.outputs[output])

    # --- operators ----------------------------------------------------------------------------------------------

    def _hosted(self, node: Node) -> Hosted:
        names = node.stateful_spec.input_names
        schemas = [self._targets[self._numbers[_Way(node, ordinal)]].schema for ordinal in range(len(names))]
        with _at(node.kind, node.name, node.origin):
            step = node.stateful_spec.step(dict(zip(names, schemas, strict=True)))
            if offers(step, Selective):
                step = step.giving(self._outputs_read(node))
            if offers(step, Promising):
                step = step.by_bounds(inputs_by_bounds(self._pipeline.nodes, self._analysis)[node.name])
            checks.require_distinct_columns(step)
        feeds = {name: tuple(feeds_of(node, ordinal, self._analysis)) for ordinal, name in enumerate(names)}
        combiner = _combiner(step, feeds, self._outputs_read(node))
        targets = {}
        for ordinal, name in enumerate(names):
            number = self._numbers[_Way(node, ordinal)]
            old = self._targets[number]
            self._targets[number] = replace(old, operator=node.name, input=name, key=step.key, combiner=combiner)
            targets[name] = number
        sources = {name: self._sources_of(of) for name, of in feeds.items()}
        self._sources[node.name] = frozenset().union(*sources.values())
        return Hosted(node.name, self._operators.index(node), step, targets, feeds, sources=sources)

    def _outputs_read(self, operator: Node) -> frozenset[str]:
        beside = (node for node in self._pipeline.nodes if isinstance(node.spec, SideOutput))
        return frozenset(_output_name(node) for node in beside if node.inputs[0] is operator)

    def _sources_of(self, feeds: Sequence[Feed]) -> frozenset[str]:
        """Return the sources that feeds come from in the end."""
        found = [self._sources[feed.source] if feed.is_operator else frozenset({feed.source}) for feed in feeds]
        return frozenset().union(*found)

    def _with_onward(self, stage: Stage) -> Stage:
        hosted = {}
        for one in stage.hosted.values():
            ways = [
                (self._numbers[_Way(other, ordinal)], feed)
                for other in self._operators
                for ordinal in range(len(other.inputs))
                for feed in feeds_of(other, ordinal, self._analysis)
                if feed.is_operator and feed.source == one.name
            ]
            of_rows = [(number, feed) for number, feed in ways if feed.output == ROWS]
            onward = tuple((number, with_key(feed, one.step.key.names)) for number, feed in of_rows)
            offsets = {number: feed.offset for number, feed in of_rows if feed.offset}
            ends = tuple((number, feed.output) for number, feed in ways if feed.output != ROWS)
            hosted[one.name] = replace(one, onward=onward, offsets=offsets, ends=ends)
        return replace(stage, hosted=hosted)


def _combiner(step: Step, feeds: Mapping[str, Sequence[Feed]], outputs: Collection[str]) -> Combining | None:
    """Return what makes partial rows for a step, where rows are needed neither whole nor in the order of arrival.

    Rows of several buckets of an operator are put in an order where they arrive, by all that each of them has sent.
    """
    if not offers(step, Combining) or step.partial_schema is None or outputs:
        return None
    has_order = PLACE in step.partial_schema.names
    is_mixed = has_order and any(feed.is_operator for of in feeds.values() for feed in of)
    return None if is_mixed else step


def _wakes(node: Node) -> bool:
    return offers(node.spec, ClockDriven) and node.spec.wakes


def _keeps_state(node: Node) -> bool:
    return lowering_of(node).keeps_state


def _is_side_output(node: Node) -> bool:
    return lowering_of(node).in_arrow is InArrow.SIDE_OUTPUT


def _output_name(node: Node) -> str:
    """Return which of a step's outputs a node's rows are."""
    return node.spec.output if isinstance(node.spec, SideOutput | Released) else ROWS


def _relay(node: Node) -> str:
    return f"relay/{node.name}"


def _opened(node: Node) -> str:
    return f"opened/{node.name}"


def _behind(node: Node) -> str:
    return f"spark/{node.name}"


class _at:
    """Names an operator and its line in the errors of its step about its inputs."""

    def __init__(self, kind: str, name: str, origin: Origin) -> None:
        self._what = f"{kind} {name!r}, built at {origin}"
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidPipeline):
            raise InvalidPipeline(
                f"{self._what}: {error.what}", why=error.why, do=error.do, participant=self._name
            ) from error
