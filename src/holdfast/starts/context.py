"""What a start is asked for, and what it works with: the checkpoint, a session of Spark, the graph ready to run."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.checkpointer import Intervals
from holdfast.checkpoint.directory_header import noted_beginning
from holdfast.checkpoint.graph_record import GraphRecord, read_graph
from holdfast.checkpoint.portable import NamedCheckpoint, find
from holdfast.checkpoint.snapshot import newest_buckets
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.display import lines
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import common_unit
from holdfast.graph.graph import Graph
from holdfast.graph.trigger import Trigger
from holdfast.plan.cutting import has_state
from holdfast.plan.levels.parts import BackgroundParts
from holdfast.plan.levels.seed import DirectorySeeds
from holdfast.plan.lookup_operation import pinned_in
from holdfast.plan.program import Program
from holdfast.plan.program_build import build_program
from holdfast.plan.shard_key import begin_keys
from holdfast.ports import Held, Store
from holdfast.spark import private
from holdfast.spark.compile import Compiled, as_spark_has_it, compile_pipeline
from holdfast.spark.launch import stop_directory
from holdfast.spark.launch.early import rows_in_jvm
from holdfast.spark.launch.log4j import divert
from holdfast.spark.launch.session import run_session, session_of
from holdfast.spark.launch.warm_workers import has_idle_core, warm_workers
from holdfast.spark.physical_plan import PhysicalPlan, check_machines, positions_only
from holdfast.spark.read import SourceReader, timestamp_of
from holdfast.spark.state.plan import compile_stateful, refuse_state
from holdfast.spark.state.shape import Division, StateShape, settle_shape
from holdfast.spark.state.snapshots import Snapshotting
from holdfast.starts.directory import Directory, check_places, directory_of, log_change
from holdfast.starts.in_doubt import resolve_dead_run
from holdfast.starts.rewind_target import check_finished
from holdfast.starts.start_at import StartAt, still_to_begin
from holdfast.store import encodings
from holdfast.store.paths import checkpoint_directory, open_store
from holdfast.store.scratch import address_in, is_where_chosen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("holdfast.run")


@dataclass(frozen=True)
class StartOptions:
    """What a start is asked for: the arguments of :func:`holdfast.starts.start.start`, in units of the engine."""

    pipeline: Graph
    checkpoint: str
    trigger: Trigger
    commit_every_ticks: int | None
    commit_thread: bool
    session: SparkSession | None
    settings: Settings
    begins: StartAt = field(default_factory=StartAt)
    until: int | None = None
    follows: bool = False
    """Whether epochs end at given positions (:mod:`holdfast.checkpoint.targets`), and nothing after them is read."""
    spark_checkpoint: str | None = None
    rebuild_state: bool = False
    compares: bool = False
    """Whether sinks are compared with what they should hold, and mended, before the run goes on."""
    compared_sinks: tuple[str, ...] = ()
    """Which ones; none: all that can be."""
    digests_only: bool = False
    """Whether what they should hold is kept as digests."""
    only_shard: int | None = None
    """The shard that is run alone."""
    pool: str = ""
    """Of Spark's scheduler, for the jobs of this run; empty: that of all which have none."""
    on_takeover: Callable[[Mapping[str, Held]], None] | None = None
    """Given what sinks hold, raises where the run may not go on: its segments are other shards' by now."""
    is_backfill: bool = False
    """Whether sources are read for a range of the past, beside the pipeline (design/0056)."""
    only_replays: bool = False
    """Whether the run ends once it has evaluated again what sinks hold, and plans nothing new."""

    @property
    def is_stateful(self) -> bool:
        """Whether an operator keeps state."""
        return has_state(self.pipeline)

    @property
    def timed_sources(self) -> list[str]:
        """The sources with a timestamp, where these have a minimum: TIMESTAMPs and BIGINT ticks have none."""
        sources = self.pipeline.sources
        return [node.name for node in sources if common_unit(sources) is not None and timestamp_of(node) is not None]

    @property
    def isolates(self) -> bool:
        """Whether rows that kill the run become dead letters."""
        return self.settings.on_poison == "isolate"

    @property
    def poison_limit_s(self) -> float | None:
        """How long an epoch may be evaluated, seconds; None where nothing is isolated."""
        return self.settings.poison_timeout_s if self.isolates else None


