"""The files sink in S3: lost replies, throttling and conflicts; uploads that expire; takeovers; what readers see."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import faults
from holdfast.connectors.files.objects import log as object_log
from holdfast.connectors.files.objects import staging as object_staging
from holdfast.connectors.files.objects.place import BucketPlace
from holdfast.connectors.files.objects.sink import ObjectFilesSink
from holdfast.connectors.files.objects.spec import ObjectFilesSpec
from holdfast.connectors.files.objects.staging import UploadsWriter, files_of
from holdfast.connectors.kit.files import rows as files_rows
from holdfast.errors import (
    BadRow,
    Corrupt,
    Diverged,
    Fenced,
    InDoubt,
    InvalidPipeline,
    Unavailable,
)
from holdfast.ports import (
    Carried,
    EpochRecord,
    Explanation,
    Held,
    Outcome,
    Part,
    Publication,
    RunIdentity,
    Staged,
    Task,
)
from holdfast.store.objects import multipart
from holdfast.store.objects import store as object_store
from tests.everyday import everyday
from tests.s3_proxy import CONFLICT, DENIED, DROPPED, FAILED_AFTER, HASTY, REPLY_LOST, SLOW_DOWN, Fault, S3Proxy
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

PIPELINE = "trips"
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])

CREATE, PART, COMPLETE, ENTRY = "POST uploads", "PUT partNumber=", "POST uploadId=", "PUT /log/"


@dataclass
class Directory:
    """The directory under test, as runs, as readers and as a person with a console see it."""

    address: str
    partition_by: tuple[str, ...] = ()
    generation: int = 0

    @property
    def place(self) -> BucketPlace:
        return BucketPlace(self.address, HASTY)

    def connect(self, schema: pa.Schema = SCHEMA, **more: Any) -> ObjectFilesSink:
        spec = ObjectFilesSpec(self.address, partition_by=self.partition_by, **more)
        sink = spec.connect("out", PIPELINE, schema)
        return ObjectFilesSink("out", PIPELINE, self.place, sink.writer_factory().form)

    def run(self) -> tuple[ObjectFilesSink, Held]:
        """Begin the next generation."""
        self.generation += 1
        sink = self.connect()
        return sink, sink.open(RunIdentity(PIPELINE, self.generation))

    def opened(self) -> ObjectFilesSink:
        return self.run()[0]

    def listed(self) -> list[str]:
        """The files that a reader of the directory finds."""
        return [key for key in self.place.files.keys("") if not key.startswith("_")]

    def ids(self) -> list[int]:
        """The rows that such a reader finds."""
        found = [object_rows(self.place.files.get(key) or b"") for key in self.listed()]
        return sorted(row for rows in found for row in rows)

    def asked(self) -> list[int]:
        """The rows that a reader sees who asks the log."""
        table = hf.files.open(self.address).to_arrow()
        return sorted(table["id"].to_pylist()) if table.num_rows else []

    def uploads(self) -> list[tuple[str, str]]:
        return self.place.uploads.all()

    def abort(self, *handles: Staged) -> None:
        """Somebody, or a lifecycle rule, aborts uploads."""
        for handle in handles:
            for file in files_of(handle):
                self.place.uploads.abort(file.upload.key, file.upload.upload_id)


def object_rows(data: bytes) -> list[int]:
    return list(pa.parquet.read_table(pa.BufferReader(data))["id"].to_pylist())


@pytest.fixture
def directory(s3_bucket: S3Bucket) -> Directory:
    """What the test itself asks goes to the server; so do the sinks, unless there is a proxy."""
    return Directory(f"{s3_bucket.address}/out")


def table(*ids: int, day: str = "mo") -> pa.Table:
    return pa.table({"id": list(ids), "day": [day] * len(ids)}, schema=SCHEMA)


def staged(sink: ObjectFilesSink, epoch: int, *ids: int, task: int = 0, generation: int = 1, day: str = "mo") -> Staged:
    writer = sink.writer_factory()(Task(PIPELINE, generation, epoch, task, 0))
    for batch in table(*ids, day=day).to_batches():
        writer.write(batch)
    return writer.stage()


def publication(epoch: int, *parts: Part, generation: int = 1) -> Publication:
    return Publication(EpochRecord(PIPELINE, epoch, generation, positions(epoch)), parts)


def explaining(epoch: int, text: str, generation: int = 1) -> Publication:
    told = (Explanation("lines", epoch, text),)
    return Publication(EpochRecord(PIPELINE, epoch, generation, positions(epoch), explanations=told), ())


def carried(epoch: int, *ids: int) -> Publication:
    return publication(epoch, Carried(table(*ids)))


def positions(epoch: int) -> dict[str, dict[str, int]]:
    return {"lines": {"log": 10 * epoch}}


class Killed(BaseException):
    """Stands for the death of the process."""


@contextmanager
def killed_at(point: str, count: int = 1) -> Iterator[None]:
    left = count

    def hook(reached: str, _: int) -> None:
        nonlocal left
        left -= reached == point
        if not left:
            faults.install(None)
            raise Killed

    faults.install(hook)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        faults.install(None)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["gs://bucket/out", "az://container/out"])
def test_a_store_without_uploads_that_another_process_completes_is_refused_with_the_cure(address: str) -> None:
    with pytest.raises(InvalidPipeline, match="cannot write to") as caught:
        hf.write.files(address)
    assert "s3:// address, or a mounted path" in caught.value.do


def test_other_addresses_and_what_needs_renames_are_refused() -> None:
    with pytest.raises(InvalidPipeline, match="cannot write to hdfs://"):
        hf.write.files("hdfs://host/out")
    with pytest.raises(InvalidPipeline, match="credentials are never part of it"):
        hf.write.files("s3://key:secret@bucket/out")
    with pytest.raises(InvalidPipeline, match=r"compact=.* cannot be had") as caught:
        hf.write.files("s3://bucket/out", compact="64 MB")
    assert "commit_every" in caught.value.do
    with pytest.raises(InvalidPipeline, match="not known"):
        hf.write.files("s3://bucket/out", format="orc")  # type: ignore[arg-type]
    with pytest.raises(InvalidPipeline, match="names a column twice"):
        hf.write.files("s3://bucket/out", partition_by=["a", "a"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [(Fault(501, "NotImplemented"), "501 NotImplemented"), (Fault(405, "MethodNotAllowed"), "405"), (DENIED, "403")],
)
@pytest.mark.parametrize("request_", everyday([CREATE, "GET ?uploads", "DELETE uploadId="], {CREATE}))
def test_a_server_that_refuses_multipart_uploads_is_refused_before_anything_is_written(
    directory: Directory, proxy: S3Proxy, fault: Fault, said: str, request_: str
) -> None:
    proxy.faults += [(request_, fault)] * 2
    sink = directory.connect()
    with pytest.raises(InvalidPipeline, match="cannot write to") as caught:
        sink.open(RunIdentity(PIPELINE, 1))
    assert said in caught.value.why
    assert "s3:AbortMultipartUpload" in caught.value.do
    assert directory.place.files.keys("") == []


def test_a_server_that_does_not_know_conditional_puts_is_refused(directory: Directory, proxy: S3Proxy) -> None:
    proxy.ignored_header = "if-none-match"
    with pytest.raises(InvalidPipeline, match="conditional puts"):
        directory.connect().open(RunIdentity(PIPELINE, 1))


def test_a_start_without_credentials_is_told_which_variables_to_set(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = directory.connect()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(InvalidPipeline, match="Beginning the upload") as caught:
        directory.place.uploads.create("x")
    assert "set AWS_ACCESS_KEY_ID" in caught.value.do
    sink.close()


def test_a_bucket_that_is_not_there_is_said(s3_bucket: S3Bucket) -> None:
    with pytest.raises(InvalidPipeline, match="NoSuchBucket"):
        Directory("s3://absent-bucket/out").connect()


def test_rows_that_do_not_fit_the_files_that_are_there_are_refused(directory: Directory) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    other = pa.schema([("id", pa.string()), ("day", pa.string())])
    with pytest.raises(InvalidPipeline, match="column 'id' is string in the sink and int64 in the files"):
        directory.connect(other)
    with pytest.raises(InvalidPipeline, match="the files there are parquet, the sink writes json"):
        directory.connect(format="json")
    directory.partition_by = ("day",)
    with pytest.raises(InvalidPipeline, match="partitioned by nothing, the sink by day"):
        directory.connect()


def test_files_are_found_behind_a_long_log(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are listed in order, and the log comes before files whose names begin with a small letter."""
    monkeypatch.setattr(object_store, "_LISTED_AT_ONCE", 50)
    sink = directory.opened()
    for epoch in range(1, 60):
        sink.publish([carried(epoch, *([1] if epoch == 1 else []))], Held())
    with pytest.raises(InvalidPipeline, match="the files there are parquet, the sink writes json"):
        directory.connect(format="json")


