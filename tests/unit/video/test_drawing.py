"""``hf.video.draw``: boxes and labels, on copies; and what a frame can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import holdfast as hf
from holdfast.flow import Graph
from holdfast.flow.executors import Application
from holdfast.video import VideoFrame
from holdfast.video.drawing import LAYOUTS
from tests.videos import BEGIN, frame_of

pytestmark = pytest.mark.slow


def drawn(frame: VideoFrame, boxes: object, **options: object) -> VideoFrame:
    graph = Graph("trial")
    inputs = {"frame": graph.input("frame"), "boxes": graph.input("boxes")}
    graph.output("frame", inputs | hf.video.draw(**options))  # type: ignore[arg-type]
    given: dict[str, Any] = {"frame": [(frame.pts, frame)], "boxes": [] if boxes is None else [(frame.pts, boxes)]}
    ((t, made),) = graph.run(given, executor=Application())["frame"]
    assert t == frame.pts
    return made


def black(pixel_format: str, width: int = 160, height: int = 96) -> VideoFrame:
    return VideoFrame.from_array(np.zeros((height, width, 3), np.uint8), BEGIN).to_format(pixel_format)


@pytest.mark.parametrize("pixel_format", LAYOUTS)
def test_a_box_is_where_it_was_said_and_has_its_colour(pixel_format: str) -> None:
    made = drawn(black(pixel_format), [{"x": 40, "y": 20, "width": 60, "height": 40}], colour=(255, 0, 0))
    assert (made.width, made.height, made.pixel_format) == (160, 96, pixel_format)
    picture = made.to_array("rgb24").astype(int)
    lit = picture.max(axis=2) > 50
    assert lit[20, 40:100].all()
    assert lit[20:60, 40].all()
    assert not lit[26:54, 46:94].any()
    assert not lit[:14].any()
    red, green, blue = picture[20, 60]
    assert (green == red) if pixel_format == "gray" else (red > 150 and green < 80 and blue < 80)


def test_a_label_is_above_its_box_and_a_box_has_a_colour_of_its_own() -> None:
    @dataclass
    class Found:
        x: float = 40
        y: float = 50
        width: float = 60
        height: float = 30
        label: str = "car 7"
        colour: tuple[int, int, int] = (255, 255, 255)

    plain, labelled = (drawn(black("yuv420p"), [each]) for each in (Found(label=""), Found()))
    above = slice(30, 47)
    assert plain.to_array("gray")[above].max() < 20
    assert labelled.to_array("gray")[above].max() > 200


@pytest.mark.parametrize("boxes", [None, [], [{"x": 1, "y": 1, "width": 5, "height": 5}]])
def test_a_shared_frame_stays_as_it_was(boxes: object) -> None:
    frame = frame_of(3)
    before = frame.data
    made = drawn(frame, boxes)
    assert frame.data == before
    assert (made is frame) == (not boxes)
    assert (made == frame) == (not boxes)


def test_other_layouts_become_one_that_can_be_drawn_on() -> None:
    assert drawn(black("yuv420p10le"), [{"x": 1, "y": 1, "width": 9, "height": 9}]).pixel_format == "yuv420p"


def test_a_box_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(hf.InvalidPipeline, match=r"given \{'x': 1\} for a box"):
        drawn(black("gray"), [{"x": 1}])


@pytest.mark.parametrize(
    "pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "nv12", "gray", "rgb24", "bgra"]
)
@pytest.mark.parametrize("size", [(160, 96), (50, 34)])
def test_a_frame_is_the_same_after_it_was_stored(pixel_format: str, size: tuple[int, int]) -> None:
    frame = frame_of(5).to_format("rgb24")
    frame = VideoFrame.from_array(frame.to_array(width=size[0], height=size[1]), BEGIN).to_format(pixel_format)
    graph = Graph("stored")
    graph.input("frame", VideoFrame)
    again = graph.codec.decode(graph.codec.encode(frame, of="the test"), of="the test")
    assert again == frame
    assert again.picture.pts == BEGIN
    assert np.array_equal(again.to_array(), frame.to_array())
    assert frame.copy() == frame
    assert frame.copy(7).pts == 7
    assert frame.copy(7) != frame


def test_planes_are_views_that_cannot_be_written() -> None:
    planes = frame_of(0).planes()
    assert [plane.shape for plane in planes] == [(96, 160), (48, 80), (48, 80)]
    with pytest.raises(ValueError, match="read-only"):
        planes[0][0, 0] = 1


def test_a_reduced_picture_keeps_its_proportions() -> None:
    frame = frame_of(0)
    assert frame.to_array("gray", height=48).shape == (48, 80)
    assert frame.to_array("bgr24", width=80).shape == (48, 80, 3)
    assert repr(frame) == f"VideoFrame(160x96 yuv420p at {BEGIN})"
