"""Runs: a pipeline started on Spark, watched, and stopped at an epoch's boundary."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import TimestampNTZType, TimestampType

from holdfast.checkpoint.store import open_store
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.retry import Retry
from holdfast.config import Settings
from holdfast.durable import local_path
from holdfast.errors import Fenced, HoldfastError, InvalidPipeline
from holdfast.graph import Node, Pipeline
from holdfast.ports import REJECT_COLUMN, Sink
from holdfast.spark.compile import compile_pipeline, stateful_operators
from holdfast.spark.datasource import FORMAT, HoldfastDataSource, Reading, read_schema
from holdfast.spark.epoch_loop import EpochLoop, Limits, Observed, check_commit_every
from holdfast.spark.failure import translate
from holdfast.spark.origin import FILE_NAME, settle_origin
from holdfast.spark.session import create_session, run_session
from holdfast.status import SinkStatus, SourceStatus, State, Status, lag_between
from holdfast.trigger import Trigger
from holdfast.units import duration_us

log = logging.getLogger("holdfast.run")

SPARK_DIRECTORY = "spark/1"
"""Spark's checkpoint below ours; one directory per version of the graph."""

_POLL_S = 0.01
"""How often a run looks whether its query is idle or over."""


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
    return _Starting(
        pipeline=pipeline,
        checkpoint=checkpoint,
        trigger=trigger,
        commit_every_us=None if commit_every is None else duration_us(commit_every, argument="commit_every"),
        commit_thread=commit_thread,
        master=master,
        session=session,
        settings=settings or Settings(),
    ).run()


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

    def run(self) -> Run:
        sources = [node.name for node in self.pipeline.sources]
        timed = [node.name for node in self.pipeline.sources if _timestamp(node) is not None]
        check_commit_every(self.commit_every_us, timed, sources)
        location = self.checkpoint if "://" in self.checkpoint else str(Path(self.checkpoint).expanduser().absolute())
        store = open_store(location)
        directory = Path(local_path(location) or location)
        clock = SystemClock()
        base_session = self.session or create_session(
            self.master or self.settings.master, f"{self.settings.driver_memory_mib}m"
        )
        parallelism = max(1, base_session.sparkContext.defaultParallelism)
        session = run_session(base_session, parallelism)
        session.dataSource.register(HoldfastDataSource)
        stop_directory = Path(tempfile.mkdtemp(prefix="holdfast-run-"))
        stop_file = stop_directory / "stop"
        reader = _SourceReader(session, directory, parallelism, self.settings.prefetch_max_bytes, str(stop_file))
        token = uuid.uuid4().hex
        compiled = compile_pipeline(self.pipeline, reader.read, token)
        _refuse_state(self.pipeline, compiled.frame)
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
        )
        try:
            resumption = coordinator.open()
            for sink, schema in zip(self.pipeline.sinks, compiled.routes.schemas, strict=True):
                store.put(f"schemas/{sink.name}.arrow", schema.serialize().to_pybytes())
            store.put(f"graph/{self.pipeline.fingerprint()}.json", json.dumps(self.pipeline.spec()).encode())
            origin = settle_origin(
                store, directory, SPARK_DIRECTORY, resumption.held, resumption.last_epoch, self.pipeline.sources
            )
            held_pts = [held.pts for held in resumption.held.values() if held.pts is not None]
            run = Run(
                pipeline=self.pipeline,
                sinks=sinks,
                coordinator=coordinator,
                stop_directory=stop_directory,
                settings=self.settings,
                spark_sources=frozenset(node.name for node in self.pipeline.sources if node.kind == "spark"),
            )
            loop = EpochLoop(
                pipeline=self.pipeline.name,
                base=origin.base,
                sought=origin.start,
                spark_checkpoint=directory / SPARK_DIRECTORY,
                routes=compiled.routes,
                sinks=sinks,
                coordinator=coordinator,
                clock=clock,
                limits=Limits(self.settings.carry_max_bytes, self.settings.sweep_interval_s),
                observe=run.observed,
                timed_sources=timed,
                pts=min(held_pts, default=None),
            )
            run.begin(loop, compiled.frame, self.trigger, str(directory / SPARK_DIRECTORY))
        except BaseException:
            coordinator.close()
            shutil.rmtree(stop_directory, ignore_errors=True)
            raise
        return run

    def _connect(self, schemas: Sequence[Any], session: SparkSession, directory: Path) -> dict[str, Sink]:
        sinks: dict[str, Sink] = {}
        for node, schema in zip(self.pipeline.sinks, schemas, strict=True):
            sink = node.spec.connect(node.name, self.pipeline.name, schema)
            bind = getattr(sink, "bind", None)
            if bind is not None:  # foreach_batch: the only sink that wants a DataFrame
                bind(_to_dataframe(session), str(directory / "foreach_batch" / node.name))
            sinks[node.name] = sink
        return sinks


