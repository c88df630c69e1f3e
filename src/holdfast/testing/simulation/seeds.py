"""Seeded lives of a pipeline: everything random comes from one number, so a failing run is that number.

A seed chooses the sinks, how they publish and at which pace, carried and staged epochs, commit thread and grouping,
task failures, stray workers, lost connections and lost replies, up to four crashes.  The coordinator is the real one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.commit.coordinator import Coordinator
from holdfast.errors import InDoubt, Unavailable
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Sink
from holdfast.retry import RetryPolicy
from holdfast.testing.failures import SeededFailures
from holdfast.testing.simulation.engine import Load
from holdfast.testing.simulation.process import CrashAt, SimulatedCrash
from holdfast.testing.simulation.rows import ROW_US
from holdfast.testing.simulation.world import Setting, World, simulated_sink
from holdfast.testing.sink import SimulatedSink


@dataclass(frozen=True)
class SeedReport:
    """What one seed did: its trace, how often it was killed or gave up, and what the auditor found."""

    seed: int
    trace: tuple[str, ...]
    crash_count: int
    stop_count: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        found = "; ".join(self.problems) or "nothing"
        lines = "\n  ".join(self.trace)
        return f"seed {self.seed} (replay with HOLDFAST_SEED={self.seed}): {found}\n  {lines}"


def simulate(
    seed: int,
    *,
    make_sink: Callable[..., Sink] = SimulatedSink,
    make_coordinator: Callable[..., Coordinator] = Coordinator,
) -> SeedReport:
    """Run one seed to the end of its source, through all its crashes, and audit it.

    Parameters
    ----------
    seed : int
        Chooses everything.
    make_sink, make_coordinator : callable
        Put broken ones in the place of the simulated sink and of the real coordinator: for tests of the auditor.
    """
    chance = random.Random(seed)
    sinks = [
        simulated_sink(f"sink{number}", way=chance.choice(("transaction", "prepared")), make=make_sink)
        for number in range(chance.choice((1, 1, 2, 2, 3)))
    ]
    setting = Setting(
        Load(
            row_count=chance.randint(1, 10),
            epoch_rows_max=chance.randint(1, 6),
            carried_share=chance.choice((0.0, 0.0, 0.5, 1.0)),
            task_failure_rate=chance.choice((0.0, 0.0, 0.2)),
        ),
        commit_thread=chance.random() < 0.5,
        commit_every_ticks=chance.choice((None, None, 3 * ROW_US, 100 * ROW_US)),
        ledger_keep=chance.choice((2, 100)),
        queue_size=chance.choice((1, 4)),
        retry=RetryPolicy(attempts=chance.choice((2, 6)), seed=seed),
    )
    setting = replace(setting, paces=_paces([sink.name for sink in sinks], random.Random(f"paces {seed}")))
    failures = SeededFailures(chance, chance.choice((0.0, 0.0, 0.02, 0.2)))
    world = World(sinks, seed=seed, setting=setting, failures=failures, make_coordinator=make_coordinator)
    crash_count, stop_count = _live_through(world, chance, failures)
    world.finish()
    return SeedReport(seed, tuple(world.trace), crash_count, stop_count, tuple(world.audit()))


def _paces(sinks: list[str], chance: random.Random) -> dict[str, SinkPace]:
    """Return a pace of their own for some sinks, now and then."""
    chosen = [name for name in sinks if chance.random() < 0.3]
    return {name: SinkPace(every_epochs=chance.choice((2, 3, 100))) for name in chosen}


def _live_through(world: World, chance: random.Random, failures: SeededFailures) -> tuple[int, int]:
    """Live and die until the source is drained; returns how often it was killed and how often it gave up."""
    crash_count = stop_count = 0
    while True:
        crash = CrashAt(chance.randint(1, 25), chance.choice(("before", "after"))) if crash_count < 4 else None
        try:
            with world.life(crash) as life:
                life.run()
        except SimulatedCrash:
            crash_count += 1
        except (Unavailable, InDoubt) as failure:
            world.trace.append(f"stop {type(failure).__name__}: {failure.what}")
            stop_count += 1
            failures.rate *= 0.5  # the systems recover in the end
        else:
            return crash_count, stop_count
        world.lose_power()
