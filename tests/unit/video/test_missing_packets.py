"""A packet that is missing in the middle of a group costs the rest of the group, and no wrong picture is shown."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import av
import pytest

import holdfast as hf
from holdfast.flow import Graph
from holdfast.testing import flow_contract
from holdfast.video import EncodedPacket, message_times
from holdfast.video.payloads import payload_of
from tests.videos import GOP, STREAMS, frame_of, messages_of, packets_of, run


def shown_without(stream: str, messages: Sequence[tuple[int, Any]], missing: range) -> dict[str, list[tuple[int, Any]]]:
    """Return what is decoded without some messages, of which every frame is that of the whole stream."""
    whole = dict(run(hf.video.decode(), messages)["frame"])
    made = run(hf.video.decode(), [each for place, each in enumerate(messages) if place not in missing])
    assert [t for t, frame in made["frame"] if frame != whole[t]] == [], (stream, missing)
    assert len(made["frame"]) + sum(reject["count"] for _, reject in made["rejects"]) == len(messages) - len(missing)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_without_any_one_packet_every_frame_shown_is_right_and_there_is_a_reject(stream: str) -> None:
    messages = messages_of(packets_of(stream, 3 * GOP + 5))
    for place in range(len(messages) - 1):
        made = shown_without(stream, messages, range(place, place + 1))
        assert made["rejects"] or (place == 0 and messages[1][1]["is_key"]), place  # the stream begins later


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_frames_of_other_groups_are_all_shown(stream: str) -> None:
    messages = messages_of(packets_of(stream, 4 * GOP))
    keys = [place for place, (_, payload) in enumerate(messages) if payload["is_key"]]
    if len(keys) == len(messages):  # each frame is a group
        keys = keys[::GOP]
    begin, behind, after = keys[1], keys[2], keys[3]
    times = [packet.pts for packet in packets_of(stream, 4 * GOP)]
    shown = {t for t, _ in shown_without(stream, messages, range(begin + 3, begin + 4))["frame"]}
    lost = set(times) - shown
    assert times[begin + 3] in lost
    assert lost <= set(times[begin + 3 : after])
    assert all(t < times[behind] for t in lost), "behind the next key packet only leading ones may be lost"


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["h264 B-frames", "hevc open", "av1"])
@pytest.mark.parametrize("begin", [GOP, GOP + 1, GOP + 5])
def test_a_hole_of_the_length_of_a_group_is_seen(stream: str, begin: int) -> None:
    """The packet behind it has the number that comes next, in another group."""
    messages = messages_of(packets_of(stream, 4 * GOP))
    made = shown_without(stream, messages, range(begin, begin + GOP))
    assert made["rejects"]


@pytest.mark.slow
def test_a_key_packet_that_is_missing_behind_a_group_of_one_frame_is_seen() -> None:
    frames = [(frame.pts, frame) for frame in map(frame_of, range(6))]
    encode = Graph("encode")
    encode.output("packet", encode.input("frame") | hf.video.encode())
    messages: list[tuple[int, Any]] = []
    for part in (frames[:1], frames[1:]):  # as in two epochs
        messages += encode.run({"frame": part})["packet"]
    made = run(hf.video.decode(), [messages[0], *messages[2:]])
    assert [t for t, _ in made["frame"]] == [frames[0][0]]
    assert made["rejects"][0][1]["reason"] == "packet 1 of a group whose key packet is missing"


@pytest.mark.slow
def test_the_reason_names_the_hole_and_the_rest_of_the_group_is_rejected() -> None:
    messages = messages_of(packets_of("h264 closed", 3 * GOP))
    made = shown_without("h264 closed", messages, range(4, 6))
    first, *others = [reject for _, reject in made["rejects"]]
    assert (first["pts"], first["count"]) == (messages[6][0], 1)
    assert first["reason"] == "packet 6 of the group follows 3: 2 are missing"
    assert {reject["reason"] for reject in others} == {"it follows a damaged or missing packet of its group"}
    assert [reject["pts"] for reject in others] == [t for t, _ in messages[7:GOP]]


@pytest.mark.slow
def test_a_packet_that_is_missing_before_a_key_packet_is_told_at_that_one() -> None:
    messages = messages_of(packets_of("h264 closed", 2 * GOP))
    made = shown_without("h264 closed", messages, range(GOP - 1, GOP))
    ((t, reject),) = made["rejects"]
    assert (t, reject["pts"], reject["count"], reject["data"]) == (messages[GOP][0], messages[GOP][0], 0, b"")
    assert reject["reason"] == f"packet {GOP} of the group follows {GOP - 2}: 1 is missing"


@pytest.mark.slow
def test_a_packet_that_comes_twice_ends_its_group() -> None:
    messages = messages_of(packets_of("h264 closed", 2 * GOP))
    made = run(hf.video.decode(), [*messages[:6], (messages[5][0] + 1, messages[5][1]), *messages[6:]])
    assert [t for t, _ in made["frame"]] == [t for t, _ in [*messages[:6], *messages[GOP:]]]
    assert made["rejects"][0][1]["reason"] == "packet 5 of the group follows 5"


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_a_decoder_is_restored_anywhere_around_holes(stream: str) -> None:
    messages = messages_of(packets_of(stream, 4 * GOP))
    chance = random.Random(6)
    flow_contract(hf.video.decode(), [each for each in messages if chance.random() < 0.93], seeds=3)


@pytest.mark.slow
def test_packets_without_a_place_are_decoded_unchecked() -> None:
    messages = [
        (t, payload_of(replace(EncodedPacket.from_bytes(payload["data"]), place=None)))
        for t, payload in messages_of(packets_of("h264 closed", 2 * GOP))
    ]
    made = run(hf.video.decode(), [*messages[:5], *messages[6:]])
    assert len(made["frame"]) + len(made["rejects"]) == 2 * GOP - 1
    assert {reject["reason"] for _, reject in made["rejects"]} <= {"the decoder gives no frame for it"}


def test_places_are_given_from_the_first_key_packet_on_and_kept() -> None:
    packets = [EncodedPacket(b"x", pts, is_key=pts in (20, 50)) for pts in range(10, 80, 10)]
    placed = [packet for _, packet in message_times(packets)]
    assert [packet.place for packet in placed] == [None, None, (20, 1), (20, 2), (20, 3), (50, 1), (50, 2)]
    lacking = [*placed[:3], *placed[4:]]
    assert [packet for _, packet in message_times(lacking)] == lacking


def frames_in(data: bytes, container: str, first: int) -> dict[int, bytes]:
    """Return what FFmpeg shows of a file, by time in milliseconds; its first packet has that time."""
    with av.open(io.BytesIO(data), format=container) as opened:
        (video,) = opened.streams.video
        found = [(float(frame.time), frame.to_ndarray().tobytes()) for frame in opened.decode(video)]
        begin = float(video.start_time * video.time_base)
    return {first // 10**6 + round((t - begin) * 1000): picture for t, picture in found}


@pytest.mark.slow
@pytest.mark.parametrize("container", ["mpegts", "mp4"])
@pytest.mark.parametrize("stream", ["h264 B-frames", "h264 open", "hevc open"])
def test_what_a_player_shows_of_a_muxed_group_with_a_hole_is_right(stream: str, container: str) -> None:
    messages = messages_of(packets_of(stream, 4 * GOP))
    whole = {t // 10**6: f.to_array("yuv420p").tobytes() for t, f in run(hf.video.decode(), messages)["frame"]}
    keys = [place for place, (_, payload) in enumerate(messages) if payload["is_key"]]
    for place in range(keys[1], keys[2] + 1):
        lacking = [*messages[:place], *messages[place + 1 :]]
        data = b"".join(each["data"] for _, each in run(hf.video.mux(container), lacking)["message"])
        shown = frames_in(data, container, messages[0][0])
        assert [t for t, found in shown.items() if whole.get(t) != found] == [], place
        if place not in keys:  # FFmpeg waits for one more where the group before an open one is missing
            assert set(run_times(lacking)) <= set(shown)


def run_times(messages: Sequence[tuple[int, Any]]) -> list[int]:
    return [t // 10**6 for t, _ in run(hf.video.decode(), messages)["frame"]]


@pytest.mark.slow
@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_a_muxer_is_restored_anywhere_around_holes(container: str) -> None:
    messages = messages_of(packets_of("h264 open", 4 * GOP))
    chance = random.Random(6)
    flow_contract(hf.video.mux(container), [each for each in messages if chance.random() < 0.93], seeds=3)
