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
_GAP_MAX = 1800 * SECOND_NS
"""A sample's duration has 32 bits: in microseconds 71 minutes.  Behind a longer gap another fragment begins."""


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
    parts: list[list[EncodedPacket]] = [[]]
    for packet in with_decoding_times(packets):
        if parts[-1] and packet.decoding_time - parts[-1][-1].decoding_time > _GAP_MAX:
            parts.append([])
        parts[-1].append(packet)
    ends = [*(part[0].decoding_time for part in parts[1:]), parts[-1][-1].decoding_time if end is None else end]
    try:
        return b"".join(_file(part, parameters, number, after) for part, after in zip(parts, ends, strict=True))
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise NotMuxed(f"the packets of {parameters.codec} do not go into an MP4: {error}") from None


def _file(packets: Sequence[EncodedPacket], parameters: CodecParameters, number: int, end: int) -> bytes:
    """Return packets without a long gap as a file; all have the same ticks, since readers keep those of the first."""
    import av

    memory = io.BytesIO()
    times = [*(packet.decoding_time for packet in packets), end]
    with av.open(memory, "w", format="mp4", options={**_OPTIONS, "fragment_index": str(number)}) as output:
        stream = add_packet_stream(output, parameters, _MICRO)
        for packet, at, after in zip(packets, times, times[1:], strict=False):
            made: Packet[Stream] = av.Packet(packet.data)
            made.pts, made.dts = _micro(packet.pts), _micro(at)
            made.duration = _micro(min(max(0, after - at), _GAP_MAX))
            made.time_base, made.is_keyframe, made.stream = Fraction(1, _MICRO), packet.is_key, stream
            output.mux_one(made)
    return memory.getvalue()


def _micro(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000


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
