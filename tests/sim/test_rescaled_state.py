"""State that is divided anew while random graphs run: every sink shows what plain Python makes of all rows
(design/0011, section 5).  The real levels and the real transfer, on simulated stores.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import EpochEnd, Manifest, TableFile
from holdfast.checkpoint.snapshot import checked
from holdfast.plan.cutting import build_stages
from holdfast.plan.stages import Stages
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.transfer import Transfer
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.levels import EPOCH_US, KeptState, StatefulWorkload
from holdfast.testing.simulation.process import Process
from holdfast.testing.stand_in import StandInPlan
from holdfast.testing.store import SimulatedStore
from tests.everyday import SEEDS, seeds
from tests.sim.stateful_graphs import random_graph

SEED = os.environ.get("HOLDFAST_SEED")
FEW, MANY = 12, SEEDS // 50


@dataclass(frozen=True)
class Snapshots:
    """Seeds out of a manifest in a simulated store."""

    store: SimulatedStore
    manifest: Manifest

    def bucket(self, operator: str, number: int) -> Any:
        return self.manifest.operators[operator].buckets.get(number)

    def read(self, file: TableFile) -> bytes:
        return checked(self.store.get(file.key), file)


@dataclass
class Moving:
    """A pipeline whose state moves from one division to another."""

    pipeline: hf.Pipeline
    plan: StandInPlan
    store: SimulatedStore = field(default_factory=SimulatedStore)
    generation: int = 0

    def stages(self, buckets: int) -> Stages:
        return build_stages(
            self.pipeline, lambda schema: schema, "t", buckets=buckets, partitions=1, prefix=self.plan.schemas
        )

    def taken_out(self, state: KeptState, epoch: int, before: Snapshots | None, buckets: int) -> Manifest:
        """Return all state as of an epoch: that of the journal, and of the seed where this has none."""
        state_schemas = state_schemas_of(self.pipeline, self.stages(buckets))
        seed = None if before is None else before.manifest
        operators = state.taken_out(epoch, state_schemas, seed=seed)
        self.store.objects.update(state.objects.objects)
        return Manifest("p", 1, 0, "g", EpochEnd(epoch, epoch, {}, epoch * EPOCH_US), buckets, operators)

    def moved(self, manifest: Manifest, buckets: int) -> Snapshots:
        stages = self.stages(buckets)
        self.generation += 1
        transfer = Transfer(
            self.store,
            "p",
            "g",
            state_schemas_of(self.pipeline, stages),
            upgrades_of(self.pipeline, stages),
            buckets,
            self.generation,
            SimulatedClock(),
        )
        same = {name: name for name in manifest.operators}
        assert transfer.is_needed(manifest, same) == (manifest.buckets != buckets)
        return Snapshots(self.store, transfer.made(manifest, same))


def problems_of(seed: int) -> list[str]:
    """Run a random graph whose state is divided anew three times; return what the sinks show wrongly."""
    graph = random_graph(seed)
    chance = random.Random(f"{seed} buckets")
    pipeline = hf.Pipeline("moving", *graph.sinks)
    moving = Moving(pipeline, StandInPlan(graph.stand_ins))
    names = frozenset(sink.name for sink in graph.sinks)
    shown: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    buckets = chance.choice((1, 2, 3))
    work = StatefulWorkload(
        pipeline, graph.events, graph.problems, buckets=buckets, failure_rate=0.0, stand_ins=graph.stand_ins
    )
    epoch = start = 0
    while start < len(graph.events):
        evaluation = work.evaluation(Process(), chance, epoch)
        for _ in range(chance.randint(1, 4)):
            end = min(len(graph.events), start + chance.randint(1, 6))
            if start == end:
                break
            epoch += 1
            for sink, table in evaluation.carry(epoch, start, end, names).items():
                shown[sink] += [tuple(row.values()) for row in table.to_pylist()]
            start = end
        seeds = work.seeds
        assert seeds is None or isinstance(seeds, Snapshots)
        state = moving.taken_out(work.state, epoch, seeds, buckets)
        buckets = chance.choice([other for other in (1, 2, 3, 5) if other != buckets])
        work = replace(
            work,
            buckets=buckets,
            partitions=chance.randint(1, buckets),
            seeds=moving.moved(state, buckets),
            state=KeptState(begin=epoch),
        )
    return graph.problems(shown)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(SEED)] if SEED else range(FEW))
def test_buckets_may_change_at_any_epoch(seed: int) -> None:
    assert problems_of(seed) == []


@pytest.mark.nightly
def test_buckets_may_change_at_any_epoch_of_very_many_graphs() -> None:
    for seed in seeds(MANY):
        assert problems_of(seed) == [], f"HOLDFAST_SEED={seed}"
