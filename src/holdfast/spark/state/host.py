"""Levels in tasks of Spark: between two levels a shuffle brings each bucket's chunks together.

A task reads the state that its buckets have at the end of the epoch before out of the journal, which every worker sees,
and writes what it changed as parts; a report names them to the driver, which makes them count.  What the driver sets
for an epoch comes as local properties of its job, so the plan is the same in every epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from holdfast.errors import crossing, invariant, present
from holdfast.plan.chunks import CHUNKS, Chunk, Routing, from_batch
from holdfast.plan.counts import EpochReport
from holdfast.plan.laps import OTHER
from holdfast.plan.levels.host import call_bucket, report_of
from holdfast.plan.levels.journal import NOTHING, JournalReader, StateVersion, write_part
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.opened import BatchTask
from holdfast.quarantine.mask import Passing
from holdfast.spark import private
from holdfast.spark.wishes import wish_of_task
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from holdfast.spark.state.subplan import PlacedSubplan

EPOCH_PROPERTY, BATCH_TIME_PROPERTY = "holdfast.epoch", "holdfast.batch_us"
"""Local properties of an epoch's job."""

ACTIVE_UNTIL_PROPERTY = "holdfast.active_until"
"""Local property: the time up to which each source counts as active although no row of it arrived, as JSON."""

BARRIER_PROPERTY = "holdfast.barrier"
"""Set for the job of an epoch whose state is wanted for a snapshot."""

PASSING_PROPERTY = "holdfast.passing"
"""Local property: what passes behind operators with state, as JSON."""

BATCH_PROPERTY, STATE_PROPERTY = "holdfast.batch", "holdfast.state"
"""Local properties: the epoch as Spark numbers it, and the entry of the journal that it begins with."""

NO_ENTRY = "none"
"""Where there is no entry yet: a property that is empty does not reach a task."""

POOL_VARIABLE = "HOLDFAST_POOL"
"""Levels get workers of their own, by a variable of their environment.

So few processes hold state, and one that held a bucket in the last epoch is likely to get it again.
"""


@dataclass
class _Worker:
    """What this worker keeps: workers are reused from epoch to epoch."""

    memory: WorkerMemory = field(default_factory=WorkerMemory)
    version: tuple[str, StateVersion] = ("", NOTHING)


_worker = _Worker()


@dataclass(frozen=True)
class LevelTask:
    """One task of a level.  Picklable; called by ``mapInArrow``.

    Parameters
    ----------
    level : Level
        What is done with chunks.
    number : int
        Which level it is.
    routing : Routing
        Where chunks go.
    checkpoint, below : str
        Our directory, which every worker sees, and Spark's below it.
    """

    level: Level
    number: int
    routing: Routing
    checkpoint: str
    below: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the chunks of some buckets and passages; yield chunks."""
        with crossing():
            for out in self.run([chunk for batch in batches for chunk in from_batch(batch)]):
                yield from self.routing.batches(out, self.number + 1)

    def run(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Yield what comes out for each bucket and passage, then what this task reports."""
        if not chunks:
            return
        at, batch_id, entry = _context()
        store = open_store(self.checkpoint)
        reader = JournalReader(store, self.below)
        before, laps = self._before(reader, entry), _worker.memory.laps
        laps.take()  # what a task has left that failed
        _worker.memory.taps.begin(at.wish)
        for key, of_key in self.level.arriving(chunks):
            laps.to(OTHER)
            out, change = call_bucket(self.level, self.routing, key, of_key, before, reader.piece, at, _worker.memory)
            if change is not None:
                laps.to(change.at[0])
                written = write_part(store, self.below, batch_id, change)
                out.append(report_of(EpochReport(state=(written,)), *change.at))
            laps.to(None)  # the next task has the turn
            yield out
        yield [report_of(EpochReport(waves={f"{self.number}": laps.take()}))]

    def _before(self, reader: JournalReader, entry: str) -> StateVersion:
        """Return the state that the epoch begins with, by what this worker has read of the journal."""
        # With the run: a checkpoint that was removed or restored may have entries of the same names.
        place = f"{self.level.token} {self.checkpoint}/{self.below}"
        known = _worker.version[1] if _worker.version[0] == place else NOTHING
        version = reader.version_of(entry, known)
        _worker.version = (place, version)
        return version


def _context() -> tuple[EpochContext, int, str]:
    """Return what the driver has said of the epoch, in properties of its job; its number at Spark; the entry before."""
    context = present(TaskContext.get(), "a level runs outside a task of Spark.")
    epoch, batch_us = context.getLocalProperty(EPOCH_PROPERTY), context.getLocalProperty(BATCH_TIME_PROPERTY)
    batch_id, entry = context.getLocalProperty(BATCH_PROPERTY), context.getLocalProperty(STATE_PROPERTY)
    invariant(None not in (epoch, batch_us, batch_id, entry), "a level runs in a job that does not say of which epoch.")
    active_until_us = json.loads(context.getLocalProperty(ACTIVE_UNTIL_PROPERTY) or "{}")
    is_barrier = context.getLocalProperty(BARRIER_PROPERTY) == "1"
    before = "" if entry == NO_ENTRY else entry or ""
    passing = Passing.from_json(context.getLocalProperty(PASSING_PROPERTY) or "{}")
    at = EpochContext(int(epoch or 0), int(batch_us or 0), active_until_us, is_barrier, passing, wish_of_task())
    return at, int(batch_id or 0), before


def with_levels(
    frame: DataFrame,
    levels: Sequence[Level],
    routing: Routing,
    checkpoint: str,
    below: str,
    subplans: Callable[[int], Sequence[PlacedSubplan]] = lambda number: (),
) -> DataFrame:
    """Return a frame of chunks after all levels; ``subplans`` gives what Spark's plan evaluates behind each.

    What a task gives is opened in the same task: rows go into the JVM once, and not first as chunks.
    """
    for level in levels:
        task: BatchTask = LevelTask(level, level.number, routing, checkpoint, below)
        frame = frame.repartition(routing.partitions, "operator", "label")
        with private.workers_apart(frame.sparkSession.sparkContext, POOL_VARIABLE, f"level-{level.number}"):
            behind = subplans(level.number)
            frame = frame.mapInArrow(task, CHUNKS) if not behind else behind[0].opened(frame, task)
        for subplan, following in pairwise(behind):
            frame = following.opened(frame, subplan.closing)
        if behind:
            frame = frame.mapInArrow(behind[-1].closing, CHUNKS)
    return frame
