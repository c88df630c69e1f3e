"""``hf.video.mux`` and ``demux``: messages that are a file from any key message on, whatever was restored."""

from __future__ import annotations

import io
from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import pytest

import holdfast as hf
from holdfast.testing import flow_contract
from holdfast.video import EncodedPacket
from holdfast.video.transport import TransportWriter
from tests.videos import BEGIN, FRAME, GOP, messages_of, packets_of, run

pytestmark = pytest.mark.slow

STREAMS = ["h264 closed", "h264 open", "hevc closed", "hevc open"]


def decoded(data: bytes, container: str) -> list[bytes]:
    with av.open(io.BytesIO(data), format=container) as opened:
        return [frame.to_ndarray().tobytes() for frame in opened.decode(video=0)]


def frames_of(stream: str) -> list[bytes]:
    frames = run(hf.video.decode(), messages_of(packets_of(stream)))["frame"]
    return [frame.to_array("yuv420p").tobytes() for _, frame in frames]


def muxed(stream: str, container: str) -> list[tuple[int, Any]]:
    return run(hf.video.mux(container), messages_of(packets_of(stream)))["message"]


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
@pytest.mark.parametrize("stream", STREAMS)
def test_the_messages_from_a_key_message_on_are_a_file(stream: str, container: str) -> None:
    messages = muxed(stream, container)
    whole = frames_of(stream)
    assert decoded(b"".join(payload["data"] for _, payload in messages), container) == whole
    keys = [place for place, (_, payload) in enumerate(messages) if payload["is_key"]]
    assert [messages[key][0] for key in keys] == [t for t, p in messages_of(packets_of(stream)) if p["is_key"]]
    for key in keys[1:]:
        number = (messages[key][0] - BEGIN) // FRAME
        rest = decoded(b"".join(payload["data"] for _, payload in messages[key:]), container)
        assert rest[-len(whole[number:]) :] == whole[number:]


@pytest.mark.parametrize("place", [GOP // 2, GOP])
@pytest.mark.parametrize("seconds", [3, 7200])
def test_a_gap_keeps_the_times_of_concatenated_fragments(place: int, seconds: int) -> None:
    packets = list(packets_of("h264 closed", 3 * GOP))
    for number in range(place, len(packets)):
        packet = packets[number]
        dts = None if packet.dts is None else packet.dts + seconds * 10**9
        packets[number] = replace(packet, pts=packet.pts + seconds * 10**9, dts=dts)
    messages = run(hf.video.mux("mp4"), messages_of(packets))["message"]
    data = b"".join(payload["data"] for _, payload in messages)
    with av.open(io.BytesIO(data), format="mp4") as opened:
        (video,) = opened.streams.video
        assert video.time_base == Fraction(1, 10**6)
        assert [each.pts for each in opened.demux(video) if each.size] == [each.pts // 1000 for each in packets]
    made = run(hf.video.demux("mp4"), messages)["packet"]
    assert [EncodedPacket.from_bytes(payload["data"]).pts for _, payload in made] == [each.pts for each in packets]


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
@pytest.mark.parametrize("stream", ["h264 open", "hevc closed"])
def test_a_muxer_is_restored_anywhere(stream: str, container: str) -> None:
    flow_contract(hf.video.mux(container), messages_of(packets_of(stream, 3 * GOP)), seeds=3)


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
@pytest.mark.parametrize("stream", STREAMS)
def test_what_was_muxed_is_demuxed(stream: str, container: str) -> None:
    messages = muxed(stream, container)
    made = run(hf.video.demux(container), messages)
    assert made["rejects"] == []
    packets = [EncodedPacket.from_bytes(payload["data"]) for _, payload in made["packet"]]
    original = packets_of(stream)
    assert [p.is_key for p in packets] == [p.is_key for p in original]
    slack = 0 if container == "mp4" else 12_000
    assert all(abs(p.pts - o.pts) <= slack for p, o in zip(packets, original, strict=True))
    frames = run(hf.video.decode(), made["packet"])
    assert frames["rejects"] == []
    assert [frame.to_array("yuv420p").tobytes() for _, frame in frames["frame"]] == frames_of(stream)


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_a_demuxer_is_restored_anywhere(container: str) -> None:
    flow_contract(hf.video.demux(container), muxed("h264 open", container), seeds=3)


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_packets_of_mp4_are_put_into_both(container: str) -> None:
    """Their units stand behind lengths, and their parameter sets in the header alone."""
    made = run(hf.video.demux("mp4"), muxed("h264 closed", "mp4"))["packet"]
    assert EncodedPacket.from_bytes(made[0][1]["data"]).parameters.extradata[:1] == b"\x01"
    data = b"".join(payload["data"] for _, payload in run(hf.video.mux(container), made)["message"])
    assert decoded(data, container) == frames_of("h264 closed")


def test_counters_of_the_transport_stream_go_on() -> None:
    data = b"".join(payload["data"] for _, payload in muxed("h264 closed", "mpegts"))
    counters: dict[int, int] = {}
    for place in range(0, len(data), 188):
        head = data[place : place + 188]
        stream = (head[1] & 31) << 8 | head[2]
        assert head[0] == 0x47
        assert len(head) == 188
        assert head[3] & 15 == counters.get(stream, 0)
        counters[stream] = (head[3] + 1) & 15
    assert set(counters) == {0, 0x1000, 0x100}


@pytest.mark.parametrize("size", range(1, 400))
def test_a_packet_of_any_size_fills_packets_of_188_bytes(size: int) -> None:
    made = TransportWriter({}).packet(bytes(size), EncodedPacket(b"", BEGIN, BEGIN, 0, True))
    assert len(made) % 188 == 0
    assert all(made[place] == 0x47 for place in range(0, len(made), 188))
    payload = b""
    for place in range(0, len(made), 188):
        one = made[place : place + 188]
        payload += one[4 + (1 + one[4] if one[3] & 0x20 else 0) :]
    assert payload[-size:] == bytes(size)
    assert payload[:4] == b"\0\0\1\xe0"
    assert len(payload) == 14 + size


def test_what_a_container_does_not_carry_is_refused() -> None:
    with pytest.raises(hf.InvalidPipeline, match="MPEG-TS has no mjpeg"):
        run(hf.video.mux("mpegts"), messages_of(packets_of("mjpeg")[:2]))
    with pytest.raises(hf.InvalidPipeline, match="container='avi'"):
        hf.video.mux("avi")


def test_damaged_messages_are_rejected_and_the_next_group_goes_on() -> None:
    messages = muxed("h264 closed", "mpegts")
    second = range(BEGIN + GOP * FRAME, BEGIN + 2 * GOP * FRAME)
    damaged = [(t, {**payload, "data": b"\0" * 500} if t in second else payload) for t, payload in messages]
    made = run(hf.video.demux("mpegts"), [(BEGIN - 5, {"is_key": False, "data": b"x"}), *damaged])
    assert [reject["reason"][:30] for _, reject in made["rejects"]] == [
        "no key message came before it",
        "these bytes are no mpegts: [Er",
    ]
    assert [t for t, _ in made["packet"]] == [t for t, _ in messages if t not in second]


def test_packets_before_a_key_packet_are_left_out() -> None:
    for container in ("mpegts", "mp4"):
        messages = messages_of(packets_of("h264 closed"))[3 : GOP + 4]
        assert len(run(hf.video.mux(container), messages)["message"]) == (4 if container == "mpegts" else 1)