@dataclass(frozen=True)
class _SourceReader:
    """Opens source nodes as streaming frames."""

    session: SparkSession
    directory: Path
    parallelism: int
    prefetch_bytes: int
    stop_file: str

    def read(self, node: Node) -> DataFrame:
        """Return the streaming frame of a source, watched where its rows must be counted."""
        spec: Any = node.spec
        stream = self.session.readStream.name(node.name)
        if node.kind == "spark":
            for key, value in spec.options.items():
                stream = stream.option(key, value)
            if spec.schema is not None and len(spec.schema):
                stream = stream.schema(read_schema(spec))
            return _watched(stream.format(spec.format).load(), node)
        workspace = str(self.directory / "sources" / node.name)
        origin_file = str(self.directory / SPARK_DIRECTORY / FILE_NAME)
        reading = Reading(
            spec, node.name, workspace, self.parallelism, self.prefetch_bytes, self.stop_file, origin_file
        )
        return _watched(stream.format(FORMAT).option("reading", reading.to_option()).load(), node)


def _watched(frame: DataFrame, node: Node) -> DataFrame:
    """Let Spark count rows, rejects and the highest timestamp as they pass, where somebody asks for them."""
    column = _timestamp(node)
    has_rejects = bool(getattr(node.spec, "rejects", False))
    if column is None and not has_rejects:
        return frame
    rejects = F.count(F.col(REJECT_COLUMN)) if has_rejects else F.lit(0).cast("long")
    highest = F.lit(None).cast("long") if column is None else F.max(_microseconds(frame, column))
    counts = [F.count(F.lit(1)).alias("rows"), rejects.alias("rejects"), highest.alias("timestamp_max_us")]
    return frame.observe(_observation(node.name), *counts)


def _microseconds(frame: DataFrame, column: str) -> Any:
    kind = frame.schema[column].dataType
    value = F.col(f"`{column}`")
    if isinstance(kind, TimestampType):
        return F.unix_micros(value)
    if isinstance(kind, TimestampNTZType):
        return F.unix_micros(value.cast("timestamp"))
    return value.cast("long")


def _observation(source: str) -> str:
    return f"holdfast_{source}"


def _timestamp(node: Node) -> str | None:
    timestamp: str | None = getattr(node.spec, "timestamp", None)
    return timestamp


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


