"""Cameras that are not there: numbered things that move, and in each picture its own number, to be read by a machine.

The same seed gives the same pictures.  The strip along the upper edge has 32 cells, black or white, so large that they
survive any codec: camera, number of the frame, and a checksum of both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT = 640, 360
FRAMES_PER_S = 15
KEY_EVERY_S = 2
BEGINS = 1_767_225_600_000_000_000
"""Time of frame 0 of all cameras: nanoseconds of Unix time, the first of January 2026."""

THINGS, AWAY_EVERY, AWAY_FOR = 4, 160, 16
"""Each thing is away for a second, every ten."""

MARGIN_SHARE = 16

CELLS = 32
_CHECKSUM = 0xFFF
STRIP_SHARE = 1 / 20
"""Height of the strip, as a share of the picture's."""

Picture = np.ndarray
"""Rows of pixels of three bytes, blue, green, red; or grey: of one."""


@dataclass(frozen=True)
class Camera:
    """A camera.

    Parameters
    ----------
    name : str
        Of its stream.
    number : int
        0 to 15: what its strip says.
    shift : int
        Pixels by which the nearest thing stands further to the left than camera 0 sees it: of two cameras side by
        side the right one has some, at most a sixteenth of the width.
    misses : int
        It loses every so many-th frame; 0: none.
    options : mapping of str to str
        Of the encoder.
    """

    name: str
    number: int
    shift: int = 0
    misses: int = 0
    options: Mapping[str, str] = field(default_factory=lambda: {"bf": "0"})

    def frames(self, seconds: float) -> list[int]:
        """Return the numbers of its frames."""
        numbers = range(int(seconds * FRAMES_PER_S))
        return [number for number in numbers if not self.misses or (number + self.number) % self.misses]


GATE = Camera("gate", 0)
LEFT = Camera("left", 1, misses=11, options={"bf": "2"})
RIGHT = Camera("right", 2, shift=40, misses=7, options={"bf": "2", "x264-params": "open-gop=1"})
CAMERAS = (GATE, LEFT, RIGHT)


def time_of(number: int) -> int:
    """Return the time of a frame: nanoseconds of Unix time.

    Examples
    --------
    >>> time_of(15) - time_of(0)
    1000000000
    """
    return BEGINS + number * 1_000_000_000 // FRAMES_PER_S


def picture_of(camera: Camera, number: int, seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """Return a frame of a camera."""
    picture = _background(seed, width, height).copy()
    chance = np.random.default_rng([seed, 7])
    radius = height // 14
    for thing in range(THINGS):
        if (number + 40 * thing) % AWAY_EVERY < AWAY_FOR:
            chance.uniform(size=3)
            continue
        lane = int(height * (0.22 + 0.2 * thing))
        speed, start, phase = chance.uniform(0.6, 2.2), chance.uniform(0, 1), chance.uniform(0, 6)
        reach = width - 4 * radius - width // MARGIN_SHARE
        x = width // MARGIN_SHARE + int(reach * _there_and_back(start + number * speed / (FRAMES_PER_S * 10)))
        x += 2 * radius - camera.shift * width // WIDTH * (thing + 1) // THINGS  # the higher its number, the nearer
        y = lane + int(radius * 0.4 * np.sin(phase + number / 9))
        colour = ((90, 220, 250), (250, 210, 120), (140, 250, 140), (230, 160, 250))[thing]
        cv2.circle(picture, (x, y), radius, colour, -1)
        size = radius / 18
        cv2.putText(
            picture, str(thing), (x - radius // 3, y + radius // 3), cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), 2
        )
    _draw_strip(picture, camera.number, number)
    return picture


def strip_of(grey: Picture) -> tuple[int, int] | None:
    """Return which camera and which frame a picture says that it is; None where that cannot be read.

    Parameters
    ----------
    grey : ndarray
        Of bytes, (height, width).

    Examples
    --------
    >>> strip_of(cv2.cvtColor(picture_of(RIGHT, 812), cv2.COLOR_BGR2GRAY))
    (2, 812)
    """
    height, width = grey.shape
    row = grey[: max(int(height * STRIP_SHARE), 1)]
    inner = row[row.shape[0] // 4 : max(row.shape[0] * 3 // 4, 1)]
    bits = 0
    for cell in range(CELLS):
        left, right = cell * width // CELLS, (cell + 1) * width // CELLS
        edge = (right - left) // 4
        bits = bits << 1 | int(inner[:, left + edge : right - edge].mean() > 127)
    said = bits >> 12
    return (said >> 16, said & 0xFFFF) if bits == _with_checksum(said) else None


def film(path: Path, camera: Camera, seconds: float, seed: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Write a video file of a camera: H.264, a key frame every two seconds."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_S)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, FRAMES_PER_S)
        stream.codec_context.gop_size = FRAMES_PER_S * KEY_EVERY_S
        stream.options = {"preset": "veryfast", "crf": "26", "sc_threshold": "0", "threads": "1", **camera.options}
        for number, picture in pictures(camera, seconds, seed, size):
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def pictures(
    camera: Camera, seconds: float, seed: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)
) -> Iterator[tuple[int, Picture]]:
    """Yield number and picture of each frame."""
    for number in camera.frames(seconds):
        yield number, picture_of(camera, number, seed, *size)


def _there_and_back(way: float) -> float:
    """Return where something is that goes from 0 to 1 and back, again and again."""
    way %= 2
    return way if way < 1 else 2 - way


_backgrounds: dict[tuple[int, int, int], Picture] = {}


def _background(seed: int, width: int, height: int) -> Picture:
    if (seed, width, height) not in _backgrounds:
        noise = np.random.default_rng([seed, 3]).integers(0, 12, (height // 4 + 1, width // 4 + 1, 3))
        fine = cv2.resize(noise.astype(np.uint8), (width, height), interpolation=cv2.INTER_LINEAR)
        shade = np.linspace(40, 90, height, dtype=np.uint8)[:, None, None]
        _backgrounds[seed, width, height] = fine + shade
    return _backgrounds[seed, width, height]


def _with_checksum(said: int) -> int:
    return said << 12 | (zlib.crc32(said.to_bytes(4, "big")) & _CHECKSUM)


def _draw_strip(picture: Picture, camera: int, number: int) -> None:
    height, width = picture.shape[:2]
    bits = _with_checksum(camera << 16 | number)
    for cell in range(CELLS):
        left, right = cell * width // CELLS, (cell + 1) * width // CELLS
        picture[: int(height * STRIP_SHARE), left:right] = 255 * (bits >> (CELLS - 1 - cell) & 1)
