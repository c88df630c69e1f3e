"""Packets of whatever container, with times; and what cannot be read is said with file, time and cure (issue 39)."""

import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")

from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.video.containers import ContainerReader
from holdfast.video.packets import EncodedPacket
from holdfast.video.remuxing import PacketFile
from tests.unit.video.made_videos import CLOSED_GOPS, OPEN_GOPS, decoded, write_video

pytestmark = pytest.mark.slow

START = 1_767_225_600 * 10**9
STEP = 40_000_000
HEVC = {"x265-params": "keyint=12:min-keyint=12:open-gop=1:bframes=2:b-adapt=0:scenecut=0:log-level=none"}


def _read(path: Path, origin: int | None = START) -> list[EncodedPacket]:
    with ContainerReader(path, origin=origin) as reader:
        return list(reader.packets())


def _expected(count: int = 48, first: int = 0, at: int = START) -> list[tuple[int, int]]:
    return [(at + STEP * number, first + number) for number in range(count)]


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", OPEN_GOPS),
        ("a.ts", "libx264", OPEN_GOPS),
        ("a.mkv", "libx264", OPEN_GOPS),
        ("a.avi", "libx264", OPEN_GOPS),
        ("a.h264", "libx264", OPEN_GOPS),
        ("b.h264", "libx264", CLOSED_GOPS),
        ("a.mp4", "libx265", HEVC),
        ("a.ts", "libx265", HEVC),
        ("a.hevc", "libx265", HEVC),
        ("a.mp4", "libsvtav1", {"preset": "12", "svtav1-params": "keyint=12"}),
        ("a.mkv", "libsvtav1", {"preset": "12", "svtav1-params": "keyint=12"}),
        ("a.avi", "mjpeg", {"q": "2"}),
    ],
)
def test_each_picture_has_its_time_whatever_the_container_and_the_order_of_decoding(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    packets = _read(write_video(tmp_path / name, codec=codec, options=options, pixels=pixels))
    assert decoded(packets) == _expected()
    assert packets[0].is_key
    times = [packet.dts for packet in packets if packet.dts is not None]
    assert times == sorted(set(times))
    assert all(packet.dts is None or packet.dts <= packet.pts for packet in packets)
    for packet in packets:
        assert packet.duration == STEP
        assert (packet.parameters is not None) == packet.is_key
        if packet.parameters:
            assert (packet.parameters.width, packet.parameters.height) == (160, 96)
            assert packet.parameters.codec in ("h264", "hevc", "av1", "mjpeg")


def test_ten_bits_are_said_in_the_parameters(tmp_path: Path) -> None:
    packets = _read(write_video(tmp_path / "a.ts", pixels="yuv420p10le"))
    assert {packet.parameters.pixel_format for packet in packets if packet.parameters} == {"yuv420p10le"}
    assert decoded(packets) == _expected()


def test_the_origin_is_the_creation_time_of_the_container_or_0(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", created="2026-01-01T00:00:00Z")
    assert _read(made, None)[0].pts == int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    assert _read(write_video(tmp_path / "b.mp4"), None)[0].pts == 0


def test_audio_is_ignored_and_counted(tmp_path: Path) -> None:
    with ContainerReader(write_video(tmp_path / "a.mp4", audio=True), origin=START) as reader:
        assert decoded(reader.packets()) == _expected()
        assert reader.other_count > 40


def test_another_run_of_times_begins_where_times_jump_back(tmp_path: Path) -> None:
    one, two = write_video(tmp_path / "1.ts"), write_video(tmp_path / "2.ts", first=100)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    with ContainerReader(joined, origin=START) as reader:
        packets = list(reader.packets())
        assert reader.jump_count == 1
    assert decoded(packets) == _expected() + _expected(first=100, at=START + 48 * STEP)


def test_a_change_of_size_is_in_the_parameters_of_the_key_packet(tmp_path: Path) -> None:
    one, two = write_video(tmp_path / "1.ts"), write_video(tmp_path / "2.ts", size=(320, 192), first=100)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    packets = _read(joined)
    sizes = [(packet.parameters.width, packet.parameters.height) for packet in packets if packet.parameters]
    assert sizes == [(160, 96)] * 4 + [(320, 192)] * 4
    assert decoded(packets) == _expected() + _expected(first=100, at=START + 48 * STEP)
    with PacketFile(tmp_path / "out.ts") as out:
        out.write(packets)
    assert decoded(_read(tmp_path / "out.ts")) == decoded(packets)
    refused = pytest.raises(InvalidPipeline, match=r"changes at 2026-01-01T00:00:01\.920Z: before h264 160x96")
    with refused, PacketFile(tmp_path / "out.mp4") as out:
        out.write(packets)


@pytest.mark.parametrize(
    ("name", "muxer"),
    [
        ("a.mp4", {"movflags": "faststart"}),
        ("a.mp4", {"movflags": "frag_keyframe+empty_moov"}),
        ("a.ts", {}),
        ("a.mkv", {}),
        ("a.avi", {}),
    ],
)
def test_what_can_be_read_of_a_truncated_file_is_and_then_an_error_says_where(
    tmp_path: Path, name: str, muxer: dict[str, str]
) -> None:
    whole = write_video(tmp_path / name, 240, muxer=muxer)
    wanted = decoded(_read(whole))
    cut = tmp_path / f"cut-{name}"
    size = whole.stat().st_size * 6 // 10
    cut.write_bytes(whole.read_bytes()[: size + (size % 188 == 0)])
    packets: list[EncodedPacket] = []
    with (
        pytest.raises(Corrupt, match=r"ends early: after \d+ packets, at 2026-01-01T00:00:0") as caught,
        ContainerReader(cut, origin=START) as reader,
    ):
        packets.extend(reader.packets())
    assert str(cut) in str(caught.value)
    shown = decoded(packets)
    assert len(shown) > 50
    assert shown[:-3] == wanted[: len(shown) - 3]


def test_what_is_no_video_is_refused_with_file_reason_and_cure(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match=r"no-such\.mp4 failed"):
        ContainerReader(tmp_path / "no-such.mp4")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(InvalidPipeline, match="is empty"):
        ContainerReader(tmp_path / "empty.mp4")
    (tmp_path / "text.mp4").write_text("hello " * 1000)
    with pytest.raises(Corrupt, match="cannot be read as video"):
        ContainerReader(tmp_path / "text.mp4")
    whole = write_video(tmp_path / "a.mp4")
    (tmp_path / "cut.mp4").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(Corrupt, match="may have its index at the end"):
        ContainerReader(tmp_path / "cut.mp4")


def test_a_file_without_video_and_one_without_packets_are_refused(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "sound.mp4"), "w") as out:
        sound = out.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48000
        out.mux(sound.encode(frame))
        out.mux(sound.encode(None))
    with pytest.raises(InvalidPipeline, match=r"no video in .*sound.mp4"):
        ContainerReader(tmp_path / "sound.mp4")


def test_an_address_that_does_not_answer_can_be_tried_again_and_shows_no_password() -> None:
    with pytest.raises(Unavailable) as caught:
        ContainerReader("rtsp://admin:hunter2@127.0.0.1:1/stream", timeout_s=5)
    assert "rtsp://admin:***@127.0.0.1:1/stream" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["out.mp4", "out.ts", "out.mkv"])
