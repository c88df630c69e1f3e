"""A graph with state in simulation: the real levels, on tasks, workers and stores that stand in for Spark's.

What runs is what runs in production: the graph cut into stages, chunks, buckets and labels, the levels, base and
deltas, the cache of a worker, the journal of state.  Simulated is what Spark does with it:

- A task that failed, before or after it wrote what it changed, is tried again, by any worker.
- Rows of a key come to the task in any order; sources are read in tasks and batches of any size.
- Workers live on when their driver dies, with all that they hold.

A carried epoch is evaluated by tasks, or by the driver itself.  Each object of the journal, of tasks and of the driver,
is a durable write, before and after which the driver can die.
"""

from __future__ import annotations

import itertools
import pickle
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.manifest import Manifest, OperatorState, StateSchema
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.row_batches import to_batch
from holdfast.graph.graph import Graph
from holdfast.plan.audit import Auditor, audit_of_stages
from holdfast.plan.batches import forget
from holdfast.plan.chunks import Chunk, reported
from holdfast.plan.counts import Balances, EpochReport, united
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels.host import LevelsHere, call_bucket, levels_of
from holdfast.plan.levels.journal import NOTHING, JournalReader, StateJournal, StateVersion, write_part
from holdfast.plan.levels.kept import read_state
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.line import Outlets
from holdfast.plan.levels.packing import Packing, packings
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.levels.store import Cache
from holdfast.plan.program_build import as_it_is
from holdfast.plan.report import Pace
from holdfast.plan.stages import Stages
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, SourceSpec
from holdfast.state.labels import spark_partition
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.rows import ROW_US, TaskRun
from holdfast.testing.stand_in import FirstStage, StandIn, StandInPlan
from holdfast.testing.store import FaultyStore, SimulatedStore

Event = tuple[str, Mapping[str, Any] | None]
"""Source, and a row of it; None: it has ended."""

EPOCH_US = 1_000_000
"""Batch times of two epochs are so far apart."""

_drivers = itertools.count(1)
"""Numbers of all drivers of this process."""


BELOW = "spark/1"
"""Where the journal is, as in a checkpoint."""


@dataclass
class KeptState:
    """What is durable of state: the objects of a journal.

    Parameters
    ----------
    begin : int
        The epoch after which it begins, empty: 0, or that of the snapshot that the state begins with.
    objects : SimulatedStore
        The objects.
    lives : int
        How many drivers have used it.
    """

    begin: int = 0
    objects: SimulatedStore = field(default_factory=SimulatedStore)
    lives: int = 0

    def batch_id(self, epoch: int) -> int:
        """Return an epoch's number in the journal."""
        return epoch - 1 - self.begin

    def begins_with(self, journal: StateJournal, batch_id: int) -> StateVersion:
        """Return the state with which an epoch begins."""
        return journal.begin(batch_id)

    def taken_out(
        self, epoch: int, state_schemas: Mapping[str, StateSchema], *, seed: Manifest | None = None
    ) -> dict[str, OperatorState]:
        """Return all state as of an epoch; its files are written among the objects."""
        return read_state(self.objects, BELOW, self.batch_id(epoch), state_schemas, seed=seed)


