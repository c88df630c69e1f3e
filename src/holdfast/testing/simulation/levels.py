"""A graph with state in simulation: the real levels, on tasks, workers and stores that stand in for Spark's.

What runs is what runs in production: the graph cut into stages, chunks, buckets and labels, the levels, base and
deltas, the cache of a worker.  Simulated is what Spark does with it:

- A task has the store of one level and partition.  It begins with the version of the epoch before, whatever was
  committed since, and its own version is there once it has ended; a task that fails before leaves nothing.
- A task that failed, before or after its version was there, is tried again, by any worker.
- Rows of a key come to the task in any order; sources are read in tasks and batches of any size.
- An epoch that all sinks hold is evaluated all the same (muted): the next one needs its state, and what tasks of a dead
  driver left of it may be gone as long as the epoch is not in the commit log.
- Workers live on when their driver dies, with all that they hold.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.barriers import Barriers
from holdfast.graph.pipeline import Pipeline
from holdfast.plan.chunks import Chunk, from_batch, reported, spark_partition
from holdfast.plan.counts import EpochReport, united
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.outlets import Outlets
from holdfast.plan.levels.packing import Packing, packings
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.levels.store import Cache
from holdfast.plan.program_build import as_it_is
from holdfast.plan.report import Pace
from holdfast.plan.stages import Stages
from holdfast.sources.bounds import MarkedSpec
from holdfast.sources.rows import to_batch
from holdfast.testing.cells import DictionaryCells, Stored
from holdfast.testing.simulation.evaluation import TaskRun
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.rows import ROW_US

Event = tuple[str, Mapping[str, Any] | None]
"""Source, and a row of it; None: it has ended."""

EPOCH_US = 1_000_000
"""Batch times of two epochs are so far apart."""


class Stores:
    """The versions of all state stores: what is durable of state.

    Parameters
    ----------
    begin : int
        The epoch after which they were made, empty: 0, or that of the snapshot that the state begins with.
    """

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._versions: dict[tuple[int, int], dict[int, Stored]] = {}

    def load(self, level: int, partition: int, version: int) -> Stored:
        """Return what a task may change: the store of a level and partition as it was after an epoch."""
        return dict(self._versions[level, partition][version]) if version > self._begin else {}

    def cells(self, version: int) -> Stored:
        """Return everything that is stored as of an epoch, over all levels and partitions."""
        found: Stored = {}
        for versions in self._versions.values():
            found |= versions.get(version, {})
        return found

    def commit(self, level: int, partition: int, version: int, cells: Stored) -> None:
        """Keep the store as it is after an epoch; a task that is repeated does so again."""
        self._versions.setdefault((level, partition), {})[version] = cells

    def newest(self, level: int, partition: int) -> int:
        """Return the latest version; 0 when there is none."""
        return max(self._versions.get((level, partition), {}), default=0)

    def lose(self, epochs_done: int, chance: random.Random) -> None:
        """Lose some of what belongs to no epoch of the commit log: it may be lost at any time."""
        for versions in self._versions.values():
            for version in [version for version in versions if version > epochs_done]:
                if chance.random() < 0.5:
                    del versions[version]


@dataclass(frozen=True)
class StatefulWorkload:
    """A pipeline with state and all that its sources will ever give, for :class:`holdfast.testing.World`.

    Parameters
    ----------
    pipeline : Pipeline
        Its sinks have the names of the world's.
    events : sequence of Event
        All sources in one line: an epoch is a piece of it.
    judge : callable
        Called with what each sink shows, as tuples; returns the problems in words.
    buckets, partitions : int
        How state is divided.
    failure_rate : float
        Probability that an attempt of a task fails.
    stores : Stores
        What is durable.
    workers : tuple of Cache
        What each worker holds.
    mutes : bool
        False forgets to evaluate epochs that all sinks hold: for tests of the simulation.
    seeds : Seeds, optional
        Where state begins that the stores do not have.
    parts : SnapshotParts, optional
        Takes what the levels give for snapshots.
    barriers : Barriers, optional
        Decides which epochs are barriers; receives what buckets report in epochs that are carried.
    """

    pipeline: Pipeline
    events: Sequence[Event]
    judge: Callable[[Mapping[str, Sequence[Sequence[object]]]], list[str]]
    buckets: int = 2
    partitions: int = 2
    failure_rate: float = 0.0
    stores: Stores = field(default_factory=Stores)
    workers: tuple[Cache, ...] = field(default_factory=lambda: (Cache(), Cache(), Cache()))
    mutes: bool = True
    seeds: Seeds | None = None
    parts: SnapshotParts | None = None
    barriers: Barriers | None = None

    def evaluation(self, process: Process, random_: random.Random, epochs_done: int) -> StatefulEvaluation:
        """Return the evaluation of a new driver: the graph is cut anew, under a token of its own."""
        self.stores.lose(epochs_done, random_)
        token = f"run{random_.getrandbits(32)}"
        stages = build_stages(
            self.pipeline, as_it_is, token, buckets=self.buckets, partitions=self.partitions, prefix=_no_prefix
        )
        return StatefulEvaluation(self, stages, token, process, random_)

    def audit(self, visible: Mapping[str, Sequence[Sequence[object]]]) -> list[str]:
        """Let the judge look."""
        return self.judge(visible)


def _no_prefix(part: object) -> Sequence[pa.Schema]:
    raise AssertionError("the simulation has no plan of Spark: what stands before state must be evaluated by Arrow")


class StatefulEvaluation:
    """One driver's evaluation of a graph with state.

    Parameters
    ----------
    workload : StatefulWorkload
        What is run.
    stages : Stages
        Its graph, cut.
    token : str
        Unique for the run.
    process : Process
        Each commit of a store is a durable write.
    random_ : random.Random
        Decides layouts, workers and failures.
    """

    def __init__(
        self, workload: StatefulWorkload, stages: Stages, token: str, process: Process, random_: random.Random
    ) -> None:
        self._workload = workload
        self._stages = stages
        self._process = process
        self._random = random_
        levels = [
            Level(number, stage, stages.routing, token, workload.seeds, workload.parts)
            for number, stage in enumerate(stages.stages[1:], start=1)
        ]
        self._levels = [pickle.dumps(level) for level in levels]
        program = stages.stages[0].program
        assert program is not None
        sources = {node.name: node for node in workload.pipeline.sources}
        timestamps = {name: node.timestamp for name, node in sources.items()}
        self._packings: dict[str, Packing] = packings(
            program, stages.routing, timestamps, stages.closing, stages.waking, None, stages.bounding, stages.row_bounds
        )
        self._sources: dict[str, Any] = {name: node.spec for name, node in sources.items()}
        self._outlets = Outlets.of(stages)
        self._reports: dict[int, list[EpochReport]] = {}
        """Partition of the last level -> what the attempt of its task has reported that came last."""
        self._pace = Pace()

    def tasks(self, epoch: int, start: int, end: int) -> Sequence[TaskRun]:
        """Run everything before the last level; return the tasks of that one, which write."""
        barriers = self._workload.barriers
        at = EpochContext(epoch, epoch * EPOCH_US, {}, barriers is not None and barriers.begin(epoch))
        self._reports = {}
        chunks = self._read(self._workload.events[start:end])
        last = len(self._levels)
        for level in range(1, last):
            parts = self._shuffled(chunks, level)
            chunks = [chunk for partition, part in enumerate(parts) for chunk in self._task(level, partition, part, at)]
        return [
            partial(self._last_task, last, partition, part, at)
            for partition, part in enumerate(self._shuffled(chunks, last))
        ]

    def carry(self, epoch: int, start: int, end: int, sinks: frozenset[str]) -> Mapping[str, pa.Table]:
        """Run every task, and gather the rows of each sink."""
        found = [run(sinks) for run in self.tasks(epoch, start, end)]
        if self._workload.barriers is not None:
            self._workload.barriers.take(self._reported().buckets)
        return {sink: pa.concat_tables([tables[sink] for tables in found]) for sink in sorted(sinks)}

    def mute(self, epoch: int, start: int, end: int) -> None:
        """Run every task for its state."""
        if self._workload.mutes:
            self.carry(epoch, start, end, frozenset())
            if self._workload.barriers is not None:
                self._workload.barriers.forget()

    def pts(self, end: int) -> int | None:
        """Return what the gate before the sinks said; without one, a time that grows with the events."""
        if self._workload.pipeline.commit_at is None:
            return (end - 1) * ROW_US
        found = [bucket.pts for bucket in self._reported().buckets.values() if bucket.pts is not None]
        return max(found, default=None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _reported(self) -> EpochReport:
        return united(report for of_task in self._reports.values() for report in of_task)

    def _read(self, events: Sequence[Event]) -> list[Chunk]:
        """Read an epoch of every source in spans and batches of any size."""
        chunks = []
        for source, packing in self._packings.items():
            rows, schema = self._given(source, [row for name, row in events if name == source and row is not None])
            ordinal = 0
            for span in self._cut(rows):
                batches = [to_batch(part, schema) for part in self._cut(span)]
                chunks += [chunk for batch in packing.rows(ordinal, iter(batches)) for chunk in from_batch(batch)]
                ordinal += 1
            for batch in packing.controls(ordinal, [source] if (source, None) in events else []):
                chunks += from_batch(batch)
        return chunks

    def _given(self, source: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], pa.Schema]:
        """Return a source's rows as it reads them, bound rows among them only where they are used."""
        spec = self._sources[source]
        if not isinstance(spec, MarkedSpec):
            return rows, spec.schema
        if self._packings[source].bounding is not None:
            return rows, spec.given.schema
        marker = spec.marker
        plain = [{name: value for name, value in row.items() if name != marker} for row in rows if not row[marker]]
        return plain, spec.schema

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
        self._reports[partition] = [*reported(made)]
        return self._outlets.tables(made, sinks)

    def _task(self, level: int, partition: int, chunks: Sequence[Chunk], at: EpochContext) -> list[Chunk]:
        """Run a task until the answer of an attempt arrives."""
        stores = self._workload.stores
        while True:
            cells = stores.load(level, partition, at.epoch - 1)
            made = self._attempt(level, chunks, cells, at, self._random.choice(self._workload.workers))
            if self._fails():
                continue  # the store was not committed: this version is never read
            commit = partial(stores.commit, level, partition, at.epoch, cells)
            self._process.write(f"state {level}/{partition} {at.epoch}", commit)
            if not self._fails():
                return made

    def _attempt(
        self, number: int, chunks: Sequence[Chunk], cells: Stored, at: EpochContext, held: Cache
    ) -> list[Chunk]:
        level: Level = pickle.loads(self._levels[number - 1])
        memory = WorkerMemory(held, self._pace)
        return [
            made
            for key, mine in level.arriving(chunks)
            for made in level.run(key, mine, DictionaryCells(cells, key), at, memory)
        ]

    def _fails(self) -> bool:
        return self._random.random() < self._workload.failure_rate