@dataclass(frozen=True)
class StartContext:
    """What a start begins with; nothing of the graph is compiled yet, and no run is fenced.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    clock : SystemClock
        The clock.
    begins : StartAt, optional
        How the pipeline begins; None where it has begun, or begins at the beginning.
    fork : NamedCheckpoint, optional
        The named checkpoint that it begins with.
    from_us : int, optional
        No row before this time is delivered.
    base_session, session : SparkSession
        The session that was given or made, and the run's own on the same context.
    parallelism : int
        Tasks that can run at a time.
    token : str
        Of this run alone.
    program : Program, optional
        What evaluates the pipeline's rows where none of them enters the JVM; known before there is one.
    stop_directory : Path
        Temporary files by which the driver talks to the processes of its sources.
    chosen : Directory
        Spark's directory in the checkpoint.
    before : GraphRecord, optional
        The graph of the directory before, where this run begins a new one because it changed.
    division : Division
        How state is to be divided.
    restore_logs : callable
        Ends what became of Spark's log in a session that was given; to be called when the run has ended.
    """

    store: Store
    directory: Path
    clock: SystemClock
    begins: StartAt | None
    fork: NamedCheckpoint | None
    from_us: int | None
    base_session: SparkSession
    session: SparkSession
    parallelism: int
    token: str
    program: Program | None
    stop_directory: Path
    chosen: Directory
    before: GraphRecord | None
    division: Division
    restore_logs: Callable[[], None]

    @property
    def spark(self) -> Path:
        """Where Spark's own part of the checkpoint lies."""
        return self.directory / self.chosen.below

    @property
    def stop_file(self) -> str:
        """The file that makes the sources stop."""
        return str(self.stop_directory / "stop")

    def new_session(self) -> SparkSession:
        """Return one more session on the same context, with the settings of a run."""
        return run_session(self.base_session, self.parallelism)


def context_of(
    asked: StartOptions, finish_rewind: Callable[[Store, Path], None] | None = None, misplaced: str = ""
) -> StartContext:
    """Open the checkpoint, resolve and carry through what a dead run left, get a session, choose Spark's directory.

    Parameters
    ----------
    asked : StartOptions
        What the start is asked for.
    finish_rewind : callable, optional
        Carries through a rewind that was interrupted; None within a rewind, and in checkpoints that nobody rewinds.
    misplaced : str
        As for :func:`~holdfast.starts.directory.directory_of`.
    """
    pipeline = asked.pipeline
    directory = checkpoint_directory(asked.checkpoint, scratch_base=asked.spark_checkpoint)
    store = open_store(str(directory))
    store.prepare()  # before a JVM is started for nothing
    _check_is_shared(asked, directory)
    # Before the rewind is looked for: one that was decided and is published here is then carried through.
    lines.say("resolving what the last run left")
    resolve_dead_run(pipeline, store, asked.settings)
    if finish_rewind is not None:
        finish_rewind(store, directory)
    else:
        check_finished(store, directory, pipeline.name, "where the run goes on")
    begins = still_to_begin(asked.begins, pipeline, store)
    fork = None if begins is None or begins.where is None else find(store, begins.where, is_part=begins.is_part)
    begun = noted_beginning(store)
    token = uuid.uuid4().hex
    pinned_in(token, str(directory))
    program = program_of(pipeline, asked.settings, token)
    lines.say("starting Spark")
    base_session = asked.session or session_of(asked.settings, rows=rows_in_jvm(pipeline, asked.settings))
    _check_names_files(base_session, directory)
    parallelism = max(1, base_session.sparkContext.defaultParallelism)
    session = run_session(base_session, parallelism)
    if asked.session is None and asked.settings.master.startswith("local") and has_idle_core():
        warm_workers(session, parallelism, PhysicalPlan if asked.is_stateful and asked.settings.columnar else program)
    division = Division(asked.settings.buckets, asked.settings.partitions)
    chosen = directory_of(pipeline, store, directory, division, misplaced)
    log_change(chosen)
    before = read_graph(store, chosen.previous) if chosen.is_changed else None
    return StartContext(
        store=store,
        directory=directory,
        clock=SystemClock(),
        begins=begins,
        fork=fork,
        from_us=begins.at_us if begins is not None else None if begun is None else begun[1].from_us,
        base_session=base_session,
        session=session,
        parallelism=parallelism,
        token=token,
        program=program,
        stop_directory=stop_directory.create(),
        chosen=chosen,
        before=before,
        division=division,
        restore_logs=divert(base_session.sparkContext),
    )


def _check_names_files(session: SparkSession, directory: Path) -> None:
    """Refuse a JVM that was not started here, and has another encoding of names than the checkpoint needs."""
    if not str(directory).isascii():
        encodings.check_jvm("the checkpoint", str(directory), private.encoding_of_names(session))


