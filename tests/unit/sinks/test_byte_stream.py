"""The byte stream sink: order, files, index, retention, stale writers, damage (design/0017)."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read, write
from holdfast.connectors.byte_stream import append, data_file, staging
from holdfast.connectors.byte_stream.branch import BranchView
from holdfast.connectors.byte_stream.data_file import ReaderMark
from holdfast.connectors.byte_stream.log_target import ByteStreamSink
from holdfast.connectors.byte_stream.manifest import DataFile
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.publishing import RetentionRules, needed
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.errors import BadRow, Corrupt, Fenced, InvalidPipeline, Unavailable
from holdfast.ports import Carried, Held, Publication, Refused, RunIdentity
from holdfast.positions import SegmentSet
from holdfast.store.entry_log import KEPT
from holdfast.values import Task
from tests.byte_store import verify
from tests.disks import small_disk
from tests.unit.byte_streams import COLUMNS, PIPELINE, SCHEMA, Writing, frames, record, stream_of, table

pytestmark = pytest.mark.slow


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path / "store")


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_stream_gets_the_messages_of_an_epoch_by_timestamp_then_by_arrival(writing: Writing) -> None:
    parts = (
        writing.staged([(30, "front", False, b"a"), (10, "back", True, b"b"), (20, "front", False, b"c")], 1, task=0),
        writing.staged([(20, "front", False, b"d"), (10, "front", True, b"e")], 1, task=1),
        Carried(table([(20, "front", True, b"f"), (5, "back", False, b"g")])),
    )
    writing.sink.publish([Publication(writing.record(1), parts)], Held())
    assert [(at, data) for at, _, _, data in writing.messages()] == [
        (10, b"e"), (20, b"c"), (20, b"d"), (20, b"f"), (30, b"a"),
    ]  # fmt: skip
    assert [(at, data) for at, _, _, data in writing.messages("back")] == [(5, b"g"), (10, b"b")]


def test_epochs_that_are_published_together_keep_their_order(writing: Writing) -> None:
    epochs = [Publication(writing.record(n), (Carried(table(frames(10 - n, 12 - n))),)) for n in (1, 2)]
    writing.sink.publish(epochs, Held())
    assert [at for at, *_ in writing.messages()] == [9, 10, 8, 9]


def test_the_staged_order_is_that_of_arrival_however_often_a_task_writes(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "BUFFER_BYTES", 100)
    writer = writing.sink.writer_factory()(writing_task(writing))
    rng = random.Random(7)
    sent = [(rng.randrange(5), rng.choice(["front", "back"]), True, str(n).encode()) for n in range(200)]
    for batch in table(sent).to_batches(max_chunksize=3):
        writer.write(batch)
    writing.sink.publish([Publication(writing.record(1), (writer.stage(),))], Held())
    for name in ("front", "back"):
        assert writing.messages(name) == sorted((m for m in sent if m[1] == name), key=lambda m: m[0])


def writing_task(writing: Writing) -> Task:
    return Task(PIPELINE, writing.generation, 1, 0, 0)


# --- files ------------------------------------------------------------------------------------------------------------


def test_epochs_grow_one_file_up_to_its_target_and_the_next_begins_with_a_random_access_point(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 2000})
    for epoch in range(60):
        writing.publish(*frames(3 * epoch, 3 * epoch + 3), staged=bool(epoch % 2))
    files = writing.stream().files
    assert [at for at, *_ in writing.messages()] == list(range(180))
    assert all(file.is_start for file in files)
    assert all(2000 <= file.size < 2000 + 5 * 60 for file in files[:-1])
    assert len(files) == 5
    assert verify(writing.path) == 180


def test_without_key_frames_a_file_ends_at_twice_its_target(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 500})
    writing.publish(*[(at, "front", at == 0, b"x" * 50) for at in range(40)])
    files = writing.stream().files
    assert [file.is_start for file in files] == [True, False, False, False]
    assert all(1000 <= file.size < 1100 for file in files[:-1])


def test_every_start_begins_a_file_and_small_ones_are_copied(tmp_path: Path) -> None:
    """So a stale writer has a file of its own, and a run that starts every minute does not leave a million of them."""
    writing = Writing(tmp_path / "store", {"target_bytes": 1000})
    for generation in range(30):
        writing.publish(*frames(2 * generation, 2 * generation + 2))
        writing.opened()
    files = writing.stream().files
    assert len(files) == 4
    assert len(list(Path(writing.stream().directory).glob("*.data"))) == 4
    assert [at for at, *_ in writing.messages()] == list(range(60))
    assert verify(writing.path) == 60


def test_the_log_is_bounded_and_an_entry_too_however_many_files_there_are(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 50})
    for epoch in range(KEPT + 20):
        writing.publish(*frames(5 * epoch, 5 * epoch + 5))
    entries = sorted((tmp_path / "store" / PIPELINE / "out" / "log").iterdir())
    assert len(entries) == KEPT
    assert entries[-1].stat().st_size < 1000
    assert len(writing.stream().files) > KEPT
    assert len(list(Path(writing.stream().directory).glob("*.files"))) == 1


def test_streams_have_any_names_that_a_directory_can_have(writing: Writing) -> None:
    names = ["a/b", "..", ".", "Tür 3", "a%2Fb", "x" * 200, "_x", "data"]
    writing.publish(*[(1, name, True, name.encode()) for name in names])
    assert all(writing.messages(name) == [(1, name, True, name.encode())] for name in names)
    assert verify(writing.path) == len(names)
    for wrong in ("", "x" * 201, "a\0b"):
        with pytest.raises(BadRow, match="cannot go to the stream"):
            writing.publish((1, wrong, True, b"x"))


def test_a_message_larger_than_every_buffer_passes(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(append, "_GROUP_BYTES", 1000)
    sent: list[Any] = [
        (1, "front", True, b"k" * 50_000),
        (2, "front", False, b""),
        (3, "front", False, os.urandom(5000)),
    ]
    writing.publish(*sent, staged=True)
    writing.publish(*[(at + 10, *rest) for at, *rest in sent])
    assert writing.messages() == [*sent, *[(at + 10, *rest) for at, *rest in sent]]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "word"),
    [((None, "front", True, b""), "'at'"), ((1, None, True, b""), "'camera'"), ((1, "front", True, None), "'frame'")],
)
def test_a_row_that_is_no_message_is_refused_by_task_admission_and_publication(
    writing: Writing, row: tuple[int, str, bool, bytes], word: str
) -> None:
    publication = Publication(writing.record(1), (Carried(table([*frames(0, 3), row, *frames(3, 5)])),))
    with pytest.raises(BadRow, match=word):
        writing.staged([row], 1)
    with pytest.raises(BadRow, match=word):
        writing.sink.admit(publication)
    with pytest.raises(BadRow, match=word):
        writing.sink.publish([publication], Held())
    rest, refused = writing.sink.reject(publication)
    assert [(each.number, each.row.num_rows) for each in refused if isinstance(each, Refused)] == [(3, 1)]
    writing.sink.publish([rest], Held())
    assert writing.messages() == frames(0, 5)


def test_a_null_mark_is_no_random_access_point(writing: Writing) -> None:
    without_mark: Any = (1, "front", None, b"x")
    writing.sink.publish(
        [Publication(writing.record(1), (Carried(table([without_mark])),))],
        Held(),
    )
    assert writing.messages() == [(1, "front", False, b"x")]


def test_times_are_kept_in_nanoseconds_and_those_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("data", pa.string())])
    sink = ByteStreamSinkSpec(os.fspath(tmp_path / "store"), MessageColumns("timestamp", "data")).connect(
        "out", PIPELINE, schema
    )
    ok, late = (pa.table({"timestamp": [us], "data": ["é"]}, schema=schema) for us in (1_767_225_600_000_001, 2**62))
    sink.open(RunIdentity(PIPELINE, 1))
    with pytest.raises(BadRow, match="nanoseconds"):
        sink.admit(Publication(record(1), (Carried(late),)))
    sink.publish([Publication(record(1), (Carried(ok),))], Held())
    stream = stream_of(os.fspath(tmp_path / "store"), "main")
    (chunk,) = stream.read(0, 1)
    assert (chunk.timestamps, bytes(chunk.payloads[0])) == ([1_767_225_600_000_001_000], "é".encode())


def test_columns_that_would_not_be_stored_are_refused(tmp_path: Path) -> None:
    spec = ByteStreamSinkSpec(os.fspath(tmp_path / "store"), COLUMNS)
    with pytest.raises(InvalidPipeline, match="would not store column 'more'"):
        spec.connect("out", PIPELINE, SCHEMA.append(pa.field("more", pa.int64())))
    with pytest.raises(InvalidPipeline, match="'at' of type TIMESTAMP, or BIGINT"):
        spec.connect("out", PIPELINE, SCHEMA.set(0, pa.field("at", pa.string())))
    with pytest.raises(InvalidPipeline, match="which its rows do not have"):
        spec.check_columns(["at", "frame"])


def test_streams_of_times_take_no_ticks(writing: Writing, tmp_path: Path) -> None:
    writing.publish(*frames(0, 3))
    schema = SCHEMA.set(0, pa.field("at", pa.timestamp("us")))
    with pytest.raises(InvalidPipeline, match="its streams have ticks"):
        ByteStreamSinkSpec(writing.path, COLUMNS).connect("out", PIPELINE, schema)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"key": "k", "index_every": 3}, "not both"),
        ({"index_every": 0}, "index_every=0"),
        ({"target_size": "256"}, "target_size"),
        ({"retain": 0}, "retain=0"),
        ({"stream": "data"}, "twice"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidPipeline, match=word):
        write.byte_stream("store", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidPipeline, match="s3://"):
        write.byte_stream("s3://bucket/store")


# --- index ------------------------------------------------------------------------------------------------------------


def test_any_time_leads_to_the_last_random_access_point_that_misses_nothing(tmp_path: Path) -> None:
    """Against a look at all messages; timestamps that go back and repeat, several files (design/0017, "Index")."""
    rng = random.Random(3)
    writing = Writing(tmp_path / "store", {"target_bytes": 300})
    for epoch in range(12):
        at = 20 * epoch - 10
        writing.publish(*[(at + rng.randrange(25), "front", rng.random() < 0.3, b"x" * 9) for _ in range(8)])
    messages, stream = writing.messages(), writing.stream()
    assert len(stream.files) > 3
    for time in range(-15, 260):
        wanted = 0
        for ordinal, (at, _, is_key, _) in enumerate(messages):
            before = [other for other, *_ in messages[:ordinal]]
            if is_key and max([at, *before]) <= time and all(other < time for other in before):
                wanted = ordinal
        assert stream.access_point(time) == wanted, time
        first = next((n for n, (at, *_) in enumerate(messages) if at >= time), None)
        assert stream.first_from(time) == first


def test_without_a_column_every_nth_message_and_the_first_of_each_file_is_a_random_access_point(
    tmp_path: Path,
) -> None:
    columns = MessageColumns("at", "frame", "camera")
    schema = SCHEMA.remove(2)
    spec = ByteStreamSinkSpec(os.fspath(tmp_path / "store"), columns, index_every=7, target_bytes=1000)
    sink = spec.connect("out", PIPELINE, schema)
    sink.open(RunIdentity(PIPELINE, 1))
    rows = table(frames(0, 100)).drop_columns(["is_key"])
    sink.publish([Publication(record(1), (Carried(rows),))], Held())
    stream = stream_of(os.fspath(tmp_path / "store"))
    firsts = {file.first for file in stream.files}
    keys = [n + chunk.first for chunk in stream.read(0, 100) for n, is_key in enumerate(chunk.keys) if is_key]
    assert len(firsts) > 3
    assert keys == sorted(firsts | set(range(0, 100, 7)))


# --- retention --------------------------------------------------------------------------------------------------------


def test_old_files_go_at_random_access_points_and_the_newest_stay(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain": 40, "is_retained_in_ticks": True})
    for epoch in range(50):
        writing.publish(*frames(3 * epoch, 3 * epoch + 3))
    stream = writing.stream()
    kept = [at for at, *_ in writing.messages()]
    assert kept == list(range(kept[0], 150))
    assert kept[0] % 5 == 0
    assert 90 < kept[0] <= 109, "what is 40 older than 149 may go, and no younger one"
    assert stream.state.begin == kept[0]
    assert len(list(Path(stream.directory).glob("*.data"))) == len(stream.files)
    assert verify(writing.path) == len(kept)


def test_retention_by_bytes_keeps_at_least_so_many(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 2000})
    for epoch in range(60):
        writing.publish(*frames(3 * epoch, 3 * epoch + 3))
        if epoch > 40:
            assert 2000 <= sum(file.size for file in writing.stream().files) < 2700


def test_no_file_goes_that_a_registered_reader_needs(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    front = ReaderMark(writing.path, "front", "here", ["front"])
    back = ReaderMark(writing.path, "back", "here", ["back"])
    front.put({f"{PIPELINE}/out/front": 20})
    back.put({})
    writing.publish(*frames(0, 100))
    assert writing.messages()[0][0] <= 20
    front.put({f"{PIPELINE}/out/front": 90})
    writing.publish(*frames(100, 101))
    assert 20 < writing.messages()[0][0] <= 90
    front.remove()
    writing.publish(*frames(101, 120))
    assert writing.messages()[0][0] > 90


def test_parts_of_a_reader_let_go_of_their_streams_alone(tmp_path: Path) -> None:
    """design/0048, section 3: what a part says holds for its streams; the whole, or the end of all, takes it away."""
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    segments = [f"{PIPELINE}/out/{stream}" for stream in ("front", "back")]
    mark = ReaderMark(writing.path, "both", "here", None)
    mark.put({})
    mark.put_segment(segments[0], 40)
    assert [needed(writing.path, segment) for segment in segments] == [40, 0]
    mark.put_segment(segments[1], 7)
    mark.put_segment(segments[0], None)
    assert [needed(writing.path, segment) for segment in segments] == [None, 7]
    assert [mark.is_released(segment) for segment in segments] == [True, False]
    mark.put({segments[0]: 90, segments[1]: 20})
    assert [needed(writing.path, segment) for segment in segments] == [90, 20]
    mark.put_segment(segments[1], 30)
    mark.remove()
    assert [needed(writing.path, segment) for segment in segments] == [None, None]
    assert [path.name for path in (tmp_path / "store" / "_readers").glob("*.json")] == []


def test_the_last_part_that_ends_takes_the_mark_of_a_bounded_reader_away(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300})
    writing.publish(*frames(0, 20))
    writing.publish(*frames(20, 40, camera="back"))
    spec: Any = read.byte_stream(writing.path, end="latest", timestamps="bigint", name="both").node.spec
    one = SegmentSet(frozenset({f"{PIPELINE}/out/front"}))
    parts = [spec.of_segments(of).open("both", str(tmp_path / "w")) for of in (one, replace(one, is_rest=True))]
    marks = tmp_path / "store" / "_readers"
    ends = [part.latest(part.initial(), bounded=False) for part in parts]
    parts[0].committed(ends[0])
    assert (needed(writing.path, f"{PIPELINE}/out/front"), needed(writing.path, f"{PIPELINE}/out/back")) == (None, 0)
    parts[1].committed(ends[1])
    assert list(marks.glob("*.json")) == []


def test_a_reader_whose_mark_is_damaged_needs_everything_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    ReaderMark(writing.path, "front", "here", None).put({f"{PIPELINE}/out/front": 90})
    (mark,) = (tmp_path / "store" / "_readers").glob("*.json")
    mark.write_bytes(mark.read_bytes()[:-3])
    writing.publish(*frames(0, 100))
    assert len(writing.messages()) == 100
    assert mark.name in caplog.text


def test_a_stream_never_begins_behind_its_only_random_access_point() -> None:
    files = [DataFile(n, 1, 1, 100, 0, n - 1, n, n == 0) for n in range(5)]
    assert RetentionRules(size_bytes=100).dropped(files, 4) == 0


# --- rewinds ----------------------------------------------------------------------------------------------------------


def test_ordinals_go_on_behind_a_rewind_and_files_are_cut(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 400})
    for epoch in range(6):
        writing.publish(*frames(4 * epoch, 4 * epoch + 4), *frames(epoch, epoch + 1, camera=f"only {epoch}"))
    writing.rewind(2)
    assert [at for at, *_ in writing.messages()] == list(range(8))
    assert writing.messages("only 5") == []
    assert verify(writing.path) == 8 + 2
    writing.publish(*frames(100, 103))
    stream = writing.stream()
    assert [at for at, *_ in writing.messages()] == [*range(8), 100, 101, 102]
    assert [(file.first, file.end) for file in stream.files][-1] == (24, 27)
    assert [stream.is_withdrawn(end) for end in (7, 8, 9, 24, 25)] == [False, False, True, True, False]
    writing.opened()
    assert verify(writing.path) == 8 + 2 + 3


# --- stale writers, full disks ----------------------------------------------------------------------------------------


def test_a_stale_writer_that_is_past_its_look_at_the_log_changes_no_byte_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps between looking and appending, while another run takes over, copies its file and goes on."""
    writing = Writing(tmp_path / "store", {"target_bytes": 10_000})
    writing.publish(*frames(0, 10))
    stale, successor = writing.sink, writing
    of_generation_1 = next(Path(writing.stream().directory).glob("*-00000001.data"))
    write_all = staging.write_all
    is_asleep = [True]

    def slow(fd: int, views: object) -> None:
        if is_asleep.pop() if is_asleep else False:
            successor.opened()
            successor.publish(*frames(10, 15))
        write_all(fd, views)  # type: ignore[arg-type]

    monkeypatch.setattr(append, "write_all", slow)
    with pytest.raises(Fenced):
        stale.publish([Publication(writing.record(9), (Carried(table(frames(50, 60))),))], Held())
    assert writing.messages() == frames(0, 15)
    assert verify(writing.path) == 15
    assert not of_generation_1.exists()


