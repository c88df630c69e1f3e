"""Encoded packets into files of MP4 and MPEG-TS, as they are: nothing is encoded again."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Literal

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters, EncodedPacket
from holdfast.video.timing import SECOND_NS, utc, with_decoding_times

if TYPE_CHECKING:
    import av

Container = Literal["mp4", "mpegts", "matroska"]

SUFFIXES: dict[str, Container] = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".ts": "mpegts",
    ".mpegts": "mpegts",
    ".mkv": "matroska",
}

TICKS = 90_000
"""Ticks of a second, in what is written: the clock of MPEG."""

_GAP_TICKS = 2**31
"""From here on FFmpeg writes another length of a sample into MP4; in MPEG-TS a gap of twice as much is none."""

_EMPTY_UNITS = {"h264": b"\0\0\0\1\x09\xf0", "hevc": b"\0\0\0\1\x46\x01\x50", "av1": b"\x12\0"}
"""A packet without a picture of each codec whose packets are looked into."""


def container_of(path: str | os.PathLike[str]) -> Container:
    """Return the container of a file's name.

    Raises
    ------
    InvalidPipeline
        If it has none of the known endings.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in SUFFIXES:
        raise InvalidPipeline(
            f"{os.fspath(path)} does not say which container it is to be.",
            why=f"known endings are {', '.join(SUFFIXES)}.",
            do="name it out.mp4, or out.ts.",
        )
    return SUFFIXES[suffix]


def add_packet_stream(
    output: av.container.OutputContainer, parameters: CodecParameters, ticks: int = TICKS
) -> av.VideoStream:
    """Add a video stream for packets that are encoded already.

    Parameters
    ----------
    output : OutputContainer
        Not begun yet.
    parameters : CodecParameters
        Of the first key packet.
    ticks : int
        Ticks of a second.
    """
    import av

    # A muxer takes the codec's header from a stream that was read: there is no other way to give it one.
    memory = io.BytesIO()
    with av.open(memory, "w", format="nut") as model:
        empty = model.add_mux_stream(parameters.codec, width=parameters.width or 16, height=parameters.height or 16)
        packet: av.Packet[av.stream.Stream] = av.Packet(_EMPTY_UNITS.get(parameters.codec, b"\0"))
        packet.pts = packet.dts = 0
        packet.time_base, packet.is_keyframe, packet.stream = Fraction(1, ticks), True, empty
        model.mux_one(packet)
    memory.seek(0)
    with av.open(memory, format="nut") as read:
        stream = output.add_stream_from_template(read.streams.video[0], opaque=True)
    stream.time_base = Fraction(1, ticks)
    context = stream.codec_context
    context.extradata = parameters.extradata or None
    context.width, context.height = parameters.width, parameters.height
    if parameters.pixel_format:
        context.pix_fmt = parameters.pixel_format
    return stream


