"""The checkpointer: when, one at a time, and never by a run that was fenced (design/0011, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.checkpoint import named
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.checkpointer import Checkpointer, Intervals
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState, SnapshotKey
from holdfast.checkpoint.progress import GATHERED, read
from holdfast.checkpoint.replay_floor import KEY, NAMED_KEY
from holdfast.checkpoint.snapshot import snapshot_keys, verify, write_bucket
from holdfast.errors import Corrupt, Fenced, HoldfastError, InvalidPipeline, Unavailable
from holdfast.store import sealed
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import KEEPS, bucket, ended, snapshot

SECOND = 1_000_000


class Bench:
    """A checkpointer over a simulated store, and what it asks."""

    def __init__(
        self, every_s: int = 10, seed: Manifest | None = None, keep: int = 2, barriers: Barriers | None = None
    ) -> None:
        self.store = SimulatedStore()
        self.clock = SimulatedClock()
        self.known: list[int | None] = []
        self.during: Callable[[], None] = lambda: None
        self.is_fenced = False
        self.held: set[int] = set()
        self.published: list[int] = []
        self.refusal: HoldfastError | None = None
        self.user_data: Mapping[str, Any] | None = None
        self.checkpointer = Checkpointer(
            pipeline="counts",
            graph="0123",
            generation=3,
            buckets=2,
            store=self.store,
            clock=self.clock,
            read=self.read,
            check_fenced=self.check_fenced,
            intervals=Intervals(every_s * SECOND, 5 * SECOND, keep),
            seed=seed,
            user_data=lambda: self.user_data,
            barriers=barriers,
            hold=self.hold,
            publish=self.publish,
        )

    def publish(self) -> None:
        self.published.append(len(self.known))
        if self.refusal is not None:
            raise self.refusal

    def hold(self, at: EpochEnd) -> Callable[[], None]:
        self.held.add(at.epoch)
        return lambda: self.held.discard(at.epoch)

    def read(self, at: EpochEnd, known: Manifest | None) -> dict[str, OperatorState]:
        self.known.append(None if known is None else known.ended.epoch)
        self.during()
        return {"counted": OperatorState(KEEPS, {0: write_bucket(self.store, bucket(0, at.epoch))})}

    def check_fenced(self) -> None:
        if self.is_fenced:
            raise Fenced("another run has taken over.")

    def end_epoch(self, epoch: int) -> None:
        self.checkpointer.note(ended(epoch - 1).positions, ended(epoch))

    def wait(self, seconds: float) -> None:
        self.clock.sleep_s(seconds)
        self.checkpointer.turn()

    @property
    def epochs(self) -> list[int]:
        return [key.epoch for key in snapshot_keys(self.store)]


def test_one_is_made_when_it_is_due_and_an_epoch_has_ended_since() -> None:
    bench = Bench()
    bench.wait(10)
    assert bench.epochs == [], "no epoch has ended"
    bench.end_epoch(1)
    bench.end_epoch(2)
    bench.wait(9)
    assert bench.epochs == []
    bench.wait(1)
    assert bench.epochs == [2]
    bench.wait(10)
    assert bench.known == [None]
    bench.end_epoch(3)
    bench.wait(10)
    assert (bench.epochs, bench.known) == ([2, 3], [None, 2])
    status = bench.checkpointer.status
    assert (status.count, status.epoch, status.dropped, status.failed, status.rows) == (2, 3, 0, 0, 2)


def test_every_sink_holds_what_a_snapshot_is_of_before_it_is_made() -> None:
    """Else a sink with a pace of its own could only be replayed to from an older one (design/0019)."""
    bench = Bench()
    bench.end_epoch(1)
    bench.wait(10)
    assert (bench.published, bench.epochs) == ([0], [1]), "published when nothing was read yet"
    bench.end_epoch(2)
    bench.refusal = Unavailable("the sink does not answer.")
    bench.wait(10)
    assert bench.epochs == [1]
    assert bench.checkpointer.status.failed == 1


def test_those_that_are_due_while_one_is_made_are_dropped_and_counted() -> None:
    bench = Bench()
    bench.end_epoch(1)
    bench.during = lambda: bench.clock.sleep_s(35)
    bench.wait(10)
    bench.during = lambda: None
    bench.end_epoch(2)
    bench.wait(0)
    assert bench.epochs == [1, 2]
    assert bench.checkpointer.status.dropped == 2, "at 20 and at 30 seconds; that of 40 was made at 45"
    bench.end_epoch(3)
    bench.wait(4)
    assert bench.epochs == [1, 2]
    bench.wait(1)
    assert bench.epochs == [2, 3], "the beat stays"


def test_none_is_made_by_itself_when_they_are_switched_off() -> None:
    bench = Bench(every_s=0)
    bench.end_epoch(1)
    bench.wait(1000)
    bench.checkpointer.end(is_clean=True)
    assert bench.epochs == []
    assert bench.store.keys("progress/") == [], "nothing would ever remove them"
    assert bench.checkpointer.snapshot() is not None
    assert bench.epochs == [1]


def test_a_clean_stop_makes_a_last_one_and_a_failure_leaves_the_records() -> None:
    for is_clean, made in ((True, [1]), (False, [])):
        bench = Bench()
        bench.end_epoch(1)
        bench.checkpointer.end(is_clean=is_clean)
        assert bench.epochs == made
        assert [step.ended.epoch for step in read(bench.store)] == ([] if is_clean else [1])


@pytest.mark.parametrize("error", [Unavailable("the disk is full."), RuntimeError("the disk is full.")])
def test_a_failure_of_any_kind_is_counted_and_the_next_one_is_made(error: Exception) -> None:
    bench = Bench()

    def fail() -> None:
        raise error

    bench.during = fail
    bench.end_epoch(1)
    bench.wait(10)
    assert bench.epochs == []
    assert bench.checkpointer.status.failed == 1
    assert "the disk is full." in bench.checkpointer.status.last_error
    bench.during = lambda: None
    bench.wait(10)
    assert bench.epochs == [1]


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_run_that_was_fenced_leaves_nothing_that_counts(when: str) -> None:
    bench = Bench()
    bench.end_epoch(1)
    if when == "before":
        bench.is_fenced = True
    else:
        bench.during = lambda: setattr(bench, "is_fenced", True)
    bench.wait(10)
    assert bench.epochs == []
    assert bench.checkpointer.status.failed == 0


def test_one_that_is_fenced_right_after_it_wrote_takes_its_word_back() -> None:
    bench = Bench()
    bench.end_epoch(1)
    put = bench.store.put

    def fenced_after(key: str, data: bytes) -> None:
        put(key, data)
        bench.is_fenced = key.endswith(".manifest")

    bench.store.put = fenced_after  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        bench.checkpointer.snapshot()
    assert bench.epochs == []


def test_progress_is_recorded_several_epochs_at_a_time_and_pruned_with_the_snapshots() -> None:
    bench = Bench(keep=1)
    for epoch in (1, 2):
        bench.end_epoch(epoch)
    bench.wait(4)
    assert bench.store.keys("progress/") == []
    bench.wait(1)
    assert bench.store.keys("progress/") == ["progress/000000000001-000000000002-00000003"]
    bench.end_epoch(3)
    bench.wait(5)
    assert bench.store.keys("progress/") == [], "the snapshot of epoch 3 has made them needless"
    assert sealed.load(bench.store.objects[KEY]) == {"given": {"log": 3}}
    bench.end_epoch(4)
    bench.wait(5)
    (step,) = read(bench.store)
    assert (step.start, step.ended) == ({"given": {"log": 3}}, ended(4))


def test_a_record_that_could_not_be_written_is_written_later() -> None:
    bench = Bench(every_s=3600)
    put, bench.store.put = bench.store.put, _refuse  # type: ignore[method-assign]
    bench.end_epoch(1)
    bench.wait(5)
    bench.store.put = put  # type: ignore[method-assign]
    bench.end_epoch(2)
    bench.wait(5)
    assert [step.ended.epoch for step in read(bench.store)] == [1, 2]


def test_an_end_travels_with_the_epochs_until_its_record_is_written() -> None:
    """Between the two nobody would tell it (design/0018, "Recent epochs")."""
    bench = Bench(every_s=3600)
    seen: list[list[int]] = []
    put = bench.store.put

    def noticed(key: str, data: bytes) -> None:
        seen.append(unrecorded(bench))
        bench.end_epoch(3)
        put(key, data)

    bench.store.put = noticed  # type: ignore[method-assign]
    bench.end_epoch(1)
    bench.end_epoch(2)
    bench.wait(5)
    assert (seen, unrecorded(bench)) == ([[1, 2]], [3])
    assert [step.ended.epoch for step in read(bench.store)] == [1, 2]


def test_an_end_that_is_noted_again_travels_once() -> None:
    """A query that failed after it, and was started anew, repeats the last epoch."""
    bench = Bench()
    for epoch in (1, 2, 2, 3):
        bench.checkpointer.note(ended(epoch - 1).positions, ended(epoch))
    assert [step.ended.epoch for step in bench.checkpointer.unrecorded()] == [1, 2, 3]


def test_an_epoch_takes_no_more_than_so_many_ends_along_however_long_a_snapshot_takes() -> None:
    bench = Bench(every_s=1)
    most: list[int] = []

    def run_epochs() -> None:
        for epoch in range(2, 3 * GATHERED):
            bench.end_epoch(epoch)
            most.append(len(unrecorded(bench)))

    bench.during = run_epochs
    bench.end_epoch(1)
    bench.wait(1)
    assert max(most) == GATHERED
    assert [*(step.ended.epoch for step in read(bench.store)), *unrecorded(bench)] == [*range(2, 3 * GATHERED)], (
        "the snapshot of epoch 1 has made its own end needless"
    )


def test_where_the_record_that_is_due_cannot_be_written_the_epoch_is_noted_later_and_once() -> None:
    bench = Bench(every_s=3600)
    for epoch in range(1, GATHERED + 1):
        bench.end_epoch(epoch)
    put, bench.store.put = bench.store.put, _refuse  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        bench.end_epoch(GATHERED + 1)
    bench.store.put = put  # type: ignore[method-assign]
    bench.end_epoch(GATHERED + 1)
    assert unrecorded(bench) == [GATHERED + 1]


def unrecorded(bench: Bench) -> list[int]:
    return [step.ended.epoch for step in bench.checkpointer.unrecorded()]


def _refuse(key: str, data: bytes) -> None:
    raise Unavailable(f"no room for {key}.")


def test_the_seed_of_the_directory_is_not_pruned() -> None:
    seed = snapshot(SimulatedStore(), 1)
    bench = Bench(seed=seed, keep=1)
    snapshot(bench.store, 1)
    for epoch in (2, 3):
        bench.end_epoch(epoch)
        bench.wait(10)
    assert snapshot_keys(bench.store) == [SnapshotKey(1, 1), SnapshotKey(3, 3)]
    verify(bench.store, seed)
    assert sealed.load(bench.store.objects[KEY]) == ended(3).positions, "it holds no rows of any source"
    assert bench.store.keys("progress/") == [], "and no ends of epochs"


def test_one_with_a_name_stays_and_holds_the_floor_until_the_name_is_gone() -> None:
    bench = Bench(keep=1)
    assert bench.checkpointer.snapshot_named("early") is None, "no epoch has ended"
    bench.end_epoch(1)
    made = bench.checkpointer.snapshot_named("early")
    assert made == named.read_named(bench.store, "early")
    for epoch in (2, 3):
        bench.end_epoch(epoch)
        bench.checkpointer.snapshot()
    assert bench.epochs == [3]
    verify(bench.store, named.read_named(bench.store, "early"))
    assert sealed.load(bench.store.get(KEY) or b"") == ended(1).positions
    named.delete_named(bench.store, "early")
    bench.end_epoch(4)
    bench.checkpointer.snapshot()
    assert sealed.load(bench.store.get(KEY) or b"") == ended(4).positions


def test_a_name_holds_the_rows_behind_its_own_snapshot_where_no_others_are_made() -> None:
    bench = Bench(every_s=0)
    bench.end_epoch(1)
    # Epochs end, and sources let go of them, while the snapshot is made: it is of an end behind which all rows stay.
    bench.during = lambda: bench.end_epoch(2)
    made = bench.checkpointer.snapshot_named("early")
    assert made is not None
    assert sealed.load(bench.store.objects[NAMED_KEY]) == {"counts": made.ended.positions}


def test_a_name_that_cannot_be_given_leaves_the_snapshot_and_one_of_a_fenced_run_goes() -> None:
    bench = Bench()
    bench.end_epoch(1)
    with pytest.raises(InvalidPipeline, match="not a name of a checkpoint"):
        bench.checkpointer.snapshot_named("a/b")
    assert bench.epochs == []
    bench.checkpointer.snapshot_named("taken")
    with pytest.raises(InvalidPipeline, match="already"):
        bench.checkpointer.snapshot_named("taken")
    bench.is_fenced = True  # nothing has ended since: the snapshot is there, and the name is put
    with pytest.raises(Fenced):
        bench.checkpointer.snapshot_named("late")
    assert named.names(bench.store) == ["taken"]


def test_the_thread_works_until_it_is_told_to_end() -> None:
    bench = Bench(every_s=3600)

    def corrupt() -> None:
        raise Corrupt("state cannot be read.")

    bench.during = corrupt
    bench.checkpointer.start()
    bench.end_epoch(1)
    bench.checkpointer.end(is_clean=False)
    assert [step.ended.epoch for step in read(bench.store)] == [1]
