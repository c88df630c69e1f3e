"""A decoded frame: a payload of flowgraphs, passed by reference and never a row.

A frame has one of two forms and makes the other when it is asked for: the picture as FFmpeg has it, which calculators
work with, and plain bytes, which a checkpoint stores where a frame waits in a queue when an epoch ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.video.library import extra

if TYPE_CHECKING:
    from av import VideoFrame as Picture

NANO = Fraction(1, 10**9)
"""The unit of all times, for PyAV."""

_COLOUR = ("color_range", "colorspace", "color_primaries", "color_trc")


@dataclass(init=False, eq=False, repr=False)
class VideoFrame:
    """A picture and its time.

    Parameters
    ----------
    picture : av.VideoFrame
        In system memory.  It belongs to the frame from now on: neither it nor its planes may be changed.
    pts : int
        When it is shown: nanoseconds of Unix time.

    Attributes
    ----------
    pts : int
        Nanoseconds of Unix time.
    width, height : int
        Pixels.
    pixel_format : str
        FFmpeg's name of the layout: ``"yuv420p"``.
    colour : tuple of int
        FFmpeg's numbers for range, matrix, primaries and transfer function.
    data : bytes
        The planes, one after the other, without padding.

    Examples
    --------
    >>> import numpy as np
    >>> frame = VideoFrame.from_array(np.zeros((48, 64, 3), np.uint8), pts=0)
    >>> frame.width, frame.height, frame.to_array("gray", width=32).shape
    (64, 48, (24, 32))
    """

    pts: int
    width: int
    height: int
    pixel_format: str
    colour: tuple[int, ...]
    data: bytes

    def __init__(self, picture: Picture, pts: int) -> None:
        self.pts = picture.pts = pts
        picture.time_base = NANO
        picture.pict_type = 0  # or an encoder would make the kind of frame of it that the decoder had
        self.width = picture.width
        self.height = picture.height
        self.pixel_format = picture.format.name
        self.colour = tuple(int(getattr(picture, name)) for name in _COLOUR)
        self._picture = picture

    def __getattr__(self, name: str) -> Any:
        if name == "data" and "_picture" in vars(self):
            return b"".join(np.ascontiguousarray(plane).tobytes() for plane in self.planes())
        if name == "_picture" and "data" in vars(self):
            self._picture = _picture_of(self)
            return self._picture
        raise AttributeError(name)

    @classmethod
    def from_array(cls, array: NDArray[Any], pts: int, pixel_format: str = "rgb24") -> VideoFrame:
        """Return a frame of an array: height x width x 3 for ``"rgb24"``, height x width for ``"gray"``."""
        with extra("A video frame"):
            from av import VideoFrame as Picture
        return cls(Picture.from_ndarray(array, format=pixel_format), pts)

    @property
    def picture(self) -> Picture:
        """The picture as PyAV has it; not to be changed."""
        return self._picture

    def planes(self) -> Sequence[NDArray[np.uint8]]:
        """Return the bytes of each plane as a view, read-only: lines x bytes of a line; of YUV the first is luma."""
        return [_view(self._picture, number) for number in range(len(self._picture.planes))]

    def to_array(
        self, pixel_format: str = "rgb24", *, width: int | None = None, height: int | None = None
    ) -> NDArray[Any]:
        """Return the picture as an array of its own, converted and scaled.

        Parameters
        ----------
        pixel_format : str
            ``"rgb24"``, ``"bgr24"`` (OpenCV's), ``"gray"``, or another one that PyAV makes arrays of.
        width, height : int, optional
            Of a reduced picture; one alone keeps the proportions.

        Returns
        -------
        numpy.ndarray
            Height x width, x 3 for colours.
        """
        if width is None and height is not None:
            width = max(1, round(self.width * height / self.height))
        if height is None and width is not None:
            height = max(1, round(self.height * width / self.width))
        made = self._picture.reformat(width or self.width, height or self.height, pixel_format)
        return made.to_ndarray()

    def to_format(self, pixel_format: str) -> VideoFrame:
        """Return the frame in another layout; the frame itself where it has that one."""
        if pixel_format == self.pixel_format:
            return self
        return VideoFrame(self._picture.reformat(format=pixel_format), self.pts)

    def copy(self, pts: int | None = None) -> VideoFrame:
        """Return a frame with planes of its own, at another time where one is said."""
        made = object.__new__(VideoFrame)
        made.pts = self.pts if pts is None else pts
        made.width, made.height = self.width, self.height
        made.pixel_format, made.colour = self.pixel_format, self.colour
        made._picture = _copy_of(self.planes(), made)
        return made

    def pixels(self) -> Sequence[NDArray[np.uint8]]:
        """Return the pixels of each plane to be drawn on, of a copy that nobody else has: lines x pixels (x bytes)."""
        views = [_view(self._picture, number, is_writable=True) for number in range(len(self._picture.planes))]
        width = self.width
        return [
            view.reshape(len(view), width, -1) if len(views) == 1 and view.shape[1] > width else view for view in views
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VideoFrame):
            return NotImplemented
        mine, theirs = ((each.pts, each.width, each.height, each.pixel_format, each.colour) for each in (self, other))
        return mine == theirs and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VideoFrame({self.width}x{self.height} {self.pixel_format} at {self.pts})"


@lru_cache
def _sizes(pixel_format: str, width: int, height: int) -> tuple[tuple[int, int], ...]:
    """Return of each plane its lines, and the bytes of a line without padding."""
    with extra("A video frame"):
        from av import VideoFormat
    layout = VideoFormat(pixel_format, width, height)
    planes = sorted({each.plane for each in layout.components})
    if len(planes) == 1:
        return ((height, width * layout.padded_bits_per_pixel // 8),)
    parts = [[each for each in layout.components if each.plane == number] for number in planes]
    return tuple((max(c.height for c in of), sum(c.width * (-(-c.bits // 8)) for c in of)) for of in parts)


def _view(picture: Picture, number: int, *, is_writable: bool = False) -> NDArray[np.uint8]:
    plane = picture.planes[number]
    height, width = _sizes(picture.format.name, picture.width, picture.height)[number]
    view: NDArray[np.uint8] = np.frombuffer(memoryview(plane), np.uint8)[: height * plane.line_size].reshape(
        height, plane.line_size
    )[:, :width]
    view.flags.writeable = is_writable
    return view


def _copy_of(planes: Sequence[NDArray[np.uint8]], frame: VideoFrame) -> Picture:
    with extra("A video frame"):
        from av import VideoFrame as Picture
    made = Picture(frame.width, frame.height, frame.pixel_format)
    for number, plane in enumerate(planes):
        _view(made, number, is_writable=True)[:] = plane
    for name, value in zip(_COLOUR, frame.colour, strict=True):
        setattr(made, name, value)
    made.pts, made.time_base = frame.pts, NANO
    return made


def _picture_of(frame: VideoFrame) -> Picture:
    """Return the picture of a frame that was stored."""
    planes: list[NDArray[np.uint8]] = []
    place = 0
    for height, width in _sizes(frame.pixel_format, frame.width, frame.height):
        planes.append(np.frombuffer(frame.data, np.uint8, height * width, place).reshape(height, width))
        place += height * width
    return _copy_of(planes, frame)
