"""Runs: a started pipeline, watched, and stopped at an epoch's boundary."""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.user_data import UserData
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.paced import RequestReader
from holdfast.display.cell import follow
from holdfast.display.drawing import picture
from holdfast.display.tables import counts, status_html
from holdfast.errors import BadRow, Corrupt, Fenced, HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import Lifecycle
from holdfast.graph.trigger import Trigger
from holdfast.plan.counts import Observed
from holdfast.plan.report import OperatorReports
from holdfast.ports import Sink
from holdfast.positions import Positions
from holdfast.spark.epoch_loop import EpochLoop
from holdfast.spark.failure import translate
from holdfast.spark.health_watch import HealthWatch
from holdfast.spark.launch.jvm_output import FILE_ONLY
from holdfast.spark.new_columns import add_columns
from holdfast.spark.quarantine.isolate import Suspicion
from holdfast.spark.read import counts_of
from holdfast.spark.sight import Followers, Sight
from holdfast.spark.spark_versions import trigger_of
from holdfast.spark.steering import RunSteering
from holdfast.status import ComparedSink, State, Status
from holdfast.steer.controls import Controls
from holdfast.store import durable

log = logging.getLogger("holdfast.run")

_POLL_S = 0.01
"""How often a run checks whether its query is idle or has ended."""


