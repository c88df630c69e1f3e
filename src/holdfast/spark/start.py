"""Starts: a pipeline is compiled, taken over, recovered, and set running on Spark."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import checked_json
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.checkpointer import Checkpointer, Intervals
from holdfast.checkpoint.dead_letters import DeadLetters
from holdfast.checkpoint.graph_change import described, state_fingerprint
from holdfast.checkpoint.manifest import Ended, decode
from holdfast.checkpoint.portable import find
from holdfast.checkpoint.snapshot import newest_buckets
from holdfast.checkpoint.store import directory_of, open_store
from holdfast.checkpoint.user_data import UserData, recovered
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.retry import Retry
from holdfast.config import Settings, unknown_variables
from holdfast.errors import Corrupt, Diverged, HoldfastError, InvalidPipeline
from holdfast.graph import is_stateful as is_stateful_node
from holdfast.hooks import Lifecycle
from holdfast.pipeline import Pipeline
from holdfast.ports import Guarantee, Held, Sink, Store
from holdfast.positions import Positions
from holdfast.sources.lettered import Mask, mask_file, write_masks
from holdfast.spark.backfill import Backfill
from holdfast.spark.compile import Compiled, as_spark_has_it, compile_pipeline
from holdfast.spark.datasource import HoldfastDataSource
from holdfast.spark.directory import choose_directory, give_up, newest
from holdfast.spark.epoch_loop import EpochLoop, Limits, check_commit_every
from holdfast.spark.evaluation import ColumnarEvaluation, Evaluation, Observed, Reader, SparkEvaluation
from holdfast.spark.failure import translate
from holdfast.spark.first import Begins, First
from holdfast.spark.isolate import Isolating, Suspicion, check_addresses, told_of
from holdfast.spark.origin import Beginning, Origin, noted_beginning, settle_origin
from holdfast.spark.program import build_program
from holdfast.spark.read import SourceReader, timestamp_of
from holdfast.spark.rewind import Rewinding
from holdfast.spark.run import Run
from holdfast.spark.session import create_session, run_session
from holdfast.spark.snapshots import Snapshotting
from holdfast.spark.state_change import StateChange, compared, outgrown, read_graph, told, write_graph
from holdfast.spark.state_evaluation import StateEvaluation
from holdfast.spark.state_parts import BackgroundParts
from holdfast.spark.state_plan import Division, Stateful, compile_stateful, keeps_of, means_of, settle_shape
from holdfast.spark.state_pressure import BackPressure, hold_file, limited_operators
from holdfast.spark.state_report import OperatorReports
from holdfast.spark.state_seed import DirectorySeeds, seed_of
from holdfast.spark.state_stages import Stages, has_state
from holdfast.spark.state_transfer import Transfer
from holdfast.spark.stateful import stateful_operators
from holdfast.spark.trials import COPY, Trials
from holdfast.trigger import Trigger
from holdfast.units import duration_us, time_us

log = logging.getLogger("holdfast.run")


def start(
    pipeline: Pipeline,
    *,
    checkpoint: str,
    trigger: Trigger,
    commit_every: str | None = None,
    commit_thread: bool = True,
    master: str | None = None,
    session: SparkSession | None = None,
    settings: Settings | None = None,
    checkpoint_freq: int | None = None,
    keep: int | None = None,
    force: bool | None = None,
    from_checkpoint: str | None = None,
    at: str | datetime | int | None = None,
    on_poison: str | None = None,
) -> Run:
    """Start a pipeline: take it over, resolve what is in doubt, then run epochs.

    Parameters
    ----------
    pipeline : Pipeline
        The graph.
    checkpoint : str
        Directory that belongs to this pipeline alone; created when absent.
    trigger : Trigger
        ``hf.every(interval)`` or ``hf.available_now()``.
    commit_every : str, optional
        Publish only when the minimum timestamp over the inputs has moved by this much (``"1 s"``): fewer, larger
        transactions.  Epochs are decided as they come, so nothing is lost; every source needs ``timestamp=``.
    commit_thread : bool, default True
        Publish decided epochs in the background, in order, while the next one is evaluated.  Applies to epochs that
        executors staged for several sinks.
    master : str, optional
        Spark master for a session that Holdfast creates; default is the setting ``HOLDFAST_MASTER``.
    session : SparkSession, optional
        Use this session's context.  Settings of the run are made on a new session of it.
    settings : Settings, optional
        Default: read from ``HOLDFAST_*`` variables.
    checkpoint_freq : int, optional
        Milliseconds between two snapshots of state; 0 makes none by itself.  Default is the setting
        ``HOLDFAST_CHECKPOINT_FREQ``.
    keep : int, optional
        Snapshots that are kept.  Default is the setting ``HOLDFAST_CHECKPOINT_KEEP``.
    force : bool, optional
        Start a changed graph also where state is lost by it.  Default is the setting ``HOLDFAST_FORCE_GRAPH_CHANGE``.
    from_checkpoint : str, optional
        Begin with the state and the positions of a named checkpoint: its name, ``<checkpoint directory>/<name>`` of
        another pipeline's, or the directory of an export.  For the first start, with new sinks; a later start goes on
        where the pipeline is.
    at : str, datetime or int, optional
        Begin at a time (ISO 8601, UTC without a zone; or microseconds of Unix time): each source at its random access
        point at or before it, and no row whose timestamp lies before it is delivered.  For the first start, with new
        sinks; every source needs ``timestamp=``.
    on_poison : str, optional
        ``"isolate"`` makes dead letters of rows that kill the run again and again; ``"stop"`` does not.  Default is the
        setting ``HOLDFAST_ON_POISON``.

    Returns
    -------
    Run

    Raises
    ------
    InvalidPipeline
        If the graph, a schema, the checkpoint's owner or a setting is wrong.  Nothing has run.
    Fenced
        If a newer generation took over in the meantime.
    Unavailable
        If a sink does not answer.
    """
    if settings is None:  # whoever brought settings has looked at the variables himself
        settings = Settings()
        for warning in unknown_variables():
            log.warning("%s", warning)
    given = {
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_keep": keep,
        "force_graph_change": force,
        "on_poison": on_poison,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    if asked:
        settings = Settings(**{**settings.model_dump(), **asked})
    lifecycle = Lifecycle(pipeline.hooks, pipeline.name)
    starting = _Starting(
        pipeline=pipeline,
        checkpoint=checkpoint,
        trigger=trigger,
        commit_every_us=None if commit_every is None else duration_us(commit_every, argument="commit_every"),
        commit_thread=commit_thread,
        master=master,
        session=session,
        settings=settings,
        from_checkpoint=from_checkpoint,
        at_us=None if at is None else time_us(at, argument="at"),
        lifecycle=lifecycle,
    )
    lifecycle.set_up()
    try:
        return starting.run()
    except Exception as error:
        lifecycle.fail(error if isinstance(error, HoldfastError) else translate(error, pipeline.name, "the start"))
        raise
    finally:
        if not starting.has_begun:
            lifecycle.tear_down()


def start_all(pipelines: Sequence[Pipeline], *, checkpoint: str, **options: Any) -> list[Run]:
    """Start several independent pipelines in one process: each with its own coordinator, epochs and pts.

    Parameters
    ----------
    pipelines : sequence of Pipeline
        Their names must differ.
    checkpoint : str
        Directory; each pipeline gets ``<checkpoint>/<pipeline>``.
    **options
        As for :func:`start`.

    Returns
    -------
    list of Run
        In the order of ``pipelines``.  When one cannot be started, those already started are stopped.
    """
    names = [pipeline.name for pipeline in pipelines]
    if len(set(names)) != len(names):
        raise InvalidPipeline(
            f"start_all was given several pipelines of one name: {', '.join(names)}.",
            why="the name is the identity of a pipeline in its checkpoint and in every sink.",
            do="give each pipeline a name of its own.",
        )
    runs: list[Run] = []
    try:
        for pipeline in pipelines:
            runs.append(pipeline.start(checkpoint=str(Path(checkpoint) / pipeline.name), **options))
    except BaseException:
        for run in runs:
            run.stop()
        raise
    return runs


@dataclass
class _Starting:
    """The steps of a start, in their order."""

    pipeline: Pipeline
    checkpoint: str
    trigger: Trigger
    commit_every_us: int | None
    commit_thread: bool
    master: str | None
    session: SparkSession | None
    settings: Settings
    lifecycle: Lifecycle
    from_checkpoint: str | None = None
    at_us: int | None = None
    has_begun: bool = False

    def run(self) -> Run:
        sources = [node.name for node in self.pipeline.sources]
        timed = [node.name for node in self.pipeline.sources if timestamp_of(node) is not None]
        check_commit_every(self.commit_every_us, timed, sources)
        isolates = self.settings.on_poison == "isolate"
        if isolates:
            check_addresses(self.pipeline)
        directory = directory_of(self.checkpoint)
        store = open_store(str(directory))
        clock = SystemClock()
        rewinding = Rewinding(self.pipeline, store, directory, self.settings)
        rewinding.carry_through()
        begins = self._begins(store)
        fork = None if begins is None or begins.where is None else find(store, begins.where)
        begun = noted_beginning(store)
        from_us = begins.at_us if begins is not None else None if begun is None else begun[1].from_us
        base_session = self.session or create_session(
            self.master or self.settings.master, f"{self.settings.driver_memory_mib}m"
        )
        parallelism = max(1, base_session.sparkContext.defaultParallelism)
        session = run_session(base_session, parallelism)
        session.dataSource.register(HoldfastDataSource)
        stop_directory = Path(tempfile.mkdtemp(prefix="holdfast-run-"))
        stop_file = stop_directory / "stop"
        token = uuid.uuid4().hex
        is_stateful = has_state(self.pipeline)
        asked = Division(self.settings.buckets, self.settings.partitions)
        chosen = choose_directory(
            store, directory, state_fingerprint(self.pipeline), partial(outgrown, self.pipeline, store, asked)
        )
        before = read_graph(store, chosen.previous) if chosen.is_changed else None
        use_program = self.settings.columnar and not is_stateful
        program = build_program(self.pipeline, as_spark_has_it, token) if use_program else None
        reader = SourceReader(
            session,
            directory,
            parallelism,
            self.settings.prefetch_max_bytes,
            str(stop_file),
            chosen.below,
            has_rows=program is None,
            keeps_replays=is_stateful and self.settings.checkpoint_freq > 0,
            from_us=from_us,
        )
        way = "through Spark's plan" if program is None else "as an Arrow program: its rows stay out of the JVM"
        if is_stateful:
            way = "in stages, with state between them"
        log.info("pipeline %r is evaluated %s", self.pipeline.name, way)
        stateful: Stateful | None = None
        snapshotting: Snapshotting | None = None
        if is_stateful:
            previous = newest_buckets(store) if before is None else before.buckets
            if fork is not None:
                store.delete(f"{chosen.below}/state.json")  # of a start that was refused: nothing has begun
                asked = replace(asked, buckets=fork.manifest.buckets)  # other buckets are for the next start
            shape = settle_shape(store, chosen.below, parallelism, asked, previous=previous)
            session.conf.set("spark.sql.shuffle.partitions", str(shape.partitions))
            seeds = DirectorySeeds(str(directory), chosen.below, token)
            stateful = compile_stateful(
                self.pipeline,
                reader,
                token,
                shape,
                is_columnar=self.settings.columnar,
                seeds=seeds,
                parts=BackgroundParts(str(directory), token),
            )
            intervals = Intervals(
                self.settings.checkpoint_freq * 1000,
                self.settings.controller_checkpoint_freq * 1000,
                self.settings.checkpoint_keep,
            )
            snapshotting = Snapshotting(store, directory, chosen.below, base_session, shape, intervals, token)
            compiled = Compiled(stateful.frame, stateful.stages.routes)
        elif program is None:
            compiled = compile_pipeline(self.pipeline, reader.read, token)
            _refuse_state(self.pipeline, compiled.frame)
        else:
            compiled = Compiled(_positions_only(self.pipeline, reader), program.routes)
        keeps = {} if stateful is None else keeps_of(self.pipeline, stateful.stages)
        graph = described(self.pipeline, keeps, 0 if snapshotting is None else snapshotting.shape.buckets)
        means = {} if stateful is None else means_of(self.pipeline, stateful.stages)
        change = compared(store, directory, chosen, graph, means, self.pipeline)
        if change is not None:
            for line in told(change):
                log.info("%s", line)
            change.check(self.pipeline.name, is_forced=self.settings.force_graph_change)
            if change.backfilled:
                Backfill(self.pipeline, directory, is_stateful).check(change)
        sinks = self._connect(compiled.routes.schemas, session, directory)
        coordinator = Coordinator(
            pipeline=self.pipeline.name,
            store=store,
            sinks=list(sinks.values()),
            clock=clock,
            retry=Retry(self.settings.retry_attempts, self.settings.retry_first_s, self.settings.retry_cap_s),
            commit_every_us=self.commit_every_us,
            commit_thread=self.commit_thread,
            queue_size=self.settings.commit_queue,
            ledger_keep=self.settings.ledger_keep,
            backfilled=[sink.name for sink in self.pipeline.sinks if sink.backfill],
        )
        try:
            resumption = coordinator.open()
            rewinding.check_none_was_resolved(resumption)
            self._note_sinks(store, directory / chosen.below, resumption.held, sinks)
            for sink, schema in zip(self.pipeline.sinks, compiled.routes.schemas, strict=True):
                store.put(f"schemas/{sink.name}.arrow", schema.serialize().to_pybytes())
            store.put(f"graph/{self.pipeline.fingerprint()}.json", json.dumps(self.pipeline.spec()).encode())
            fingerprint = state_fingerprint(self.pipeline)
            transfer = Transfer(
                store, self.pipeline.name, fingerprint, keeps, means, graph.buckets, coordinator.generation, clock
            )
            beginning = Beginning(
                store,
                directory,
                chosen.below,
                self.pipeline.name,
                self.pipeline.sources,
                keeps,
                fingerprint,
                chosen.previous,
                transfer=transfer,
            )
            if before is not None and change is not None:
                moved = StateChange(
                    store,
                    directory,
                    chosen.previous,
                    self.pipeline.name,
                    run_session(base_session, parallelism),
                    change,
                    before,
                    coordinator.generation,
                    clock,
                    transfer,
                    Backfill(self.pipeline, directory, is_stateful),
                )
                beginning = replace(beginning, change=moved)
            if begins is not None:
                first = First(
                    begins,
                    fork,
                    store,
                    directory,
                    self.pipeline,
                    reader,
                    coordinator.generation,
                    graph,
                    transfer,
                    self.settings.force_graph_change,
                )
                beginning = replace(beginning, first=first)
            write_graph(store, chosen.below, graph)
            origin = settle_origin(beginning, resumption.held, resumption.last_epoch)
            lineage = (
                f"{chosen.below} from epoch {origin.base}"  # a directory that was lost is begun anew under its number
            )
            user_data = self._user_data(store, lineage, clock, coordinator)

            def evaluation_with(
                observe: Callable[[], Mapping[str, Observed]], barriers: Barriers, masks: Mapping[str, Mask]
            ) -> Evaluation:
                if stateful is not None:
                    return StateEvaluation(compiled.routes, stateful.stages.sinks, observe, barriers)
                if program is None:
                    return SparkEvaluation(compiled.routes, observe)
                readers = {
                    node.name: Reader(reader.spec(node), node.name, reader.workspace(node))
                    for node in self.pipeline.sources
                }
                return ColumnarEvaluation(session, program, readers, parallelism, masks)

            letters = DeadLetters(store, coordinator.generation, isolates=isolates)
            masks_file = mask_file(str(stop_file))
            if isolates:
                trials = Trials(
                    pipeline=self.pipeline.name,
                    frame=None if program is not None else compiled.frame,
                    evaluation=partial(evaluation_with, dict, Barriers()),  # its own: a trial is no epoch of the run
                    sinks=sinks,
                    coordinator=coordinator,
                    spark=directory / chosen.below,
                    copy=directory / COPY,
                    masks_file=masks_file,
                    origin=origin,
                )
                isolating = Isolating(
                    pipeline=self.pipeline,
                    store=store,
                    opened=lambda node: reader.spec(node).open(node.name, reader.workspace(node)),
                    spark=directory / chosen.below,
                    origin=origin,
                    coordinator=coordinator,
                    letters=letters,
                    trials=trials,
                    has_state=is_stateful,
                    now_us=clock.now_us,
                    rows_max=self.settings.poison_rows,
                )
                for error, rows in told_of(isolating.settle(self.settings.poison_attempts)):
                    self.lifecycle.fail(error, rows)
            suspicion = Suspicion(directory / chosen.below, origin, self.settings.poison_attempts)
            masks = letters.masks()
            if masks:
                write_masks(masks_file, masks)
            checkpointer: Checkpointer | None = None
            barriers = Barriers()
            if stateful is not None and snapshotting is not None:
                checkpointer = snapshotting.checkpointer(
                    self.pipeline,
                    stateful,
                    origin,
                    coordinator.generation,
                    clock,
                    coordinator.check_fenced,
                    _latest_of(user_data),
                    barriers,
                )
            kinds = {node.name: node.kind for node in self.pipeline.nodes if is_stateful_node(node)}
            reports = OperatorReports(kinds, store, clock, coordinator.generation)
            held_pts = [held.pts for held in resumption.held.values() if held.pts is not None]
            run = Run(
                pipeline=self.pipeline,
                sinks=sinks,
                coordinator=coordinator,
                stop_directory=stop_directory,
                reports=reports,
                checkpointer=checkpointer,
                give_up=partial(
                    give_up, store, chosen.below, seed_of(directory, chosen.below) if is_stateful else None
                ),
                lifecycle=self.lifecycle,
                user_data=user_data,
                suspicion=suspicion if isolates else None,
            )
            loop = EpochLoop(
                pipeline=self.pipeline.name,
                origin=origin,
                spark_checkpoint=directory / chosen.below,
                evaluation=evaluation_with(run.observed, barriers, masks),
                sinks=sinks,
                coordinator=coordinator,
                clock=clock,
                limits=Limits(self.settings.carry_max_bytes, self.settings.sweep_interval_s),
                timed_sources=timed,
                pts=min(held_pts, default=None),
                reports=reports,
                pressure=None if stateful is None else self._pressure(stateful.stages, str(stop_file)),
                note_end=_noting(user_data, checkpointer),
            )
            given = recovered(store, lineage, _user_data_of_seed(directory, origin))
            self.lifecycle.begin(given.value, has_value=given.found)
            run.begin(loop, compiled.frame, self.trigger, str(directory / chosen.below))
        except BaseException:
            coordinator.close()
            shutil.rmtree(stop_directory, ignore_errors=True)
            raise
        self.has_begun = True
        return run

    def _begins(self, store: Store) -> Begins | None:
        """Return how the pipeline begins; None where it has begun, or begins at the beginning."""
        asked = Begins(self.from_checkpoint, self.at_us)
        if asked == Begins():
            return None
        asked.check_sources(self.pipeline)
        return asked if asked.is_due(store, self.pipeline.name, has_begun=newest(store) > 0) else None

    def _user_data(self, store: Store, lineage: str, clock: SystemClock, coordinator: Coordinator) -> UserData | None:
        if self.pipeline.hooks.on_checkpoint is None:
            return None
        return UserData(
            pipeline=self.pipeline.name,
            lineage=lineage,
            generation=coordinator.generation,
            store=store,
            clock=clock,
            ask=self.lifecycle.ask,
            every_us=self.settings.checkpoint_freq * 1000,
            check_fenced=coordinator.check_fenced,
        )

    def _pressure(self, stages: Stages, stop_file: str) -> BackPressure | None:
        operators = limited_operators(stages)
        is_bounded = self.trigger.interval_us is None
        return BackPressure(operators, hold_file(stop_file), is_bounded=is_bounded) if operators else None

    def _note_sinks(self, store: Store, spark: Path, held: Mapping[str, Held], sinks: Mapping[str, Sink]) -> None:
        """Note since when each sink takes part; refuse one that took part in finished epochs and holds nothing."""
        commits = [int(path.name) for path in (spark / "commits").glob("[0-9]*")]
        finished = max(commits, default=-1)
        for name, sink in sinks.items():
            key = f"sinks/{name}.json"
            noted = store.get(key)
            if noted is None:
                store.put(key, checked_json.dump({"after_batch": finished}))
                continue
            remembers = sink.guarantee is Guarantee.EXACTLY_ONCE and not getattr(sink, "is_volatile", False)
            if remembers and held[name].epoch == 0 and finished > _noted_batch(noted, key):
                raise Diverged(
                    f"sink {name!r} holds nothing, and this checkpoint has finished epochs with it.",
                    why="the target was removed, emptied together with its ledger, or replaced after it had published.",
                    do=f"restore sink {name!r}; or start over with a new checkpoint and empty targets; or, to let it "
                    f"begin at the present, remove {key} from the checkpoint.",
                    pipeline=self.pipeline.name,
                    participant=name,
                )

    def _connect(self, schemas: Sequence[Any], session: SparkSession, directory: Path) -> dict[str, Sink]:
        sinks: dict[str, Sink] = {}
        for node, schema in zip(self.pipeline.sinks, schemas, strict=True):
            sink = node.spec.connect(node.name, self.pipeline.name, schema)
            bind = getattr(sink, "bind", None)
            if bind is not None:  # foreach_batch: the only sink that wants a DataFrame
                bind(_to_dataframe(session), str(directory / "foreach_batch" / node.name))
            sinks[node.name] = sink
        return sinks


def _noting(user_data: UserData | None, checkpointer: Checkpointer | None) -> Callable[[Positions, Ended], None]:
    """Return what is told of each epoch's end: the value of a checkpoint is asked for before its snapshot is made."""

    def note(start: Positions, ended: Ended) -> None:
        if user_data is not None:
            user_data.note(ended.epoch)
        if checkpointer is not None:
            checkpointer.note(start, ended)

    return note


