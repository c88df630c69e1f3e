"""How an epoch of a pipeline with state is evaluated: its chunks to the sinks, its reports to the driver.

A small epoch is evaluated without a job, by the same levels, where nothing in it is Spark's to compute: in this
process, or in the kept worker where functions of the user are called.  Every other one is a job: of the plan where
Spark has a part in it, else an RDD's (:mod:`holdfast.spark.state.jobs`).  Either way the journal has the epoch's state
before its rows are decided.

What the last tasks of a job make of chunks: rows to writers, reports to the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast import faults
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.spark_log import active_until
from holdfast.errors import crossing, present
from holdfast.plan.chunks import Chunk, from_batch, reported
from holdfast.plan.counts import EpochReport, Observed, observed_since, united
from holdfast.plan.laps import STAGING, STATE, Laps
from holdfast.plan.levels.journal import BucketChange, StateJournal, StateVersion
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.line import Outlets
from holdfast.plan.levels.taps import Taps
from holdfast.ports import Carried
from holdfast.positions import Positions
from holdfast.quarantine.mask import EVERYTHING, Passing
from holdfast.spark import private
from holdfast.spark.evaluation import Evaluated, Here
from holdfast.spark.failure import is_too_large
from holdfast.spark.sampling import Sampling
from holdfast.spark.staging import ANSWERS, TaskStaging, answer_of, answered
from holdfast.spark.state.host import (
    ACTIVE_UNTIL_PROPERTY,
    BARRIER_PROPERTY,
    BATCH_PROPERTY,
    BATCH_TIME_PROPERTY,
    EPOCH_PROPERTY,
    NO_ENTRY,
    PASSING_PROPERTY,
    STATE_PROPERTY,
)
from holdfast.spark.wishes import WISH_PROPERTY


@dataclass(frozen=True)
class StateEpoch:
    """The epoch that is evaluated.

    Parameters
    ----------
    epoch, batch_id : int
        Its number, and Spark's.
    at : EpochContext
        What is said of it to all levels.
    before : StateVersion
        The state with which it begins.
    """

    epoch: int
    batch_id: int
    at: EpochContext
    before: StateVersion


LastTask = Callable[[Iterator[Sequence[Chunk]]], Iterator[pa.RecordBatch]]
"""What becomes of the chunks of the last level: answers of the schema ``ANSWERS``.  Picklable."""


class LevelsJob(Protocol):
    """How an epoch becomes a job.  Lives on the driver."""

    def answers(self, batch: DataFrame, start: Positions, end: Positions, last: LastTask) -> list[Any]:
        """Return what the tasks answer that take the chunks of the last level, as rows."""

    def chunks(self, batch: DataFrame, start: Positions, end: Positions) -> list[Chunk]:
        """Return the chunks of the last level."""


class PlanJob:
    """Of the plan, whose rows are chunks."""

    def answers(self, batch: DataFrame, start: Positions, end: Positions, last: LastTask) -> list[Any]:
        """Run the plan, and the last task behind it."""
        return private.rows_of(batch.mapInArrow(_OfBatches(last), ANSWERS))

    def chunks(self, batch: DataFrame, start: Positions, end: Positions) -> list[Chunk]:
        """Run the plan, and bring what comes out to the driver."""
        table: pa.Table = batch.toArrow()
        return [chunk for part in table.to_batches() for chunk in from_batch(part)]


@dataclass(frozen=True)
class _OfBatches:
    """The last task where chunks are rows of Spark.  Picklable; called by ``mapInArrow``."""

    last: LastTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.last(map(from_batch, batches))


class StateEvaluation:
    """Through the levels.  Every epoch is evaluated, also one that the sinks hold, unless the journal has its state.

    Parameters
    ----------
    outlets : Outlets
        The sinks.
    observe : callable
        Returns what Spark counted, at sources that it reads itself and in its plan, in all attempts at the epoch.
    barriers : Barriers, optional
        Decides which epochs are barriers; receives what buckets report for the checkpointer.
    journal : StateJournal
        Keeps the state.
    here : Here, optional
        Evaluates small epochs; None where all are jobs.
    job : LevelsJob
        Evaluates the others.
    passing : callable
        Returns what passes behind operators with state in an epoch, by its number as steps know it.
    """

    def __init__(
        self,
        outlets: Outlets,
        observe: Callable[[], Mapping[str, Observed]],
        barriers: Barriers | None,
        journal: StateJournal,
        here: Here[tuple[list[Chunk], list[BucketChange]]] | None,
        job: LevelsJob,
        passing: Callable[[int], Passing] = lambda epoch: EVERYTHING,
    ) -> None:
        self._passing = passing
        self._outlets = outlets
        self._observe = observe
        self._barriers = barriers
        self._journal = journal
        self.here = here
        self._job = job
        self.sampling = Sampling()
        self._epoch: StateEpoch | None = None

    def begin(
        self, batch: DataFrame, epoch: int, batch_id: int, step_time: tuple[int, int], end: Positions
    ) -> None:  # fmt: skip
        """Take in which epoch it is, and who is silent, and read the state it begins with: its jobs say so to workers.

        Parameters
        ----------
        batch : DataFrame
            What Spark gives of it.
        epoch, batch_id : int
            Its number, and Spark's.
        step_time : (int, int)
            Number and batch time as steps see them.
        end : Positions
            Where it ends.

        Raises
        ------
        Corrupt
            If the state cannot be read.
        Unavailable
            If the checkpoint does not answer.
        """
        before = self._journal.begin(batch_id)
        step_epoch, batch_us = step_time
        is_barrier = self._barriers is not None and self._barriers.begin(step_epoch)
        passing = self._passing(step_epoch)
        wish = self.sampling.wish
        at = EpochContext(step_epoch, batch_us, active_until(end, batch_us), is_barrier, passing, wish)
        self._epoch = StateEpoch(epoch, batch_id, at, before)
        context = batch.sparkSession.sparkContext
        context.setLocalProperty(EPOCH_PROPERTY, str(step_epoch))
        context.setLocalProperty(BATCH_TIME_PROPERTY, str(batch_us))
        context.setLocalProperty(ACTIVE_UNTIL_PROPERTY, json.dumps(at.active_until_us))
        context.setLocalProperty(BARRIER_PROPERTY, str(int(is_barrier)))
        context.setLocalProperty(PASSING_PROPERTY, passing.to_json())
        context.setLocalProperty(BATCH_PROPERTY, str(batch_id))
        context.setLocalProperty(STATE_PROPERTY, before.key or NO_ENTRY)
        context.setLocalProperty(WISH_PROPERTY, json.dumps(wish))

    def carry(self, batch: DataFrame, start: Positions, end: Positions, sinks: frozenset[str]) -> Evaluated | None:
        """Evaluate a small epoch here, or bring its chunks to the driver."""
        before = self._observe()
        if self.here is not None:
            chunks, report = self._evaluated(start, end)
        else:
            try:
                chunks = self._job.chunks(batch, start, end)
            except Exception as error:
                if is_too_large(error):
                    return None
                raise
            report = united(reported(chunks))
        parts = {sink: (Carried(rows),) for sink, rows in self._outlets.tables(chunks, sinks).items()}
        return Evaluated(parts, self._kept(report, before))

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run the levels and the writers in one job."""
        before = self._observe()
        task = ChunkTask(staging, self._outlets)
        parts, report = answered(self._job.answers(batch, start, end, task), staging.writers)
        return Evaluated(parts, self._kept(report, before))

    def mute(self, batch: DataFrame, start: Positions, end: Positions, *, is_small: bool) -> None:
        """Evaluate an epoch that all sinks hold for its state alone, unless the journal has it."""
        batch_id = self._running.batch_id
        if not self._journal.adopted(batch_id):
            if is_small and self.here is not None:
                _, report = self._evaluated(start, end)
            else:
                _, report = answered(self._job.answers(batch, start, end, reports_alone), ())
            self._journal.write(batch_id, report.state)
        if self._barriers is not None:
            self._barriers.forget()

    def _evaluated(self, start: Positions, end: Positions) -> tuple[list[Chunk], EpochReport]:
        """Evaluate the epoch without a job; return what comes out of the last level, and what is reported."""
        here, epoch = present(self.here, "an epoch is evaluated here that is for a job."), self._running
        chunks, changes = here(start, end, epoch.before, epoch.at)
        return chunks, united([*reported(chunks), EpochReport(state=tuple(changes))])

    @property
    def _running(self) -> StateEpoch:
        return present(self._epoch, "an epoch is evaluated that has not begun.")

    def _kept(self, report: EpochReport, before: Mapping[str, Observed]) -> EpochReport:
        """Let the journal have the state; return the report with what Spark counted, without the checkpointer's."""
        faults.reach("before-state", self._running.epoch)
        laps = Laps()
        laps.to(STATE)
        self._journal.write(self._running.batch_id, report.state)
        waves = {**report.waves, STATE: laps.take()}
        buckets = report.buckets if self._barriers is None else self._barriers.take(report.buckets)
        observed = {**observed_since(before, self._observe()), **report.observed}
        return replace(report, observed=observed, buckets=buckets, state=(), waves=waves)


@dataclass(frozen=True)
class ChunkTask:
    """One task of a staged epoch: chunks to writers.  Picklable."""

    staging: TaskStaging
    outlets: Outlets

    def __call__(self, given: Iterator[Sequence[Chunk]]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of all chunks; yield the handles, then what the chunks report."""
        reports: list[EpochReport] = []
        laps, taps = Laps(), Taps(self.staging.wish)
        with crossing():
            yield self.staging.stage(self._rows(laps.during(None, given), reports), laps, taps)
        yield answer_of(united([*reports, EpochReport(waves={STAGING: laps.take()}, samples=taps.take())]))

    def _rows(
        self, given: Iterator[Sequence[Chunk]], reports: list[EpochReport]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for chunks in given:
            reports += reported(chunks)
            yield from self.outlets.rows(chunks)


def reports_alone(given: Iterator[Sequence[Chunk]]) -> Iterator[pa.RecordBatch]:
    """Yield what chunks report, and none of their rows."""
    with crossing():
        yield answer_of(united(report for chunks in given for report in reported(chunks)))
