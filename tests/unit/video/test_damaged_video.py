"""Bad input (issue 39, acceptance 5): each packet gives its frame, or is rejected with time, reason and cure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import flow_contract
from holdfast.video import CodecParameters, EncodedPacket, message_times
from holdfast.video.payloads import Message
from tests.videos import BEGIN, FRAME, GOP, STREAMS, messages_of, packets_of, run

Messages = list[tuple[int, Any]]
CASES = ["h264 closed", "h264 B-frames", "h264 open", "hevc open", "mjpeg", "av1"]


def accounted(messages: Sequence[tuple[int, Any]]) -> dict[str, list[tuple[int, Any]]]:
    """Return what a decoder makes of messages, all of which are frames or rejects."""
    made = run(hf.video.decode(), messages)
    assert len(made["frame"]) + sum(reject["count"] for _, reject in made["rejects"]) == len(messages)
    for _, reject in made["rejects"]:
        assert isinstance(reject["pts"], int)
        assert reject["reason"]
        assert reject["cure"]
    return made


def replaced(messages: Sequence[tuple[int, Any]], place: int, data: Any) -> Messages:
    made = list(messages)
    made[place] = (made[place][0], {**made[place][1], "data": data})
    return made


def flipped(chance: random.Random, payload: Message) -> Any:
    data = bytearray(payload["data"])
    for _ in range(chance.randrange(1, 9)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return {**payload, "data": bytes(data)}


DAMAGES: list[Callable[[random.Random, Any], Any]] = [
    flipped,
    lambda chance, payload: {**payload, "data": payload["data"][: chance.randrange(len(payload["data"]))]},
    lambda chance, payload: {**payload, "data": payload["data"] + chance.randbytes(300)},
    lambda chance, payload: {**payload, "data": payload["data"][:60] + chance.randbytes(chance.randrange(2000))},
    lambda chance, payload: {**payload, "data": chance.randbytes(chance.randrange(100))},
    lambda chance, payload: {**payload, "data": None},
    lambda chance, payload: {**payload, "is_key": not payload["is_key"]},
    lambda chance, payload: None,
    lambda chance, payload: {"is_key": payload["is_key"], "data": with_fields(payload, pts=chance.randrange(2**62))},
    lambda chance, payload: {"is_key": payload["is_key"], "data": with_fields(payload, data=b"")},
]


def with_fields(payload: Message, **fields: Any) -> bytes:
    return replace(EncodedPacket.from_bytes(payload["data"]), **fields).to_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("stream", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_random_damage_raises_nothing_and_loses_no_packet(stream: str, seed: int) -> None:
    chance = random.Random(seed)
    messages = messages_of(packets_of(stream, 300))
    damaged = [
        (t, chance.choice(DAMAGES)(chance, payload) if place < 250 and chance.random() < 0.1 else payload)
        for place, (t, payload) in enumerate(messages)
    ]
    made = accounted(damaged)
    whole = dict(run(hf.video.decode(), messages)["frame"])
    begin = BEGIN + (252 + GOP - 1) // GOP * GOP * FRAME  # a key packet, and all behind it is whole
    assert [packet for packet in made["frame"] if begin + GOP * FRAME <= packet[0] < BEGIN + 300 * FRAME] == [
        (t, frame) for t, frame in whole.items() if t >= begin + GOP * FRAME
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stream", CASES)
def test_a_decoder_of_damaged_packets_is_restored_anywhere(stream: str) -> None:
    chance = random.Random(4)
    messages = [
        (t, chance.choice(DAMAGES)(chance, payload) if chance.random() < 0.1 else payload)
        for t, payload in messages_of(packets_of(stream, 4 * GOP))
    ]
    flow_contract(hf.video.decode(), messages, seeds=3)


@pytest.mark.slow
def test_a_damaged_packet_ends_its_group_and_the_next_key_packet_goes_on() -> None:
    messages = messages_of(packets_of("h264 closed"))
    place = GOP + 4
    packet = packets_of("h264 closed")[place]
    half = replace(packet, data=packet.data[: len(packet.data) // 2])
    made = accounted(replaced(messages, place, half.to_bytes()))
    assert [t for t, _ in made["frame"]] == [t for t, _ in [*messages[:place], *messages[2 * GOP :]]]
    first, *others = made["rejects"]
    assert first[0] == first[1]["pts"] == packet.pts
    assert first[1]["data"] == half.data
    assert [t for t, _ in others] == [t for t, _ in messages[place + 1 : 2 * GOP]]
    assert {reject["reason"] for _, reject in others} == {"it follows a damaged or missing packet of its group"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (None, "a key packet without the parameters of its codec"),
        (CodecParameters("theora"), "the codec 'theora' is none of h264, hevc, mjpeg, av1"),
        (CodecParameters("hevc", 160, 96), ""),
        (CodecParameters("av1", 160, 96), ""),
        (CodecParameters("mjpeg", 160, 96), ""),
        (CodecParameters("h264", 160, 96, "yuv420p", b"\x01garbage"), ""),
    ],
)
def test_wrong_parameters_reject_the_group(parameters: CodecParameters | None, reason: str) -> None:
    packets = list(packets_of("h264 closed"))
    packets[GOP] = replace(packets[GOP], parameters=parameters)
    made = accounted(messages_of(packets))
    first, second = BEGIN + GOP * FRAME, BEGIN + 2 * GOP * FRAME
    assert [t for t, _ in made["frame"] if not first <= t < second] == [
        p.pts for p in packets if not first <= p.pts < second
    ]
    assert not [t for t, _ in made["frame"] if first <= t < second]
    assert reason in made["rejects"][0][1]["reason"]


@pytest.mark.slow
def test_a_key_packet_with_other_parameters_changes_the_size() -> None:
    small, large = packets_of("h264 closed", 2 * GOP), packets_of("hevc open", 4 * GOP, width=256, height=128)
    packets = [*small, *large[2 * GOP :]]
    while not packets[2 * GOP].is_key:
        del packets[2 * GOP]
    made = run(hf.video.decode(), messages_of(packets))
    sizes = [(frame.width, frame.height) for _, frame in made["frame"]]
    assert sizes == [(160, 96)] * (2 * GOP) + [(256, 128)] * (len(sizes) - 2 * GOP)
    assert len(sizes) >= 3 * GOP


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["h264 closed", "hevc closed"])
def test_pictures_of_ten_bits_are_decoded(stream: str) -> None:
    made = accounted(messages_of(packets_of(stream, GOP, "yuv420p10le")))
    assert {frame.pixel_format for _, frame in made["frame"]} == {"yuv420p10le"}
    assert len(made["frame"]) == GOP


@pytest.mark.slow
def test_frames_whose_times_jump_back_are_rejected_until_times_ascend_again() -> None:
    packets = list(packets_of("h264 B-frames"))
    packets[2 * GOP : 3 * GOP] = [
        replace(each, pts=each.pts - 3 * GOP * FRAME, dts=each.dts - 3 * GOP * FRAME)
        for each in packets[2 * GOP : 3 * GOP]
    ]
    made = accounted(list(message_messages(packets)))
    assert [t for t, _ in made["frame"]] == sorted(
        p.pts for place, p in enumerate(packets) if not 2 * GOP <= place < 3 * GOP
    )
    assert "its time is not above that of a frame before it" in made["rejects"][0][1]["reason"]


def message_messages(packets: Sequence[EncodedPacket]) -> Messages:
    return [(t, {"is_key": packet.is_key, "data": packet.to_bytes()}) for t, packet in message_times(packets)]


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["h264 open", "hevc open"])
def test_leading_packets_without_the_group_before_are_rejected_or_clipped(stream: str) -> None:
    packets = packets_of(stream)
    place = [place for place, packet in enumerate(packets) if packet.is_key][2]
    key, messages = packets[place], messages_of(packets)[place:]
    made = accounted(messages)
    leading = [packet.pts for packet in packets[place:] if packet.pts < key.pts]
    assert leading
    assert sum(reject["count"] for _, reject in made["rejects"]) == len(leading)
    assert {reject["reason"] for _, reject in made["rejects"]} == {
        "it refers to the group before its key packet, which cannot be decoded"
    }
    assert run(hf.video.decode(start=key.pts), messages)["rejects"] == []


@pytest.mark.slow
def test_packets_without_decoding_times_are_decoded_too() -> None:
    for stream in STREAMS:
        packets = [replace(packet, dts=None) for packet in packets_of(stream)]
        made = accounted(messages_of(packets))
        assert [t for t, _ in made["frame"]] == sorted(packet.pts for packet in packets)


def test_a_stream_without_packets_has_no_frames() -> None:
    assert run(hf.video.decode(), []) == {"frame": [], "rejects": []}


@pytest.mark.slow
def test_packets_before_the_first_key_packet_are_rejected() -> None:
    made = accounted(messages_of(packets_of("h264 closed"))[5:])
    assert [reject["reason"] for _, reject in made["rejects"]] == ["no key packet came before it"] * (GOP - 5)