def _latest_of(user_data: UserData | None) -> Callable[[], Mapping[str, Any] | None]:
    return lambda: None if user_data is None else user_data.latest


def _user_data_of_seed(directory: Path, origin: Origin) -> Mapping[str, Any] | None:
    """Return what the snapshot says from which a directory took its state; None where there is none any more."""
    path = directory / origin.seed
    if not origin.seed or not path.exists():
        return None
    return decode(path.read_bytes(), origin.seed).user_data


def _noted_batch(noted: bytes, key: str) -> int:
    """Return up to which of Spark's batches a sink took no part."""
    try:
        return int(checked_json.load(noted)["after_batch"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{key} of the checkpoint cannot be read.",
            why=f"{error}; it says since when the sink takes part, and the sink holds nothing.",
            do=f"restore {key} from a copy; or remove it, if the sink is to begin at the present.",
            participant=key,
        ) from error


def _positions_only(pipeline: Pipeline, reader: SourceReader) -> DataFrame:
    """Return a frame that lets Spark plan epochs over all sources; nobody asks it for rows."""
    frames = [reader.read(node).select(F.lit(1).alias("unread")) for node in pipeline.sources]
    return reduce(DataFrame.union, frames)


def _refuse_state(pipeline: Pipeline, frame: DataFrame) -> None:
    kinds = sorted(set(stateful_operators(frame)))
    if kinds:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} keeps state in Spark: {', '.join(kinds)}.",
            why="map and sql are row-wise here; state without a name could not be restored, moved or inspected.",
            do="use row-wise expressions in map and sql.",
            pipeline=pipeline.name,
        )


def _to_dataframe(session: SparkSession) -> Any:
    def to_dataframe(rows: Any, schema: Any) -> DataFrame:
        if isinstance(rows, list):
            if rows:
                return session.read.parquet(*rows)
            rows = schema.empty_table()
        return session.createDataFrame(rows)

    return to_dataframe
