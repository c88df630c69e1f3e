"""The local store: keys, refusals, and what full and forbidden disks do."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import Corrupt, InDoubt, InternalError, InvalidPipeline, Unavailable
from holdfast.retry import RetriedStore, Retrier, RetryPolicy
from holdfast.shards.ends import is_final
from holdfast.store import durable
from holdfast.store.local import LocalStore
from holdfast.store.paths import open_store
from holdfast.testing import SimulatedClock
from tests.disks import small_disk, unprivileged


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(os.fspath(tmp_path / "checkpoint"))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as directory:
        yield directory


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".hidden", "a/.hidden", "a\0b", "a\\b"]
)
def test_a_key_cannot_leave_the_directory(store: LocalStore, key: str) -> None:
    with pytest.raises(InternalError, match="is not a key"):
        store.put(key, b"x")
    with pytest.raises(InternalError, match="is not a key"):
        store.get(key)


def test_open_store_takes_a_path_or_a_file_url(tmp_path: Path) -> None:
    open_store(os.fspath(tmp_path / "a b")).put("k", b"1")
    assert open_store(f"file://{tmp_path}/a%20b").get("k") == b"1"
    assert open_store(f"file://localhost{tmp_path}/a%20b").get("k") == b"1"


@pytest.mark.parametrize("location", ["http://bucket/x", "hdfs://host/x", "file://other-host/x"])
def test_other_addresses_are_refused_with_the_kinds_that_are_supported(location: str) -> None:
    with pytest.raises(InvalidPipeline, match="put-if-absent") as caught:
        open_store(location)
    assert "file:///path" in caught.value.why


def test_an_address_may_hold_a_secret_that_no_error_repeats() -> None:
    with pytest.raises(InvalidPipeline) as caught:
        open_store("s3://key:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_who_only_reads_leaves_no_trace(tmp_path: Path) -> None:
    """Nor does who looks for a checkpoint in the wrong place."""
    store = LocalStore(os.fspath(tmp_path / "copied"))
    store.put("k", b"1")
    os.rmdir(tmp_path / "copied" / ".writing")  # as a copy of the objects has it
    before = sorted(tmp_path.rglob("*"))
    for directory in ("copied", "absent"):
        reader = LocalStore(os.fspath(tmp_path / directory))
        assert reader.get("k") == (b"1" if directory == "copied" else None)
        assert reader.keys("x") == []
        reader.delete("x")
    assert sorted(tmp_path.rglob("*")) == before


def test_hidden_files_of_others_are_no_objects(store: LocalStore) -> None:
    store.put("spark/1/offsets/0", b"v1")
    Path(store.directory, "spark/1/offsets/.0.crc").write_bytes(b"x")
    assert store.keys("spark/") == ["spark/1/offsets/0"]


def test_what_a_dead_process_was_writing_is_swept_and_what_a_live_one_writes_stays(store: LocalStore) -> None:
    aside = os.path.join(store.directory, ".writing")
    store.put("before", b"1")
    Path(aside, "of-a-dead-process").write_bytes(b"half")
    with durable._written_aside(b"being written", aside) as (_, path):
        LocalStore(store.directory).put("by another process", b"1")
        assert os.listdir(aside) == [os.path.basename(path)]
        os.rename(path, os.path.join(store.directory, "k"))
    assert store.get("k") == b"being written"
    assert os.listdir(aside) == []


def test_a_writer_whose_file_was_swept_before_it_was_locked_takes_another(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one moment in which a live writer's file is unlocked: between creating and locking it."""
    aside = os.path.join(store.directory, ".writing")
    store.prepare()
    lock, swept = fcntl.flock, []

    def sweep_first(fd: int, operation: int) -> None:
        if not swept:
            swept.append(True)
            assert durable.sweep(aside) == 1
        lock(fd, operation)

    monkeypatch.setattr("holdfast.store.durable.fcntl.flock", sweep_first)
    store.put("k", b"1")
    assert swept
    assert store.get("k") == b"1"
    assert os.listdir(aside) == []


def test_a_directory_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    directory = tmp_path / "closed"
    directory.mkdir(mode=0o500)
    with unprivileged(), pytest.raises(InvalidPipeline) as caught:
        LocalStore(os.fspath(directory)).prepare()
    assert os.fspath(directory) in caught.value.what
    assert "write permission" in caught.value.do


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
        (errno.EROFS, "mount"),
        (errno.ENAMETOOLONG, "shorter"),
        (errno.ENOTDIR, "is a file"),
    ],
)
def test_what_does_not_pass_by_itself_is_final_and_says_what_to_change(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, cure: str
) -> None:
    """It was tried again for more than a minute, and then by the supervisor."""
    store.put("k", b"1")
    clock = SimulatedClock()
    retried = RetriedStore(store, Retrier(RetryPolicy(), clock, on_retry=lambda *told: None))
    monkeypatch.setattr("holdfast.store.durable.os.open", _failing(number, store.directory))
    with pytest.raises(InvalidPipeline) as caught:
        retried.put("k", b"2")
    assert clock.slept_s == 0
    assert is_final(caught.value)
    assert cure in caught.value.do
    assert os.strerror(number) in caught.value.why
    assert store.directory in caught.value.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_what_may_pass_by_itself_is_unavailable(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.put("k", b"1")
    monkeypatch.setattr("holdfast.store.durable.os.open", _failing(number, store.directory))
    with pytest.raises(Unavailable):
        store.put("k", b"2")


def _failing(number: int, path: str) -> Callable[..., int]:
    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number), path)

    return fail


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidPipeline, match="is a file"):
        LocalStore(os.fspath(tmp_path / "file")).put("k", b"1")
    with pytest.raises(InvalidPipeline, match="is a file"):
        LocalStore(os.fspath(tmp_path / "file" / "below")).put_if_absent("k", b"1")


def test_a_directory_that_cannot_be_synced_leaves_the_caller_in_doubt(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is there: 'failed' would be a lie, and so would 'durable'."""

    def broken(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    store.put("a/b", b"1")
    monkeypatch.setattr(durable, "sync_directory", broken)
    with pytest.raises(InDoubt, match="may not survive"):
        store.put("a/b", b"2")
    with pytest.raises(InDoubt, match="may not survive"):
        store.put_if_absent("a/c", b"2")
    assert store.get("a/c") == b"2"


def test_an_object_that_the_disk_cannot_read_is_corrupt(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str, mode: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    store.put("a", b"1")
    monkeypatch.setattr("builtins.open", broken)
    with pytest.raises(Corrupt, match="cannot be read"):
        store.get("a")


def test_a_full_disk_is_unavailable_and_leaves_nothing_half_written(full_disk: Path) -> None:
    store = LocalStore(os.fspath(full_disk / "checkpoint"))
    store.put("kept", b"old")
    large = b"x" * (10 * 2**20)
    with pytest.raises(Unavailable) as caught:
        store.put("kept", large)
    assert "disk is full" in caught.value.why
    assert os.fspath(full_disk) in caught.value.what
    assert "free space" in caught.value.do
    with pytest.raises(Unavailable):
        store.put_if_absent("new", large)
    assert store.get("kept") == b"old"
    assert store.get("new") is None
    assert store.keys("") == ["kept"]
    assert os.listdir(os.path.join(store.directory, ".writing")) == []
    store.put("kept", b"new")
    assert store.get("kept") == b"new"
