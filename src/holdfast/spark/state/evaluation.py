"""How an epoch of a pipeline with state is evaluated: its chunks to the sinks, its reports to the driver.

A small epoch is evaluated without a job, by the same levels, where nothing in it is Spark's to compute: in this
process, or in the kept worker where functions of the user are called.  Every other one is a job of the plan.  Either
way the journal has the epoch's state before its rows are decided.

What the last tasks of a job make of chunks: rows to writers, reports to the driver.

An epoch of a pipeline with state in one process, from its sources to its chunks: no job, no shuffle.

The process is the driver, or the kept worker where functions of the user are called
(:mod:`holdfast.spark.kept_worker`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast import faults
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.spark_log import active_until, plain
from holdfast.errors import crossing, present
from holdfast.plan.chunks import Chunk, from_batch, reported
from holdfast.plan.counts import EpochReport, Observed, observed_since, united
from holdfast.plan.laps import READING, STAGING, STATE, Laps, Spent
from holdfast.plan.levels.host import LevelsHere, ReadPiece, report_of
from holdfast.plan.levels.journal import BucketChange, JournalReader, StateJournal, StateVersion, StoredPiece
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.line import Outlets
from holdfast.plan.levels.packing import Packing
from holdfast.plan.levels.taps import NO_WISH, Taps, Wish
from holdfast.ports import Carried, Span
from holdfast.positions import Positions
from holdfast.quarantine.mask import EVERYTHING, Passing
from holdfast.spark.evaluation import Evaluated, Here, SourcesHere
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
from holdfast.store.paths import open_store


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
    passing : callable
        Returns what passes behind operators with state in an epoch, by its number as steps know it.
    """

    def __init__(
        self,
        outlets: Outlets,
        observe: Callable[[], Mapping[str, Observed]],
        barriers: Barriers | None,
        journal: StateJournal,
        here: Here[tuple[list[Chunk], list[BucketChange]]] | None = None,
        passing: Callable[[int], Passing] = lambda epoch: EVERYTHING,
    ) -> None:
        self._passing = passing
        self._outlets = outlets
        self._observe = observe
        self._barriers = barriers
        self._journal = journal
        self.here = here
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
                table: pa.Table = batch.toArrow()
            except Exception as error:
                if is_too_large(error):
                    return None
                raise
            chunks = [chunk for part in table.to_batches() for chunk in from_batch(part)]
            report = united(reported(chunks))
        parts = {sink: (Carried(rows),) for sink, rows in self._outlets.tables(chunks, sinks).items()}
        return Evaluated(parts, self._kept(report, before))

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run the levels and the writers in one job."""
        before = self._observe()
        task = ChunkTask(staging, self._outlets)
        parts, report = answered(batch.mapInArrow(task, ANSWERS).collect(), staging.writers)
        return Evaluated(parts, self._kept(report, before))

    def mute(self, batch: DataFrame, start: Positions, end: Positions, *, is_small: bool) -> None:
        """Evaluate an epoch that all sinks hold for its state alone, unless the journal has it."""
        batch_id = self._running.batch_id
        if not self._journal.adopted(batch_id):
            if is_small and self.here is not None:
                _, report = self._evaluated(start, end)
            else:
                _, report = answered(batch.mapInArrow(reports_alone, ANSWERS).collect(), ())
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
    """One task of a staged epoch: chunks to writers.  Picklable; called by ``mapInArrow``."""

    staging: TaskStaging
    outlets: Outlets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of all chunks; yield the handles, then what the chunks report."""
        reports: list[EpochReport] = []
        laps, taps = Laps(), Taps(self.staging.wish)
        with crossing():
            yield self.staging.stage(self._rows(laps.during(None, batches), reports), laps, taps)
        yield answer_of(united([*reports, EpochReport(waves={STAGING: laps.take()}, samples=taps.take())]))

    def _rows(
        self, batches: Iterator[pa.RecordBatch], reports: list[EpochReport]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in batches:
            chunks = from_batch(batch)
            reports += reported(chunks)
            yield from self.outlets.rows(chunks)


def reports_alone(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what chunks report, and none of their rows."""
    with crossing():
        yield answer_of(united(report for batch in batches for report in reported(from_batch(batch))))


HERE_TIMES = 4
"""So many times the usual size an epoch may have that the driver evaluates with its state.

Measured with two cores, windows of 10 000 keys, epochs of 500 000 rows (41 MB of JSON): 160 ms here, 410 ms as a job.
"""

ALONE_BYTES = 2**21
"""Spans of a source are read by several threads from here on, bytes."""


@dataclass(frozen=True)
class PiecesAt:
    """Reads pieces of state in any process.  Picklable before it does.

    Parameters
    ----------
    checkpoint, below : str
        Our directory, and Spark's below it: where the journal of state is.
    """

    checkpoint: str
    below: str

    def __call__(self, piece: StoredPiece) -> bytes:
        """Return the bytes of a piece."""
        return self._reader.piece(piece)

    @cached_property
    def _reader(self) -> JournalReader:
        return JournalReader(open_store(self.checkpoint), self.below)


@dataclass(frozen=True)
class EvaluationHere:
    """All of a pipeline in one process, from its sources to its sinks.  Picklable before it is first called.

    Parameters
    ----------
    sources : SourcesHere
        The sources.
    packings : mapping of str to Packing
        How their rows become chunks.
    levels : LevelsHere
        The levels.
    threads : int
        How many spans of a source are read at a time.
    read : callable
        Returns the bytes of a piece of state.
    """

    sources: SourcesHere
    packings: Mapping[str, Packing]
    levels: LevelsHere
    threads: int
    read: ReadPiece
    times: ClassVar[float] = HERE_TIMES

    def __call__(
        self, start: Positions, end: Positions, before: StateVersion, at: EpochContext
    ) -> tuple[list[Chunk], list[BucketChange]]:
        """Return what comes out of the last level, and what was changed of state."""
        return self.levels.run(self.chunks(start, end, at.wish), before, self.read, at)

    def begin_worker(self) -> None:
        """Do nothing: it is this process."""

    def end_worker(self) -> None:
        """Do nothing: it is this process."""

    def chunks(self, start: Positions, end: Positions, wish: Wish = NO_WISH) -> Iterator[Chunk]:
        """Yield what the sources give for an epoch: as their readers do in a job."""
        moved = [name for name in end if start.get(name) != end[name]]
        if not moved:  # a step on the way to what sinks hold: operators that watch the clock are called all the same
            for batch in next(iter(self.packings.values())).controls(0, ()):
                yield from from_batch(batch)
        for name in moved:
            packing, source = self.packings[name], self.sources.source(name)
            (begin, said_before), (until, said) = map(plain, self.sources.span(name, start, end))
            size = source.size_between(begin, until)
            threads = 1 if size is not None and size < ALONE_BYTES else self.threads
            spans = list(source.spans(begin, until, parallelism=threads))
            batches, spent = self._packed(name, spans, threads, wish)
            yield report_of(EpochReport(waves={f"{READING} {name}": spent}))
            ended = (name,) if said.get("has_ended") and not said_before.get("has_ended") else ()
            if packing.waking or ended:
                batches += packing.controls(len(spans), ended)
            for batch in batches:
                yield from from_batch(batch)

    def _packed(self, name: str, spans: Sequence[Span], threads: int, wish: Wish) -> tuple[list[pa.RecordBatch], Spent]:
        """Read spans as chunks, several at a time: reading and packing leave Python to other threads mostly."""
        packing = self.packings[name]
        spent: list[Spent] = []

        def pack(thread: int) -> list[tuple[int, list[pa.RecordBatch]]]:
            laps, taps = Laps(), Taps(wish)
            laps.to(name)
            source = self.sources.source(name, thread, wish=wish)
            mine = [(ordinal, span) for ordinal, span in enumerate(spans) if ordinal % threads == thread]
            read = [
                (ordinal, list(packing.rows(ordinal, packing.read(source, span), laps, taps))) for ordinal, span in mine
            ]
            spent.append(laps.take())
            return read

        if threads == 1 or len(spans) == 1:
            packed = [pair for thread in range(threads) for pair in pack(thread)]
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="holdfast-read") as pool:
                packed = [pair for pairs in pool.map(pack, range(threads)) for pair in pairs]
        batches = [batch for _, batches in sorted(packed, key=lambda pair: pair[0]) for batch in batches]
        return batches, reduce(Spent.beside, spent, Spent())
