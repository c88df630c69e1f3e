"""Seeded lives of a pipeline in shards: what :mod:`seeds` is for one run.

A seed chooses the shards, the sinks that all share, segments and their rows, how each shard fails, which of them die
and when, which one stands still in the middle of a write until the others are through, and when all die at once.  And
one shard is run again alone: whatever it did beside the others, it must have done the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from holdfast.commit.coordinator import Coordinator
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Sink
from holdfast.retry import RetryPolicy
from holdfast.testing.failures import SeededFailures
from holdfast.testing.simulation.engine import Load
from holdfast.testing.simulation.process import CrashAt
from holdfast.testing.simulation.rows import ROW_US
from holdfast.testing.simulation.seeds import SeedReport
from holdfast.testing.simulation.segmented import SegmentedRows
from holdfast.testing.simulation.shards import ShardWorld
from holdfast.testing.simulation.turns import Turns
from holdfast.testing.simulation.world import Setting, SinkUnderTest, simulated_sink
from holdfast.testing.sink import SimulatedSink


def simulate_shards(
    seed: int,
    *,
    make_sink: Callable[..., Sink] = SimulatedSink,
    make_coordinator: Callable[..., Coordinator] = Coordinator,
) -> SeedReport:
    """Run one seed through all its crashes, until every shard has read its segments, and audit it.

    Parameters
    ----------
    seed : int
        Chooses everything.
    make_sink, make_coordinator : callable
        Put broken ones in the place of the simulated sink and of the real coordinator.
    """
    chance = random.Random(seed)
    world, plan = _world(seed, make_sink, make_coordinator), _crashes(chance)
    numbers = range(world.assignment.shard_count)
    deaths = [chance.randint(1, 150) for _ in range(chance.choice((0, 0, 1, 2)))]
    turns = Turns(world, plan, freezes=_freezes(chance, numbers))
    for dies_at in [*deaths, None]:
        turns.dies_at = dies_at
        if turns.run(numbers):
            break
        world.lose_power()
        turns = Turns(world)
    world.finish()
    problems = world.audit()
    if not deaths:
        problems += _unlike_alone(world, _world(seed, make_sink, make_coordinator), chance.choice(numbers), plan)
    crashes = sum(shard.crash_count for shard in world.shards.values())
    stops = sum(shard.stop_count for shard in world.shards.values())
    return SeedReport(seed, tuple(world.trace), crashes, stops, tuple(problems))


def shared_sinks(
    chance: random.Random, count: int, make_sink: Callable[..., Sink] = SimulatedSink
) -> Sequence[SinkUnderTest]:
    """Return simulated sinks to which each shard connects: some publish in two steps of their own."""
    return [
        simulated_sink(f"sink{number}", way=chance.choice(("transaction", "prepared")), make=make_sink)
        for number in range(count)
    ]


def shard_setting(chance: random.Random, sinks: Sequence[SinkUnderTest], seed: int) -> Setting:
    """Return how shards are run, by a seed."""
    paced = [sink.name for sink in sinks if chance.random() < 0.2]
    return Setting(
        Load(
            epoch_rows_max=chance.randint(1, 6),
            carried_share=chance.choice((0.0, 0.0, 0.5, 1.0)),
            task_failure_rate=chance.choice((0.0, 0.0, 0.2)),
        ),
        commit_thread=chance.random() < 0.5,
        commit_every_ticks=chance.choice((None, None, 3 * ROW_US, 100 * ROW_US)),
        ledger_keep=chance.choice((2, 100)),
        queue_size=chance.choice((1, 4)),
        retry=RetryPolicy(attempts=chance.choice((2, 6)), seed=seed),
        paces={name: SinkPace(every_epochs=chance.choice((2, 3, 100))) for name in paced},
    )


def _world(seed: int, make_sink: Callable[..., Sink], make_coordinator: Callable[..., Coordinator]) -> ShardWorld:
    chance = random.Random(f"world {seed}")
    sinks = shared_sinks(chance, chance.choice((1, 1, 2, 2, 3)), make_sink)
    topic = SegmentedRows({f"segment{number}": chance.randint(1, 4) for number in range(chance.randint(2, 6))})
    shard_count = chance.choice((2, 2, 3, 4))
    rates = [chance.choice((0.0, 0.0, 0.05, 0.3)) for _ in range(shard_count)]
    return ShardWorld(
        topic,
        shard_count,
        lambda name: sinks,
        seed=seed,
        setting=shard_setting(chance, sinks, seed),
        failures_of=lambda number, own: SeededFailures(own, rates[number]),
        make_coordinator=make_coordinator,
    )


def _crashes(chance: random.Random) -> dict[int, list[CrashAt]]:
    return {
        number: [
            CrashAt(chance.randint(1, 25), chance.choice(("before", "after"))) for _ in range(chance.choice((0, 1, 2)))
        ]
        for number in range(4)
    }


def _freezes(chance: random.Random, numbers: Sequence[int]) -> tuple[int, int] | None:
    return (chance.choice(numbers), chance.randint(1, 30)) if chance.random() < 0.4 else None


def _unlike_alone(world: ShardWorld, alone: ShardWorld, number: int, plan: dict[int, list[CrashAt]]) -> Sequence[str]:
    """Run one shard without the others, and say where it does anything else."""
    Turns(alone, plan).run([number])
    alone.finish()
    name = alone.shard(number).name
    there, here = world.traces[name], alone.traces[name]
    differing = next((n for n, (one, other) in enumerate(zip(there, here, strict=False)) if one != other), None)
    if there == here:
        return []
    return [f"{name} does otherwise beside others: {there[differing:][:1]}, and alone {here[differing:][:1]}"]
