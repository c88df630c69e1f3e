"""The source of byte streams: positions, random access, beginnings, ends, what is there no more (design/0017)."""

from __future__ import annotations

import os
import pickle
import random
import threading
from bisect import bisect_right
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.reader import ByteStreamSource
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.byte_stream.source_spec import ByteStreamSourceSpec
from holdfast.connectors.reading.from_time import from_time
from holdfast.errors import Corrupt, Diverged, InvalidPipeline
from holdfast.ports import Carried, Explanation, Held, Publication, RunIdentity
from tests.contract.source_contract import drain, rows_between
from tests.unit.byte_streams import PIPELINE, Writing, frames, record

pytestmark = pytest.mark.slow

FRONT = f"{PIPELINE}/out/front"
BACK = f"{PIPELINE}/out/back"


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path / "store", {"target_bytes": 500})


def spec_of(writing: Writing, **arguments: Any) -> ByteStreamSourceSpec:
    arguments = {"timestamps": "bigint", **arguments}
    spec = read.byte_stream(writing.path, name="frames", **arguments).node.spec
    assert isinstance(spec, ByteStreamSourceSpec)
    return spec


def opened(writing: Writing, workspace: str = "workspace", **arguments: Any) -> ByteStreamSource:
    return spec_of(writing, **arguments).open("frames", os.fspath(writing.directory.parent / workspace))


def times(source: ByteStreamSource, *, bounded: bool = False) -> list[int]:
    """Return the timestamps of everything that a source delivers now."""
    start = source.initial()
    return [row["timestamp"] for row in rows_between(source, start, drain(source, start, bounded=bounded)[-1])]


# --- random access ----------------------------------------------------------------------------------------------------


def test_any_of_500_times_gives_exactly_the_messages_from_its_random_access_point(tmp_path: Path) -> None:
    """10 000 messages, a key frame every 30: the acceptance of the issue that asked for it."""
    rng = random.Random(11)
    writing = Writing(tmp_path / "store", {"target_bytes": 30_000})
    at, sent = 0, []
    for number in range(10_000):
        at += rng.randrange(1, 50)
        sent.append((at, "front", number % 30 == 0, rng.randbytes(rng.randrange(60))))
    for begin in range(0, 10_000, 700):
        writing.publish(*sent[begin : begin + 700], staged=bool(begin % 200))
    assert len(writing.stream().files) > 10
    stamps = [message[0] for message in sent]
    for number in range(500):
        time = rng.randrange(-100, at + 100)
        source = opened(writing, f"w{number}", start=time, max_rows_per_epoch=70, holds_retention=False)
        start = source.initial()
        rows = rows_between(source, start, source.latest(start, bounded=False))
        begin = max(0, bisect_right(stamps, time) - 1) // 30 * 30
        assert [(row["timestamp"], row["stream"], row["is_key"], row["data"]) for row in rows] == sent[
            begin : begin + 70
        ]


def test_a_start_at_a_time_keeps_what_a_decoder_needs_and_clip_leaves_it_out(writing: Writing) -> None:
    writing.publish(*frames(0, 30), *frames(7, 30, each=7, camera="back"))
    assert times(opened(writing, start=18)) == [*range(14, 30), *range(15, 30)]
    assert times(opened(writing, "clipped", start=18, clip=True)) == [*range(18, 30), *range(18, 30)]
    assert times(opened(writing, "before", start=-5)) == [*range(7, 30), *range(30)]
    assert times(opened(writing, "behind", start=500, clip=True)) == []


def test_at_a_time_of_a_run_no_row_before_it_leaves_the_source(writing: Writing) -> None:
    writing.publish(*frames(0, 30))
    source = from_time(spec_of(writing), 18).open("frames", os.fspath(writing.directory.parent / "w"))
    start = source.initial()
    assert start == {FRONT: 15}
    rows = rows_between(source, start, source.latest(start, bounded=False))
    assert [row["timestamp"] for row in rows] == list(range(18, 30))