class PacketFile:
    """Writes packets into a container.

    Parameters
    ----------
    target : str, path or binary file
        Where to.
    container : {"mp4", "mpegts", "matroska"}, optional
        By default that of the file's name.
    start : int, optional
        The time that is the beginning of the file, nanoseconds; pictures before it are decoded, and not shown (by an
        edit list, in MP4).  By default the first packet's pts.
    options : mapping of str to str, optional
        Options of the muxer.

    Raises
    ------
    InvalidPipeline
        If the codec does not go into the container.

    Examples
    --------
    ::

        with PacketFile("out.mp4") as out:
            out.write(packets)
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        container: Container | None = None,
        *,
        start: int | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        with extra("writing video"):
            import av
        self._name = os.fspath(target) if isinstance(target, str | os.PathLike) else "the container"
        self._kind = container or container_of(self._name)
        self._start = start
        place = self._name if isinstance(target, str | os.PathLike) else target
        self._output = av.open(place, "w", format=self._kind, container_options=options or {})
        self._stream: av.VideoStream | None = None
        self._parameters: CodecParameters | None = None
        self._parameter_sets = b""
        self._last: int | None = None
        self.packet_count = 0

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(Exception):  # what is written is not wanted
                self._output.close()

    def close(self) -> None:
        """Finish the file."""
        self._output.close()

    def write(self, packets: Iterable[EncodedPacket]) -> None:
        """Write packets, all of the file or some more, in the order of decoding; the first one is a key packet.

        Raises
        ------
        InvalidPipeline
            If the first packet is none, or the codec's parameters change and the container cannot say so.
        """
        for packet in with_decoding_times(packets):
            self._write(packet)

    def _write(self, packet: EncodedPacket) -> None:
        import av

        if packet.parameters is not None:
            self._check(packet.parameters, packet.pts)
        if self._stream is None:
            self._stream = self._begin(packet)
        assert self._start is not None
        ticks = ticks_of(packet.decoding_time - self._start)
        check_gap(self._kind, self._last, ticks, packet.pts)
        self._last = ticks if self._last is None else max(ticks, self._last + 1)
        data = self._parameter_sets + packet.data if packet.is_key else packet.data
        found: av.Packet[av.stream.Stream] = av.Packet(data)
        found.dts, found.pts = self._last, max(ticks_of(packet.pts - self._start), self._last)
        found.duration = ticks_of(packet.duration)
        found.time_base, found.is_keyframe, found.stream = Fraction(1, TICKS), packet.is_key, self._stream
        try:
            self._output.mux_one(found)
        except (av.FFmpegError, ValueError) as error:
            if isinstance(error, OSError):  # of the disk
                raise
            raise Corrupt(
                f"the packet at {utc(packet.pts)} cannot be written into {self._kind}.",
                why=f"FFmpeg says {error}: it is damaged, or the codec's header in the key packet before it.",
                do="export the parts before and after it; --exact leaves out what cannot be decoded.",
                participant=self._name,
            ) from error
        self.packet_count += 1

    def _begin(self, packet: EncodedPacket) -> av.VideoStream:
        if self._parameters is None:
            raise InvalidPipeline(
                f"{self._name} would begin with a packet that is no key packet, at {utc(packet.pts)}.",
                why="a decoder begins at a key packet.",
                do="begin at the key packet at or before it.",
            )
        self._start = packet.pts if self._start is None else self._start
        if self._kind == "mpegts" and self._parameters.codec == "h264":
            # FFmpeg puts them before the key packets of closed groups of pictures only.
            self._parameter_sets = avc_parameter_sets(self._parameters.extradata)
        try:
            return add_packet_stream(self._output, self._parameters)
        except ValueError as error:
            raise InvalidPipeline(
                f"{self._parameters.codec} cannot be written into {self._kind}.",
                why=f"{error}.",
                do="write a file that ends with .mkv, which takes every codec.",
            ) from error

    def _check(self, parameters: CodecParameters, at: int) -> None:
        """Refuse parameters that differ from the first ones, where only the file's head could say so."""
        first = self._parameters
        self._parameters = first or parameters
        if first is None or first == parameters:
            return
        is_in_packets = parameters.extradata[:1] != b"\x01" and first.extradata[:1] != b"\x01"
        if first.codec != parameters.codec or not (is_in_packets and self._kind == "mpegts"):
            raise InvalidPipeline(
                f"the video changes at {utc(at)}: before {_description(first)}, then {_description(parameters)}.",
                why=f"the head of a file ({self._kind}) describes one kind of packets.",
                do=f"export it in parts: up to {utc(at)}, and from there on.",
            )


def avc_parameter_sets(extradata: bytes) -> bytes:
    """Return the parameter sets of an ``avcC`` record as packets have them, each after its length.

    Parameters
    ----------
    extradata : bytes
        The record; of anything else there are none.
    """
    if extradata[:1] != b"\x01" or len(extradata) < 7:
        return b""
    size = (extradata[4] & 3) + 1
    found, place = b"", 5
    for mask in (0x1F, 0xFF):  # sequence, then picture parameter sets
        count, place = extradata[place] & mask, place + 1
        for _ in range(count):
            length = int.from_bytes(extradata[place : place + 2], "big")
            found += length.to_bytes(size, "big") + extradata[place + 2 : place + 2 + length]
            place += 2 + length
    return found


def check_gap(container: Container, before: int | None, ticks: int, at: int) -> None:
    """Refuse a gap that a container cannot say: MP4 has 32 bits for it, and the clock of MPEG-TS begins again.

    Parameters
    ----------
    container : str
        The container.
    before, ticks : int
        Times of two packets that follow each other; None: it is the first.
    at : int
        Time of the second one, nanoseconds, for the error.

    Raises
    ------
    InvalidPipeline
        If it is too long.
    """
    if container != "matroska" and before is not None and ticks - before >= _GAP_TICKS:
        raise InvalidPipeline(
            f"there is nothing for {(ticks - before) / TICKS / 3600:.1f} h before {utc(at)}, which {container} cannot "
            "say.",
            why=f"its times have too few bits for a gap of {_GAP_TICKS / TICKS / 3600:.1f} h or more.",
            do=f"export it in parts: up to {utc(at)}, and from there on; or write a file that ends with .mkv.",
        )


def ticks_of(nanoseconds: int) -> int:
    """Return nanoseconds in ticks, to the nearest."""
    return (2 * nanoseconds * TICKS + SECOND_NS) // (2 * SECOND_NS)


def _description(parameters: CodecParameters) -> str:
    size = f"{parameters.width}x{parameters.height}"
    return " ".join(filter(None, (parameters.codec, size, parameters.pixel_format)))
