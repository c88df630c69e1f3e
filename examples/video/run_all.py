"""All pipelines of this directory in one process: each has a coordinator and a pts of its own.

::

    python -m examples.video.run_all
"""

from __future__ import annotations

import sys

import holdfast as hf
from examples.video import annotate, both, cameras, events, places

PIPELINES = (events.pipeline, annotate.pipeline, both.pipeline, cameras.gate, cameras.left, cameras.pair)
CHECKPOINT = places.WORK / "checkpoint"


def main() -> int:
    """Run them to the end of what the cameras have sent; return 1 if one failed."""
    runs = hf.start_all(PIPELINES, checkpoint=CHECKPOINT, trigger=hf.available_now())
    errors = []
    for run in runs:
        try:
            run.wait()
        except hf.HoldfastError as error:
            errors.append(error)
            print(error, file=sys.stderr, flush=True)
    return min(len(errors), 1)


if __name__ == "__main__":
    sys.exit(main())