@dataclass(frozen=True)
class StatefulWorkload:
    """A pipeline with state and all that its sources will ever give, for :class:`holdfast.testing.World`.

    Parameters
    ----------
    pipeline : Graph
        Its sinks have the names of the world's.
    events : sequence of Event
        All sources in one line: an epoch is a piece of it.
    judge : callable
        Called with what each sink shows, as tuples; returns the problems in words.
    buckets, partitions : int
        How state is divided.
    failure_rate : float
        Probability that an attempt of a task fails.
    state : KeptState
        What is durable.
    workers : tuple of Cache
        What each worker holds.
    seeds : Seeds, optional
        Where state begins that the stores do not have.
    parts : SnapshotParts, optional
        Takes what the levels give for snapshots.
    barriers : Barriers, optional
        Decides which epochs are barriers; receives what buckets report in epochs that are carried.
    stand_ins : mapping of str to StandIn
        What operators that only Spark evaluates make of rows.
    balances : list of Balances
        Receives the totals of each epoch that the audit found in order, also of those that a crash repeats.
    """

    pipeline: Graph
    events: Sequence[Event]
    judge: Callable[[Mapping[str, Sequence[Sequence[object]]]], list[str]]
    buckets: int = 2
    partitions: int = 2
    failure_rate: float = 0.0
    state: KeptState = field(default_factory=KeptState)
    workers: tuple[Cache, ...] = field(default_factory=lambda: (Cache(), Cache(), Cache()))
    seeds: Seeds | None = None
    parts: SnapshotParts | None = None
    barriers: Barriers | None = None
    stand_ins: Mapping[str, StandIn] = field(default_factory=dict)
    balances: list[Balances] = field(default_factory=list)

    def evaluation(self, process: Process, random_: random.Random, epochs_done: int) -> StatefulEvaluation:
        """Return the evaluation of a new driver: the graph is cut anew, under a token of its own."""
        self.state.objects.lose_power(lambda key: random_.random() < 0.5)
        token = f"run{random_.getrandbits(32)}-{next(_drivers)}"  # set-ups of equal seeds are not shared
        plan = StandInPlan(self.stand_ins, random_)

        stages = build_stages(
            self.pipeline, as_it_is, token, buckets=self.buckets, partitions=self.partitions, prefix=plan.schemas
        )
        evaluation = StatefulEvaluation(self, stages, plan, token, process, random_)
        weakref.finalize(evaluation, forget, token)
        return evaluation

    def audit(self, visible: Mapping[str, Sequence[Sequence[object]]]) -> list[str]:
        """Let the judge look."""
        return self.judge(visible)


