"""Snapshots in a store: bytes, damage, pruning (design/0011, sections 2 and 3)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.checkpoint.manifest import SnapshotKey, decode, encode
from holdfast.checkpoint.snapshot import (
    FILES,
    checked,
    from_parquet,
    good_snapshots,
    newest_buckets,
    prune,
    read_manifest,
    snapshot_keys,
    to_parquet,
    verify,
    write_bucket,
)
from holdfast.errors import Corrupt, Fenced
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import KEEPS, SCHEMA, bucket, manifest, snapshot


def epochs(store: SimulatedStore) -> list[int]:
    return [key.epoch for key in snapshot_keys(store)]


def test_a_manifest_is_read_as_it_was_written() -> None:
    store = SimulatedStore()
    made = snapshot(store, 7)
    assert read_manifest(store, SnapshotKey(7, 1)) == made
    assert decode(encode(made), "m") == made
    assert (made.rows, made.size_bytes) == (4, sum(len(store.objects[file.key]) for file in made.files))


@pytest.mark.slow
def test_every_bit_of_a_manifest_counts() -> None:
    data = encode(manifest({0: write_bucket(SimulatedStore(), bucket(0, 1))}, 1))
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(Corrupt, match="snapshots/x"):
            decode(bytes(flipped), "snapshots/x")
        with pytest.raises(Corrupt, match="snapshots/x"):
            decode(data[:at], "snapshots/x")


def test_tables_come_back_with_their_types_and_nulls_however_they_were_cut() -> None:
    whole = bucket(1, 5).tables["counts"]
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    data = to_parquet(whole)
    assert to_parquet(pieces) == data
    back = from_parquet(data, SCHEMA, "f")
    assert back.equals(whole)
    assert back.schema.equals(SCHEMA, check_metadata=True)
    with pytest.raises(Corrupt, match="has the columns"):
        from_parquet(data, pa.schema([("k", pa.string())]), "f")


def test_a_table_without_rows_has_no_file() -> None:
    store = SimulatedStore()
    ((name, file),) = write_bucket(store, bucket(0, 1)).files.items()
    assert name == "counts"
    assert list(store.objects) == [f"{FILES}counted/0/000000000001-d1.counts.{file.sha256[:16]}.parquet"]
    assert list(KEEPS.tables) == ["counts", "notes"]


@pytest.mark.parametrize(
    ("keep", "flip", "gone"), [(0, None, False), (9, None, False), (None, 40, False), (0, 0, True)]
)
def test_a_damaged_file_is_noticed_before_it_is_used(keep: int | None, flip: int | None, gone: bool) -> None:
    store = SimulatedStore()
    made = snapshot(store, 3)
    file = next(made.files)
    if gone:
        store.delete(file.key)
    else:
        store.damage(file.key, keep=keep, flip=flip)
    with pytest.raises(Corrupt) as refused:
        verify(store, made)
    assert file.key in refused.value.what
    assert "an older snapshot is used" in refused.value.do
    with pytest.raises(Corrupt):
        checked(store.get(file.key), file)


def test_the_newest_good_one_comes_first_and_the_others_are_named() -> None:
    store = SimulatedStore()
    for epoch in (1, 2, 3, 4):
        snapshot(store, epoch)
    store.damage(SnapshotKey(4, 1).path, keep=30)
    store.damage(next(read_manifest(store, SnapshotKey(2, 1)).files).key, flip=7)
    told: list[int] = []
    found = [made.ended.epoch for made in good_snapshots(store, lambda key, why: told.append(key.epoch))]
    assert (found, told) == ([3, 1], [4, 2])
    assert newest_buckets(store) == 2
    assert newest_buckets(SimulatedStore()) == 0


def test_pruning_keeps_what_the_remaining_ones_name() -> None:
    store = SimulatedStore()
    for epoch in (1, 2, 3, 4):
        snapshot(store, epoch, quiet_since=1)
    assert prune(store, keep=2) == SnapshotKey(3, 1)
    assert epochs(store) == [3, 4]
    for key in snapshot_keys(store):
        verify(store, read_manifest(store, key))
    assert len(store.keys(FILES)) == 3, "one that did not change, and one of each that did"


def test_the_seed_stays_and_damaged_ones_do_not_count_among_those_that_are_kept() -> None:
    store = SimulatedStore()
    for epoch in range(1, 7):
        snapshot(store, epoch)
    store.damage(SnapshotKey(6, 1).path, keep=3)
    assert prune(store, keep=1, pinned=frozenset({SnapshotKey(2, 1)})) == SnapshotKey(5, 1)
    assert epochs(store) == [2, 5, 6]
    verify(store, read_manifest(store, SnapshotKey(5, 1)))
    store.damage(SnapshotKey(5, 1).path, keep=3)
    store.damage(SnapshotKey(2, 1).path, keep=3)
    assert prune(store, keep=1) is None
    assert epochs(store) == [2, 5, 6], "nothing goes where nothing good is left"


def test_pruning_removes_no_file_of_a_snapshot_that_is_committed_meanwhile() -> None:
    class Interrupted(SimulatedStore):
        """Commits a snapshot, whose state is older than its end, at the moment in which the files are listed."""

        def keys(self, prefix: str) -> list[str]:
            found = super().keys(prefix)
            if prefix == FILES and not self.is_done:
                self.is_done = True
                snapshot(self, 5, quiet_since=2)
            return found

        is_done = True

    store = Interrupted()
    for epoch in (3, 4):
        snapshot(store, epoch)
    store.is_done = False
    prune(store, keep=1)
    verify(store, read_manifest(store, SnapshotKey(5, 1)))


def test_a_run_that_was_fenced_removes_nothing() -> None:
    def check_fenced() -> None:
        raise Fenced("another run has taken over.")

    store = SimulatedStore()
    for epoch in (1, 2):
        snapshot(store, epoch)
    before = dict(store.objects)
    with pytest.raises(Fenced):
        prune(store, keep=1, check_fenced=check_fenced)
    assert store.objects == before
