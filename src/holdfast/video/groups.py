"""The decoder of one group of pictures: from a key packet on, and nothing of what was before it.

Each group has a decoder of its own.  So what a decoder holds follows from the packets of its group alone, however it
came to be there: in an undisturbed run, behind a restore, or at a random access point.  One that lived longer would
not be restored: FFmpeg's delay, for instance, grows with what the stream has shown of reordering so far.

A decoder costs some tens of microseconds.  Frames are decoded on one thread, or on threads for the slices of a frame:
threads for frames would hold frames back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from holdfast.video.frames import NANO, VideoFrame
from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters, EncodedPacket
from holdfast.video.parameters import new_decoder

if TYPE_CHECKING:
    from av import Packet, VideoStream

PIXELS_MAX = 1 << 26
"""Pixels of a picture that a decoder makes room for: 8192 x 8192.  A damaged header must not ask for all memory."""

_STRICT = {"err_detect": "explode"}
CODECS = {"h264": {}, "hevc": _STRICT, "mjpeg": _STRICT, "av1": {}}
"""Name of the codec -> options of its decoder.

That of H.264 marks each picture that it has repaired, and must not be strict: behind an open group's leading packets,
which refer to what is not there, it would refuse packets that it decodes rightly.
"""


class Damaged(ValueError):
    """A packet that a decoder refuses; the text says why."""


@dataclass
class _Expected:
    """The packets of one time that have given no frame yet."""

    count: int
    data: bytes


class GroupDecoder:
    """A decoder from a key packet on.

    Parameters
    ----------
    parameters : CodecParameters or None
        Of the key packet.
    threads : int
        For the slices of a frame.

    Raises
    ------
    Damaged
        If there is no such decoder, or it does not take the parameters.
    """

    def __init__(self, parameters: CodecParameters | None, threads: int) -> None:
        self.expected: dict[int, _Expected] = {}
        """pts -> packets whose frames are still to come."""

        self.is_damaged = False
        """Whether a picture was incomplete: it and those behind it are not given."""

        if parameters is None:
            raise Damaged("a key packet without the parameters of its codec")
        if parameters.codec not in CODECS:
            raise Damaged(f"the codec {parameters.codec!r} is none of {', '.join(CODECS)}")
        with extra("hf.video.decode"):
            import av
        self._errors = (av.FFmpegError, ValueError, OverflowError)
        self._packet = av.Packet
        try:
            context = new_decoder(parameters)
            context.options = {**CODECS[parameters.codec], "max_pixels": str(PIXELS_MAX)}
            context.thread_count, context.thread_type = threads, "SLICE"
            if parameters.codec == "av1":
                context.flags |= av.codec.context.Flags.low_delay
            context.open()
        except self._errors as error:
            raise Damaged(f"the decoder of {parameters.codec} does not begin: {error}") from None
        self._context = context

    def feed(self, packet: EncodedPacket, *, is_expected: bool = True) -> list[VideoFrame]:
        """Give the decoder a packet; return the frames that are complete now, in the order of their times.

        Parameters
        ----------
        packet : EncodedPacket
            The next one in the order of decoding.
        is_expected : bool
            Whether its frame is wanted from this decoder.

        Raises
        ------
        Damaged
            If the decoder refuses it: what comes behind it refers to it, and cannot be decoded either.
        """
        if is_expected:
            expected = self.expected.setdefault(packet.pts, _Expected(0, packet.data))
            expected.count += 1
        given = cast("Packet[VideoStream]", self._packet(packet.data))
        given.pts, given.dts, given.time_base = packet.pts, packet.dts, NANO
        given.is_keyframe = packet.is_key
        return self._decode(given)

    def end(self) -> list[VideoFrame]:
        """Return the frames that the decoder still holds; afterwards it takes nothing more."""
        try:
            return self._decode(None)
        except Damaged:
            return []

    def _decode(self, given: Packet[VideoStream] | None) -> list[VideoFrame]:
        try:
            pictures = self._context.decode(given)
        except self._errors as error:
            raise Damaged(f"the decoder refuses it: {error}") from None
        frames = []
        for picture in pictures:
            if picture.pts not in self.expected:
                continue
            self.is_damaged |= picture.is_corrupt
            if not self.is_damaged:
                self._note_frame(picture.pts)
                frames.append(VideoFrame(picture, picture.pts))
        return frames

    def _note_frame(self, pts: int) -> None:
        expected = self.expected[pts]
        expected.count -= 1
        if not expected.count:
            del self.expected[pts]
