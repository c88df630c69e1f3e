"""A graph made ready to run: in one of three ways its rows are evaluated (design/0003, design/0010)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.graph_record import GraphRecord, described
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import InvalidPipeline, present
from holdfast.graph.graph import Graph
from holdfast.graph.side_outputs import SideOutput
from holdfast.operators.lowering import lowering_of
from holdfast.operators.stateful.gate import Released
from holdfast.plan.audit import Audit, audit_behind_spark, audit_of_program, audit_of_stages
from holdfast.plan.counts import Observed
from holdfast.plan.cutting import has_state
from holdfast.plan.levels.host import LevelsHere
from holdfast.plan.levels.journal import StateJournal
from holdfast.plan.levels.line import Outlets
from holdfast.plan.program import Program
from holdfast.plan.program_build import build_program, has_user_code
from holdfast.plan.stages import Stages
from holdfast.positions import Positions
from holdfast.quarantine.mask import Mask, Passing
from holdfast.spark.compile import Compiled, as_spark_has_it, compile_pipeline
from holdfast.spark.evaluation import (
    ColumnarEvaluation,
    Evaluation,
    Here,
    ProgramHere,
    Reader,
    SourcesHere,
    SparkEvaluation,
    timestamps_of,
)
from holdfast.spark.kept_worker import KeptWorker
from holdfast.spark.launch.session import run_session
from holdfast.spark.quarantine.probe import Probe
from holdfast.spark.read import SourceReader
from holdfast.spark.state.evaluation import PlanJob, StateEvaluation
from holdfast.spark.state.here import EvaluationHere, PiecesAt
from holdfast.spark.state.jobs import LevelJobs
from holdfast.spark.state.plan import StatefulPlan, compile_stateful, refuse_state, state_schemas_of, upgrades_of
from holdfast.spark.state.shape import StateShape
from holdfast.spark.state.snapshots import Snapshotting

log = logging.getLogger("holdfast.run")

T = TypeVar("T")


@dataclass(frozen=True)
class PhysicalPlan:
    """A graph that is ready to run.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    session : SparkSession
        Of the run.
    parallelism : int
        Tasks that can run at a time.
    reader : SourceReader
        How its sources are read.
    compiled : Compiled
        The frame that Spark runs.
    program : Program, optional
        Evaluates all rows as Arrow tables; None where Spark's plan or stages do.
    stateful : StatefulPlan, optional
        The stages; None without state.
    snapshotting : Snapshotting, optional
        Makes snapshots of the state; None without state.
    """

    pipeline: Graph
    session: SparkSession
    parallelism: int
    reader: SourceReader
    compiled: Compiled
    program: Program | None = None
    stateful: StatefulPlan | None = None
    snapshotting: Snapshotting | None = None

    @cached_property
    def state_schemas(self) -> dict[str, StateSchema]:
        """The state tables of each stateful operator."""
        return {} if self.stateful is None else state_schemas_of(self.pipeline, self.stateful.stages)

    @cached_property
    def upgrades(self) -> dict[str, StateUpgrade]:
        """How each stateful operator takes over the state of another version of itself."""
        return {} if self.stateful is None else upgrades_of(self.pipeline, self.stateful.stages)

    @cached_property
    def graph(self) -> GraphRecord:
        """The graph as a checkpoint records it."""
        return described(
            self.pipeline, self.state_schemas, 0 if self.snapshotting is None else self.snapshotting.shape.buckets
        )

    @cached_property
    def counted_filters(self) -> frozenset[str]:
        """The filters that count the rows they drop: those that Arrow evaluates."""
        stages = [] if self.stateful is None else [stage.program for stage in self.stateful.stages.stages]
        return frozenset().union(*(program.filters for program in (self.program, *stages) if program is not None))

    @cached_property
    def in_spark(self) -> frozenset[str]:
        """The nodes that Spark's plan evaluates, sources whose rows it reads among them."""
        stages = () if self.stateful is None else self.stateful.stages.stages
        programs = [self.program, *(stage.program for stage in stages)]
        in_arrow = frozenset[str]().union(*(program.counted for program in programs if program is not None))
        return frozenset(
            node.name
            for node in self.pipeline.nodes
            if not lowering_of(node).keeps_state and not isinstance(node.spec, SideOutput | Released)
        ).difference(in_arrow)

    @property
    def audit(self) -> Audit:
        """The equations that the counts of an epoch are held to."""
        if self.stateful is not None:
            return audit_of_stages(self.pipeline, self.stateful.stages)
        if self.program is None:
            return audit_behind_spark(self.pipeline)
        return audit_of_program(self.pipeline, self.program)

    def evaluation(
        self,
        observe: Callable[[], Mapping[str, Observed]],
        barriers: Barriers,
        masks: Mapping[str, Mask],
        *,
        retired: Positions,
        journal: StateJournal | None,
        passing: Callable[[int], Passing],
    ) -> Evaluation:
        """Return how batches are evaluated; journal, and what passes behind it, are those of state, if there is any."""
        sources = partial(SourcesHere, self._readers, masks, retired)
        if self.stateful is not None:
            outlets, journal = (
                Outlets.of(self.stateful.stages),
                present(journal, "state is evaluated without a journal."),
            )
            if not self.stateful.packings:
                return StateEvaluation(outlets, observe, barriers, journal, None, PlanJob(), passing)
            levels = LevelsHere(self.stateful.levels, self.stateful.stages.routing)
            pieces = PiecesAt(str(self.reader.directory), self.reader.spark_directory)
            here = EvaluationHere(sources(), self.stateful.packings, levels, self.parallelism, pieces)
            job = LevelJobs.of(self.session, self.stateful, sources(), self._readers, pieces, self.parallelism)
            return StateEvaluation(outlets, observe, barriers, journal, self._placed(here), job, passing)
        if self.program is None:
            return SparkEvaluation(self.compiled.routes, observe)
        program = ProgramHere(self.program, sources(), timestamps_of(self._readers))
        return ColumnarEvaluation(
            self.session, self.program, self._readers, self.parallelism, sources(), self._placed(program)
        )

    def _placed(self, here: Here[T]) -> Here[T] | None:
        """Return what evaluates small epochs at its place: functions of the user are called in the kept worker."""
        if not has_user_code(self.pipeline.nodes):
            return here
        return KeptWorker(here, here.times) if is_local(self.session) else None

    def probe(self, limit_s: float | None) -> Probe | None:
        """Return what finds rows that end a worker; None where Spark's plan evaluates all rows."""
        program = self._first_program
        session = None if is_local(self.session) else self.session
        return None if program is None else Probe(session, program, self._readers, self.parallelism, limit_s)

    @property
    def _first_program(self) -> Program | None:
        """What takes the rows of the sources, with state: what stands before it; None where Spark's plan does."""
        return self.program if self.stateful is None else self.stateful.stages.stages[0].program

    @property
    def _readers(self) -> dict[str, Reader]:
        reader, program = self.reader, self._first_program
        used = {} if program is None else {node.name: program.reads(node.name) for node in self.pipeline.sources}
        return {
            node.name: Reader(reader.spec(node), node.name, reader.workspace(node), used.get(node.name))
            for node in self.pipeline.sources
        }


