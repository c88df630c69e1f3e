"""Runs: a started pipeline, watched, and stopped at an epoch's boundary."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.user_data import UserData
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.delivery import Published
from holdfast.commit.pace.held_back import SinkBacklog
from holdfast.commit.pace.requests import CommitRequests
from holdfast.errors import Corrupt, Fenced, HoldfastError, InvalidPipeline
from holdfast.graph.hooks import Lifecycle
from holdfast.graph.nodes import Node, SinkNode
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.trigger import Trigger
from holdfast.operators.lowering import lowering_of
from holdfast.plan.counting.counts import Observed
from holdfast.plan.report import OperatorReports
from holdfast.ports import Sink, Store
from holdfast.resume.spark_log import MARKS
from holdfast.sources import reject_reasons
from holdfast.spark import private
from holdfast.spark.epoch_loop import EpochLoop
from holdfast.spark.failure import translate
from holdfast.spark.quarantine.isolate import Suspicion
from holdfast.spark.read import is_watched, observation
from holdfast.status import EpochStatus, FilterStatus, SinkStatus, SourceStatus, State, Status, lag_between
from holdfast.store import durable

log = logging.getLogger("holdfast.run")

_POLL_S = 0.01
"""How often a run checks whether its query is idle or has ended."""


class Run:
    """A started pipeline.  Made by :func:`start`; safe to use from any thread."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        sinks: Mapping[str, Sink],
        coordinator: Coordinator,
        stop_directory: Path,
        reports: OperatorReports,
        checkpointer: Checkpointer | None = None,
        give_up: Callable[[HoldfastError], object] | None = None,
        lifecycle: Lifecycle,
        user_data: UserData | None = None,
        suspicion: Suspicion | None = None,
        counted_filters: Collection[str] = (),
        requests: Store | None = None,
        has_passed: Callable[[], bool] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._requests = requests
        self._checkpointer = checkpointer
        self._give_up = give_up
        self._lifecycle = lifecycle
        self._user_data = user_data
        self._suspicion = suspicion
        self._counted_filters = counted_filters
        self._has_passed = has_passed
        self._sinks = sinks
        self._coordinator = coordinator
        self._stop_directory = stop_directory
        self._reports = reports
        self._started_at_us = time.time_ns() // 1000
        self._state: State = "starting"
        self._error: HoldfastError | None = None
        self._loop: EpochLoop
        self._query: StreamingQuery
        self._start_query: Callable[[], StreamingQuery]
        self._attempts: tuple[int, int] = (0, 0)
        self._ended = threading.Event()
        self._is_stopping = threading.Event()
        self._rates: list[tuple[float, int]] = []
        self._watcher: threading.Thread

    def begin(self, loop: EpochLoop, frame: DataFrame, trigger: Trigger, spark_checkpoint: str) -> None:
        """Start the query.  Called once, by :func:`start`."""
        self._loop = loop
        self._start_query = partial(self._started, frame, trigger, spark_checkpoint)
        try:
            self._query = self._start_query()
        except Exception as error:
            raise translate(error, self.pipeline.name, "the start") from error
        self._state = "running"
        if self._checkpointer is not None:
            self._checkpointer.start()
        self._watcher = threading.Thread(target=self._watch, name=f"holdfast-{self.pipeline.name}", daemon=True)
        self._watcher.start()

    def _started(self, frame: DataFrame, trigger: Trigger, spark_checkpoint: str) -> StreamingQuery:
        name = f"holdfast_{self.pipeline.name}_{uuid.uuid4().hex[:8]}"
        writer = frame.writeStream.foreachBatch(self._loop).queryName(name)
        writer = writer.option("checkpointLocation", spark_checkpoint).outputMode("append")
        if trigger.interval_us is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger.interval_us // 1000} milliseconds")
        return writer.start()

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
        counted = self._coordinator.statistics()
        last = _with_spark_times(self._loop.last_epoch, self._progress())
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
            operators=self._reports.statuses(),
            filters=tuple(
                self._filter_status(node) for node in self.pipeline.nodes if lowering_of(node).counts_dropped
            ),
            sinks=tuple(
                self._sink_status(node, published[node.name], counted.waiting.get(node.name), last)
                for node in self.pipeline.sinks
            ),
            retries=counted.retries,
            queue=counted.queue_length,
            started_at_us=self._started_at_us,
            last_epoch=last,
            error=None if self._error is None else self._error.message,
            checkpoints=None if self._checkpointer is None else self._checkpointer.status,
            waits_for=counted.waits_for,
        )

    # --- what the epoch loop asks -------------------------------------------------------------------

    def observed(self) -> dict[str, Observed]:
        """Return Spark's counts at the watched sources for the epoch that was just evaluated."""
        watched = [node.name for node in self.pipeline.sources if is_watched(node)]
        if not watched:
            return {}
        found = {}
        for source in watched:
            counted = private.observed_metrics(self._query, observation(source))
            if counted is not None:
                (rows, rejects, highest), reasons = counted
                found[source] = Observed(rows or 0, rejects or 0, highest, _all_reasons(reasons, rejects or 0))
        return found

    # --- inside -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for the query's end, or stop it at an epoch's boundary; then publish what is decided."""
        try:
            failure = self._awaited()
            while failure is not None and self._outlasts(failure):
                failure = self._begun_again() or self._awaited()
            if failure is None:
                self._coordinator.flush()
                self._coordinator.sweep(self.status().epoch + 1)
                if self._user_data is not None:
                    self._user_data.end()
        except BaseException as error:  # of any kind: nothing else ends this run
            failure = self._translated(error)
        self._end(failure)

    def _awaited(self) -> HoldfastError | None:
        """Wait for the query's end, or stop it; return why it failed, or None."""
        patience_s = 1 if self._has_passed is None else 0.1
        try:
            while self._query.isActive:
                if self._is_stopping.is_set() and self._is_idle():
                    self._query.stop()
                    break
                self._query.awaitTermination(patience_s) if not self._is_stopping.is_set() else time.sleep(_POLL_S)
                if self._has_passed is not None and not self._is_stopping.is_set() and self._has_passed():
                    log.info("pipeline %r ends: every source has passed the time", self.pipeline.name)
                    self.stop(0)
                if (unpublished := self._failed_to_publish()) is not None:
                    return unpublished
            error = None if self._loop.failure is not None else self._query.exception()
        except BaseException as raised:
            # Waiting raises the query's failure as a text from the JVM; the loop has the error itself.
            error = raised
        return self._loop.failure or (None if error is None else self._translated(error))

    def _failed_to_publish(self) -> HoldfastError | None:
        """Publish what sinks are due for; return why that, or the commit thread, failed, with the query stopped.

        New rows may not arrive for long: nothing else would look.  An epoch at work is cancelled by that.  Its error is
        not the reason why the run fails.
        """
        try:
            self._coordinator.check_published()
            if self._requests is not None:
                self._publish_due(self._requests)
        except BaseException as failure:
            try:
                self._query.stop()
            except Exception:  # stopping has a time limit; what the epoch would commit is refused
                log.warning("the query of pipeline %r does not stop", self.pipeline.name, exc_info=True)
            return self._translated(failure)
        return None

    def _publish_due(self, store: Store) -> None:
        """Let sinks with a pace of their own commit, those that are due or asked to."""
        paced = [node.name for node in self.pipeline.sinks if node.pace is not None]
        asked = self._coordinator.retry(
            lambda: CommitRequests.pending(store, paced), doing="look for requests that sinks commit"
        )
        if asked.sinks:
            self._coordinator.publish_held(asked.sinks)
        if asked.keys:
            self._coordinator.retry(lambda: asked.forget(store), doing="remove requests that sinks commit")
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
            self._tried("close its sinks", self._coordinator.close)
            self._tried("remove its stop file", lambda: shutil.rmtree(self._stop_directory, ignore_errors=True))
            self._state = "stopped" if failure is None else "failed"
            self._tried("call the hooks of its end", self._call_hooks)
            self._tried("call on_teardown", self._lifecycle.tear_down)
        finally:
            self._ended.set()

    def _tried(self, doing: str, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException:  # SystemExit too: it would end this thread, and the run would never be marked as ended
            log.exception("pipeline %r has ended, and could not %s", self.pipeline.name, doing)

    def _find_reason(self, failure: HoldfastError) -> None:
        self._error = self._fenced_instead(failure)
        if self._suspicion is not None:
            self._error = self._suspicion.of(self._error)

    def _give_up_state(self) -> None:
        """Record that state cannot be read, so that the next start restores it."""
        error = self._error
        if isinstance(error, Corrupt) and self._give_up is not None:
            self._give_up(error)

    def _call_hooks(self) -> None:
        if self._error is None:
            self._lifecycle.finish()
            return
        log.error("pipeline %r failed", self.pipeline.name, exc_info=self._error)
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

    def _sink_status(
        self, node: SinkNode, published: Published, backlog: SinkBacklog | None, last: EpochStatus | None
    ) -> SinkStatus:
        backlog = backlog or SinkBacklog()
        return SinkStatus(
            name=node.name,
            kind=node.kind,
            guarantee=node.guarantee.value,
            staging=self._sinks[node.name].staging,
            epoch=published.epoch,
            rows=published.row_count,
            last_choice="" if last is None else "carried" if last.carried else "staged",
            pace="" if node.pace is None else str(node.pace),
            waiting_epochs=backlog.epochs,
            waiting_rows=backlog.rows,
            waiting_since_us=backlog.since_us,
        )

    def _filter_status(self, node: Node) -> FilterStatus:
        if node.name not in self._counted_filters:
            return FilterStatus(node.name)
        return FilterStatus(
            node.name, self._loop.source_rows.get(node.name, 0), self._loop.source_rejects.get(node.name, 0)
        )

    def _has_nothing_to_read(self) -> bool:
        """Return whether Spark has asked all sources, and none of them had new rows."""
        if self.is_active and not self._is_stopping.is_set():
            return private.waits_for_rows(self._query.status)
        return False

    def _rate(self, rows: int) -> float:
        now = time.monotonic()
        self._rates = [(at, count) for at, count in self._rates if now - at <= 10] or [(now, rows)]
        at, count = self._rates[0]
        self._rates.append((now, rows))
        return (rows - count) / (now - at) if now > at else 0.0

    def _source_status(self, node: Node) -> SourceStatus:
        reached = self._loop.last_positions.positions.get(node.name, {})
        positions = {segment: at for segment, at in reached.items() if segment not in MARKS.values()}
        newest = self._loop.last_positions.newest.get(node.name)
        lag = lag_between(positions, newest)
        if lag is None and self._has_nothing_to_read():
            lag = 0  # it was asked and had nothing: also before the first epoch reports its position
        return SourceStatus(
            name=node.name,
            positions=positions,
            newest=newest,
            lag=lag,
            rows=self._loop.source_rows.get(node.name, 0),
            rejects=self._loop.source_rejects.get(node.name, 0),
            reasons={"rejects": reasons} if (reasons := self._loop.source_reasons.get(node.name)) else {},
        )

    def _progress(self) -> dict[str, Any]:
        """Return what Spark reported of its last trigger; empty before the first."""
        progress = self._query.lastProgress
        return {} if progress is None else json.loads(progress.json)


def _all_reasons(reasons: Sequence[tuple[str, int]], rejects: int) -> dict[str, int]:
    """Return counts by reason, the rows of reasons that were left out among them."""
    rest = rejects - sum(count for _, count in reasons)
    return reject_reasons.limited([*reasons, *([(reject_reasons.OTHERS, rest)] if rest else [])])


def _with_spark_times(epoch: EpochStatus | None, progress: dict[str, Any]) -> EpochStatus | None:
    """Return the epoch with the milliseconds that Spark spent around it: planning, and its two log writes."""
    spent: dict[str, float] = progress.get("durationMs") or {}
    if epoch is None or not spent.get("addBatch"):
        return epoch
    plan = sum(spent.get(stage, 0) for stage in ("latestOffset", "getBatch", "queryPlanning"))
    logs = sum(spent.get(stage, 0) for stage in ("walCommit", "commitOffsets"))
    mine = epoch.duration_ms
    return replace(epoch, duration_ms={**mine, "plan": mine.get("plan", 0) + plan, "log": logs})