class Run:
    """A started pipeline.  Made by :func:`start`; safe to use from any thread."""

    def __init__(
        self,
        *,
        pipeline: Graph,
        sinks: Mapping[str, Sink],
        coordinator: Coordinator,
        stop_directory: Path,
        reports: OperatorReports,
        checkpointer: Checkpointer | None = None,
        give_up: Callable[[HoldfastError], object] | None = None,
        lifecycle: Lifecycle,
        restore_logs: Callable[[], None] = lambda: None,
        user_data: UserData | None = None,
        suspicion: Suspicion | None = None,
        counted_filters: Collection[str] = (),
        in_spark: Collection[str] = (),
        requests: RequestReader | None = None,
        is_through: Callable[[StreamingQuery], bool] | None = None,
        sweep_interval_s: float,
        compared: Sequence[ComparedSink] = (),
        pool: str = "",
        newest: Callable[[Positions], Positions] = dict,
    ) -> None:
        self.pipeline = pipeline
        self._followers = Followers(pipeline)
        self._requests = requests
        self._checkpointer = checkpointer
        self._give_up = give_up
        self._lifecycle = lifecycle
        self._restore_logs = restore_logs
        self._user_data = user_data
        self._suspicion = suspicion
        self._is_through = is_through
        self._sweep_interval_s = sweep_interval_s
        self._swept_at_s = time.monotonic()
        self._coordinator = coordinator
        self._stop_directory = stop_directory
        self._pool = pool
        self._reports = reports
        self._sight = Sight(
            pipeline,
            sinks,
            coordinator,
            reports,
            counted_filters,
            time.time_ns() // 1000,
            checkpointer=checkpointer,
            compared=tuple(compared),
            in_spark=in_spark,
        )
        self.steering = RunSteering(coordinator, stop_directory, self._sight, self._followers, newest)
        self._state: State = "starting"
        self._error: HoldfastError | None = None
        self._loop: EpochLoop
        self._query: StreamingQuery
        self._start_query: Callable[[], StreamingQuery]
        self._attempts: tuple[int, int] = (0, 0)
        self._ended = threading.Event()
        self._is_stopping = threading.Event()
        self._watcher: threading.Thread

    def begin(self, loop: EpochLoop, frame: DataFrame, trigger: Trigger, spark_checkpoint: str) -> None:
        """Start the query.  Called once, by :func:`start`."""
        self._loop = self._sight.loop = loop
        self._sight.interval_us = trigger.interval_us
        self._start_query = partial(self._started, frame, trigger, spark_checkpoint)
        loop.begin_worker()
        try:
            self._query = self._start_query()
        except Exception as error:
            loop.end_worker()
            raise translate(error, self.pipeline.name, "the start") from error
        self._reports.time_use = lambda: self._sight.time_use(self._query)
        self._state = "running"
        self._coordinator.follow(self.steering.note_held)
        if self._checkpointer is not None:
            self._checkpointer.start()
        self._watcher = threading.Thread(target=self._watch, name=f"holdfast-{self.pipeline.name}", daemon=True)
        self._watcher.start()

    def _started(self, frame: DataFrame, trigger: Trigger, spark_checkpoint: str) -> StreamingQuery:
        if self._pool:  # of this thread: the query's inherits it, and so do its jobs
            frame.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        name = f"holdfast_{self.pipeline.name}_{uuid.uuid4().hex[:8]}"
        writer = frame.writeStream.foreachBatch(self._loop).queryName(name)
        writer = writer.option("checkpointLocation", spark_checkpoint).outputMode("append")
        return writer.trigger(**trigger_of(trigger.interval_us)).start()

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
        with suppress(FileNotFoundError):  # the run has ended, and its directory is gone
            (self._stop_directory / "stop").touch()
        return self._ended.wait(timeout_s)

    def checkpoint_now(self, name: str | None = None) -> int:
        """Make a snapshot of the state as it is at the end of the last epoch, and wait for it.

        Parameters
        ----------
        name : str, optional
            Keep it under this name until it is deleted: ``holdfast checkpoint``.

        Returns
        -------
        int
            The epoch; 0 when this run has not finished any yet.

        Raises
        ------
        InvalidPipeline
            If no operator keeps state: there is nothing to copy, the sinks have the positions.  Or the name is taken or
            invalid, or no epoch has ended that it could stand for.
        HoldfastError
            If state could not be read or written.  The run goes on.
        """
        if self._checkpointer is None:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} keeps no state.",
                why="a snapshot is a copy of state; the positions are in the sinks.",
                do="leave checkpoint_now() out; for a name, stop the pipeline and use holdfast checkpoint create.",
                pipeline=self.pipeline.name,
            )
        made = self._checkpointer.snapshot() if name is None else self._checkpointer.snapshot_named(name)
        if made is None and name is not None:
            raise InvalidPipeline(
                f"there is nothing yet that the name {name!r} could stand for.",
                why="this run has not finished an epoch.",
                do="wait for one: run.status().epoch.",
                pipeline=self.pipeline.name,
            )
        return 0 if made is None else made.ended.epoch

    def status(self) -> Status:
        """Return the current status."""
        return self._sight.status(self._state, self._error, self._query)

    def time_reached(self) -> int | None:
        """Return the time of the newest rows that every sink holds, its pts; None where no sink knows it yet."""
        return self._sight.time_reached()

    def pictures(self) -> list[Status]:
        """Return the current status alone; a run in shards has one more for each of them."""
        return [self.status()]

    def hold(self, controls: Controls) -> None:
        """Hold the sources to what the run was told, from the next epoch on that is planned."""
        self.steering.hold(controls)

    def progress(self, timeout_s: float | None = None, *, interval_s: float = 1.0) -> bool:
        """Show the run in this cell of a notebook until it has ended; elsewhere, as lines on stdout.

        An interruption (the stop button of a notebook, Ctrl-C) ends this call and not the run.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds after which to return; None shows it to its end.
        interval_s : float
            Seconds between two pictures.

        Returns
        -------
        bool
            True when the run has ended well, False when the time is over.

        Raises
        ------
        HoldfastError
            Why the run failed.
        """
        has_ended = follow(self.status, self._html, self._ended.wait, interval_s=interval_s, timeout_s=timeout_s)
        return has_ended and self.wait()

    def __repr__(self) -> str:
        return f"<run of {self.pipeline.name!r}: generation {self._coordinator.generation}, {self._state}>"

    def _repr_html_(self) -> str:
        """Return the graph with its counts, and the status: what a notebook shows."""
        return self._html(self.status())

    def _html(self, status: Status) -> str:
        nodes, sinks = self.pipeline.nodes, self.pipeline.sinks
        return status_html(status, picture(nodes, sinks, f"pipeline {self.pipeline.name}", counts(status)))

    # --- what the epoch loop asks -------------------------------------------------------------------

    def observed(self) -> dict[str, Observed]:
        """Return Spark's counts at watched sources and expectations, of all attempts at the epoch that is evaluated."""
        return counts_of(self._query, self.pipeline.nodes)

    # --- inside -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for the query's end, or stop it at an epoch's boundary; then publish what is decided."""
        try:
            failure = self._awaited()
            while failure is not None and self._outlasts(failure):
                failure = self._begun_again() or self._awaited()
            if failure is None:
                if not self._is_stopping.is_set():
                    # A second start in this process: Spark stops the query whose directory another one takes over, and
                    # calls that an end like any other.
                    self._coordinator.check_fenced()
                self._coordinator.flush()
                self._sweep()
                if self._user_data is not None:
                    self._user_data.end()
        except BaseException as error:  # of any kind: nothing else ends this run
            failure = self._translated(error)
        self._end(failure)

    def _awaited(self) -> HoldfastError | None:
        """Wait for the query's end, or stop it; return why it failed, or None."""
        patience_s = 1 if self._is_through is None else 0.1
        watch = HealthWatch(self._lifecycle.tell_health)
        try:
            while self._query.isActive:
                if self._is_stopping.is_set() and self._is_idle():
                    self._query.stop()
                    break
                watch.look_if_due(self.status)
                self._query.awaitTermination(patience_s) if not self._is_stopping.is_set() else time.sleep(_POLL_S)
                if self._is_through is not None and not self._is_stopping.is_set() and self._is_through(self._query):
                    log.info("pipeline %r ends: every source is through", self.pipeline.name)
                    self.stop(0)
                if (unpublished := self._failed_to_publish()) is not None:
                    return unpublished
            error = None if self._loop.failure is not None else self._query.exception()
        except BaseException as raised:
            # Waiting raises the query's failure as a text from the JVM; the loop has the error itself.
            error = raised
        return self._loop.failure or (None if error is None else self._translated(error))

    def _failed_to_publish(self) -> HoldfastError | None:
        """Publish what is due, and sweep; return why that, or the commit thread, failed, with the query stopped.

        New rows may not arrive for long: nothing else would look.  An epoch at work is cancelled by that.  Its error is
        not the reason why the run fails.
        """
        try:
            self._coordinator.check_published()
            if self._requests is not None:
                self._publish_due(self._requests)
            self._sweep_if_due()
        except BaseException as failure:
            try:
                self._query.stop()
            except Exception:  # stopping has a time limit; what the epoch would commit is refused
                log.warning("the query of pipeline %r does not stop", self.pipeline.name, exc_info=True)
            return self._translated(failure)
        return None

    def _sweep_if_due(self) -> None:
        """Look for orphans: workers of a dead driver, and failed attempts of ours, may stage late.

        One may stop a topic's readers, or hold locks in a database, whether rows arrive or not.
        """
        now_s = time.monotonic()
        if now_s - self._swept_at_s >= self._sweep_interval_s:
            self._swept_at_s = now_s
            self._sweep()

    def _sweep(self) -> None:
        """Drop orphans: of an epoch that has ended only what a decision names is needed, and that is not touched."""
        self._coordinator.sweep(self._loop.ended_epoch + 1)

    def _publish_due(self, requests: RequestReader) -> None:
        """Let sinks with a pace of their own commit, those that are due or asked to."""
        asked = self._coordinator.retry(requests.pending, doing="look for requests that sinks commit")
        if asked.sinks:
            self._coordinator.publish_held(asked.sinks)
        if asked.keys:
            self._coordinator.retry(lambda: requests.forget(asked), doing="remove requests that sinks commit")
        self._coordinator.publish_due()

    def _outlasts(self, failure: HoldfastError) -> bool:
        """Wait where a full disk below the checkpoint ended the query, and let it be tried again; else return False.

        Spark's own logs, and those of sources in its planning processes, are written once, without retries.  What was
        retried already is not retried here, nor what failed in the coordinator: the next run resolves that.
        """
        if not durable.is_full(failure) or self._loop.has_waited or self._coordinator.has_failed:
            return False
        epoch, attempt = self._attempts
        attempt = attempt + 1 if epoch == self._loop.ended_epoch else 1
        self._attempts = (self._loop.ended_epoch, attempt)
        doing = f"continue after epoch {self._loop.ended_epoch}"
        return (
            not self._is_stopping.is_set()
            and self._coordinator.wait_after(attempt, doing, failure)
            and not self._is_stopping.is_set()
        )

    def _begun_again(self) -> HoldfastError | None:
        """Restart the query: as after a kill, it repeats the last epoch unless Spark has logged its end."""
        self._loop.begin_again()
        try:
            self._query = self._start_query()
        except Exception as error:
            return self._translated(error)
        return None

    def _translated(self, error: BaseException) -> HoldfastError:
        try:
            return translate(error, self.pipeline.name, "the run")
        except Exception as silence:  # the text of the JVM's error comes from the JVM, which may be gone meanwhile
            return translate(silence, self.pipeline.name, "the run")

    def _end(self, failure: HoldfastError | None) -> None:
        """End the run.  Each step is done even if an earlier one failed: callers wait for the end.

        What a step raises is logged, and never becomes the run's error: no row depends on it.  What is decided is
        published, by this run or by the next.
        """
        self._error = failure
        try:
            if failure is not None:
                self._tried("find out why it failed", lambda: self._find_reason(failure))
            if not isinstance(self._error, Fenced):  # then the new owner writes the report
                self._tried("keep the report on its state", self._reports.keep)
            if self._checkpointer is not None:
                checkpointer = self._checkpointer
                self._tried("end its checkpoints", lambda: checkpointer.end(is_clean=failure is None))
                self._tried("record that its state is damaged", self._give_up_state)
            self._tried("end its kept worker", self._loop.end_worker)
            self._tried("close its sinks", self._coordinator.close)
            self._tried("tell those who follow it", self._followers.close)
            self._tried("remove its stop file", lambda: shutil.rmtree(self._stop_directory, ignore_errors=True))
            self._state = "stopped" if failure is None else "failed"
            self._tried("call the hooks of its end", self._call_hooks)
            self._tried("call on_teardown", self._lifecycle.tear_down)
            self._tried("give Spark's log back", self._restore_logs)
            self._tried("note its end", lambda: self.steering.end(self._error))
        finally:
            self._ended.set()

    def _tried(self, doing: str, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException:  # SystemExit too: it would end this thread, and the run would never be marked as ended
            log.exception("pipeline %r has ended, and could not %s", self.pipeline.name, doing)

    def _find_reason(self, failure: HoldfastError) -> None:
        error = add_columns(self._fenced_instead(failure))
        self._error = error if self._suspicion is None else self._suspicion.of(error)
        if self._suspicion is not None and isinstance(error, BadRow) and error.is_mended_by_start:
            self._tried("leave it uncounted", self._suspicion.forgive)  # a count that is wrong does no harm

    def _give_up_state(self) -> None:
        """Record that state cannot be read, so that the next start restores it."""
        error = self._error
        if isinstance(error, Corrupt) and self._give_up is not None:
            self._give_up(error)

    def _call_hooks(self) -> None:
        if self._error is None:
            self._lifecycle.finish()
            return
        # Whoever waits gets the error as a whole.  In a notebook, what is above INFO stands in some cell.
        log.error("pipeline %r failed: %s", self.pipeline.name, self._error.what)
        log.info("pipeline %r failed", self.pipeline.name, exc_info=self._error, extra=FILE_ONLY)
        self._lifecycle.fail(self._error)

    def _fenced_instead(self, failure: HoldfastError) -> HoldfastError:
        """Return Fenced where a newer generation caused the failure: Spark's logs collide before that shows."""
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
