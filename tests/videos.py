"""Encoded test streams: moving pictures, made by FFmpeg's encoders, as packets of :mod:`holdfast.video`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from holdfast.flow import Graph
from holdfast.flow.executors import Application
from holdfast.video import CodecParameters, EncodedPacket, VideoFrame, message_times
from holdfast.video.payloads import Message, payload_of

BEGIN = 1_800_000_000 * 10**9
FRAME = 40_000_000
WIDTH, HEIGHT = 160, 96
GOP = 12

STREAMS = {
    "h264 closed": ("libx264", {"x264-params": f"keyint={GOP}:min-keyint={GOP}:bframes=0:scenecut=0"}),
    "h264 B-frames": (
        "libx264",
        {"x264-params": f"keyint={GOP}:min-keyint={GOP}:bframes=3:b-pyramid=normal:scenecut=0:b-adapt=0"},
    ),
    "h264 open": (
        "libx264",
        {"x264-params": f"keyint={GOP}:min-keyint={GOP}:open-gop=1:bframes=3:b-pyramid=normal:scenecut=0:b-adapt=0"},
    ),
    "hevc closed": ("libx265", {"x265-params": f"keyint={GOP}:min-keyint={GOP}:bframes=0:scenecut=0:log-level=none"}),
    "hevc open": (
        "libx265",
        {"x265-params": f"keyint={GOP}:min-keyint={GOP}:bframes=3:open-gop=1:scenecut=0:log-level=none"},
    ),
    "mjpeg": ("mjpeg", {}),
    "av1": ("libsvtav1", {"preset": "12", "g": str(GOP), "svtav1-params": f"keyint={GOP}"}),
}
CODECS = {"libx264": "h264", "libx265": "hevc", "mjpeg": "mjpeg", "libsvtav1": "av1"}


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """Return picture number so-and-so of a scene that moves."""
    scene = np.random.default_rng(7).integers(0, 255, (height // 8, width // 4, 3), dtype=np.uint8)
    made = np.roll(scene.repeat(8, 0).repeat(8, 1), 3 * number, axis=1)[:, :width].copy()
    left = 5 * number % (width - 16)
    made[8:24, left : left + 16] = 255
    return made


def frame_of(number: int, width: int = WIDTH, height: int = HEIGHT, pixel_format: str = "yuv420p") -> VideoFrame:
    """Return the same as a frame."""
    frame = VideoFrame.from_array(picture(number, width, height), BEGIN + number * FRAME)
    return frame.to_format(pixel_format)


@cache
def packets_of(
    stream: str, count: int = 5 * GOP, pixel_format: str = "", width: int = WIDTH, height: int = HEIGHT
) -> Sequence[EncodedPacket]:
    """Return the packets of a stream, in the order of decoding."""
    name, options = STREAMS[stream]
    pixel_format = pixel_format or ("yuvj420p" if name == "mjpeg" else "yuv420p")
    encoder = av.VideoCodecContext.create(name, "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = width, height, pixel_format
    encoder.time_base, encoder.framerate, encoder.options = Fraction(1, 10**9), Fraction(25), options
    made = [
        packet
        for number in range(count)
        for packet in encoder.encode(frame_of(number, width, height, pixel_format).picture)
    ]
    made += encoder.encode(None)
    parameters = CodecParameters(CODECS[name], width, height, pixel_format)
    return [
        EncodedPacket(bytes(p), p.pts or 0, p.dts, 0, p.is_keyframe, parameters if p.is_keyframe else None)
        for p in made
    ]


def messages_of(packets: Sequence[EncodedPacket]) -> list[tuple[int, Message]]:
    """Return packets as those of a graph."""
    return [(t, payload_of(packet)) for t, packet in message_times(packets)]


def run(node: object, packets: Sequence[tuple[int, object]]) -> dict[str, list[tuple[int, Any]]]:
    """Return what a node makes of packets, by output."""
    graph = Graph("trial")
    made = graph.input("given") | node
    for name, stream in graph.nodes[next(iter(graph.nodes))].outputs.items():
        graph.output(name, stream)
    assert made is not None
    return graph.run({"given": packets}, executor=Application())
