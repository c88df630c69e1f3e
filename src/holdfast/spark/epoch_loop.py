"""One epoch, from Spark's logged positions to every sink: what ``foreachBatch`` calls.

Rules.  The epoch's positions are Spark's (its offset log, written before this runs).  Its rows are evaluated by
exactly one Spark job: small epochs are carried to the driver, large ones staged by the executors.  What becomes
visible is decided by the coordinator alone; an epoch that every sink holds is not evaluated again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame

from holdfast import faults
from holdfast.checkpoint import progress, spark_log
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.explained import Explanations
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.progress import EpochSpan
from holdfast.commit.coordinator import Coordinator
from holdfast.connectors.reading import row_batches
from holdfast.errors import HoldfastError, Unavailable, invariant
from holdfast.plan.counts import EpochReport, Observed
from holdfast.plan.epoch_times import EpochTimes
from holdfast.plan.expectations import EpochChecks
from holdfast.plan.levels.parts import Dues
from holdfast.plan.lookup_versions import LookupVersions
from holdfast.plan.pressure import BackPressure, Ramp
from holdfast.plan.report import OperatorReports
from holdfast.ports import Carried, EpochRecord, Sink
from holdfast.positions import Positions
from holdfast.spark.evaluation import Evaluated, Evaluation, is_small
from holdfast.spark.failure import translate
from holdfast.spark.quarantine.trials import limited
from holdfast.spark.sampling import Sampling
from holdfast.spark.staging import TaskStaging
from holdfast.spark.state.evaluation import StateEvaluation
from holdfast.state.bucket_report import BucketReport
from holdfast.time_use import EpochStatus

log = logging.getLogger("holdfast.spark")

T = TypeVar("T")


@dataclass(frozen=True)
class EpochLimits:
    """How much an epoch may hold to be carried, how long an evaluation may take."""

    carry_bytes: int
    evaluate_s: float | None = None


class EpochLoop:
    """Runs epochs, one after the other.  Lives on the driver; called by Spark's stream thread.

    Parameters
    ----------
    pipeline : str
        Name of the pipeline.
    header : DirectoryHeader
        Where Spark's directory began.
    spark_checkpoint : Path
        Spark's checkpoint directory, with the offset log.
    evaluation : Evaluation
        How an epoch's rows are computed.
    sinks : mapping of str to Sink
        The connected sinks.
    coordinator : Coordinator
        Opened.
    limits : EpochLimits
        Sizes and intervals.
    pts : int, optional
        Minimum timestamp over the inputs that earlier runs had reached.
    explanations : Explanations
        What the epochs' records explain.
    unrecorded : callable, optional
        Returns the ends of epochs that no progress record tells yet: each epoch takes them along to the sinks, with its
        own.  None where no replay depends on how epochs ended.
    is_at_pts : bool
        Whether the gate upstream of the sinks reports pts.
    timed_sources : sequence of str
        Sources that declare a timestamp.
    reports : OperatorReports
        Receives the reports of stateful operators.
    due_file : str
        Where planning processes read when the next epoch is needed (:mod:`holdfast.plan.levels.parts`).
    pressure : BackPressure, optional
        Holds sources back where operators limit what waits.
    ramp : Ramp, optional
        Limits the first epochs.
    checks : EpochChecks, optional
        Hold the counts of each epoch to the audit, and to what the user expects.
    lookups : LookupVersions, optional
        Decides which versions of their tables the look-ups of an epoch see.
    note_parts : callable, optional
        Called with the sinks that take part in an epoch, once that is decided.
    note_end : callable, optional
        Called with the start and the end of each epoch, once its state is complete and every sink's part decided.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        header: DirectoryHeader,
        spark_checkpoint: Path,
        evaluation: Evaluation,
        sinks: Mapping[str, Sink],
        coordinator: Coordinator,
        limits: EpochLimits,
        timed_sources: Sequence[str],
        pts: int | None,
        reports: OperatorReports,
        due_file: str,
        explanations: Explanations,
        unrecorded: Callable[[], Sequence[EpochSpan]] | None = None,
        is_at_pts: bool = False,
        pressure: BackPressure | None = None,
        ramp: Ramp | None = None,
        checks: EpochChecks | None = None,
        lookups: LookupVersions | None = None,
        note_parts: Callable[[Iterable[str], int], None] = lambda sinks, epoch: None,
        note_end: Callable[[Positions, EpochEnd], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._header = header
        self._spark_checkpoint = spark_checkpoint
        self._evaluation = evaluation
        self._sinks = sinks
        self._coordinator = coordinator
        self._limits = limits
        self._reports = reports
        self._dues = Dues(due_file)
        self._ramp = ramp
        self._explanations = explanations
        self._pressure = pressure
        self.checks = checks or EpochChecks()
        self._lookups = lookups
        self._note_parts = note_parts
        self._note_end = note_end
        self._unrecorded = unrecorded
        self._is_at_pts = is_at_pts
        self._pts = pts
        self._reached: dict[str, int | None] = dict.fromkeys(timed_sources, pts)
        self.failure: HoldfastError | None = None
        """Why the last epoch failed: kept here because an error that passes the JVM is reduced to its text."""
        self.has_waited = False
        """Whether the last epoch failed after all attempts: then this run does not try again."""
        self._is_repeating = False
        self._batch_id: int | None = None
        self.ended_epoch = 0
        """The newest epoch that ended: its commit has returned, or every sink holds it.  What no decision names of it,
        and of those before, is swept.
        """
        self.doing = ""
        """What the loop does with which epoch, in words; empty between epochs."""
        self._planned = spark_log.last_logged(spark_checkpoint, "offsets")
        """The last batch that an earlier run has planned: up to there epochs are replayed."""
        self.times = EpochTimes()
        self.last_epoch: EpochStatus | None = None
        self.last_positions: spark_log.Offsets = spark_log.NOWHERE
        self.at_work: spark_log.Offsets | None = None
        """Where the epoch ends that is evaluated or published now; None between epochs."""
        self.source_rows: dict[str, int] = {}
        self.source_rejects: dict[str, int] = {}
        self.source_reasons: dict[str, dict[str, int]] = {}
        """Source -> how many of its rows were rejected for which reason."""
        self.source_rescued: dict[str, int] = {}
        self.source_members: dict[str, dict[str, int]] = {}
        """Source -> how many of its rows have which member that is no column."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one epoch; called by Spark with the rows of its micro-batch."""
        epoch = self._header.base + batch_id
        try:
            self.times.begin(batch_id, self._coordinator.busy)
            self._check_consecutive(batch_id, epoch)
            self._run(batch, batch_id, epoch)
        except HoldfastError as error:
            self.failure = error
            raise
        except (Exception, SystemExit) as error:  # a function of the user may exit: the JVM would wait for an answer
            self.failure = translate(error, self._pipeline, f"epoch {epoch}")
            raise self.failure from error
        finally:
            self.doing, self.at_work = "", None
            self.times.end()

    def _check_consecutive(self, batch_id: int, epoch: int) -> None:
        """Stop where Spark leaves a batch out, or gives one again without a restart of its query."""
        last, self._batch_id = self._batch_id, batch_id
        invariant(
            last is None or batch_id == last + 1 or (batch_id == last and self._is_repeating),
            f"Spark's batch {batch_id} follows batch {last}.",
            why="batches are consecutive: rows would be missing, or come twice.",
            pipeline=self._pipeline,
            epoch=epoch,
            generation=self._coordinator.generation,
        )

    @property
    def held_sources(self) -> frozenset[str]:
        """The sources that back-pressure holds now."""
        return frozenset() if self._pressure is None else self._pressure.held

    @property
    def sampling(self) -> Sampling:
        """Who wants to see rows."""
        return self._evaluation.sampling

    def begin_worker(self) -> None:
        """Begin the kept worker, if there is one, for the first epoch."""
        if (here := self._evaluation.here) is not None:
            here.begin_worker()

    def end_worker(self) -> None:
        """End it, whatever it does; called from any thread."""
        if (here := self._evaluation.here) is not None:
            here.end_worker()

    def begin_again(self) -> None:
        """Forget the failure: the query is started anew, and repeats the last epoch unless Spark has logged its end."""
        self.failure = None
        self.has_waited = False
        self._is_repeating = True
        self._dues.forget()

    def _run(self, batch: DataFrame, batch_id: int, epoch: int) -> None:
        started = time.perf_counter()
        self._coordinator.check_before_epoch()
        self.sampling.begin()
        start, end = self._span(batch_id)
        self.at_work = end
        claim = self._coordinator.missing(epoch, end.positions, start.positions)
        is_replay = batch_id <= self._planned or len(claim.sinks) < len(self._sinks)
        self.doing = f"{'replaying' if is_replay else 'evaluating'} epoch {epoch}{self._place(batch_id)}"
        step_epoch, batch_us = self._header.step_time(batch_id, end.batch_us)
        if (lookups := self._lookups) is not None:
            self._patiently(lambda: lookups.begin(step_epoch, batch_id, batch_us), f"load the tables of epoch {epoch}")
        if isinstance(self._evaluation, StateEvaluation):
            self._begin_state(self._evaluation, batch, batch_id, (step_epoch, batch_us), end.positions)
        ended = EpochEnd(epoch, step_epoch, end.positions, batch_us)
        if not claim.sinks:  # Spark replays it: the driver died, or the query failed, before Spark logged its end
            self._evaluate_muted(batch, epoch, (start, end))
            self.last_positions = end
            self._has_ended(start, ended)
            return
        spark_log.sync_offsets(self._spark_checkpoint, batch_id)
        faults.reach("before-stage", epoch, self._pipeline)
        planned = time.perf_counter()
        self.times.mark()
        found = self._evaluate(batch, epoch, (start, end), claim.sinks)
        parts, report = found.parts, found.report
        self.sampling.note(report.samples, parts)
        faults.reach("after-stage", epoch, self._pipeline)
        rows = {sink: sum(part.row_count for part in each) for sink, each in parts.items()}
        expected = self.checks.look(epoch, report, rows, is_new=len(claim.sinks) == len(self._sinks))
        evaluated = time.perf_counter()
        self.times.mark()
        ended = replace(ended, pts=self._pts_of(report))
        record = EpochRecord(
            pipeline=self._pipeline,
            epoch=epoch,
            generation=self._coordinator.generation,
            positions=end.positions,
            pts=ended.pts,
            explanations=self._explanations.take(parts),
            recent_ends=self._recent_ends(start.positions, ended),
            expected=expected,
        )
        self.doing = f"publishing epoch {epoch}"
        self._coordinator.commit(claim, record, parts)
        # NB retried here: a repetition of the epoch would have no parts any more.
        self._patiently(lambda: self._note_parts(parts, epoch), f"note the sinks of epoch {epoch}")
        committed = time.perf_counter()
        self.times.mark()
        if self._ramp is not None and not is_replay:
            self._ramp.note(committed - started, spark_log.spans(start.sizes, end.sizes))
        self._note(end, report.observed)
        self.checks.note(epoch, report, rows, expected)
        self._has_ended(start, ended)
        self.times.note(report.waves, self._coordinator.busy, epoch=epoch, rows=sum(rows.values()))
        self._reports.note(epoch, self._relieved(start, end, report.buckets), self.source_reasons)
        self.last_epoch = EpochStatus(
            epoch=epoch,
            rows=sum(rows.values()),
            bytes=spark_log.span(start.sizes, end.sizes) or 0,
            duration_ms={
                "plan": (planned - started) * 1e3,
                "evaluate": (evaluated - planned) * 1e3,
                "publish": (committed - evaluated) * 1e3,
            },
            carried=any(isinstance(part, Carried) for several in parts.values() for part in several),
        )

    def _place(self, batch_id: int) -> str:
        """Say the how manieth an epoch is of those that a new directory replays."""
        count = self._header.replay_count
        return f", {batch_id + 1:,} of {count:,}" if batch_id < count else ""

    # --- rows ---------------------------------------------------------------------------------------

    def _span(self, batch_id: int) -> tuple[spark_log.Offsets, spark_log.Offsets]:
        """Return where the epoch begins and ends, from Spark's offset log."""
        start = self.last_positions
        if start is spark_log.NOWHERE or self._is_repeating:
            # The start of a repeated epoch is in Spark's log alone: the epoch may have ended before.
            is_first = batch_id == 0
            start = spark_log.Offsets(self._header.start, {}, {}, {}) if is_first else self._logged(batch_id - 1)
            self._is_repeating = False
        return start, self._logged(batch_id)

    def _logged(self, batch_id: int) -> spark_log.Offsets:
        return spark_log.read_offsets(self._spark_checkpoint, batch_id)

    def _evaluate(
        self, batch: DataFrame, epoch: int, span: tuple[spark_log.Offsets, spark_log.Offsets], missing: frozenset[str]
    ) -> Evaluated:
        """Evaluate the epoch once: carried if it is known to be small, else staged."""
        start, end = span
        if is_small(self._evaluation.here, start, end, self._limits.carry_bytes):
            carried = self._tried(lambda: self._evaluation.carry(batch, start.positions, end.positions, missing), epoch)
            if carried is not None:
                return carried
            log.info("epoch %d cannot be carried by the driver: the executors stage it", epoch)
        factories = {sink: self._sinks[sink].writer_factory() for sink in missing}
        staging = TaskStaging(self._pipeline, self._coordinator.generation, epoch, factories, self.sampling.wish)
        return self._tried(lambda: self._evaluation.stage(batch, start.positions, end.positions, staging), epoch)

    def _begin_state(
        self,
        evaluation: StateEvaluation,
        batch: DataFrame,
        batch_id: int,
        step_time: tuple[int, int],
        end: Positions,
    ) -> None:
        epoch = self._header.base + batch_id
        self._patiently(
            lambda: evaluation.begin(batch, epoch, batch_id, step_time, end), f"read the state before epoch {epoch}"
        )

    def _evaluate_muted(
        self, batch: DataFrame, epoch: int, span: tuple[spark_log.Offsets, spark_log.Offsets]
    ) -> None:  # fmt: skip
        """Deal with an epoch that every sink holds: state needs it all the same."""
        if not isinstance(self._evaluation, StateEvaluation):
            log.info("epoch %d is held by every sink: nothing to do", epoch)
            return
        log.info("epoch %d is held by every sink: evaluated for its state alone", epoch)
        evaluation, (start, end) = self._evaluation, span
        small = is_small(evaluation.here, start, end, self._limits.carry_bytes)
        self._tried(lambda: evaluation.mute(batch, start.positions, end.positions, is_small=small), epoch)

    def _tried(self, evaluate: Callable[[], T], epoch: int) -> T:
        """Evaluate; try again, a bounded number of times, where a system did not answer."""

        def once() -> T:
            try:
                with limited(self._limits.evaluate_s, f"epoch {epoch}", self.end_worker):
                    return evaluate()
            except Exception as error:
                # What the finished tasks of a failed job staged would block the next attempt (locks on unique keys):
                # the driver has received no handle, so all staged rows of this epoch are orphans.
                self._coordinator.sweep(epoch + 1)
                raise translate(error, self._pipeline, f"epoch {epoch}") from error

        return self._patiently(once, f"evaluate epoch {epoch}")

    def _patiently(self, call: Callable[[], T], doing: str) -> T:
        try:
            return self._coordinator.retry(call, doing=doing)
        except Unavailable:
            self.has_waited = True
            raise

    # --- progress -----------------------------------------------------------------------------------

    def _pts_of(self, report: EpochReport) -> int | None:
        """Return the pts of an epoch: the one that the gate reports, which is part of the state."""
        if not self._is_at_pts:
            return self._advance_pts(report.observed)
        reported = [bucket.pts for bucket in report.buckets.values() if bucket.pts is not None]
        self._pts = max([*reported, *([] if self._pts is None else [self._pts])], default=None)
        return self._pts

    def _advance_pts(self, observed: Mapping[str, Observed]) -> int | None:
        """Return the minimum over the inputs of the highest timestamp seen; None until every timed input has one."""
        for source, reached in self._reached.items():
            seen = observed[source].timestamp_max if source in observed else None
            if seen is not None and (reached is None or seen > reached):
                self._reached[source] = seen
        known = [reached for reached in self._reached.values() if reached is not None]
        return min(known) if known and len(known) == len(self._reached) else None

    def _note(self, end: spark_log.Offsets, observed: Mapping[str, Observed]) -> None:
        for source, counted in observed.items():
            self.source_rows[source] = self.source_rows.get(source, 0) + counted.rows
            self.source_rejects[source] = self.source_rejects.get(source, 0) + counted.rejects
            if counted.reasons:
                before = self.source_reasons.get(source, {})
                self.source_reasons = {**self.source_reasons, source: row_batches.added(before, counted.reasons)}
            if counted.rescued:
                self.source_rescued[source] = self.source_rescued.get(source, 0) + counted.rescued
                had = self.source_members.get(source, {})
                self.source_members[source] = row_batches.added(had, counted.members, row_batches.OTHER_MEMBERS)
        self.last_positions = end

    def _recent_ends(self, start: Positions, ended: EpochEnd) -> str:
        if self._unrecorded is None:
            return ""
        before = [step for step in self._unrecorded() if step.ended.epoch < ended.epoch]  # it may be repeated
        return progress.to_text([*before, EpochSpan(start, ended)])

    def _has_ended(self, start: spark_log.Offsets, ended: EpochEnd) -> None:
        if (note_end := self._note_end) is not None:
            self._patiently(lambda: note_end(start.positions, ended), f"note the end of epoch {ended.epoch}")
        self.ended_epoch = ended.epoch

    def _relieved(
        self, start: spark_log.Offsets, end: spark_log.Offsets, reported: Mapping[str, BucketReport]
    ) -> Mapping[str, BucketReport]:
        """Publish when the next epoch is needed, and which sources are held in it; return the reports without that."""
        if isinstance(self._evaluation, StateEvaluation):
            reported = self._dues.take(reported)
        if self._pressure is None:
            return reported
        return self._pressure.note(reported, spark_log.moved(start.positions, end.positions), end.batch_us)