def test_timestamps_are_read_as_times_or_as_nanoseconds(tmp_path: Path) -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("data", pa.binary())])
    store = os.fspath(tmp_path / "store")
    sink = ByteStreamSinkSpec(store, MessageColumns("timestamp", "data")).connect("out", PIPELINE, schema)
    sink.open(RunIdentity(PIPELINE, 1))
    moments = [datetime(2026, 1, 1, 6, 0, second, tzinfo=UTC) for second in range(5)]
    rows = pa.table({"timestamp": moments, "data": [b"x"] * 5}, schema=schema)
    sink.publish([Publication(record(1), (Carried(rows),))], Held())

    def first(**arguments: Any) -> Any:
        spec = read.byte_stream(store, start="2026-01-01T06:00:02Z", clip=True, name="n", **arguments).node.spec
        source = spec.open("n", os.fspath(tmp_path / str(arguments)))
        return rows_between(source, source.initial(), source.latest(source.initial(), bounded=False))[0]["timestamp"]

    assert first() == moments[2]
    assert first(timestamps="bigint") == int(moments[2].timestamp()) * 10**9


def test_ticks_are_not_read_as_times(writing: Writing) -> None:
    writing.publish(*frames(0, 3))
    with pytest.raises(InvalidPipeline, match="have ticks"):
        opened(writing, timestamps="timestamp").initial()


# --- streams ----------------------------------------------------------------------------------------------------------


