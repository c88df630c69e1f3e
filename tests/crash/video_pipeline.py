"""The pipelines of examples/video that are killed to show that no frame is lost and none is doubled (issue 39).

``both``: events and video of one decode, committed at pts.  ``pair``: two cameras whose output needs both, with frames
that wait for each other, and a shared model.
"""

from __future__ import annotations

import os

os.environ["VIDEO_WORK"] = os.environ["CRASH_WORK"]

from examples.video import both, cameras

pipeline = {"both": both.pipeline, "pair": cameras.pair}[os.environ["VIDEO_PIPELINE"]]
