"""``hf.video.encode``: frames as encoded packets, in closed groups of pictures of a declared length.

Each group has an encoder of its own, which holds no frame back: no frames are reordered, and nothing is looked ahead.
So a group's bytes follow from its frames alone.  When the state of the graph is saved the group ends, in the encoder
that goes on as in one that is restored: what an epoch has made does not depend on what ran before it, and nobody
continues a group of which another evaluation may be the one that was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow.building import NodeSpec, node
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.types.units import duration_us
from holdfast.video.frames import NANO, VideoFrame
from holdfast.video.library import extra
from holdfast.video.packets import CodecParameters, EncodedPacket, GroupPlace
from holdfast.video.payloads import payload_of

if TYPE_CHECKING:
    from holdfast.flow.context import Context

FOREVER = "1000000"
"""Frames between key frames that an encoder makes by itself: it makes none."""


@dataclass(frozen=True)
class _Encoder:
    """An encoder of FFmpeg, and with which options it holds no frame and makes one key frame."""

    name: str
    options: Mapping[str, str]
    layouts: tuple[str, ...]
    has_quality: bool = True


ENCODERS = {
    "h264": _Encoder(
        "libx264",
        {"tune": "zerolatency", "g": FOREVER, "sc_threshold": "0", "bf": "0", "a53cc": "0"},
        ("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le"),
    ),
    "hevc": _Encoder(
        "libx265",
        {"tune": "zerolatency", "x265-params": f"log-level=none:keyint={FOREVER}:scenecut=0:bframes=0:rc-lookahead=0"},
        ("yuv420p", "yuv422p", "yuv444p", "yuv420p10le"),
    ),
    "mjpeg": _Encoder("mjpeg", {"qmin": "3", "qmax": "3"}, ("yuvj420p",), has_quality=False),
}


@dataclass(frozen=True)
class EncodeOptions:
    """How, and in groups of which length (nanoseconds)."""

    gop: int = 2 * 10**9
    codec: str = "h264"
    preset: str = "veryfast"
    crf: int = 23
    bit_rate: int | None = None
    threads: int = 1
    frame_rate: int = 30
    options: Mapping[str, str] = field(default_factory=dict)

    def quality(self) -> dict[str, str]:
        """Return the options of FFmpeg for speed and quality."""
        if not ENCODERS[self.codec].has_quality:
            return {}
        return {"preset": self.preset, **({} if self.bit_rate is not None else {"crf": str(self.crf)})}


class GroupEncoder:
    """An encoder from a frame on: that one becomes a key frame.

    Parameters
    ----------
    options : EncodeOptions
        What the node was declared with.
    frame : VideoFrame
        The first one.

    Raises
    ------
    InvalidPipeline
        If the encoder does not take the frame, or an option.
    """

    def __init__(self, options: EncodeOptions, frame: VideoFrame) -> None:
        self.begins = frame.pts
        self.form = form_of(frame)
        encoder = ENCODERS[options.codec]
        self._layout = frame.pixel_format if frame.pixel_format in encoder.layouts else encoder.layouts[0]
        with extra("hf.video.encode"):
            import av
        try:
            context = av.VideoCodecContext.create(encoder.name, "w")
            assert isinstance(context, av.VideoCodecContext)
            context.width, context.height, context.pix_fmt = frame.width, frame.height, self._layout
            context.time_base, context.framerate = NANO, Fraction(options.frame_rate)
            context.thread_count, context.thread_type = options.threads, "SLICE"
            context.flags |= av.codec.context.Flags.global_header
            context.options = {**encoder.options, **options.quality(), **options.options}
            if options.bit_rate is not None:
                context.bit_rate = options.bit_rate
            context.open()
        except (av.FFmpegError, ValueError, OverflowError) as error:
            raise InvalidPipeline(
                f"{encoder.name} does not take frames of {frame.width} x {frame.height} {self._layout}.",
                why=f"{error}; its options are {dict(context.options)}.",
                do="H.264 and H.265 need an even width and height; leave out options= to see whether it is one of "
                "these.",
            ) from error
        self._context = context
        self._header = context.extradata or b""
        self._parameters = CodecParameters(
            options.codec, frame.width, frame.height, self._layout, self._header if self._header else b""
        )

    def encode(self, frame: VideoFrame) -> EncodedPacket:
        """Return the packet of a frame.

        Raises
        ------
        InvalidPipeline
            If the encoder gives none, or several.
        """
        made = self._context.encode(frame.to_format(self._layout).picture)
        if len(made) != 1:
            raise InvalidPipeline(
                f"{self._context.name} gave {len(made)} packets for a frame.",
                why="an option makes it hold frames back, and they would be lost where an epoch ends.",
                do="leave out of options= what reorders frames, looks ahead, or has threads for whole frames.",
            )
        is_key = frame.pts == self.begins or made[0].is_keyframe
        data = bytes(made[0])
        if is_key:  # a decoder can begin here, also one that is given no parameters
            return EncodedPacket(self._header + data, frame.pts, frame.pts, 0, True, self._parameters)
        return EncodedPacket(data, frame.pts, frame.pts)


def form_of(frame: VideoFrame) -> tuple[object, ...]:
    """Return what all frames of a group have in common."""
    return (frame.width, frame.height, frame.pixel_format, frame.colour)


class EncodeVideo(Calculator):
    """Encodes frames; see :func:`encode`."""

    contract = Contract(inputs={"frame": VideoFrame}, outputs={"packet": dict}, timestamp_offset=0)

    Options = EncodeOptions

    def __init__(self, options: EncodeOptions) -> None:
        super().__init__(options)
        self._group: GroupEncoder | None = None
        self._place: GroupPlace | None = None
        """That of the next packet; None: nothing was encoded yet, in this epoch."""

    def process(self, context: Context) -> None:
        """Encode a frame."""
        frame: VideoFrame = context["frame"]
        if frame.pts != context.timestamp:  # a calculator has moved it
            frame = frame.copy(context.timestamp)
        group = self._group
        if group is None or frame.pts >= group.begins + self.options.gop or form_of(frame) != group.form:
            self._group = group = GroupEncoder(self.options, frame)
        packet = group.encode(frame).with_place(self._place)
        self._place = packet.next_place
        context.emit("packet", payload_of(packet))

    def save(self) -> Saved:
        """End the group: nothing goes on into the next epoch."""
        self._group, self._place = None, None
        return {}


def encode(
    gop: str | int = "2 s",
    *,
    codec: str = "h264",
    preset: str = "veryfast",
    crf: int = 23,
    bit_rate: int | None = None,
    threads: int = 1,
    frame_rate: int = 30,
    options: Mapping[str, str] | None = None,
    name: str | None = None,
) -> NodeSpec:
    """Return a node that encodes frames: ``frames | hf.video.encode()``.

    Its input is ``frame`` (:class:`VideoFrame`), its output ``packet``: for each frame a mapping of ``is_key`` and
    ``data`` (:class:`EncodedPacket` as bytes), which is a row of encoded video.

    Parameters
    ----------
    gop : str or int
        Length of a group of pictures: a duration, or nanoseconds.  A group begins with a key frame, at the first frame
        at or after this length; also where frames change their size or layout, and after each commit.  Groups are
        closed: each is decoded by itself.
    codec : str
        ``"h264"``, ``"hevc"`` or ``"mjpeg"``.
    preset : str
        Of x264 and x265: ``"ultrafast"`` to ``"placebo"``.
    crf : int
        Constant quality, from 0 (lossless) to 51.
    bit_rate : int, optional
        Bits a second on average, instead of ``crf``; each group is reckoned by itself.
    threads : int
        Threads of an encoder.  The bytes depend on it, so it is a number and not that of the machine's cores.
    frame_rate : int
        Frames a second that ``bit_rate`` and ``crf`` reckon with; frames have times of their own.
    options : mapping of str to str, optional
        More options for FFmpeg's encoder: ``{"profile": "high"}``.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If an argument is none of these.  While frames are encoded: if the encoder does not take their size, or an
        option makes it hold frames back.
    """
    length = duration_us(gop, argument="gop") * 1000 if isinstance(gop, str) else gop
    _check_number("gop", length)
    _check_number("threads", threads)
    _check_number("frame_rate", frame_rate)
    if codec not in ENCODERS:
        raise InvalidPipeline(
            f"hf.video.encode(codec={codec!r}) is not possible.",
            why=f"it encodes {', '.join(ENCODERS)}.",
            do='write hf.video.encode(codec="h264").',
        )
    chosen = EncodeOptions(length, codec, preset, crf, bit_rate, threads, frame_rate, dict(options or {}))
    return node(EncodeVideo, chosen, name=name)


def _check_number(argument: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidPipeline(
            f"hf.video.encode({argument}={value!r}) is not possible.",
            why="it is a number from 1.",
            do='write for instance hf.video.encode(gop="2 s", threads=2, frame_rate=25).',
        )