def test_values_that_are_too_long_for_a_key_are_bad_rows_before_anything_is_decided(directory: Directory) -> None:
    schema = pa.schema([("id", pa.int64()), *((f"c{n}", pa.string()) for n in range(5))])
    directory.partition_by = tuple(schema.names[1:])
    sink = directory.connect(schema)
    sink.open(RunIdentity(PIPELINE, 1))
    row = pa.table({"id": [1], **{name: ["x" * 200] for name in schema.names[1:]}}, schema=schema)
    with pytest.raises(BadRow, match="too long for the file system or the store"):
        sink.admit(publication(1, Carried(row)))
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    with pytest.raises(BadRow):
        writer.write(row.to_batches()[0])
    writer.abort()
    assert directory.uploads() == []


# --- requests that fail ----------------------------------------------------------------------------------------------


def test_an_epoch_takes_the_requests_that_are_documented(directory: Directory, proxy: S3Proxy) -> None:
    sink = directory.opened()
    proxy.requests.clear()
    one = staged(sink, 1, 1)
    assert proxy.methods == ["POST", "PUT"]
    proxy.requests.clear()
    sink.publish([publication(1, one)], Held())
    # The last entry and the one after it, is the upload whole; the entry; complete; the note.
    assert sorted(proxy.methods[:2]) == ["GET", "GET"]
    assert proxy.methods[2:] == ["GET", "PUT", "POST", "PUT"]
    proxy.requests.clear()
    sink.publish([carried(2, 2)], Held())
    assert proxy.methods == ["GET", "GET", "POST", "PUT", "PUT", "POST", "PUT"]
    proxy.requests.clear()
    sink.publish([carried(3)], Held())
    assert proxy.methods == ["GET", "GET", "PUT"]


