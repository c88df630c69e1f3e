"""Die before and after every durable write of the checkpointer, twice: a good snapshot is always there (design/0011).

What is written and removed goes through the store port, so the places to die are all there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.checkpoint.checkpointer import Checkpointer, Intervals
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.progress import chain, read
from holdfast.checkpoint.snapshot import FILES, good_snapshots, read_manifest, snapshot_keys, write_bucket
from holdfast.ports import Store
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore, SimulatedStore
from tests.unit.checkpoint.snapshots import KEEPS, bucket, ended

EPOCHS_A_LIFE = 4
KEEP = 2


class World:
    """A checkpoint, and the epochs of one pipeline after the other."""

    def __init__(self) -> None:
        self.store = SimulatedStore()
        self.epoch = 0
        self.committed: set[int] = set()
        self.write_count = 0

    def live(self, crash: CrashAt | None, generation: int) -> bool:
        """Run a few epochs, with a snapshot after each; tell whether the life survived."""
        process = Process(crash)
        store = FaultyStore(self.store, process)
        checkpointer = self._checkpointer(store, generation)
        try:
            for _ in range(EPOCHS_A_LIFE):
                self.epoch += 1
                checkpointer.note(ended(self.epoch - 1).positions, ended(self.epoch))
                if checkpointer.snapshot() is not None:
                    self.committed.add(self.epoch)
        except SimulatedCrash:
            return False
        finally:
            self.write_count = process.write_count
        return True

    def _checkpointer(self, store: Store, generation: int) -> Checkpointer:
        def write(at: EpochEnd, known: Manifest | None) -> dict[str, OperatorState]:
            # One bucket changes in every epoch, the other in every third.
            versions = {0: at.epoch, 1: 1 + at.epoch // 3}
            states = {number: write_bucket(store, bucket(number, of)) for number, of in versions.items()}
            return {"counted": OperatorState(KEEPS, states)}

        return Checkpointer(
            pipeline="counts",
            graph="0123",
            generation=generation,
            buckets=2,
            store=store,
            clock=SimulatedClock(),
            read=write,
            check_fenced=lambda: None,
            intervals=Intervals(0, 10**9, KEEP),
        )

    def audit(self) -> list[str]:
        """Return what is wrong with what a new process would find."""
        refused: list[str] = []
        good = [made.ended.epoch for made in good_snapshots(self.store, lambda key, why: refused.append(why))]
        newest = max(self.committed, default=0)
        problems = list(refused)
        if newest and (not good or good[0] < newest):
            problems.append(f"the snapshot of epoch {newest} counted, and the newest good one is of {good[:1]}")
        if good:
            known = [each.epoch for each in chain(read(self.store), ended(good[0]).positions)]
            if known and known[0] != good[0] + 1:
                problems.append(f"behind epoch {good[0]} the records go on with {known[0]}")
        return problems


def places() -> Iterator[CrashAt]:
    """Yield every place to die in a life."""
    survivor = World()
    assert survivor.live(None, 1)
    for n in range(1, survivor.write_count + 1):
        yield CrashAt(n, "before")
        yield CrashAt(n, "after")


@pytest.mark.slow
@pytest.mark.parametrize("loses_power", [False, True])
def test_whatever_write_is_the_last_one_a_good_snapshot_is_left(loses_power: bool) -> None:
    crashes = list(places())
    assert len(crashes) > 40
    for first in crashes:
        for second in crashes[:: 31 if loses_power else 17]:
            world = World()
            for generation, crash in enumerate((first, second), start=1):
                world.live(crash, generation)
                if loses_power:
                    world.store.lose_power(lambda key: True)
                assert world.audit() == [], (first, second)
            assert world.live(None, 3)
            assert world.audit() == [], (first, second)
            left = snapshot_keys(world.store)
            assert [key.epoch for key in left] == [world.epoch - 1, world.epoch]
            needed = {file.key for key in left for file in read_manifest(world.store, key).files}
            assert set(world.store.keys(FILES)) == needed, (first, second)


def test_the_audit_notices_files_that_go_before_their_manifest() -> None:
    world = World()
    world.live(None, 1)
    for path in world.store.keys(FILES)[-1:]:
        world.store.delete(path)
    assert world.audit() != []
