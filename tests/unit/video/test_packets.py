"""Encoded packets as bytes, and the times of their messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.video import CodecParameters, EncodedPacket, message_times
from holdfast.video.packets import GroupPlace, UnreadablePacket

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
PARAMETERS = st.builds(
    CodecParameters,
    st.sampled_from(["h264", "hevc"]),
    st.integers(0, 9999),
    st.integers(0, 9999),
    st.just("yuv420p"),
    st.binary(max_size=20),
)
PACKETS = st.builds(
    EncodedPacket,
    st.binary(max_size=50),
    INT64,
    st.none() | INT64,
    st.integers(0, 2**60),
    st.booleans(),
    st.none() | PARAMETERS,
    st.none() | st.builds(GroupPlace, INT64, st.integers(1, 2**32 - 1)),
)


@given(PACKETS)
def test_a_packet_is_read_as_it_was_written(packet: EncodedPacket) -> None:
    assert EncodedPacket.from_bytes(packet.to_bytes()) == packet


@given(PACKETS, st.integers(0, 60))
def test_the_beginning_of_a_packet_is_another_packet_or_none(packet: EncodedPacket, size: int) -> None:
    payload = packet.to_bytes()[:size]
    try:
        read = EncodedPacket.from_bytes(payload)
    except UnreadablePacket:
        return
    assert packet.data.startswith(read.data)


@pytest.mark.parametrize("payload", [b"", b"HFV", b"x" * 100, b"HFVP\x02" + bytes(60), b"HFVP\x01" + b"\xff" * 60])
def test_other_bytes_are_no_packet(payload: bytes) -> None:
    with pytest.raises(UnreadablePacket):
        EncodedPacket.from_bytes(payload)


def test_times_ascend_in_the_order_of_decoding_and_a_key_packet_has_its_own() -> None:
    packets = [EncodedPacket(b"", pts, is_key=key) for pts, key in ((0, True), (90, False), (30, False), (60, False),
               (180, True), (120, False), (150, False), (210, False))]  # fmt: skip
    assert [t for t, _ in message_times(packets)] == [0, 90, 91, 92, 180, 181, 182, 210]
    assert [t for t, _ in message_times(packets[:2], after=100)] == [101, 102]