def test_streams_are_segments_and_one_that_appears_later_is_read_from_its_beginning(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    source = opened(writing, start="latest")
    start = source.initial()
    assert (start, times(source)) == ({FRONT: 10}, [])
    writing.publish(*frames(10, 12), *frames(0, 3, camera="back"))
    end = source.latest(start, bounded=False)
    assert end == {FRONT: 12, BACK: 3}
    rows = rows_between(source, start, end)
    assert [(row["stream"], row["timestamp"]) for row in rows] == [
        ("back", 0), ("back", 1), ("back", 2), ("front", 10), ("front", 11),
    ]  # fmt: skip


def test_only_the_streams_that_are_asked_for_are_read(writing: Writing) -> None:
    writing.publish(*frames(0, 10), *frames(50, 53, camera="back"))
    assert times(opened(writing, streams=["back"])) == [50, 51, 52]


def test_a_limit_is_shared_by_the_streams(writing: Writing) -> None:
    writing.publish(*frames(0, 100), *frames(0, 3, camera="back"))
    source = opened(writing, max_rows_per_epoch=10)
    ends = drain(source, source.initial())
    assert ends[1] == {FRONT: 7, BACK: 3}
    assert ends[2] == {FRONT: 17, BACK: 3}
    assert ends[-1] == {FRONT: 100, BACK: 3}


def test_spans_are_dealt_by_bytes_and_counted_exactly(writing: Writing) -> None:
    writing.publish(*[(at, "front", True, b"x" * 500_000) for at in range(40)])
    source = opened(writing)
    end = source.latest(source.initial(), bounded=False)
    spans = source.spans(source.initial(), end, parallelism=2)
    assert 4 < len(spans) <= 9
    assert sum(span.row_count or 0 for span in spans) == 40
    assert all((span.size_bytes or 0) < 6_000_000 for span in spans)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_an_end_at_a_time_is_exact_and_holds_for_what_comes_later(writing: Writing) -> None:
    writing.publish(*frames(0, 10), *frames(0, 5, camera="back"))
    source = opened(writing, end=8)
    assert times(source) == [*range(5), *range(8)]
    positions = drain(source, source.initial())[-1]
    assert not source.has_ended(positions), "back may still bring something before 8"
    writing.publish(*frames(5, 9, camera="back"), *frames(3, 4))
    again = opened(writing, end=8)
    end = drain(again, positions)[-1]
    assert [row["timestamp"] for row in rows_between(again, positions, end)] == [5, 6, 7]
    assert again.has_ended(end)
    writing.publish(*frames(0, 3, camera="new"), *frames(9, 12))
    assert drain(again, end) == [end]
    assert opened(writing, end=8).has_ended(end)


def test_the_end_latest_is_what_was_there_at_the_first_start(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    source = opened(writing, end="latest")
    start = source.initial()
    writing.publish(*frames(10, 20))
    assert times(opened(writing, end="latest")) == list(range(10))
    assert not source.has_ended(start)
    assert source.has_ended(drain(source, start)[-1])
    assert source.spec.bounded


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"clip": True}, "clip=True"),
        ({"start": "yesterday"}, "not a time"),
        ({"start": 5, "end": 5}, "not after"),
        ({"end": "earliest"}, "not a time"),
        ({"timestamps": "nanos"}, "nanos"),
        ({"max_rows_per_epoch": 0}, "max_rows_per_epoch=0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidPipeline, match=word):
        read.byte_stream("store", name="frames", **arguments)


def test_a_lost_checkpoint_gets_beginning_and_end_back_from_what_the_sinks_keep(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    spec = spec_of(writing, start=7, end="latest")
    workspace, other = (os.fspath(writing.directory.parent / name) for name in ("workspace", "other"))
    assert spec.explanations("frames", workspace, 0) == []
    start = spec.open("frames", workspace).initial()
    told = spec.explanations("frames", workspace, 0)
    assert [each.number for each in told] == [1, 2]
    assert spec.explanations("frames", workspace, 1) == told[1:]
    writing.publish(*frames(10, 20))
    spec.restore("frames", other, told)
    again = spec.open("frames", other)
    assert (again.initial(), times(again)) == (start, list(range(5, 10)))
    with pytest.raises(Diverged, match="another beginning"):
        spec.restore("frames", other, [Explanation("frames", 1, "{}")])


def test_a_reader_beside_a_writer_that_starts_again_and_again_sees_a_growing_beginning(tmp_path: Path) -> None:
    """Without a lock: files are copied, finished and listed anew while they are read."""
    writing = Writing(tmp_path / "store", {"target_bytes": 400})
    writing.publish(*frames(0, 3))
    is_done = threading.Event()

    def write() -> None:
        for epoch in range(1, 60):
            if epoch % 3 == 0:
                writing.opened()
            writing.publish(*frames(3 * epoch, 3 * epoch + 3))
        is_done.set()

    thread = threading.Thread(target=write)
    thread.start()
    source = opened(writing)
    positions, found = source.initial(), []
    while True:
        was_done = is_done.is_set()
        end = source.latest(positions, bounded=False)
        found += [row["timestamp"] for row in rows_between(source, positions, end)]
        assert found == list(range(len(found)))
        assert times(opened(writing, "other"))[: len(found)] == found
        positions = end
        if was_done:
            break
    thread.join()
    assert found == list(range(180))


# --- a store that moves -----------------------------------------------------------------------------------------------


def test_reading_goes_on_while_files_are_copied_and_lists_are_replaced(writing: Writing) -> None:
    writing.publish(*frames(0, 4, size=12))
    source = opened(writing)
    end = source.latest(source.initial(), bounded=False)
    spans = source.spans(source.initial(), end, parallelism=1)
    for _ in range(3):
        writing.opened()
        writing.publish(*frames(4, 30))
    reader: ByteStreamSource = pickle.loads(pickle.dumps(source))
    assert [row["timestamp"] for span in spans for batch in reader.read(span) for row in batch.to_pylist()] == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_a_reader_holds_retention_back_until_its_sinks_have_what_it_drops(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    writing.publish(*frames(0, 4))
    source = opened(writing)
    start = source.initial()
    writing.publish(*frames(4, 100))
    end = source.latest(start, bounded=False)
    assert [row["timestamp"] for row in rows_between(source, start, end)] == list(range(100))
    source.committed(end)
    writing.publish(*frames(100, 120))
    assert writing.stream().state.begin > 50
    gone = f"messages 0 to {writing.stream().state.begin - 1} of stream {FRONT!r}"
    assert spec_of(writing).obstacle("frames", "w", start) == f"{gone} were dropped by the retention of its sink."
    with pytest.raises(Corrupt, match="dropped by the retention"):
        rows_between(opened(writing), start, end)


def test_a_reader_that_ends_lets_go(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    writing.publish(*frames(0, 10))
    source = opened(writing, end="latest")
    end = drain(source, source.initial())[-1]
    assert len(list((tmp_path / "store/_readers").glob("*.json"))) == 1
    source.committed(end)
    assert list((tmp_path / "store/_readers").glob("*.json")) == []
    assert opened(writing, end="latest").latest(end, bounded=False) == end
    assert list((tmp_path / "store/_readers").glob("*.json")) == [], "it needs nothing after a restart either"


def test_a_mark_that_was_removed_comes_back_and_needs_everything(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300, "retain_bytes": 300})
    writing.publish(*frames(0, 4))
    end = drain(opened(writing), {})[-1]
    (mark,) = (tmp_path / "store/_readers").glob("*.json")
    mark.unlink()
    opened(writing).latest(end, bounded=False)
    writing.publish(*frames(4, 100))
    assert writing.stream().state.begin == 0


def test_rows_that_a_rewind_has_withdrawn_are_an_error_and_those_behind_it_are_read(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    writing.publish(*frames(10, 20))
    source = opened(writing)
    start = source.initial()
    end = source.latest(start, bounded=False)
    writing.rewind(1)
    with pytest.raises(Corrupt, match="withdrawn by a rewind"):
        rows_between(opened(writing), start, end)
    assert "withdrawn" in spec_of(writing).obstacle("frames", "w", start, end)
    assert spec_of(writing).obstacle("frames", "w", end) == ""
    writing.publish(*frames(30, 33))
    again = opened(writing)
    assert times(again) == [*range(10), 30, 31, 32]
    assert [row["timestamp"] for row in rows_between(again, end, again.latest(end, bounded=False))] == [30, 31, 32]
    ends = opened(writing, "ends", end=30)
    assert (times(ends), ends.newest()) == (list(range(10)), {FRONT: 10}), "no position lies in the gap"
    assert ends.has_ended({FRONT: 10})


def test_a_store_that_is_gone_or_older_is_an_obstacle(writing: Writing, tmp_path: Path) -> None:
    writing.publish(*frames(0, 10))
    spec = spec_of(writing)
    assert spec.obstacle("frames", "w", {FRONT: 10}) == ""
    assert spec.reached("frames", "w") == {FRONT: 10}
    assert "ends before message 10, and 11 is wanted" in spec.obstacle("frames", "w", {FRONT: 11})
    assert "is not there" in spec.obstacle("frames", "w", {BACK: 1})
    nowhere = ByteStreamSourceSpec(os.fspath(tmp_path / "nowhere"), timestamps="bigint")
    assert "is not there" in nowhere.obstacle("frames", "w", {})
    assert nowhere.reached("frames", "w") == {}


def test_a_store_need_not_be_there_yet(tmp_path: Path) -> None:
    spec = read.byte_stream(tmp_path / "store", timestamps="bigint", name="frames").node.spec
    source: Any = spec.open("frames", os.fspath(tmp_path / "w"))
    assert times(source) == []
    writing = Writing(tmp_path / "store")
    writing.publish(*frames(0, 3))
    assert times(source) == [0, 1, 2]


def test_a_damaged_message_is_named_when_it_is_read(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    source = opened(writing)
    end = source.latest(source.initial(), bounded=False)
    path = Path(writing.stream().directory) / f"{writing.stream().files[0].stem}.data"
    whole = path.read_bytes()
    place = whole.index(b"000003")
    path.write_bytes(whole[:place] + b"9" + whole[place + 1 :])
    with pytest.raises(Corrupt, match="payload of message 3 has another checksum") as caught:
        rows_between(source, source.initial(), end)
    assert caught.value.participant == os.fspath(path)


def test_every_range_that_is_gone_is_named_with_its_file(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "store", {"target_bytes": 300})
    for first in range(0, 40, 10):
        writing.publish(*frames(first, first + 10))
    files = writing.stream().files
    assert len(files) > 4
    start, end = {FRONT: files[0].first + 1}, {FRONT: files[3].end - 1}
    spec = spec_of(writing)
    assert spec.obstacle("frames", "w", start, end) == ""
    there = Path(writing.stream().directory)
    for stem in (files[0].stem, files[4].stem):
        (there / f"{stem}.data").unlink()
    (there / f"{files[2].stem}.index").unlink()
    cut = there / f"{files[3].stem}.data"
    cut.write_bytes(cut.read_bytes()[:-1])
    said = spec.obstacle("frames", "w", start, end)
    assert f"of stream {FRONT!r} are gone: messages 1 to {files[0].end - 1} (" in said
    assert f"messages {files[2].first} to {files[2].end - 1} ({there / files[2].stem}.index is not there)" in said
    assert f"messages {files[3].first} to {files[3].end - 2} ({cut} has {files[3].size - 1} of" in said
    assert files[1].stem not in said
    assert files[4].stem not in said, "it lies behind what is wanted"


def test_every_stream_that_lacks_something_is_named(writing: Writing) -> None:
    writing.publish(*frames(0, 10))
    said = spec_of(writing).obstacle("frames", "w", {FRONT: 11, BACK: 1})
    assert "ends before message 10, and 11 is wanted" in said
    assert f"stream {BACK!r} is not there" in said
