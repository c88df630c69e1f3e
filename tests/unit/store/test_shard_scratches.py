"""The scratches of a pipeline in shards: each in that of the pipeline, which serves all of them, or none (0048, 16)."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.commit.ledger import Ledger
from holdfast.errors import Fenced
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.store import scratch
from holdfast.store.paths import checkpoint_directory, open_store, viewed_directory
from holdfast.store.scratch import ScratchedStore
from holdfast.testing.store import SimulatedStore

ADDRESS = "s3://bucket/trips"
ENGINE, LOG = "spark/1/origin.json", "sources/rows/log/000000000001.json"


@dataclass(frozen=True)
class Host:
    """A machine: where its scratches are."""

    base: Path

    def store(self, shard: int = 0) -> ScratchedStore:
        """Open the checkpoint of a shard by its path, as a run does."""
        directory = checkpoint_directory(ADDRESS, scratch_base=str(self.base))
        found = open_store(shard_checkpoint(str(directory), shard))
        assert isinstance(found, ScratchedStore)
        return found

    def start_all(self, *shards: int) -> None:
        """Do what a start of all shards does of scratches."""
        if not self.store().serves():
            self.take(*shards)
            self.store().refresh()
            self.store().serve()
        for shard in shards:
            self.start(shard)

    def start(self, shard: int) -> None:
        """Do what the start of one shard does, and leave something in its scratch."""
        store = self.store(shard)
        store.prepare()
        _take(store, shard)
        self.store().check_serves()
        Path(store.directory, ENGINE).parent.mkdir(parents=True, exist_ok=True)
        Path(store.directory, ENGINE).write_bytes(b"1")

    def take(self, *shards: int) -> None:
        """Take shards over, by whatever command."""
        for shard in shards:
            _take(self.store(shard), shard)

    def log(self) -> None:
        """Log a file."""
        Path(self.store().directory, LOG).parent.mkdir(parents=True, exist_ok=True)
        Path(self.store().directory, LOG).write_bytes(b"1")

    @property
    def left(self) -> list[int]:
        """The shards whose engine has something here."""
        return [shard for shard in range(3) if Path(self.store(shard).directory, ENGINE).exists()]

    @property
    def has_log(self) -> bool:
        """Whether the log of the source is here."""
        return Path(self.store().directory, LOG).exists()


def _take(store: ScratchedStore, shard: int) -> None:
    ledger = Ledger(store, shard_name("trips", shard))
    ledger.take_generation(0, 0)
    ledger.fence()


@dataclass
class Bucket:
    """Objects by the address below which they are."""

    stores: dict[str, SimulatedStore] = field(default_factory=lambda: defaultdict(SimulatedStore))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    found = Bucket()
    monkeypatch.setattr(scratch, "objects_of", lambda address: found.stores[address])
    return found


@pytest.fixture
def here(bucket: Bucket, tmp_path: Path) -> Host:
    """A host on which three shards have been started."""
    host = Host(tmp_path / "here")
    host.start_all(0, 1, 2)
    host.log()
    assert host.left == [0, 1, 2]
    return host


@pytest.fixture
def there(here: Host, tmp_path: Path) -> Host:
    """Another host."""
    return Host(tmp_path / "there")


def test_the_path_of_a_shard_leads_to_its_objects_before_anything_is_there(bucket: Bucket, tmp_path: Path) -> None:
    store = Host(tmp_path).store(12)
    assert not Path(store.directory).exists()
    assert scratch.address_in(store.directory) == f"{ADDRESS}/shards/12"
    store.put("identity.json", b"1")
    assert bucket.stores[f"{ADDRESS}/shards/12"].objects == {"identity.json": b"1"}
    by_address = checkpoint_directory(f"{ADDRESS}/shards/12/", scratch_base=str(tmp_path))
    assert str(by_address) == store.directory
    assert scratch.is_where_chosen(by_address)


def test_a_bucket_may_have_the_name_of_the_folder_of_shards(bucket: Bucket, tmp_path: Path) -> None:
    directory = scratch.scratch_of("s3://shards/3", str(tmp_path))
    assert directory.parent == tmp_path
    assert scratch.address_in(directory) == "s3://shards/3"


def test_nothing_is_emptied_where_the_driver_died(here: Host) -> None:
    here.start_all(0, 1, 2)
    assert (here.left, here.has_log) == ([0, 1, 2], True)


def test_a_shard_that_was_taken_over_without_its_note_loses_its_own_scratch_alone(here: Host, bucket: Bucket) -> None:
    bucket.stores[f"{ADDRESS}/shards/2"].put("generations/00000003.json", b"{}")
    here.store(2).prepare()
    assert (here.left, here.has_log) == ([0, 1], True)
    here.start(2)


def test_shard_0_taken_over_without_its_note_empties_nothing_while_shards_run(here: Host, bucket: Bucket) -> None:
    newest = max(bucket.stores[ADDRESS].keys("generations/"))
    bucket.stores[ADDRESS].put(f"generations/{int(newest[-13:-5]) + 1:08d}.json", b"{}")
    for shard in range(3):
        with pytest.raises(Fenced, match="does not serve the shards"):
            here.start(shard)
    assert (here.left, here.has_log) == ([0, 1, 2], True)
    here.start_all(0)
    assert (here.left, here.has_log) == ([0], False)


def test_another_host_takes_the_logs_and_the_first_one_empties_all_together(here: Host, there: Host) -> None:
    there.start_all(0, 1, 2)
    for shard in range(3):
        with pytest.raises(Fenced, match="does not serve the shards"):
            here.start(shard)
    assert here.has_log
    here.start_all(0, 1)
    assert (here.left, here.has_log) == ([0, 1], False)
    assert not there.store().serves()


def test_a_start_of_all_that_died_before_it_restored_does_not_serve(here: Host, there: Host) -> None:
    there.take(0, 1)
    assert not there.store().serves()
    assert not here.store().serves()
    there.store().refresh()
    assert there.store().is_believed()
    assert not there.store().serves()
    with pytest.raises(Fenced):
        there.start(1)


def test_a_shard_that_another_host_has_taken_over_is_not_the_end_of_the_others(here: Host, there: Host) -> None:
    there.take(1)
    here.start_all(0, 1, 2)
    assert (here.left, here.has_log) == ([0, 1, 2], True)


def test_a_scratch_that_is_deleted_or_half_old_serves_no_more(here: Host, tmp_path: Path) -> None:
    shutil.copytree(here.base, tmp_path / "copy")
    here.start_all(0, 1, 2)
    shutil.rmtree(here.base)
    shutil.copytree(tmp_path / "copy", here.base)
    assert not here.store().serves()
    here.start_all(0)
    assert (here.left, here.has_log) == ([0], False)
    shutil.rmtree(here.base)
    assert not here.store().serves()
    here.start_all(0)
    assert here.left == [0]


def test_who_looks_is_shown_no_scratch_that_is_old(here: Host, there: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(scratch.BASE_VARIABLE, str(here.base))
    scratch.view_of_elsewhere.cache_clear()
    shard = f"{ADDRESS}/shards/1"
    assert viewed_directory(shard) == Path(here.store(1).directory)
    there.take(1)
    assert viewed_directory(shard) != Path(here.store(1).directory)
    assert viewed_directory(ADDRESS) == Path(here.store().directory)
    there.take(0)
    other = viewed_directory(shard)
    assert scratch.address_in(other) == shard
    assert other.parents[1] == viewed_directory(ADDRESS) != Path(here.store().directory)
