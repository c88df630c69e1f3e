"""Barriers: which epoch is one, and where the files of each bucket come from (design/0011, section 3)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from holdfast.checkpoint.barriers import Barriers, Taken, taken_from
from holdfast.checkpoint.manifest import BucketState, Manifest, TableFile
from holdfast.checkpoint.snapshot import FILES, prune, read_manifest, read_part, snapshot_keys, write_part
from holdfast.errors import Unavailable
from holdfast.state.bucket_report import BucketReport, KeptVersion
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import bucket, manifest, snapshot
from tests.unit.checkpoint.test_checkpointer import Bench

FEEDS = {"rows": {"given": 7}}


def state(version: int, *files: str) -> BucketState:
    named = {name: TableFile(f"{name}-{version}", "00", 1, 1) for name in files}
    return BucketState(version, f"d{version}", FEEDS, named)


def report(version: int, feeds: Any = None, digest: str | None = None) -> BucketReport:
    kept = KeptVersion(version, f"d{version}" if digest is None else digest, feeds)
    return BucketReport({"late": 1}, kept=kept)


def epoch(barriers: Barriers, number: int, **reported: BucketReport) -> bool:
    """Run an epoch; names of buckets are those of operator ``counted``, as ``b<number>``."""
    barriers.begin(number)
    rest = barriers.take({f"counted/{name[1:]}": of for name, of in reported.items()})
    assert all(of == BucketReport({"late": 1}) for of in rest.values())
    return barriers.end(number)


def taken(barriers: Barriers, number: int, last: Manifest | None = None, seed: Manifest | None = None) -> Taken:
    return taken_from(["counted"], 2, barriers.as_of(number), last, seed)


def test_the_next_epoch_that_begins_is_the_barrier_and_only_that() -> None:
    barriers = Barriers()
    barriers.begin(1)
    barriers.wish()
    assert not barriers.withdraw(), "an epoch runs: the next one is the barrier"
    assert not barriers.end(1)
    assert barriers.begin(2)
    assert barriers.end(2)
    assert not epoch(barriers, 3)
    barriers.wish()
    assert barriers.withdraw()
    assert not epoch(barriers, 4)


def test_what_was_called_in_the_barrier_is_written_and_what_nobody_told_of_is_read() -> None:
    barriers = Barriers()
    barriers.wish()
    assert epoch(barriers, 5, b0=report(5, FEEDS))
    found = taken(barriers, 5)
    assert (found.there, set(found.written), found.read) == ({}, {("counted", 0)}, {("counted", 1)})
    assert found.written["counted", 0] == state(5)
    epoch(barriers, 6, b0=report(6, FEEDS), b1=report(6, FEEDS))
    assert taken(barriers, 5) == found, "what was known at the barrier stays"
    assert taken(barriers, 6).read == {("counted", 0), ("counted", 1)}, "changed, and no worker writes it"
    assert taken(barriers, 4) == Taken({}, {}, frozenset({("counted", 0), ("counted", 1)}))


def test_a_bucket_that_did_not_change_keeps_the_files_of_the_last_snapshot_with_the_bounds_of_now() -> None:
    barriers = Barriers()
    epoch(barriers, 5, b0=report(5, {}), b1=report(4))
    last = manifest({0: state(5, "counts"), 1: state(4, "counts")}, 5)
    barriers.learn(last)
    epoch(barriers, 6, b1=report(4, {"rows": {"given": 9}}))
    barriers.wish()
    epoch(barriers, 7, b0=report(7, FEEDS))
    found = taken(barriers, 7, last)
    assert set(found.written) == {("counted", 0)}
    (of,) = found.there.values()
    assert (of.version, of.feeds, of.files) == (4, {"rows": {"given": 9}}, state(4, "counts").files)
    assert not found.read


def test_bounds_that_did_not_move_since_the_snapshot_are_those_of_it() -> None:
    barriers = Barriers()
    epoch(barriers, 5, b0=report(5))
    assert ("counted", 0) in taken(barriers, 5).read, "its bounds are not known"
    epoch(barriers, 6, b0=report(6))
    last = manifest({0: state(5, "counts")}, 5)
    barriers.learn(last)
    barriers.wish()
    epoch(barriers, 7, b0=report(7))
    found = taken(barriers, 7, last)
    assert found.written["counted", 0].feeds == FEEDS
    assert (found.there, found.read) == ({}, frozenset()), "bucket 1 has never kept anything"


def test_a_bucket_that_was_never_called_has_the_state_of_the_seed() -> None:
    barriers = Barriers()
    seed = manifest({1: state(3, "counts")}, 3)
    last = manifest({0: state(5), 1: state(3, "counts")}, 5)
    epoch(barriers, 5, b0=report(5, FEEDS))
    assert taken(barriers, 5, None, seed).read == {("counted", 0), ("counted", 1)}
    barriers.learn(last)
    epoch(barriers, 6)
    assert taken(barriers, 6, last, seed).there["counted", 1].files == state(3, "counts").files


def test_another_digest_is_another_content() -> None:
    barriers = Barriers()
    barriers.learn(manifest({0: state(5, "counts")}, 5))
    epoch(barriers, 6, b0=report(5, FEEDS, "another"))
    assert taken(barriers, 6, manifest({0: state(5, "counts")}, 5)).read == {("counted", 0)}


def test_an_epoch_that_nobody_reported_of_leaves_nothing_known() -> None:
    barriers = Barriers()
    epoch(barriers, 5, b0=report(5, FEEDS), b1=report(5, FEEDS))
    barriers.begin(6)
    barriers.forget()
    barriers.end(6)
    everything = frozenset({("counted", 0), ("counted", 1)})
    assert taken(barriers, 6).read == everything
    barriers.learn(manifest({0: state(5, "counts")}, 5))
    epoch(barriers, 7)
    assert taken(barriers, 7).read == everything, "a snapshot of before says nothing of it"
    barriers.learn(manifest({0: state(6, "counts")}, 6))
    epoch(barriers, 8)
    assert not taken(barriers, 8, manifest({0: state(6, "counts")}, 6)).read


def test_a_bucket_that_was_called_and_keeps_nothing_is_in_no_manifest() -> None:
    barriers = Barriers()
    barriers.wish()
    epoch(barriers, 1, b0=report(0, {}, ""), b1=report(0, FEEDS, ""))
    assert taken(barriers, 1) == Taken({("counted", 1): BucketState(0, "", FEEDS, {})}, {}, frozenset())


def test_a_part_counts_once_its_note_is_there_and_survives_the_pruning_of_older_snapshots() -> None:
    store = SimulatedStore()
    snapshot(store, 4)
    of = BucketState(6, "d6", FEEDS, {})
    assert read_part(store, "counted", 0, of, "r1") is None
    write_part(store, bucket(0, 6), "r1")
    found = read_part(store, "counted", 0, of, "r1")
    assert found is not None
    assert {name: file.rows for name, file in found.files.items()} == {"counts": 2}
    assert read_part(store, "counted", 0, BucketState(6, "another", FEEDS, {}), "r1") is None
    assert read_part(store, "counted", 0, of, "r2") is None, "its files may be gone"
    snapshot(store, 5)
    prune(store, keep=1)
    assert read_part(store, "counted", 0, of, "r1") == found, "a worker has written it for a snapshot that is to come"
    snapshot(store, 7)
    prune(store, keep=1)
    assert all("000000000007-" in key for key in store.keys(FILES))


def test_a_note_that_is_damaged_is_none() -> None:
    store = SimulatedStore()
    write_part(store, bucket(0, 6), "r1")
    (note,) = [key for key in store.keys(FILES) if key.endswith(".part")]
    written = store.get(note) or b""
    for data in (b"", b"{", b"[1]", b'{"counts": 1}', written.replace(b",2]", b",3]")):
        assert data != written
        store.put(note, data)
        assert read_part(store, "counted", 0, BucketState(6, "d6", FEEDS, {}), "r1") is None


# --- the checkpointer -----------------------------------------------------------------------------------------------


def ended_epoch(bench: Bench, barriers: Barriers, number: int, *, takes_s: float = 0) -> None:
    barriers.begin(number)
    bench.clock.sleep_s(takes_s)
    bench.checkpointer.turn()
    barriers.take({})
    bench.end_epoch(number)
    bench.checkpointer.turn()


def test_a_snapshot_that_is_due_is_of_the_next_epoch() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    assert bench.epochs == []
    ended_epoch(bench, barriers, 2, takes_s=5)
    assert bench.epochs == [2]
    ended_epoch(bench, barriers, 3)
    assert bench.epochs == [2]


def test_without_an_epoch_the_last_one_is_taken_after_a_while() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    bench.wait(10)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    bench.wait(29)
    assert bench.epochs == []
    bench.wait(1)
    assert bench.epochs == [1]
    bench.wait(100)
    assert bench.known == [None], "nothing has ended since"
    ended_epoch(bench, barriers, 2)
    assert bench.epochs == [1], "and that one is no barrier: no snapshot was due that had anything to say"


def test_an_epoch_that_lasts_is_waited_for_and_what_is_due_meanwhile_is_dropped() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    barriers.begin(2)
    bench.wait(10)
    bench.wait(15)
    bench.end_epoch(2)
    bench.checkpointer.turn()
    assert bench.epochs == [], "it had begun before; the next one is the barrier"
    ended_epoch(bench, barriers, 3, takes_s=100)
    assert bench.epochs == [3]
    assert bench.checkpointer.status.dropped == 11
    barriers.begin(4)
    bench.end_epoch(4)
    bench.checkpointer.end(is_clean=True)
    assert bench.epochs == [3, 4]


def test_one_that_was_asked_for_makes_an_older_barrier_needless() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    barriers.begin(2)
    barriers.take({})
    bench.end_epoch(2)
    barriers.begin(3)
    bench.end_epoch(3)
    bench.checkpointer.snapshot()
    bench.checkpointer.turn()
    assert bench.epochs == [3]


def test_the_value_of_on_checkpoint_is_the_one_of_the_barrier() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    barriers.begin(2)
    bench.user_data = {"json": "asked behind epoch 2"}
    bench.end_epoch(2)
    barriers.begin(3)
    bench.user_data = {"json": "asked behind epoch 3"}
    bench.end_epoch(3)
    bench.checkpointer.turn()
    bench.checkpointer.snapshot()
    made = [read_manifest(bench.store, key) for key in snapshot_keys(bench.store)]
    assert [(of.ended.epoch, of.user_data) for of in made] == [
        (2, {"json": "asked behind epoch 2"}),
        (3, {"json": "asked behind epoch 3"}),
    ]


def test_a_barrier_that_ended_when_nobody_waited_any_more_is_not_taken_for_the_next_one() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    withdraw, barriers.withdraw = barriers.withdraw, lambda: True  # type: ignore[method-assign]
    barriers.begin(2)  # it began between the look and the withdrawal
    bench.wait(30)
    barriers.withdraw = withdraw  # type: ignore[method-assign]
    bench.end_epoch(2)
    assert bench.epochs == [1]
    assert bench.held == set(), "nor is its state kept"
    bench.wait(10)
    assert bench.epochs == [1], "the next epoch is waited for"
    ended_epoch(bench, barriers, 3)
    assert bench.epochs == [1, 3]


def test_the_reading_is_told_what_was_known_at_the_barrier() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    seen: list[Taken] = []
    bench.during = lambda: seen.append(taken(barriers, 2))
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    barriers.begin(2)
    barriers.take({"counted/0": report(2, FEEDS)})
    bench.end_epoch(2)
    epoch(barriers, 3, b0=report(3, FEEDS))
    bench.checkpointer.turn()
    assert seen[0].written == {("counted", 0): state(2)}


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_of_a_barrier_is_held_until_its_snapshot_is_there_or_has_failed(fails: bool) -> None:
    """Hours may pass before it is begun: another one, that was asked for, is at work."""
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    held: list[set[int]] = []

    def during() -> None:
        held.append(set(bench.held))
        if fails:
            raise Unavailable("the disk is full.")

    bench.wait(10)
    barriers.begin(2)
    barriers.take({})
    bench.end_epoch(2)
    for later in (3, 4):
        barriers.begin(later)
        barriers.take({})
        bench.end_epoch(later)
    assert bench.held == {2}, "it is the barrier"
    bench.clock.sleep_s(3600)
    bench.during = during
    bench.checkpointer.turn()
    assert held == [{2}]
    assert bench.held == set()
    with suppress(Unavailable):
        bench.checkpointer.snapshot()
    assert held == [{2}, {4}]
    assert bench.held == set()
    assert bench.epochs == ([] if fails else [2, 4])


def test_a_run_that_ends_while_a_snapshot_waits_lets_the_state_of_its_barrier_go() -> None:
    barriers = Barriers()
    bench = Bench(barriers=barriers)
    ended_epoch(bench, barriers, 1)
    bench.wait(10)
    barriers.begin(2)
    bench.end_epoch(2)
    assert bench.held == {2}
    bench.checkpointer.end(is_clean=False)
    assert bench.held == set()
