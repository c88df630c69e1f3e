"""A world in which drivers die: what is durable lives on, each driver is one life, and an auditor looks at the end.

The coordinator in it is the real one.  Sinks are whatever the test brings: simulated ones, or real ones on a new
directory or database.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from holdfast.commit.coordinator import Coordinator, Resumption
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.recovery import Verdict
from holdfast.commit.transaction import Transition
from holdfast.errors import Diverged
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Sink, Store
from holdfast.retry import RetryPolicy
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.failures import Failures, NoFailures
from holdfast.testing.faulty_sink import FaultySink
from holdfast.testing.simulation.engine import SOURCE, Load, SimulatedEngine
from holdfast.testing.simulation.process import CrashAt, Process, SteppedLane
from holdfast.testing.simulation.rows import SimulatedEvaluation, Workload, audit_rows, audit_values
from holdfast.testing.simulation.tasks import Workers
from holdfast.testing.sink import SimulatedSink, SimulatedTarget
from holdfast.testing.store import FaultyStore, SimulatedStore

PIPELINE = "simulated"
"""Name of the pipeline that a world runs."""

Rows = Sequence[Sequence[object]]


@dataclass(frozen=True)
class SinkUnderTest:
    """A sink that a world drives: how to connect to its target, and how to look at the target from outside.

    Parameters
    ----------
    name : str
        The sink's.
    connect : callable
        Returns a new :class:`~holdfast.ports.Sink` on the same durable target, with the columns of
        ``holdfast.testing.simulation.rows.SCHEMA``; called once per life.
    rows : callable
        What any reader sees, as tuples in the order of the columns.
    leftovers : callable
        A name for everything staged that still exists.
    is_ordered : bool
        Whether ``rows`` are in the order in which they became visible.
    target : SimulatedTarget, optional
        Of a simulated sink: what can go back under a living driver.
    """

    name: str
    connect: Callable[[Process, Failures], Sink]
    rows: Callable[[], Rows]
    leftovers: Callable[[], Sequence[str]]
    is_ordered: bool = False
    target: SimulatedTarget | None = None


def real_sink(
    name: str,
    connect: Callable[[], Sink],
    rows: Callable[[], Rows],
    leftovers: Callable[[], Sequence[str]],
    *,
    is_ordered: bool = False,
) -> SinkUnderTest:
    """Return a real sink for a world: each call of it is a place to die, before and after."""
    return SinkUnderTest(
        name, lambda process, failures: FaultySink(connect(), process, failures), rows, leftovers, is_ordered
    )


def simulated_sink(
    name: str,
    *,
    way: Literal["transaction", "prepared"] = "transaction",
    target: SimulatedTarget | None = None,
    make: Callable[..., Sink] = SimulatedSink,
    can_go_back: bool = False,
) -> SinkUnderTest:
    """Return a simulated sink for a world; ``make`` puts a broken one in its place."""
    place = target or SimulatedTarget(can_go_back=can_go_back)
    return SinkUnderTest(
        name,
        lambda process, failures: make(name, place, way=way, process=process, failures=failures),
        place.rows,
        place.leftovers,
        is_ordered=True,
        target=place,
    )


@dataclass(frozen=True)
class Setting:
    """How the pipeline of a world is run."""

    load: Load = field(default_factory=Load)
    commit_thread: bool = False
    commit_every_ticks: int | None = None
    commit_at_pts: bool = False
    ledger_keep: int = 100
    queue_size: int = 4
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(seed=0))
    paces: Mapping[str, SinkPace] = field(default_factory=dict)
    replays: bool = False
    """Whether the engine begins another directory for sinks that lack what it has finished, as on Spark."""
    held_limit_bytes: int = 64_000_000


@dataclass
class Life:
    """One driver, as long as it lives."""

    process: Process
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    engine: SimulatedEngine
    lanes: Sequence[SteppedLane] = ()
    resumption: Resumption | None = None
    replays: bool = False

    def open(self) -> Resumption:
        """Take the pipeline over.

        Raises
        ------
        Diverged
            If a sink is behind what the ledger calls done.  On Spark it is given again what it lacks, in a directory
            that begins where it stands; here too, if the setting says so.
        """
        resumption = self.coordinator.open()
        if self.replays:
            self.engine.leave_if_behind(resumption.held, resumption.last_epoch)
            self.resumption = resumption
            return resumption
        behind = [each.sink for each in resumption.resolved if each.verdict is Verdict.REPLAY]
        if behind:
            raise Diverged(f"sink {behind[0]!r} holds less than the ledger says.", participant=behind[0])
        for name, held in resumption.held.items():
            if held.explained is not None and held.explained.get(SOURCE, 0) < held.epoch:
                raise AssertionError(f"sink {name!r} holds epoch {held.epoch}, and not what its positions mean")
            if held.recent_ends not in ("", f"to {held.positions.get(SOURCE, {}).get('log')}"):
                raise AssertionError(f"sink {name!r} holds epoch {held.epoch}, and ends {held.recent_ends!r}")
        self.resumption = resumption
        return resumption

    def run(self, epochs_max: int | None = None) -> None:
        """Take the pipeline over, unless that is done, and run it to the end of the source."""
        if self.resumption is None:
            self.open()
        self.engine.run(epochs_max)


class World:
    """Everything durable, and the random generator.

    Parameters
    ----------
    sinks : sequence of SinkUnderTest
        In the order in which they publish.
    seed : int
        Of everything random in it.
    setting : Setting
        How the pipeline is run.
    store : Store, optional
        The checkpoint; simulated by default.
    failures : Failures, optional
        How sinks and store fail.
    make_coordinator : callable, optional
        Puts a broken coordinator in the place of the real one: for tests of the auditor.
    workload : Workload, optional
        What is run, as many events as the load has rows; by default numbered rows.
    """

    def __init__(
        self,
        sinks: Sequence[SinkUnderTest],
        *,
        seed: int = 0,
        setting: Setting | None = None,
        store: Store | None = None,
        failures: Failures | None = None,
        make_coordinator: Callable[..., Coordinator] = Coordinator,
        workload: Workload | None = None,
    ) -> None:
        self.sinks = sinks
        self.setting = setting or Setting()
        self.random = random.Random(seed)
        self.store: Store = store or SimulatedStore()
        self.engine_store = SimulatedStore()
        self.failures: Failures = failures or NoFailures()
        self.workers = Workers()
        self.clock = SimulatedClock()
        self.trace: list[str] = []
        self._make_coordinator = make_coordinator
        self._workload = workload

    @contextmanager
    def life(
        self,
        crash: CrashAt | None = None,
        *,
        on_point: Callable[[str, int], None] | None = None,
        on_write: Callable[[str], None] | None = None,
    ) -> Iterator[Life]:
        """Start a driver; leave the block by its death (``SimulatedCrash``) or its orderly end."""
        process = Process(crash, trace=self.trace)
        life = self._start(process)

        def between_writes(label: str) -> None:
            if on_write is not None:
                on_write(label)
            # Not within a sink's own calls: a sink serves one thread at a time.
            if label.startswith(("store ", "stage ")):
                for lane in life.lanes:
                    lane.tick()

        process.on_write = between_writes
        try:
            with process.counting_points(on_point):
                yield life
                life.coordinator.close()
        finally:
            for sink in life.sinks.values():
                sink.close()

    def _start(self, process: Process) -> Life:
        setting = self.setting
        sinks = {sink.name: sink.connect(process, self.failures) for sink in self.sinks}
        lane = SteppedLane(self.random, setting.queue_size) if setting.commit_thread else None
        paced_lane = SteppedLane(self.random, 0) if setting.commit_thread and setting.paces else None
        coordinator = self._make_coordinator(
            pipeline=PIPELINE,
            store=FaultyStore(self.store, process, self.failures),
            sinks=list(sinks.values()),
            clock=self.clock,
            retry=setting.retry,
            commit_every_ticks=setting.commit_every_ticks,
            commit_at_pts=setting.commit_at_pts,
            commit_thread=False,
            ledger_keep=setting.ledger_keep,
            on_transition=self._note,
            lane=lane,
            paces=setting.paces,
            held_limit_bytes=setting.held_limit_bytes,
            paced_lane=paced_lane,
        )
        engine = SimulatedEngine(
            pipeline=PIPELINE,
            sinks=sinks,
            coordinator=coordinator,
            store=FaultyStore(self.engine_store, process),
            process=process,
            random_=self.random,
            load=setting.load,
            workers=self.workers,
            evaluation=None if self._workload is None else self._evaluation(self._workload, process),
        )
        lanes = [each for each in (lane, paced_lane) if each is not None]
        return Life(process, sinks, coordinator, engine, lanes, replays=setting.replays)

    def _evaluation(self, workload: Workload, process: Process) -> SimulatedEvaluation:
        done = self.engine_store.keys("commits/")
        return workload.evaluation(process, self.random, int(done[-1].rpartition("/")[2]) + 1 if done else 0)

    def _note(self, transition: Transition) -> None:
        self.trace.append(f"epoch {transition.epoch} {transition.event.name} {transition.participant}".rstrip())

    def lose_power(self) -> None:
        """Let the last deletions come back or not, and some stray workers stage."""
        for store in (self.store, self.engine_store):
            if isinstance(store, SimulatedStore):
                store.lose_power(lambda _: self.random.random() < 0.5)
        self.workers.stage_late(self.random.randint(0, 2))

    def finish(self) -> None:
        """Let every stray worker stage, then start once more with nothing left to do: it sweeps."""
        self.failures = NoFailures()
        with self.life() as life:
            life.open()
            self.workers.stage_late()
            life.run()

    def audit(self) -> list[str]:
        """Look at everything from outside, and return the problems in words; none is the guarantee."""
        problems = self._audit_rows()
        for sink in self.sinks:
            problems += [f"sink {sink.name!r}: left behind {name}" for name in sink.leftovers()]
        standings = [entry.standing for entry in survey(self.store)]
        problems += [f"ledger: {standing.name}" for standing in standings if standing is not Standing.DONE]
        if len(standings) > self.setting.ledger_keep:
            problems.append(f"ledger: {len(standings)} entries, {self.setting.ledger_keep} are kept")
        return problems

    def _audit_rows(self) -> list[str]:
        if self._workload is not None:
            return self._workload.audit({sink.name: sink.rows() for sink in self.sinks})
        problems = []
        visible = []
        for index, sink in enumerate(self.sinks):
            rows = sink.rows()
            visible.append(rows)
            found = audit_rows(index, self.setting.load.row_count, rows, is_ordered=sink.is_ordered)
            problems += [f"sink {sink.name!r}: {problem}" for problem in found]
        return problems + audit_values(visible)