def _check_is_shared(asked: StartOptions, scratch: Path) -> None:
    """Refuse state on a cluster whose machines do not see where it is kept."""
    master = asked.settings.master if asked.session is None else asked.session.sparkContext.master
    is_told = address_in(scratch) is None or asked.spark_checkpoint is not None or is_where_chosen(scratch)
    if is_told or master.startswith("local") or not asked.is_stateful:
        return
    raise InvalidPipeline(
        f"pipeline {asked.pipeline.name!r} keeps state on {master}, and its checkpoint is in an object store.",
        why=f"executors read and write state in Spark's directory, which is {scratch} on this machine.",
        do="set spark_checkpoint= (--spark-checkpoint, HOLDFAST_SPARK_CHECKPOINT) to a directory that every machine "
        "sees under the same path.",
        pipeline=asked.pipeline.name,
    )


def program_of(pipeline: Graph, settings: Settings, token: str) -> Program | None:
    """Return what evaluates a pipeline's rows without the JVM; None where it has a part in that."""
    if has_state(pipeline) or not settings.columnar:
        return None
    return build_program(pipeline, as_spark_has_it, token)


def physical_plan_of(asked: StartOptions, context: StartContext) -> PhysicalPlan:
    """Compile a graph in the way that suits it: in stages, as an Arrow program, or as Spark's plan."""
    pipeline, settings = asked.pipeline, asked.settings
    check_machines(pipeline, context.session.sparkContext.master)
    program = context.program
    reader = SourceReader(
        context.session,
        context.directory,
        context.parallelism,
        settings.prefetch_max_bytes,
        context.stop_file,
        context.chosen.below,
        has_rows=program is None,
        keeps_replays=asked.is_stateful and settings.checkpoint_freq > 0,
        pipeline=pipeline.name,
        from_us=context.from_us,
        has_paces=any(sink.pace is not None for sink in pipeline.sinks),
        until=asked.until,
        follows=asked.follows,
        is_backfill=asked.is_backfill,
        is_bounded=asked.trigger.interval_us is None,
        keys=begin_keys(pipeline, context.directory),
    )
    if asked.is_stateful:
        way = "in stages, with state between them"
        physical = _with_state(asked, context, reader)
    elif program is None:
        way = "through Spark's plan"
        compiled = compile_pipeline(pipeline, reader.read, context.token)
        refuse_state(pipeline.name, compiled.frame)
        physical = PhysicalPlan(pipeline, context.session, context.parallelism, reader, compiled)
    else:
        way = "as an Arrow program: its rows stay out of the JVM"
        compiled = Compiled(positions_only(pipeline, reader), program.routes)
        physical = PhysicalPlan(pipeline, context.session, context.parallelism, reader, compiled, program)
    check_places(context.spark, context.chosen.below, reader.streams_in(physical.compiled.frame))
    log.info("pipeline %r is evaluated %s", pipeline.name, way)
    return physical


def _with_state(asked: StartOptions, context: StartContext, reader: SourceReader) -> PhysicalPlan:
    shape = _shape(context)
    context.session.conf.set("spark.sql.shuffle.partitions", str(shape.partitions))
    stateful = compile_stateful(
        asked.pipeline,
        reader,
        context.token,
        shape,
        is_columnar=asked.settings.columnar,
        seeds=DirectorySeeds(str(context.directory), context.chosen.below, context.token),
        parts=BackgroundParts(str(context.directory), context.token),
    )
    intervals = Intervals(
        asked.settings.checkpoint_freq * 1000,
        asked.settings.controller_checkpoint_freq * 1000,
        asked.settings.checkpoint_keep,
    )
    return PhysicalPlan(
        asked.pipeline,
        context.session,
        context.parallelism,
        reader,
        Compiled(stateful.frame, stateful.stages.routes),
        stateful=stateful,
        snapshotting=Snapshotting(
            context.store,
            context.directory,
            context.chosen.below,
            shape,
            intervals,
            context.token,
        ),
    )


def _shape(context: StartContext) -> StateShape:
    """Return how state is divided, and record it in Spark's directory."""
    store, below, division = context.store, context.chosen.below, context.division
    previous = newest_buckets(store) if context.before is None else context.before.buckets
    if context.fork is not None:
        store.delete(f"{below}/state.json")  # left by a start that was refused: nothing has begun
        division = replace(division, buckets=context.fork.manifest.buckets)  # others take effect at the next start
    return settle_shape(store, below, context.parallelism, division, previous=previous)
