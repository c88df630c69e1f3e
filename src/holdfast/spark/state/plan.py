"""The Spark plan of a pipeline with state: sources as chunks, the levels, and how many buckets and tasks there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.checkpoint.manifest import StateSchema
from holdfast.graph.naming import canonical_json
from holdfast.graph.pipeline import Pipeline
from holdfast.operators.stateful.gate_step import GateStep
from holdfast.plan.chunks import CHUNKS
from holdfast.plan.cutting import FirstStage, build_stages, has_idle_rule
from holdfast.plan.feeds import Unchanged
from holdfast.plan.levels.host import levels_of
from holdfast.plan.levels.level import Level
from holdfast.plan.levels.packing import Packing, packings
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.program_build import has_user_code
from holdfast.plan.routes import Routes
from holdfast.plan.stages import Stages
from holdfast.ports import Bounded, Store
from holdfast.resume.directory_header import FILE_NAME
from holdfast.resume.graph_record import unreadable
from holdfast.resume.state_upgrade import StateUpgrade
from holdfast.spark.compile import as_spark_has_it, compile_pipeline
from holdfast.spark.controls import NAME
from holdfast.spark.read import SourceReader, timestamp_of
from holdfast.spark.state.host import with_levels
from holdfast.spark.state.pack_task import PackTask, SourceClock
from holdfast.store import checked_json

log = logging.getLogger("holdfast.run")

JOURNAL = "journal"
"""How ``state.json`` says where state is kept (:mod:`holdfast.plan.levels.journal`)."""

TICK_US = 1_000_000
"""Least time from one epoch to the next that is planned without rows, where one can release something."""


@dataclass(frozen=True)
class StateShape:
    """How state is divided: fixed when a Spark checkpoint directory is new.

    Parameters
    ----------
    buckets : int
        Of each operator.
    partitions : int
        Tasks of a level.
    is_in_journal : bool
        Whether it is kept in the journal; False for directories of older versions, whose state is in Spark's store.
    """

    buckets: int
    partitions: int
    is_in_journal: bool = True


@dataclass(frozen=True)
class Division:
    """How the settings ask for state to be divided; 0 leaves it as it is, or to the number of cores.

    Parameters
    ----------
    buckets, partitions : int
        As in :class:`StateShape`.
    """

    buckets: int = 0
    partitions: int = 0

    def shape(self, parallelism: int, previous: int = 0) -> StateShape:
        """Return the shape of a new directory; ``previous`` is the bucket count of the state that it takes over, or 0.

        Examples
        --------
        >>> Division().shape(4), Division(partitions=5).shape(2, previous=2), Division(8).shape(2, previous=4)
        (StateShape(buckets=4, partitions=4), StateShape(buckets=5, partitions=5), StateShape(buckets=8, partitions=2))
        """
        count = self.buckets or max(previous or parallelism, self.partitions)
        return StateShape(count, min(self.partitions or parallelism, count))

    def outgrown(self, shape: StateShape) -> Iterator[str]:
        """Yield how the shape asked for differs from the existing one.

        Examples
        --------
        >>> list(Division(8, 2).outgrown(StateShape(4, 2))), list(Division().outgrown(StateShape(4, 2)))
        (['state is divided into 8 buckets, and no longer into 4'], [])
        """
        if not shape.is_in_journal:
            yield "state is kept in a journal, and no longer in Spark's store"
        wanted = self.shape(shape.partitions, shape.buckets)
        if wanted.buckets != shape.buckets:
            yield f"state is divided into {wanted.buckets} buckets, and no longer into {shape.buckets}"
        if wanted.partitions != shape.partitions:
            yield f"{wanted.partitions} tasks work on it at a time, and no longer {shape.partitions}"


def settle_shape(store: Store, directory: str, parallelism: int, asked: Division, *, previous: int = 0) -> StateShape:
    """Return how state is divided, decided now if the directory is new.

    Parameters
    ----------
    store : Store
        The checkpoint.
    directory : str
        Spark's directory below it.
    parallelism : int
        Tasks that can run at a time.
    asked : Division
        What the settings ask for.
    previous : int
        Buckets of the state that a new directory begins with; 0 when it begins with none.

    Raises
    ------
    Corrupt
        If the record is damaged.
    """
    noted = noted_shape(store, directory)
    # A directory without an origin does not count: a start that died may have asked for another shape.
    if noted is None or store.get(f"{directory}/{FILE_NAME}") is None:
        noted = asked.shape(parallelism, previous)
        note_shape(store, directory, noted)
    return noted


def note_shape(store: Store, directory: str, shape: StateShape) -> None:
    """Note how state is divided in a directory."""
    record = {"buckets": shape.buckets, "partitions": shape.partitions, "kept": JOURNAL}
    store.put(f"{directory}/state.json", checked_json.dump(record))


def noted_shape(store: Store, directory: str) -> StateShape | None:
    """Return how state is divided in a directory; None where nothing is recorded.

    Raises
    ------
    Corrupt
        If the record is damaged.
    """
    key = f"{directory}/state.json"
    noted = store.get(key)
    if noted is None:
        return None
    try:
        value = checked_json.load(noted)
        return StateShape(int(value["buckets"]), int(value["partitions"]), value.get("kept") == JOURNAL)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(key, error, "it says into how many buckets state is divided") from error


def state_schemas_of(pipeline: Pipeline, stages: Stages) -> dict[str, StateSchema]:
    """Return the state tables of each stateful operator."""
    arguments = {node.name: (node.kind, canonical_json(dict(node.arguments()))) for node in pipeline.nodes}
    hosted = {name: one for stage in stages.stages for name, one in stage.hosted.items()}
    return {name: StateSchema(*arguments[name], one.step.key, one.step.tables) for name, one in hosted.items()}


def upgrades_of(pipeline: Pipeline, stages: Stages) -> dict[str, StateUpgrade]:
    """Return how each stateful operator takes over the state of another version of itself."""
    pasts = {node.name: node.past for node in pipeline.nodes}
    return {name: StateUpgrade(pasts[name], one.step) for stage in stages.stages for name, one in stage.hosted.items()}


def _clocks_of(stages: Stages) -> dict[int, SourceClock]:
    """Return the branches of sources' timestamps, where a pipeline commits at pts: target -> whose they are."""
    hosted = [one for stage in stages.stages for one in stage.hosted.values()]
    return {
        one.targets[name]: SourceClock(name, clock.by_rows, stages.row_bounds.get(name))
        for one in hosted
        if isinstance(one.step, GateStep)
        for name, clock in one.step.clocks.items()
        if name in stages.closing  # a source, not an operator
    }


