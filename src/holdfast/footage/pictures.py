"""Pictures of a stream: decoded from the key packet before a time, and those before the time left out."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.footage.streams import AFTER_END, VideoStream
from holdfast.store import durable
from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters, EncodedPacket
from holdfast.video.parameters import new_decoder
from holdfast.video.timing import SECOND_NS, utc

if TYPE_CHECKING:
    import av


class Pictures:
    """The pictures of packets, in the order in which they are shown.

    Attributes
    ----------
    damage_count : int
        Packets that could not be decoded.
    """

    def __init__(self) -> None:
        with extra("decoding video"):
            import av  # noqa: F401 - asked for here, before anything is read
        self.damage_count = 0
        self._decoder: av.VideoCodecContext | None = None
        self._parameters: CodecParameters | None = None

    def of(self, packets: Iterator[EncodedPacket]) -> Iterator[av.VideoFrame]:
        """Yield each picture; its ``pts`` is in nanoseconds of Unix time."""
        for packet in packets:
            if packet.parameters is not None and packet.parameters != self._parameters:
                yield from self._decode(None)
                self._begin(packet.parameters)
            yield from self._decode(packet)
        yield from self._decode(None)

    def _begin(self, parameters: CodecParameters) -> None:
        self._decoder, self._parameters = new_decoder(parameters), parameters

    def _decode(self, packet: EncodedPacket | None) -> list[av.VideoFrame]:
        import av

        if self._decoder is None:
            return []
        fed: av.Packet[av.stream.Stream] | None = None
        if packet is not None:
            fed = av.Packet(packet.data)
            fed.pts, fed.dts, fed.duration = packet.pts, packet.dts, packet.duration
            fed.time_base = Fraction(1, SECOND_NS)
        try:
            return self._decoder.decode(fed)
        except av.FFmpegError:
            self.damage_count += 1
            return []


def pictures_between(
    stream: VideoStream, start: int | None, end: int | None, pictures: Pictures | None = None
) -> Iterator[av.VideoFrame]:
    """Yield the pictures of a stream that are shown from a time on and before another, exactly.

    Parameters
    ----------
    stream : VideoStream
        The stream.
    start, end : int, optional
        Nanoseconds of Unix time; by default all there is.
    pictures : Pictures, optional
        Counts what is damaged.
    """
    until = AFTER_END if end is None else end
    packets = packets_before(stream.packets(start), until)
    for frame in (pictures or Pictures()).of(packets):
        at = frame.pts
        if at is not None and (start is None or at >= start) and at < until:
            yield frame


def packets_before(packets: Iterator[EncodedPacket], end: int) -> Iterator[EncodedPacket]:
    """Yield packets up to the last one that is shown before a time, and those in between that it may need.

    After a packet that is decoded at or after the time, none is shown before it.  Where decoding times are not known,
    the second key packet at or after it is behind them all.
    """
    waiting: list[EncodedPacket] = []
    key_count = 0
    for packet in packets:
        waiting.append(packet)
        if packet.pts < end:
            yield from waiting
            waiting = []
            continue
        key_count += packet.is_key
        if (packet.dts is not None and packet.dts >= end) or key_count > 1:
            return


def save_picture(stream: VideoStream, at: int, path: str) -> int:
    """Write the picture that is shown at a time as a PNG, and return when it begins, nanoseconds of Unix time.

    Raises
    ------
    InvalidPipeline
        If no picture is shown then.
    """
    shown: av.VideoFrame | None = None
    for frame in Pictures().of(packets_before(stream.packets(at), at + 1)):
        if frame.pts is not None and frame.pts <= at:
            shown = frame
    if shown is None or shown.pts is None:
        raise InvalidPipeline(
            f"stream {stream.name!r} shows no picture at {utc(at)}.",
            why=f"its messages reach from {utc(stream.first)} to {utc(stream.last)}; what is there cannot be decoded, "
            "or begins later.",
            do="name a time in between: --at TIME.",
            participant=stream.name,
        )
    _write(path, png(shown))
    return shown.pts


def png(frame: av.VideoFrame) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    import av

    encoder = av.CodecContext.create("png", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, "rgb24"
    encoder.time_base = Fraction(1, SECOND_NS)
    picture = frame.reformat(format="rgb24")
    out = io.BytesIO()
    for packet in (*encoder.encode(picture), *encoder.encode(None)):
        out.write(bytes(packet))
    return out.getvalue()


def _write(path: str, data: bytes) -> None:
    with durable.explained(f"writing {path}"):
        aside = f"{path}.part"
        with open(aside, "wb") as file:
            file.write(data)
        os.replace(aside, path)
