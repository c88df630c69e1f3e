"""An encoded packet as bytes, and the time that a stream of them is ordered and searched by.

The payload of a row, and of a message in a byte stream, is a packet with all that a decoder needs: a key packet has the
parameters of its codec.  The form is documented to the byte in docs/formats/video-packet.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

MAGIC = b"HFVP"
VERSION = 1
_HEAD = struct.Struct("<4sBBHqqqII")
"""Magic, version, flags, two bytes of zero, pts, dts, duration, bytes of the parameters, bytes of the extradata."""

_PLACE = struct.Struct("<qI")
"""Behind the head, where a flag says so: pts of the key packet before, and the number behind it."""

_IS_KEY, _HAS_PLACE = 1, 2
NO_DTS = -(2**63)
"""What stands for a decoding time that is not known."""


class UnreadablePacket(ValueError):
    """Bytes that are no encoded packet; the text says why."""


@dataclass(frozen=True)
class CodecParameters:
    """What a decoder must know before its first packet.

    Parameters
    ----------
    codec : str
        FFmpeg's name of the codec: ``"h264"``, ``"hevc"``, ``"av1"``, ``"mjpeg"``.
    width, height : int
        Pixels.
    pixel_format : str
        FFmpeg's name of the layout of pixels: ``"yuv420p"``; empty where only the decoder knows.
    extradata : bytes
        The codec's own header (for H.264 in MP4 the ``avcC`` record); empty where packets carry it themselves.
    """

    codec: str
    width: int = 0
    height: int = 0
    pixel_format: str = ""
    extradata: bytes = b""


class GroupPlace(NamedTuple):
    """Where a packet stands: by it a reader sees that the one before is missing.

    Parameters
    ----------
    key_pts : int
        pts of the last key packet before it, nanoseconds of Unix time.
    number : int
        How many packets behind that one it is, from 1.
    """

    key_pts: int
    number: int


@dataclass(frozen=True)
class EncodedPacket:
    """A packet of an encoded video stream.

    Parameters
    ----------
    data : bytes
        As the codec made it.
    pts : int
        When its frame is shown: nanoseconds of Unix time.
    dts : int or None
        When it is decoded: nanoseconds, on the same clock.  Packets of a stream stand in this order.
    duration : int
        Nanoseconds; 0 where it is not known.
    is_key : bool
        Whether a decoder can begin here.  What is shown before this packet and stands behind it (of an *open* group of
        pictures) cannot be decoded then.
    parameters : CodecParameters, optional
        Of a key packet.
    place : GroupPlace, optional
        Which packet it is after the last key packet before it, in the order of decoding; None: that is not known, and
        nobody checks it.  A key packet has one too, and so says how many packets the group before it had.
    """

    data: bytes
    pts: int
    dts: int | None = None
    duration: int = 0
    is_key: bool = False
    parameters: CodecParameters | None = None
    place: GroupPlace | None = None

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the packet that follows it; None where its own is not known."""
        if self.is_key:
            return GroupPlace(self.pts, 1)
        return None if self.place is None else GroupPlace(self.place.key_pts, self.place.number + 1)

    def with_place(self, place: GroupPlace | None) -> EncodedPacket:
        """Return it with a place, or itself where it has one, or none is known."""
        return self if self.place is not None or place is None else replace(self, place=place)

    @property
    def decoding_time(self) -> int:
        """When it is decoded: its dts, and its pts where that is not known."""
        return self.pts if self.dts is None else self.dts

    def to_bytes(self) -> bytes:
        """Return the packet as the payload of a row or message."""
        described, extradata = b"", b""
        if self.parameters is not None:
            fields = asdict(self.parameters)
            extradata = fields.pop("extradata")
            described = json.dumps(fields, separators=(",", ":")).encode()
        dts = NO_DTS if self.dts is None else self.dts
        flags = (_IS_KEY if self.is_key else 0) | (0 if self.place is None else _HAS_PLACE)
        place = b"" if self.place is None else _PLACE.pack(*self.place)
        sizes = (len(described), len(extradata))
        head = _HEAD.pack(MAGIC, VERSION, flags, 0, self.pts, dts, self.duration, *sizes)
        return b"".join((head, place, described, extradata, self.data))

    @classmethod
    def from_bytes(cls, payload: bytes) -> EncodedPacket:
        """Return the packet of a payload.

        Raises
        ------
        UnreadablePacket
            If it is none, or of a later version.
        """
        if len(payload) < _HEAD.size or payload[:4] != MAGIC:
            raise UnreadablePacket(f"{len(payload)} bytes that do not begin with the head of an encoded packet")
        _, version, flags, _, pts, dts, duration, described, extra = _HEAD.unpack_from(payload)
        if version != VERSION:
            raise UnreadablePacket(f"an encoded packet of version {version}; this Holdfast reads version {VERSION}")
        begin = _HEAD.size + (_PLACE.size if flags & _HAS_PLACE else 0)
        start, end = begin + described, begin + described + extra
        if end > len(payload):
            raise UnreadablePacket(f"an encoded packet that ends early: {len(payload)} bytes, of at least {end}")
        parameters = _parameters(payload[begin:start], payload[start:end]) if described else None
        place = GroupPlace(*_PLACE.unpack_from(payload, _HEAD.size)) if flags & _HAS_PLACE else None
        is_key = bool(flags & _IS_KEY)
        return cls(payload[end:], pts, None if dts == NO_DTS else dts, duration, is_key, parameters, place)


def _parameters(described: bytes, extradata: bytes) -> CodecParameters:
    try:
        return CodecParameters(**json.loads(described), extradata=extradata)
    except (ValueError, TypeError) as error:
        raise UnreadablePacket(f"an encoded packet whose codec parameters cannot be read: {error}") from None


def message_times(packets: Iterable[EncodedPacket], after: int | None = None) -> Iterator[tuple[int, EncodedPacket]]:
    """Give packets, in the order of decoding, the times by which a stream of them is ordered and searched.

    They get their places, too, where they have none and the key packet is known.

    The time is the highest pts so far, and one more than the last time where that is not higher.  So times ascend, in
    the order in which a decoder needs the packets; a key packet has its own pts; and a search for the last key packet
    at or before a time ``T`` finds one from which every frame at or after ``T`` is decoded: what stands before that
    packet is shown before it.  That holds for open groups of pictures, too.

    Parameters
    ----------
    packets : iterable of EncodedPacket
        Of one stream, in the order of decoding.
    after : int, optional
        The last time of the stream so far.

    Yields
    ------
    int, EncodedPacket
        Nanoseconds of Unix time, and the packet.
    """
    last, place = after, None
    for packet in packets:
        last = packet.pts if last is None or packet.pts > last else last + 1
        packet = packet.with_place(place)
        place = packet.next_place
        yield last, packet