@pytest.mark.parametrize(("source", "codec"), [("a.mp4", "libx264"), ("a.ts", "libx264"), ("a.mp4", "libx265")])
def test_packets_are_the_same_after_they_were_written_and_read_again(
    tmp_path: Path, source: str, codec: str, name: str
) -> None:
    options = HEVC if codec == "libx265" else OPEN_GOPS
    packets = _read(write_video(tmp_path / source, codec=codec, options=options))
    with PacketFile(tmp_path / name) as out:
        out.write(packets)
    again = _read(tmp_path / name)
    assert [(packet.pts, packet.is_key) for packet in again] == [(packet.pts, packet.is_key) for packet in packets]
    assert decoded(again) == _expected()


def test_missing_decoding_times_are_found_for_the_muxer(tmp_path: Path) -> None:
    from dataclasses import replace

    packets = [replace(packet, dts=None) for packet in _read(write_video(tmp_path / "a.mp4"))]
    with PacketFile(tmp_path / "out.mp4") as out:
        out.write(packets)
    assert decoded(_read(tmp_path / "out.mp4")) == _expected()


def test_a_file_begins_with_a_key_packet(tmp_path: Path) -> None:
    packets = _read(write_video(tmp_path / "a.mp4"))
    with pytest.raises(InvalidPipeline, match="no key packet, at 2026"), PacketFile(io.BytesIO(), "mp4") as out:
        out.write(packets[1:])


def test_an_edit_list_begins_a_file_at_an_exact_time(tmp_path: Path) -> None:
    import av

    packets = _read(write_video(tmp_path / "a.mp4", options=CLOSED_GOPS))
    with PacketFile(tmp_path / "out.mp4", start=START + 5 * STEP) as out:
        out.write(packets)
    with av.open(str(tmp_path / "out.mp4")) as again:
        times = [frame.time for frame in again.decode(video=0)]
    assert times == pytest.approx([number * 0.04 for number in range(43)])
