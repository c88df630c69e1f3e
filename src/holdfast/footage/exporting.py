"""``holdfast video export``: a stretch of a stream into a file, as it is, or exactly and encoded anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.footage.pictures import Pictures, packets_before, pictures_between
from holdfast.footage.streams import AFTER_END, VideoStream, check_range
from holdfast.store import durable
from holdfast.video.packets import EncodedPacket
from holdfast.video.remuxing import TICKS, Container, PacketFile, check_gap, container_of, ticks_of
from holdfast.video.timing import utc

if TYPE_CHECKING:
    import av

_QUALITY = {"preset": "veryfast", "crf": "18"}
_RATE = 25
"""Frames in a second, for the encoder's guesses: times are those of the pictures."""


@dataclass(frozen=True)
class Export:
    """What was written.

    Parameters
    ----------
    packet_count : int
        Packets in the file; with an exact cut one for each picture.
    start, end : int
        When its first picture is shown and where the last one ends, nanoseconds of Unix time.
    is_exact : bool
        Whether it was encoded anew.
    damage_count : int
        Packets that are left out: those of a group behind a missing one and, with an exact cut, those that the decoder
        refuses.
    """

    packet_count: int
    start: int
    end: int
    is_exact: bool
    damage_count: int = 0


def export_video(
    stream: VideoStream, path: str, start: int | None = None, end: int | None = None, *, is_exact: bool = False
) -> Export:
    """Write what a stream shows between two times into a file.

    Parameters
    ----------
    stream : VideoStream
        The stream.
    path : str
        The file; its ending says the container: ``.mp4``, ``.ts``, ``.mkv``.  It appears when it is whole.
    start, end : int, optional
        Nanoseconds of Unix time, the end exclusive; by default all there is.
    is_exact : bool
        Whether to decode and encode anew, so that the file has exactly the pictures of the range.  By default packets
        are copied as they are: the file begins at the key packet at or before ``start``, and ends with the last picture
        before ``end`` (and what that one is decoded from).

    Raises
    ------
    InvalidPipeline
        If the range has nothing of the stream, or its video changes within it and the container cannot say so.
    """
    container = container_of(path)
    check_range(stream, start, end)
    aside = f"{path}.part"
    try:
        with durable.explained(f"writing {path}"):
            found = (_encode if is_exact else _copy)(stream, aside, container, start, end)
            os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    return found


def _copy(stream: VideoStream, path: str, container: Container, start: int | None, end: int | None) -> Export:
    first: int | None = None
    last = 0

    def timed_packets(packets: Iterator[EncodedPacket]) -> Iterator[EncodedPacket]:
        nonlocal first, last
        for packet in packets:
            first = packet.pts if first is None else first
            last = max(last, packet.pts + packet.duration)
            yield packet

    with PacketFile(path, container) as file:
        file.write(timed_packets(packets_before(stream.packets(start), AFTER_END if end is None else end)))
        if first is None:
            raise _nothing(stream, start, end)
    return Export(file.packet_count, first, last, is_exact=False, damage_count=stream.left_out_count)


def _encode(stream: VideoStream, path: str, container: Container, start: int | None, end: int | None) -> Export:
    import av

    pictures = Pictures()
    first: int | None = None
    last, count = 0, 0
    before: int | None = None
    out: av.video.VideoStream | None = None
    with av.open(path, "w", format=container) as file:
        for frame in pictures_between(stream, start, end, pictures):
            at = frame.pts
            assert at is not None
            if first is None or out is None:
                first, out = at, _video_out(file, frame)
            if (frame.width, frame.height) != (out.width, out.height):
                frame = frame.reformat(width=out.width, height=out.height)
            check_gap(container, before, ticks_of(at - first), at)
            before = ticks_of(at - first)
            last = max(last, at + (frame.duration or 0))
            frame.pts, frame.time_base = ticks_of(at - first), Fraction(1, TICKS)
            file.mux(out.encode(frame))
            count += 1
        if out is None or first is None:
            raise _nothing(stream, start, end)
        file.mux(out.encode(None))
    damage_count = pictures.damage_count + stream.left_out_count
    return Export(count, first, last, is_exact=True, damage_count=damage_count)


def _video_out(file: av.container.OutputContainer, frame: av.VideoFrame) -> av.VideoStream:
    """Add the stream of an exact export, with the layout of a picture, or the usual one."""
    import av

    out = file.add_stream("libx264", rate=_RATE, options=dict(_QUALITY))
    layouts = [each.name for each in out.codec_context.codec.video_formats or ()]
    out.width, out.height = frame.width, frame.height
    out.pix_fmt = frame.format.name if frame.format.name in layouts else "yuv420p"
    out.time_base = out.codec_context.time_base = Fraction(1, TICKS)
    try:
        out.codec_context.open()
    except av.FFmpegError as error:
        raise InvalidPipeline(
            f"pictures of {frame.width} x {frame.height} {out.pix_fmt} cannot be encoded again.",
            why=f"H.264 needs an even width and height ({error.strerror}).",
            do="leave out --exact: packets are copied as they are, from the key frame before on.",
        ) from error
    return out


def _nothing(stream: VideoStream, start: int | None, end: int | None) -> InvalidPipeline:
    where = " ".join(f"{word} {utc(at)}" for word, at in (("from", start), ("to", end)) if at is not None)
    return InvalidPipeline(
        f"stream {stream.name!r} has no picture {where or 'at all'}.",
        why=f"its messages reach from {utc(stream.first)} to {utc(stream.last)}.",
        do="name other times: --from, --to.",
        participant=stream.name,
    )