@pytest.mark.parametrize("fault", [REPLY_LOST, pytest.param(FAILED_AFTER, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("request_", everyday([CREATE, PART, ENTRY, COMPLETE, "PUT -done"], {CREATE, ENTRY, COMPLETE}))
def test_a_request_whose_reply_is_lost_is_done_once(
    directory: Directory, proxy: S3Proxy, request_: str, fault: Fault
) -> None:
    sink = directory.opened()
    proxy.faults += [(request_, fault)] * 2
    sink.publish([publication(1, staged(sink, 1, 1, 2)), carried(2, 3)], Held())
    assert not proxy.faults
    assert directory.ids() == [1, 2, 3]
    sink.sweep(below_epoch=3)  # a lost reply of an upload's beginning leaves one that has its name, and no handle
    assert directory.uploads() == []
    assert directory.run()[1].epoch == 2
    assert directory.ids() == [1, 2, 3]


@pytest.mark.parametrize("fault", [SLOW_DOWN, CONFLICT, DROPPED])
@pytest.mark.parametrize("request_", everyday([CREATE, PART, ENTRY, COMPLETE], {COMPLETE}))
def test_a_request_that_is_throttled_or_meets_another_is_sent_again(
    directory: Directory, proxy: S3Proxy, request_: str, fault: Fault
) -> None:
    sink = directory.opened()
    proxy.faults += [(request_, fault)] * 2
    sink.publish([publication(1, staged(sink, 1, 1, 2))], Held())
    assert not proxy.faults
    assert directory.ids() == [1, 2]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_complete_that_fails_after_its_200_was_sent_is_asked_for(
    directory: Directory, proxy: S3Proxy, is_done: bool
) -> None:
    """S3 begins its answer before the object is put together: an error is then in the body."""
    sink = directory.opened()
    proxy.faults += [(COMPLETE, Fault(200, "InternalError", is_done=is_done))] * 2
    sink.publish([publication(1, staged(sink, 1, 1, 2))], Held())
    assert len(proxy.faults) == is_done
    assert directory.ids() == [1, 2]


@pytest.mark.parametrize("below", ["", "/", "/a b/ü/"])
def test_a_directory_may_be_the_bucket_itself_or_end_with_a_slash(s3_bucket: S3Bucket, below: str) -> None:
    directory = Directory(f"s3://{s3_bucket.name}{below}", ("day",))
    sink = directory.opened()
    sink.publish([publication(1, staged(sink, 1, 1, 2, day="a b/ü%"))], Held())
    assert directory.ids() == directory.asked() == [1, 2]
    assert directory.run()[1].epoch == 1
    assert directory.uploads() == []


def test_a_second_complete_after_one_that_was_done_changes_nothing(directory: Directory, proxy: S3Proxy) -> None:
    sink = directory.opened()
    handle = staged(sink, 1, 1)
    sink.publish([publication(1, handle)], Held())
    (file,) = files_of(handle)
    for _ in range(2):
        assert directory.place.uploads.complete(file.upload)
    directory.place.files.delete(file.upload.key)
    assert not directory.place.uploads.complete(file.upload), "a reader took it: it does not come back"
    assert directory.listed() == []


def test_an_entry_whose_fate_is_unknown_is_in_doubt_and_publishing_again_finds_out(
    directory: Directory, proxy: S3Proxy
) -> None:
    for number, fate in enumerate([REPLY_LOST, DROPPED], 1):
        sink = directory.opened()
        one = publication(number, staged(sink, number, number, generation=number), generation=number)
        proxy.faults += [(ENTRY, fate), *[(ENTRY, DROPPED)] * 2]
        with pytest.raises(InDoubt):
            sink.publish([one], Held())
        assert directory.ids() == list(range(1, number))
        sink.publish([one], Held())
        assert sink.outcome(number) is Outcome.PUBLISHED
        assert directory.ids() == list(range(1, number + 1))
        assert directory.uploads() == []


@pytest.mark.parametrize("fault", [SLOW_DOWN, DENIED, pytest.param(DROPPED, marks=pytest.mark.nightly)])
def test_an_epoch_whose_uploads_cannot_be_completed_is_in_doubt_and_finished_by_whoever_opens_the_sink(
    directory: Directory, proxy: S3Proxy, fault: Fault
) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    parts = [staged(sink, 2, number, task=number) for number in (2, 3)]
    first = files_of(parts[0])[0].upload.key.rpartition("/")[2]
    proxy.faults += [(f"POST {first}", fault)] * 3
    with pytest.raises(InDoubt, match="committed in sink 'out', but not all of its files are visible"):
        sink.publish([publication(2, *parts)], Held())
    assert sink.outcome(2) is Outcome.STAGED
    assert directory.ids() == [1, 3], "one of the two could be completed"
    assert directory.asked() == [1], "who asks the log sees no part of an epoch"
    assert sink.sweep(below_epoch=9) == 0, "what the last entry names stays"
    sink, held = directory.run()
    assert held.epoch == 2
    assert directory.ids() == directory.asked() == [1, 2, 3]
    assert sink.outcome(2) is Outcome.PUBLISHED


def test_a_listing_that_lags_decides_nothing(directory: Directory, proxy: S3Proxy) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    assert directory.connect().inspect()[0].epoch == 1
    directory.ids()
    proxy.are_listings_old = True
    for epoch in (2, 3, 4):
        sink.publish([carried(epoch, epoch)], Held())
    assert directory.connect().inspect()[0].epoch == 4
    sink, held = directory.run()
    assert (held.epoch, held.positions) == (4, positions(4))
    sink.publish([publication(5, Carried(table(5)), generation=2)], held)
    assert sink.withdrawal(positions(2)).row_count == 3
    sink.publish([Publication(EpochRecord(PIPELINE, 6, 2, positions(2), rewound_to=2), ())], Held())
    proxy.are_listings_old = False
    assert directory.ids() == [1, 2]


def test_expired_credentials_are_looked_up_again(
    directory: Directory, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    proxy.accepts = lambda key: key == "renewed"
    sink.publish([publication(2, staged(sink, 2, 2)), carried(3, 3)], Held())
    assert directory.ids() == [1, 2, 3]
    proxy.accepts = lambda key: key == "newer"
    with pytest.raises(InvalidPipeline, match="ExpiredToken") as caught:
        sink.publish([carried(4, 4)], Held())
    assert "renewed" not in str(caught.value)


# --- uploads that are gone -------------------------------------------------------------------------------------------


def test_uploads_that_expired_before_they_were_published_are_all_absent_and_the_epoch_is_replayed(
    directory: Directory,
) -> None:
    """A lifecycle rule aborts them while the pipeline is down, between decide and publish."""
    sink = directory.opened()
    parts = [staged(sink, 1, number, task=number) for number in (1, 2)]
    directory.abort(*parts)
    sink, _ = directory.run()
    assert sink.expired(parts) == [part.name for part in parts]
    with pytest.raises(Diverged, match="are gone, or not what was staged") as caught:
        sink.publish([publication(1, *parts)], Held())
    assert caught.value.is_mended_by_start
    assert sink.outcome(1) is Outcome.ABSENT
    sink.publish([publication(1, staged(sink, 1, 1, 2, generation=2), generation=2)], Held())
    assert directory.ids() == [1, 2]


def test_where_some_expired_nothing_is_published_and_they_are_named(directory: Directory) -> None:
    sink = directory.opened()
    parts = [staged(sink, 1, number, task=number) for number in (1, 2)]
    directory.abort(parts[1])
    assert sink.expired(parts) == [parts[1].name]
    with pytest.raises(Diverged, match=parts[1].name) as caught:
        sink.publish([publication(1, *parts)], Held())
    assert files_of(parts[1])[0].upload.key in caught.value.why
    assert directory.ids() == []
    assert len(directory.uploads()) == 1


def test_an_upload_that_has_other_parts_is_not_what_was_staged(directory: Directory) -> None:
    sink = directory.opened()
    handle = staged(sink, 1, 1)
    (file,) = files_of(handle)
    directory.place.uploads.put_part(file.upload.key, file.upload.upload_id, 1, b"another")
    assert sink.expired([handle]) == [handle.name]


def test_uploads_that_expired_after_the_commit_are_told_and_the_cure_mends_it(directory: Directory) -> None:
    """The process died between the entry and the first complete, and stayed down for days."""
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    parts = [staged(sink, 2, number, task=number) for number in (2, 3)]
    with killed_at("publish-begun"):
        sink.publish([publication(2, *parts)], Held())
    directory.abort(*parts)
    with pytest.raises(Diverged, match=r"2 of its 2 files \(2 rows\) are not in") as caught:
        directory.run()
    assert not caught.value.is_mended_by_start
    assert directory.asked() == [1]
    entry = f"_holdfast/{PIPELINE}/out/log/000000000003"
    assert f"remove {directory.address}/{entry}" in caught.value.do
    directory.place.files.delete(entry)
    sink, held = directory.run()
    assert held.epoch == 1, "as if it had never been committed: it is read again"
    assert sink.expired(parts) == [part.name for part in parts]


def test_where_some_expired_after_the_commit_it_is_told_exactly(directory: Directory) -> None:
    sink = directory.opened()
    parts = [staged(sink, 1, number, 10 * number, task=number) for number in (1, 2)]
    with killed_at("publish-begun"):
        sink.publish([publication(1, *parts)], Held())
    assert directory.place.uploads.complete(files_of(parts[0])[0].upload)
    directory.abort(parts[1])
    lost = files_of(parts[1])[0].upload.key
    with pytest.raises(Diverged, match=r"1 of its 2 files \(2 rows\) are not in") as caught:
        directory.run()
    assert lost in caught.value.what
    note = f"_holdfast/{PIPELINE}/out/log/000000000002-done"
    assert f"create {directory.address}/{note}, empty" in caught.value.do
    assert directory.asked() == []
    directory.place.files.put(lost, directory.place.files.get(directory.listed()[0]) or b"")
    directory.place.files.put(note, b"")
    _, held = directory.run()
    assert held.epoch == 1
    assert directory.asked() == [1, 1, 10, 10]


def test_files_that_readers_take_away_are_not_missed(directory: Directory) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    for key in directory.listed():
        directory.place.files.delete(key)
    sink.publish([carried(2, 2)], Held())
    for key in directory.listed():
        directory.place.files.delete(key)
    sink, held = directory.run()
    assert held.epoch == 2
    assert sink.outcome(2) is Outcome.PUBLISHED
    assert directory.asked() == []
    assert "has been removed" in sink.withdrawal({"lines": {"log": 10}}).obstacle


def test_a_log_that_is_removed_during_a_run_is_told(directory: Directory) -> None:
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    log = directory.place.log(PIPELINE, "out")
    log.delete_several(log.keys(""))
    with pytest.raises(Diverged, match="does not hold generation 1"):
        sink.publish([carried(2, 2)], Held())
    assert directory.ids() == [1]


def test_a_log_that_goes_back_during_a_run_is_told(directory: Directory) -> None:
    sink = directory.opened()
    for epoch in (1, 2):
        sink.publish([carried(epoch, epoch)], Held())
    directory.place.log(PIPELINE, "out").delete("000000000003")
    with pytest.raises(Diverged, match="holds epoch 1, and this run had published epoch 2"):
        sink.publish([carried(3, 3)], Held(2, 1, positions(2)))
    assert directory.ids() == [1, 2]


def test_an_entry_that_is_damaged_is_told(directory: Directory) -> None:
    directory.opened().publish([carried(1, 1)], Held())
    directory.place.log(PIPELINE, "out").put("000000000002", b'{"format": 1, "entry": {}, "sha256": ""}')
    with pytest.raises(Corrupt, match="is damaged"):
        directory.run()


# --- takeovers -------------------------------------------------------------------------------------------------------


def test_a_driver_that_sleeps_between_its_commit_and_its_completes_meets_a_takeover(directory: Directory) -> None:
    """Both complete the same uploads; each is completed once."""
    stale = directory.opened()
    parts = [staged(stale, 1, number, task=number) for number in range(6)]
    asleep, awake = threading.Event(), threading.Event()

    def sleep(point: str, _: int) -> None:
        if point == "publish-begun" and threading.current_thread() is thread and not asleep.is_set():
            asleep.set()
            awake.wait(30)

    faults.install(sleep)
    try:
        thread = threading.Thread(target=stale.publish, args=([publication(1, *parts)], Held()))
        thread.start()
        assert asleep.wait(30)
        owner, held = directory.run()
        assert held.epoch == 1
        owner.publish([publication(2, Carried(table(9)), generation=2)], held)
        awake.set()
        thread.join(30)
    finally:
        faults.install(None)
    assert directory.ids() == [*range(6), 9]
    with pytest.raises(Fenced):
        stale.publish([carried(2, 8)], Held())
    assert stale.sweep(below_epoch=99) == 0
    assert directory.ids() == [*range(6), 9]


def test_a_driver_that_sleeps_before_its_note_takes_back_none_of_a_later_run(directory: Directory) -> None:
    stale = directory.opened()
    stale.publish([carried(1, 1)], Held())
    owner, held = directory.run()
    owner.publish([publication(2, Carried(table(2)), generation=2)], held)
    directory.place.files.delete_several(directory.listed())  # readers take them away
    stale._completing.finish(stale._known, is_new=True)  # it wakes, with all that is left of its publish to be done
    assert directory.run()[1].epoch == 2
    assert directory.asked() == []


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_a_run_that_slept_while_its_numbers_were_removed_is_fenced(
    directory: Directory, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, is_in_doubt: bool
) -> None:
    """A number that was removed is free, and a put of it would win: so one in its place stays for good."""
    monkeypatch.setattr(object_log, "KEPT", 3)
    monkeypatch.setattr(object_log, "PRUNED_AT_ONCE", 4)
    stale = directory.opened()
    epoch = 0
    if is_in_doubt:
        proxy.faults += [(ENTRY, REPLY_LOST), *[(ENTRY, DROPPED)] * 2]
        with pytest.raises(InDoubt):
            stale.publish([carried(1, 1)], Held())
        epoch = 1
    for _ in range(2):
        owner, held = directory.run()
        for _ in range(9):
            epoch += 1
            one = publication(epoch, Carried(table(epoch)), generation=directory.generation)
            owner.publish([one], held)
    ids = directory.ids()
    kept = directory.place.log(PIPELINE, "out").keys("")
    assert len([key for key in kept if key.isdecimal()]) < 18
    with pytest.raises(Fenced):
        stale.publish([carried(2, 99)], Held())
    assert stale.outcome(1) is Outcome.PUBLISHED
    assert directory.ids() == ids == list(range(1, epoch + 1))
    assert directory.place.log(PIPELINE, "out").keys("") == kept


def test_old_entries_go_and_the_last_ones_can_still_be_gone_back_to(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_log, "KEPT", 5)
    monkeypatch.setattr(object_log, "PRUNED_AT_ONCE", 3)
    sink = directory.opened()
    for epoch in range(1, 16):
        sink.publish([carried(epoch, epoch)], Held())
    keys = directory.place.log(PIPELINE, "out").keys("")
    numbers = [int(key) for key in keys if key.isdecimal()]
    assert {int(key[:12]) for key in keys} == set(numbers)
    assert numbers[0] == 1, "the first of a generation stays"
    assert len(numbers) <= 1 + 5 + 3
    assert numbers[1:] == list(range(numbers[1], 17))
    assert sink.withdrawal(positions(12)).row_count == 3
    assert sink.withdrawal(positions(2)).obstacle


def test_what_a_run_explains_that_was_replaced_before_its_commit_is_not_kept(directory: Directory) -> None:
    sink = directory.opened()
    sink.publish([explaining(1, "first")], Held())
    seen = []

    def hook(point: str, epoch: int) -> None:
        if point == "publish-uncommitted" and epoch == 2 and not seen:
            seen.append(directory.run())

    faults.install(hook)
    try:
        with pytest.raises(Fenced):
            sink.publish([explaining(2, "of the run that was replaced")], Held())
    finally:
        faults.install(None)
    newer, held = seen[0]
    assert held.explained == {"lines": 1}
    newer.publish([explaining(2, "of the newer one", generation=2)], held)
    assert [each.text for each in newer.explanations()] == ["first", "of the newer one"]


def test_a_death_right_after_the_commit_leaves_all_explanations(directory: Directory) -> None:
    sink = directory.opened()
    with killed_at("publish-begun"):
        sink.publish([explaining(1, "first")], Held())
    spec = ObjectFilesSpec(directory.address)
    ledger = spec.ledger("out", PIPELINE)
    assert ledger is not None
    assert [each.text for each in ledger.explanations] == ["first"], "asked before anybody has opened it"
    again, held = directory.run()
    assert held.explained == {"lines": 1}
    again.publish([publication(2, generation=2)], held)
    assert [each.text for each in again.explanations()] == ["first"]


def test_a_sweep_leaves_alone_the_uploads_of_a_directory_below(directory: Directory) -> None:
    """Two deployments of one pipeline; a listing of uploads has all below a path."""
    below = Directory(f"{directory.address}/test")
    sink, other = directory.opened(), below.opened()
    handle = staged(other, 1, 1)
    directory.opened()
    assert directory.run()[0].sweep(below_epoch=9) == 0
    assert sink.inspect()[1] == []
    other.publish([publication(1, handle)], Held())
    assert below.ids() == [1]


# --- what is written, and what readers see ---------------------------------------------------------------------------


def test_a_file_of_several_parts_is_one_object(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(files_rows, "ROW_GROUP_ROWS", 200_000)
    sink = directory.opened()
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    ids = pa.array(range(400_000)).take(pa.array([7919 * n % 400_000 for n in range(400_000)]))
    noise = pa.array([f"{hash((n, 'x')):x}" for n in range(400_000)])
    for batch in pa.table({"id": ids, "day": noise}, schema=SCHEMA).to_batches(100_000):
        writer.write(batch)
    handle = writer.stage()
    (file,) = files_of(handle)
    assert len(file.upload.etags) >= 2
    sink.publish([publication(1, handle)], Held())
    (key,) = directory.listed()
    data = directory.place.files.get(key) or b""
    assert len(data) == file.upload.size_bytes
    found = pa.parquet.ParquetFile(pa.BufferReader(data))
    assert found.num_row_groups == 2
    assert sorted(found.read()["id"].to_pylist()) == list(range(400_000))


def test_a_writer_holds_a_bounded_number_of_rows_and_parts(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_rows, "BUFFER_BYTES", 2_000)
    monkeypatch.setattr(object_staging, "OPEN_FILES", 3)
    monkeypatch.setattr(object_staging, "FILE_BYTES", 3_000)
    directory.partition_by = ("day",)
    sink = directory.opened()
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    for start in range(0, 2_000, 50):
        ids = range(start, start + 50)
        rows = pa.table({"id": ids, "day": [str(number % 5) for number in ids]}, schema=SCHEMA)
        writer.write(rows.to_batches()[0])
        assert len(writer._rows._open) <= 3
    handle = writer.stage()
    sink.publish([publication(1, handle)], Held())
    assert len(directory.listed()) > 5
    assert directory.ids() == list(range(2_000))
    assert max(file.upload.size_bytes for file in files_of(handle)) < 10_000


def test_a_worker_that_cannot_stage_drops_what_it_has_begun(directory: Directory, proxy: S3Proxy) -> None:
    sink = directory.opened()
    proxy.faults += [(PART, SLOW_DOWN)] * 3
    writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0))
    writer.write(table(1).to_batches()[0])
    with pytest.raises(Unavailable, match="503 SlowDown"):
        writer.stage()
    writer.abort()
    assert directory.uploads() == []


def test_probes_and_workers_that_died_leave_uploads_that_are_swept_by_their_names(directory: Directory) -> None:
    sink = directory.opened()
    directory.place.uploads.create(f"_holdfast/{PIPELINE}/out/probe")
    directory.place.uploads.create("somebody/elses.parquet")
    writer = sink.writer_factory()(Task(PIPELINE, 1, 4, 0, 0))
    writer.write(table(1).to_batches()[0])
    writer._rows.finish()  # and here it dies
    assert sink.inspect()[1] == [f"{PIPELINE}/1/4/0/0"]
    assert sink.sweep(below_epoch=4) == 0
    assert sink.sweep(below_epoch=5) == 1
    directory.opened()
    assert [key for key, _ in directory.uploads()] == ["somebody/elses.parquet"]


def test_partitions_and_both_ways_of_reading(directory: Directory) -> None:
    directory.partition_by = ("day",)
    sink = directory.opened()
    rows = pa.concat_tables([table(1, 2, day="mo"), table(3, day="tu/we")])
    sink.publish([publication(1, Carried(rows))], Held())
    assert {key.rpartition("/")[0] for key in directory.listed()} == {"day=mo", "day=tu%2Fwe"}
    found = hf.files.open(directory.address)
    assert [path.removeprefix(directory.address)[:8] for path in found.paths()] == ["/day=mo/", "/day=tu%"]
    assert sorted(map(tuple, (row.values() for row in found.to_arrow().to_pylist()))) == [
        (1, "mo"),
        (2, "mo"),
        (3, "tu/we"),
    ]
    assert found.to_arrow(columns=["id"]).schema.names == ["id"]
    spec = ObjectFilesSpec(directory.address, partition_by=("day",))
    assert spec.find("out", "id > 1", limit=5) == [{"id": 2, "day": "mo"}, {"id": 3, "day": "tu/we"}]
    assert spec.find("out", ("id", "3"), limit=5) == [{"id": 3, "day": "tu/we"}]
    (epoch,) = spec.history("out", PIPELINE)
    assert (epoch.epoch, epoch.generation, epoch.positions) == (1, 1, positions(1))


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_types_are_those_that_were_written(directory: Directory, form: str) -> None:
    schema = pa.schema([("text", pa.string()), ("id", pa.int8()), ("day", pa.date32()), ("cents", pa.decimal128(9, 2))])
    values = [{"text": "007", "id": 1, "day": date(2026, 1, 2), "cents": Decimal("1.50")}, {"text": "7", "id": 2}]
    rows = pa.Table.from_pylist(values, schema)
    spec = ObjectFilesSpec(directory.address, format=form, partition_by=("text",))  # type: ignore[arg-type]
    connected = spec.connect("out", PIPELINE, schema)
    sink = ObjectFilesSink("out", PIPELINE, directory.place, connected.writer_factory().form)
    sink.publish([publication(1, Carried(rows))], sink.open(RunIdentity(PIPELINE, 1)))
    found = hf.files.open(directory.address)
    assert found.schema.equals(schema)
    assert found.to_arrow().sort_by("id").equals(rows)


def test_another_directory_is_said_to_have_no_log(directory: Directory) -> None:
    with pytest.raises(InvalidPipeline, match="No files sink has written to"):
        hf.files.open(directory.address).paths()


def test_a_reader_who_asks_the_log_sees_whole_epochs_at_every_moment(directory: Directory) -> None:
    """Between two completes, and while a rewind withdraws."""
    sink = directory.opened()
    sink.publish([carried(1, 1)], Held())
    seen: list[list[int]] = []

    def look(point: str, _: int) -> None:
        if point in ("publish-begun", "publish-uncommitted"):
            seen.append(directory.asked())

    faults.install(look)
    try:
        sink.publish([publication(2, *(staged(sink, 2, number, task=number) for number in range(2, 6)))], Held())
        record = EpochRecord(PIPELINE, 3, 1, positions(1), rewound_to=1)
        sink.publish([Publication(record, ())], Held())
    finally:
        faults.install(None)
    assert directory.asked() == [1]
    assert {tuple(ids) for ids in seen} == {(1,), (1, 2, 3, 4, 5)}
    assert len(seen) > 6


def test_the_factory_travels_without_a_client_and_without_a_secret(directory: Directory) -> None:
    sink = directory.opened()
    factory = sink.writer_factory()
    data = pickle.dumps(factory)
    assert b"AWS" not in data
    assert isinstance(pickle.loads(data)(Task(PIPELINE, 1, 1, 0, 0)), UploadsWriter)
