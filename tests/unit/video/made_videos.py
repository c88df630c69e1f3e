"""Small videos of numbered pictures, in whatever container and codec a test needs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from holdfast.video.parameters import new_decoder

av: Any = __import__("av")

OPEN_GOPS = {"bf": "2", "x264-params": "keyint=12:min-keyint=12:open-gop=1:b-adapt=0:scenecut=0:bframes=2"}
CLOSED_GOPS = {"bf": "0", "x264-params": "keyint=12:min-keyint=12:scenecut=0"}


def number_of(frame: Any) -> int:
    """Return the number that a picture carries as its brightness: eight vertical bars, a bit each."""
    grey = frame.to_ndarray(format="gray")
    width = grey.shape[1] // 8
    return sum(1 << bit for bit in range(8) if grey[:, bit * width + 4 : (bit + 1) * width - 4].mean() > 128)


def picture(number: int, width: int = 160, height: int = 96, pixels: str = "yuv420p") -> Any:
    grey = np.zeros((height, width), np.uint8)
    for bit in range(8):
        if number >> bit & 1:
            grey[:, bit * width // 8 : (bit + 1) * width // 8] = 255
    return av.VideoFrame.from_ndarray(grey, format="gray").reformat(format=pixels)


def write_video(
    path: Path,
    count: int = 48,
    *,
    codec: str = "libx264",
    container: str | None = None,
    options: dict[str, str] | None = None,
    pixels: str = "yuv420p",
    size: tuple[int, int] = (160, 96),
    rate: int = 25,
    audio: bool = False,
    created: str | None = None,
    muxer: dict[str, str] | None = None,
    first: int = 0,
) -> Path:
    """Write pictures with the numbers from ``first`` on, one each 40 ms."""
    with av.open(str(path), "w", format=container, container_options=muxer or {}) as out:
        if created:
            out.metadata["creation_time"] = created
        stream = out.add_stream(codec, rate=rate, options={"preset": "ultrafast", **(options or OPEN_GOPS)})
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        sound = out.add_stream("aac", rate=48000) if audio else None
        for number in range(count):
            frame = picture(first + number, *size, pixels)
            frame.pts, frame.time_base = number, Fraction(1, rate)
            out.mux(stream.encode(frame))
            if sound is not None:
                silence = av.AudioFrame.from_ndarray(np.zeros((1, 1920), np.float32), format="fltp", layout="mono")
                silence.sample_rate, silence.pts = 48000, number * 1920
                out.mux(sound.encode(silence))
        out.mux(stream.encode(None))
        if sound is not None:
            out.mux(sound.encode(None))
    return path


def decoded(packets: Any) -> list[tuple[int, int]]:
    """Return (pts, number) of the pictures of packets, as a fresh decoder shows them."""
    decoder, shown, now = None, [], None
    for packet in packets:
        if packet.parameters is not None and packet.parameters != now:
            if decoder is not None:
                shown += [(frame.pts, number_of(frame)) for frame in decoder.decode(None)]
            now = packet.parameters
            decoder = cast("Any", new_decoder(now))
        fed = av.Packet(packet.data)
        fed.pts, fed.dts, fed.time_base = packet.pts, packet.dts, Fraction(1, 10**9)
        if decoder is not None:
            shown += [(frame.pts, number_of(frame)) for frame in decoder.decode(fed)]
    if decoder is not None:
        shown += [(frame.pts, number_of(frame)) for frame in decoder.decode(None)]
    return shown
