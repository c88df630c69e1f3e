"""Encoded packets as payloads of a flowgraph: mappings with the columns ``is_key`` and ``data`` of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from holdfast.flow.timestamps import MAX, MIN
from holdfast.video.packets import EncodedPacket, UnreadablePacket


class Message(TypedDict):
    """What leaves: a row of encoded video, without the columns of key and time."""

    is_key: bool
    data: bytes


def payload_of(packet: EncodedPacket) -> Message:
    """Return a packet as the payload of a graph."""
    return {"is_key": packet.is_key, "data": packet.to_bytes()}


def message_of(payload: Any) -> tuple[bool, bytes]:
    """Return whether a payload is marked as a key, and its bytes.

    Raises
    ------
    UnreadablePacket
        If it is no mapping with these.
    """
    if not isinstance(payload, Mapping):
        raise UnreadablePacket(f"a {type(payload).__name__}, not a row with the columns is_key and data")
    data = payload.get("data")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UnreadablePacket(f"a row whose column data is {type(data).__name__}, not bytes")
    return bool(payload.get("is_key")), bytes(data)


def packet_of(payload: Any, t: int = MAX) -> EncodedPacket:
    """Return the packet of a payload.

    Parameters
    ----------
    payload : mapping
        A row.
    t : int
        Its time.  By :func:`message_times` no packet's is above it; a single one that was would let all frames of
        later packets come too late.

    Raises
    ------
    UnreadablePacket
        If it is none, or empty, or its time cannot be one of a graph.
    """
    _, data = message_of(payload)
    packet = EncodedPacket.from_bytes(data)
    if not packet.data:  # what FFmpeg takes for the end of the stream
        raise UnreadablePacket("a packet without data")
    if not MIN <= packet.pts <= min(t, MAX - 1):
        raise UnreadablePacket(f"a packet whose pts, {packet.pts}, is not at or below the time of its row")
    return packet
