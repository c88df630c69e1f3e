"""State that is taken out of the stores, and put back bucket by bucket: the outputs are as if nothing had happened
(design/0011, section 4).  The real levels, on simulated stores and workers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import BucketState, StateSchema, TableFile
from holdfast.checkpoint.snapshot import checked
from holdfast.errors import Corrupt
from holdfast.plan.cutting import build_stages
from holdfast.state.step import Step
from holdfast.testing.simulation.levels import KeptState, StatefulEvaluation, StatefulWorkload
from holdfast.testing.simulation.process import Process
from tests.spark.counting import counting

EPOCHS = 12
BUCKETS, PARTITIONS = 4, 2


def pipeline() -> hf.Pipeline:
    given = hf.read.rows([], schema="k STRING, v BIGINT", name="given")
    first = counting(given, name="first")
    second = counting(first | hf.filter("n > 1", name="many"), name="second")
    return hf.Pipeline("counts", first | hf.write.memory(name="one"), second | hf.write.memory(name="two"))


@dataclass(frozen=True)
class StoredSeeds:
    """A snapshot in a simulated store."""

    objects: Mapping[str, bytes]
    buckets: Mapping[tuple[str, int], BucketState] = field(default_factory=dict)

    def bucket(self, operator: str, number: int) -> BucketState | None:
        return self.buckets.get((operator, number))

    def read(self, file: TableFile) -> bytes:
        return checked(self.objects.get(file.key), file)


def events(chance: random.Random, count: int) -> list[tuple[str, dict[str, Any] | None]]:
    """Return rows of few keys; many buckets are not called in an epoch."""
    return [("given", {"k": chance.choice("abcdefgh"), "v": 1}) for _ in range(count)]


def run(work: StatefulWorkload, epochs: range, chance: random.Random) -> list[tuple[str, str, int]]:
    """Run epochs of two rows each; return what the sinks are given."""
    evaluation: StatefulEvaluation = work.evaluation(Process(), chance, epochs.start - 1)
    found = []
    for epoch in epochs:
        for sink, table in evaluation.carry(epoch, 2 * (epoch - 1), 2 * epoch, frozenset({"one", "two"})).items():
            found += [(sink, row["k"], row["n"]) for row in table.to_pylist()]
    return found


def taken_out(state: KeptState, epoch: int, before: StoredSeeds | None) -> StoredSeeds:
    """Return the state of all buckets as of an epoch: those of the journal, and of the seed where this has none."""
    found = state.taken_out(epoch, schemas())
    buckets = {} if before is None else dict(before.buckets)
    buckets |= {(name, number): of for name, each in found.items() for number, of in each.buckets.items()}
    return StoredSeeds({**({} if before is None else before.objects), **state.objects.objects}, buckets)


def schemas() -> dict[str, StateSchema]:
    return {name: StateSchema("stateful", "", step.key, step.tables) for name, step in _steps().items()}


def _steps() -> dict[str, Step]:
    stages = build_stages(pipeline(), lambda schema: schema, "t", buckets=1, partitions=1, prefix=lambda part: [])
    return {name: one.step for stage in stages.stages for name, one in stage.hosted.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_state_may_be_moved_after_any_epoch_and_more_than_once(seed: int) -> None:
    chance = random.Random(seed)
    rows = events(chance, 2 * EPOCHS)

    def workload(state: KeptState, seeds: StoredSeeds | None = None) -> StatefulWorkload:
        return StatefulWorkload(
            pipeline(), rows, lambda visible: [], BUCKETS, PARTITIONS, 0.2, state, seeds=seeds
        )  # fmt: skip

    wanted = run(workload(KeptState()), range(1, EPOCHS + 1), chance)
    found: list[tuple[str, str, int]] = []
    state, seeds, at = KeptState(), None, 1
    for move in sorted(chance.sample(range(1, EPOCHS), 3)):
        found += run(workload(state, seeds), range(at, move + 1), chance)
        seeds, at = taken_out(state, move, seeds), move + 1
        state = KeptState(begin=move)
    found += run(workload(state, seeds), range(at, EPOCHS + 1), chance)
    assert sorted(found) == sorted(wanted)


def test_a_damaged_file_stops_the_task_that_needs_it() -> None:
    chance = random.Random(1)
    rows = events(chance, 2 * EPOCHS)
    state = KeptState()
    run(StatefulWorkload(pipeline(), rows, lambda v: [], BUCKETS, PARTITIONS, 0.0, state), range(1, 7), chance)
    seeds = taken_out(state, 6, None)
    objects = {key: data[:-1] + bytes([data[-1] ^ 1]) for key, data in seeds.objects.items()}
    damaged = StoredSeeds(objects, seeds.buckets)
    again = StatefulWorkload(
        pipeline(), rows, lambda v: [], BUCKETS, PARTITIONS, 0.0, KeptState(begin=6), seeds=damaged
    )  # fmt: skip
    with pytest.raises(Corrupt, match="cannot be used"):
        run(again, range(7, EPOCHS + 1), chance)
