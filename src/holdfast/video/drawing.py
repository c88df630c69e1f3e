"""``hf.video.draw``: boxes and labels on frames.

It is drawn on the planes as they are: nothing is converted and back.  Frames are shared with other calculators, so what
is drawn on is a copy; a frame without boxes is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidPipeline
from holdfast.flow.building import NodeSpec, node
from holdfast.flow.contract import Calculator, Contract
from holdfast.video.frames import VideoFrame
from holdfast.video.library import extra

if TYPE_CHECKING:
    from holdfast.flow.context import Context

LAYOUTS = ("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "gray", "rgb24", "bgr24")
"""Layouts that are drawn on as they are; others become the first of them."""

Colour = tuple[int, int, int]

_SHIFT = 4
"""Bits of a pixel's fraction, for planes of fewer pixels than the picture."""


@dataclass(frozen=True)
class DrawOptions:
    """How boxes look."""

    colour: Colour = (0, 255, 0)
    thickness: int = 2
    text_height: int = 16


class DrawBoxes(Calculator):
    """Draws boxes on frames; see :func:`draw`."""

    contract = Contract(
        inputs={"frame": VideoFrame, "boxes": None}, outputs={"frame": VideoFrame}, timestamp_offset=0, is_pure=True
    )

    Options = DrawOptions

    def process(self, context: Context) -> None:
        """Draw what came with a frame."""
        if "frame" not in context:
            return
        frame: VideoFrame = context["frame"]
        boxes = [_box(each) for each in context.get("boxes") or ()]
        if boxes:
            frame = frame.copy() if frame.pixel_format in LAYOUTS else frame.to_format(LAYOUTS[0])
            planes = frame.pixels()
            for each in boxes:
                self._draw(planes, frame, each)
        context.emit("frame", frame)

    def _draw(self, planes: Sequence[Any], frame: VideoFrame, box: FrameBox) -> None:
        with extra("hf.video.draw"):
            import cv2
        height = self.options.text_height
        for plane, value in zip(planes, _values(frame.pixel_format, box.colour or self.options.colour), strict=True):
            across, down = plane.shape[1] / frame.width, plane.shape[0] / frame.height

            def at(x: float, y: float, across: float = across, down: float = down) -> tuple[int, int]:
                return round(x * across * (1 << _SHIFT)), round(y * down * (1 << _SHIFT))

            thick = max(1, round(self.options.thickness * down))
            corners = at(box.x, box.y), at(box.x + box.width, box.y + box.height)
            cv2.rectangle(plane, *corners, value, thick, cv2.LINE_8, _SHIFT)
            if box.label:
                left, low = at(box.x, max(height, box.y - self.options.thickness - 2))
                place = (left >> _SHIFT, low >> _SHIFT)
                scale = cv2.getFontScaleFromHeight(cv2.FONT_HERSHEY_SIMPLEX, height, 1) * down
                cv2.putText(plane, box.label, place, cv2.FONT_HERSHEY_SIMPLEX, scale, value, thick, cv2.LINE_8)


@dataclass(frozen=True)
class FrameBox:
    """A rectangle on a frame, in pixels from the upper left corner, with a label."""

    x: float
    y: float
    width: float
    height: float
    label: str = ""
    colour: Colour | None = None


def _box(given: object) -> FrameBox:
    """Return a box, of a mapping or an object that has its fields.

    Raises
    ------
    InvalidPipeline
        If it lacks one.
    """
    if isinstance(given, FrameBox):
        return given
    fields = given if isinstance(given, Mapping) else vars(given) if hasattr(given, "__dict__") else {}
    try:
        x, y, width, height = (float(fields[name]) for name in ("x", "y", "width", "height"))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPipeline(
            f"hf.video.draw is given {given!r} for a box.",
            why=f"{type(error).__name__}: {error}.",
            do="give x, y, width and height in pixels, and a label where there is one.",
        ) from None
    return FrameBox(x, y, width, height, str(fields.get("label") or ""), fields.get("colour"))


def _values(pixel_format: str, colour: Colour) -> Sequence[Any]:
    """Return a colour (red, green, blue) as the values of each plane of a layout; YUV by BT.601."""
    red, green, blue = colour
    if pixel_format in ("rgb24", "bgr24"):
        return [colour if pixel_format == "rgb24" else (blue, green, red)]
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    if pixel_format == "gray":
        return [round(luma)]
    low, scale, chroma = (0.0, 1.0, 1.0) if pixel_format == "yuvj420p" else (16.0, 219 / 255, 224 / 255)
    u, v = 0.564 * (blue - luma), 0.713 * (red - luma)
    return [round(low + scale * luma), round(128 + chroma * u), round(128 + chroma * v)]


def draw(
    colour: Colour = (0, 255, 0), *, thickness: int = 2, text_height: int = 16, name: str | None = None
) -> NodeSpec:
    """Return a node that draws boxes: ``{"frame": frames, "boxes": boxes} | hf.video.draw()``.

    Its inputs are ``frame`` (:class:`VideoFrame`) and ``boxes``, at the time of a frame: a sequence of mappings or
    objects with ``x``, ``y``, ``width`` and ``height`` in pixels, and ``label`` and ``colour`` where there are some.
    Its output is ``frame``: each frame, with boxes drawn on a copy.

    Parameters
    ----------
    colour : tuple of int
        Red, green and blue, 0 to 255, of boxes that have none of their own.
    thickness : int
        Pixels of a line.
    text_height : int
        Pixels of a capital letter.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        While frames come: if a box lacks a field.
    """
    return node(DrawBoxes, DrawOptions(colour, thickness, text_height), name=name)
