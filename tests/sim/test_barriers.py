"""Snapshots that the levels write themselves: each says what the committed stores say (design/0011, section 3).

The real levels, on simulated stores and workers, with tasks that fail before and after their store is committed, parts
that come late or never, runs that are killed and replay an epoch muted, and attempts that do not agree with each other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.checkpoint.barriers import Barriers, gathered, taken_from
from holdfast.checkpoint.manifest import EpochEnd, Manifest
from holdfast.checkpoint.snapshot import Bucket, commit, good_snapshots, prune, read_part, verify, write_part
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels.seed import tables_of
from holdfast.spark.state.plan import state_schemas_of
from holdfast.state.step import Change, Result
from holdfast.testing.simulation.levels import KeptState, StatefulWorkload
from holdfast.testing.simulation.process import Process
from holdfast.testing.store import SimulatedStore
from tests.sim.test_seeds_of_state import BUCKETS, PARTITIONS, StoredSeeds, _steps, events, pipeline, taken_out
from tests.spark.counting import CountingStep

EPOCHS = 24
_offered: list[tuple[Bucket, str]] = []


@dataclass(frozen=True)
class Offered:
    """Keeps what levels offer; a workload's levels are pickled, so it is in the module."""

    run: str

    def offer(self, bucket: Bucket) -> None:
        _offered.append((bucket, self.run))


class _KilledError(Exception):
    """The driver is killed."""


class Dying:
    """A store that kills the driver at a deletion: what comes behind that one stays."""

    def __init__(self, inner: SimulatedStore, deletions: int) -> None:
        self.inner = inner
        self.left = deletions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def delete(self, key: str) -> None:
        if self.left == 0:
            raise _KilledError
        self.left -= 1
        self.inner.delete(key)


class Run:
    """A pipeline, its snapshots, and what is found of them."""

    def __init__(self, seed: int, *, failure_rate: float = 0.2, dies_pruning: bool = True) -> None:
        self.chance = random.Random(seed)
        self.rows = events(self.chance, 3 * EPOCHS)
        self.state = KeptState()
        self.store = SimulatedStore()
        self.failure_rate = failure_rate
        self.dies_pruning = dies_pruning
        self.seeds: StoredSeeds | None = None
        self.seed: Manifest | None = None
        self.made: list[Manifest] = []
        self.sources = {"there": 0, "written": 0, "read": 0}
        self.number = self.kills = 0
        stages = build_stages(pipeline(), lambda schema: schema, "t", buckets=1, partitions=1, prefix=lambda part: [])
        self.state_schemas = state_schemas_of(pipeline(), stages)
        self.steps = _steps()
        self.begin(0)

    def begin(self, done: int) -> None:
        """Begin a run behind an epoch; workers live on, and with them what they have not written yet."""
        self.number += 1
        self.barriers = Barriers()
        self.last: Manifest | None = None
        self.work = StatefulWorkload(
            pipeline(), self.rows, lambda visible: [], BUCKETS, PARTITIONS, self.failure_rate, self.state,
            seeds=self.seeds, parts=Offered(self.run), barriers=self.barriers,
        )  # fmt: skip
        self.evaluation = self.work.evaluation(Process(), self.chance, done)

    @property
    def run(self) -> str:
        return f"run{self.number}"

    def lose_directory(self, done: int) -> None:
        """Lose the stores; state comes from the snapshot of that epoch."""
        found = taken_out(self.state, done, self.seeds)
        self.state, self.seeds = KeptState(begin=done), found
        states = gathered(self.state_schemas, found.buckets)
        self.seed = Manifest("counts", 1, 0, "", ended(done), BUCKETS, states)
        self.store.objects.update(found.objects)
        self.begin(done)

    def epoch(self, number: int, *, is_muted: bool = False) -> None:
        """Run an epoch of three rows, and take its snapshot where it is a barrier."""
        if self.chance.random() < 0.5:
            self.barriers.wish()
        start, end = 3 * (number - 1), 3 * number
        if is_muted:
            self.evaluation.mute(number, start, end)
        else:
            self.evaluation.carry(number, start, end, frozenset({"one", "two"}))
        was_barrier = self.barriers.end(number)
        for each in self.chance.sample(_offered, len(_offered)):
            if self.chance.random() < 0.8:  # the others come late, or with their worker never
                write_part(self.store, *each)
                _offered.remove(each)
        if was_barrier:
            self.snapshot(number)

    def snapshot(self, number: int) -> None:
        taken = taken_from(self.state_schemas, BUCKETS, self.barriers.as_of(number), self.last, self.seed)
        found, read = dict(taken.there), set(taken.read)
        for at, of in taken.written.items():
            part = read_part(self.store, *at, of, self.run)
            if part is None:
                read.add(at)
            else:
                found[at] = part
        stored = taken_out(self.state, number, self.seeds)
        found |= {at: of for at, of in stored.buckets.items() if at in read}
        self.store.objects.update({key: stored.objects[key] for at in read & stored.buckets.keys()
                                   for key in (file.key for file in stored.buckets[at].files.values())})  # fmt: skip
        self.sources["there"] += len(taken.there)
        self.sources["written"] += len(taken.written)
        self.sources["read"] += len(read)
        manifest = Manifest("counts", 1, 0, "", ended(number), BUCKETS, gathered(self.state_schemas, found))
        commit(self.store, manifest)
        self.barriers.learn(manifest)
        self.last = manifest
        self.made.append(manifest)
        self.check(manifest, stored)
        pinned = frozenset() if self.seed is None else frozenset({self.seed.key})
        if self.seed is not None:
            commit(self.store, self.seed)
        try:
            deletions = self.chance.randrange(12) if self.dies_pruning else 10**6
            prune(Dying(self.store, deletions), keep=2, pinned=pinned)
        except _KilledError:
            self.kills += 1
            self.begin(number)
        for kept in good_snapshots(self.store, lambda key, why: pytest.fail(why)):
            verify(self.store, kept)

    def check(self, manifest: Manifest, stored: StoredSeeds) -> None:
        """Compare a manifest with what the committed stores say, bucket by bucket."""
        ours = StoredSeeds(self.store.objects)
        found = {(name, at): of for name, each in manifest.operators.items() for at, of in each.buckets.items()}
        assert found.keys() == stored.buckets.keys()
        for (name, number), of in found.items():
            other = stored.buckets[name, number]
            assert (of.version, of.digest, of.feeds) == (other.version, other.digest, other.feeds)
            assert tables_of(of, ours, self.steps[name]) == tables_of(other, stored, self.steps[name])


