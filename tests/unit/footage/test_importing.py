"""Files into streams, each packet once; what is refused says file, time and cure (issue 39)."""

from pathlib import Path

import pytest

pytest.importorskip("av")

from holdfast.connectors.byte_stream.branch import branches
from holdfast.errors import Corrupt, Fenced, InvalidPipeline
from holdfast.footage.importing import END, VideoImport
from holdfast.video.containers import ContainerReader
from holdfast.video.packets import EncodedPacket, message_times
from tests.unit.video.made_videos import decoded, write_video

pytestmark = pytest.mark.slow

START = 1_767_225_600 * 10**9
STEP = 40_000_000


def _messages(store: Path, stream: str = "cam1") -> list[tuple[int, bool, bytes]]:
    (view,) = [each.view().streams[stream] for each in branches(str(store)).values()]
    return [
        (at, is_key, bytes(payload))
        for chunk in view.read(0, view.end)
        for at, is_key, payload in zip(chunk.timestamps, chunk.keys, chunk.payloads, strict=True)
    ]


def _packets(path: Path, origin: int = START) -> list[tuple[int, bool, bytes]]:
    with ContainerReader(path, origin=origin) as reader:
        return [(at, packet.is_key, packet.to_bytes()) for at, packet in message_times(reader.packets())]


def _add(store: Path, *files: Path, start: int | str | None = START) -> list[int]:
    with VideoImport(str(store), "cam1", batch_bytes=2000) as importing:
        return [importing.add(str(file), start).packet_count for file in files]


def _pictures(store: Path) -> list[tuple[int, int]]:
    return decoded(EncodedPacket.from_bytes(data) for _, _, data in _messages(store))


def test_a_file_becomes_a_stream_of_packets_with_their_times(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4")
    assert _add(tmp_path / "store", made) == [48]
    assert _messages(tmp_path / "store") == _packets(made)


def test_a_file_is_imported_once_and_the_next_one_follows_it(tmp_path: Path) -> None:
    one, two = write_video(tmp_path / "1.mp4"), write_video(tmp_path / "2.ts", first=48)
    store = tmp_path / "store"
    assert _add(store, one) == [48]
    assert _add(store, one, two, start=None) == [48, 48]
    assert _add(store, one, two, start=None) == [48, 48]
    assert _pictures(store) == [(START + STEP * number, number) for number in range(96)]


def test_a_file_that_has_grown_goes_on_where_it_ended(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.ts", 240, size=(640, 480))
    whole, wanted, store = made.read_bytes(), _packets(made), tmp_path / "store"
    made.write_bytes(whole[: 188 * (len(whole) // 188 * 6 // 10)])
    _add(store, made)
    assert 0 < len(_messages(store)) < 240
    made.write_bytes(whole)
    assert _add(store, made, start=None) == [240]
    # The last packet of the shorter file was cut: MPEG-TS does not tell.
    found = _messages(store)
    assert [row[:2] for row in found] == [row[:2] for row in wanted]


def test_what_a_truncated_file_has_is_kept_and_the_whole_one_completes_it(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", 240, size=(640, 480), muxer={"movflags": "faststart"})
    whole, store = made.read_bytes(), tmp_path / "store"
    assert len(whole) > 70_000
    made.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(Corrupt, match=r"a\.mp4 ends early: after \d+ packets, at 2026-01-01T00:00:0"):
        _add(store, made)
    count = len(_messages(store))
    assert 0 < count < 240
    made.write_bytes(whole)
    assert _add(store, made, start=None) == [240]
    assert _messages(store) == _packets(made)


def test_a_file_that_begins_before_the_end_of_the_stream_is_refused(tmp_path: Path) -> None:
    one, two, store = write_video(tmp_path / "1.mp4"), write_video(tmp_path / "2.mp4", 24), tmp_path / "store"
    _add(store, one)
    with pytest.raises(InvalidPipeline, match=r"goes on at 2026-01-01T00:00:01Z, and stream 'cam1' reaches .*01\.88"):
        _add(store, two, start=START + 10**9)
    assert _add(store, two, start=END) == [24]
    assert len(_messages(store)) == 72


def test_codec_parameters_of_another_video_are_refused(tmp_path: Path) -> None:
    """The head of the file announces HEVC, and its packets are none."""
    one = write_video(tmp_path / "a.mp4", muxer={"movflags": "faststart"})
    other = write_video(tmp_path / "b.mp4", codec="libx265", options={"x265-params": "log-level=none"})
    with ContainerReader(other) as reader:
        head = next(reader.packets()).parameters
    from holdfast.video.remuxing import PacketFile

    with ContainerReader(one) as reader, PacketFile(tmp_path / "wrong.mp4") as out:
        for packet in reader.packets():
            if packet.parameters is not None:
                packet = EncodedPacket(packet.data, packet.pts, packet.dts, packet.duration, True, head)
            out.write([packet])
    with pytest.raises(Corrupt, match=r"wrong\.mp4 cannot be decoded: none of its first 3 key packets"):
        _add(tmp_path / "store", tmp_path / "wrong.mp4")


def test_the_origin_of_a_file_is_its_creation_time_and_parts_of_a_recording_follow_each_other(tmp_path: Path) -> None:
    one = write_video(tmp_path / "1.mp4", 37, created="2026-01-01T00:00:00Z")
    two = write_video(tmp_path / "2.mp4", 24, created="2026-01-01T00:00:01Z", first=37)
    three = write_video(tmp_path / "3.mp4", 24, created="2026-01-01T00:01:00Z", first=61)
    _add(tmp_path / "store", one, two, three, start=None)
    expected = [START + STEP * number for number in range(61)]
    expected += [START + 60 * 10**9 + STEP * number for number in range(24)]
    assert [at for at, _ in _pictures(tmp_path / "store")] == expected


def test_two_imports_into_one_stream_the_later_one_fences_the_earlier(tmp_path: Path) -> None:
    made, store = write_video(tmp_path / "a.mp4"), tmp_path / "store"
    with VideoImport(str(store), "cam1") as one, VideoImport(str(store), "cam1") as two:
        with pytest.raises(Fenced):
            one.add(str(made), START)
        two.add(str(made), START)
    assert _messages(store) == _packets(made)


def test_a_file_without_packets_is_refused_and_nothing_of_it_noted(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="there is no file"):
        _add(tmp_path / "store", tmp_path / "none.mp4")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(InvalidPipeline, match="is empty"):
        _add(tmp_path / "store", tmp_path / "empty.mp4")
    assert _add(tmp_path / "store", write_video(tmp_path / "a.mp4")) == [48]
