"""Gives each thing a number that it keeps from frame to frame, and over a crash: its state goes into the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast as hf
from examples.video.detector import Box

LOST_AFTER = 8
"""Frames without a thing, after which it is another one that comes back."""

FAR = 3.0
"""How many of its own widths a thing may move between two frames."""


class Track(hf.flow.Calculator):
    """Numbers boxes: each goes to the nearest thing that is known, or it is a new one."""

    contract = hf.flow.Contract(inputs={"boxes": list}, outputs={"objects": list}, timestamp_offset=0)

    def open(self, context: hf.flow.Context) -> None:
        """Begin without things."""
        self.count = 0
        self.known: dict[int, tuple[Box, int]] = {}  # number -> where it was, and for how many frames it is away

    def process(self, context: hf.flow.Context) -> None:
        """Number the boxes of a frame."""
        boxes, objects = list(context["boxes"]), []
        for number, (before, away) in sorted(self.known.items()):
            near = min(boxes, key=lambda box: _distance(box, before), default=None)
            if near is not None and _distance(near, before) < FAR * before[2]:
                boxes.remove(near)
                objects.append((number, near))
            elif away < LOST_AFTER:
                self.known[number] = (before, away + 1)
            else:
                del self.known[number]
        for box in boxes:
            objects.append((self.count, box))
            self.count += 1
        self.known |= {number: (box, 0) for number, box in objects}
        context.emit("objects", [_thing(number, *box) for number, box in objects])

    def save(self) -> Mapping[str, Any]:
        """Return what goes into the checkpoint."""
        return {"count": self.count, "known": self.known}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.count, self.known = saved["count"], dict(saved["known"])


def _thing(number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"x": x, "y": y, "width": width, "height": height, "label": f"#{number}"}


def _distance(one: Box, other: Box) -> float:
    return abs(one[0] + one[2] / 2 - other[0] - other[2] / 2) + abs(one[1] + one[3] / 2 - other[1] - other[3] / 2)
