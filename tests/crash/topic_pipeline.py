"""The pipeline between topics that the process tests kill and freeze: rows with a number drawn for each, and counts.

``CRASH_KEY`` names the key of the rows.  ``CRASH_FREEZE=<point>:<epoch>`` stops the driver at a crash point, once, as a
machine that stands still does; the file ``frozen`` in ``CRASH_MARKS`` then is there.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import holdfast as hf
from holdfast import faults
from tests.crash.pipeline import draw_batch

BROKER = os.environ["CRASH_KAFKA"]
COLUMNS = "id BIGINT, k STRING, at TIMESTAMP"


def freeze(point: str, epoch: int) -> None:
    """Stand still where ``CRASH_FREEZE`` says, the first time."""
    mark = Path(os.environ["CRASH_MARKS"], "frozen")
    if f"{point}:{epoch}" == os.environ["CRASH_FREEZE"] and not mark.exists():
        mark.touch()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # of the process, this thread might go on a little


if "CRASH_FREEZE" in os.environ:
    faults.install(freeze)

messages = hf.read.kafka(
    BROKER,
    "in",
    schema=COLUMNS,
    timestamp="at",
    max_rows_per_epoch=int(os.environ.get("CRASH_EPOCH_ROWS", "500")),
    name="messages",
)
drawn = messages | hf.map_batches(draw_batch, f"{COLUMNS}, draw DOUBLE", name="drawn")
counted = messages | hf.reduce(by="k", n=hf.count(), newest=hf.max("id"), name="counted")
pipeline = hf.Pipeline(
    "topics",
    drawn | hf.write.kafka(BROKER, "rows", key=os.environ.get("CRASH_KEY"), name="rows_topic"),
    counted | hf.write.kafka(BROKER, "counts", mode="upsert", key="k", name="counts_topic"),
)
