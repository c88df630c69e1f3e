"""The codec parameters of key packets: those of the container, and those that the packets carry themselves.

A stream may change its size or its pixels at a key packet.  MPEG-TS says so only in the packets (their parameter sets),
MP4 beside them.  What the sets say is found by decoding the key packet that has new ones, and no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters

if TYPE_CHECKING:
    import av

_IN_PACKETS = ("h264", "hevc")
"""Codecs whose parameter sets stand in the packets where the container has no header of the codec's own form."""


_DECODERS = {"av1": "libdav1d"}
"""Where FFmpeg's decoder of the codec's own name needs a device that decodes."""


def new_decoder(parameters: CodecParameters) -> av.VideoCodecContext:
    """Return a decoder, which needs no device, with the codec's header; it is not open yet.

    Raises
    ------
    ValueError
        If there is none, or it does not take the header.
    """
    import av

    decoder = av.CodecContext.create(_DECODERS.get(parameters.codec, parameters.codec), "r")
    assert isinstance(decoder, av.VideoCodecContext)
    if parameters.extradata:
        decoder.extradata = parameters.extradata
    return decoder


class KeyParameters:
    """The parameters of each key packet of a stream.

    Parameters
    ----------
    stream : av.VideoStream
        Of an open container.
    """

    def __init__(self, stream: av.VideoStream) -> None:
        with extra("reading video"):
            from av.bitstream import BitStreamFilterContext
        context = stream.codec_context
        extradata = context.extradata or b""
        codec = context.codec.canonical_name
        pixels = context.pix_fmt or ""
        self._now = CodecParameters(codec, context.width, context.height, pixels, extradata)
        is_in_packets = codec in _IN_PACKETS and extradata[:1] != b"\x01"
        self._sets = BitStreamFilterContext("extract_extradata", stream) if is_in_packets else None
        self._is_measured = False

    def of(self, packet: av.Packet[av.stream.Stream]) -> CodecParameters:
        """Return the parameters of a key packet."""
        extradata = self._extradata(packet)
        if extradata and extradata != self._now.extradata:
            self._now = replace(self._now, extradata=extradata)
            self._is_measured = False
        if not self._is_measured:
            self._now = measure(self._now, bytes(packet))
            self._is_measured = True
        return self._now

    def _extradata(self, packet: av.Packet[av.stream.Stream]) -> bytes:
        import av

        if packet.has_sidedata("new_extradata"):
            return bytes(packet.get_sidedata("new_extradata"))
        if self._sets is None:
            return b""
        copy: av.Packet[av.stream.Stream] = av.Packet(bytes(packet))  # a filter takes what it is fed
        try:
            for found in self._sets.filter(copy):
                if found.has_sidedata("new_extradata"):
                    return bytes(found.get_sidedata("new_extradata"))
        except av.FFmpegError:
            return b""  # a damaged packet: its decoder will say so
        return b""


def measure(parameters: CodecParameters, key_data: bytes) -> CodecParameters:
    """Return parameters with the size and the pixels that a decoder finds in a key packet; unchanged if it finds none.

    Parameters
    ----------
    parameters : CodecParameters
        What the container says.
    key_data : bytes
        Data of the key packet.
    """
    frame = first_frame(parameters, key_data)
    if frame is None:
        return parameters
    return replace(parameters, width=frame.width, height=frame.height, pixel_format=frame.format.name)


def first_frame(parameters: CodecParameters, key_data: bytes) -> av.VideoFrame | None:
    """Return the picture of a key packet; None where it cannot be decoded with these parameters."""
    with extra("reading video"):
        import av
    try:
        decoder = new_decoder(parameters)
        decoder.thread_count = 1
        frames = [*decoder.decode(av.Packet(key_data)), *decoder.decode(None)]
    except (av.FFmpegError, ValueError):
        return None
    return frames[0] if frames else None