def is_local(session: SparkSession) -> bool:
    """Tell whether tasks run on this machine: what a function needs is here then."""
    return is_local_master(session.sparkContext.master)


def is_local_master(master: str) -> bool:
    """Tell whether a master runs tasks on this machine."""
    return master.startswith("local")


def check_machines(pipeline: Graph, master: str) -> None:
    """Refuse operators whose workers need one disk, where each machine would have its own.

    Raises
    ------
    InvalidPipeline
        If the pipeline has one, and tasks run on other machines than the driver's.
    """
    refused = [node for node in pipeline.nodes if lowering_of(node).on_one_machine]
    if refused and not is_local_master(master):
        raise InvalidPipeline(
            f"{refused[0].kind} {refused[0].name!r} cannot run on {master!r}.",
            why="what it records is in a file of one machine: workers on others would not find it after a crash, "
            "and do again what was done.",
            do='run it on one machine (HOLDFAST_MASTER="local[*]"), and let it write to a topic or a table that the '
            "pipeline on the cluster reads.",
            pipeline=pipeline.name,
            participant=refused[0].name,
        )


def positions_only(pipeline: Graph, reader: SourceReader) -> DataFrame:
    """Return a frame that lets Spark plan epochs over all sources; its rows are never read."""
    frames = [reader.read(node).select(F.lit(1).alias("unread")) for node in pipeline.sources]
    return reduce(DataFrame.union, frames)


def check_compiled(pipeline: Graph, session: SparkSession, *, is_columnar: bool = True) -> None:
    """Compile a graph as a start does, in a session of its own, and do nothing with it.

    Raises
    ------
    InvalidPipeline
        What a start would raise.
    """
    session = run_session(session, 1)
    compiled_stages(pipeline, session, is_columnar=is_columnar)
    if not has_state(pipeline):
        reader = SourceReader(session, Path(), 1, 0, "", "")
        refuse_state(pipeline.name, compile_pipeline(pipeline, reader.read, _UNUSED).frame)


def compiled_stages(pipeline: Graph, session: SparkSession, *, is_columnar: bool) -> Stages | None:
    """Return the stages of a graph as a start compiles it, in one bucket each; None without state."""
    if not has_state(pipeline):
        return None
    reader = SourceReader(session, Path(), 1, 0, "", "")
    return compile_stateful(pipeline, reader, _UNUSED, StateShape(1, 1), is_columnar=is_columnar).stages


def columns_of_sinks(pipeline: Graph, session: SparkSession, *, is_columnar: bool = True) -> dict[str, pa.Schema]:
    """Return sink -> the columns of its rows, as a start compiles them, in a session of its own.

    Raises
    ------
    InvalidPipeline
        What a start would raise.
    """
    session = run_session(session, 1)
    stages = compiled_stages(pipeline, session, is_columnar=is_columnar)
    program = build_program(pipeline, as_spark_has_it, _UNUSED) if stages is None and is_columnar else None
    reader = SourceReader(session, Path(), 1, 0, "", "")
    routes = (stages or program or compile_pipeline(pipeline, reader.read, _UNUSED)).routes
    return dict(zip(routes.sinks, routes.schemas, strict=True))


_UNUSED = "plan"
"""Stands for the token of a run that will not be."""