def ended(number: int) -> EpochEnd:
    return EpochEnd(number, number, {"given": {"log": number}}, number)


@pytest.fixture(autouse=True)
def _nothing_offered() -> Any:
    _offered.clear()
    yield
    _offered.clear()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_of_a_barrier_is_what_the_stores_committed(seed: int) -> None:
    run = Run(seed)
    number = 1
    while number <= EPOCHS:
        run.epoch(number)
        fate = run.chance.random()
        if fate < 0.1:  # killed before the commit log had the epoch: all sinks hold it, and it is replayed
            run.begin(number - 1)
            run.epoch(number, is_muted=True)
        elif fate < 0.15:
            run.lose_directory(number)
        number += 1
    assert len(run.made) > 10
    assert run.sources["written"] > 10
    assert run.kills


@pytest.mark.slow
def test_in_a_quiet_run_nothing_is_read_but_what_the_barrier_did_not_call() -> None:
    run = Run(2, failure_rate=0, dies_pruning=False)
    for number in range(1, EPOCHS + 1):
        run.epoch(number)
    assert run.sources["there"] > 10
    assert run.sources["written"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_attempts_that_differ_never_mix(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the state may draw at random; then the committed attempt alone is in the manifest."""
    apply = CountingStep.apply
    drawn = random.Random(seed)

    def varying(self: CountingStep, *given: Any) -> Result:
        result = apply(self, *given)
        counts = result.changes["counts"]
        order = list(range(counts.upserts.num_rows))
        drawn.shuffle(order)
        more = counts.upserts.take(order)
        values = [n + drawn.choice((0, 1000)) for n in more["n"].to_pylist()]
        more = more.set_column(1, more.schema.field("n"), [values])
        return replace(result, changes={**result.changes, "counts": Change(more, counts.deletes)})

    monkeypatch.setattr(CountingStep, "apply", varying)
    run = Run(seed, failure_rate=0.4)
    for number in range(1, EPOCHS + 1):
        run.epoch(number)
    assert run.sources["written"] > 10
