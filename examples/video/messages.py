"""What is told of a frame: its number, and the things in it."""

from __future__ import annotations

import json

import numpy as np

import holdfast as hf
from examples.video.scene import strip_of

NEAR = 24
"""Pixels by which one thing may be higher in one picture than in the other."""


def message(frame: hf.video.VideoFrame, objects: list) -> dict:
    """Tell of one camera's frame."""
    return {"frame": _number_of(frame), "objects": json.dumps(objects)}


def message_of_both(left: hf.video.VideoFrame, left_boxes: list, right_boxes: list) -> dict:
    """Tell of two cameras' frames of one time: the further a thing is shifted between them, the nearer it is."""
    pairs = [
        {"box": list(box), "shift": box[0] - other[0]}
        for box in left_boxes
        for other in right_boxes
        if abs(box[1] - other[1]) < NEAR
    ]
    return {"frame": _number_of(left), "objects": json.dumps(pairs)}


def side_by_side(left: hf.video.VideoFrame, right: hf.video.VideoFrame) -> hf.video.VideoFrame:
    """Put two frames of one time into one."""
    return hf.video.VideoFrame.from_array(np.hstack([left.to_array(), right.to_array()]), pts=left.pts)


def _number_of(frame: hf.video.VideoFrame) -> int | None:
    """Return the number in the strip; None in a picture that has none."""
    said = strip_of(frame.planes()[0])
    return None if said is None else said[1]