class Run:
    """A started pipeline.  Made by :func:`start`; safe to use from any thread."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        sinks: Mapping[str, Sink],
        coordinator: Coordinator,
        stop_directory: Path,
        settings: Settings,
        spark_sources: frozenset[str],
    ) -> None:
        self.pipeline = pipeline
        self._sinks = sinks
        self._coordinator = coordinator
        self._stop_directory = stop_directory
        self._settings = settings
        self._spark_sources = spark_sources
        self._started_at_us = time.time_ns() // 1000
        self._state: State = "starting"
        self._error: HoldfastError | None = None
        self._loop: EpochLoop
        self._query: StreamingQuery
        self._ended = threading.Event()
        self._is_stopping = threading.Event()
        self._rates: list[tuple[float, int]] = []
        self._watcher: threading.Thread

    def begin(self, loop: EpochLoop, frame: DataFrame, trigger: Trigger, spark_checkpoint: str) -> None:
        """Start the query.  Called once, by :func:`start`."""
        self._loop = loop
        writer = frame.writeStream.foreachBatch(loop).queryName(f"holdfast_{self.pipeline.name}_{uuid.uuid4().hex[:8]}")
        writer = writer.option("checkpointLocation", spark_checkpoint).outputMode("append")
        if trigger.interval_us is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger.interval_us // 1000} milliseconds")
        try:
            self._query = writer.start()
        except Exception as error:
            raise translate(error, self.pipeline.name, "the start") from error
        self._state = "running"
        self._watcher = threading.Thread(target=self._watch, name=f"holdfast-{self.pipeline.name}", daemon=True)
        self._watcher.start()

    # --- what users call ----------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return not self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the run.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait; None waits for the end.

        Returns
        -------
        bool
            True when the run has ended well, False when the time is over.

        Raises
        ------
        HoldfastError
            Why the run failed.
        """
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish the current epoch, publish everything decided, and end.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait for that; None waits as long as it takes.

        Returns
        -------
        bool
            True when the run has ended, False when the time is over (it still stops as soon as it can).
        """
        self._is_stopping.set()
        if self._state == "running":
            self._state = "stopping"
        (self._stop_directory / "stop").touch()
        return self._ended.wait(timeout_s)

    def status(self) -> Status:
        """Return a picture of this moment."""
        counted = self._coordinator.statistics()
        last = self._loop.last_epoch
        published = counted.published
        rows = sum(sink.row_count for sink in published.values())
        return Status(
            pipeline=self.pipeline.name,
            generation=self._coordinator.generation,
            state=self._state,
            epoch=min((sink.epoch for sink in published.values()), default=0),
            rows_total=rows,
            rows_per_s=self._rate(rows),
            sources=tuple(self._source_status(node) for node in self.pipeline.sources),
            sinks=tuple(
                SinkStatus(
                    name=node.name,
                    kind=node.kind,
                    guarantee=node.guarantee.value,
                    staging=self._sinks[node.name].staging,
                    epoch=published[node.name].epoch,
                    rows=published[node.name].row_count,
                    last_choice="" if last is None else "carried" if last.carried else "staged",
                )
                for node in self.pipeline.sinks
            ),
            retries=counted.retries,
            queue=counted.queue_length,
            started_at_us=self._started_at_us,
            last_epoch=last,
            error=None if self._error is None else self._error.message,
        )

    # --- what the epoch loop asks -------------------------------------------------------------------

    def observed(self) -> dict[str, Observed]:
        """Return what Spark counted at the watched sources in the epoch that was just evaluated."""
        watched = [n.name for n in self.pipeline.sources if _timestamp(n) or getattr(n.spec, "rejects", False)]
        if not watched:
            return {}
        metrics = self._query._jsq.streamingQuery().lastExecution().observedMetrics()
        found = {}
        for source in watched:
            row = metrics.get(_observation(source))
            if row.isDefined():
                values = row.get()
                highest = None if values.isNullAt(2) else values.getLong(2)
                found[source] = Observed(values.getLong(0), values.getLong(1), highest)
        return found

    # --- inside -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for the query's end, or bring it about at an epoch's boundary; then publish what is decided."""
        try:
            while self._query.isActive:
                if self._is_stopping.is_set() and self._is_idle():
                    self._query.stop()
                    break
                self._query.awaitTermination(1) if not self._is_stopping.is_set() else time.sleep(_POLL_S)
            failure = None if self._loop.failure is None else self._loop.failure
            if failure is None:
                error = self._query.exception()
                failure = None if error is None else translate(error, self.pipeline.name, "the run")
            if failure is None:
                self._coordinator.flush()
                self._coordinator.sweep(self.status().epoch + 1)
        except Exception as error:
            failure = translate(error, self.pipeline.name, "the run")
        self._end(failure)

    def _end(self, failure: HoldfastError | None) -> None:
        try:
            if failure is not None:
                self._error = self._fenced_instead(failure)
        finally:
            self._coordinator.close()
            shutil.rmtree(self._stop_directory, ignore_errors=True)
            self._state = "stopped" if failure is None else "failed"
            if self._error is not None:
                log.error("pipeline %r failed", self.pipeline.name, exc_info=self._error)
            self._ended.set()

    def _fenced_instead(self, failure: HoldfastError) -> HoldfastError:
        """Return Fenced where the real reason of a failure is a newer generation: Spark's logs then collide first."""
        try:
            self._coordinator.check_fenced()
        except Fenced as fenced:
            fenced.__cause__ = failure
            return fenced
        except HoldfastError:
            pass
        return failure

    def _is_idle(self) -> bool:
        status: dict[str, Any] = self._query.status
        return not status["isTriggerActive"]

    def _rate(self, rows: int) -> float:
        now = time.monotonic()
        self._rates = [(at, count) for at, count in self._rates if now - at <= 10] or [(now, rows)]
        at, count = self._rates[0]
        self._rates.append((now, rows))
        return (rows - count) / (now - at) if now > at else 0.0

    def _source_status(self, node: Node) -> SourceStatus:
        positions = self._loop.last_positions.positions.get(node.name, {})
        newest = self._newest().get(node.name)
        return SourceStatus(
            name=node.name,
            positions=positions,
            newest=newest,
            lag=lag_between(positions, newest),
            rows=self._loop.source_rows.get(node.name, 0),
            rejects=self._loop.source_rejects.get(node.name, 0),
        )

    def _newest(self) -> dict[str, Any]:
        """Return what the sources reported as newest, in the order of Spark's progress."""
        progress = self._query.lastProgress if hasattr(self, "_query") else None
        if progress is None:
            return {}
        found = {}
        for node, source in zip(self.pipeline.sources, json.loads(progress.json)["sources"], strict=False):
            latest = source.get("latestOffset")
            if isinstance(latest, dict) and "positions" in latest:
                found[node.name] = latest["positions"]
        return found