class StatefulEvaluation:
    """One driver's evaluation of a graph with state.

    Parameters
    ----------
    workload : StatefulWorkload
        What is run.
    stages : Stages
        Its graph, cut.
    plan : StandInPlan
        Evaluates what is Spark's of it.
    token : str
        Unique for the run.
    process : Process
        Each object of the journal is a durable write of it.
    random_ : random.Random
        Decides layouts, workers and failures.
    """

    def __init__(
        self,
        workload: StatefulWorkload,
        stages: Stages,
        plan: StandInPlan,
        token: str,
        process: Process,
        random_: random.Random,
    ) -> None:
        self._workload = workload
        self._stages = stages
        self._audit = audit_of_stages(workload.pipeline, stages)
        self._auditor = Auditor(workload.pipeline.name, self._audit, stops=True)
        self._plan = plan
        self._process = process
        self._random = random_
        levels = levels_of(stages, token, workload.seeds, workload.parts)
        self._levels = {level.number: pickle.dumps(level) for level in levels}
        self._here = LevelsHere(levels, stages.routing)
        workload.state.lives += 1
        self._objects = FaultyStore(workload.state.objects, process)
        self._journal = StateJournal(self._objects, BELOW, workload.state.lives)
        self._before = NOTHING
        sources = {node.name: node for node in workload.pipeline.sources}
        timestamps = {name: node.timestamp for name, node in sources.items()}
        self._first = plan.first_stage(stages)
        self._packings: dict[str, Packing] = packings(stages, timestamps) if self._first is None else {}
        self._sources: dict[str, Any] = {name: node.spec for name, node in sources.items()}
        self._outlets = Outlets.of(stages)
        self._reports: dict[tuple[int, int], list[EpochReport]] = {}
        """Level and partition -> what the last attempt of the task has reported."""
        self._pace = Pace()

    def tasks(self, epoch: int, start: int, end: int) -> Sequence[TaskRun]:
        """Run everything before the last level; return the tasks of that one, which write."""
        at = self._begun(epoch)
        chunks = self._read(self._workload.events[start:end])
        *first, last = self._levels
        for level in first:
            parts = self._shuffled(chunks, level)
            chunks = [chunk for number, part in enumerate(parts) for chunk in self._task(level, number, part, at)]
        return [
            partial(self._last_task, last, number, part, at) for number, part in enumerate(self._shuffled(chunks, last))
        ]

    def carry(self, epoch: int, start: int, end: int, sinks: frozenset[str]) -> Mapping[str, pa.Table]:
        """Evaluate here, or run every task and gather the rows of each sink."""
        if self._first is None and not self._stages.subplans and self._random.random() < 0.5:
            found = [self._all_here(epoch, start, end, sinks)]
        else:
            found = [run(sinks) for run in self.tasks(epoch, start, end)]
        made = {sink: pa.concat_tables([tables[sink] for tables in found]) for sink in sorted(sinks)}
        self.keep(epoch, {sink: table.num_rows for sink, table in made.items()})
        if self._workload.barriers is not None:
            self._workload.barriers.take(self._reported().buckets)
        return made

    def keep(self, epoch: int, rows: Mapping[str, int]) -> None:
        """Hold an epoch to the audit, and write what it changed of state.

        Of a task that was repeated, the last attempt counts.
        """
        report = self._reported()
        self._auditor.look(epoch, report, rows)
        self._auditor.note(epoch, report, rows)
        found = self._audit.balances(report, rows)
        odd = {name: balance for name, balance in found.items() if not balance.is_even}
        assert not odd, f"epoch {epoch} does not add up: {odd}"
        self._workload.balances.append(found)
        self._journal.write(self._workload.state.batch_id(epoch), report.state)

    def mute(self, epoch: int, start: int, end: int) -> None:
        """Evaluate the epoch for its state, unless the journal has it."""
        if not self._journal.adopted(self._workload.state.batch_id(epoch)):
            self.carry(epoch, start, end, frozenset())
        elif self._workload.barriers is not None:
            self._workload.barriers.begin(epoch)
        if self._workload.barriers is not None:
            self._workload.barriers.forget()

    def pts(self, end: int) -> int | None:
        """Return what the gate before the sinks said; without one, a time that grows with the events."""
        if self._workload.pipeline.commit_at is None:
            return (end - 1) * ROW_US
        found = [bucket.pts for bucket in self._reported().buckets.values() if bucket.pts is not None]
        return max(found, default=None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _begun(self, epoch: int) -> EpochContext:
        state, barriers = self._workload.state, self._workload.barriers
        self._reports = {}
        self._before = state.begins_with(self._journal, state.batch_id(epoch))
        return EpochContext(epoch, epoch * EPOCH_US, {}, barriers is not None and barriers.begin(epoch))

    def _all_here(self, epoch: int, start: int, end: int, sinks: frozenset[str]) -> Mapping[str, pa.Table]:
        at = self._begun(epoch)
        chunks = self._read(self._workload.events[start:end])
        made, changes = self._here.run(chunks, self._before, self._journal.reader.piece, at)
        self._reports = {(0, 0): [*reported(made), EpochReport(state=tuple(changes))]}
        return self._outlets.tables(made, sinks)

    def _reported(self) -> EpochReport:
        return united(report for of_task in self._reports.values() for report in of_task)

    def _read(self, events: Sequence[Event]) -> list[Chunk]:
        """Read an epoch of every source in spans and batches of any size."""
        if self._first is not None:
            return self._read_through(self._first, events)
        chunks: list[Chunk] = []
        for source, packing in self._packings.items():
            ordinal = 0
            for batches in self._spans(source, events, has_bounds=packing.bounding is not None):
                chunks += packing.rows(ordinal, batches)
                ordinal += 1
            chunks += packing.controls(ordinal, [source] if (source, None) in events else [])
        return chunks

    def _read_through(self, first: FirstStage, events: Sequence[Event]) -> list[Chunk]:
        """Read an epoch where Spark's plan computes stage 0: each span is a task of it."""
        chunks: list[Chunk] = []
        number = 0
        for source in self._sources:
            for batches in self._spans(source, events, has_bounds=True):
                chunks += first.chunks(number, source, batches)
                number += 1
        ended = [source for source in self._sources if (source, None) in events]
        chunks += first.controls.controls(0, ended)
        return chunks

    def _spans(self, source: str, events: Sequence[Event], *, has_bounds: bool) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the spans of a source in an epoch, each as batches."""
        given = [row for name, row in events if name == source and row is not None]
        rows, schema = self._given(source, given, has_bounds=has_bounds)
        for span in self._cut(rows):
            yield iter([to_batch(part, schema) for part in self._cut(span)])

    def _given(
        self, source: str, rows: Sequence[Mapping[str, Any]], *, has_bounds: bool
    ) -> tuple[Sequence[Mapping[str, Any]], pa.Schema]:
        """Return a source's rows as it reads them, bound rows among them only where they are used."""
        spec = self._sources[source]
        if not isinstance(spec, MarkedSpec):
            return rows, as_read(spec)
        if has_bounds:
            return rows, as_read(spec.given)
        marker = spec.marker
        plain = [{name: value for name, value in row.items() if name != marker} for row in rows if not row[marker]]
        return plain, as_read(spec)

    def _cut(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        start = 0
        while start < len(rows):
            end = self._random.randint(start + 1, len(rows))
            yield rows[start:end]
            start = end

    def _shuffled(self, chunks: Sequence[Chunk], level: int) -> list[list[Chunk]]:
        """Divide chunks among the partitions of a level; there they are in any order."""
        routing = self._stages.routing
        parts: list[list[Chunk]] = [[] for _ in range(routing.partitions)]
        for chunk in self._random.sample(chunks, len(chunks)):
            parts[spark_partition(*routing.address(chunk, level), routing.partitions)].append(chunk)
        return parts

    def _last_task(
        self, level: int, partition: int, chunks: Sequence[Chunk], at: EpochContext, sinks: frozenset[str]
    ) -> Mapping[str, pa.Table]:
        made = self._task(level, partition, chunks, at)
        self._reports[level, partition] += reported(made)
        return self._outlets.tables(made, sinks)

    def _task(self, level: int, partition: int, chunks: Sequence[Chunk], at: EpochContext) -> list[Chunk]:
        """Run a task until the answer of an attempt arrives."""
        while True:
            made, reports = self._attempt(level, chunks, at, self._random.choice(self._workload.workers))
            if not self._fails():
                self._reports[level, partition] = reports
                return made

    def _attempt(
        self, number: int, chunks: Sequence[Chunk], at: EpochContext, held: Cache
    ) -> tuple[list[Chunk], list[EpochReport]]:
        level: Level = pickle.loads(self._levels[number])
        memory, reader = WorkerMemory(held, self._pace), JournalReader(self._objects, BELOW)
        made: list[Chunk] = []
        reports = []
        for key, of_key in level.arriving(chunks):
            out, change = call_bucket(
                level, self._stages.routing, key, of_key, self._before, reader.piece, at, memory
            )  # fmt: skip
            made += out
            if change is not None and not self._fails():
                batch_id = self._workload.state.batch_id(at.epoch)
                reports.append(EpochReport(state=(write_part(self._objects, BELOW, batch_id, change),)))
            elif change is not None:
                return self._attempt(number, chunks, at, held)
        behind = number + 1
        while behind in self._stages.subplans:  # in the same task
            made = self._plan.led_through(self._stages, behind, made)
            behind += 1
        return made, reports

    def _fails(self) -> bool:
        return self._random.random() < self._workload.failure_rate


def as_read(spec: SourceSpec) -> pa.Schema:
    """Return the schema of a source's batches: with what could not be read, where it rejects rows."""
    if not spec.rejects:
        return spec.schema
    return pa.schema([*(field.with_nullable(True) for field in spec.schema), pa.field(REJECT_COLUMN, REJECT_TYPE)])
