"""A world of shards: runs of one pipeline on the same targets, below one checkpoint, one durable write at a time.

Each shard is a coordinator, an engine and a process of its own.  They take turns by a seed: at each durable write of
one, another may go on, and any of them may die, alone or with all others (:mod:`turns`).  Looked at: the rows,
from outside; and at each write, whether it changes anything that is another shard's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.checkpoint.participation import Participation
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.delivery import remembers
from holdfast.commit.ledger import Standing, survey
from holdfast.controller.layouts.moving import StandingShard
from holdfast.ports import Sink, SinkLedger, Store
from holdfast.positions import Position, SegmentSet
from holdfast.shards.assignment import Assignment, assign
from holdfast.shards.naming import shard_name
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.failures import Failures, NoFailures, SeededFailures
from holdfast.testing.simulation.engine import SOURCE
from holdfast.testing.simulation.process import (
    CrashAt,
    Process,
    SteppedLane,
)
from holdfast.testing.simulation.rows import audit_values
from holdfast.testing.simulation.segmented import EngineDirectory, SegmentedRows, ShardEngine
from holdfast.testing.simulation.tasks import Workers
from holdfast.testing.simulation.world import PIPELINE, Setting, SinkUnderTest
from holdfast.testing.store import FaultyStore, SimulatedStore

T = TypeVar("T")


class StoreBelow:
    """A part of a store: whatever is below a prefix.

    Parameters
    ----------
    store : Store
        The whole.
    prefix : str
        Ends with a slash; empty: all of it.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""
        return self._store.get(self._prefix + key)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""
        self._store.put(self._prefix + key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists."""
        return self._store.put_if_absent(self._prefix + key, data)

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""
        self._store.delete(self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return [key.removeprefix(self._prefix) for key in self._store.keys(self._prefix + prefix)]


class ShardProcess(Process):
    """The process of one shard: at each durable write it is looked at what is another shard's.

    Parameters
    ----------
    name : str
        The shard's.
    world : ShardWorld
        What all share.
    crash : CrashAt, optional
        When to die.
    """

    def __init__(self, name: str, world: ShardWorld, crash: CrashAt | None = None) -> None:
        super().__init__(crash, trace=world.traces.setdefault(name, []))
        self._name = name
        self._world = world

    def write(self, label: str, apply: Callable[[], T]) -> T:
        """Do one durable write, and report it if it touches what is another's."""

        def do() -> T:
            before = self._world.of_others(self._name)
            result = apply()
            if self._world.of_others(self._name) != before:
                self._report(label)
            return result

        if not label.startswith("store "):
            return super().write(label, do)
        if label.split()[2].startswith("shards/"):  # only shard 0, whose checkpoint is the whole, can reach there
            self._report(label)
        return super().write(label, apply)

    def end(self) -> None:
        """Be dead, because all others are, too."""
        self.is_alive = False
        for act in self.at_death:
            act()

    def _report(self, label: str) -> None:
        self._world.problems.append(f"{self._name}: {label!r} changed what another shard has")


@dataclass
class ShardState:
    """What a world keeps of one shard from life to life.

    Parameters
    ----------
    name : str
        Its name in ledgers and checkpoint.
    random_ : random.Random
        Of everything random that it does itself: so what it does depends on no other shard.
    store : Store
        Its checkpoint.
    sinks : sequence of SinkUnderTest
        Its connections to the targets.
    failures : Failures
        How its calls fail.
    """

    name: str
    random_: random.Random
    store: Store
    sinks: Sequence[SinkUnderTest]
    failures: Failures = field(default_factory=NoFailures)
    workers: Workers = field(default_factory=Workers)
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    crash_count: int = 0
    stop_count: int = 0

    def give_up(self) -> None:
        """Count that a system did not answer for too long; it recovers in the end."""
        self.stop_count += 1
        if isinstance(self.failures, SeededFailures):
            self.failures.rate *= 0.5


@dataclass
class ShardLife:
    """One life of a shard: its coordinator is not opened yet."""

    world: ShardWorld
    shard: ShardState
    process: ShardProcess
    coordinator: Coordinator
    sinks: Mapping[str, Sink]
    lanes: Sequence[SteppedLane]

    def open(self) -> None:
        """Take the shard over, and begin where its sinks are, if its checkpoint is lost."""
        directory = EngineDirectory(FaultyStore(self.shard.store, self.process))
        names = [name for name, sink in self.sinks.items() if remembers(sink)]
        lost = Participation(self.shard.name, self.shard.store, names)
        found = self.coordinator.open(understood=lost.begun_together)
        ends = [end for held in found.held.values() if not held.is_empty for end in (held.positions, *held.stops)]
        if ends and not directory.has_begun:
            start, *stops = sorted(ends, key=lambda end: sum(map(int, end.get(SOURCE, {}).values())))
            directory.begin(0, found.last_epoch, start, stops)

    def engine(self, segments: SegmentSet) -> ShardEngine:
        """Return an engine that reads some segments."""
        return ShardEngine(
            pipeline=self.shard.name,
            sinks=self.sinks,
            coordinator=self.coordinator,
            store=FaultyStore(self.shard.store, self.process),
            process=self.process,
            random_=self.shard.random_,
            workers=self.shard.workers,
            load=self.world.setting.load,
            topic=self.world.topic,
            segments=segments,
        )

    def standing(self) -> StandingShard:
        """Return the shard as a move between shards sees it."""
        directory = EngineDirectory(FaultyStore(self.shard.store, self.process))
        return StandingShard(self.shard.name, self.coordinator, [*self.sinks.values()], directory)


class ShardWorld:
    """Everything durable of a pipeline in shards, and who takes the next turn.

    Parameters
    ----------
    topic : SegmentedRows
        What the shards read.
    shard_count : int
        How many shards there are.
    sinks_of : callable
        Given the name of a shard, returns its connections to the targets that all share.
    seed : int
        Of everything random that a shard does.
    turns : int, optional
        Seed of who takes the next turn; None: the same.
    setting : Setting
        How each shard is run.
    failures_of : callable, optional
        Given the number of a shard and its random generator, returns how its calls fail.
    make_coordinator : callable, optional
        Puts a broken coordinator in the place of the real one.
    """

    def __init__(
        self,
        topic: SegmentedRows,
        shard_count: int,
        sinks_of: Callable[[str], Sequence[SinkUnderTest]],
        *,
        seed: int = 0,
        turns: int | None = None,
        setting: Setting | None = None,
        failures_of: Callable[[int, random.Random], Failures] = lambda number, chance: NoFailures(),
        make_coordinator: Callable[..., Coordinator] = Coordinator,
    ) -> None:
        self.topic = topic
        self.setting = setting or Setting()
        self.store = SimulatedStore()
        self.trace: list[str] = []
        self.traces: dict[str, list[str]] = {}
        self.problems: list[str] = []
        self.assignment = assign(Assignment(shard_count), self.units)
        self.shards: dict[int, ShardState] = {}
        self.random = random.Random(f"turns {seed if turns is None else turns}")
        self._seed = seed
        self._known: dict[int, set[str]] = {}
        self._sinks_of = sinks_of
        self._failures_of = failures_of
        self._make_coordinator = make_coordinator
        self._targets = [sink.target for sink in sinks_of(PIPELINE) if sink.target is not None]

    def shard(self, number: int) -> ShardState:
        """Return what is kept of a shard."""
        if number not in self.shards:
            name, chance = shard_name(PIPELINE, number), random.Random(f"shard {number} of {self._seed}")
            below = StoreBelow(self.store, f"shards/{number}/" if number else "")
            failures = self._failures_of(number, chance)
            self.shards[number] = ShardState(name, chance, below, self._sinks_of(name), failures)
        return self.shards[number]

    @property
    def units(self) -> list[str]:
        """What can be dealt to shards: every segment that there is."""
        return [f"{SOURCE}:{segment}" for segment in self.topic.ends]

    def segments(self, number: int) -> SegmentSet:
        """Return what a shard reads."""
        return self.segments_under(self.assignment, number)

    def segments_under(self, assignment: Assignment, number: int) -> SegmentSet:
        """Return what an assignment gives a shard; one that is no more reads nothing."""
        if number >= assignment.shard_count:
            return SegmentSet()
        units = assignment.units_of(number)
        return replace(units, names=frozenset(unit.removeprefix(f"{SOURCE}:") for unit in units.names))

    @contextmanager
    def life(
        self, number: int, crash: CrashAt | None = None, on_write: Callable[[str], None] | None = None
    ) -> Iterator[ShardLife]:
        """Start a shard; leave the block by its death (``SimulatedCrash``) or its orderly end."""
        shard, setting = self.shard(number), self.setting
        process = ShardProcess(shard.name, self, crash)
        sinks = {sink.name: sink.connect(process, shard.failures) for sink in shard.sinks}
        lane = SteppedLane(shard.random_, setting.queue_size) if setting.commit_thread else None
        paced_lane = SteppedLane(shard.random_, 0) if setting.commit_thread and setting.paces else None
        store = FaultyStore(shard.store, process, shard.failures)
        coordinator = self._make_coordinator(
            pipeline=shard.name,
            store=store,
            sinks=list(sinks.values()),
            clock=shard.clock,
            retry=setting.retry,
            commit_every_ticks=setting.commit_every_ticks,
            commit_thread=False,
            ledger_keep=setting.ledger_keep,
            lane=lane,
            paces=setting.paces,
            paced_lane=paced_lane,
        )
        lanes = [each for each in (lane, paced_lane) if each is not None]
        life = ShardLife(self, shard, process, coordinator, sinks, lanes)

        def between_writes(label: str) -> None:
            if on_write is not None:
                on_write(label)
            process.check()
            self.trace.append(f"{shard.name}: {label}")
            if label.startswith(("store ", "stage ")):
                for each in life.lanes:
                    each.tick()

        process.on_write = between_writes
        try:
            with process.counting_points():
                yield life
                coordinator.close()
        finally:
            for sink in sinks.values():
                sink.close()

    def lose_power(self) -> None:
        """Let the last deletions come back or not, and some stray workers stage."""
        self.store.lose_power(lambda _: self.random.random() < 0.5)
        for shard in self.shards.values():
            shard.workers.stage_late(self.random.randint(0, 2))

    def lose_checkpoint(self) -> None:
        """Lose the checkpoints of all shards, and with them whatever is not in the sinks."""
        self.store = SimulatedStore()
        for number, shard in self.shards.items():
            shard.store = StoreBelow(self.store, f"shards/{number}/" if number else "")

    def ledgers(self) -> list[dict[str, SinkLedger]]:
        """Return what the sinks know of each shard, up to the first that none knows."""
        found: list[dict[str, SinkLedger]] = []
        while True:
            name = shard_name(PIPELINE, len(found))
            rows = {
                sink.name: sink.target.ledger.get((name, sink.name)) for sink in self._sinks_of(name) if sink.target
            }
            known = {sink: SinkLedger(row.held()) for sink, row in rows.items() if row is not None and row.generation}
            if not known:
                return found
            found.append(known)

    # --- looked at ------------------------------------------------------------------------------------------------

    def of_others(self, name: str) -> tuple[object, ...]:
        """Return what of the targets is not this shard's: its writes leave it as it is."""
        found: list[object] = []
        for target in self._targets:
            found.append({handle for handle in target.staged if _owner(handle) != name})
            rows = ((key, row) for key, row in target.ledger.items() if key[0] != name)
            found.append({key: (row.generation, row.epoch, *row.in_progress, "", *row.shown) for key, row in rows})
        return tuple(found)

    def look_at_positions(self) -> None:
        """Report a segment whose position is in no shard's ledger any more, or in two that differ."""
        for number, target in enumerate(self._targets):
            found: dict[str, set[Position]] = {}
            for row in target.ledger.values():
                positions = {} if row.record is None else row.record.positions.get(SOURCE, {})
                for segment, at in positions.items():
                    found.setdefault(segment, set()).add(at)
            known = self._known.setdefault(number, set())
            known.update(found)
            self.problems += [f"nobody has the position of {segment}" for segment in sorted(known - found.keys())]
            several = sorted(segment for segment, at in found.items() if len(at) > 1)
            self.problems += [f"{segment} has two positions: {found[segment]}" for segment in several]

    def audit_rows(self, segments: Iterable[str] | None = None) -> list[str]:
        """Look at the rows in every sink, or at those of some segments; returns the problems in words."""
        wanted = SegmentedRows(self.topic.ends)
        problems, visible = [], []
        for index, sink in enumerate(self._sinks_of(PIPELINE)):
            rows = sink.rows()
            visible.append(rows)
            found = wanted.audit(index, rows, is_ordered=sink.is_ordered, segments=segments)
            problems += [f"sink {sink.name!r}: {problem}" for problem in found]
        return problems + audit_values(visible)

    def audit(self) -> list[str]:
        """Look at everything from outside, and return the problems in words; none is the guarantee."""
        problems = [*self.problems, *self.audit_rows()]
        for shard in self.shards.values():
            for sink in shard.sinks:
                problems += [f"{shard.name}: sink {sink.name!r}: left behind {name}" for name in sink.leftovers()]
            entries = survey(shard.store)
            done = max((entry.key.epoch for entry in entries if entry.standing is Standing.DONE), default=0)
            for entry in entries:
                # A void one below is no longer looked at, and dropped with the others.
                is_passed = entry.standing is Standing.VOID and entry.key.epoch < done
                if entry.standing is not Standing.DONE and not is_passed:
                    problems.append(f"{shard.name}: ledger: {entry.key.path} {entry.standing.name}")
            if len(entries) > self.setting.ledger_keep:
                problems.append(f"{shard.name}: ledger: {len(entries)} entries, {self.setting.ledger_keep} are kept")
        return problems

    def finish(self) -> None:
        """Let every stray worker stage, then start each shard once more with nothing to fail: it sweeps."""
        for number, shard in self.shards.items():
            shard.failures = NoFailures()
            with self.life(number) as life:
                life.open()
                shard.workers.stage_late()
                life.engine(self.segments(number)).run()


def _owner(handle: str) -> str:
    """Return the pipeline of what is staged in a simulated target."""
    return handle.partition("|")[2].rsplit("/", 4)[0]
