"""The files sink in S3 under the real coordinator: killed before and after each request that changes the store.

Uploads begun, parts, entries of the log, completes, removals, notes: each is a place to die, once and again during the
recovery (design/0040).  A dead driver sends nothing more; its workers live on.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.objects import place
from holdfast.connectors.files.objects.place import BucketPlace
from holdfast.connectors.files.objects.sink import ObjectFilesSink
from holdfast.connectors.files.objects.staging import UploadStaging
from holdfast.connectors.kit.files.rows import RowsForm
from holdfast.ports import Sink
from holdfast.store.local import LocalStore
from holdfast.store.objects.errors import RequestLimits
from holdfast.store.objects.multipart import MultipartUploads, Upload
from holdfast.store.objects.store import ObjectStore
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SinkUnderTest, World
from holdfast.testing.simulation.world import PIPELINE
from tests.crash.mortal import as_killed
from tests.crash.surviving import survive, survive_pairs
from tests.s3_server import S3Bucket
from tests.sim.test_unlike_sinks import sqlite

pytestmark = pytest.mark.slow

NewPath = Callable[[], Path]

LOAD: dict[str, Any] = {"row_count": 3, "epoch_rows_min": 1, "epoch_rows_max": 2}
SEED = 361
PLACES = ["entry", "complete", "note", "begin", "part"]


class MortalObjects(ObjectStore):
    """A driver's objects: each write is a place to die."""

    process = Process()
    label = ""

    def put(self, key: str, data: bytes) -> None:
        self.process.write(f"sink {self.label} note", lambda: ObjectStore.put(self, key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        what = "entry" if "/log" in self.address else "positions"
        return self.process.write(f"sink {self.label} {what}", lambda: ObjectStore.put_if_absent(self, key, data))

    def delete_several(self, keys: Sequence[str]) -> None:
        self.process.write(f"sink {self.label} remove", lambda: ObjectStore.delete_several(self, keys))


class MortalUploads(MultipartUploads):
    """A driver's uploads: what begins, fills, ends or aborts one is a place to die."""

    process = Process()
    label = ""

    def create(self, key: str) -> str:
        return self.process.write(f"sink {self.label} begin", lambda: MultipartUploads.create(self, key))

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        return self.process.write(
            f"sink {self.label} part", lambda: MultipartUploads.put_part(self, key, upload_id, number, data)
        )

    def complete(self, upload: Upload) -> bool:
        return self.process.write(f"sink {self.label} complete", lambda: MultipartUploads.complete(self, upload))

    def abort(self, key: str, upload_id: str) -> None:
        self.process.write(f"sink {self.label} abort", lambda: MultipartUploads.abort(self, key, upload_id))


class MortalPlace(BucketPlace):
    """What a driver has of a directory."""

    def objects(self, *below: str) -> ObjectStore:
        found = MortalObjects("/".join([self.address, *below]), self.limits)
        found.process, found.label = self.process, self.label  # type: ignore[attr-defined]
        return found


class DrivenSink(ObjectFilesSink):
    """One whose workers are processes of their own."""

    def __init__(self, name: str, place: BucketPlace, form: RowsForm, workers: BucketPlace) -> None:
        super().__init__(name, PIPELINE, place, form)
        self._workers = UploadStaging(workers, form, self._staging.tag)

    def writer_factory(self) -> UploadStaging:
        return self._workers


def target(name: str, address: str, partition_by: tuple[str, ...] = ()) -> SinkUnderTest:
    """Return a directory in S3 as a sink of a world."""
    outside = BucketPlace(address)

    def connect(process: Process, _: Failures) -> Sink:
        place = MortalPlace(address, RequestLimits())
        uploads = MortalUploads(address, place.limits)
        for each, given in (("process", process), ("label", name)):
            object.__setattr__(place, each, given)
            setattr(uploads, each, given)
        place.__dict__["uploads"] = uploads
        return DrivenSink(name, place, RowsForm(SCHEMA, partition_by=partition_by), outside)

    def rows() -> list[tuple[Any, ...]]:
        found = []
        for key in outside.files.keys(""):
            if not key.startswith("_"):
                table = pq.read_table(io.BytesIO(outside.files.get(key) or b""))
                segment = unquote(key.partition("=")[2].partition("/")[0])
                rows = ({"segment": segment, **row} for row in table.to_pylist())
                found += [tuple(row[column] for column in SCHEMA.names) for row in rows]
        return found

    def leftovers() -> list[str]:
        return [key for key, _ in outside.uploads.all()]

    return SinkUnderTest(name, connect, rows, leftovers)


@pytest.fixture
def new_address(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    monkeypatch.setattr(place, "REQUESTS_AT_ONCE", 1)  # so that each world does the same in the same order
    numbers = itertools.count()
    return lambda: f"{s3_bucket.address}/{next(numbers)}"


def made(address: str, new_path: NewPath, *, beside: bool = False, **setting: Any) -> World:
    """A new world with one directory, or with a database file that publishes before it."""
    load = Load(**{**LOAD, "carried_share": 0.5, "task_failure_rate": 0.2})
    several = [as_killed(sqlite, "embedded", new_path())] if beside else []
    store = LocalStore(os.fspath(new_path())) if beside else None
    sink = target("rows", address, ("segment",) if beside else ())
    return World([*several, sink], seed=SEED, setting=Setting(load, **setting), store=store)


def test_one_directory_survives_a_crash_at_some_writes(new_address: Callable[[], str], new_path: NewPath) -> None:
    survive(lambda: made(new_address(), new_path), "complete", pairs=False, stride=4)


def test_beside_another_sink_it_survives_a_crash_at_fewer_writes(
    new_address: Callable[[], str], new_path: NewPath
) -> None:
    survive(lambda: made(new_address(), new_path, beside=True), pairs=False, stride=17)


@pytest.mark.nightly
def test_one_directory_survives_a_crash_at_every_write(new_address: Callable[[], str], new_path: NewPath) -> None:
    survive(lambda: made(new_address(), new_path), *PLACES, pairs=False)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [{"commit_thread": True}, {"commit_every_ticks": 3_000}])
def test_the_commit_thread_and_grouping_change_nothing(
    new_address: Callable[[], str], new_path: NewPath, setting: dict[str, Any]
) -> None:
    survive(lambda: made(new_address(), new_path, beside=True, **setting), pairs=False)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_one_directory_survives_pairs_of_crashes(new_address: Callable[[], str], new_path: NewPath) -> None:
    survive_pairs(lambda: made(new_address(), new_path), *PLACES, stride=2, second_stride=2)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_beside_another_sink_it_survives_pairs_of_crashes(new_address: Callable[[], str], new_path: NewPath) -> None:
    survive_pairs(lambda: made(new_address(), new_path, beside=True), *PLACES, stride=3, second_stride=5)
