"""What stands out of a picture's background: classical by default, or an ONNX model where a file is given.

A detector gets a small picture and returns boxes in its pixels.  What it says of a picture depends on that one alone,
so frames of any cameras may share its batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import cv2
import numpy as np
import pyarrow as pa

import holdfast as hf

Box = tuple[int, int, int, int]
"""Left, upper, width and height, pixels."""

Detect = Callable[[np.ndarray], list[Box]]
"""Finds boxes in a picture, (height, width, 3): blue, green, red."""

BACKGROUND_SHARE = 1 / 3
"""How large a piece of the background is, as a share of the picture's height: larger than what moves on it."""

CONTRAST, AREA_MIN, SCORE_MIN = 45, 20, 0.5
SMALL = 160
"""Width of the picture that a detector gets, pixels."""

MODEL = os.environ.get("VIDEO_MODEL", "")
"""File of an ONNX model; empty: the classical detector."""


def find_blobs(picture: np.ndarray) -> list[Box]:
    """Subtract the background, which is what a median over a large neighbourhood leaves, and box what remains."""
    grey = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)
    size = int(grey.shape[0] * BACKGROUND_SHARE) | 1
    apart = cv2.absdiff(grey, cv2.medianBlur(grey, size)) > CONTRAST
    apart[: grey.shape[0] // 11] = False  # the strip with the frame's number
    contours, _ = cv2.findContours(apart.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boundingRect(contour) for contour in contours]
    return sorted((x, y, w, h) for x, y, w, h in boxes if w * h >= AREA_MIN)


def onnx_model(path: str) -> Detect:
    """Load a model that has one picture as input, (1, 3, height, width), red, green, blue from 0 to 1.

    Its first output has a row for each box, (1, n, 5 or more): left, upper, right, lower, score.  So export detectors
    whose last layer drops overlapping boxes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # sums in one order, so that a repeated call gives the same
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (wanted,) = session.get_inputs()
    height, width = wanted.shape[2:]

    def find(picture: np.ndarray) -> list[Box]:
        rgb = cv2.cvtColor(cv2.resize(picture, (width, height)), cv2.COLOR_BGR2RGB)
        rows = session.run(None, {wanted.name: rgb.transpose(2, 0, 1)[None].astype(np.float32) / 255})[0][0]
        wider, higher = picture.shape[1] / width, picture.shape[0] / height
        return sorted(
            (int(x * wider), int(y * higher), int((right - x) * wider), int((lower - y) * higher))
            for x, y, right, lower, score in rows[:, :5].tolist()
            if score >= SCORE_MIN
        )

    return find


@cache
def detector_of(model: str = "") -> Detect:
    """Return the detector of a model's file; the classical one without a file."""
    cv2.setNumThreads(1)
    return onnx_model(model) if model else find_blobs


def detect(frame: hf.video.VideoFrame) -> list:
    """Find boxes in a frame, in its own pixels: a calculator that has the detector in its own process."""
    small = frame.to_array("bgr24", width=SMALL)
    return _enlarged(detector_of(MODEL)(small), frame.width / SMALL)


class Detector:
    """The same for :func:`hf.shared`: one for all pipelines of a host."""

    def __init__(self, model: str) -> None:
        self.find = detector_of(model)

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the boxes of each picture."""
        found = []
        for picture, width in zip(batch["picture"].to_pylist(), batch["width"].to_pylist(), strict=True):
            boxes = self.find(np.frombuffer(picture, np.uint8).reshape(-1, width, 3))
            found.append([list(box) for box in boxes])
        return pa.table({"boxes": pa.array(found, pa.list_(pa.list_(pa.int32())))})


shared = hf.shared(
    Detector, "boxes ARRAY<ARRAY<INT>>", inputs="picture BINARY, width INT", device=MODEL, max_delay="2 ms"
)


def detect_together(frame: hf.video.VideoFrame) -> list:
    """Find boxes in a frame: a calculator that asks the shared detector.  Only a small picture goes there."""
    small = frame.to_array("bgr24", width=SMALL)
    boxes = shared.row(picture=small.tobytes(), width=SMALL)["boxes"]
    return _enlarged([(x, y, w, h) for x, y, w, h in boxes], frame.width / SMALL)


def _enlarged(boxes: list[Box], by: float) -> list[Box]:
    return [(round(x * by), round(y * by), round(w * by), round(h * by)) for x, y, w, h in boxes]
