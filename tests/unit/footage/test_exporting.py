"""Parts of streams as files, and pictures: at a key frame as they are, or exactly (issue 39)."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.footage.exporting import export_video
from holdfast.footage.importing import VideoImport
from holdfast.footage.pictures import pictures_between, save_picture
from holdfast.footage.streams import VideoStream
from holdfast.ports import Carried, EpochRecord, Publication, RunIdentity
from holdfast.video.containers import ContainerReader
from holdfast.video.packets import message_times
from tests.unit.video.made_videos import CLOSED_GOPS, OPEN_GOPS, number_of, picture, write_video
from tests.videos import run

pytestmark = pytest.mark.slow

START = 1_767_225_600 * 10**9
STEP = 40_000_000


def _shown(path: Path) -> list[int]:
    with av.open(str(path)) as file:
        return [number_of(each) for each in file.decode(video=0)]


def _times(path: Path) -> list[float]:
    with av.open(str(path)) as file:
        found = [each.time for each in file.decode(video=0)]
        return [round(at - found[0], 6) for at in found]


@pytest.fixture(params=[OPEN_GOPS, CLOSED_GOPS], ids=["open", "closed"])
def stream(request: Any, tmp_path: Path) -> VideoStream:
    made = write_video(tmp_path / "a.mp4", 60, options=request.param)
    with VideoImport(str(tmp_path / "store"), "cam1", batch_bytes=2000) as importing:
        importing.add(str(made), START)
    return VideoStream(str(tmp_path / "store"), "cam1")


@pytest.mark.parametrize("name", ["out.mp4", "out.ts", "out.mkv"])
def test_an_exact_export_has_the_pictures_of_the_range_and_no_others(
    stream: VideoStream, tmp_path: Path, name: str
) -> None:
    for first, last in ((0, 60), (1, 2), (11, 12), (10, 14), (13, 37), (23, 48)):
        start = START + first * STEP - (1 if first else 0)
        done = export_video(stream, str(tmp_path / name), start, START + last * STEP, is_exact=True)
        assert _shown(tmp_path / name) == list(range(first, last))
        assert (done.packet_count, done.start) == (last - first, START + first * STEP)
        assert _times(tmp_path / name) == pytest.approx([number * 0.04 for number in range(last - first)], abs=0.001)


@pytest.mark.parametrize("name", ["out.mp4", "out.ts", "out.mkv"])
def test_an_export_begins_at_the_key_frame_before_the_range_and_has_all_of_it(
    stream: VideoStream, tmp_path: Path, name: str
) -> None:
    for first, last in ((0, 60), (12, 24), (13, 37), (23, 48), (30, 31)):
        done = export_video(stream, str(tmp_path / name), START + first * STEP, START + last * STEP)
        shown = _shown(tmp_path / name)
        begin = (done.start - START) // STEP
        assert begin <= first
        assert first - begin < 12
        assert shown[0] == begin
        assert set(range(first, last)) <= set(shown)
        assert max(shown) <= last + 2, "what the last picture is decoded from"
        assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("name", ["out.mp4", "out.ts", "out.mkv"])
def test_a_gap_is_exported_or_refused(tmp_path: Path, name: str, is_exact: bool) -> None:
    """An MP4 with a gap of 7 hours would be shown without it, and nobody told."""
    made = write_video(tmp_path / "a.mp4", 24, options=CLOSED_GOPS)
    for hours in (6, 7):
        with VideoImport(str(tmp_path / f"store{hours}"), "cam1") as importing:
            importing.add(str(made), START)
            again = tmp_path / f"{hours}.mp4"
            again.write_bytes(made.read_bytes())
            importing.add(str(again), START + hours * 3600 * 10**9)
    export_video(VideoStream(str(tmp_path / "store6"), "cam1"), str(tmp_path / name), is_exact=is_exact)
    assert _times(tmp_path / name)[24] == pytest.approx(6 * 3600, abs=0.001)
    long = VideoStream(str(tmp_path / "store7"), "cam1")
    if name == "out.mkv":
        export_video(long, str(tmp_path / name), is_exact=is_exact)
        assert _times(tmp_path / name)[24] == pytest.approx(7 * 3600, abs=0.001)
    else:
        with pytest.raises(InvalidPipeline, match=r"nothing for 7\.0 h[\s\S]*in parts"):
            export_video(long, str(tmp_path / name), is_exact=is_exact)


def test_a_range_without_pictures_is_refused_and_leaves_no_file(stream: VideoStream, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match=r"has nothing there[\s\S]*2026-01-01T00:00:00Z to 2026-01-01T00:00:02"):
        export_video(stream, str(tmp_path / "out.mp4"), START + 10**12)
    with pytest.raises(InvalidPipeline, match="is not before"):
        export_video(stream, str(tmp_path / "out.mp4"), START + 2, START + 1)
    with pytest.raises(InvalidPipeline, match="known endings"):
        export_video(stream, str(tmp_path / "out.gif"))
    with pytest.raises(InvalidPipeline, match="has no picture from"):
        export_video(stream, str(tmp_path / "out.mp4"), START + 1, START + 2, is_exact=True)
    assert not list(tmp_path.glob("out*"))
    with pytest.raises(InvalidPipeline, match=r"no stream 'cam2'[\s\S]*cam1 \(import/cam1\)"):
        VideoStream(str(tmp_path / "store"), "cam2")


def test_the_picture_of_a_time_is_the_one_that_is_shown_then(stream: VideoStream, tmp_path: Path) -> None:
    for number in (0, 9, 10, 11, 12, 13, 25, 59):
        at = save_picture(stream, START + number * STEP + STEP // 2, str(tmp_path / "out.png"))
        assert at == START + number * STEP
        assert _shown(tmp_path / "out.png") == [number]
    with pytest.raises(InvalidPipeline, match=r"shows no picture at 2025-12-31T23:59:59\.999999999Z"):
        save_picture(stream, START - 1, str(tmp_path / "none.png"))
    assert not (tmp_path / "none.png").exists()


def test_pictures_from_a_time_are_those_of_the_whole_cut_there(stream: VideoStream) -> None:
    whole = [(frame.pts, number_of(frame)) for frame in pictures_between(stream, None, None)]
    assert whole == [(START + number * STEP, number) for number in range(60)]
    for at in range(START, START + 60 * STEP, 17_000_000):
        found = [(frame.pts, number_of(frame)) for frame in pictures_between(stream, at, None)]
        assert found == [row for row in whole if row[0] >= at]


def _stored(tmp_path: Path, rows: list[tuple[str, int, bool, bytes]]) -> VideoStream:
    schema = pa.schema([("s", pa.string()), ("t", pa.int64()), ("k", pa.bool_()), ("d", pa.binary())])
    sink = ByteStreamSinkSpec(str(tmp_path / "muxed"), MessageColumns("t", "d", "s", "k")).connect("out", "p", schema)
    held = sink.open(RunIdentity("p", 1))
    table = pa.table(dict(zip(schema.names, zip(*rows, strict=True), strict=True)), schema=schema)
    sink.publish([Publication(EpochRecord("p", 1, 1, {"a": {"log": 1}}), (Carried(table),))], held)
    return VideoStream(str(tmp_path / "muxed"), "muxed")


@pytest.mark.parametrize("options", [OPEN_GOPS, CLOSED_GOPS], ids=["open", "closed"])
@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_what_a_graph_muxes_is_exported(tmp_path: Path, container: str, options: dict[str, str]) -> None:
    made = write_video(tmp_path / "a.mp4", 60, options=options)
    with ContainerReader(made, origin=START) as reader:
        packets = [
            (at, {"is_key": packet.is_key, "data": packet.to_bytes()}) for at, packet in message_times(reader.packets())
        ]
    messages = run(hf.video.mux(container), packets)["message"]
    rows = [("muxed", at, payload["is_key"], payload["data"]) for at, payload in messages]
    stream = _stored(tmp_path, rows)
    assert not stream.is_of_packets
    for first, last in ((0, 60), (11, 12), (13, 37), (23, 48)):
        start, end = START + first * STEP, START + last * STEP
        export_video(stream, str(tmp_path / "out.mp4"), start, end, is_exact=True)
        assert _shown(tmp_path / "out.mp4") == list(range(first, last))
        export_video(stream, str(tmp_path / "copy.ts"), start, end)
        shown = _shown(tmp_path / "copy.ts")
        assert shown[0] <= first
        assert set(range(first, last)) <= set(shown)
        assert save_picture(stream, start, str(tmp_path / "out.png")) == start
        assert _shown(tmp_path / "out.png") == [first]


def _parts(tmp_path: Path, container: str) -> VideoStream:
    """A stream whose messages are parts of a container; those with key packets begin a file."""
    rows = []
    for group in range(5):
        made = tmp_path / f"part.{container}"
        with av.open(str(made), "w", format=container) as out:
            video = out.add_stream("libx264", rate=25, options=CLOSED_GOPS)
            video.width, video.height = 160, 96
            for number in range(12):
                frame = picture(12 * group + number)
                frame.pts, frame.time_base = 12 * group + number, Fraction(1, 25)
                out.mux(video.encode(frame))
            out.mux(video.encode(None))
        data = made.read_bytes()
        parts = [data[at : at + 188 * 7] for at in range(0, len(data), 188 * 7)]
        for place, part in enumerate(parts):
            rows.append(("muxed", START + 12 * group * STEP + place, place == 0, part))
    return _stored(tmp_path, rows)


def test_a_stream_of_parts_of_a_container_is_exported_too(tmp_path: Path) -> None:
    stream = _parts(tmp_path, "mpegts")
    assert not stream.is_of_packets
    export_video(stream, str(tmp_path / "out.mp4"), START + 20 * STEP, START + 40 * STEP, is_exact=True)
    assert _shown(tmp_path / "out.mp4") == list(range(20, 40))
    export_video(stream, str(tmp_path / "copy.mp4"), START + 20 * STEP, START + 40 * STEP)
    assert _shown(tmp_path / "copy.mp4") == list(range(12, 40))
    assert save_picture(stream, START + 30 * STEP, str(tmp_path / "out.png")) == START + 30 * STEP
    assert _shown(tmp_path / "out.png") == [30]


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("options", [OPEN_GOPS, CLOSED_GOPS], ids=["open", "closed"])
def test_the_rest_of_a_group_in_which_a_packet_is_missing_is_left_out(
    tmp_path: Path, options: dict[str, str], is_exact: bool
) -> None:
    """As of a dead letter: a player would show wrong pictures, and say nothing."""
    made = write_video(tmp_path / "a.mp4", 60, options=options)
    with ContainerReader(made, origin=START) as reader:
        packets = list(message_times(reader.packets()))
    keys = [place for place, (_, packet) in enumerate(packets) if packet.is_key]
    for place in (keys[1] + 1, keys[1] + 5, keys[2] - 1):
        rows = [("muxed", at, packet.is_key, packet.to_bytes()) for at, packet in packets]
        del rows[place]
        stream = _stored(tmp_path / str(place), rows)
        frames = run(hf.video.decode(), [(at, {"is_key": key, "data": data}) for _, at, key, data in rows])
        right = [(t - START) // STEP for t, _ in frames["frame"]]
        done = export_video(stream, str(tmp_path / "out.mkv"), is_exact=is_exact)
        assert _shown(tmp_path / "out.mkv") == right
        assert _times(tmp_path / "out.mkv") == pytest.approx([number * 0.04 for number in right], abs=0.001)
        assert done.damage_count == 59 - len(right) > 0 or place == keys[2] - 1
        lost = next(number for number in range(60) if number not in right)
        assert save_picture(stream, START + lost * STEP, str(tmp_path / "out.png")) == START + (lost - 1) * STEP


@pytest.mark.parametrize("size", [(161, 96), (160, 97)])
def test_an_exact_export_of_an_odd_size_is_refused_with_what_to_do(tmp_path: Path, size: tuple[int, int]) -> None:
    made = write_video(tmp_path / "a.avi", 12, codec="mjpeg", options={"g": "12"}, pixels="yuvj420p", size=size)
    with VideoImport(str(tmp_path / "store"), "cam1") as importing:
        importing.add(str(made), START)
    stream = VideoStream(str(tmp_path / "store"), "cam1")
    with pytest.raises(InvalidPipeline, match=f"{size[0]} x {size[1]}[\\s\\S]*even[\\s\\S]*leave out --exact"):
        export_video(stream, str(tmp_path / "out.mp4"), is_exact=True)
    assert not list(tmp_path.glob("out*"))
    export_video(stream, str(tmp_path / "out.mp4"))
    assert _shown(tmp_path / "out.mp4") == list(range(12))


def test_an_exact_export_takes_a_layout_that_its_encoder_does_not(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mkv", 24, codec="libx264rgb", options=CLOSED_GOPS, pixels="rgb24")
    with VideoImport(str(tmp_path / "store"), "cam1") as importing:
        importing.add(str(made), START)
    export_video(VideoStream(str(tmp_path / "store"), "cam1"), str(tmp_path / "out.mp4"), is_exact=True)
    assert _shown(tmp_path / "out.mp4") == list(range(24))
