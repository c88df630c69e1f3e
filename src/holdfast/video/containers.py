"""Encoded packets out of and into containers (MP4, MPEG-TS, Matroska, ...), without decoding or encoding them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.masking import masked
from holdfast.video.library import extra
from holdfast.video.packets import EncodedPacket
from holdfast.video.parameters import KeyParameters
from holdfast.video.reordering import CODECS, FORMATS, DisplayOrder
from holdfast.video.timing import SECOND_NS, RunsOfTimes, Ticks, nanoseconds, utc

if TYPE_CHECKING:
    import av

_TS_PACKETS = (188, 192, 204)
"""Bytes of a packet of MPEG-TS, in its variants: a file of a whole number of none of them is cut off."""

_DOUBTFUL = 3
"""So many packets, from one on that FFmpeg marks as damaged, may follow the loss: its parser marks it too early."""


class ContainerReader:
    """The packets of the video stream of a file, a device or a URL; whatever FFmpeg reads.

    Parameters
    ----------
    source : str, path or binary file
        What to read.
    origin : int, optional
        Time of the first picture, nanoseconds of Unix time.  By default the ``creation_time`` of the container, and 0
        where it has none.
    clock : callable, optional
        Of a live source, instead of ``origin``.  It is called with the time that the sender gives the first packet
        (nanoseconds of Unix time, None where it gives none) and returns the time of that packet; None: it is left out,
        and the next one is asked for.  It is called again where the source's times jump back.
    options : mapping of str to str, optional
        Options of FFmpeg for the container and its protocol: ``{"rtsp_transport": "tcp"}``.
    container : str, optional
        FFmpeg's name of the format, where it cannot be found out: ``"v4l2"``.
    timeout_s : float, optional
        How long a URL may take to open, and to send something.

    Raises
    ------
    InvalidPipeline
        If there is no such file, it is empty, or there is no video in it.
    Corrupt
        If a file cannot be read as a container.
    Unavailable
        If a URL or a device does not answer.

    Notes
    -----
    Of several video streams the one is read that FFmpeg holds for the main one; what other streams have (audio,
    subtitles, data) is counted.

    Examples
    --------
    ::

        with ContainerReader("cam1.mp4", origin=time.time_ns()) as reader:
            for packet in reader.packets():
                ...
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        origin: int | None = None,
        clock: Callable[[int | None], int | None] | None = None,
        options: Mapping[str, str] | None = None,
        container: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.source = os.fspath(source) if isinstance(source, str | os.PathLike) else "the container"
        self.shown = masked(self.source)
        """The source without secrets."""
        self._is_file = isinstance(source, str | os.PathLike) and os.path.isfile(self.source)
        self._clock = clock
        self._timeout_s = timeout_s or 0.0
        self._container = self._open(source, dict(options or {}), container, timeout_s)
        try:
            self._stream = self._video()
        except BaseException:
            self._container.close()
            raise
        self.format = self._container.format.name
        """FFmpeg's names of the format."""
        self.creation_time = self._creation_time()
        """What the container says of when it was made, nanoseconds of Unix time; None: nothing."""
        self.origin = (self.creation_time or 0) if origin is None else origin
        """Time of the first picture, nanoseconds of Unix time."""
        self.packet_count = 0
        self.other_count = 0
        """Packets of other streams than the video."""
        self.loss_count = 0
        """Packets that may lack the one before, as the counters of MPEG-TS say."""
        self._runs: RunsOfTimes | None = None

    def __enter__(self) -> ContainerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the container."""
        self._container.close()

    @property
    def jump_count(self) -> int:
        """How often times jumped back, so that another run of them began."""
        return self._runs.jump_count if self._runs else 0

    @property
    def repair_count(self) -> int:
        """Packets whose decoding time was repaired."""
        return self._runs.repair_count if self._runs else 0

    @property
    def end(self) -> int:
        """Time at which the pictures that were read end."""
        return self._runs.end if self._runs else self.origin

    def packets(self) -> Iterator[EncodedPacket]:
        """Yield the packets in the order of decoding.

        Raises
        ------
        Corrupt
            If a file ends early, or cannot be read on; what precedes was yielded.
        InvalidPipeline
            If a packet has no time.
        Unavailable
            If a URL sends no more.
        """
        parameters = KeyParameters(self._stream)
        is_cut_off = self._is_cut_off()
        held: av.Packet[av.stream.Stream] | None = None
        doubtful = 0
        for packet in self._video_packets():
            if self._runs is None and not self._begin(packet):
                continue
            if packet.is_corrupt and self._is_file and self.format != "mpegts":
                raise self._ends_early()
            doubtful = _DOUBTFUL if packet.is_corrupt else doubtful - 1
            self.loss_count += doubtful > 0
            if not is_cut_off:
                yield self._packet(packet, parameters)
                continue
            if held is not None:
                yield self._packet(held, parameters)
            held = packet
        if is_cut_off or self._lacks_packets():
            raise self._ends_early()

    def _packet(self, packet: av.Packet[av.stream.Stream], parameters: KeyParameters) -> EncodedPacket:
        assert self._runs is not None
        ticks = Ticks(packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe)
        times = self._runs.times(ticks)
        if times is None:
            raise InvalidPipeline(
                f"packet {self.packet_count} of {self.shown} has no time, after {utc(self.end)}.",
                why=f"its container ({self.format}) says neither when it is decoded nor when it is shown.",
                do="put the video into another container first: ffmpeg -fflags +genpts -i FILE -c copy out.mkv",
                participant=self.shown,
            )
        self.packet_count += 1
        described = parameters.of(packet) if packet.is_keyframe else None
        return EncodedPacket(
            bytes(packet), times.pts, times.dts, times.duration, is_key=packet.is_keyframe, parameters=described
        )

    def _begin(self, packet: av.Packet[av.stream.Stream]) -> bool:
        """Begin the first run of times with a packet, unless the clock leaves it out."""
        first, base = self._stream.start_time, self._stream.time_base
        assert base is not None
        if first is None or self.format in FORMATS or self._clock is not None:
            first = packet.pts if packet.pts is not None else packet.dts or 0
        origin: int | None = self.origin
        if self._clock is not None:
            is_timed = packet.pts is not None or packet.dts is not None  # a camera may begin without
            origin = self._clock(sender_time(packet)) if is_timed else None
        if origin is None:
            return False
        self.origin = origin
        self._runs = RunsOfTimes(base, first, origin, another_origin=self._now)
        return True

    def _now(self) -> int:
        """Return where another run of times begins, at least."""
        return (self._clock(None) if self._clock is not None else None) or 0

    # --- FFmpeg -----------------------------------------------------------------------------------------------------

    def _open(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        options: dict[str, str],
        container: str | None,
        timeout_s: float | None,
    ) -> av.container.InputContainer:
        with extra("reading video"):
            import av
        if self._is_file and os.path.getsize(self.source) == 0:
            raise InvalidPipeline(
                f"{self.shown} is empty.",
                why="the file has no byte.",
                do="name a file with video in it.",
                participant=self.shown,
            )
        with self._errors_of("opening"):
            return av.open(
                self.source if isinstance(source, str | os.PathLike) else source,
                "r",
                format=container,
                options=options,
                timeout=timeout_s,
                metadata_errors="replace",
            )

    def _video(self) -> av.VideoStream:
        import av

        found = self._container.streams.best("video")
        if not isinstance(found, av.VideoStream) or found.disposition & av.stream.Disposition.attached_pic:
            kinds = sorted({stream.type for stream in self._container.streams})
            raise InvalidPipeline(
                f"there is no video in {self.shown}.",
                why=f"it has {', '.join(kinds) or 'no stream'}.",
                do="name a file or an address with a video stream.",
                participant=self.shown,
            )
        if found.codec_context is None:
            raise InvalidPipeline(
                f"the codec of the video in {self.shown} is not known.",
                why="FFmpeg has no decoder for it; or the head of the file is damaged.",
                do="get the file again, or encode it as H.264 first.",
                participant=self.shown,
            )
        return found

    def _creation_time(self) -> int | None:
        text = self._container.metadata.get("creation_time") or self._stream.metadata.get("creation_time")
        try:
            return int(datetime.fromisoformat(text).timestamp()) * SECOND_NS if text else None
        except ValueError:
            return None

    def _video_packets(self) -> Iterator[av.Packet[av.stream.Stream]]:
        """Yield the packets of the video stream."""
        codec = self._stream.codec_context.codec.canonical_name
        is_ordered = not (self.format in FORMATS and codec in CODECS)
        order = None if is_ordered else DisplayOrder(self._stream)
        with self._errors_of("reading"):
            for packet in self._all_packets():
                if packet.stream_index != self._stream.index:
                    self.other_count += bool(packet.size)
                elif not packet.size:
                    continue  # the end, or an empty one
                elif order is None:
                    yield packet
                else:
                    yield from order.feed(packet)
            if order is not None:
                yield from order.end()

    def _all_packets(self) -> Iterator[av.Packet[av.stream.Stream]]:
        try:
            yield from self._container.demux()
        except IndexError:
            return  # PyAV, after the last packet, where streams have appeared that the head does not name

    # --- what went wrong --------------------------------------------------------------------------------------------

    def _is_cut_off(self) -> bool:
        """Return whether the last packet cannot be whole: a file of MPEG-TS that ends within a packet."""
        if self.format != "mpegts" or not self._is_file:
            return False
        size = os.path.getsize(self.source)
        return all(size % each for each in _TS_PACKETS)

    def _lacks_packets(self) -> bool:
        """Return whether a file announces a video that is longer, by more than its last pictures."""
        if not self._is_file or self.jump_count:
            return False
        duration, base = self._stream.duration, self._stream.time_base
        if duration is not None and base is not None:
            announced = nanoseconds(duration, base)
        elif len(self._container.streams) == 1 and self._container.duration:
            announced = self._container.duration * 1000
        else:
            return False
        return self.end - self.origin < announced - SECOND_NS

    def _ends_early(self) -> Corrupt:
        return Corrupt(
            f"{self.shown} ends early: after {self.packet_count} packets, at {utc(self.end)}.",
            why="it is truncated or damaged there; the packets before that are whole.",
            do="get the whole file, and read it again; or go on with what could be read.",
            participant=self.shown,
        )

    @contextmanager
    def _errors_of(self, doing: str) -> Iterator[None]:
        import av

        try:
            yield
        except av.FFmpegError as error:
            raise self._refusal(error, doing) from None  # FFmpeg's text has the address, and its password

    def _refusal(self, error: av.FFmpegError, doing: str) -> HoldfastError:
        import av

        why = masked(f"{error.strerror or error}.")
        if isinstance(error, av.error.ExitError):
            why = f"it did not answer, or sent nothing, for {self._timeout_s:g} s."
        if is_address(self.source):
            return Unavailable(
                f"{doing} {self.shown} failed.",
                why=why,
                do="see whether the camera or the server is on, and whether address, user and password are right.",
                participant=self.shown,
            )
        if isinstance(error, OSError):
            return InvalidPipeline(
                f"{doing} {self.shown} failed.", why=why, do="name a file that is there.", participant=self.shown
            )
        if doing == "reading":
            return self._ends_early()
        return Corrupt(
            f"{self.shown} cannot be read as video.",
            why=f"{why[:-1]}: it is none, or truncated (an MP4 may have its index at the end).",
            do="get the whole file again; record into MPEG-TS, Matroska or fragments of MP4, which can be read up to "
            "where they end.",
            participant=self.shown,
        )


def sender_time(packet: av.Packet[av.stream.Stream]) -> int | None:
    """Return the time that the sender gives a packet (RTCP), nanoseconds of Unix time; None where it gives none."""
    if not packet.has_sidedata("prft"):
        return None
    return int.from_bytes(bytes(packet.get_sidedata("prft"))[:8], "little", signed=True) * 1000


def is_address(source: str) -> bool:
    """Return whether a source is an address or a device, and no file.

    Examples
    --------
    >>> is_address("rtsp://cam/1"), is_address("/dev/video0"), is_address("file:///a.mp4"), is_address("a.mp4")
    (True, True, False, False)
    """
    if source.startswith("/dev/video"):
        return True
    scheme = re.match(r"([\w+.-]+):", source)
    return scheme is not None and scheme[1] != "file" and not os.path.exists(source)
