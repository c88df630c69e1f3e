"""An encoded packet as bytes, and the time that a stream of them is ordered and searched by.

The payload of a row, and of a message in a byte stream, is a packet with all that a decoder needs: a key packet has the
parameters of its codec.  The form is documented to the byte in docs/formats/video-packet.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

MAGIC = b"HFVP"
VERSION = 1
_HEAD = struct.Struct("<4sBBHqqqII")
"""Magic, version, flags, two bytes of zero, pts, dts, duration, bytes of the parameters, bytes of the extradata."""

_IS_KEY = 1
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
    """

    data: bytes
    pts: int
    dts: int | None = None
    duration: int = 0
    is_key: bool = False
    parameters: CodecParameters | None = None

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
        flags = _IS_KEY if self.is_key else 0
        sizes = (len(described), len(extradata))
        head = _HEAD.pack(MAGIC, VERSION, flags, 0, self.pts, dts, self.duration, *sizes)
        return b"".join((head, described, extradata, self.data))

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
        start, end = _HEAD.size + described, _HEAD.size + described + extra
        if end > len(payload):
            raise UnreadablePacket(f"an encoded packet that ends early: {len(payload)} bytes, of at least {end}")
        parameters = _parameters(payload[_HEAD.size : start], payload[start:end]) if described else None
        is_key = bool(flags & _IS_KEY)
        return cls(payload[end:], pts, None if dts == NO_DTS else dts, duration, is_key, parameters)


def _parameters(described: bytes, extradata: bytes) -> CodecParameters:
    try:
        return CodecParameters(**json.loads(described), extradata=extradata)
    except (ValueError, TypeError) as error:
        raise UnreadablePacket(f"an encoded packet whose codec parameters cannot be read: {error}") from None


def message_times(packets: Iterable[EncodedPacket], after: int | None = None) -> Iterator[tuple[int, EncodedPacket]]:
    """Give packets, in the order of decoding, the times by which a stream of them is ordered and searched.

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
    last = after
    for packet in packets:
        last = packet.pts if last is None or packet.pts > last else last + 1
        yield last, packet
