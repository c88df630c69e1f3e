"""What every store must do: the local directory, the simulated one, and an object store of each provider."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.store.local import LocalStore
from holdfast.store.objects.store import open_objects
from holdfast.store.scratch import ScratchedStore, scratch_of
from tests.s3_server import S3Bucket

Open = Callable[[], Store]
"""Opens the store under test; each call stands for a new process."""


def _local(directory: Path, _: pytest.FixtureRequest) -> Open:
    return lambda: LocalStore(os.fspath(directory / "store"))


def _simulated(directory: Path, _: pytest.FixtureRequest) -> Open:
    store: Store = importlib.import_module("holdfast.testing").SimulatedStore()
    return lambda: store


def _s3(_: Path, request: pytest.FixtureRequest) -> Open:
    bucket: S3Bucket = request.getfixturevalue("s3_bucket")
    return lambda: open_objects(bucket.address)


def _google(_: Path, request: pytest.FixtureRequest) -> Open:
    address: str = request.getfixturevalue("google_store")
    return lambda: open_objects(address)


def _azure(_: Path, request: pytest.FixtureRequest) -> Open:
    address: str = request.getfixturevalue("azure_store")
    return lambda: open_objects(address)


def _scratched(directory: Path, _: pytest.FixtureRequest) -> Open:
    objects = importlib.import_module("holdfast.testing").SimulatedStore()
    place = scratch_of("s3://bucket/trips", os.fspath(directory))
    return lambda: ScratchedStore(objects, place)


def _has_simulated() -> bool:
    try:
        return hasattr(importlib.import_module("holdfast.testing"), "SimulatedStore")
    except ModuleNotFoundError:
        return False


@pytest.fixture(
    params=[
        pytest.param(_local, id="local"),
        pytest.param(_scratched, id="scratched"),
        pytest.param(
            _simulated,
            id="simulated",
            marks=pytest.mark.skipif(not _has_simulated(), reason="holdfast.testing has no SimulatedStore"),
        ),
        pytest.param(_s3, id="s3", marks=pytest.mark.slow),
        pytest.param(_google, id="gs", marks=pytest.mark.slow),
        pytest.param(_azure, id="az", marks=pytest.mark.nightly),
    ]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    factory: Callable[[Path, pytest.FixtureRequest], Open] = request.param
    return factory(tmp_path, request)


def test_an_absent_object_is_none(opened: Open) -> None:
    store = opened()
    assert store.get("a") is None
    assert store.get("a/b") is None
    assert store.keys("") == []


def test_put_creates_and_replaces(opened: Open) -> None:
    store = opened()
    store.put("ledger/1", b"first")
    assert store.get("ledger/1") == b"first"
    store.put("ledger/1", b"")
    assert store.get("ledger/1") == b""
    store.put("ledger/1", b"x" * 1_000_000)
    assert store.get("ledger/1") == b"x" * 1_000_000


def test_put_if_absent_creates_once_and_changes_nothing_after_that(opened: Open) -> None:
    store = opened()
    assert store.put_if_absent("generations/1", b"winner")
    assert not store.put_if_absent("generations/1", b"loser")
    assert store.get("generations/1") == b"winner"
    store.put("generations/2", b"put")
    assert not store.put_if_absent("generations/2", b"loser")


def test_a_deleted_object_is_absent_and_may_be_created_again(opened: Open) -> None:
    store = opened()
    store.delete("a/b")
    store.put("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    assert store.get("a/b") is None
    assert store.keys("") == []
    assert store.put_if_absent("a/b", b"2")


def test_keys_are_those_with_the_prefix_sorted(opened: Open) -> None:
    store = opened()
    for key in ("ledger/2", "ledger/10", "ledger/deep/1", "ledgers", "identity.json"):
        store.put(key, b"")
    assert store.keys("") == ["identity.json", "ledger/10", "ledger/2", "ledger/deep/1", "ledgers"]
    assert store.keys("ledger/") == ["ledger/10", "ledger/2", "ledger/deep/1"]
    assert store.keys("ledger") == ["ledger/10", "ledger/2", "ledger/deep/1", "ledgers"]
    assert store.keys("ledger/1") == ["ledger/10"]
    assert store.keys("absent/") == []


def test_another_process_sees_what_was_written(opened: Open) -> None:
    writer = opened()
    writer.put("a", b"1")
    reader = opened()
    assert reader.get("a") == b"1"
    assert not reader.put_if_absent("a", b"2")
    reader.delete("a")
    assert writer.get("a") is None


def test_of_many_threads_exactly_one_creates_an_object(opened: Open) -> None:
    stores = [opened() for _ in range(8)]
    for attempt in range(20):
        key = f"k/{attempt}"
        with ThreadPoolExecutor(len(stores)) as threads:
            races = [threads.submit(store.put_if_absent, key, b"%d" % me) for me, store in enumerate(stores)]
        won = [race.result() for race in races]
        assert won.count(True) == 1
        assert stores[0].get(key) == b"%d" % won.index(True)


def test_a_key_is_spelled_as_it_was_written(opened: Open) -> None:
    """Names of operators are in keys."""
    store = opened()
    keys = sorted(["a b", "a%20b", "a#b", "a@b", "a~b", "a[b]", "a*?b", "a:b=c+d", "ü/é", "a&b", "'\"<>"])
    for key in keys:
        assert store.put_if_absent(f"k/{key}", key.encode())
    assert store.keys("k/") == [f"k/{key}" for key in keys]
    assert [store.get(f"k/{key}") for key in keys] == [key.encode() for key in keys]