def test_what_is_beyond_the_committed_size_is_never_read_and_is_written_over(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    directory = Path(writing.stream().directory)
    for path in [*directory.glob("*.data"), *directory.glob("*.index")]:
        with path.open("ab") as file:
            file.write(b"torn" * 1000)
    assert writing.messages() == frames(0, 10)
    assert verify(writing.path) == 10
    writing.publish(*frames(10, 20))
    assert writing.messages() == frames(0, 20)
    assert verify(writing.path) == 20


def test_a_full_disk_changes_nothing_and_the_epoch_is_published_later(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        writing = Writing(disk / "store")
        writing.publish(*frames(0, 10))
        with pytest.raises(Unavailable):
            writing.publish(*frames(10, 20, size=600_000))
        assert writing.messages() == frames(0, 10)
        writing.publish(*frames(10, 20))
        assert writing.messages() == frames(0, 20)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_every_byte_that_is_flipped_is_found_and_its_file_is_named(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 150})
    writing.publish(*frames(0, 6, size=12), (3, "back", True, b"b"))
    writing.opened()
    writing.publish(*frames(6, 7, size=12))
    assert verify(writing.path) == 8
    checked = 0
    for path in sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
            with pytest.raises(Corrupt) as caught:
                verify(writing.path)
            assert caught.value.participant == os.fspath(path), (path, place)
            checked += 1
        path.write_bytes(whole)
    assert checked > 2000


@pytest.mark.parametrize("kind", ["data", "index", "files"])
def test_a_file_that_is_cut_or_gone_is_named(tmp_path: Path, kind: str) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 150})
    writing.publish(*frames(0, 20))
    path = sorted(Path(writing.stream().directory).glob(f"*.{kind}"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(Corrupt, match=path.name):
        verify(writing.path)
    path.unlink()
    with pytest.raises((Corrupt, FileNotFoundError), match=path.name):
        verify(writing.path)


def test_an_entry_says_in_json_what_is_committed(writing: Writing) -> None:
    writing.publish(*frames(0, 3))
    last = sorted((writing.directory / PIPELINE / "out" / "log").iterdir())[-1]
    entry = json.loads(last.read_text().splitlines()[0])
    assert entry["streams"]["front"]["open"]["count"] == 3
    assert (entry["epoch"], entry["positions"], entry["times"]) == (1, {"given": {"log": 1}}, "ticks")


def test_a_replaced_run_that_wakes_while_it_opens_takes_nothing_of_the_new_one(tmp_path: Path) -> None:
    """It removes what lower generations left uncommitted, by what was there before its own fence."""
    path = os.fspath(tmp_path / "store")

    def sink() -> ByteStreamSink:
        return ByteStreamSinkSpec(path, COLUMNS).connect("out", PIPELINE, SCHEMA)

    def publish(by: ByteStreamSink, epoch: int, generation: int) -> None:
        rows = Carried(table(frames(10 * epoch - 10, 10 * epoch)))
        by.publish([Publication(record(epoch, generation), (rows,))], Held())

    first, slow, new = sink(), sink(), sink()
    first.open(RunIdentity(PIPELINE, 1))
    publish(first, 1, 1)
    remove = slow._remove_uncommitted

    def woken(view: BranchView) -> None:
        new.open(RunIdentity(PIPELINE, 3))
        publish(new, 2, 3)
        publish(new, 3, 3)
        remove(view)

    slow._remove_uncommitted = woken  # type: ignore[method-assign]
    slow.open(RunIdentity(PIPELINE, 2))
    stream = stream_of(path)
    assert [at for chunk in stream.read(0, stream.end) for at in chunk.timestamps] == list(range(30))


def test_what_was_there_before_the_fence_is_read_before_it(tmp_path: Path) -> None:
    """Else a run that stalls right after its fence sees the growing file of the next one, and would cut it."""
    path = os.fspath(tmp_path / "store")
    sink = ByteStreamSinkSpec(path, COLUMNS).connect("out", PIPELINE, SCHEMA)
    order: list[str] = []
    view, append = sink._view, sink._try
    sink._view = lambda: order.append("view") or view()  # type: ignore[method-assign]
    sink._try = lambda entry: order.append("fence") or append(entry)  # type: ignore[method-assign]
    sink.open(RunIdentity(PIPELINE, 1))
    assert order == ["view", "fence"]
