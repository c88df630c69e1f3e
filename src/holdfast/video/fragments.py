"""A group of pictures as a file of its own: an MP4 with one fragment; and what is in the bytes of a container."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from holdfast.video.bitstream import sets_in
from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters, EncodedPacket
from holdfast.video.parameters import KeyParameters
from holdfast.video.remuxing import add_packet_stream
from holdfast.video.timing import SECOND_NS, nanoseconds, with_decoding_times
from holdfast.video.transport import STREAM_TYPES

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

_OPTIONS = {
    "movflags": "empty_moov+default_base_moof+frag_discont",
    "fflags": "+bitexact",
    "use_editlist": "0",
    "avoid_negative_ts": "disabled",
}
_MICRO = 10**6
_GAP_MAX = 2 * SECOND_NS
"""A sample's duration has 32 bits: in nanoseconds at most 4.2 seconds."""


class NotMuxed(ValueError):
    """What does not go into a container, or is no container; the text says why."""


def fragment(packets: Sequence[EncodedPacket], parameters: CodecParameters, number: int, end: int | None) -> bytes:
    """Return a group of pictures as an MP4.

    Parameters
    ----------
    packets : sequence of EncodedPacket
        From a key packet on, in the order of decoding.
    parameters : CodecParameters
        Of the key packet.
    number : int
        Of the fragment, from 1.
    end : int, optional
        When the next group begins to be decoded, nanoseconds.

    Raises
    ------
    NotMuxed
        If the codec or the packets do not go into an MP4.
    """
    with extra("hf.video.mux"):
        import av
    if not parameters.extradata and parameters.codec in STREAM_TYPES:  # the packets have it
        parameters = replace(parameters, extradata=sets_in(packets[0].data, parameters.codec))
    dated = list(with_decoding_times(packets))
    times = [_dts(each) for each in dated]
    durations = [after - at for at, after in zip(times, [*times[1:], times[-1] if end is None else end], strict=True)]
    unit = SECOND_NS if max(durations) < _GAP_MAX else _MICRO
    memory = io.BytesIO()
    try:
        with av.open(memory, "w", format="mp4", options={**_OPTIONS, "fragment_index": str(number)}) as output:
            stream = add_packet_stream(output, parameters, unit)
            for packet, duration in zip(dated, durations, strict=True):
                made: Packet[Stream] = av.Packet(packet.data)
                made.pts, made.dts = packet.pts * unit // SECOND_NS, _dts(packet) * unit // SECOND_NS
                made.duration = max(0, duration * unit // SECOND_NS)
                made.time_base, made.is_keyframe, made.stream = Fraction(1, unit), packet.is_key, stream
                output.mux_one(made)
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise NotMuxed(f"the packets of {parameters.codec} do not go into an MP4: {error}") from None
    return memory.getvalue()


def _dts(packet: EncodedPacket) -> int:
    return packet.pts if packet.dts is None else packet.dts


def packets_in(data: bytes, container: str, begin: int) -> list[EncodedPacket]:
    """Return the video packets in the bytes of a container, in the order of decoding.

    Parameters
    ----------
    data : bytes
        A file: of MP4, or of MPEG-TS from its tables on.
    container : str
        FFmpeg's name of the format.
    begin : int
        Time of its first packet, nanoseconds of Unix time.

    Raises
    ------
    NotMuxed
        If it cannot be read, or has no video.
    """
    with extra("hf.video.demux"):
        import av
    found: list[EncodedPacket] = []
    try:
        with av.open(io.BytesIO(data), "r", format=container) as opened:
            if not opened.streams.video:
                raise NotMuxed(f"no video is in these bytes of {container}")
            stream = opened.streams.video[0]
            parameters = KeyParameters(stream)
            base, first = stream.time_base, None
            for packet in opened.demux(stream):
                if not packet.size or packet.pts is None or base is None:
                    continue
                first = packet.pts if first is None else first
                pts, dts = (
                    None if each is None else begin + nanoseconds(each - first, base)
                    for each in (packet.pts, packet.dts)
                )
                assert pts is not None
                key = packet.is_keyframe
                duration = nanoseconds(packet.duration or 0, base)
                of_key = parameters.of(cast("Packet[Stream]", packet)) if key else None
                found.append(EncodedPacket(bytes(packet), pts, dts, duration, key, of_key))
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise NotMuxed(f"these bytes are no {container}: {error}") from None
    return found