@dataclass(frozen=True)
class StatefulPlan:
    """A pipeline with state as Spark will run it.

    Parameters
    ----------
    frame : DataFrame
        Chunks for the sinks, and counts.
    stages : Stages
        What they mean.
    levels : sequence of Level
        The same levels, for epochs that this process evaluates.
    packings : mapping of str to Packing
        How it reads the sources then; empty where it is not this process's to do.
    """

    frame: DataFrame
    stages: Stages
    levels: Sequence[Level]
    packings: Mapping[str, Packing]


def compile_stateful(
    pipeline: Pipeline,
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
    pipeline : Pipeline
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
    compiled: list[tuple[DataFrame, Routes]] = []
    analysis: dict[str, Unchanged] = {}
    reader = replace(reader, notes_silence=has_idle_rule(pipeline))

    def through_spark(part: FirstStage) -> Sequence[pa.Schema]:
        found = compile_pipeline(part, replace(reader, marks_ends=True, with_bounds=True).read, token)
        compiled.append((found.frame, found.routes))
        analysis.update(found.analysis)
        return found.routes.schemas

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
    each: dict[str, Packing] = {}
    levels = levels_of(stages, token, seeds, parts)
    if compiled:
        log.info("pipeline %r: Spark's plan computes what is upstream of the state", pipeline.name)
        frame, routes = compiled[0]
        task = PackTask(routes, stages.routing, stages.bounding, _clocks_of(stages))
        chunks = frame.mapInArrow(task, CHUNKS)
        ending = [node.name for node in pipeline.sources if isinstance(node.spec, Bounded) and node.spec.bounded]
        if ending or stages.waking:
            tick_us = TICK_US if stages.ticks else None
            number = len(pipeline.sources)
            packing = Packing(NAME, number, None, stages.routing, None, stages.closing, stages.waking, tick_us)
            chunks = chunks.union(reader.controls(ending, packing))
    else:
        program = stages.stages[0].program
        assert program is not None
        timestamps = {node.name: timestamp_of(node) for node in pipeline.sources}
        tick_us = TICK_US if stages.ticks else None
        each = packings(
            program,
            stages.routing,
            timestamps,
            stages.closing,
            stages.waking,
            tick_us,
            stages.bounding,
            stages.row_bounds,
        )
        if has_user_code(pipeline.nodes):  # it belongs into workers
            packed, each = each, {}
        else:  # small epochs are read in this process, and not before by planning processes
            packed, reader = each, replace(reader, prefetch_bytes=0)
        chunks = reduce(DataFrame.union, [reader.read(node, packed[node.name]) for node in pipeline.sources])
    frame = with_levels(chunks, levels, stages.routing, str(reader.directory), reader.spark_directory)
    return StatefulPlan(frame, stages, levels, each)
