"""The Spark plan of a pipeline with state: sources as chunks, and the levels.

A task of Spark that packs what Spark's plan computed of stage 0 (:mod:`holdfast.plan.levels.packing`).

Which operators of a Spark plan keep state: a pipeline may have none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from holdfast.capabilities import offers
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import InvalidPipeline, crossing
from holdfast.graph.graph import Graph
from holdfast.graph.naming import canonical_json
from holdfast.graph.nodes import Node
from holdfast.operators.lookup.spec import TableLookup
from holdfast.plan.chunks import CHUNKS
from holdfast.plan.cutting import build_stages, has_idle_rule
from holdfast.plan.feeds import Unchanged
from holdfast.plan.levels.host import levels_of
from holdfast.plan.levels.level import Level
from holdfast.plan.levels.packing import Packing, PlanPacking, control_packing, packings, plan_packing
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.routes import Routes
from holdfast.plan.stages import SparkPart, Stages
from holdfast.ports import Bounded
from holdfast.spark import private
from holdfast.spark.compile import Compiled, as_spark_has_it, compile_pipeline
from holdfast.spark.read import SourceReader, timestamp_of
from holdfast.spark.state.host import with_levels
from holdfast.spark.state.shape import StateShape
from holdfast.spark.state.subplan import PlacedSubplan, Subplans

log = logging.getLogger("holdfast.run")

TICK_US = 1_000_000
"""Least time from one epoch to the next that is planned without rows, where one can release something."""


def state_schemas_of(pipeline: Graph, stages: Stages) -> dict[str, StateSchema]:
    """Return the state tables of each stateful operator."""
    arguments = {node.name: (node.kind, canonical_json(dict(node.arguments()))) for node in pipeline.nodes}
    hosted = {name: one for stage in stages.stages for name, one in stage.hosted.items()}
    return {name: StateSchema(*arguments[name], one.step.key, one.step.tables) for name, one in hosted.items()}


def upgrades_of(pipeline: Graph, stages: Stages) -> dict[str, StateUpgrade]:
    """Return how each stateful operator takes over the state of another version of itself."""
    pasts = {node.name: node.past for node in pipeline.nodes}
    return {name: StateUpgrade(pasts[name], one.step) for stage in stages.stages for name, one in stage.hosted.items()}


@dataclass(frozen=True)
class StatefulPlan:
    """A pipeline with state as Spark will run it.

    Parameters
    ----------
    frame : DataFrame
        Chunks for the sinks, and counts; where Spark's plan has no part in them it plans with the positions alone.
    stages : Stages
        What they mean.
    levels : sequence of Level
        The same levels, for epochs that Spark's plan has no part in.
    packings : mapping of str to Packing
        How sources are read then; empty where every epoch is a job of the plan.
    """

    frame: DataFrame
    stages: Stages
    levels: Sequence[Level]
    packings: Mapping[str, Packing]


def compile_stateful(
    pipeline: Graph,
    reader: SourceReader,
    token: str,
    shape: StateShape,
    *,
    is_columnar: bool,
    seeds: Seeds | None = None,
    parts: SnapshotParts | None = None,
) -> StatefulPlan:
    """Return a pipeline with state as one linear plan.

    Parameters
    ----------
    pipeline : Graph
        The checked graph.
    reader : SourceReader
        Opens its sources.
    token : str
        Unique for the run.
    shape : StateShape
        Buckets and tasks.
    is_columnar : bool
        Whether sources may be evaluated as an Arrow program.
    seeds : Seeds, optional
        The initial state.
    parts : SnapshotParts, optional
        Takes the workers' parts of snapshots.

    Raises
    ------
    InvalidPipeline
        If an operator cannot be compiled at its place, a step refuses its inputs, or pts cannot be known.
    """
    compiled: list[Compiled] = []
    ends: list[tuple[Node, bool]] = []
    """What ``compiled`` ends in."""
    analysis: dict[str, Unchanged] = {}
    reader = replace(reader, notes_silence=has_idle_rule(pipeline))
    subplans = Subplans(reader.session, token)

    def through_spark(part: SparkPart) -> Sequence[pa.Schema]:
        if part.heads:
            found = subplans.compiled(part)
            analysis.update(found.analysis)
            return found.schemas
        # A graph that is cut again has the same stage 0, under other numbers; but its rows may be needed further down.
        taken = [(end.node, end.is_bounds) for end in part.sinks]
        if taken != ends:
            ends[:] = taken
            made = compile_pipeline(part, replace(reader, marks_ends=True, with_bounds=True).read, token)
            refuse_state(pipeline.name, made.frame)
            analysis.update(made.analysis)
            compiled[:] = [made]
        routes = Routes(tuple(sink.name for sink in part.sinks), compiled[0].routes.schemas)
        compiled[0] = replace(compiled[0], routes=routes)
        return routes.schemas

    stages = build_stages(
        pipeline,
        as_spark_has_it,
        token,
        buckets=shape.buckets,
        partitions=shape.partitions,
        prefix=through_spark,
        is_columnar=is_columnar,
        analysis=analysis,
    )
    for operator, why in stages.bounds_end.items():
        log.warning("no bound but the end of the stream holds downstream of %r: %s", operator, why)
    levels = levels_of(stages, token, seeds, parts)
    if compiled:
        log.info("pipeline %r: Spark's plan computes what is upstream of the state", pipeline.name)
        task = PackTask(plan_packing(stages, compiled[0].routes))
        chunks = compiled[0].frame.mapInArrow(task, CHUNKS)
        ending = [node.name for node in pipeline.sources if reader.is_backfill or _is_bounded(node)]
        if ending or stages.waking:
            tick_us = TICK_US if stages.ticks else None
            packing = control_packing(stages, len(pipeline.sources), tick_us=tick_us)
            chunks = chunks.union(reader.controls(ending, packing))
    else:
        timestamps = {node.name: timestamp_of(node) for node in pipeline.sources}
        each = packings(stages, timestamps, tick_us=TICK_US if stages.ticks else None)
        looks_up = any(node.kind == TableLookup.kind for node in pipeline.nodes)  # in the version that its epoch sees
        if looks_up:
            reader = replace(reader, prefetch_bytes=0)  # nothing is read by planning processes before
        reader = replace(reader, has_rows=bool(stages.subplans))
        chunks = reduce(DataFrame.union, [reader.read(node, each[node.name]) for node in pipeline.sources])
        if not stages.subplans:
            return StatefulPlan(chunks, stages, levels, each)

    def subplans_behind(number: int) -> list[PlacedSubplan]:
        found = []
        while (part := stages.subplans.get(number := number + 1)) is not None:
            found.append(PlacedSubplan(subplans.compiled(part), number, stages.stages[number], stages.routing))
        return found

    if stages.subplans:
        evaluated = ", ".join(repr(node.name) for part in stages.subplans.values() for node in part.nodes)
        log.info("pipeline %r: Spark's plan evaluates %s, downstream of state", pipeline.name, evaluated)
    directory, below = str(reader.directory), reader.spark_directory
    frame = with_levels(chunks, levels, stages.routing, directory, below, subplans_behind)
    return StatefulPlan(frame, stages, levels, {})


@dataclass(frozen=True)
class PackTask:
    """Called by ``mapInArrow``.  Picklable.

    The order of arrival is that of Spark's partitions, which is the same in a replay.

    Parameters
    ----------
    packing : PlanPacking
        What it does.
    """

    packing: PlanPacking

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of this task."""
        context = TaskContext.get()
        assert context is not None
        with crossing():
            yield from self.packing.packed(context.partitionId(), batches)


def _is_bounded(node: Node) -> bool:
    return offers(node.spec, Bounded) and node.spec.bounded


def refuse_state(pipeline: str, frame: DataFrame) -> None:
    """Stop if Spark would keep state for a pipeline.

    Raises
    ------
    InvalidPipeline
        Naming the kinds of operators that do.
    """
    kinds = sorted(set(stateful_operators(frame)))
    if kinds:
        raise InvalidPipeline(
            f"pipeline {pipeline!r} keeps state in Spark: {', '.join(kinds)}.",
            why="map and sql are row-wise here; state without a name could not be restored, moved or inspected.",
            do="use row-wise expressions in map and sql.",
            pipeline=pipeline,
        )


def stateful_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the kinds of stateful operators that a frame's plan contains (Spark's names)."""
    waiting = [private.analyzed(frame)]
    while waiting:
        plan = waiting.pop()
        if private.is_streaming(plan):
            kind, inputs = private.kind_of(plan), private.children_of(plan)
            if kind in private.STATEFUL or (kind == "Join" and all(private.is_streaming(each) for each in inputs)):
                yield kind
            waiting.extend(inputs)
