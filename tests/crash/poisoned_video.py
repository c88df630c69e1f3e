"""A pipeline of which one frame kills the process that detects something in it, as a fault in a library does."""

from __future__ import annotations

import os
import signal

os.environ["VIDEO_WORK"] = os.environ["CRASH_WORK"]

import holdfast as hf
from examples.video import places
from examples.video.messages import message

BAD = int(os.environ["CRASH_BAD"])


def deadly(frame: hf.video.VideoFrame) -> list:
    """Find nothing; die of one frame."""
    if frame.pts == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return []


graph = hf.flow.Graph("poisoned")
decoded = graph.input("packet", dict) | hf.video.decode()
frame = decoded["frame"]
objects = {"frame": frame} | hf.flow.node(deadly)
graph.output("events", {"frame": frame, "objects": objects} | hf.flow.node(message))
made = places.camera("gate") | hf.flow(graph, by="stream", schema=places.EVENT, name="seen")
pipeline = hf.Pipeline("poisoned", made | places.table("events"))
